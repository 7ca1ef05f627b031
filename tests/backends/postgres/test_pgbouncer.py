"""A store behind a real PgBouncer, which gives each transaction another connection."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

import perdure
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.postgres.backend_async import AsyncPostgresBackend
from perdure.errors import UnavailableError
from perdure.testing.contract.samples import append_all, append_of, entries
from tests.backends.postgres import server as postgres
from tests.backends.postgres.pgbouncer import PROGRAM, pooling
from tests.backends.postgres.server_keeper import running

pytestmark = pytest.mark.skipif(
    PROGRAM is None and not os.environ.get("CI"),  # There it has to be, and its tests fail without.
    reason="this machine has no pgbouncer: scripts/programs.py installs it",
)

TRANSACTIONS = "pool_mode = transaction"


@pytest.fixture(scope="module")
def pooler(postgres_url: str) -> Iterator[str]:
    """The address of a pooler that has fewer connections than it has clients."""
    changing = ("server_lifetime = 1", "server_round_robin = 1")
    with pooling(postgres_url, TRANSACTIONS, "default_pool_size = 3", *changing) as url:
        yield url


@pytest.fixture
def address(pooler: str, postgres_schema: str) -> str:
    return postgres.address(pooler, schema=postgres_schema, tenant=postgres.new_schema())


def test_many_writers_share_few_connections(address: str) -> None:
    backends = [PostgresBackend(address) for _ in range(5)]
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for position in range(1, 31):
                both = (f"s{number}", f"t{number}")
                more = [append_of(name, position, position, f"l{position % 3}") for name in both]
                assert append_all(backends[number], *more) == ["stored", "stored"]
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [head.position for head in backends[0].streams(labels=["l0"])] == [30] * 10
    assert [*backends[0].read("s4")] == entries(1, 30)
    for backend in backends:
        assert all(link.prepare_threshold is None for link in backend._pool._idle)
        assert "through a pooler" in str(backend.guarantees.checks)
        backend.close()


def test_so_does_an_event_loop(address: str) -> None:
    async def scene() -> None:
        backend = AsyncPostgresBackend(address)
        for position in range(1, 11):
            await backend.append([append_of("s", position, position)])
        assert [entry async for entry in backend.read("s")] == entries(1, 10)
        assert all(link.prepare_threshold is None for link in backend._pool._idle)
        await backend.close()

    asyncio.run(scene())


def test_who_waits_is_woken_by_looking(address: str) -> None:
    """LISTEN leads nowhere here."""
    waiting, writing = PostgresBackend(address), PostgresBackend(address)
    timer = threading.Timer(0.5, append_all, (writing, append_of("s", 1, 1)))
    timer.start()
    start = time.monotonic()
    assert waiting.watch("s", after=0, timeout=60)
    assert time.monotonic() - start < 40
    timer.join()
    waiting.close()
    writing.close()


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        (lambda url: url.replace("@", "x@"), "check the user and the password"),
        (lambda url: url.replace("/postgres?", "/nowhere?"), "the pooler does not know the data"),
        (lambda url: f"{url}&options=-cgeqo%3Doff&wait=20", "ignore_startup_parameters"),
    ],
)
def test_what_a_pooler_refuses_is_said_at_once(
    address: str, change: Callable[[str], str], hint: str
) -> None:
    start = time.monotonic()
    with pytest.raises(UnavailableError, match=hint):
        PostgresBackend(change(address))
    assert time.monotonic() - start < 18


def test_a_pooler_without_a_free_connection_says_so(postgres_store: str, postgres_url: str) -> None:
    words = f"?{postgres_store.partition('?')[2]}"
    with pooling(postgres_url, TRANSACTIONS, "default_pool_size = 1") as url:
        backend = PostgresBackend(f"{url}{words}")
        hasty = PostgresBackend(f"{url}{words}&timeout=0.5&wait=60")
        assert append_all(backend, append_of("s", 1, 1)) == ["stored"]
        with psycopg.connect(url) as other:
            other.execute("select 1")  # A transaction that nobody ends.
            with pytest.raises(UnavailableError, match=r"check the load and the locks .* pooler"):
                hasty.append([append_of("s", 2, 2)])
        assert append_all(backend, append_of("s", 2, 2)) == ["stored"], "and it goes on"
        backend.close()
        hasty.close()
    with (
        pooling(postgres_url, TRANSACTIONS, "max_client_conn = 1") as url,
        psycopg.connect(url),
        pytest.raises(UnavailableError, match="raise its max_client_conn"),
    ):
        PostgresBackend(f"{url}{words}&timeout=0.5")


def test_one_that_allows_no_transactions_is_good_for_all_but_making_tables(
    postgres_store: str, postgres_url: str
) -> None:
    PostgresBackend(postgres_store).close()
    with pooling(postgres_url, "pool_mode = statement") as url:
        backend = PostgresBackend(f"{url}?{postgres_store.partition('?')[2]}")
        assert (
            append_all(backend, append_of("s", 1, 2, "l"), append_of("t", 1, 1)) == ["stored"] * 2
        )
        assert [*backend.read("s")] == entries(1, 2)
        backend.close()
        with pytest.raises(UnavailableError, match=r"perdure migrate .* server itself"):
            PostgresBackend(f"{url}?schema={postgres.new_schema()}")


def test_a_session_goes_on_when_the_server_behind_the_pooler_is_back() -> None:
    with (
        running() as server,
        pooling(server.url, TRANSACTIONS) as url,
        perdure.open(f"{url}?timeout=3&wait=60") as store,
    ):
        session = store.session("s")
        session.append({"role": "user", "content": "one"})
        server.stop(signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(UnavailableError):
            session.append({"role": "user", "content": "two"}, id="two")
        assert time.monotonic() - start < 25
        server.start()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:  # The pooler has a patience of its own.
            try:
                session.append({"role": "user", "content": "two"}, id="two")
                break
            except UnavailableError:
                time.sleep(0.2)
        assert [message["content"] for message in session.messages()] == ["one", "two"]
        session.verify()
