"""Check a Postgres server when a store is opened, and migrate its tables.

Opening asks once about the server and the version of the tables. Migrations run one after another
in one transaction, under an advisory lock of that transaction, so any number of processes may try
at once.
"""

import hashlib
import math
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import psycopg

from perdure.backend import UnmadeError
from perdure.backends.postgres_address import Address, quoted
from perdure.backends.postgres_errors import Trial, cause, translated
from perdure.backends.postgres_links import Link, in_time, options_of
from perdure.backends.postgres_tables import NEWEST, script
from perdure.errors import PerdureError, UnavailableError, UnsupportedError, VersionError

COCKROACH = "CockroachDB"  # Reports an older PostgreSQL version than the features it has.
YUGABYTE = "-YB-"
OLDEST_SERVER = 140_000  # PostgreSQL 14, the oldest release still maintained
ATTEMPTS = 5  # per migration; concurrent migrations, or clients of the tables, can conflict

T = TypeVar("T")

_FACTS = """
select current_setting('server_version_num', true), version(),
  current_setting('synchronous_commit', true), current_setting('fsync', true),
  current_setting('full_page_writes', true), current_setting('transaction_read_only', true),
  pg_is_in_recovery(), current_setting('neon.tenant_id', true),
  to_regclass(%s) is not null, to_regnamespace(%s) is not null, pg_backend_pid(),
  current_setting('data_sync_retry', true)"""

_LACKING = """(
  select string_agg(word || ' on ' || names, '; ' order by word) from (
    select word, string_agg(name, ', ' order by name) as names
    from unnest(array['entry', 'head', 'label', 'watch']) as name,
      unnest(array['select', 'insert', 'update', 'delete']) as word
    where not has_table_privilege(%s || '.' || name, word) group by word
  ) as lacking)"""

# The tables whose loss loses the store; waiters fill `watch` again.
_UNLOGGED = """(
  select case when count(relpersistence) > 0 then
    coalesce(array_agg(%s || '.' || name order by name) filter (where relpersistence = 'u'), '{}')
  end
  from unnest(array['entry', 'head', 'label', 'migration']) as name
    join pg_class on pg_class.oid = to_regclass(%s || '.' || name))"""

_SECURED = "(select relrowsecurity from pg_class where oid = to_regclass(%s || '.head'))"

# Whether every policy for heads is that of our script and applies to this user. Nothing can be
# said about policies from elsewhere.
_OURS = """
select current_user::text, bool_and(pg_get_expr(polqual, polrelid) ilike '(tenant = current_user)')
from pg_policy where polrelid = to_regclass(%s) and row_security_active(polrelid)"""

_OWNER = """
select pg_get_userbyid(relowner) from pg_class
where oid = to_regclass(%s) and not pg_has_role(relowner, 'usage')"""

_SOMEBODY_ELSE = (
    "have a user who may create them run: perdure migrate ADDRESS, "
    "and grant this one usage on the schema, and select, insert, update, delete on its tables"
)


class Server(NamedTuple):
    """Facts about the server, the connection and the tables at an address."""

    number: int
    version: str
    synchronous_commit: str
    fsync: str
    full_page_writes: str
    read_only: bool
    standby: bool
    neon: bool
    tables: int
    """The version of the tables; 0 if there are none."""

    schema_exists: bool
    pooled: bool = False
    encrypted: bool = False
    missing_privileges: str = ""
    """Privileges on the tables that the user lacks, such as "delete on entry, head"."""

    data_sync_retry: str = ""
    unlogged: tuple[str, ...] | None = ()
    """SQL names of tables that a server crash empties; None if the server cannot say."""

    has_row_security: bool = False
    """Whether the tables have row-level security."""

    @property
    def engine(self) -> str:
        """The name of the database engine."""
        return COCKROACH if self.version.startswith(COCKROACH) else "PostgreSQL"

    @property
    def locks_tables(self) -> bool:
        """Whether it supports LOCK TABLE."""
        return self.engine != COCKROACH and YUGABYTE not in self.version

    @property
    def release(self) -> str:
        """The server's version in short, such as 18.6."""
        words = [word for word in self.version.split() if word.lstrip("v")[:1].isdecimal()]
        return words[0].lstrip("v") if words else self.version


def prepare(address: Address, judge: Callable[[Server], T]) -> T:
    """Ensure tables of the right version; return what `judge` returns for the server.

    If `judge` raises, nothing is created.
    """
    budget = Trial(address, address.wait)
    deadline = time.monotonic() + (address.wait or address.patience)
    while True:
        try:
            return _prepare(address, judge, deadline)
        except (psycopg.Error, OSError) as error:
            pause = budget.after(error)
        time.sleep(pause)


def _prepare(address: Address, judge: Callable[[Server], T], deadline: float) -> T:
    with closing(Link.connect(**in_time(options_of(address), deadline))) as connection:
        server = look(connection, address, deadline)
        require(server, address)
        verdict = judge(server)
        if "select on" in server.missing_privileges:
            reason = f"this user lacks privileges: {server.missing_privileges}"
            raise UnavailableError(address.name, reason, "grant them in the schema")
        if server.tables < NEWEST:
            if not address.migrate or server.read_only or server.standby:
                raise _behind(server, address)
            migrate(connection, address)
        if server.has_row_security:
            _require_own_tenant(connection, address, deadline)
        return verdict


def _require_own_tenant(connection: Link, address: Address, deadline: float) -> None:
    """Raise where row-level security would show another tenant's store as empty."""
    connection.deadline = deadline
    try:
        row: Any = connection.execute(_OURS, (f"{_schema(address)}.head",)).fetchone()
    except psycopg.errors.ProgrammingError:
        return  # Another engine, with a catalog of its own.
    finally:
        connection.deadline = math.inf
    user, is_ours = row
    if is_ours and user != address.tenant:
        tenant = f"the tenant {address.tenant!r}" if address.tenant else "no tenant"
        reason = f"row-level security lets the user {user!r} see only its own rows, and the address"
        hint = f"open it with ?tenant={quote(user)}"
        if address.tenant:
            hint += f", or log in as a role named {address.tenant!r}"
        raise UnavailableError(address.name, f"{reason} names {tenant}", hint)


class Migration(NamedTuple):
    """Versions before and after a migration, and the statements it ran or would run."""

    before: int
    after: int
    statements: list[str]


def bring_up(address: Address, *, dry_run: bool) -> Migration:
    """Migrate the tables of a store to the newest version, or only return the statements."""
    deadline = time.monotonic() + address.patience
    try:
        with closing(Link.connect(**in_time(options_of(address), deadline))) as connection:
            server = look(connection, address, deadline)
            require(server, address)
            if dry_run or server.tables == NEWEST:
                return Migration(server.tables, NEWEST, _script(server, address))
            return Migration(server.tables, NEWEST, migrate(connection, address))
    except (psycopg.Error, OSError) as error:
        raise translated(error, address) from cause(error, address)


def _script(server: Server, address: Address) -> list[str]:
    exists, locks = server.schema_exists, server.locks_tables
    return script(_schema(address), server.tables, exists=exists, locks=locks)


def _behind(server: Server, address: Address) -> PerdureError:
    state = "has no tables yet" if server.tables == 0 else f"has tables of version {server.tables}"
    reason = f"the schema {address.schema!r} {state}, this perdure needs version {NEWEST}"
    hint = "run: perdure migrate ADDRESS, as a user who may create them"
    error_class = UnmadeError if server.tables == 0 else UnavailableError
    return error_class(address.name, reason, hint)


def look(connection: Link, address: Address, deadline: float = math.inf) -> Server:
    """Query facts about a server and its tables; its answer is awaited until the deadline."""
    schema = _schema(address)
    connection.deadline = deadline
    row = connection.execute(_FACTS, (f"{schema}.migration", schema)).fetchone()
    assert row is not None  # noqa: S101 - it selects from no table, so there is a row
    number, version, commit, fsync, pages, read_only, standby, neon, migrated, exists, *rest = row
    pid, retry = rest
    tables = _tables(connection, address) if migrated else _Tables()
    connection.deadline = math.inf  # A migration has no time limit.
    settings = (commit or "", fsync or "", pages or "", read_only == "on", bool(standby))
    return Server(
        *(int(number or 0), version, *settings, neon is not None, tables.version, bool(exists)),
        pooled=pid != connection.info.backend_pid,
        encrypted=connection.pgconn.ssl_in_use,
        missing_privileges=tables.missing_privileges,
        data_sync_retry=retry or "",
        unlogged=tables.unlogged,
        has_row_security=tables.has_row_security,
    )


class _Tables(NamedTuple):
    """Facts about the tables, as in `Server`; the defaults stand for missing tables."""

    version: int = 0
    missing_privileges: str = ""
    unlogged: tuple[str, ...] | None = ()
    has_row_security: bool = False


def _tables(connection: Link, address: Address) -> _Tables:
    facts = f"coalesce(max(version), 0), {_LACKING}, {_UNLOGGED}, {_SECURED}"
    sql = f"select {facts} from {quoted(address.schema)}.migration"  # noqa: S608 - quoted
    row: Any = connection.execute(sql, (_schema(address),) * 4).fetchone()
    version, missing_privileges, unlogged, has_row_security = row
    unlogged = None if unlogged is None else tuple(unlogged)
    return _Tables(int(version), missing_privileges or "", unlogged, bool(has_row_security))


def _schema(address: Address) -> str:
    """Return the schema's quoted name for text that is sent without parameters."""
    return quoted(address.schema).replace("%%", "%")


def require(server: Server, address: Address) -> None:
    """Raise unless the server is new enough and its tables are not too new."""
    if server.tables > NEWEST:
        subject = f"the schema {address.schema!r} in {address.name}"
        raise VersionError(subject, str(server.tables), str(NEWEST))
    if server.number and server.number < OLDEST_SERVER and server.engine != COCKROACH:
        hint = "perdure needs PostgreSQL 14 or newer"
        raise UnsupportedError(f"{address.name} is {server.version.split(' on ')[0]}", hint)


def _lock(schema: str) -> int:
    """Return the key of the advisory lock for migrating a schema."""
    seed = hashlib.sha256(f"perdure migrate {schema}".encode()).digest()
    return int.from_bytes(seed[:8], signed=True)


def migrate(connection: Link, address: Address) -> list[str]:
    """Migrate the tables to the newest version; return the statements that were run."""
    connection.deadline = math.inf  # The server's lock_timeout, set below, ends a wait for a lock.
    for attempt in range(ATTEMPTS):
        try:
            with connection.transaction():
                # A migration waits for long readers of a table, and every other client then queues
                # behind the migration: bound that wait.
                lock_timeout = f"{math.ceil(address.patience * 1000)}ms"
                connection.execute("select set_config('lock_timeout', %s, true)", (lock_timeout,))
                connection.execute(
                    "select pg_advisory_xact_lock(%s::bigint)", (_lock(address.schema),)
                )
                server = look(connection, address)
                require(server, address)
                statements = _script(server, address)
                if statements:
                    _require_owner(connection, address)  # Before our lock makes other clients wait.
                for statement in statements:
                    connection.execute(statement.encode())
                return statements
        except psycopg.errors.InsufficientPrivilege as error:
            text = address.hide(" ".join(str(error).split()))
            raise _forbidden(address, f"create the tables (Postgres: {text})") from error
        except (
            psycopg.errors.UniqueViolation,
            psycopg.errors.DuplicateSchema,
            psycopg.errors.DuplicateTable,
            psycopg.errors.SerializationFailure,
            psycopg.errors.DeadlockDetected,
        ):
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError


def _require_owner(connection: Link, address: Address) -> None:
    """Raise unless this user may change the tables, if there are any."""
    row = connection.execute(_OWNER, (f"{_schema(address)}.head",)).fetchone()
    if row is not None:
        raise _forbidden(address, f"change the tables, which belong to {row[0]!r}")


def _forbidden(address: Address, action: str) -> UnavailableError:
    return UnavailableError(address.name, f"this user may not {action}", _SOMEBODY_ELSE)
