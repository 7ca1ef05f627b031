"""Where trials keep their files, and what this machine lets them do."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory, where a sync costs nothing


@contextlib.contextmanager
def fast_directory() -> Iterator[Path]:
    """Lend an empty directory, in memory where there is such a place: trials sync a lot."""
    parent = _MEMORY if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="perdure-", dir=parent) as name:
        yield Path(name)


def remove(path: Path) -> None:
    """Remove a store: a directory, or a file and its companions."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def has(*programs: str) -> bool:
    return all(shutil.which(program) for program in programs)


def can_mount() -> bool:
    """Whether this user may mount here; root in a container often may not."""
    if not is_root() or not has("mount", "umount"):
        return False
    try:
        with fast_directory() as directory, mounted(directory / "try", "-t", "tmpfs", "perdure"):
            return True
    except subprocess.CalledProcessError:
        return False


def command(*words: str | Path) -> None:
    """Run a system command; raise CalledProcessError with what it said if it fails."""
    subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def mounted(point: Path, *words: str | Path) -> Iterator[Path]:
    """Mount something at a directory that is made for it, and unmount it whatever happens."""
    point.mkdir()
    command("mount", *words, point)
    try:
        yield point
    finally:
        command("umount", point)
        point.rmdir()
