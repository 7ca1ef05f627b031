"""Postgres keeps the contract, in both colours; here is what is special to its statements."""

import asyncio
import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from perdure.backends.postgres import queries
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.postgres.backend_async import AsyncPostgresBackend
from perdure.backends.postgres.connection import Connection, connect_options
from perdure.backends.protocol import AsyncBackend, Backend
from perdure.errors import DamagedError, UnavailableError
from perdure.testing import AsyncBackendContract, BackendContract
from perdure.testing.contract.samples import (
    append_all,
    append_of,
    append_to,
    entries,
    entry,
    names,
    positions,
)


class TestPostgres(BackendContract):
    @pytest.fixture
    def open_backend(self, postgres_store: str) -> Callable[[], Backend]:
        return lambda: PostgresBackend(postgres_store)


class TestAsyncPostgres(AsyncBackendContract):
    @pytest.fixture
    def open_backend(self, postgres_store: str) -> Callable[[], AsyncBackend]:
        return lambda: AsyncPostgresBackend(postgres_store)


@pytest.fixture
def backend(postgres_store: str) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(killable(postgres_store))
    yield backend
    backend.close()


@pytest.fixture
def database(postgres_url: str, postgres_schema: str) -> Iterator[psycopg.Connection]:
    """A connection to look at the tables with, without perdure."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"set search_path = {postgres_schema}".encode())
        yield connection


def killable(address: str) -> str:
    """Return an address whose connections can be told from those of other tests."""
    return f"{address}&timeout=60&application_name={address.rpartition('tenant=')[2]}"


def tenant(backend: PostgresBackend) -> str:
    return backend._queries.tenant


def test_it_says_what_it_is_and_what_survives(backend: PostgresBackend) -> None:
    assert backend.name.startswith("postgresql://")
    assert backend.guarantees.survives == "power loss"
    assert backend.guarantees.shared_by == "many machines"
    found = {check.name: check.found for check in backend.guarantees.checks}
    assert found["fsync"] == found["full_page_writes"] == found["synchronous_commit"] == "on"
    assert found["PostgreSQL"] == backend.guarantees.version
    assert found["connection"] == "to the server itself, without TLS"


def test_an_append_call_is_one_statement(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = queries.Query

    def counted(sql: str, parameters: tuple[object, ...], **more: bool) -> queries.Query:
        asked.append(sql)
        return real(sql, parameters, **more)

    monkeypatch.setattr(queries, "Query", counted)
    append_all(backend, *(append_of(str(number), 1, 3, "label") for number in range(50)))
    append_all(backend, *(append_of(str(number), 4, 4, "label") for number in range(50)))
    assert asked == [backend._queries.sql.append_relabelling, backend._queries.sql.append]


def test_a_pooler_may_give_every_statement_another_session(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = []

    def execute(link: Connection, *words: Any, **more: Any) -> Any:
        with Connection.connect(**connect_options(backend._pool._address)) as other:
            answer = psycopg.Connection.execute(other, *words, **more)
            left = psycopg.Connection.execute(
                other,
                "select pg_backend_pid(), (select count(*) from pg_prepared_statements),"
                " (select count(*) from pg_settings where source = 'session'),"
                " (select count(*) from pg_locks where locktype = 'advisory'"
                "  and pid = pg_backend_pid()),"
                " (select count(*) from pg_class where relpersistence = 't')",
            ).fetchone()
        assert left is not None
        sessions.append(left)
        return answer

    monkeypatch.setattr(Connection, "execute", execute)
    assert append_all(backend, append_of("s", 1, 3, "l"), append_of("t", 1, 1)) == ["stored"] * 2
    assert append_all(backend, append_of("s", 1, 3, "l"), append_of("t", 1, 1)) == ["stored"] * 2
    assert append_all(backend, append_of("s", 4, 4, "l")) == ["stored"]
    assert append_all(backend, append_of("s", 3, 3, mark="other")) == ["conflict"]
    backend.drop("s", before=3)
    assert list(backend.read("s")) == entries(3, 4)
    assert [head.stream for head in backend.streams(labels=["l"])] == ["s"]
    assert [head.stream for head in backend.recent()] == ["s", "t"]
    pids = {pid for pid, *_ in sessions}
    assert len(pids) == len(sessions) > 10
    assert {tuple(left) for _, *left in sessions} == {(0, 0, 0, 0)}


def test_labels_that_another_process_changed_are_listed_right(postgres_store: str) -> None:
    one, two = PostgresBackend(postgres_store), PostgresBackend(postgres_store)
    append_all(one, append_of("s", 1, 1, "a"))
    append_all(two, append_of("s", 2, 2, "b"))
    append_all(one, append_of("s", 3, 3, "a"))
    append_all(two, append_of("s", 4, 4, "b"))
    assert [head.stream for head in one.streams(labels=["b"])] == ["s"]
    assert list(one.streams(labels=["a"])) == []
    # A stream that was removed and made anew: what was known of its labels is wrong.
    (head,) = two.streams()
    assert two.remove("s", digest=head.digest)
    append_all(two, append_of("s", 1, 4, "c"))
    assert append_all(one, append_of("s", 5, 5, "a")) == ["stored"]
    assert list(one.streams(labels=["c"])) == []
    assert [head.stream for head in two.streams(labels=["a"])] == ["s"]
    one.close()
    two.close()


def test_batches_that_meet_in_the_same_streams_do_not_harm_each_other(postgres_store: str) -> None:
    """They lock heads in whatever order the server likes; a deadlock is only another attempt."""
    streams = [f"s{number}" for number in range(20)]
    won: list[int] = []
    failures: list[BaseException] = []

    def work(number: int) -> None:
        own = PostgresBackend(f"{postgres_store}&timeout=90")
        try:
            for position in range(1, 11):
                order = streams if number % 2 else streams[::-1]
                appends = [append_to(own, one, position, str(number)) for one in order]
                answers = [outcome.status for outcome in own.append(appends)]
                won.append(answers.count("stored"))
                assert answers.count("conflict") == len(streams) - answers.count("stored")
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)
        finally:
            own.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sum(won) == len(streams) * 10, "each position has one winner"
    backend = PostgresBackend(postgres_store)
    assert [head.position for head in backend.streams()] == [10] * len(streams)
    backend.close()


def test_a_call_that_is_too_large_for_one_statement_is_several(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "BATCH_BYTES", 100)
    assert append_all(backend, *(append_of(str(n), 1, 5) for n in range(7))) == ["stored"] * 7
    assert [len(list(backend.read(str(n)))) for n in range(7)] == [5] * 7
    assert (
        append_all(backend, *(append_of(str(n), 5, 6, mark="x") for n in range(7)))
        == ["conflict"] * 7
    )


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_stricter_isolation_only_means_more_attempts(postgres_store: str, level: str) -> None:
    options = quote(f"-c default_transaction_isolation={level}".replace("e r", "e\\ r"))
    stores = [PostgresBackend(f"{postgres_store}&timeout=90&options={options}") for _ in range(4)]
    won: list[int] = []

    def race(number: int) -> None:
        for position in range(1, 11):
            given = append_to(stores[number], "s", position, str(number))
            answer = append_all(stores[number], given)
            won.extend([position] * (answer == ["stored"]))

    threads = [threading.Thread(target=race, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [*range(1, 11)]
    for store in stores:
        store.close()


def test_streams_of_other_tenants_are_other_streams(postgres_store: str) -> None:
    other = postgres_store.replace("tenant=", "tenant=other_")
    one, two = PostgresBackend(postgres_store), PostgresBackend(other)
    append_all(one, append_of("s", 1, 3, "l"))
    assert list(two.read("s")) == []
    assert list(two.streams()) == list(two.streams(labels=["l"])) == []
    assert list(two.recent()) == []
    assert append_all(two, append_of("s", 1, 1, mark="two")) == ["stored"]
    two.drop("s", before=9)
    (head,) = two.streams()
    assert two.remove("s", digest=head.digest)
    assert list(one.read("s")) == entries(1, 3)
    assert names(one) == ["s"]
    one.close()
    two.close()


def test_a_child_of_a_fork_has_connections_of_its_own(backend: PostgresBackend) -> None:
    append_all(backend, append_of("s", 1, 1))
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        good = append_all(backend, append_of("s", 2, 2)) == ["stored"]
        backend.close()
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert append_all(backend, append_of("s", 3, 3)) == ["stored"], (
        "the parent's connection is whole"
    )
    assert positions(backend.read("s")) == [1, 2, 3]


def kill_connections(database: psycopg.Connection, name: str) -> int:
    """End every connection of a test's store, which is `killable`."""
    rows = database.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s",
        (name,),
    ).fetchall()
    return len(rows)


def test_connections_that_died_while_idle_are_replaced(
    backend: PostgresBackend, database: psycopg.Connection
) -> None:
    append_all(backend, append_of("s", 1, 1))
    for position in range(2, 6):
        assert kill_connections(database, tenant(backend)) >= 1
        assert append_all(backend, append_of("s", position, position)) == ["stored"]
        kill_connections(database, tenant(backend))
        assert positions(backend.read("s")) == [*range(1, position + 1)]
        kill_connections(database, tenant(backend))
        assert names(backend) == ["s"]


def test_a_connection_that_dies_in_the_middle_of_a_call_fails_nothing(
    backend: PostgresBackend, database: psycopg.Connection
) -> None:
    """Somebody ends all connections all the time; each position is stored once all the same."""
    ending, draw, done = threading.Event(), random.Random(7), [0]

    def terminate() -> None:
        seen = -1
        while not ending.is_set():
            if done[0] > seen:  # A slow machine gets on too.
                seen = done[0]
                time.sleep(draw.uniform(0, 0.012))
                kill_connections(database, tenant(backend))
            time.sleep(0.001)

    thread = threading.Thread(target=terminate)
    thread.start()
    try:
        for position in range(1, 101):
            assert append_all(backend, append_of("s", position, position)) == ["stored"]
            done[0] = position
    finally:
        ending.set()
        thread.join()
    assert list(backend.read("s")) == entries(1, 100)


def test_the_same_for_an_event_loop(postgres_store: str, database: psycopg.Connection) -> None:
    async def scenario() -> None:
        backend = AsyncPostgresBackend(killable(postgres_store))
        for position in range(1, 21):
            killing = asyncio.to_thread(kill_connections, database, backend._queries.tenant)
            call = backend.append([append_of("s", position, position)])
            (outcome,), _ = await asyncio.gather(call, killing)
            assert outcome.status == "stored"
        assert [one async for one in backend.read("s")] == entries(1, 20)
        await backend.close()

    asyncio.run(scenario())


def test_a_server_that_says_nothing_to_newcomers_is_not_waited_for_longer(
    postgres_store: str,
) -> None:
    address = f"{postgres_store}&timeout=0.5&wait=60"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        elsewhere = {"host": "127.0.0.1", "port": silent.getsockname()[1]}

        async def scenario() -> None:
            backend = AsyncPostgresBackend(address)
            backend._pool._options.update(elsewhere)
            start = time.monotonic()
            with pytest.raises(UnavailableError, match="timeout"):
                _ = [entry async for entry in backend.read("s")]
            assert time.monotonic() - start < 9, "2 s is the least; the usual is 10 s"
            await backend.close()

        backend = PostgresBackend(address)
        backend._pool._options.update(elsewhere)
        start = time.monotonic()
        with pytest.raises(UnavailableError, match="timeout"):
            list(backend.read("s"))
        assert time.monotonic() - start < 9, "2 s is the least; the usual is 10 s"
        asyncio.run(scenario())
        backend.close()


def test_one_handle_serves_one_event_loop_after_the_other(postgres_store: str) -> None:
    backend = AsyncPostgresBackend(postgres_store)
    for position in range(1, 4):
        (outcome,) = asyncio.run(_append(backend, position))
        assert outcome == "stored"
    asyncio.run(backend.close())


async def _append(backend: AsyncPostgresBackend, position: int) -> list[str]:
    return [one.status for one in await backend.append([append_of("s", position, position)])]


def test_a_lock_that_somebody_holds_is_waited_for_but_not_for_ever(
    postgres_store: str, database: psycopg.Connection
) -> None:
    backend = PostgresBackend(postgres_store)
    hasty = PostgresBackend(f"{postgres_store}&timeout=0.5&wait=60")
    append_all(backend, append_of("s", 1, 1))
    with contextlib.ExitStack() as stack:
        stack.enter_context(database.transaction())
        database.execute("select 1 from head where tenant = %s for update", (tenant(backend),))
        began = time.monotonic()
        with pytest.raises(UnavailableError, match="did not answer in time"):
            hasty.append([append_of("s", 2, 2)])
        assert 0.4 < time.monotonic() - began < 20
        assert list(backend.read("s")) == entries(1, 1), "readers do not wait"
    assert append_all(backend, append_of("s", 2, 2)) == ["stored"], (
        "whatever became of the first try"
    )
    assert list(backend.read("s")) == entries(1, 2)
    backend.close()
    hasty.close()


def interrupt_who_waits_for(url: str, holder: int) -> None:
    """Send this process a SIGINT as soon as somebody waits for a lock of a connection."""
    query = "select 1 from pg_stat_activity where %s = any(pg_blocking_pids(pid))"
    with psycopg.connect(url, autocommit=True) as connection:
        end = time.monotonic() + 60
        while not connection.execute(query, (holder,)).fetchone() and time.monotonic() < end:
            time.sleep(0.01)
    signal.raise_signal(signal.SIGINT)


def test_an_interrupted_call_leaves_the_store_usable(
    postgres_url: str, postgres_store: str, database: psycopg.Connection
) -> None:
    backend = PostgresBackend(f"{postgres_store}&timeout=90")
    append_all(backend, append_of("s", 1, 1))
    with database.transaction():
        database.execute("select 1 from head where tenant = %s for update", (tenant(backend),))
        here = database.info.backend_pid
        thread = threading.Thread(target=interrupt_who_waits_for, args=(postgres_url, here))
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - before it is there to wait
            thread.start()
            backend.append([append_of("s", 2, 2)])
        thread.join()
    assert append_all(backend, append_of("s", 2, 2)) == ["stored"]
    backend.close()


def test_what_is_stored_twice_is_compared(
    backend: PostgresBackend, database: psycopg.Connection
) -> None:
    for stream in ("cut", "orphan", "ahead", "renamed"):
        append_all(backend, append_of(stream, 1, 5))
    mine = tenant(backend)

    def where(stream: str) -> tuple[str, bytes]:
        return mine, stream.encode()

    database.execute(
        "delete from entry where position > 3 and stream = "
        "(select stream from head where tenant = %s and name = %s)",
        where("cut"),
    )
    database.execute("delete from head where tenant = %s and name = %s", where("orphan"))
    database.execute("update head set position = 3 where tenant = %s and name = %s", where("ahead"))
    database.execute("update head set name = 'x' where tenant = %s and name = %s", where("renamed"))
    for stream, reason in (
        ("cut", "missing at the end"),
        ("orphan", "no head"),
        ("ahead", "after its head"),
        ("x", "does not belong"),
    ):
        for reverse in (False, True):
            with pytest.raises(DamagedError, match=reason):
                list(backend.read(stream, reverse=reverse))
    with pytest.raises(DamagedError):
        backend.append([append_of("orphan", 2, 2)])
    with pytest.raises(DamagedError):
        backend.append([append_of("ahead", 4, 4)])
    assert append_all(backend, append_of("whole", 1, 1)) == ["stored"]


def test_a_store_compares_itself_with_its_lists(
    backend: PostgresBackend, database: psycopg.Connection, postgres_store: str
) -> None:
    appends = [append_of(f"s{number:03}", 1, 2, "l") for number in range(600)]
    append_all(backend, *appends)
    assert list(backend.check(deep=True)) == []
    mine = tenant(backend)
    for sql, name in (
        ("delete from head where tenant = %s and name = %s", "s300"),
        ("delete from label where tenant = %s and name = %s", "s301"),
        ("update label set label = 'm' where tenant = %s and name = %s", "s302"),
        ("update head set labels = 'x' where tenant = %s and name = %s", "s303"),
        ("update head set stream = 'x' where tenant = %s and name = %s", "s304"),
    ):
        database.execute(sql.encode(), (mine, name.encode()))
    found = [(problem.stream, problem.reason) for problem in backend.check()]
    lists = "the labels that it is listed under are not those of its head"
    unlisted = "entries of a stream that has no head, and so is in no list (key "
    keys = sorted(backend._queries.key(name).hex() for name in ("s300", "s304"))
    assert found == [
        ("s301", lists),
        ("s302", lists),
        ("s303", "its name or its labels cannot be read"),
        ("s304", "its name does not belong to its key"),
        ("s300", "it has labels and no head"),
        *((backend.name, f"{unlisted}{key})") for key in keys),
    ]
    other = PostgresBackend(f"{postgres_store}_other")
    assert list(other.check()) == []
    other.close()


def test_people_can_read_the_tables(backend: PostgresBackend, database: psycopg.Connection) -> None:
    append_all(backend, append_of("é 🦉", 1, 2, "ü"))
    row = database.execute(
        "select id, position, labels, changed <= now() from session where tenant = %s",
        (tenant(backend),),
    ).fetchone()
    assert row == ("é 🦉", 2, '["ü"]', True)
    texts = database.execute(
        "select convert_from(body, 'UTF8') from entry where tenant = %s order by position",
        (tenant(backend),),
    ).fetchall()
    assert texts == [(entry(1).body.decode(),), (entry(2).body.decode(),)]  # type: ignore[union-attr]
