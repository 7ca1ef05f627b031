"""Inspect the file system of a path: local or shared by machines, writable or read-only.

Paths come in; its type, checks and reasons go out. Nothing is written.
"""

import os
import re
import sys
from pathlib import Path

from perdure.backends.guarantees import Acceptance, Check
from perdure.errors import UnsupportedError, UsageError

NETWORK_FILESYSTEM = "network-filesystem"

ACCEPTABLE = {
    NETWORK_FILESYSTEM: "other machines must not open the store, and stored data may be lost with "
    "the server that keeps the files"
}

"""The weaknesses that stores in files can accept, and what each costs."""


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


def mounted_type(path: str, mountinfo: str) -> str:
    """Return the type of the file system that holds an absolute path, "" if none is listed.

    `mountinfo` is the text of `/proc/self/mountinfo`. Of two mounts on one directory the later one
    hides the other.
    """
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        mount, separator, rest = line.partition(" - ")
        fields = mount.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = _unescape(fields[4])
        if len(point) >= best and _contains(point, path):
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
        acceptance.require(
            NETWORK_FILESYSTEM, UnsupportedError(f"{path} is on a {kind} file system", needs)
        )
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
    if not MOUNTINFO.exists():
        return ""  # Only Linux has it; elsewhere it would take running another program.
    return mounted_type(path, MOUNTINFO.read_text(errors="surrogateescape"))


def why_read_only(*paths: str) -> str:
    """Return why this process cannot write to one of the existing paths; "" if it can."""
    for path in paths:
        if os.path.exists(path) and not os.access(path, os.W_OK):
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


def is_unc(path: str) -> bool:
    """Return whether a Windows path names another machine."""
    plain = path.replace("/", "\\")
    if plain.startswith(("\\\\?\\", "\\\\.\\")):
        return plain[4:8].upper() == "UNC\\"
    return plain.startswith("\\\\")


def _contains(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
