"""Turn what apsw raises into what perdure raises: damage, or a store that does not answer now."""

import apsw

from perdure.errors import DamagedError, PerdureError, UnavailableError, UsageError

# The SQL is constant and was tried: when SQLite refuses it, the schema is not the one written.
_DAMAGE: tuple[type[Exception], ...] = (
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.FormatError,
    apsw.SQLError,
    apsw.MismatchError,
    apsw.ConstraintError,
    UnicodeDecodeError,
)

_HINTS: tuple[tuple[type[Exception], str, str], ...] = (
    (apsw.FullError, "the disk is full", "free space, then try again"),
    (apsw.BusyError, "another process holds the lock", "try again later"),
    (apsw.LockedError, "another connection holds the lock", "try again later"),
    (
        apsw.CantOpenError,
        "the file can not be opened",
        "check that its directory exists and that this user may write there",
    ),
    (
        apsw.ReadOnlyError,
        "the file can not be written",
        "check the permissions of the file and of its directory",
    ),
    (
        PermissionError,
        "no permission",
        "check the permissions of the file and of its directory",
    ),
    (apsw.PermissionsError, "no permission", "check the permissions of the file"),
    (apsw.IOError, "reading or writing failed", "check the disk, then try again"),
    (apsw.NoMemError, "out of memory", "try again with more memory"),
)

DRIVER_ERRORS = (apsw.Error, OSError, MemoryError, UnicodeDecodeError)
"""What may come out of apsw; anything else is a mistake in the code and passes as it is."""

HARMLESS = (apsw.BusyError, apsw.LockedError, apsw.ConstraintError)
"""After these a rollback is enough: no write or sync failed."""


def translated(error: Exception, name: str, stream: str = "", position: int = 0) -> PerdureError:
    """Return the error to raise instead, `from` the given one. It never tells of a body."""
    if isinstance(error, apsw.TooBigError):
        return UsageError(f"an entry of {stream!r} is larger than SQLite can hold")
    if isinstance(error, _DAMAGE):
        return DamagedError(stream or name, position, f"SQLite: {error} (in {name})")
    for kind, reason, hint in _HINTS:
        if isinstance(error, kind):
            return UnavailableError(name, f"{reason} (SQLite: {error})", hint)
    return UnavailableError(name, f"{type(error).__name__}: {error}")
