"""Tell where a path lies: on this machine or another, where one may write or only read."""

import os
import re
import sys
from pathlib import Path

from perdure.errors import UnsupportedError, UsageError
from perdure.guarantees import Acceptance, Check

NETWORK = "network-filesystem"
ACCEPTABLE = {
    NETWORK: "other machines must not open the store, and what was stored may be lost with the "
    "server that keeps the files"
}
"""What stores in files know to accept."""

MOUNTINFO = Path("/proc/self/mountinfo")

# Their pages are not shared between machines, or not between the guest and the host: memory that
# one writes to is not what the other sees.
# fmt: off
SHARED_BY_MACHINES = frozenset((
    "nfs", "nfs3", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "afs", "ceph",
    "lustre", "glusterfs", "beegfs", "ncp", "ncpfs", "vboxsf", "vmhgfs", "prl_fs", "coda",
    "gfs", "gfs2", "ocfs2", "gpfs", "pvfs2", "orangefs", "davfs", "sshfs", "fuse",
))
# fmt: on
IN_MEMORY = frozenset(("tmpfs", "ramfs"))


def filesystem_of(path: str, mountinfo: str) -> str:
    """Return the type of the file system that holds an absolute path, "" if none is listed.

    `mountinfo` is the text of `/proc/self/mountinfo`. Of two mounts on one directory the later
    one hides the other.
    """
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        place, found, rest = line.partition(" - ")
        fields = place.split(" ")
        if not found or len(fields) < 5:  # noqa: PLR2004 - the mount point is the fifth field.
            continue
        point = _unescape(fields[4])
        if len(point) >= best and _contains(point, path):
            best, kind = len(point), rest.split(" ", 1)[0]
    return kind


def is_shared(kind: str) -> bool:
    """Say whether other machines can have the same file open. `fuse.*` may be anything: yes."""
    return kind in SHARED_BY_MACHINES or kind.startswith("fuse.")


def require_local(path: str, needs: str, acceptance: Acceptance) -> Check:
    """Return what is known of the file system that a path lies on.

    Raises UnsupportedError, with what the store needs, if it is one that other machines share and
    that was not accepted; as far as one can tell.
    """
    kind = kind_of(path)
    if not kind:
        advice = "nobody can tell here where the files lie: use a local disk"
        return Check("file system", "unknown", "unknown", advice)
    if is_shared(kind):
        acceptance.require(NETWORK, UnsupportedError(f"{path} lies on {kind}", needs))
        return Check("file system", kind, "weak", needs)
    if kind in IN_MEMORY:
        advice = "its files are gone when the machine restarts: use a directory on a disk"
        return Check("file system", kind, "weak", advice)
    if kind == "overlay":
        advice = "if this is a container, its own files are gone with it: use a volume"
        return Check("file system", kind, "unknown", advice)
    return Check("file system", kind)


def kind_of(path: str) -> str:
    """Return the type of the file system that holds a path, "" where that can not be told."""
    if sys.platform == "win32":
        return "smb" if is_unc(path) else ""
    if not MOUNTINFO.exists():
        return ""  # Only Linux has it; elsewhere nothing can be told without running a program.
    return filesystem_of(path, MOUNTINFO.read_text(errors="surrogateescape"))


def why_read_only(*paths: str) -> str:
    """Say why this process can not write to something that is there; "" as far as it can."""
    for path in paths:
        if os.path.exists(path) and not os.access(path, os.W_OK):  # noqa: PTH110 - text in.
            if hasattr(os, "statvfs") and os.statvfs(path).f_flag & os.ST_RDONLY:
                return "the file system is read-only"
            return f"there is no permission to write to {path}"
    return ""


def refusal(store: str, reason: str) -> UsageError:
    """Return the error of a write to a store that can only be read."""
    return UsageError(
        f"{store} can only be read, because {reason}: nothing was written; "
        "when that has changed, open the store again"
    )


def is_unc(path: str) -> bool:
    """Say whether a Windows path names another machine."""
    plain = path.replace("/", "\\")
    if plain.startswith(("\\\\?\\", "\\\\.\\")):
        return plain[4:8].upper() == "UNC\\"
    return plain.startswith("\\\\")


def _contains(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
