"""What a Postgres server must offer when a store is opened, and bringing its tables up to date.

Opening asks once about the server and the version of the tables. Migrations run one after the
other in one transaction, under a lock of that transaction, so any number of processes may try.
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

COCKROACH = "CockroachDB"  # It counts as an older PostgreSQL than it is in what is needed here.
YUGABYTE = "-YB-"
OLDEST_SERVER = 140_000  # PostgreSQL 14, the oldest that its makers still mend.
ATTEMPTS = 5  # Two that create a schema at once, or who uses the tables, can disturb each other.

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

# The tables that a store is lost without: `watch` is filled anew by whoever waits.
_UNLOGGED = """(
  select case when count(relpersistence) > 0 then
    coalesce(array_agg(%s || '.' || name order by name) filter (where relpersistence = 'u'), '{}')
  end
  from unnest(array['entry', 'head', 'label', 'migration']) as name
    join pg_class on pg_class.oid = to_regclass(%s || '.' || name))"""

_SECURED = "(select relrowsecurity from pg_class where oid = to_regclass(%s || '.head'))"

# Whether every policy for heads is that of our script, and holds for this user. Of policies that
# somebody else wrote nothing is known.
_OURS = """
select current_user::text, bool_and(pg_get_expr(polqual, polrelid) ilike '(tenant = current_user)')
from pg_policy where polrelid = to_regclass(%s) and row_security_active(polrelid)"""

_OWNER = """
select pg_get_userbyid(relowner) from pg_class
where oid = to_regclass(%s) and not pg_has_role(relowner, 'usage')"""

_SOMEBODY_ELSE = (
    "let a user who may create them run: perdure migrate ADDRESS, "
    "and grant this one usage on the schema, and select, insert, update, delete on its tables"
)


class Server(NamedTuple):
    """What was found at an address."""

    number: int
    version: str
    synchronous_commit: str
    fsync: str
    full_page_writes: str
    read_only: bool
    standby: bool
    neon: bool
    tables: int
    """The version of the tables; 0 where there are none."""

    schema_exists: bool
    pooled: bool = False
    encrypted: bool = False
    lacking: str = ""
    """What its user may not do with the tables, such as "delete on entry, head"."""

    data_sync_retry: str = ""
    unlogged: tuple[str, ...] | None = ()
    """Tables that a crash of the server empties, as SQL names them; None where it does not say."""

    secured: bool = False
    """Whether the tables have row-level security."""

    @property
    def engine(self) -> str:
        """What the server calls itself."""
        return COCKROACH if self.version.startswith(COCKROACH) else "PostgreSQL"

    @property
    def locks_tables(self) -> bool:
        """Whether it knows how to lock a table against everybody else."""
        return self.engine != COCKROACH and YUGABYTE not in self.version

    @property
    def release(self) -> str:
        """The server's version in short, such as 18.6."""
        words = [word for word in self.version.split() if word.lstrip("v")[:1].isdecimal()]
        return words[0].lstrip("v") if words else self.version


def prepare(address: Address, judge: Callable[[Server], T]) -> T:
    """Make sure that there are tables of the right version; return what `judge` says of the server.

    Nothing is made on a server that it refuses.
    """
    trial = Trial(address, address.wait)
    deadline = time.monotonic() + (address.wait or address.patience)
    while True:
        try:
            return _prepare(address, judge, deadline)
        except (psycopg.Error, OSError) as error:
            pause = trial.after(error)
        time.sleep(pause)


def _prepare(address: Address, judge: Callable[[Server], T], deadline: float) -> T:
    with closing(Link.connect(**in_time(options_of(address), deadline))) as link:
        server = look(link, address, deadline)
        require(server, address)
        judged = judge(server)
        if "select on" in server.lacking:
            reason = f"this user may not do that: {server.lacking}"
            raise UnavailableError(address.name, reason, "grant it that in the schema")
        if server.tables < NEWEST:
            if not address.migrate or server.read_only or server.standby:
                raise _behind(server, address)
            migrate(link, address)
        if server.secured:
            _require_own_tenant(link, address, deadline)
        return judged


def _require_own_tenant(link: Link, address: Address, deadline: float) -> None:
    """Raise where row-level security would show an empty store, because it is another tenant's."""
    link.deadline = deadline
    try:
        row: Any = link.execute(_OURS, (f"{_schema(address)}.head",)).fetchone()
    except psycopg.errors.ProgrammingError:
        return  # Another engine, with a catalogue of its own.
    finally:
        link.deadline = math.inf
    user, is_ours = row
    if is_ours and user != address.tenant:
        tenant = f"the tenant {address.tenant!r}" if address.tenant else "no tenant"
        reason = f"row-level security lets the user {user!r} see its own rows only, and the address"
        hint = f"open it with ?tenant={quote(user)}"
        if address.tenant:
            hint += f", or log in as a role that is named {address.tenant!r}"
        raise UnavailableError(address.name, f"{reason} names {tenant}", hint)


class Migration(NamedTuple):
    """What bringing tables up to date did, or would do."""

    before: int
    after: int
    statements: list[str]


def bring_up(address: Address, *, dry_run: bool) -> Migration:
    """Bring the tables of a store to the newest version, or only say what that would take."""
    deadline = time.monotonic() + address.patience
    try:
        with closing(Link.connect(**in_time(options_of(address), deadline))) as link:
            server = look(link, address, deadline)
            require(server, address)
            if dry_run or server.tables == NEWEST:
                return Migration(server.tables, NEWEST, _script(server, address))
            return Migration(server.tables, NEWEST, migrate(link, address))
    except (psycopg.Error, OSError) as error:
        raise translated(error, address) from cause(error, address)


def _script(server: Server, address: Address) -> list[str]:
    exists, locks = server.schema_exists, server.locks_tables
    return script(_schema(address), server.tables, exists=exists, locks=locks)


def _behind(server: Server, address: Address) -> PerdureError:
    what = "has no tables yet" if server.tables == 0 else f"has tables of version {server.tables}"
    reason = f"the schema {address.schema!r} {what}, this perdure needs version {NEWEST}"
    hint = "run: perdure migrate ADDRESS, as a user who may create them"
    kind = UnmadeError if server.tables == 0 else UnavailableError
    return kind(address.name, reason, hint)


def look(link: Link, address: Address, deadline: float = math.inf) -> Server:
    """Ask a server what it is; its answer is waited for until then."""
    schema = _schema(address)
    link.deadline = deadline
    row = link.execute(_FACTS, (f"{schema}.migration", schema)).fetchone()
    assert row is not None  # noqa: S101 - it selects no table
    number, version, commit, fsync, pages, read_only, standby, neon, migrated, exists, *rest = row
    pid, retry = rest
    found = _tables(link, address) if migrated else _Tables()
    link.deadline = math.inf  # Changing tables takes as long as it takes.
    settings = (commit or "", fsync or "", pages or "", read_only == "on", bool(standby))
    return Server(
        *(int(number or 0), version, *settings, neon is not None, found.version, bool(exists)),
        pooled=pid != link.info.backend_pid,
        encrypted=link.pgconn.ssl_in_use,
        lacking=found.lacking,
        data_sync_retry=retry or "",
        unlogged=found.unlogged,
        secured=found.secured,
    )


class _Tables(NamedTuple):
    """What was found of the tables, as in `Server`; of those that are still to be made, nothing."""

    version: int = 0
    lacking: str = ""
    unlogged: tuple[str, ...] | None = ()
    secured: bool = False


def _tables(link: Link, address: Address) -> _Tables:
    facts = f"coalesce(max(version), 0), {_LACKING}, {_UNLOGGED}, {_SECURED}"
    sql = f"select {facts} from {quoted(address.schema)}.migration"  # noqa: S608 - quoted
    row: Any = link.execute(sql, (_schema(address),) * 4).fetchone()
    version, lacking, unlogged, secured = row
    unlogged = None if unlogged is None else tuple(unlogged)
    return _Tables(int(version), lacking or "", unlogged, bool(secured))


def _schema(address: Address) -> str:
    """Return the schema's name as it stands in a text without parameters."""
    return quoted(address.schema).replace("%%", "%")


def require(server: Server, address: Address) -> None:
    """Raise unless the server is new enough and its tables are not too new."""
    if server.tables > NEWEST:
        what = f"the schema {address.schema!r} in {address.name}"
        raise VersionError(what, str(server.tables), str(NEWEST))
    if server.number and server.number < OLDEST_SERVER and server.engine != COCKROACH:
        hint = "perdure needs PostgreSQL 14 or newer"
        raise UnsupportedError(f"{address.name} is {server.version.split(' on ')[0]}", hint)


def _lock(schema: str) -> int:
    """Return the number of the lock for changing tables of a schema."""
    seed = hashlib.sha256(f"perdure migrate {schema}".encode()).digest()
    return int.from_bytes(seed[:8], signed=True)


def migrate(link: Link, address: Address) -> list[str]:
    """Bring the tables to the newest version; return the statements that did."""
    link.deadline = math.inf  # Who waits for a lock is told so by the server, when it is too long.
    for attempt in range(ATTEMPTS):
        try:
            with link.transaction():
                # Whoever reads a table for long is waited for, and everybody behind us too.
                longest = f"{math.ceil(address.patience * 1000)}ms"
                link.execute("select set_config('lock_timeout', %s, true)", (longest,))
                link.execute("select pg_advisory_xact_lock(%s::bigint)", (_lock(address.schema),))
                server = look(link, address)
                require(server, address)
                statements = _script(server, address)
                if statements:
                    _require_owner(link, address)  # Before anybody else has to wait for a lock.
                for statement in statements:
                    link.execute(statement.encode())
                return statements
        except psycopg.errors.InsufficientPrivilege as error:
            text = address.hide(" ".join(str(error).split()))
            raise _forbidden(address, f"make the tables (Postgres: {text})") from error
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


def _require_owner(link: Link, address: Address) -> None:
    """Raise unless this user may change the tables, where there are any."""
    found = link.execute(_OWNER, (f"{_schema(address)}.head",)).fetchone()
    if found is not None:
        raise _forbidden(address, f"change the tables, which belong to {found[0]!r}")


def _forbidden(address: Address, what: str) -> UnavailableError:
    return UnavailableError(address.name, f"this user may not do that: {what}", _SOMEBODY_ELSE)
