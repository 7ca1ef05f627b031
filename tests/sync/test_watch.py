"""session.watch: records as they come, from this handle, another one, or another process."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.backends.files.backend import FilesBackend
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import Backend
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.errors import NotFoundError, UsageError
from tests.support import said


class Plain(MemoryBackend):
    """A store that can not wait by itself."""

    capabilities = frozenset[str]()
    watch = None  # type: ignore[assignment]


BACKENDS: dict[str, Callable[[Path], Backend]] = {
    "memory": lambda _: MemoryBackend(),
    "sqlite": lambda folder: SqliteBackend(folder / "agents.db"),
    "files": lambda folder: FilesBackend(folder / "agents"),
    "without watch": lambda _: Plain(),
}


@pytest.fixture(params=[*BACKENDS.values()], ids=[*BACKENDS])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[perdure.Store]:
    with perdure.open(request.param(tmp_path)) as store:
        yield store


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_records_come_as_others_write_them_and_are_taken_in(store: perdure.Store) -> None:
    session, other = store.session("s"), store.session("s")
    session.append(said("before"))
    other.refresh()

    def write() -> None:
        for text in ("one", "two"):
            time.sleep(0.05)
            other.append(said(text))
        other.note("three")

    thread = in_thread(write)
    seen = []
    for record in session.watch(timeout=60):
        seen.append((record.position, record.kind))
        assert session.position >= record.position
        if record.kind == "note":
            break
    thread.join()
    assert seen == [(2, "message"), (3, "message"), (4, "note")]
    assert len(session) == 3
    session.append(said("up to date: no conflict"))


def test_what_this_handle_writes_comes_too_and_each_record_once(store: perdure.Store) -> None:
    session = store.session("s")
    watching = session.watch(timeout=0.05)
    session.append(said("one"), said("two"))
    assert [record.position for record in watching] == [1, 2]
    session.note("three")
    assert [record.kind for record in session.watch(timeout=0)] == []


def test_whoever_stopped_watching_goes_on_where_it_was(store: perdure.Store) -> None:
    session, other = store.session("s"), store.session("s")
    for number in range(5):
        other.note(number)
    seen = next(session.watch(timeout=60)).position
    assert session.position == 5  # All of them are in the view.
    assert list(session.watch(timeout=0)) == []
    other.note(5)
    watching = session.watch(after=seen, timeout=0.05)
    assert [record.position for record in watching] == [2, 3, 4, 5, 6]
    assert list(session.watch(after=99, timeout=0)) == []


def test_before_the_first_record_there_is_nothing_and_no_damage(store: perdure.Store) -> None:
    session = store.session("s")
    assert list(session.watch(after=-1, timeout=0)) == []
    assert list(session.records(after=-1)) == []
    session.note("one")
    assert [record.position for record in session.watch(after=-1, timeout=0)] == [1]


@pytest.mark.parametrize("nonsense", ["1", 1.0, True])
def test_an_after_that_is_no_position_is_refused(store: perdure.Store, nonsense: Any) -> None:
    with pytest.raises(UsageError, match="after must be"):
        store.session("s").watch(after=nonsense)


def test_it_ends_when_nothing_came_for_so_long(store: perdure.Store) -> None:
    session = store.session("s")
    began = time.monotonic()
    assert list(session.watch(timeout=0.1)) == []
    assert 0.1 <= time.monotonic() - began < 30
    assert list(session.watch(timeout=0)) == []


@pytest.mark.parametrize("nonsense", [-1, "soon", float("nan"), True])
def test_a_timeout_that_is_none_is_refused(store: perdure.Store, nonsense: Any) -> None:
    with pytest.raises(UsageError, match="timeout must be"):
        store.session("s").watch(timeout=nonsense)


def test_it_ends_with_the_store_or_the_session(store: perdure.Store) -> None:
    session, other = store.session("s"), store.session("t")
    session.append(said("x"))
    seen: list[str] = []

    def follow(watching: Iterator[Any]) -> None:
        seen.extend(record.kind for record in watching)

    threads = [in_thread(partial(follow, one.watch())) for one in (session, other)]
    for one in (session, other):
        one.note("it has begun to wait")
    until(lambda: len(seen) == 2)
    time.sleep(0.1)
    session.close()
    threads[0].join(20)  # One call may wait for a minute.
    assert not threads[0].is_alive()
    assert threads[1].is_alive()
    store.close()
    threads[1].join(20)
    assert not threads[1].is_alive()
    assert seen == ["note"] * 2
    with pytest.raises(UsageError, match="closed"):
        next(session.watch())


def test_it_ends_if_that_happens_while_a_record_is_looked_at(store: perdure.Store) -> None:
    for name, close in (("s", perdure.Session.close), ("t", lambda _: store.close())):
        session = store.session(name)
        watching = session.watch()
        session.note("x")
        assert next(watching).kind == "note"
        close(session)
        assert list(watching) == []


def test_it_ends_after_the_record_that_deleted_the_session(store: perdure.Store) -> None:
    session = store.session("s")
    session.append(said("x"))
    watching = session.watch(timeout=60)
    store.session("s").note("y")
    assert next(watching).kind == "note"
    store.delete("s", reason="done")
    assert [record.kind for record in watching] == ["deleted"]
    with pytest.raises(NotFoundError):
        next(session.watch())


ELSEWHERE = """
import sys, time, perdure
with perdure.open(sys.argv[1]) as store:
    session = store.session("s")
    for number in range(3):
        sys.stdin.readline()
        session.note(number)
        print(time.monotonic(), flush=True)
"""


@pytest.mark.parametrize("address", ["sqlite:{}/agents.db", "files:{}/agents"])
def test_another_process_is_seen_within_a_moment(tmp_path: Path, address: str) -> None:
    where = address.format(tmp_path)
    command = [sys.executable, "-c", ELSEWHERE, where]
    with (
        perdure.open(where) as store,
        subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        late = []
        watching = store.session("s").watch(timeout=60)
        child.stdin.write("\n")
        child.stdin.flush()
        for record in watching:
            late.append(time.monotonic() - float(child.stdout.readline()))
            if record.position == 3:
                break
            time.sleep(0.05)
            child.stdin.write("\n")
            child.stdin.flush()
    assert max(late[1:]) < 30, "some hundredths of a second where nothing else runs"


def test_the_same_holds_in_an_event_loop(tmp_path: Path) -> None:
    async def scenario(backend: Backend) -> None:
        async with perdure.open_async(ThreadedBackend(backend)) as store:
            session, other = await store.session("s"), await store.session("s")
            seen: list[str] = []

            async def follow() -> None:
                async for record in session.watch():
                    seen.append(record.kind)  # noqa: PERF401 - looked at meanwhile

            task = asyncio.create_task(follow())
            await asyncio.sleep(0.02)
            await other.note("x")
            await session.append(said("y"))
            async with asyncio.timeout(60):
                while len(seen) < 2:  # noqa: ASYNC110 - a test
                    await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert seen == ["note", "message"]
            assert [record.kind async for record in session.watch(timeout=0.02)] == []
            task = asyncio.create_task(follow())
            await asyncio.sleep(0.02)
            await store.delete("s")
            async with asyncio.timeout(60):
                await task
            assert seen[2:] == ["deleted"]
            closing = await store.session("u")
            waiting = asyncio.create_task(anext(closing.watch(), None))
            await asyncio.sleep(0.02)
            await closing.close()
            async with asyncio.timeout(20):  # One call may wait for a minute.
                assert await waiting is None
            later = await store.session("t")
            waiting = asyncio.create_task(anext(later.watch(), None))
            await asyncio.sleep(0.02)
        async with asyncio.timeout(60):
            assert await waiting is None

    for number, opened in enumerate(BACKENDS.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        asyncio.run(scenario(opened(folder)))
