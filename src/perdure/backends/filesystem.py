"""Check file systems, wait for a file's lock, create private files: shared by all stores in files.

Paths come in; the type of the file system, checks, reasons and descriptors go out. No content is
written. New files are for their owner only (0600), because conversations are in them. An existing
file keeps its mode, so that its owner can share it with `chmod` and `chgrp`.
"""

import functools
import os
import random
import re
import sys
import time
from pathlib import Path

from perdure.backends.guarantees import Acceptance, Check
from perdure.errors import UnavailableError, UnsupportedError, UsageError

NETWORK_FILESYSTEM = "network-filesystem"

ACCEPTABLE = {
    NETWORK_FILESYSTEM: "other machines must not open the store, and stored data may be lost with "
    "the server that keeps the files"
}

"""The weaknesses that stores in files can accept, and what each costs."""


FIRST_PAUSE = 0.0002  # seconds; about as long as a commit on a fast disk

LONGEST_PAUSE = 0.005  # seconds; long enough to spare the CPU, short compared to a slow sync

STOPPED_WRITER_HINT = (
    "try again later; if it was stopped in the middle of a write, resume or end that process"
)

MOUNTINFO = Path("/proc/self/mountinfo")


# Their pages are not shared between machines, or not between guest and host: mapped memory that one
# writes is not visible to the other, which breaks SQLite's -shm and its locks.
# fmt: off
SHARED_BY_MACHINES = frozenset((
    "nfs", "nfs3", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "afs", "ceph",
    "lustre", "glusterfs", "beegfs", "ncp", "ncpfs", "vboxsf", "vmhgfs", "prl_fs", "coda",
    "gfs", "gfs2", "ocfs2", "gpfs", "pvfs2", "orangefs", "davfs", "sshfs", "fuse",
))

# fmt: on
IN_MEMORY = frozenset(("tmpfs", "ramfs"))


def resolve_path(path: str, store: str) -> str:
    """Return a path without links; UsageError for a link to nothing.

    Following it would create the store in a place that another user may have chosen.
    """
    if os.path.islink(path) and not os.path.exists(path):  # noqa: PTH110, PTH114 - the path is text
        raise UsageError(f"{store} is a link to nothing: pass the path of the store itself")
    return os.path.realpath(path)


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


def mounted_type(path: str, mountinfo: str) -> str:
    """Return the type of the file system that holds an absolute path, "" if none is listed.

    `mountinfo` is the text of `/proc/self/mountinfo`. Of two mounts on one directory the later one
    hides the other.
    """
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        mount, separator, rest = line.partition(" - ")
        fields = mount.split(" ")
        if not separator or len(fields) < 5:  # noqa: PLR2004 - the mount point is the fifth field
            continue
        point = _unescape(fields[4])
        if len(point) >= best and f"{path}/".startswith(point.rstrip("/") + "/"):
            best, kind = len(point), rest.split(" ", 1)[0]
    return kind


def is_shared(kind: str) -> bool:
    """Return whether other machines can open the same file. `fuse.*` may be anything: yes."""
    return kind in SHARED_BY_MACHINES or kind.startswith("fuse.")


def require_local(path: str, needs: str, acceptance: Acceptance) -> Check:
    """Check the file system of a path, as far as that can be determined.

    Raises UnsupportedError, with the hint `needs`, if other machines share it and `acceptance` does
    not accept that.
    """
    kind = filesystem_type(path)
    if not kind:
        advice = "the file system cannot be determined here: make sure it is a local disk"
        return Check("file system", "unknown", "unknown", advice)
    if is_shared(kind):
        error = UnsupportedError(f"{path} is on a {kind} file system", needs)
        acceptance.require([NETWORK_FILESYSTEM], error)
        return Check("file system", kind, "weak", needs)
    if kind in IN_MEMORY:
        advice = "its files are lost when the machine restarts: use a directory on a disk"
        return Check("file system", kind, "weak", advice)
    if kind == "overlay":
        advice = "in a container, these files are lost with it: use a volume"
        return Check("file system", kind, "unknown", advice)
    return Check("file system", kind)


def filesystem_type(path: str) -> str:
    """Return the type of the file system that holds a path, "" if it cannot be determined."""
    if sys.platform == "win32":
        return "smb" if is_unc(path) else ""
    try:
        place = os.stat(os.path.dirname(path))  # noqa: PTH116, PTH120 - every opening comes here
    except OSError:
        return _read_type(path, MOUNTINFO)  # Opening reports why.
    return _remembered_type(path, (place.st_dev, place.st_ino), MOUNTINFO)


@functools.lru_cache(maxsize=64)  # another file system at the same path has another device
def _remembered_type(path: str, _place: tuple[int, int], mountinfo: Path) -> str:
    return _read_type(path, mountinfo)


def _read_type(path: str, mountinfo: Path) -> str:
    try:
        return mounted_type(path, mountinfo.read_text(errors="surrogateescape"))
    except FileNotFoundError:
        return ""  # Only Linux has it; elsewhere it would take running another program.
    except OSError as error:  # No descriptor or no memory is left.
        reason = f"its file system cannot be determined: {error.strerror}"
        raise UnavailableError(path, reason) from error


def why_read_only(*paths: str) -> str:
    """Return why this process cannot write to one of the existing paths; "" if it can."""
    for path in paths:
        if os.path.exists(path) and not os.access(path, os.W_OK):  # noqa: PTH110 - the path is text
            if hasattr(os, "statvfs") and os.statvfs(path).f_flag & os.ST_RDONLY:
                return "the file system is read-only"
            return f"this user has no permission to write to {path}"
    return ""


def read_only_error(store: str, reason: str) -> UsageError:
    """Return the error for a write to a read-only store."""
    return UsageError(
        f"{store} is read-only, because {reason}: nothing was written; "
        "fix that, then open the store again"
    )


def sleep_for_lock(attempt: int, deadline: float) -> bool:
    """Sleep before the next attempt to get a lock; return False, at once, after the deadline.

    `attempt` counts from 0: the pauses grow.
    """
    if time.monotonic() >= deadline:
        return False
    longest = min(FIRST_PAUSE * 1.5 ** min(attempt, 16), LONGEST_PAUSE)
    # Jitter, so that two processes do not keep waking at the same moments.
    time.sleep(longest * random.uniform(0.5, 1.0))  # noqa: S311 - spreads waiters, keeps no secret
    return True


def is_unc(path: str) -> bool:
    """Return whether a Windows path names another machine."""
    plain = path.replace("/", "\\")
    if plain.startswith(("\\\\?\\", "\\\\.\\")):
        return plain[4:8].upper() == "UNC\\"
    return plain.startswith("\\\\")


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
