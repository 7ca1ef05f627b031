"""Offload makes a blocking store usable in an event loop, without losing order."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from perdure.backends import offload
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import PAGE_ITEMS, RESEND_FIRST, ThreadedBackend, _Call
from perdure.backends.protocol import Append, AsyncBackend, Entry, Outcome
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.errors import DamagedError
from perdure.testing import AsyncBackendContract, Slow
from perdure.testing.contract.samples import append_of, entries


class TestOffloadedSqlite(AsyncBackendContract):
    @pytest.fixture
    def open_backend(self, tmp_path: Path) -> Callable[[], AsyncBackend]:
        return lambda: ThreadedBackend(SqliteBackend(tmp_path / "store.db"))


class TestOffloadedMemory(AsyncBackendContract):
    @pytest.fixture
    def open_backend(self) -> Callable[[], AsyncBackend]:
        return lambda: ThreadedBackend(MemoryBackend())


class Gate(MemoryBackend):
    """Stores nothing until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        self.entered.set()
        assert self.go_on.wait(60)
        return super().append(appends)


class Watched(MemoryBackend):
    """Remembers which threads worked."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[str] = set()

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        self.threads.add(threading.current_thread().name)
        return super().append(appends)


async def read(backend: AsyncBackend, stream: str) -> list[Entry]:
    return [one async for one in backend.read(stream)]


def workers() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name.startswith("perdure ")}


def test_one_thread_does_all_the_work_and_close_ends_it() -> None:
    inner, others = Watched(), workers()  # What other tests forgot may end at any time.

    async def scenario() -> None:
        backend = ThreadedBackend(inner)
        streams = [str(number) for number in range(50)]
        await asyncio.gather(*(backend.append([append_of(name, 1, 1)]) for name in streams))
        assert len(workers() - others) == 1
        await backend.close()
        assert workers() <= others

    asyncio.run(scenario())
    assert len(inner.threads) == 1
    assert threading.current_thread().name not in inner.threads


def test_it_forwards_what_the_store_declares() -> None:
    inner = MemoryBackend()
    backend = ThreadedBackend(inner)
    assert backend.name == inner.name
    assert backend.capabilities == inner.capabilities
    assert backend.guarantees == inner.guarantees


def test_a_cancelled_append_is_done_before_the_next_call() -> None:
    complaints: list[object] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
        gate = Gate()
        backend = ThreadedBackend(gate)
        task = asyncio.ensure_future(backend.append([append_of("s", 1, 2)]))
        while not gate.entered.is_set():  # noqa: ASYNC110 - it is set in another thread
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        reading = asyncio.ensure_future(read(backend, "s"))
        await asyncio.sleep(0.01)
        assert not reading.done()
        gate.go_on.set()
        assert await reading == entries(1, 2)
        await backend.close()

    asyncio.run(scenario())
    assert complaints == []


def test_the_event_loop_goes_on_while_the_store_is_busy() -> None:
    async def scenario() -> None:
        gate = Gate()
        backend = ThreadedBackend(gate)
        task = asyncio.ensure_future(backend.append([append_of("s", 1, 1)]))
        while not gate.entered.is_set():  # noqa: ASYNC110 - it is set in another thread
            await asyncio.sleep(0.001)
        for _ in range(5):
            await asyncio.sleep(0.001)
            assert not task.done()
        gate.go_on.set()
        assert [outcome.status for outcome in await task] == ["stored"]
        await backend.close()

    asyncio.run(scenario())


def test_the_thread_has_begun_with_many_appends_before_the_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or it would have to wait until the loop has nothing to do."""
    monkeypatch.setattr(offload, "START_TIMEOUT", 60.0)

    async def scenario() -> None:
        gate = Gate()
        gate.go_on.set()
        backend = ThreadedBackend(gate)
        await backend.append([append_of("s", 1, 1)])
        gate.go_on.clear()
        call = backend.append([append_of(f"s{n}", 1, 1) for n in range(offload.BUSY_APPENDS)])
        future = call.send(None)  # Up to where it waits; the loop did nothing meanwhile.
        assert backend._worker is not None
        assert backend._worker.busy
        gate.go_on.set()
        assert await asyncio.wait_for(future, 60)
        await backend.close()

    asyncio.run(scenario())


def test_a_busy_thread_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "START_TIMEOUT", 30.0)

    async def scenario() -> None:
        backend = ThreadedBackend(Slow(MemoryBackend(), 0.1))
        many = [
            [append_of(f"{turn}-{n}", 1, 1) for n in range(offload.BUSY_APPENDS)]
            for turn in range(3)
        ]
        tasks = [asyncio.ensure_future(backend.append(appends)) for appends in many]
        await asyncio.sleep(0)  # The first has begun, the others wait in line; so did nobody here.
        assert not any(task.done() for task in tasks)
        assert len(await asyncio.gather(*tasks)) == len(many)
        await backend.close()

    asyncio.run(scenario())


def test_close_waits_for_what_is_under_way() -> None:
    inner = MemoryBackend()

    async def scenario() -> None:
        backend = ThreadedBackend(Slow(inner, 0.1))
        task = asyncio.ensure_future(backend.append([append_of("s", 1, 1)]))
        await asyncio.sleep(0)
        await backend.close()
        assert [outcome.status for outcome in await task] == ["stored"]

    asyncio.run(scenario())


class Breaking(MemoryBackend):
    """Breaks in the middle of a page."""

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        limit: int | None = None,
        reverse: bool = False,
        max_body: int | None = None,
    ) -> Iterator[Entry]:
        yield from entries(1, PAGE_ITEMS + 3)
        raise DamagedError(stream, PAGE_ITEMS + 4, "made to break")


def test_entries_before_an_error_are_not_lost_with_it() -> None:
    async def scenario() -> None:
        backend = ThreadedBackend(Breaking())
        found = []
        with pytest.raises(DamagedError, match="made to break"):  # noqa: PT012 - a loop is one.
            async for one in backend.read("s"):
                found.append(one)  # noqa: PERF401 - a comprehension would lose them.
        assert found == entries(1, PAGE_ITEMS + 3)
        await backend.close()

    asyncio.run(scenario())


def test_one_handle_serves_several_event_loops() -> None:
    backend = ThreadedBackend(MemoryBackend())
    asyncio.run(_append_only(backend, 1))
    asyncio.run(_append_only(backend, 2))

    async def scenario() -> None:
        assert await read(backend, "s") == entries(1, 2)
        await backend.close()

    asyncio.run(scenario())


async def _append_only(backend: AsyncBackend, position: int) -> None:
    (outcome,) = await backend.append([append_of("s", position, position)])
    assert outcome.status == "stored"


def test_work_that_outlives_its_event_loop_does_not_stop_the_thread() -> None:
    backend = ThreadedBackend(Slow(MemoryBackend(), 0.1))

    async def abandon() -> None:
        task = asyncio.ensure_future(backend.append([append_of("s", 1, 1)]))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(abandon())

    async def scenario() -> None:
        assert await read(backend, "s") == entries(1, 1)
        await backend.close()

    asyncio.run(scenario())


FORKING = """
import asyncio, os, warnings
from perdure.backends.offload import ThreadedBackend
from perdure.backends.sqlite import SqliteBackend
from perdure.testing.contract.samples import append_of
warnings.simplefilter("ignore", DeprecationWarning)
backend = ThreadedBackend(SqliteBackend({path!r}))

async def store(name):
    await backend.append([append_of(name, 1, 1)])

asyncio.run(store("s"))
child = os.fork()
asyncio.run(store("parent" if child else "child"))
asyncio.run(backend.close())
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can not fork")
def test_a_forked_child_gets_a_thread_of_its_own(tmp_path: Path) -> None:
    program = FORKING.format(path=str(tmp_path / "store.db"))
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    backend = SqliteBackend(tmp_path / "store.db")
    assert [head.stream for head in backend.streams()] == ["child", "parent", "s"]
    backend.close()


def test_a_forgotten_handle_leaves_no_thread() -> None:
    others = workers()

    async def scenario() -> None:
        await ThreadedBackend(MemoryBackend()).append([append_of("s", 1, 1)])

    asyncio.run(scenario())
    deadline = time.monotonic() + 60
    while not workers() <= others and time.monotonic() < deadline:
        time.sleep(0.01)
    assert workers() <= others


def test_importing_it_does_not_import_asyncio() -> None:
    program = "import sys, perdure.backends.offload; sys.exit('asyncio' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_loops_in_several_threads_that_make_the_first_call_share_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = Watched()
    backend = ThreadedBackend(inner)
    many = 4
    together = threading.Barrier(many)
    begin = offload._Worker.__init__

    def slowly(self: offload._Worker, owner: ThreadedBackend) -> None:
        time.sleep(0.05)  # As if the machine were busy: all of them are here by now.
        begin(self, owner)

    async def write(number: int) -> None:
        together.wait()
        await backend.append([append_of(f"s{number}", 1, 1)])

    monkeypatch.setattr(offload._Worker, "__init__", slowly)
    loops = [threading.Thread(target=asyncio.run, args=(write(n),)) for n in range(many)]
    before = len(workers())
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    assert len(workers()) == before + 1
    assert len([*inner.streams()]) == many
    asyncio.run(backend.close())


def test_work_that_nobody_waits_for_is_told_of_when_it_fails_and_the_thread_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Failing(MemoryBackend):
        def read(self, stream: str, **_: object) -> Iterator[Entry]:
            try:
                yield from entries(1, PAGE_ITEMS + 1)
            finally:
                raise OSError(stream)

    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", told.append)

    async def scenario() -> None:
        backend = ThreadedBackend(Failing())
        async for _ in backend.read("s"):
            break
        async with asyncio.timeout(10):
            assert (await backend.append([append_of("s", 1, 1)]))[0].status == "stored"
            await backend.close()

    asyncio.run(scenario())
    assert [(one.exc_type, str(one.exc_value)) for one in told] == [(OSError, "s")]


def test_a_close_that_was_interrupted_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ThreadedBackend(Watched())
    before = workers()

    async def main() -> None:
        await backend.append([append_of("s", 1, 1)])
        with monkeypatch.context() as patch:
            patch.setattr(backend.watchers, "notify_all", lambda: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await backend.close()
        await backend.close()
        await backend.close()

    asyncio.run(main())
    assert workers() <= before


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals of POSIX")
def test_a_result_arrives_though_a_signal_interrupts_the_wait_to_send_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A handler raised as the loop called `_finish`; a second signal reaches the worker thread."""
    before, interval = workers(), sys.getswitchinterval()
    finish, interrupted = _Call._finish, list[float]()
    is_interrupted = asyncio.Event()

    def interrupt(call: _Call) -> None:
        if interrupted:
            return finish(call)
        interrupted.append(time.monotonic())
        is_interrupted.set()
        raise TimeoutError

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        backend = ThreadedBackend(MemoryBackend())
        await backend.append([append_of("s", 1, 1)])
        monkeypatch.setattr(_Call, "_finish", interrupt)
        append = asyncio.create_task(backend.append([append_of("s", 2, 2)]))
        await is_interrupted.wait()
        (worker,) = workers() - before
        time.sleep(interrupted[0] + 0.9 * RESEND_FIRST - time.monotonic())  # noqa: ASYNC251
        # The worker wakes up before the end of its wait, and continues after it.
        sys.setswitchinterval(10)
        signal.pthread_kill(worker.ident or 0, signal.SIGUSR1)
        while time.monotonic() < interrupted[0] + 1.5 * RESEND_FIRST:
            pass
        sys.setswitchinterval(interval)
        async with asyncio.timeout(10):
            assert (await append)[0].status == "stored"
            await backend.close()

    handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        asyncio.run(main())
    finally:
        signal.signal(signal.SIGUSR1, handler)
        sys.setswitchinterval(interval)
