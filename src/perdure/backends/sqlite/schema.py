"""The tables, settings and guarantees of a SQLite store; opens and checks its connections.

A path comes in, a checked connection goes out. A file is not changed before it is known to be ours
or empty. Headers and plain bodies are stored as text, so that the `sqlite3` shell shows them.
"""

import contextlib
import errno
import functools
import os
import stat
import sys
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import apsw

from perdure.backends import compression
from perdure.backends.filesystem import STOPPED_WRITER_HINT
from perdure.backends.fork_safety import fork_safe_lock
from perdure.backends.guarantees import Acceptance, Check, Guarantees
from perdure.backends.sqlite.errors import DRIVER_ERRORS, translate_error
from perdure.backends.sqlite.log_check import require_whole_log
from perdure.errors import (
    DamagedError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    VersionError,
)

T = TypeVar("T")


NEEDS_LOCAL_DISK = (
    "the write-ahead log needs memory that all processes on one machine share: "
    "put the file on a local disk"
)

# a value of `pragma synchronous`; NORMAL is 1 and may lose commits on power failure
SYNCHRONOUS_FULL = 2


def check_settings(db: apsw.Connection, name: str) -> tuple[Check, ...]:
    """Return the settings that durability depends on; UnsupportedError if they are not active."""
    mode, synchronous = db.pragma("journal_mode"), db.pragma("synchronous")
    if mode != "wal" or synchronous < SYNCHRONOUS_FULL:
        what = f"{name} runs with journal_mode={mode} and synchronous={synchronous}"
        raise UnsupportedError(what, "this SQLite ignores settings: install apsw from PyPI")
    return Check("journal_mode", "wal"), Check("synchronous", "full")


def store_guarantees(
    checks: tuple[Check, ...], filesystem: Check, acceptance: Acceptance, why_read_only: str
) -> Guarantees:
    """Return the guarantees of a store, from the checks of its settings and file system."""
    version = apsw.sqlite_lib_version()
    if why_read_only:
        checks = (Check("writing", f"read-only: {why_read_only}", "unknown"),)
    return Guarantees(
        "process death" if filesystem.verdict == "weak" else "power loss",
        "one process" if acceptance.used else "one machine",
        "SQLite, write-ahead log, synced before append returns",
        atomic="one call",
        engine="SQLite",
        version=version,
        checks=(Check("SQLite", version), *checks, filesystem),
        accepted=acceptance.used,
    )


APPLICATION_ID = 0x70726475  # "prdu"; identifies the store to `file` and other programs

VERSION = 1  # in user_version; a newer perdure that changes the tables increments it

SQLITE_MIN = 3_051_003  # 3.51.3; older ones can corrupt a database when its log is reset

INCREMENTAL = 2  # a value of `pragma auto_vacuum`; files of older versions have 0, and never shrink

PAGE_SIZE = 4096  # bytes; an append writes 3 or 4 pages, and larger ones take longer to sync

WAL_SIZE_MAX = 64 * 2**20  # bytes; a log that grew in a burst is truncated to this


DELETED_LABELS = """'["deleted"]'"""  # The labels column of a deleted session, as an SQL literal.


TABLES = {
    "head": "CREATE TABLE head (id integer primary key, name text not null,"
    " position integer not null, digest text not null, labels text not null,"
    " snapshot integer not null)",
    "head_name": "CREATE INDEX head_name on head (name)",
    "head_live": f"CREATE INDEX head_live on head (name) where labels <> {DELETED_LABELS}",
    # A rowid table grows at its end. WITHOUT ROWID would put long rows on overflow pages.
    # `position` is that of the last record, as in `head`; `first` that of the first one.
    "entry": "CREATE TABLE entry (rowid integer primary key, stream integer not null,"
    " position integer not null, first integer not null, header text not null,"
    " body text not null)",
    "entry_place": "CREATE UNIQUE INDEX entry_place on entry (stream, position)",
    "label": "CREATE TABLE label (label text not null, name text not null,"
    " stream integer not null, primary key (label, name)) without rowid",
}

# For people with the `sqlite3` shell: perdure itself does not use it. Lengths count bytes, so the
# bodies are cut from a blob. Sealed and erased ones have no payload. In a compressed store, an
# entry whose header is packed is one row that has no kind.
VIEW = "record"  # A store may have that of an older version.

TABLES[VIEW] = (
    "CREATE VIEW record as select session, position, kind, id, time,"
    " case when suite = 'plain' and json_valid(body) then body->1 end as payload,"
    " case when suite = 'plain' and json_valid(body) then body->>2 end as caller_id,"
    " length, digest"
    " from (select head.name as session, entry.first + item.key as position,"
    " header->>1 as suite, item.value->>0 as kind, item.value->>1 as id, header->>5 as time,"
    " item.value->>2 as length, item.value->>3 as digest,"
    " case typeof(body) when 'text' then"
    " trim(cast(substr(cast(body as blob), 1 + (select total(before.value->>2) from"
    " json_each(header, '$[8]') as before where before.key < item.key), item.value->>2) as text))"
    " end as body from entry join head on head.id = stream,"
    " json_each(case typeof(header) when 'text' then header else '[]' end, '$[8]') as item)"
    " union all select head.name, entry.position, null, null, null, null, null, null, null"
    " from entry join head on head.id = stream where typeof(header) <> 'text'"
)

COUNT_TABLES = "select count(*) from sqlite_schema"

LATER_INDEX = "head_live"  # Added later: older files of the same version lack it.


_FULL_SYNC = "pragma fullfsync = on; pragma checkpoint_fullfsync = on;"

SETTINGS = (
    "pragma synchronous = full;"  # NORMAL may lose the last commits on power failure.
    "pragma cell_size_check = on;" + _FULL_SYNC * (sys.platform == "darwin")
    # On macOS a plain fsync leaves bytes in the drive's cache. Elsewhere it changes nothing.
)

# Only a connection that writes needs these, and each takes as long as reading a head.
WRITER_SETTINGS = (
    f"{_FULL_SYNC}"
    "pragma secure_delete = on;"  # Dropped bytes do not stay in free pages.
    f"pragma journal_size_limit = {WAL_SIZE_MAX};"
)


def require_library() -> None:
    """Raise UnsupportedError if this SQLite has the WAL-reset corruption bug."""
    parts = [int(part) for part in apsw.sqlite_lib_version().split(".")]
    if parts[0] * 1_000_000 + parts[1] * 1000 + parts[2] < SQLITE_MIN:
        raise UnsupportedError(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt a database in WAL mode",
            "upgrade apsw to one with SQLite 3.51.3 or newer",
        )


def open_writer(
    path: str, name: str, vfs: str | None, busy: Callable[[int], bool], *, first: bool = True
) -> apsw.Connection:
    """Open the store, creating it if the file is empty or missing; all visible data is on disk.

    `first` says that this process has no other connection to it, so that SQLite may recover its
    log. Raises UsageError for another program's database, VersionError for a newer one,
    DamagedError, UnavailableError. A refused file has not been changed.
    """

    def prepare(connection: apsw.Connection) -> None:
        attempt = 0
        while not _is_ready(connection, path, name, first=first):
            # Two processes that create the same file at once can meet a lock that SQLite does not
            # wait for. busy() sleeps, and returns False after its timeout.
            if not busy(attempt):
                reason = "another process holds the lock while it creates or recovers the store"
                raise UnavailableError(name, reason, STOPPED_WRITER_HINT)
            attempt += 1
        _require_tables(connection, name)
        # A process killed between writing and syncing leaves entries in the log that SQLite has
        # just recovered. They can be read, but count as stored only after this sync. Nothing may be
        # written before it: `log_check` relies on that.
        sync_file(path + "-wal")

    def configure(connection: apsw.Connection) -> None:
        # The first connection has checked the file and made it ours: that halves the time.
        connection.execute(SETTINGS).fetchall()

    if not first:
        return _open_connection(path, apsw.SQLITE_OPEN_READWRITE, name, vfs, busy, configure)
    _require_usable_path(path, name)
    _create_private(path, name)
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    return _open_connection(path, flags, name, vfs, busy, prepare)


def open_reader(
    path: str,
    name: str,
    vfs: str | None,
    busy: Callable[[int], bool],
    *,
    unlocked: bool,
    first: bool = True,
) -> apsw.Connection:
    """Open an existing store for reading; `unlocked` if it has no log and no process writes."""

    def prepare(connection: apsw.Connection) -> None:
        if _is_new(connection, path, name, first=first):
            reason = "it is empty and cannot be written to"
            raise UnavailableError(name, reason, "pass the path of an existing store")
        connection.execute(SETTINGS).fetchall()
        _require_tables(connection, name)
        try:
            if not unlocked:
                sync_file(path + "-wal")
        except OSError as error:  # A read-only medium may refuse: it has nothing unsynced.
            if error.errno not in (errno.EROFS, errno.EINVAL):
                raise

    uri = f"file:{quote(path)}?mode=ro" + "&immutable=1" * unlocked
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        return _open_connection(uri, flags, name, vfs, busy, prepare)
    except UnavailableError as error:
        cause = error.__cause__
        if unlocked or not isinstance(cause, apsw.CantOpenError):
            raise
        reason = f"its -wal cannot be read without its -shm (SQLite: {cause})"
        hint = "copy the file and its -wal to a writable directory, and open the copy"
        raise UnavailableError(name, reason, hint) from cause


def _open_connection(
    file: str,
    flags: int,
    name: str,
    vfs: str | None,
    busy: Callable[[int], bool],
    prepare: Callable[[apsw.Connection], None],
) -> apsw.Connection:
    connection = None
    try:
        connection = apsw.Connection(file, flags, vfs)
        connection.set_busy_handler(busy)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        prepare(connection)
    except BaseException as error:
        if connection is not None:
            connection.close(True)  # noqa: FBT003 - positional-only in apsw
        if isinstance(error, DRIVER_ERRORS):
            raise translate_error(error, name) from error
        raise
    return connection


_creating = fork_safe_lock()


def _create_private(path: str, name: str) -> None:
    """Create a missing file for its owner only; SQLite gives its -wal and -shm the same mode.

    SQLite itself would create it as the umask says, and most say: readable by everybody.
    """
    # Under a lock: closing a descriptor of the file drops the locks of this process's connections
    # to it, so no other thread may open one before that.
    with _creating:
        if os.path.lexists(path):
            return
        try:
            # Only calls of C, so that an object owns the descriptor (`interrupt_safety`).
            FileIO(path, "x", opener=functools.partial(os.open, mode=0o600)).close()
        except FileExistsError:
            return  # Another process was faster.
        except OSError as error:
            raise translate_error(error, name) from error


def rewrite_file(path: str) -> None:
    """Write a file's bytes again, so that `sync_file` syncs them; do nothing if it is missing.

    Use it only for the log, and only while this process holds SQLite's write lock.
    """
    with contextlib.suppress(FileNotFoundError), FileIO(path, "rb+") as file:
        while data := os.read(file.fileno(), 2**20):
            os.lseek(file.fileno(), -len(data), os.SEEK_CUR)
            os.write(file.fileno(), data)


def sync_file(path: str) -> None:
    """Make the writes to a file durable; do nothing if it is missing.

    Never call it for the database or its `-shm`: closing a descriptor of those drops SQLite's locks
    (POSIX locks belong to the process).
    """
    mode = "rb+" if sys.platform == "win32" else "rb"
    with contextlib.suppress(FileNotFoundError), FileIO(path, mode) as file:
        if sys.platform == "darwin":
            import fcntl  # does not exist on Windows

            fcntl.fcntl(file, fcntl.F_FULLFSYNC)
        else:
            os.fsync(file.fileno())


def _require_usable_path(path: str, name: str) -> None:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - opening a store is often measured
    except OSError:
        mode = 0
        parent = Path(path).parent
        if not parent.is_dir():
            reason = f"there is no directory {parent}"
            raise UnavailableError(name, reason, "create it, then try again") from None
    if stat.S_ISDIR(mode):
        raise UnavailableError(name, "it is a directory", "pass the path of a file in it")
    if mode and not stat.S_ISREG(mode):
        raise UsageError(f"{name} is a device, a pipe or a socket: pass the path of a regular file")
    # The size is read again after the log's: another process may have created both in between.
    if file_size(path) == 0 and file_size(path + "-wal") > 0 and file_size(path) == 0:
        # SQLite would delete the log, and with it perhaps the only copy of the data.
        reason = "the file is empty, but its -wal is not"
        raise DamagedError(name, 0, reason, "restore the file from a backup")


def require_whole_pages(connection: apsw.Connection, path: str, name: str) -> None:
    """Raise DamagedError if the end of the last page is missing: SQLite would read zeros there.

    While there is a log, an interrupted checkpoint may have left that page, and the log has it.
    """
    page_size, log = connection.pragma("page_size"), path + "-wal"
    if not file_size(log) and file_size(path) % page_size and not file_size(log):
        reason = f"its file ends within a page, after {file_size(path)} bytes: its end was lost"
        raise DamagedError(name, 0, reason, LOST_END_HINT)


def file_size(path: str) -> int:
    """Return the size of a file in bytes, 0 if there is none."""
    try:
        return os.stat(path).st_size  # noqa: PTH116 - as above
    except OSError:
        return 0  # A file without access cannot be opened either, and SQLite reports why.


def _is_ready(connection: apsw.Connection, path: str, name: str, *, first: bool) -> bool:
    try:
        is_new = _is_new(connection, path, name, first=first)
        connection.execute(SETTINGS).fetchall()  # apsw stops at each row, so fetch them all.
        if is_new:
            _create_tables(connection)
        mode = connection.pragma("journal_mode", "wal")
    except (apsw.BusyError, apsw.LockedError):
        return False
    if mode != "wal":
        raise UnsupportedError(f"{name} cannot use a write-ahead log", "use a local disk")
    return True


LOST_END_HINT = "restore it from a backup; `perdure verify --salvage FILE` saves what is left"

WRONG_FILE_HINT = "nothing was changed: pass another path, or restore the store from a backup"


def _is_new(connection: apsw.Connection, path: str, name: str, *, first: bool) -> bool:
    log = path + "-wal"
    if first and file_size(log):
        # Until the log is accepted: closing the last connection deletes it, damaged or not.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    try:
        application, version, tables = _file_owner(connection)
        if first:  # Before it counts as new: without its log a store may be empty.
            require_whole_log(connection, log, name)
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    except apsw.NotADBError as error:
        reason = "it is not a database, but another program's file, or its start is damaged"
        raise DamagedError(name, 0, reason, WRONG_FILE_HINT) from error
    if application == APPLICATION_ID:
        _require_version(name, version)
        if first:
            require_whole_pages(connection, path, name)
        return False
    if application or version or tables:
        raise UsageError(f"{name} is the database of another program; {WRONG_FILE_HINT}")
    if 0 < file_size(path) < 512:  # noqa: PLR2004 - SQLite treats a shorter file as empty
        raise DamagedError(name, 0, "it is not a database", WRONG_FILE_HINT)
    return True


def _file_owner(connection: apsw.Connection) -> tuple[int, int, int]:
    """Return the application id, the version and the number of tables, from one snapshot."""

    def read() -> tuple[int, int, int]:
        application = connection.pragma("application_id")
        version = connection.pragma("user_version")
        return application, version, connection.execute(COUNT_TABLES).get

    return in_transaction(connection, read, "begin")


def in_transaction(
    connection: apsw.Connection, work: Callable[[], T], begin: str = "begin immediate"
) -> T:
    """Return the result of some work in a transaction, which is rolled back unless it commits.

    Not `with connection`: an I/O error ends the transaction, and leaving the block would then raise
    that there is none, which hides the error.
    """
    try:
        connection.execute(begin)
        return work()
    finally:
        if connection.in_transaction:
            connection.execute("rollback")


def _require_version(name: str, version: int) -> None:
    if version > VERSION:
        raise VersionError(name, str(version), str(VERSION))
    if version < 1:
        raise DamagedError(name, 0, f"its version is {version}, expected at least 1")


def _create_tables(connection: apsw.Connection) -> None:
    connection.pragma("page_size", PAGE_SIZE)
    connection.pragma("auto_vacuum", INCREMENTAL)  # Cannot be changed once there are tables.
    connection.pragma("journal_mode", "wal")

    def create() -> None:
        if not connection.execute(COUNT_TABLES).get:
            for sql in TABLES.values():
                connection.execute(sql)
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", VERSION)
        connection.execute("commit")

    in_transaction(connection, create)


def _require_tables(connection: apsw.Connection, name: str) -> None:
    stored = dict(connection.execute("select name, sql from sqlite_schema where sql is not null"))
    for table, sql in TABLES.items():
        if table != VIEW and stored.get(table, sql if table == LATER_INDEX else None) != sql:
            raise DamagedError(name, 0, f"its table or index {table!r} is missing or altered")


def prepare_writer(connection: apsw.Connection, name: str) -> None:
    """Prepare a connection for its first write; add the index that older files lack."""
    connection.execute(WRITER_SETTINGS).fetchall()  # apsw stops at each row, so fetch them all.
    check_settings(connection, name)
    add_later_index(connection)


def add_later_index(connection: apsw.Connection) -> None:
    """Add the index that files of the same version lack if they are older."""
    connection.execute(TABLES[LATER_INDEX].replace("INDEX", "INDEX if not exists", 1))


# The dictionaries that bodies of a compressed store may need. Other stores do not have this table.
DICTIONARY_TABLE = "CREATE TABLE dictionary (number integer primary key)"


def is_compressed(connection: apsw.Connection, name: str) -> bool:
    """Return whether a store is compressed; VersionError if it needs a newer dictionary."""
    if not connection.execute("select 1 from sqlite_schema where name = 'dictionary'").get:
        return False
    for (number,) in connection.execute("select number from dictionary"):
        if number not in compression.DIGESTS:
            known = f"dictionary {max(compression.DIGESTS)}"
            raise VersionError(name, f"dictionary {number}", known)
    return True


def mark_compressed(connection: apsw.Connection) -> None:
    """Make a store a compressed one, if it is not."""
    connection.execute(f"drop view if exists {VIEW}")  # It may be older than compressed stores.
    connection.execute(TABLES[VIEW])
    connection.execute(DICTIONARY_TABLE.replace("TABLE", "TABLE if not exists", 1))
    connection.execute("insert or ignore into dictionary values (?)", (compression.DICTIONARY,))
