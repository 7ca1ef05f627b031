"""The guarantees of a SQLite store, from the library, the connection and the file system."""

import apsw

from perdure.errors import UnsupportedError
from perdure.guarantees import Acceptance, Check, Guarantees, weakest

NEEDS = (
    "the write-ahead log needs memory that all processes on one machine share: "
    "put the file on a local disk"
)
FULL = 2  # a value of `pragma synchronous`; NORMAL is 1 and may lose commits on power failure


def settings_of(db: apsw.Connection, name: str) -> tuple[Check, ...]:
    """Return the settings that durability depends on; UnsupportedError if they are not active."""
    mode, synchronous = db.pragma("journal_mode"), db.pragma("synchronous")
    if mode != "wal" or synchronous < FULL:
        what = f"{name} runs with journal_mode={mode} and synchronous={synchronous}"
        raise UnsupportedError(what, "this SQLite ignores settings: install apsw from PyPI")
    return Check("journal_mode", "wal"), Check("synchronous", "full")


def promised(
    checks: tuple[Check, ...], filesystem: Check, acceptance: Acceptance, why_read_only: str
) -> Guarantees:
    """Return the guarantees of a store, from the checks of its settings and file system."""
    version = apsw.sqlite_lib_version()
    if why_read_only:
        checks = (Check("writing", f"read-only: {why_read_only}", "unknown"),)
    is_weak = weakest([filesystem]) == "weak"
    return Guarantees(
        "process death" if is_weak else "power loss",
        "one process" if acceptance.taken else "one machine",
        "SQLite, write-ahead log, synced before append returns",
        atomic="one call",
        engine="SQLite",
        version=version,
        checks=(Check("SQLite", version), *checks, filesystem),
        accepted=acceptance.taken,
    )
