"""The tables of a SQLite store, and how a connection to one is opened and checked.

Nothing of a file is changed before it is known to be ours or empty. Headers and plain bodies are
text, so that the `sqlite3` shell shows them.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import apsw

from perdure.backends.sqlite_errors import DRIVER_ERRORS, translated
from perdure.errors import (
    DamagedError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    VersionError,
)

APPLICATION_ID = 0x70726475  # "prdu": what `file` and other programs know the store by.
VERSION = 1  # Kept in user_version; a newer perdure that changes the tables counts it up.
SQLITE_MIN = 3_051_003  # Older ones can corrupt a database when its write-ahead log is reset.
PAGE_SIZE = 4096  # A lone append writes three pages or four; larger ones take longer to sync.
WAL_SIZE_MAX = 64 * 2**20  # What a burst may leave behind; the log is cut back to this.

DELETED = """'["deleted"]'"""  # The labels of the head of a deleted session.

TABLES = {
    "head": "CREATE TABLE head (id integer primary key, name text not null,"
    " position integer not null, digest text not null, labels text not null)",
    "head_name": "CREATE INDEX head_name on head (name)",
    "head_live": f"CREATE INDEX head_live on head (name) where labels <> {DELETED}",
    # An ordinary table grows at its end. WITHOUT ROWID would keep long rows on overflow pages.
    "entry": "CREATE TABLE entry (rowid integer primary key, stream integer not null,"
    " position integer not null, header text not null, body text not null)",
    "entry_place": "CREATE UNIQUE INDEX entry_place on entry (stream, position)",
    "label": "CREATE TABLE label (label text not null, name text not null,"
    " stream integer not null, primary key (label, name)) without rowid",
}
LATER = "head_live"  # Files that were made before it came are of the same version without it.

SETTINGS = f"""
    pragma synchronous = full;         -- NORMAL may lose the last commits on power failure.
    pragma fullfsync = on;             -- On macOS a plain fsync leaves bytes in the drive's cache.
    pragma checkpoint_fullfsync = on;
    pragma secure_delete = on;         -- Dropped bytes do not stay in free pages.
    pragma cell_size_check = on;
    pragma trusted_schema = off;
    pragma journal_size_limit = {WAL_SIZE_MAX};
"""


def require_library() -> None:
    """Raise UnsupportedError if this SQLite has the WAL-reset corruption bug."""
    parts = [int(part) for part in apsw.sqlite_lib_version().split(".")]
    if parts[0] * 1_000_000 + parts[1] * 1000 + parts[2] < SQLITE_MIN:
        raise UnsupportedError(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt a database in WAL mode",
            "upgrade apsw to one with SQLite 3.51.3 or newer",
        )


def open_connection(
    path: str, name: str, vfs: str | None, busy: Callable[[int], bool]
) -> apsw.Connection:
    """Open the store, made new if the file is empty or missing; what is visible is on disk.

    Raises UsageError for another program's database, VersionError for a newer one, DamagedError,
    UnavailableError. A file that is refused has not been changed.
    """
    _require_place(path, name)
    connection = None
    try:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        connection = apsw.Connection(path, flags, vfs)
        connection.set_busy_handler(busy)
        _prepare(connection, path, name, busy)
        # A process killed between writing and syncing leaves entries that can be read already.
        # SQLite has just recovered them; only after this they may count as stored.
        sync_file(path + "-wal")
    except BaseException as error:
        if connection is not None:
            connection.close(True)  # noqa: FBT003 - apsw takes it by position.
        if isinstance(error, DRIVER_ERRORS):
            raise translated(error, name) from error
        raise
    return connection


def prepare_reader(connection: apsw.Connection, path: str, name: str) -> None:
    """Make sure that a connection that can only read is one to a store."""
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
    if _is_new(connection, path, name):
        raise UnavailableError(name, "it is empty, and nothing can be written to it")
    connection.execute(SETTINGS).fetchall()
    _require_tables(connection, name)


def rewrite_file(path: str) -> None:
    """Write a file's bytes anew, for `sync_file`; nothing to do if there is no such file.

    Only for the log, and only while this process holds the right to write to it.
    """
    try:
        handle = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        return
    try:
        while data := os.read(handle, 2**20):
            os.lseek(handle, -len(data), os.SEEK_CUR)
            os.write(handle, data)
    finally:
        os.close(handle)


def rewrite_log(path: str) -> None:
    """Write the log of a database anew, and sync it."""
    rewrite_file(path + "-wal")
    sync_file(path + "-wal")


def sync_file(path: str) -> None:
    """Make what was written to a file durable; nothing to do if there is no such file.

    Never call it with the database or its `-shm`: closing them here would drop SQLite's locks.
    """
    try:
        handle = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        if sys.platform == "darwin":
            import fcntl  # Not there on Windows.

            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
        else:
            os.fsync(handle)
    finally:
        os.close(handle)


def _require_place(path: str, name: str) -> None:
    parent = Path(path).parent
    if not parent.is_dir():
        raise UnavailableError(name, f"there is no directory {parent}", "make it, then try again")
    if Path(path).is_dir():
        raise UnavailableError(name, "that is a directory", "name a file in it")
    if Path(path).exists() and not Path(path).is_file():
        raise UsageError(f"{name} is a device, a pipe or a socket: name an ordinary file")
    # Looked at once more after the log: another process may have made both in between.
    if _size(path) == 0 and _size(path + "-wal") > 0 and _size(path) == 0:
        # SQLite would delete the log, and with it perhaps the only copy of what was written.
        raise DamagedError(name, 0, "the file is empty, yet its -wal is not: restore the file")


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0  # What can not be looked at can not be opened either, and SQLite says why.


def _prepare(
    connection: apsw.Connection, path: str, name: str, busy: Callable[[int], bool]
) -> None:
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
    attempt = 0
    while not _is_ready(connection, path, name):
        # Two processes that make the same file at once can see a lock that SQLite does not wait
        # for. busy() sleeps, and says no when patience has run out.
        if not busy(attempt):
            raise UnavailableError(name, "another process holds the lock while it is being made")
        attempt += 1
    if _require_tables(connection, name):
        connection.execute(TABLES[LATER].replace("INDEX", "INDEX if not exists", 1))


def _is_ready(connection: apsw.Connection, path: str, name: str) -> bool:
    try:
        is_new = _is_new(connection, path, name)
        connection.execute(SETTINGS).fetchall()  # apsw stops at each row: all of them, then.
        if is_new:
            _make(connection)
        mode = connection.pragma("journal_mode", "wal")
    except (apsw.BusyError, apsw.LockedError):
        return False
    if mode != "wal":
        raise UnsupportedError(f"{name} can not keep a write-ahead log", "use a local disk")
    return True


ANOTHER = "nothing was changed: give another path, or restore it from a backup"


def _is_new(connection: apsw.Connection, path: str, name: str) -> bool:
    try:
        application, version, tables = _identity(connection)
    except apsw.NotADBError as error:
        raise DamagedError(
            name, 0, f"not a database: another program's file, or damaged; {ANOTHER}"
        ) from error
    if application == APPLICATION_ID:
        _require_version(name, version)
        return False
    if application or version or tables:
        raise UsageError(f"{name} is the database of another program; {ANOTHER}")
    if 0 < _size(path) < 512:  # noqa: PLR2004 - SQLite takes a shorter file for an empty one.
        raise DamagedError(name, 0, f"not a database; {ANOTHER}")
    return True


def _identity(connection: apsw.Connection) -> tuple[int, int, int]:
    """Read what tells whose file it is, in one snapshot.

    Not `with connection`: an I/O error ends the transaction, and leaving the block then raises
    that there is none, which would hide the error.
    """
    connection.execute("begin")
    try:
        application = connection.pragma("application_id")
        version = connection.pragma("user_version")
        tables = connection.execute("select count(*) from sqlite_schema").get
    finally:
        if connection.in_transaction:
            connection.execute("rollback")
    return application, version, tables


def _require_version(name: str, version: int) -> None:
    if version > VERSION:
        raise VersionError(name, str(version), str(VERSION))
    if version < 1:
        raise DamagedError(name, 0, f"its version is {version}")


def _make(connection: apsw.Connection) -> None:
    connection.pragma("page_size", PAGE_SIZE)
    connection.pragma("journal_mode", "wal")
    connection.execute("begin immediate")
    try:
        if not connection.execute("select count(*) from sqlite_schema").get:
            for sql in TABLES.values():
                connection.execute(sql)
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", VERSION)
        connection.execute("commit")
    finally:
        if connection.in_transaction:
            connection.execute("rollback")


def _require_tables(connection: apsw.Connection, name: str) -> bool:
    """Raise unless all tables are there; return whether the index that came later is not."""
    found = dict(connection.execute("select name, sql from sqlite_schema where sql is not null"))
    for table, sql in TABLES.items():
        if found.get(table, sql if table == LATER else None) != sql:
            raise DamagedError(name, 0, f"its table or index {table!r} is missing or altered")
    return LATER not in found
