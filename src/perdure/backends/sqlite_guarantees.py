"""What a SQLite store keeps: asked of the library, the open connection and the file system."""

import apsw

from perdure.errors import UnsupportedError
from perdure.guarantees import Acceptance, Check, Guarantees, weakest

NEEDS = (
    "the write-ahead log needs memory that all processes on one machine share: "
    "put the file on a local disk"
)
FULL = 2  # NORMAL is 1, and may lose the last commits on power failure.


def settings_of(db: apsw.Connection, name: str) -> tuple[Check, ...]:
    """Return the settings that durability rests on; UnsupportedError if they are not in force."""
    mode, synchronous = db.pragma("journal_mode"), db.pragma("synchronous")
    if mode != "wal" or synchronous < FULL:
        what = f"{name} runs with journal_mode={mode} and synchronous={synchronous}"
        raise UnsupportedError(what, "this SQLite does not do as it is told: use apsw as published")
    return Check("journal_mode", "wal"), Check("synchronous", "full")


def promised(
    checks: tuple[Check, ...], place: Check, acceptance: Acceptance, why_read_only: str
) -> Guarantees:
    """Return the guarantees of a store whose settings were looked at."""
    version = apsw.sqlite_lib_version()
    if why_read_only:
        checks = (Check("writing", f"only reading: {why_read_only}", "unknown"),)
    is_weak = weakest([place]) == "weak"
    return Guarantees(
        "process death" if is_weak else "power loss",
        "one process" if acceptance.taken else "one machine",
        "SQLite, write-ahead log, synced before each answer",
        atomic="one call",
        engine="SQLite",
        version=version,
        checks=(Check("SQLite", version), *checks, place),
        accepted=acceptance.taken,
    )
