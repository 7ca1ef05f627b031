"""The tables of a Postgres store: what a server must offer, and how old tables become new ones.

Opening asks once about the server and the version of the tables. Migrations run one after the
other in one transaction, under a lock of that transaction, so any number of processes may try.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import psycopg

from perdure.backends.postgres_address import Address, quoted
from perdure.backends.postgres_errors import Trial, cause, translated
from perdure.backends.postgres_links import Link, options_of
from perdure.errors import PerdureError, UnavailableError, UnsupportedError, VersionError

OLDEST_SERVER = 140_000  # PostgreSQL 14, the oldest that its makers still mend.
ATTEMPTS = 5  # Two that create the same schema at once can disturb each other outside the lock.

T = TypeVar("T")

_FACTS = """
select current_setting('server_version_num', true), version(),
  current_setting('synchronous_commit', true), current_setting('fsync', true),
  current_setting('full_page_writes', true), current_setting('transaction_read_only', true),
  pg_is_in_recovery(), current_setting('neon.tenant_id', true),
  to_regclass(%s) is not null, to_regnamespace(%s) is not null"""

# version → its statements. What was released is never changed: add another version.
MIGRATIONS: dict[int, tuple[str, ...]] = {
    1: (
        """create table {schema}.migration (
  version integer primary key,
  applied timestamptz not null default now())""",
        # `stream` is a digest of the tenant and the name, which entries carry in their place.
        """create table {schema}.head (
  tenant text not null,
  name bytea not null,
  stream bytea not null,
  position bigint not null,
  digest text not null,
  labels bytea not null,
  changed bigint not null,
  primary key (tenant, name))""",
        "create index head_changed on {schema}.head (tenant, changed, name)",
        """create table {schema}.entry (
  stream bytea not null,
  position bigint not null,
  tenant text not null,
  header bytea not null,
  body bytea not null,
  primary key (stream, position))""",
        """create table {schema}.label (
  tenant text not null,
  name bytea not null,
  label bytea not null,
  primary key (tenant, name, label))""",
        "create index label_name on {schema}.label (tenant, label, name)",
        # Streams that somebody waits for, so that writers tell only then.
        """create table {schema}.watch (
  stream bytea primary key,
  tenant text not null,
  until bigint not null)""",
        # For people: the tables hold bytes.
        """create view {schema}.session as
select tenant, convert_from(name, 'UTF8') as id, position, digest,
  convert_from(labels, 'UTF8') as labels, to_timestamp(changed / 1000000.0) as changed, stream
from {schema}.head""",
    ),
}
NEWEST = max(MIGRATIONS)

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

    @property
    def release(self) -> str:
        """The server's version in short, such as 18.6."""
        words = self.version.split()
        return words[1] if len(words) > 1 else self.version


def prepare(address: Address, judge: Callable[[Server], T]) -> T:
    """Make sure that there are tables of the right version; return what `judge` says of the server.

    Nothing is made on a server that it refuses.
    """
    trial = Trial(address, address.wait)
    while True:
        try:
            return _prepare(address, judge)
        except (psycopg.Error, OSError) as error:
            pause = trial.after(error)
        time.sleep(pause)


def _prepare(address: Address, judge: Callable[[Server], T]) -> T:
    with Link.connect(**options_of(address)) as link:
        server = look(link, address)
        require(server, address)
        judged = judge(server)
        if server.tables < NEWEST:
            if not address.migrate or server.read_only or server.standby:
                raise _behind(server, address)
            migrate(link, address)
        return judged


class Migration(NamedTuple):
    """What bringing tables up to date did, or would do."""

    before: int
    after: int
    statements: list[str]


def bring_up(address: Address, *, dry_run: bool) -> Migration:
    """Bring the tables of a store to the newest version, or only say what that would take."""
    try:
        with Link.connect(**options_of(address)) as link:
            server = look(link, address)
            require(server, address)
            if dry_run or server.tables == NEWEST:
                found = script(address, server.tables, schema_exists=server.schema_exists)
                return Migration(server.tables, NEWEST, found)
            return Migration(server.tables, NEWEST, migrate(link, address))
    except (psycopg.Error, OSError) as error:
        raise translated(error, address) from cause(error, address)


def _behind(server: Server, address: Address) -> PerdureError:
    what = "has no tables yet" if server.tables == 0 else f"has tables of version {server.tables}"
    reason = f"the schema {address.schema!r} {what}, this perdure needs version {NEWEST}"
    hint = "run: perdure migrate ADDRESS, as a user who may create them"
    return UnavailableError(address.name, reason, hint)


def look(link: Link, address: Address) -> Server:
    """Ask a server what it is."""
    table = f"{quoted(address.schema)}.migration".replace("%%", "%")
    row = link.execute(_FACTS, (table, quoted(address.schema).replace("%%", "%"))).fetchone()
    assert row is not None  # noqa: S101 - it selects no table
    number, version, commit, fsync, pages, read_only, standby, neon, migrated, exists = row
    tables = _version(link, address) if migrated else 0
    settings = (commit or "", fsync or "", pages or "", read_only == "on", bool(standby))
    return Server(int(number or 0), version, *settings, neon is not None, tables, bool(exists))


def _version(link: Link, address: Address) -> int:
    sql = f"select coalesce(max(version), 0) from {quoted(address.schema)}.migration"  # noqa: S608 - quoted
    row: Any = link.execute(sql, ()).fetchone()
    return int(row[0])


def require(server: Server, address: Address) -> None:
    """Raise unless the server is new enough and its tables are not too new."""
    if server.tables > NEWEST:
        what = f"the schema {address.schema!r} in {address.name}"
        raise VersionError(what, str(server.tables), str(NEWEST))
    if server.number and server.number < OLDEST_SERVER:
        hint = "perdure needs PostgreSQL 14 or newer"
        raise UnsupportedError(f"{address.name} is {server.version.split(' on ')[0]}", hint)


def script(address: Address, have: int, *, schema_exists: bool) -> list[str]:
    """Return the statements that bring tables from a version to the newest."""
    name = quoted(address.schema).replace("%%", "%")
    if have == NEWEST:
        return []
    statements = [] if schema_exists else [f"create schema if not exists {name}"]
    for version in range(have + 1, NEWEST + 1):
        statements += [text.format(schema=name) for text in MIGRATIONS[version]]
        statements.append(f"insert into {name}.migration (version) values ({version})")  # noqa: S608 - quoted
    return statements


def migrate(link: Link, address: Address) -> list[str]:
    """Bring the tables to the newest version; return the statements that did."""
    for attempt in range(ATTEMPTS):
        try:
            with link.transaction():
                key = f"perdure migrate {address.schema}"
                link.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (key,))
                server = look(link, address)
                require(server, address)
                statements = script(address, server.tables, schema_exists=server.schema_exists)
                for statement in statements:
                    link.execute(statement.encode())
                return statements
        except psycopg.errors.InsufficientPrivilege as error:
            text = address.hide(" ".join(str(error).split()))
            reason = f"this user may not do that: make the tables (Postgres: {text})"
            raise UnavailableError(address.name, reason, _SOMEBODY_ELSE) from error
        except (
            psycopg.errors.UniqueViolation,
            psycopg.errors.DuplicateSchema,
            psycopg.errors.DuplicateTable,
            psycopg.errors.SerializationFailure,
        ):
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError
