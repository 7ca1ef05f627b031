"""Tables of older versions become the newest, and nothing of what they hold is lost."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import sql

import perdure
from perdure.backends.postgres import migrations
from perdure.backends.postgres.address import parse_address
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.postgres.schema import rls_script
from perdure.errors import UnavailableError
from perdure.testing.contract.samples import append_all, append_of, entries
from tests.backends.postgres import server as postgres

# As they were made by the first version.
FIRST = """
create schema {schema};
create table {schema}.migration (
  version integer primary key,
  applied timestamptz not null default now());
create table {schema}.head (
  tenant text not null,
  name bytea not null,
  stream bytea not null,
  position bigint not null,
  digest text not null,
  labels bytea not null,
  changed bigint not null,
  primary key (tenant, name));
create index head_changed on {schema}.head (tenant, changed, name);
create table {schema}.entry (
  stream bytea not null,
  position bigint not null,
  tenant text not null,
  header bytea not null,
  body bytea not null,
  primary key (stream, position));
create table {schema}.label (
  tenant text not null,
  name bytea not null,
  label bytea not null,
  primary key (tenant, name, label));
create index label_name on {schema}.label (tenant, label, name);
create table {schema}.watch (
  stream bytea primary key,
  tenant text not null,
  until bigint not null);
create view {schema}.session as
select tenant, convert_from(name, 'UTF8') as id, position, digest,
  convert_from(labels, 'UTF8') as labels, to_timestamp(changed / 1000000.0) as changed, stream
from {schema}.head;
insert into {schema}.migration (version) values (1);
"""

# How the first version moved a head and gave it other labels.
FIRST_RELABELS = """
with taken as (
  update {schema}.head as head
  set position = position + 1, labels = '["pinned"]'
  where head.tenant = '' and head.name = any(array['b']::bytea[])
  returning head.stream, head.name
), wanted as (
  select stream, 'pinned'::bytea as label from taken
), unlabelled as (
  delete from {schema}.label as label using taken
  where label.tenant = '' and label.name = taken.name and not exists (
    select 1 from wanted where wanted.stream = taken.stream and wanted.label = label.label)
), labelled as (
  insert into {schema}.label (tenant, name, label)
  select '', taken.name, wanted.label
  from taken join wanted on wanted.stream = taken.stream
  on conflict do nothing
)
select stream from taken
"""

TENANTS = ("", "acme")


def fill(address: str) -> None:
    """Write sessions of two tenants, one of them in the middle of a turn, a record at a time."""
    for tenant in TENANTS:
        with perdure.open(f"{address}&tenant={tenant}") as store:
            for name in ("a", "b"):
                with store.session(name).turn() as turn:
                    turn.append({"role": "user", "content": f"hello from {tenant}"})
                    turn.append({"role": "assistant", "content": "1"})
            turn = store.session("b").turn()
            turn.__enter__()


def seen(address: str) -> list[Any]:
    """Everything that can be asked of the sessions, and that their chains hold."""
    found: list[Any] = []
    for tenant in TENANTS:
        with perdure.open(f"{address}&tenant={tenant}") as store:
            for head in store.sessions():
                session = store.session(head.id)
                session.verify()
                found.append((tenant, head, session.messages()))
            found.append([head.stream for head in store._backend.recent()])  # type: ignore[attr-defined]
            found += [
                [head.stream for head in store._backend.streams(labels=[label])]
                for label in sorted({word for head in store.sessions() for word in head.labels})
            ]
    return found


@pytest.fixture
def first(postgres_empty: str, postgres_url: str) -> tuple[str, list[Any]]:
    """A store of the first version with two tenants' sessions, and what was seen in them."""
    schema = postgres_empty.rpartition("schema=")[2]
    other = postgres.new_schema()
    address = postgres.address(postgres_url, schema=other)
    fill(address)
    held = seen(address)
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(FIRST.format(schema=schema).encode())
        for table, rows in (
            ("head", "select tenant, name, stream, position, digest, labels, changed from {}"),
            ("entry", "select stream, position, tenant, header, body from {}"),
            ("label", "select tenant, name, label from {} where present"),
        ):
            source = sql.SQL(rows).format(sql.Identifier(other, table))
            admin.execute(sql.SQL("insert into {} ").format(sql.Identifier(schema, table)) + source)
        admin.execute(rls_script(schema, []).encode())
    postgres.drop_schema(postgres_url, other)
    return postgres_empty, held


def catalogue(url: str, schema: str) -> list[Any]:
    """Columns, constraints and indexes of a schema, without its name."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "select table_name, column_name, data_type, is_nullable, column_default"
            " from information_schema.columns where table_schema = %s order by 1, 2",
            (schema,),
        ).fetchall()
        rows += connection.execute(
            "select indexname, indexdef from pg_indexes where schemaname = %s order by 1",
            (schema,),
        ).fetchall()
        rows += connection.execute(
            "select conname, pg_get_constraintdef(oid) from pg_constraint"
            " where connamespace = to_regnamespace(%s) order by 1",
            (schema,),
        ).fetchall()
    return [tuple(str(word).replace(schema, "…") for word in row) for row in rows]


def test_a_store_of_the_first_version_is_brought_up_to_date_by_opening(
    first: tuple[str, list[Any]], postgres_url: str, postgres_schema: str, postgres_store: str
) -> None:
    address, held = first
    schema = address.rpartition("schema=")[2]
    with pytest.raises(UnavailableError, match=r"has tables of version 1.*perdure migrate"):
        PostgresBackend(f"{address}&migrate=no")
    assert seen(address) == held
    PostgresBackend(postgres_store).close()  # Tables that were made at once.
    assert catalogue(postgres_url, schema) == catalogue(postgres_url, postgres_schema)
    with psycopg.connect(postgres_url) as admin:
        query = "select tablename from pg_policies where schemaname = %s order by 1"
        policies = admin.execute(query, (schema,)).fetchall()
    assert policies == [("entry",), ("head",), ("label",), ("watch",)], "and tenants stay apart"
    with perdure.open(f"{address}&tenant=acme") as store:
        session = store.session("a")
        with session.turn("and on") as turn:
            turn.append({"role": "assistant", "content": "2"})
        assert len(session) == 4
        session.verify()


def test_many_processes_may_bring_it_up_to_date_at_once(first: tuple[str, list[Any]]) -> None:
    address, held = first
    failures: list[BaseException] = []
    ready = threading.Barrier(6)

    def work(number: int) -> None:
        try:
            ready.wait()
            backend = PostgresBackend(address)
            assert append_all(backend, append_of(f"new {number}", 1, 2, "l")) == ["stored"]
            assert list(backend.read(f"new {number}")) == entries(1, 2)
            digest = next(backend.streams(prefix=f"new {number}")).digest
            assert backend.remove(f"new {number}", digest=digest)
            backend.close()
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert seen(address) == held


def test_a_table_that_somebody_reads_for_long_is_not_waited_for_for_ever(
    first: tuple[str, list[Any]], postgres_url: str
) -> None:
    address, held = first
    schema = address.rpartition("schema=")[2]
    with psycopg.connect(postgres_url) as reader:
        reader.execute(sql.SQL("select 1 from {}").format(sql.Identifier(schema, "entry")))
        with pytest.raises(UnavailableError, match="a lock was held for too long"):
            PostgresBackend(f"{address}&timeout=2")
    with pytest.raises(UnavailableError, match="has tables of version 1"):
        PostgresBackend(f"{address}&migrate=no")
    assert seen(address) == held


def test_nor_is_somebody_else_who_changes_the_tables(
    first: tuple[str, list[Any]], postgres_url: str
) -> None:
    address, held = first
    lock = migrations._lock_key(address.rpartition("schema=")[2])
    with psycopg.connect(postgres_url) as other:
        other.execute("select pg_advisory_xact_lock(%s::bigint)", (lock,))
        with pytest.raises(UnavailableError, match="a lock was held for too long"):
            PostgresBackend(f"{address}&timeout=2")
    assert seen(address) == held


def test_a_process_of_the_first_version_that_is_still_there_is_told_to_restart(
    first: tuple[str, list[Any]], postgres_url: str
) -> None:
    """It would take a label for present that its session bore once, and nobody would list it."""
    address, _ = first
    schema = address.rpartition("schema=")[2]
    relabel = FIRST_RELABELS.format(schema=schema).encode()
    with psycopg.connect(postgres_url, autocommit=True) as old:
        with old.transaction(force_rollback=True):
            assert len(old.execute(relabel).fetchall()) == 1, "as it did before"
        backend = PostgresBackend(address)
        (head,) = backend.streams(prefix="b")
        last = head.position
        for number, labels in enumerate([["pinned"], []], 1):
            more = append_of("b", last + number, last + number, *labels)
            more = more._replace(previous=head.digest) if number == 1 else more
            assert append_all(backend, more) == ["stored"]
        with pytest.raises(
            psycopg.errors.CheckViolation, match="restart_this_process_with_the_new"
        ):
            old.execute(relabel)
        assert [head.position for head in backend.streams(prefix="b")] == [last + 2]
        assert [*backend.streams(labels=["pinned"])] == []
        assert append_all(backend, append_of("b", last + 3, last + 3, "pinned")) == ["stored"]
        assert [head.stream for head in backend.streams(labels=["pinned"])] == ["b"]
        backend.close()


def test_one_of_the_second_version_goes_on(first: tuple[str, list[Any]]) -> None:
    """Its statements are those of today, but for a condition that only chooses an index."""
    address, held = first
    backend = PostgresBackend(address)
    sql_now = backend._queries.sql
    for name in ("recent", "changed"):
        assert " and changed > 0" in getattr(sql_now, name)
        old_text = getattr(sql_now, name).replace(" and changed > 0", "")
        backend._queries.sql = backend._queries.sql._replace(**{name: old_text})
    assert [head.stream for head in backend.recent()] == ["b", "a"]
    backend.close()
    assert seen(address) == held


def wait_for_waits(url: str, schema: str, number: int) -> None:
    """Return when so many have to wait for a table."""
    query = """select 1 from pg_locks as held join pg_class as found on found.oid = held.relation
        where not held.granted and found.relnamespace = to_regnamespace(%s)"""
    deadline = time.monotonic() + 60
    with psycopg.connect(url, autocommit=True) as admin:
        while len(admin.execute(query, (schema,)).fetchall()) < number:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def lock(connection: psycopg.Connection[Any], schema: str, table: str, mode: str) -> None:
    name = sql.Identifier(schema, table)
    connection.execute(sql.SQL(f"lock table {{}} in {mode} mode").format(name))


def stubborn(url: str) -> psycopg.Connection[Any]:
    """Return a connection that is not the one to give way where two wait for each other."""
    connection = psycopg.connect(url)
    connection.execute("set deadlock_timeout = '1min'")
    return connection


def test_who_uses_the_tables_meanwhile_waits_and_is_not_waited_for(
    first: tuple[str, list[Any]], postgres_url: str
) -> None:
    """One table is held for long, and a writer comes who needs others, one after the other."""
    address, held = first
    schema = address.rpartition("schema=")[2]

    def write() -> None:
        with stubborn(postgres_url) as writer:
            for table in ("head", "entry", "label"):
                lock(writer, schema, table, "row exclusive")

    with ThreadPoolExecutor() as pool:
        with psycopg.connect(postgres_url) as reader:
            lock(reader, schema, "watch", "access share")
            brought = pool.submit(
                migrations.migrate_if_needed, parse_address(address), dry_run=False
            )
            wait_for_waits(postgres_url, schema, 1)
            written = pool.submit(write)
            wait_for_waits(postgres_url, schema, 2)
        written.result()
        assert brought.result().before == 1
    assert seen(address) == held


def test_one_that_does_not_get_all_tables_begins_again(
    first: tuple[str, list[Any]], postgres_url: str
) -> None:
    """A listing by label needs `label`, then `head`: the other way round."""
    address, held = first
    schema = address.rpartition("schema=")[2]
    with ThreadPoolExecutor() as pool:
        with stubborn(postgres_url) as reader:
            lock(reader, schema, "label", "access share")
            brought = pool.submit(
                migrations.migrate_if_needed, parse_address(address), dry_run=False
            )
            wait_for_waits(postgres_url, schema, 1)
            lock(reader, schema, "head", "access share")
        assert brought.result().before == 1
    assert seen(address) == held


def test_a_user_who_may_not_change_the_tables_has_nobody_wait(
    first: tuple[str, list[Any]], postgres_url: str
) -> None:
    address, held = first
    schema = address.rpartition("schema=")[2]
    name = postgres.new_schema()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"create role {name} login password 'guest'".encode())
        try:
            admin.execute(f"grant usage on schema {schema} to {name}".encode())
            admin.execute(f"grant all on all tables in schema {schema} to {name}".encode())
            with psycopg.connect(postgres_url) as reader:
                lock(reader, schema, "head", "access share")
                guest = address.replace(address[13 : address.index("@")], f"{name}:guest")
                with pytest.raises(UnavailableError, match=r"belong to .* run: perdure migrate"):
                    PostgresBackend(guest)
        finally:
            admin.execute(f"drop owned by {name}".encode())
            admin.execute(f"drop role {name}".encode())
    assert seen(address) == held
