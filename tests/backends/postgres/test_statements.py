"""What the statements of a Postgres store are like, as the server itself understands them."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.postgres.queries import Query
from perdure.backends.postgres.statements import NOW_MICROSECONDS, Statements, build_statements
from perdure.backends.protocol import DELETED
from perdure.testing.contract.samples import append_all, append_of, entries


@pytest.fixture
def backend(postgres_store: str) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(f"{postgres_store}&timeout=60")
    yield backend
    backend.close()


@pytest.fixture
def database(postgres_url: str, postgres_schema: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"set search_path = {postgres_schema}".encode())
        yield connection


def numbered(text: str) -> str:
    """Return a statement with the server's own placeholders."""
    first, *rest = text.split("%b")
    return first + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))


def changes(database: psycopg.Connection[Any], text: str) -> Counter[str]:
    """Return how often a statement changes each table, by the server's plan for it."""
    explain = f"explain (generic_plan, format json) {numbered(text)}"
    row = database.execute(explain.encode()).fetchone()
    assert row is not None
    found: Counter[str] = Counter()

    def walk(node: dict[str, Any]) -> None:
        if node["Node Type"] == "ModifyTable":
            found[node["Relation Name"]] += 1
        for child in node.get("Plans", ()):
            walk(child)

    walk(row[0][0]["Plan"])
    return found


@pytest.mark.parametrize("name", Statements._fields)
def test_no_statement_changes_a_table_in_two_places(
    backend: PostgresBackend, database: psycopg.Connection[Any], name: str
) -> None:
    """CockroachDB refuses it."""
    found = changes(database, getattr(backend._queries.sql, name))
    assert max(found.values(), default=0) <= 1, found
    expected = {"append": {"head", "entry"}, "append_relabelling": {"head", "entry", "label"}}
    assert name not in expected or {*found} == expected[name], "the plan is understood"


def test_such_a_statement_would_be_noticed(
    backend: PostgresBackend, database: psycopg.Connection[Any]
) -> None:
    text = """with moved as (update head set position = %b::bigint returning stream),
      begun as (insert into head select * from head on conflict do nothing returning stream)
      delete from label where name in (select stream from moved union select stream from begun)"""
    assert changes(database, text) == {"head": 2, "label": 1}


@pytest.mark.parametrize("name", ["append", "append_relabelling", "confirm_durable"])
def test_heads_are_locked_in_one_order_whatever_the_plan(
    backend: PostgresBackend, database: psycopg.Connection[Any], name: str
) -> None:
    """Otherwise two batches with the same streams could each hold what the other waits for."""
    text = numbered(getattr(backend._queries.sql, name))
    explain = f"explain (generic_plan, format json) {text}"
    row = database.execute(explain.encode()).fetchone()
    assert row is not None
    outer, inner = _loop_over(row[0][0]["Plan"], "LockRows")
    assert _node_of(inner, "Node Type", "LockRows")["Plans"][0]["Index Name"] == "head_pkey"
    in_order = {"Sort": ["new_1.stream"], "Function Scan": None}  # As the function was given them.
    assert outer.get("Sort Key") == in_order[outer["Node Type"]]
    assert outer["Node Type"] == ("Function Scan" if name == "confirm_durable" else "Sort")


def _loop_over(node: dict[str, Any], kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the two sides of the loop that comes to a node of a kind again and again."""
    sides = {one["Parent Relationship"]: one for one in node.get("Plans", ())}
    if node["Node Type"] == "Nested Loop" and _node_of(sides["Inner"], "Node Type", kind):
        return sides["Outer"], sides["Inner"]
    for child in node.get("Plans", ()):
        if _node_of(child, "Node Type", kind):
            return _loop_over(child, kind)
    raise AssertionError(node)


def test_so_is_the_head_of_a_stream_that_was_to_begin(
    backend: PostgresBackend, database: psycopg.Connection[Any]
) -> None:
    first, second = sorted("ab", key=backend._queries.key)
    append_all(backend, append_of(first, 1, 1), append_of(second, 1, 1))
    lock = "select 1 from head where tenant = %s and name = %s for update nowait"
    answers: list[list[str]] = []

    def append() -> None:
        both = (append_of(first, 1, 1, mark="x"), append_of(second, 2, 2))
        answers.append(append_all(backend, *both))

    with database.transaction():
        database.execute(lock, (backend._queries.tenant, first.encode()))
        thread = threading.Thread(target=append)
        thread.start()
        deadline = time.monotonic() + 60
        while not _waits(database):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        database.execute(lock, (backend._queries.tenant, second.encode()))
    thread.join()
    assert answers == [["conflict", "stored"]]


@pytest.mark.parametrize("name", Statements._fields)
def test_every_statement_asks_for_the_tenant(name: str) -> None:
    text = getattr(build_statements('"perdure"'), name)
    if name in ("notify", "expire_watches"):  # No table; and what has passed is everybody's.
        return
    assert text.count("tenant = %b::text") + text.count("select %b::text") >= text.count(
        '"perdure".'
    ) - text.count('"perdure".watch (')


def test_labels_that_were_borne_once_are_not_walked_through(
    backend: PostgresBackend, database: psycopg.Connection[Any]
) -> None:
    streams = [f"s{number:03}" for number in range(200)]
    append_all(backend, *(append_of(one, 1, 1, "busy", "kept") for one in streams))
    append_all(backend, *(append_of(one, 2, 2, "kept") for one in streams))
    append_all(backend, *(append_of(one, 3, 3, "busy", "kept") for one in streams[7:9]))
    assert [head.stream for head in backend.streams(labels=["busy"])] == streams[7:9]
    assert len([*backend.streams(labels=["kept"])]) == 200
    rows = database.execute(
        "select label, present, count(*) from label where tenant = %s group by 1, 2 order by 1, 2",
        (backend._queries.tenant,),
    ).fetchall()
    assert rows == [(b"busy", False, 198), (b"busy", True, 2), (b"kept", True, 200)]
    tenant = backend._queries.tenant
    database.execute("analyze label")  # As the server does by itself, before it matters.
    database.execute("set enable_seqscan = off; set enable_bitmapscan = off")
    row = database.execute(
        f"explain (analyze, timing off, format json) {backend._queries.sql.labelled}".encode(),
        (tenant, b"busy", b"", b"", b"", 256, tenant, True, tenant),
    ).fetchone()
    assert row is not None
    scan = _node_of(row[0][0]["Plan"], "Relation Name", "label")
    assert scan["Actual Rows"] == 2
    assert scan.get("Rows Removed by Filter", 0) == 0
    assert scan["Index Name"] == "label_value"


def test_the_values_of_a_field_take_one_row_and_leave_none_behind(
    backend: PostgresBackend, database: psycopg.Connection[Any]
) -> None:
    for position in range(1, 6):
        append_all(backend, append_of("s", position, position, f"amount\t{position}"))
    rows = "select label, value, present from label where tenant = %s"
    tenant = (backend._queries.tenant,)
    assert database.execute(rows, tenant).fetchall() == [(b"amount\t", b"5", True)]
    append_all(backend, append_of("s", 6, 6, DELETED))
    found = database.execute(rows, tenant).fetchall()
    assert sorted(found) == [(b"amount\t", b"", False), (b"deleted", b"", True)]


def _node_of(node: dict[str, Any], key: str, value: str) -> dict[str, Any]:
    if node.get(key) == value:
        return node
    for child in node.get("Plans", ()):
        if found := _node_of(child, key, value):
            return found
    return {}


def test_what_begins_and_what_goes_on_share_one_statement(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    real = backend._queries.append_batch

    def counted(batch: list[Any]) -> Query:
        batches.append(len(batch))
        return real(batch)

    monkeypatch.setattr(backend._queries, "append_batch", counted)
    append_all(backend, append_of("old", 1, 2, "a"), append_of("other", 1, 1))
    assert append_all(
        backend,
        append_of("old", 3, 3, "b"),
        append_of("new", 1, 2, "b"),
        append_of("other", 5, 5),
        append_of("old 2", 2, 2)._replace(previous=""),
    ) == ["stored", "stored", "refused", "stored"]
    assert batches == [2, 4]
    assert [head.stream for head in backend.streams(labels=["b"])] == ["new", "old"]
    assert append_all(
        backend, append_of("old", 1, 3, "b"), append_of("new", 1, 1, mark="x"), append_of("n", 1, 1)
    ) == ["stored", "conflict", "stored"]
    assert list(backend.read("old")) == entries(1, 3)
    assert [head.position for head in backend.streams()] == [1, 2, 3, 2, 1]
    assert next(backend.recent()).stream == "n"


@pytest.mark.parametrize("many", [1, 2])
def test_a_stream_that_is_removed_meanwhile_does_not_come_back(
    backend: PostgresBackend, database: psycopg.Connection[Any], many: int
) -> None:
    """The append meets the removal before it is committed, and waits."""
    both = ["s", "t"][:many]
    append_all(backend, *(append_of(one, 1, 5, "l") for one in both))
    tenant = backend._queries.tenant
    answers: list[list[str]] = []

    def append() -> None:
        answers.append(append_all(backend, *(append_of(one, 6, 6, "k") for one in both)))

    with database.transaction():
        (head,) = backend.streams(limit=1)
        here = (tenant, b"s")
        removing = backend._queries.sql.remove
        database.execute(removing.encode(), (*here, head.digest, tenant, *here, *here))
        thread = threading.Thread(target=append)
        thread.start()
        deadline = time.monotonic() + 60
        while not _waits(database):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    thread.join()
    assert answers == [["refused", "stored"][:many]]
    assert [one.stream for one in backend.streams()] == both[1:]
    assert list(backend.read("s")) == []
    assert [one.stream for one in backend.streams(labels=["k"])] == both[1:]


def test_a_change_that_is_committed_while_the_pages_are_read_is_not_missed(
    backend: PostgresBackend, database: psycopg.Connection[Any]
) -> None:
    """Its time is before that of the newest on the first page, its commit after it."""
    streams = [f"s{number:03}" for number in range(300)]
    append_all(backend, *(append_of(one, 1, 1) for one in streams))
    *_, oldest = backend.recent()
    with database.transaction():
        move = f"update head set changed = {NOW_MICROSECONDS} where tenant = %s and name = %s"  # noqa: S608 - ours
        database.execute(move.encode(), (backend._queries.tenant, oldest.stream.encode()))
        append_all(backend, append_of("newest", 1, 1))
        walk = backend.recent()
        assert next(walk).stream == "newest"
    found = [head.stream for head in walk]
    assert sorted(found) == streams


def _waits(database: psycopg.Connection[Any]) -> bool:
    query = sql.SQL(
        "select 1 from pg_stat_activity where wait_event_type = 'Lock'"
        " and pg_backend_pid() = any(pg_blocking_pids(pid))"
    )
    return database.execute(query).fetchone() is not None
