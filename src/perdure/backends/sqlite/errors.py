"""Translate errors of apsw into perdure's: damage, or a store that is unavailable for now.

The texts carry SQLite's message, which names tables and constraints but never content.
"""

import apsw

from perdure.backends.filesystem import STOPPED_WRITER_HINT
from perdure.errors import DamagedError, PerdureError, UnavailableError, UsageError

# The SQL is constant and tested: if SQLite rejects it, the schema is not the one that we wrote.
_DAMAGE_ERRORS: tuple[type[Exception], ...] = (
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.FormatError,
    apsw.SQLError,
    apsw.MismatchError,
    apsw.ConstraintError,
    UnicodeDecodeError,
)


_CHECK_PERMISSIONS = "check the permissions of the file and of its directory"

_CHECK_DIRECTORY = "check that its directory exists and that this user may write there"

_HINTS: tuple[tuple[type[Exception], str, str], ...] = (
    (apsw.FullError, "the disk is full", "free space, then try again"),
    (apsw.BusyError, "another process holds the lock", STOPPED_WRITER_HINT),
    # After ten seconds, if a process was stopped while it changes the index of the log.
    (apsw.ProtocolError, "another process holds the lock", STOPPED_WRITER_HINT),
    (apsw.LockedError, "another connection holds the lock", "try again later"),
    (apsw.CantOpenError, "the file cannot be opened", _CHECK_DIRECTORY),
    (apsw.ReadOnlyError, "the file cannot be written", _CHECK_PERMISSIONS),
    (PermissionError, "permission denied", _CHECK_PERMISSIONS),
    (apsw.PermissionsError, "permission denied", "check the permissions of the file"),
    (apsw.IOError, "reading or writing failed", "check the disk, then try again"),
    (apsw.NoMemError, "out of memory", "free some memory, then try again"),
)


DRIVER_ERRORS = (apsw.Error, OSError, MemoryError, UnicodeDecodeError)

"""The exceptions that apsw may raise; any other is a bug and propagates unchanged."""


ROLLBACK_IS_ENOUGH = (apsw.BusyError, apsw.LockedError, apsw.ConstraintError)

"""Errors after which a rollback is enough: no write or sync failed."""


def translate_error(
    error: Exception, name: str, stream: str = "", position: int = 0
) -> PerdureError:
    """Return the error to raise `from` the given one. Its text never contains a body."""
    if isinstance(error, apsw.TooBigError):
        return UsageError(f"an entry of {stream!r} is too large for SQLite: store less at once")
    if isinstance(error, _DAMAGE_ERRORS):
        return DamagedError(stream or name, position, f"SQLite: {error} (in {name})")
    for kind, reason, hint in _HINTS:
        if isinstance(error, kind):
            return UnavailableError(name, f"{reason} (SQLite: {error})", hint)
    return UnavailableError(name, f"{type(error).__name__}: {error}")
