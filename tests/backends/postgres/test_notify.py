"""Telling who waits is worth nothing against an append that is stored already."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from click.testing import CliRunner

import perdure
from perdure.backends.postgres import notify
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.postgres.backend_async import AsyncPostgresBackend
from perdure.backends.postgres.connection import AsyncConnection, Connection
from perdure.backends.watchers import Watchers
from perdure.cli.__main__ import main
from perdure.cli.doctor import trials
from perdure.errors import UnavailableError
from perdure.testing.contract.samples import append_all, append_of, entries
from tests.backends.postgres import server as postgres

# A function of this name that is found before the server's own.
INSTEAD = """create function {schema}.pg_notify(text, text) returns void language plpgsql as
$$ begin {does} end $$"""

FAILURES = {
    "the queue is full": "raise 'too many notifications in the NOTIFY queue'"
    " using errcode = 'program_limit_exceeded';",
    "the line is lost": "perform pg_terminate_backend(pg_backend_pid());",
    "no answer": "perform pg_sleep(30);",
}


# Only where there is no answer it is waited for in vain.
PATIENCE = {"no answer": "&timeout=3&wait=60"}


@pytest.fixture
def elsewhere(postgres_url: str) -> Iterator[str]:
    """The name of a schema for a function of the server's that does something else."""
    schema = postgres.new_schema()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"create schema {schema}".encode())
    yield schema
    postgres.drop_schema(postgres_url, schema)


def instead(url: str, schema: str, does: str) -> str:
    """Put a function in the place of pg_notify; return what the address needs for it."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(INSTEAD.format(schema=schema, does=does).encode())
    return f"&options={quote(f'-c search_path={schema},pg_catalog')}"


@pytest.mark.parametrize("failure", FAILURES)
def test_an_append_is_stored_whether_or_not_anybody_can_be_told(
    postgres_url: str,
    postgres_store: str,
    elsewhere: str,
    failure: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = instead(postgres_url, elsewhere, FAILURES[failure])
    backend = PostgresBackend(f"{postgres_store}{PATIENCE.get(failure, '')}{words}")
    backend._pool.run(partial(backend._operations.register_watch, stream="s", seconds=30))
    with caplog.at_level(logging.WARNING):
        assert append_all(backend, append_of("s", 1, 2), append_of("t", 1, 1)) == ["stored"] * 2
    (told,) = (record for record in caplog.records if vars(record).get("event") == "notify_failed")
    assert backend.name in told.getMessage()
    assert told.levelno == logging.WARNING
    assert append_all(backend, append_of("s", 3, 3)) == ["stored"], "and the store goes on"
    assert list(backend.read("s")) == entries(1, 3)
    backend.close()


@pytest.mark.parametrize("failure", FAILURES)
def test_the_same_for_an_event_loop(
    postgres_url: str,
    postgres_store: str,
    elsewhere: str,
    failure: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = instead(postgres_url, elsewhere, FAILURES[failure])

    async def scenario() -> None:
        backend = AsyncPostgresBackend(f"{postgres_store}{PATIENCE.get(failure, '')}{words}")
        await backend._pool.run(partial(backend._operations.register_watch, stream="s", seconds=30))
        for position in (1, 2):
            (outcome,) = await backend.append([append_of("s", position, position)])
            assert outcome.status == "stored"
        assert [one async for one in backend.read("s")] == entries(1, 2)
        await backend.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    told = [vars(record).get("event") for record in caplog.records]
    assert told.count("notify_failed") == 2


REFUSALS = {
    "unknown": psycopg.errors.SyntaxError('at or near "listen": syntax error'),
    "standby": psycopg.errors.ReadOnlySqlTransaction("cannot execute LISTEN during recovery"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_server_without_listen_is_asked_for_it_seldom(
    postgres_store: str, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is connected to once, not again and again while somebody waits."""
    begun: list[float] = []
    real = Connection.connect

    def refusing(**options: Any) -> Any:
        link = real(**options)
        if options.get("application_name") == "perdure listen":
            begun.append(time.monotonic())

            def execute(*_: object, **__: object) -> None:
                link.close()
                raise REFUSALS[refusal]

            monkeypatch.setattr(link, "execute", execute)
        return link

    monkeypatch.setattr(Connection, "connect", refusing)
    backend = PostgresBackend(postgres_store)
    assert not backend.watch("s", after=0, timeout=2.5)
    assert append_all(backend, append_of("s", 1, 1)) == ["stored"]
    assert backend.watch("s", after=0, timeout=30)
    assert len(begun) == 1
    backend.close()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def watching(store: perdure.Store, seen: list[float]) -> threading.Thread:
    """Follow a session, in a thread, and note when its records come."""
    session = store.session("s")
    session.note("begun")

    def follow() -> None:
        seen.extend(time.monotonic() for _ in session.watch())

    thread = threading.Thread(target=follow)
    thread.start()
    return thread


def test_who_is_told_looks_seldom(postgres_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    seen: list[float] = []
    backend = PostgresBackend(postgres_store)
    real = backend._pool.run

    def run(*given: Any, **named: Any) -> Any:
        asked.append(time.monotonic())
        return real(*given, **named)

    with perdure.open(backend) as store, perdure.open(postgres_store) as other:
        thread = watching(store, seen)
        wait_until(lambda: backend.watchers.server_notifies)
        time.sleep(0.5)  # It looks once more, and says that it waits.
        begun = time.monotonic()
        monkeypatch.setattr(backend._pool, "run", run)
        time.sleep(4)
        # After one second, and two more; it was four a second.
        assert sum(at < begun + 4 for at in asked) <= 3
        other.session("s").note("told")
        wait_until(lambda: bool(seen))
    thread.join()


def test_who_is_not_told_any_more_looks_again(
    postgres_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Watchers, "max_sleep", lambda self, _: 300.0 if self.server_notifies else 0.1
    )
    seen: list[float] = []
    backend = PostgresBackend(postgres_store)
    with perdure.open(backend) as store, perdure.open(postgres_store) as other:
        thread = watching(store, seen)
        wait_until(lambda: backend.watchers.server_notifies)
        time.sleep(0.5)
        other.session("s").note("told")
        wait_until(lambda: len(seen) == 1)
        backend._listener._closed = True  # Nobody listens from now on.
        wait_until(lambda: not backend.watchers.server_notifies)
        other.session("s").note("not told")
        wait_until(lambda: len(seen) == 2)
    thread.join()


def test_a_server_that_forgot_who_waits_is_told_again(
    postgres_url: str, postgres_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash empties the table in which that is written, for nothing else rests on it."""
    monkeypatch.setattr(notify, "RENEWAL_INTERVAL", 300.0)
    backend = PostgresBackend(postgres_store)
    thread = threading.Thread(target=backend.watch, args=["s"], kwargs={"after": 0})
    waits = "select 1 from watch where tenant = %s"
    listener = "select pg_terminate_backend(pid) from pg_stat_activity where"
    listener += " application_name = 'perdure listen' and query ilike %s"
    path = f"-c search_path={backend._address.schema}"
    with psycopg.connect(postgres_url, autocommit=True, options=path) as admin:
        here = (backend._address.tenant,)
        thread.start()
        wait_until(lambda: admin.execute(waits, here).fetchone() is not None)
        admin.execute("truncate watch")
        assert admin.execute(listener, (f"%{backend._queries.channel}%",)).fetchone()
        wait_until(lambda: admin.execute(waits, here).fetchone() is not None)
    assert append_all(backend, append_of("s", 1, 1)) == ["stored"]
    thread.join()
    backend.close()


@pytest.mark.parametrize("does", ["", "perform pg_sleep(30);"], ids=["forgotten", "no answer"])
def test_a_line_that_leads_nowhere_any_more_is_noticed(
    postgres_url: str,
    postgres_store: str,
    elsewhere: str,
    does: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Something in between may keep it open; who waits has to look again."""
    monkeypatch.setattr(notify, "CHECK_INTERVAL", 2.0)
    monkeypatch.setattr(Watchers, "max_sleep", lambda *_: 300.0)
    function = f"create function {elsewhere}.pg_listening_channels() returns setof text"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"{function} language plpgsql as $$ begin {does} end $$".encode())
    looked: list[float] = []
    backend = PostgresBackend(
        f"{postgres_store}&options={quote(f'-c search_path={elsewhere},pg_catalog')}"
    )
    thread = threading.Thread(target=backend.watch, args=["s"], kwargs={"after": 0})
    thread.start()
    wait_until(lambda: backend.watchers.server_notifies)
    monkeypatch.setattr(backend.watchers, "notify_all", lambda: looked.append(time.monotonic()))
    begun = time.monotonic()
    wait_until(lambda: bool(looked))
    assert looked[0] - begun < 20, "the server's answer would come after 30 s"
    assert append_all(backend, append_of("s", 1, 1)) == ["stored"]
    thread.join()
    backend.close()


def refused(*_: object, **__: object) -> Any:
    raise psycopg.OperationalError("connection failed: Connection refused")


async def refused_async(*_: object, **__: object) -> Any:
    refused()


@pytest.mark.parametrize("timeout", [0, 0.5])
def test_who_waits_for_a_while_waits_no_longer_for_a_server_that_is_away(
    postgres_store: str, timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address may have patience for minutes, and the caller for a moment."""
    address = f"{postgres_store}&timeout=60"
    backend = PostgresBackend(address)
    assert not backend.watch("s", after=0, timeout=0)

    async def in_loop() -> None:
        other = AsyncPostgresBackend(address)
        monkeypatch.setattr(AsyncConnection, "connect", refused_async)
        try:
            await other.watch("s", after=0, timeout=timeout)
        finally:
            await other.close()

    begun = time.monotonic()
    with pytest.raises(UnavailableError, match="refused"):
        asyncio.run(in_loop())
    monkeypatch.setattr(Connection, "connect", refused)
    backend._pool._close_idle()
    with pytest.raises(UnavailableError, match="refused"):
        backend.watch("s", after=0, timeout=timeout)
    assert time.monotonic() - begun < 20
    backend.close()


READS_ONLY = f"&options={quote('-c default_transaction_read_only=on')}"


def test_who_may_only_read_looks_by_itself(postgres_store: str) -> None:
    """It can not say that it waits."""
    with perdure.open(postgres_store) as store:
        store.session("s").note("begun")
        backend = PostgresBackend(f"{postgres_store}{READS_ONLY}")
        seen = []
        thread = threading.Thread(
            target=lambda: seen.append(backend.watch("s", after=1, timeout=60))
        )
        thread.start()
        wait_until(lambda: backend._listener._is_disabled)
        store.session("s").note("not told")
        begun = time.monotonic()
        thread.join()
        assert seen == [True]
        assert time.monotonic() - begun < 20
        backend.close()


def test_the_same_of_reading_in_an_event_loop(postgres_store: str) -> None:
    async def scenario() -> None:
        backend = AsyncPostgresBackend(f"{postgres_store}{READS_ONLY}")
        waiting = asyncio.create_task(backend.watch("s", after=1, timeout=60))
        while not backend._listener._is_disabled:
            await asyncio.sleep(0.01)
            assert not waiting.done()
        await asyncio.to_thread(store.session("s").note, "not told")
        assert await waiting
        await backend.close()

    with perdure.open(postgres_store) as store:
        store.session("s").note("begun")
        asyncio.run(scenario())


def test_the_doctor_says_that_nobody_is_told(
    postgres_url: str, postgres_empty: str, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "WATCHES", 1)
    monkeypatch.setattr(notify, "PROBE_TIMEOUT", 0.2)
    words = instead(postgres_url, elsewhere, "")
    runner = CliRunner(env={"PERDURE_URL": "", "COLUMNS": "80"})
    result = runner.invoke(main, ["doctor", "--appends", "2", f"{postgres_empty}{words}"])
    assert result.exit_code == 0, "it is no weakness"
    assert "a server without LISTEN" in " ".join(result.stdout.split())
