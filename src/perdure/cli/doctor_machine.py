"""What `perdure doctor` looks at around a store: clock, space, permissions. Nothing is written."""

import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from perdure.backend import CLOCK, Backend, knowing_time
from perdure.cli.doctor_findings import Finding, milliseconds
from perdure.cli.text import sized

SPACE_MIN = 2**30  # Bytes; a store that grows by more in a night is not seldom.
FILES_MIN = 100_000  # Each session of a `files:` store is one.
SKEW_MAX = 2.0  # Seconds; recorded times of several machines are then hard to compare.
DRIFT_MAX = 0.1


class Clock:
    """The wall clock against one that only goes forward, from its making on."""

    def __init__(self) -> None:
        self._wall, self._steady = time.time(), time.monotonic()

    def findings(self, backend: Backend) -> Iterator[Finding]:
        """Say whether the clock was set meanwhile, and how far the server's is from it."""
        drift = (time.time() - self._wall) - (time.monotonic() - self._steady)
        if abs(drift) > DRIFT_MAX:
            advice = "recorded times jump; order, leases and retries do not go by them"
            text = f"was set by {drift:+.3f} s while this ran"
            yield Finding("clock", "note", text, advice, {"drift": drift})
        else:
            yield Finding("clock", "sound", "goes evenly", data={"drift": drift})
        if CLOCK in backend.capabilities:
            yield _skew(backend)


def _skew(backend: Backend) -> Finding:
    before = time.time()
    server = knowing_time(backend).server_time()
    after = time.time()
    skew = server - (before + after) / 2
    text = f"the server's is {skew:+.3f} s from this machine's"
    figures = {"skew": skew, "round_trip": after - before}
    if abs(skew) > SKEW_MAX:
        advice = "set both by the same time server: recorded times can not be compared"
        return Finding("server's clock", "weak", text, advice, figures)
    text = f"{text}, asked in {milliseconds(after - before)}"
    return Finding("server's clock", "sound", text, data=figures)


def of_place(path: Path | None) -> Iterator[Finding]:
    """Say how much room there is where a store lies, and who may read it."""
    if path is None:
        return
    folder = path if path.is_dir() else path.parent
    free = shutil.disk_usage(folder).free
    advice = "make room: a store that can not grow refuses to store" if free < SPACE_MIN else ""
    verdict = "weak" if advice else "sound"
    yield Finding("free space", verdict, f"{sized(free)} free", advice, {"bytes": free})  # type: ignore[arg-type]
    if hasattr(os, "statvfs") and path.is_dir():
        left = os.statvfs(folder).f_favail
        if 0 < left < FILES_MIN:
            advice = "each session is a file: use a file system with more, or a SQLite store"
            yield Finding("free files", "weak", f"{left:,} more files", advice, {"files": left})
    if path.exists() and os.name == "posix":
        yield _readers(path)


def _readers(path: Path) -> Finding:
    mode = stat.S_IMODE(path.stat().st_mode)
    shown = f"{stat.filemode(path.stat().st_mode)} ({mode:o})"
    if mode & 0o007 and not _is_closed(path.parent):
        advice = (
            f"chmod {'700' if path.is_dir() else '600'} it, if it holds what others must not read"
        )
        return Finding("permissions", "note", f"{shown}: every user may read it", advice)
    return Finding("permissions", "sound", f"{shown}: other users may not read it")


def _is_closed(folder: Path) -> bool:
    """Whether a directory above keeps other users out."""
    return any(not one.stat().st_mode & 0o001 for one in (folder, *folder.parents))
