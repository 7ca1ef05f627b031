"""Signal handlers that raise, at every place of every store in turn."""

import asyncio
import contextlib
import functools
import gc
import itertools
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from perdure.backends.connection_slots import ConnectionSlots
from perdure.backends.files.backend import FilesBackend
from perdure.backends.interrupt_safety import AsyncLock, AsyncWakeSignal, Event, WakeSignal
from perdure.backends.memory import MemoryBackend
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.protocol import Backend, require_watch
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.testing.contract.samples import append_all, append_of, entries, names
from tests.backends.interrupting import interrupted

# A file that was opened and not stored anywhere yet is closed when it is collected, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

AT_ONCE = 5.0  # Seconds; a lock that is left is waited for 60 of them.


@pytest.fixture(params=["memory", "files", "sqlite", "postgres"])
def open_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Backend]:
    if request.param == "postgres":
        address = f"{request.getfixturevalue('postgres_store')}&connections=2"
        return lambda: PostgresBackend(address)
    openers: dict[str, Callable[[], Backend]] = {
        "memory": MemoryBackend,
        "files": lambda: FilesBackend(tmp_path / "store"),
        "sqlite": lambda: SqliteBackend(tmp_path / "store.db"),
    }
    return openers[request.param]


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0  # noqa: PTH208


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < AT_ONCE, "it waited for something that was left behind"


def in_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(AT_ONCE)
    assert not thread.is_alive(), "another thread hangs"


def in_backends(module: str) -> bool:
    return module.startswith("backends")


def visit(work: Callable[[int], object], then: Callable[[int], object], step: int = 1) -> int:
    """Interrupt numbered work at one place after the other, or at some; return how often."""
    for number in itertools.count(1):
        with at_once():
            run = functools.partial(work, number)
            reached = interrupted(1 + (number - 1) * step, run, in_backends)
            then(number)
        if not reached:
            return number - 1
    raise AssertionError


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_append_that_is_interrupted_anywhere_can_be_repeated_at_once(
    open_backend: Callable[[], Backend],
) -> None:
    """By the same process, and by another handle, which stands for another process."""
    before = descriptors()
    with closing(open_backend()) as backend, closing(open_backend()) as second:
        other = backend if isinstance(backend, MemoryBackend) else second
        append_all(backend, append_of("s", 1, 1))
        append_all(other, append_of("s", 2, 2))

        def append(number: int) -> None:
            assert append_all(backend, append_of("s", 2 * number + 1, 2 * number + 1)) == ["stored"]

        def check(number: int) -> None:
            first = 2 * number + 2
            assert append_all(other, append_of("s", first, first)) == ["stored"]

        count = visit(append, check)
        assert list(backend.read("s")) == entries(1, 2 * count + 4)
    assert count > 20
    assert descriptors() <= before


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_new_streams_that_are_interrupted_anywhere_are_stored_and_listed(
    open_backend: Callable[[], Backend],
) -> None:
    before = descriptors()
    with closing(open_backend()) as backend:
        append_all(backend, append_of("s", 1, 1))

        def append(number: int) -> None:
            streams = (append_of(f"{number} a", 1, 2, "label"), append_of(f"{number} b", 1, 1))
            assert append_all(backend, *streams) == ["stored", "stored"]

        count = visit(append, lambda _: None, step=5)
        every = [f"{number} {which}" for number in range(1, count + 2) for which in "ab"]
        assert names(backend) == sorted(["s", *every])
    assert count > 5
    assert descriptors() <= before


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_reads_that_are_interrupted_anywhere_leave_nothing_behind(
    open_backend: Callable[[], Backend],
) -> None:
    before = descriptors()
    with closing(open_backend()) as backend:
        append_all(backend, append_of("s", 1, 3), append_of("t", 1, 1))

        def read(_: int) -> None:
            assert list(backend.read("s")) == entries(1, 3)
            assert names(backend) == ["s", "t"]

        assert visit(read, lambda number: in_a_thread(lambda: read(number))) > 20
        append_all(backend, append_of("s", 4, 4))
    assert descriptors() <= before


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_store_whose_opening_or_closing_is_interrupted_anywhere_leaves_nothing_open(
    open_backend: Callable[[], Backend],
) -> None:
    before = descriptors()
    with closing(open_backend()) as backend:  # It keeps its log, which the others have to check.
        append_all(backend, append_of("s", 1, 1))

        def use(number: int) -> None:
            with closing(open_backend()) as other:
                assert append_all(other, append_of(f"t{number}", 1, 1)) == ["stored"]

        def check(number: int) -> None:
            assert append_all(backend, append_of(f"u{number}", 1, 1)) == ["stored"]

        assert visit(use, check, step=7) > 5
    assert descriptors() <= before


@pytest.mark.slow
@pytest.mark.parametrize("store", [FilesBackend, SqliteBackend])
def test_a_store_whose_creation_is_interrupted_anywhere_is_created_the_next_time(
    store: Callable[[Path], Backend], tmp_path: Path
) -> None:
    before = descriptors()

    def create(number: int) -> None:
        with closing(store(tmp_path / f"store{number}")) as backend:
            assert append_all(backend, append_of("s", 1, 1)) == ["stored"]

    def check(number: int) -> None:
        with closing(store(tmp_path / f"store{number}")) as backend:
            assert names(backend) == ["s"]

    assert visit(create, check, step=7) > 5
    assert descriptors() <= before


@pytest.mark.slow
def test_a_check_of_a_log_that_is_interrupted_anywhere_leaves_no_descriptor(tmp_path: Path) -> None:
    """At every place of this module; the test above visits some of each."""
    before = descriptors()
    with closing(SqliteBackend(tmp_path / "store")) as backend:  # It keeps the log.
        append_all(backend, append_of("s", 1, 1))

        def use() -> None:
            SqliteBackend(tmp_path / "store").close()

        visits = (interrupted(nth, use, lambda name: "log_check" in name) for nth in range(1, 999))
        assert sum(itertools.takewhile(bool, visits)) > 10
    assert descriptors() <= before


def test_a_cursor_that_a_traceback_keeps_does_not_block_later_writes(tmp_path: Path) -> None:
    """It keeps its snapshot, which is old after a write of another process."""
    kept = []
    with (
        closing(SqliteBackend(tmp_path / "s")) as backend,
        closing(SqliteBackend(tmp_path / "s")) as other,
    ):
        append_all(backend, append_of("s", 1, 3))

        def interrupt(db: apsw.Connection) -> None:
            kept.append(db.execute("select * from entry"))
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            backend._connections.write("s", interrupt)
        append_all(other, append_of("s", 4, 4))
        with at_once():
            assert append_all(backend, append_of("s", 5, 5)) == ["stored"]
        assert list(other.read("s")) == entries(1, 5)


@pytest.mark.slow
def test_a_listing_that_is_interrupted_anywhere_is_whole_the_next_time(tmp_path: Path) -> None:
    backend, other = FilesBackend(tmp_path), FilesBackend(tmp_path)

    def read(number: int) -> None:
        append_all(other, append_of(f"x{number:04}", 1, 1))
        assert names(backend, prefix="x", limit=1) == ["x0001"]

    count = visit(read, lambda _: None, step=7)
    assert names(backend) == [f"x{number:04}" for number in range(1, count + 2)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_waits_that_are_interrupted_anywhere_hold_up_no_other_thread(
    open_backend: Callable[[], Backend],
) -> None:
    with closing(open_backend()) as backend:
        append_all(backend, append_of("s", 1, 1))
        positions = iter(range(2, 100_000))

        def append() -> None:
            position = next(positions)
            append_all(backend, append_of("s", position, position))

        def watch(_: int) -> None:
            require_watch(backend).watch("s", after=100_000, timeout=0.001)

        assert visit(watch, lambda _: in_a_thread(append)) > 20


# The parts.


def test_a_signal_wakes_its_waiter_now_or_the_next_time() -> None:
    signal = WakeSignal()
    assert not signal.sleep(0.001)
    assert not signal.sleep(-1)
    signal.wake()
    signal.wake()
    assert signal.sleep(0)
    assert not signal.sleep(0)


def test_an_event_is_one() -> None:
    event = Event()
    assert not event.is_set()
    assert not event.wait(0.001)
    waiting = [threading.Thread(target=event.wait) for _ in range(3)]
    for thread in waiting:
        thread.start()
    event.set()
    for thread in waiting:
        thread.join(5)
        assert not thread.is_alive()
    assert event.is_set()
    assert event.wait()
    event.clear()
    assert not event.is_set()


def test_an_event_that_is_interrupted_while_it_is_waited_for_or_set_still_works() -> None:
    event = Event()
    number, reached = 0, True
    while reached:
        number += 1
        event.clear()
        reached = interrupted(number, lambda: event.wait(0.001), in_backends)
        reached |= interrupted(number, event.set, in_backends)
        with at_once():
            assert event.wait(AT_ONCE)
    assert number > 5


def test_slots_are_taken_in_turn_and_freed_once() -> None:
    slots = ConnectionSlots(2)
    first, second, third = object(), object(), object()
    assert slots.acquire(first, 0)
    assert slots.acquire(second, 0)
    assert not slots.acquire(third, 0)
    slots.free(third)  # It never had one.
    slots.free(first)
    slots.free(first)
    assert slots.acquire(third, 0)
    assert not slots.acquire(first, 0)


def test_a_slot_that_is_freed_goes_to_the_one_who_waits_longest() -> None:
    slots, holder, order = ConnectionSlots(1), object(), list[int]()
    assert slots.acquire(holder, 0)

    def use(number: int) -> None:
        ticket = object()
        assert slots.acquire(ticket, time.monotonic() + 20)
        order.append(number)
        slots.free(ticket)
        slots.wake_next()

    threads = []
    for number in range(4):
        threads.append(threading.Thread(target=use, args=(number,)))
        threads[-1].start()
        while len(slots._waiting) <= number:
            time.sleep(0.001)
    slots.free(holder)
    slots.wake_next()
    for thread in threads:
        thread.join(20)
    assert order == [0, 1, 2, 3]


def test_a_lock_is_free_again_when_the_task_that_holds_it_has_ended() -> None:
    async def main() -> None:
        lock = AsyncLock()

        async def leave_it_locked() -> None:
            await lock.__aenter__()

        async def use_it(order: list[int], number: int) -> None:
            async with lock:
                order.append(number)
                await asyncio.sleep(0)
                order.append(number)

        await asyncio.create_task(leave_it_locked())
        order: list[int] = []
        async with asyncio.timeout(AT_ONCE):
            await asyncio.gather(*(use_it(order, number) for number in range(3)))
        assert order[::2] == order[1::2]

    asyncio.run(main())


def test_a_sleep_that_was_interrupted_does_not_cancel_its_task_later() -> None:
    async def main() -> None:
        async def sleeping() -> AsyncIterator[None]:
            await AsyncWakeSignal().sleep(0.02)
            yield

        items = sleeping()
        step = items.__anext__()
        step.send(None)  # type: ignore[attr-defined] # It sleeps. Then this task is interrupted, and no longer resumes it.
        await asyncio.sleep(0.05)

    asyncio.run(main())


def test_a_sleep_ends_when_it_is_woken_and_after_its_time_and_can_be_repeated() -> None:
    async def main() -> None:
        signal = AsyncWakeSignal()
        signal.wake()
        async with asyncio.timeout(AT_ONCE):
            await signal.sleep(60)
            await signal.sleep(0.01)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await signal.sleep(60)
            await signal.sleep(0.01)

    asyncio.run(main())
