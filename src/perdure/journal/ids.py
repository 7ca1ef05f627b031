"""Random ids, and the prefix that separates generated ids from those chosen by callers.

Nothing is drawn in advance and no generator has a state in this process. A restored snapshot of a
machine (SnapStart, CRIU) and a clone that Python knows nothing of would otherwise repeat keys that
payment services and the fencing of leases rely on, and salts that protect erased bodies.
"""

import os
from binascii import b2a_base64
from collections.abc import Callable

_URLSAFE = bytes.maketrans(b"+/", b"-_")


def _kernel_generator() -> Callable[[int], bytes]:
    """Return the function that reads the kernel's random generator.

    `os.getrandom` keeps the interpreter lock, unlike `os.urandom`: with 32 threads, giving it up
    for each of the two texts of an append cost a third of the CPU time.
    """
    try:
        os.getrandom(1)
    except (AttributeError, OSError):  # Not on this system, or not allowed in this sandbox.
        return os.urandom
    return os.getrandom


_random_bytes = _kernel_generator()


def random_ascii() -> bytes:
    """Return 132 random bits as 22 URL-safe characters, unique among all processes and clones."""
    # 18 bytes are 24 characters without padding; 22 of those are enough.
    return b2a_base64(_random_bytes(18), newline=False).translate(_URLSAFE)[:22]


def random_text() -> str:
    """Return `random_ascii` as text."""
    return random_ascii().decode("ascii")


# prefix of ids that perdure generates; caller-chosen ids never begin with it
GENERATED_PREFIX = "."
