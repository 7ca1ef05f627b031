"""Environment checks of `perdure doctor`: clock, free space, permissions. Writes nothing."""

import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from rich.filesize import decimal

from perdure.backends.protocol import CLOCK, Backend, require_clock
from perdure.cli.doctor.findings import StoreFinding, human_duration

SPACE_MIN = 2**30  # Bytes; a busy store can grow by this much overnight.

FILES_MIN = 100_000  # Free inodes; each session of a `files:` store is a file.

SKEW_MAX = 2.0  # Seconds; beyond, recorded times of several machines are hard to compare.

DRIFT_MAX = 0.1  # Seconds; more means that the clock was set during the run.


class ClockCheck:
    """Compares the wall clock with the monotonic clock, from its creation on."""

    def __init__(self) -> None:
        self._wall, self._steady = time.time(), time.monotonic()

    def findings(self, backend: Backend) -> Iterator[StoreFinding]:
        """Yield whether the clock was set during the run, and the skew of the server's clock."""
        drift = (time.time() - self._wall) - (time.monotonic() - self._steady)
        if abs(drift) > DRIFT_MAX:
            advice = "recorded times jump; order, leases and retries do not depend on them"
            text = f"was set by {drift:+.3f} s while this ran"
            yield StoreFinding("clock", "note", text, advice, {"drift": drift})
        else:
            yield StoreFinding("clock", "sound", "runs steadily", data={"drift": drift})
        if CLOCK in backend.capabilities:
            yield _skew_finding(backend)


def _skew_finding(backend: Backend) -> StoreFinding:
    start = time.time()
    server = require_clock(backend).server_time()
    end = time.time()
    skew = server - (start + end) / 2
    text = f"differs by {skew:+.3f} s from this machine's clock"
    figures = {"skew": skew, "round_trip": end - start}
    if abs(skew) > SKEW_MAX:
        advice = "synchronize both with NTP: recorded times cannot be compared"
        return StoreFinding("server's clock", "weak", text, advice, figures)
    text = f"{text}, round trip {human_duration(end - start)}"
    return StoreFinding("server's clock", "sound", text, data=figures)


def path_findings(path: Path | None) -> Iterator[StoreFinding]:
    """Yield the free space at a store's path, and who can read the store."""
    if path is None:
        return
    folder = path if path.is_dir() else path.parent
    free = shutil.disk_usage(folder).free
    advice = "free some space: a full disk makes appends fail" if free < SPACE_MIN else ""
    verdict = "weak" if advice else "sound"
    yield StoreFinding("free space", verdict, f"{decimal(free)} free", advice, {"bytes": free})  # type: ignore[arg-type]
    if hasattr(os, "statvfs") and path.is_dir():
        free_files = os.statvfs(folder).f_favail
        if 0 < free_files < FILES_MIN:
            advice = "each session is a file: use a file system with more inodes, or a SQLite store"
            yield StoreFinding(
                "free files",
                "weak",
                f"room for {free_files:,} more files",
                advice,
                {"files": free_files},
            )
    if path.exists() and os.name == "posix":
        yield _permission_finding(path)


def _permission_finding(path: Path) -> StoreFinding:
    mode = stat.S_IMODE(path.stat().st_mode)
    shown = f"{stat.filemode(path.stat().st_mode)} ({mode:o})"
    if mode & 0o007 and not _is_private(path.parent):
        advice = f"chmod {'700' if path.is_dir() else '600'} it, if other users must not read it"
        return StoreFinding("permissions", "note", f"{shown}: every user can read it", advice)
    return StoreFinding("permissions", "sound", f"{shown}: other users cannot read it")


def _is_private(folder: Path) -> bool:
    """Return whether a parent directory keeps other users out."""
    return any(not parent.stat().st_mode & 0o001 for parent in (folder, *folder.parents))
