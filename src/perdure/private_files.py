"""Create files for their owner only (0600), and never through a link: conversations are in them.

A path and flags come in, a descriptor goes out. An existing file keeps its mode, so that its owner
can share it with `chmod` and `chgrp`.
"""

import os


def open_private(path: str, flags: int) -> int:
    """Open a file as the `opener` of Python's `open`; a new one is readable by its owner only.

    A link to a file is followed. A link to nothing is a FileExistsError, if the flags would create
    a file: another user may have put it there to choose where the content goes.
    """
    if flags & os.O_CREAT and not flags & os.O_EXCL:
        try:
            return os.open(path, flags & ~os.O_CREAT)
        except FileNotFoundError:
            flags |= os.O_EXCL  # This also refuses a link.
    return os.open(path, flags, 0o600)
