"""Check a Postgres server when a store is opened, and migrate its tables.

Opening asks once about the server and the version of the tables. Migrations run one after another
in one transaction, under an advisory lock of that transaction, so any number of processes may try
at once.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import psycopg

from perdure.backends.postgres.address import PostgresAddress, quote_identifier
from perdure.backends.postgres.connection import Connection, connect_options, with_deadline
from perdure.backends.postgres.errors import RetryBudget, raise_translated, translate_error
from perdure.backends.postgres.schema import LATEST_VERSION, migration_script
from perdure.errors import (
    PerdureError,
    StoreMissingError,
    UnavailableError,
    UnsupportedError,
    VersionError,
)

COCKROACHDB = "CockroachDB"  # Reports an older PostgreSQL version than the features it has.

YUGABYTE_MARK = "-YB-"

OLDEST_SERVER = 140_000  # PostgreSQL 14, the oldest release still maintained

ATTEMPTS = 5  # per migration; concurrent migrations, or clients of the tables, can conflict


T = TypeVar("T")


_SERVER_FACTS = """
select current_setting('server_version_num', true), version(),
  current_setting('synchronous_commit', true), current_setting('fsync', true),
  current_setting('full_page_writes', true), current_setting('transaction_read_only', true),
  pg_is_in_recovery(), current_setting('neon.tenant_id', true),
  to_regclass(%s) is not null, to_regnamespace(%s) is not null, pg_backend_pid(),
  current_setting('data_sync_retry', true)"""


# The tables whose loss loses the store are looked at for `unlogged`; waiters fill `watch` again.
_TABLE_FACTS = """
select coalesce(max(version), 0), (
  select string_agg(word || ' on ' || names, '; ' order by word) from (
    select word, string_agg(name, ', ' order by name) as names
    from unnest(array['entry', 'head', 'label', 'watch']) as name,
      unnest(array['select', 'insert', 'update', 'delete']) as word
    where not has_table_privilege(%s || '.' || name, word) group by word
  ) as lacking), (
  select case when count(relpersistence) > 0 then
    coalesce(array_agg(%s || '.' || name order by name) filter (where relpersistence = 'u'), '{{}}')
  end
  from unnest(array['entry', 'head', 'label', 'migration']) as name
    join pg_class on pg_class.oid = to_regclass(%s || '.' || name)),
  (select relrowsecurity from pg_class where oid = to_regclass(%s || '.head'))
from {schema}.migration"""


# Whether every policy for heads is that of our script and applies to this user. Nothing can be
# said about policies from elsewhere.
_POLICIES_ARE_OURS = """
select current_user::text, bool_and(pg_get_expr(polqual, polrelid) ilike '(tenant = current_user)')
from pg_policy where polrelid = to_regclass(%s) and row_security_active(polrelid)"""


_TABLES_OWNER = """
select pg_get_userbyid(relowner) from pg_class
where oid = to_regclass(%s) and not pg_has_role(relowner, 'usage')"""


_MIGRATE_HINT = (
    "have a user who may create them run: perdure migrate ADDRESS, "
    "and grant this one usage on the schema, and select, insert, update, delete on its tables"
)


class ServerInfo(NamedTuple):
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
        return COCKROACHDB if self.version.startswith(COCKROACHDB) else "PostgreSQL"

    @property
    def locks_tables(self) -> bool:
        """Whether it supports LOCK TABLE."""
        return self.engine != COCKROACHDB and YUGABYTE_MARK not in self.version

    @property
    def release(self) -> str:
        """The server's version in short, such as 18.6."""
        words = [word for word in self.version.split() if word.lstrip("v")[:1].isdecimal()]
        return words[0].lstrip("v") if words else self.version


def prepare_store(address: PostgresAddress, judge: Callable[[ServerInfo], T]) -> T:
    """Ensure tables of the right version; return what `judge` returns for the server.

    If `judge` raises, nothing is created.
    """
    budget = RetryBudget(address, address.wait)
    deadline = time.monotonic() + (address.wait or address.timeout)
    while True:
        try:
            return _prepare_once(address, judge, deadline)
        except (psycopg.Error, OSError) as error:
            pause = budget.after(error)
        time.sleep(pause)


@contextmanager
def _connect(address: PostgresAddress, deadline: float) -> Iterator[tuple[Connection, ServerInfo]]:
    options = with_deadline(connect_options(address), deadline)
    with closing(Connection.connect(**options)) as connection:
        server = inspect_server(connection, address, deadline)
        require_supported(server, address)
        yield connection, server


def _prepare_once(address: PostgresAddress, judge: Callable[[ServerInfo], T], deadline: float) -> T:
    with _connect(address, deadline) as (connection, server):
        verdict = judge(server)
        if "select on" in server.missing_privileges:
            reason = f"this user lacks privileges: {server.missing_privileges}"
            raise UnavailableError(address.name, reason, "grant them in the schema")
        if server.tables < LATEST_VERSION:
            if not address.migrate or server.read_only or server.standby:
                raise _outdated_error(server, address)
            migrate(connection, address)
        if server.has_row_security:
            _require_own_tenant(connection, address, deadline)
        return verdict


def _require_own_tenant(connection: Connection, address: PostgresAddress, deadline: float) -> None:
    """Raise where row-level security would show another tenant's store as empty."""
    connection.deadline = deadline
    try:
        heads = f"{quote_identifier(address.schema)}.head"
        row: Any = connection.execute(_POLICIES_ARE_OURS, (heads,)).fetchone()
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


def migrate_if_needed(address: PostgresAddress, *, dry_run: bool) -> Migration:
    """Migrate the tables of a store to the newest version, or only return the statements."""
    deadline = time.monotonic() + address.timeout
    try:
        with _connect(address, deadline) as (connection, server):
            if dry_run or server.tables == LATEST_VERSION:
                return Migration(server.tables, LATEST_VERSION, _migration_script(server, address))
            return Migration(server.tables, LATEST_VERSION, migrate(connection, address))
    except (psycopg.Error, OSError) as error:
        raise_translated(translate_error(error, address), error, address)


def _migration_script(server: ServerInfo, address: PostgresAddress) -> list[str]:
    schema, exists = quote_identifier(address.schema), server.schema_exists
    return migration_script(schema, server.tables, exists=exists, locks=server.locks_tables)


def _outdated_error(server: ServerInfo, address: PostgresAddress) -> PerdureError:
    state = "has no tables yet" if server.tables == 0 else f"has tables of version {server.tables}"
    reason = f"the schema {address.schema!r} {state}, this perdure needs version {LATEST_VERSION}"
    hint = "run: perdure migrate ADDRESS, as a user who may create them"
    error_class = StoreMissingError if server.tables == 0 else UnavailableError
    return error_class(address.name, reason, hint)


def inspect_server(
    connection: Connection, address: PostgresAddress, deadline: float = math.inf
) -> ServerInfo:
    """Query facts about a server and its tables; its answer is awaited until the deadline."""
    schema = quote_identifier(address.schema)
    connection.deadline = deadline
    facts: Any = connection.execute(_SERVER_FACTS, (f"{schema}.migration", schema)).fetchone()
    number, version, commit, fsync, pages, read_only, standby, neon, migrated, *rest = facts
    exists, pid, retry = rest
    server = ServerInfo(
        int(number or 0),
        version,
        synchronous_commit=commit or "",
        fsync=fsync or "",
        full_page_writes=pages or "",
        read_only=read_only == "on",
        standby=bool(standby),
        neon=neon is not None,
        tables=0,
        schema_exists=bool(exists),
        pooled=pid != connection.info.backend_pid,
        encrypted=connection.pgconn.ssl_in_use,
        data_sync_retry=retry or "",
    )
    if migrated:
        sql = _TABLE_FACTS.format(schema=schema.replace("%", "%%"))
        tables: Any = connection.execute(sql, (schema,) * 4).fetchone()
        latest, missing_privileges, unlogged, has_row_security = tables
        server = server._replace(
            tables=int(latest),
            missing_privileges=missing_privileges or "",
            unlogged=None if unlogged is None else tuple(unlogged),
            has_row_security=bool(has_row_security),
        )
    connection.deadline = math.inf  # A migration has no time limit.
    return server


def require_supported(server: ServerInfo, address: PostgresAddress) -> None:
    """Raise unless the server is new enough and its tables are not too new."""
    if server.tables > LATEST_VERSION:
        subject = f"the schema {address.schema!r} in {address.name}"
        raise VersionError(subject, str(server.tables), str(LATEST_VERSION))
    if server.number and server.number < OLDEST_SERVER and server.engine != COCKROACHDB:
        hint = "perdure needs PostgreSQL 14 or newer"
        raise UnsupportedError(f"{address.name} is {server.version.split(' on ')[0]}", hint)


def _lock_key(schema: str) -> int:
    """Return the key of the advisory lock for migrating a schema."""
    seed = hashlib.sha256(f"perdure migrate {schema}".encode()).digest()
    return int.from_bytes(seed[:8], signed=True)


def migrate(connection: Connection, address: PostgresAddress) -> list[str]:
    """Migrate the tables to the newest version; return the statements that were run."""
    connection.deadline = math.inf  # The server's lock_timeout, set below, ends a wait for a lock.
    for attempt in range(ATTEMPTS):
        try:
            with connection.transaction():
                # A migration waits for long readers of a table, and every other client then queues
                # behind the migration: bound that wait.
                lock_timeout = f"{math.ceil(address.timeout * 1000)}ms"
                connection.execute("select set_config('lock_timeout', %s, true)", (lock_timeout,))
                lock_key = _lock_key(address.schema)
                connection.execute("select pg_advisory_xact_lock(%s::bigint)", (lock_key,))
                server = inspect_server(connection, address)
                require_supported(server, address)
                statements = _migration_script(server, address)
                if statements:
                    _require_owner(connection, address)  # Before our lock makes other clients wait.
                for statement in statements:
                    connection.execute(statement.encode())
                return statements
        except psycopg.errors.InsufficientPrivilege as error:
            text = address.hide(" ".join(str(error).split()))
            denied = _permission_error(address, f"create the tables (Postgres: {text})")
            raise_translated(denied, error, address)
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


def _require_owner(connection: Connection, address: PostgresAddress) -> None:
    """Raise unless this user may change the tables, if there are any."""
    row = connection.execute(
        _TABLES_OWNER, (f"{quote_identifier(address.schema)}.head",)
    ).fetchone()
    if row is not None:
        raise _permission_error(address, f"change the tables, which belong to {row[0]!r}")


def _permission_error(address: PostgresAddress, action: str) -> UnavailableError:
    return UnavailableError(address.name, f"this user may not {action}", _MIGRATE_HINT)
