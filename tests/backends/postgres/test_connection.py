"""Appends to Postgres are prepared where that is safe: on the server process itself."""

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.postgres.backend_async import AsyncPostgresBackend
from perdure.backends.postgres.connection import PREPARE_AFTER
from perdure.testing.contract.samples import append_all, append_of, entries
from tests.backends.postgres import server as postgres
from tests.backends.postgres.test_statements import numbered

PREPARED = "select statement from pg_prepared_statements"
OFTEN = ["append", "append_relabelling", "append_next"]


@pytest.fixture
def backend(postgres_store: str) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(f"{postgres_store}&timeout=60")
    yield backend
    backend.close()


def go_on(backend: PostgresBackend, count: int = PREPARE_AFTER + 3) -> None:
    for position in range(1, count + 1):
        assert append_all(backend, append_of("s", position, position)) == ["stored"]
        assert [*backend.read("s", after=position - 1)] == entries(position, position)


def prepared(backend: PostgresBackend) -> list[str]:
    (link,) = backend._pool._idle
    return [statement for (statement,) in link.execute(PREPARED, prepare=False).fetchall()]


def test_appends_are_prepared_and_nothing_else(backend: PostgresBackend) -> None:
    go_on(backend)
    (statement,) = prepared(backend)
    assert statement == numbered(backend._queries.sql.append_next)


def test_so_are_those_of_an_event_loop(postgres_store: str) -> None:
    async def scene() -> list[Any]:
        backend = AsyncPostgresBackend(f"{postgres_store}&timeout=60")
        for position in range(1, PREPARE_AFTER + 4):
            await backend.append([append_of("s", position, position)])
        (link,) = backend._pool._idle
        found = await (await link.execute(PREPARED, prepare=False)).fetchall()
        await backend.close()
        return found

    assert len(asyncio.run(scene())) == 1


def test_nothing_is_prepared_behind_a_pooler(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The login of a pooler names a process of its own making."""
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", 4711)
    go_on(backend)
    assert prepared(backend) == []


def test_a_statement_that_is_gone_is_sent_anew(backend: PostgresBackend) -> None:
    go_on(backend)
    (link,) = backend._pool._idle
    link.execute("do $$ begin execute 'deallocate all'; end $$", prepare=False)
    last = PREPARE_AFTER + 3
    assert append_all(backend, append_of("s", last + 1, last + 1)) == ["stored"]
    assert [*backend.read("s")] == entries(1, last + 1)
    assert link.closed, "the driver did not know better, and another connection took over"


@pytest.mark.parametrize("name", OFTEN)
def test_the_plan_that_is_kept_looks_everything_up(postgres_url: str, name: str) -> None:
    """It may be made while the tables are empty, and is used when they are not."""
    schema = postgres.new_schema()  # Of tables that nobody has analysed.
    backend = PostgresBackend(postgres.address(postgres_url, schema=schema, tenant="t"))
    text = numbered(getattr(backend._queries.sql, name))
    with psycopg.connect(postgres_url, autocommit=True) as database:
        rows = database.execute(f"explain (generic_plan) {text}".encode()).fetchall()
    backend.close()
    postgres.drop_schema(postgres_url, schema)
    plan = "\n".join(row[0] for row in rows)
    assert "Index" in plan
    assert "label_present" not in plan, "that is for listings: it has no name before a label"
    for table in ("head", "entry", "label", "watch"):
        assert f"Seq Scan on {table}" not in plan
        assert f"Seq Scan on {schema}.{table}" not in plan
