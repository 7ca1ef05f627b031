"""A stream that is damaged or locked, and sound ones of the same store and process beside it."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import quote

import apsw
import psycopg
import pytest

import perdure
from perdure.backends.files.backend import FilesBackend
from perdure.backends.files.disk import Disk, LockedFiles
from perdure.backends.files.stream_file import locate_stream
from perdure.backends.postgres.address import parse_address
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.postgres.backend_async import AsyncPostgresBackend
from perdure.backends.postgres.connection import AsyncConnection, Connection
from perdure.errors import DamagedError, PerdureError, UnavailableError
from perdure.testing.contract.samples import append_all, append_of
from tests.support import said

SOUND = [f"y{number}" for number in range(12)]
NAMES = [*SOUND[:6], "x", *SOUND[6:]]
ROUNDS = 10

Told = dict[str, list[str]]


def by_threads(
    address: str | FilesBackend, spoil: Callable[[], object], *, rounds: int = ROUNDS
) -> Told:
    """Write to sessions from a thread each, after one of them was spoilt; return what each got."""
    told: Told = {name: [] for name in NAMES}
    with contextlib.suppress(PerdureError), perdure.open(address) as store:  # Closing tells, too.
        sessions = {name: store.session(name) for name in NAMES}
        for session in sessions.values():
            session.append(said("sound"))
        spoil()

        def write(name: str) -> None:
            for _ in range(rounds):
                try:
                    sessions[name].append(said("more"))
                    told[name].append("stored")
                except PerdureError as error:
                    told[name].append(str(error))

        threads = [threading.Thread(target=write, args=[name]) for name in NAMES]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
    return told


def by_tasks(address: str, spoil: Callable[[], object], *, rounds: int = ROUNDS) -> Told:
    """The same with tasks of an event loop."""
    told: Told = {name: [] for name in NAMES}

    async def main() -> None:
        async with perdure.open_async(address) as store:
            sessions = {name: await store.session(name) for name in NAMES}
            for session in sessions.values():
                await session.append(said("sound"))
            await asyncio.to_thread(spoil)

            async def write(name: str) -> None:
                for _ in range(rounds):
                    try:
                        await sessions[name].append(said("more"))
                        told[name].append("stored")
                    except PerdureError as error:
                        told[name].append(str(error))

            await asyncio.gather(*map(write, NAMES))

    with contextlib.suppress(PerdureError):  # Closing tells, too.
        asyncio.run(main())
    return told


COLOURS = [by_threads, by_tasks]


def check(told: Told, reason: str) -> None:
    expected = ["stored"] * len(told["x"])
    assert {name: told[name] for name in SOUND} == dict.fromkeys(SOUND, expected)
    assert all(reason in text for text in told["x"]), told["x"]


@pytest.mark.parametrize("write", COLOURS)
def test_a_damaged_stream_of_a_file_fails_alone(write: Callable[..., Told], tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    def spoil() -> None:
        db = apsw.Connection(str(path))
        db.execute(
            "insert into entry (stream, position, first, header, body)"
            " select id, position + 1, position + 1, x'68', x'62' from head where name = 'x'"
        )
        db.close()

    check(write(str(path), spoil), "'x' is damaged: SQLite: UNIQUE constraint")


LOCK = "select 1 from head where name = 'x' and tenant = %s for update"


def connected(url: str, address: str) -> psycopg.Connection:
    """Connect to where the tables of a store are."""
    return psycopg.connect(url, options=f"-c search_path={parse_address(address).schema}")


def spoil_on_server(url: str, address: str) -> None:
    here = parse_address(address)
    with connected(url, address) as admin:
        admin.execute(
            "insert into entry (tenant, stream, position, first, header, body)"
            " select tenant, stream, position + 1, position + 1, 'h', 'b' from head"
            " where name = 'x' and tenant = %s",
            (here.tenant,),
        )


@pytest.mark.parametrize("write", COLOURS)
def test_a_damaged_stream_of_a_server_fails_alone(
    write: Callable[..., Told], postgres_url: str, postgres_store: str
) -> None:
    told = write(postgres_store, lambda: spoil_on_server(postgres_url, postgres_store))
    check(told, "'x' is damaged: Postgres: duplicate key")


def test_a_locked_stream_of_a_folder_fails_alone(tmp_path: Path) -> None:
    backend = FilesBackend(tmp_path, timeout=0.3)
    locks = LockedFiles(Disk())

    def lock() -> None:
        path = locate_stream(str(tmp_path), "x").path
        locks.lock(path, os.O_RDWR, timeout=0.3, store="other")

    try:
        check(by_threads(backend, lock, rounds=3), "another process holds the lock")
    finally:
        locks.close()


@pytest.mark.parametrize("write", COLOURS)
def test_a_stream_of_a_folder_that_can_not_be_written_fails_alone(
    write: Callable[..., Told], tmp_path: Path
) -> None:
    def spoil() -> None:
        path = Path(locate_stream(str(tmp_path), "x").path)
        path.unlink()
        path.mkdir()  # Root may write what others may not, but no directory.

    check(write(f"files:{tmp_path}", spoil, rounds=3), "EISDIR")


HELD_UP = {
    "&timeout=2": "the server did not answer in time",
    f"&options={quote('-c lock_timeout=500')}": "a lock was held for too long",
    f"&options={quote('-c statement_timeout=2000')}": "the server canceled the statement",
}


@pytest.mark.parametrize("words", HELD_UP)
@pytest.mark.parametrize("write", COLOURS)
def test_a_locked_stream_of_a_server_fails_alone(
    write: Callable[..., Told], words: str, postgres_url: str, postgres_store: str
) -> None:
    with connected(postgres_url, postgres_store) as holder:
        lock = partial(holder.execute, LOCK, (parse_address(postgres_store).tenant,))
        begun = time.monotonic()
        told = write(postgres_store + words, lock, rounds=2)
        took = time.monotonic() - begun
        check(told, HELD_UP[words])
        assert took < 20, "a batch, and a few times the one alone"
        query = "select count(*) from pg_stat_activity where pg_backend_pid() = any("
        query += "pg_blocking_pids(pid))"
        assert holder.execute(query).fetchone() == (0,), "nobody waits on without a caller"


def test_damage_names_the_stream_where_it_can_be_in_no_other(
    postgres_url: str, postgres_store: str
) -> None:
    backend = PostgresBackend(postgres_store)
    append_all(backend, append_of("x", 1, 1), append_of("y", 1, 1))
    spoil_on_server(postgres_url, postgres_store)
    with pytest.raises(DamagedError) as caught:
        backend.append([append_of("x", 2, 2)])
    assert caught.value.stream == "x"
    with pytest.raises(DamagedError) as caught:
        backend.append([append_of("x", 2, 2), append_of("y", 2, 2)])
    assert caught.value.stream == backend.name
    backend.close()


def refuse(*_: object, **__: object) -> None:
    raise psycopg.errors.CancellationTimeout("cancellation timeout expired")


async def refuse_async(*_: object, **__: object) -> None:
    refuse()


@pytest.mark.parametrize("case", ["locked", "hung"])
def test_a_server_that_hangs_is_told_from_a_lock(
    postgres_url: str, postgres_store: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a lock, others have a better chance. A server that hangs is waited for once by all."""
    if case == "hung":
        monkeypatch.setattr(Connection, "cancel_safe", refuse)
        monkeypatch.setattr(AsyncConnection, "cancel_safe", refuse_async)
    backend = PostgresBackend(f"{postgres_store}&timeout=0.5")
    append_all(backend, append_of("x", 1, 1))

    async def in_loop() -> None:
        other = AsyncPostgresBackend(f"{postgres_store}&timeout=0.5")
        try:
            await other.append([append_of("x", 2, 2)])
        finally:
            await other.close()

    with connected(postgres_url, postgres_store) as holder:
        holder.execute(LOCK, (parse_address(postgres_store).tenant,))
        for send in (
            lambda: backend.append([append_of("x", 2, 2)]),
            lambda: asyncio.run(in_loop()),
        ):
            with pytest.raises(UnavailableError, match="did not answer in time") as caught:
                send()
            assert caught.value.single_stream == (case == "locked")
    backend.close()
