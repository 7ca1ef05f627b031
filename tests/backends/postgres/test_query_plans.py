"""What a statement of a Postgres store touches does not depend on what the planner believes.

A server that has never analysed the tables guesses. A plan that is kept may be made while they are
empty and used when they are not.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import psycopg
import pytest

from perdure.backends.fields import FieldOrder
from perdure.backends.postgres.address import parse_address
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.postgres.connection import Connection, connect_options
from perdure.backends.postgres.listing import NameListing, OrderedListing, RecencyListing
from perdure.backends.postgres.operations import Operations
from perdure.backends.postgres.queries import Query, Row, StoreQueries, StreamPage
from perdure.backends.postgres.statements import Statements
from perdure.backends.protocol import StreamFilter
from perdure.testing.contract.samples import append_of, digest, entry
from tests.backends.postgres import server as postgres

MANY = 6_000
FEW_BLOCKS = 150  # Of 8 kB; a table or an index has more, and is not to be gone through.

# Four entries, two labels, one of which is borne no more, and a field each; tenants with one stream
# each; and as many deleted ones, which come first by name and by time.
LOAD = """
create function {schema}.name_of(number integer) returns bytea
  language sql as $$ select (repeat('session ', 30) || number)::bytea $$;
create function {schema}.key_of(number integer) returns bytea
  language sql as $$ select substring(sha256('t\\000' || {schema}.name_of(number)) for 16) $$;
insert into {schema}.head
select case when number > {many} then format('t%s', number) else 't' end,
  {schema}.name_of(number), {schema}.key_of(number), 4, '{digest}', '["kept"]', number
from generate_series(1, {many} * 5 / 4) as number;
insert into {schema}.head
select 't', ('gone ' || repeat('session ', 30) || number)::bytea, {schema}.key_of(-number), 1,
  repeat('d', 64), '["deleted"]', {many} * 2 + number
from generate_series(1, {many}) as number;
insert into {schema}.entry
select {schema}.key_of(number), position, 't', position, '[]', '[]'
from generate_series(1, {many}) as number, generate_series(1, 4) as position;
insert into {schema}.label
select 't', {schema}.name_of(number), label::bytea, label <> 'busy',
  case when label like 'rank%' then lpad(number::text, 9, '0') else '' end::bytea
from generate_series(1, {many}) as number, unnest(array['kept', 'busy', E'rank\\t']) as label;
"""


class Store(NamedTuple):
    """A store with many sessions, and connections that keep every plan that they ever made."""

    admin: psycopg.Connection[Any]
    schema: str
    queries: StoreQueries
    operations: Operations
    early: Connection
    late: Connection

    def touched(self) -> int:
        """Return how many blocks of tables and indexes were looked at until now."""
        query = """select sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)
            from pg_statio_user_tables where schemaname = %s"""
        self.admin.execute("select pg_stat_force_next_flush()")  # What loading touched counts now.
        row = self.admin.execute(query, (self.schema,)).fetchone()
        assert row is not None
        return int(row[0])

    def blocks(self, link: Connection, operation: Callable[[Any], object]) -> dict[str, int]:
        """Carry out an operation; return how many blocks each of its statements looked at."""
        measured = Measured(self, link)
        operation(measured)
        return measured.found


class Measured:
    """A connection that notes how many blocks each statement looks at, by the statement's name."""

    def __init__(self, store: Store, link: Connection) -> None:
        self._store = store
        self._link = link
        self._names = {text: name for name, text in store.queries.sql._asdict().items()}
        self.found: dict[str, int] = {}

    def fetch(self, query: Query) -> list[Row]:
        before = self._store.touched()
        answer = self._link.execute(query.sql, query.parameters, prepare=True, binary=True)
        rows = answer.fetchall()
        self._link.execute("select pg_stat_force_next_flush()", prepare=False)
        self.found[self._names[query.sql]] = self._store.touched() - before
        return rows


def only(query: Query) -> Callable[[Any], object]:
    return lambda connection: connection.fetch(query)


def calls(store: Store, number: int) -> Iterator[Callable[[Any], object]]:
    """Everything that can be asked, about a few sessions that there may be."""
    queries, operations = store.queries, store.operations
    names = [f"{'session ' * 30}{number + more}" for more in range(4)]
    ranks = [f"rank\t{number + more:09}" for more in range(4)]
    both = [*zip(names, ranks, strict=True)][:2]
    for appends in (
        [append_of(name, 5, 5, "kept", "busy", rank) for name, rank in both],
        [append_of(name, 6, 6, "kept", "busy", rank) for name, rank in both],
        [append_of(names[2], 5, 5, "kept")],
        [append_of(names[2], 6, 6, "kept")],
        [append_of(names[2], 7, 7, "kept", f"rank\t{number}")],
        [append_of(names[0], 6, 6, "kept", "busy"), append_of(f"new {number}", 1, 1)],
    ):
        yield partial(operations.append, appends=appends)
    for reverse in (False, True):
        page = StreamPage(queries, names[0], 0, 3, None, reverse=reverse)
        yield partial(operations.load_page, page=page)
    yield partial(operations.head, stream=names[0])
    yield NameListing(queries, StreamFilter("", (), (), headers=True), names[0], 3).next_page
    yield NameListing(queries, StreamFilter("", (), ["deleted"], headers=True), "", 3).next_page
    yield NameListing(
        queries, StreamFilter("gone ", (), ["deleted"], headers=True), "", 3
    ).next_page
    yield NameListing(
        queries, StreamFilter("", ["kept"], ["deleted"], headers=True), names[0], 3
    ).next_page
    yield RecencyListing(queries, StreamFilter("", (), (), headers=True), 3).next_page
    yield RecencyListing(queries, StreamFilter("", (), ["deleted"], headers=True), 3).next_page
    yield RecencyListing(queries, StreamFilter(names[0], (), (), headers=True), 3).next_page
    yield RecencyListing(
        queries, StreamFilter(names[0], (), ["deleted"], headers=True), 3
    ).next_page
    yield RecencyListing(queries, StreamFilter("gone ", (), ["deleted"], headers=True), 3).next_page
    yield RecencyListing(
        queries, StreamFilter(names[0], ["kept"], ["deleted"], headers=True), 3
    ).next_page
    for order in (
        FieldOrder("rank"),
        FieldOrder("rank", "000003000", "000003001"),
        FieldOrder("rank", "000000000", "000003000", reverse=True, after=("000002000", "")),
    ):
        choice = StreamFilter("", (), ["deleted"], headers=True)
        yield OrderedListing(queries, choice, order, 3).next_page
        choice = StreamFilter("", ["busy", f"rank\t{number:09}"], ["deleted"], headers=True)
        yield OrderedListing(queries, choice, order, 3).next_page
    choice = StreamFilter("", ["busy", f"rank\t{number:09}"], ["deleted"], headers=True)
    yield NameListing(queries, choice, "", 3).next_page
    since = (queries.tenant, 2**62)
    yield only(Query(queries.sql.changed, (*since, *since, True, queries.tenant)))
    yield only(Query(queries.sql.check_heads, (queries.tenant, queries.tenant, b"", 3)))
    yield partial(operations.register_watch, stream=names[0], seconds=30)
    yield partial(operations.drop, stream=names[0], before=2)
    yield partial(operations.remove, stream=names[3], digest="d" * 64)


@pytest.fixture(scope="module")
def store(postgres_url: str) -> Iterator[Store]:
    schema = postgres.new_schema()
    backend = PostgresBackend(postgres.address(postgres_url, schema=schema, tenant="t"))
    backend.close()
    generic = {"options": "-c plan_cache_mode=force_generic_plan"}
    options = {**connect_options(parse_address(postgres_url)), **generic}
    with (
        psycopg.connect(postgres_url, autocommit=True) as admin,
        Connection.connect(**options) as early,
        Connection.connect(**options) as late,
    ):
        for table in ("head", "entry", "label", "watch"):
            never = f"alter table {schema}.{table} set (autovacuum_enabled = off)"
            admin.execute(never.encode())
        store = Store(admin, schema, backend._queries, backend._operations, early, late)
        for operation in calls(store, MANY * 2):
            store.blocks(early, operation)

        admin.execute(LOAD.format(schema=schema, many=MANY, digest=digest(entry(4))).encode())

        yield store
    postgres.drop_schema(postgres_url, schema)


def test_every_table_and_index_is_larger_than_what_a_statement_may_touch(store: Store) -> None:
    rows = store.admin.execute(
        "select relname, pg_relation_size(oid) / 8192 from pg_class"
        " where relnamespace = to_regnamespace(%s) and relname ~ '^(head|entry|label)'",
        (store.schema,),
    ).fetchall()
    assert len(rows) == 10
    assert [row for row in rows if row[1] <= FEW_BLOCKS] == []


@pytest.mark.parametrize("which", ["early", "late", "analysed"])
def test_no_statement_goes_through_a_table_or_an_index(store: Store, which: str) -> None:
    """A plan made when the tables were empty, one made now, and one by statistics that mislead.

    Those say that a tenant has a single session, as most have: any index on the tenant seems good.
    """
    number = {"early": 100, "late": 200, "analysed": 300}[which]
    if which == "analysed":
        for table in ("head", "entry", "label", "watch"):
            store.admin.execute(f"analyze {store.schema}.{table}".encode())
    link = store.early if which == "early" else store.late
    found: dict[str, int] = {}
    for operation in calls(store, number):
        for name, blocks in store.blocks(link, operation).items():
            found[name] = max(blocks, found.get(name, 0))
    # Two statements of a check look at everything, on purpose.
    assert {*found} == {*Statements._fields} - {"notify", "check_labels", "check_streams"}
    assert {name: blocks for name, blocks in found.items() if blocks > FEW_BLOCKS} == {}
