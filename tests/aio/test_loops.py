"""Event loops that end, or are interrupted, while writes are under way."""

import asyncio
import contextlib
import gc
import os
import signal
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.aio import result_dispatch
from perdure.aio.group_commit import AsyncBatcher, StallDetector, StepRunner
from perdure.aio.result_dispatch import DISPATCH_MAX, ResultDispatcher
from perdure.aio.session import AsyncSession
from perdure.aio.store import AsyncStore
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend, _Call
from perdure.backends.protocol import Append, Outcome
from perdure.core.state import values
from tests.support import said


class Slow(ThreadedBackend):
    """Takes its time for each commit, once it is told to; what is in `errors` it raises."""

    def __init__(self) -> None:
        super().__init__(MemoryBackend())
        self.pause = 0.0
        self.errors: list[BaseException] = []

    async def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        if self.pause:
            await asyncio.sleep(self.pause)
        if self.errors:
            raise self.errors.pop(0)
        return await super().append(appends)


async def opened(store: AsyncStore, count: int) -> list[AsyncSession]:
    sessions = [await store.session(f"s{number}") for number in range(count)]
    for session in sessions:
        await session.append(said("first"))
    return sessions


async def at_most(seconds: float, work: Coroutine[Any, Any, Any]) -> Any:
    async with asyncio.timeout(seconds):
        return await work


def test_a_store_outlives_a_loop_that_ended_with_writes_under_way() -> None:
    """One write was under way and one waited when the application failed."""
    backend = Slow()
    store = perdure.open_async(backend)
    sessions: list[AsyncSession] = []
    writes: list[asyncio.Task[int]] = []

    async def failing() -> None:
        sessions.extend(await opened(store, 2))
        backend.pause = 0.05
        for session in sessions:
            writes.append(asyncio.create_task(session.append(said("cut"))))
            await asyncio.sleep(0.01)
        raise RuntimeError("the application fails")

    async def going_on() -> None:
        for session in reversed(sessions):
            await at_most(60, session.append(said("after")))
            assert [message["content"] for message in await session.messages()][-1] == "after"
        await at_most(60, store.close())

    with pytest.raises(RuntimeError, match="application"):
        asyncio.run(failing())
    backend.pause = 0.0
    asyncio.run(going_on())


@pytest.mark.parametrize("seed", range(6))
def test_turns_come_to_their_ends_when_a_loop_is_cancelled(seed: int) -> None:
    """Leaving a turn writes to the store while `asyncio.run` cancels whatever is there."""
    backend = Slow()
    store = perdure.open_async(backend)
    sessions: list[AsyncSession] = []
    inside: list[AsyncSession] = []

    async def turning(session: AsyncSession) -> None:
        async with session.turn("Hello"):
            inside.append(session)
            await asyncio.sleep(300)

    async def writing(session: AsyncSession) -> None:
        while True:
            await session.append(said("more"))

    async def failing() -> None:
        sessions.extend(await opened(store, 4))
        backend.pause = 0.002
        work = [turning, writing] * 2
        tasks = [asyncio.create_task(do(one)) for do, one in zip(work, sessions, strict=True)]
        while len(inside) < 2:  # noqa: ASYNC110 - a test
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01 + seed * 0.0007)
        assert not any(task.done() for task in tasks)
        raise RuntimeError("the application fails")

    async def looking() -> None:
        for session in sessions:
            await at_most(60, session.refresh())
            kinds = [record.kind async for record in session.records()]
            assert kinds.count("turn.begun") == kinds.count("turn.failed")
        assert sum([len(session.interrupted) for session in sessions]) == 0
        await at_most(60, store.close())

    async def watched() -> None:
        await asyncio.to_thread(_run_failing, failing)

    asyncio.run(at_most(60, watched()))
    backend.pause = 0.0
    asyncio.run(looking())


def _run_failing(failing: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with pytest.raises(RuntimeError, match="application"):
        asyncio.run(failing())


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_an_interrupt_of_one_commit_leaves_no_session_waiting(
    interrupt: type[BaseException],
) -> None:
    backend = Slow()
    store = perdure.open_async(backend)
    loop = asyncio.new_event_loop()
    sessions = loop.run_until_complete(opened(store, 6))
    backend.pause, backend.errors = 0.02, [interrupt()]

    async def writing() -> None:
        first = [asyncio.create_task(one.append(said("cut"))) for one in sessions[:4]]
        await asyncio.sleep(0.01)
        rest = [asyncio.create_task(one.append(said("waits"))) for one in sessions[2:]]
        await asyncio.wait([*first, *rest])

    async def going_on() -> list[int]:
        return [await at_most(60, session.append(said("after"))) for session in sessions]

    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        loop.run_until_complete(at_most(60, writing()))
    for _ in range(len(sessions)):  # Each task that is told of it raises it.
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            loop.run_until_complete(asyncio.sleep(0.02))
    assert len(loop.run_until_complete(going_on())) == len(sessions)
    for session in sessions:
        texts = [message["content"] for message in loop.run_until_complete(session.messages())]
        assert len(texts) == len({*texts})
    loop.run_until_complete(store.close())
    loop.close()


def test_what_a_closed_loop_left_under_way_is_freed() -> None:
    def left_behind() -> list[weakref.ref[object]]:
        store, loop = perdure.open_async(Slow()), asyncio.new_event_loop()
        (session,) = loop.run_until_complete(opened(store, 1))
        store._backend.pause = 60  # type: ignore[attr-defined]
        write = loop.create_task(session.append(said("cut")))
        loop.run_until_complete(asyncio.sleep(0.01))
        assert not write.done()
        write._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
        return [weakref.ref(session), weakref.ref(session._replica), weakref.ref(store)]

    found = left_behind()
    gc.collect()
    assert [one() for one in found] == [None] * 3


def _left_in_a_closed_loop(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Begin something in a loop that is closed before it has ended, and without being cancelled."""
    loop = asyncio.new_event_loop()

    task = loop.create_task(work())
    loop.run_until_complete(asyncio.sleep(0.01))
    assert not task.done()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()


@pytest.mark.parametrize("others", [False, True])
def test_what_is_under_way_in_a_closed_loop_does_not_block_the_next(*, others: bool) -> None:
    """It is in doubt, and settled by the session's next write."""
    backend = Slow()
    store = perdure.open_async(backend)
    first, second = asyncio.run(opened(store, 2))
    backend.pause = 0.05

    async def write() -> None:
        await asyncio.gather(first.append(said("cut")), second.append(said("cut")))

    _left_in_a_closed_loop(write)
    backend.pause = 0.0
    if others:  # The store alone is held up, not yet the session.
        third = asyncio.run(at_most(5, store.session("third")))
        asyncio.run(at_most(5, third.append(said("more"))))
    asyncio.run(at_most(5, first.append(said("more"))))
    assert asyncio.run(second.append(said("more"))) == 3
    assert [message["content"] for message in asyncio.run(first.messages())] == [
        "first",
        "cut",
        "more",
    ]
    asyncio.run(store.close())


def test_a_store_refuses_a_loop_while_another_one_uses_it() -> None:
    """Neither could be told by the other's thread, and both would wait for ever."""
    store = perdure.open_async("memory:")

    async def elsewhere() -> None:
        session = await store.session("b")
        await at_most(5, session.append(said("elsewhere")))

    async def main() -> None:
        session = await store.session("a")
        await session.append(said("one"))
        with pytest.raises(perdure.UsageError, match="another event loop uses this store"):
            await asyncio.to_thread(asyncio.run, elsewhere())
        await session.append(said("two"))

    asyncio.run(main())
    asyncio.run(elsewhere())  # The other one has ended.
    asyncio.run(store.close())


def test_watching_in_another_loop_is_refused_and_does_not_just_end() -> None:
    store = perdure.open_async("memory:")
    began = threading.Event()

    async def elsewhere(session: AsyncSession) -> None:
        async for _ in session.watch(after=0, timeout=20):
            began.set()

    async def main() -> None:
        session = await store.session("a")
        await session.append(said("one"))
        watching = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere(session)))
        await asyncio.to_thread(began.wait, 20)
        await (await store.session("a")).append(said("two"))  # Not taken in by the other handle.
        with pytest.raises(perdure.UsageError, match="another event loop uses this store"):
            await watching
        await store.close()

    asyncio.run(main())


def test_closing_does_not_wait_for_what_a_loop_that_was_closed_had_begun() -> None:
    store = perdure.open_async("memory:")
    loop = asyncio.new_event_loop()
    (session,) = loop.run_until_complete(opened(store, 1))

    async def begins() -> "asyncio.Task[None]":
        return session._handle.background.start(asyncio.sleep, 300)

    task = loop.run_until_complete(begins())
    assert not task.done()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    asyncio.run(at_most(20, store.close()))


def test_closing_gives_a_lease_back_that_was_taken_in_a_loop_that_was_closed() -> None:
    backend = Slow()
    store = perdure.open_async(backend)
    loop = asyncio.new_event_loop()
    (session,) = loop.run_until_complete(opened(store, 1))
    lease = session.lease()
    loop.run_until_complete(lease.__aenter__())
    assert lease._renewing.task is not None
    lease._renewing.task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()

    async def look() -> list[str]:
        await at_most(20, session.close())
        return [head.id async for head in store.sessions(labels=["leased"])]

    assert asyncio.run(look()) == []
    asyncio.run(store.close())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("writes", [0, 3])
def test_a_child_of_a_fork_goes_on_in_a_loop_of_its_own(tmp_path: Path, writes: int) -> None:
    """Also if the parent forked, out of a loop that runs, with writes under way."""

    async def child(store: AsyncStore, session: AsyncSession) -> None:
        await (await store.session("child")).append(said("of its own"))
        await session.refresh()
        await session.append(said("child"))

    async def parent() -> list[str]:
        async with perdure.open_async(tmp_path / "store.db") as store:
            session = await store.session("shared")
            await session.append(said("first"))
            tasks = [asyncio.create_task(session.append(said("more"))) for _ in range(writes)]
            await asyncio.sleep(0)
            told, telling = os.pipe()
            forked = os.fork()
            if forked == 0:
                signal.alarm(20)  # A child that hangs must not outlive the test.
                try:
                    os.read(told, 1)
                    asyncio.run(child(store, session))
                finally:
                    os._exit(0)
            await asyncio.gather(*tasks)
            os.write(telling, b".")
            await asyncio.to_thread(os.waitpid, forked, 0)
            os.close(told)
            os.close(telling)
            await session.refresh()
            return [message["content"] for message in await session.messages()]

    assert asyncio.run(parent()) == ["first", *["more"] * writes, "child"]


def test_a_commit_of_many_sessions_leaves_others_their_turn() -> None:
    """Rounds of the loop are counted by a task that ticks; time is not."""
    rounds, answered = 0, Counter[int]()

    async def ticking() -> None:
        nonlocal rounds
        while True:
            await asyncio.sleep(0)
            rounds += 1

    async def writing(session: AsyncSession) -> None:
        await session.append(said("many"))
        answered[rounds] += 1

    async def main() -> None:
        async with perdure.open_async(ThreadedBackend(MemoryBackend())) as store:
            sessions = [await store.session(f"s{number}") for number in range(6 * DISPATCH_MAX)]
            ticks = asyncio.create_task(ticking())
            await asyncio.gather(*map(writing, sessions))
            ticks.cancel()

    asyncio.run(main())
    assert answered.total() == 6 * DISPATCH_MAX
    # The end of one commit and the beginning of the next may be told in one round.
    assert max(answered.values()) <= 2 * DISPATCH_MAX


class Told:
    """Remembers what it was told; interrupts if it is to."""

    def __init__(self, number: int, told: list[object], *, interrupts: bool = False) -> None:
        self.number, self.told, self.interrupts = number, told, interrupts
        self.is_told = False

    def done(self) -> bool:
        return self.is_told

    def cancel(self) -> None:
        self.told.append(("cancelled", self.number))

    def set_result(self, answer: object, /) -> None:
        self.told.append(answer)
        self.is_told = True
        if self.interrupts:
            raise KeyboardInterrupt

    def set_exception(self, error: BaseException, /) -> None:
        self.told.append((type(error), self.number))


def test_commits_are_told_in_order_and_the_rest_when_the_loop_ends() -> None:
    told: list[object] = []
    many, few = 3 * DISPATCH_MAX + 1, 2

    async def main() -> None:
        teller = ResultDispatcher(sliced=True)
        teller.add([(None, Told(n, told)) for n in range(many)], range(many), None)
        teller.dispatch()
        await asyncio.sleep(0)
        assert told == [*range(DISPATCH_MAX)]
        teller.add([(None, Told(n, told)) for n in range(few)], range(many, many + few), None)
        teller.dispatch()
        assert told == [*range(DISPATCH_MAX)]

    asyncio.run(main())
    assert told == [*range(many + few)]


def test_many_are_told_though_the_task_that_tells_them_was_cancelled_before_it_began() -> None:
    told: list[object] = []
    many = 3 * DISPATCH_MAX

    async def main() -> None:
        teller = ResultDispatcher(sliced=True)
        teller.add([(None, Told(n, told)) for n in range(many)], range(many), None)
        teller.dispatch()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    asyncio.run(main())
    assert told == [*range(many)]


def test_an_interrupt_while_many_are_told_leaves_nobody_out() -> None:
    told: list[object] = []
    many = 4 * DISPATCH_MAX
    loop = asyncio.new_event_loop()
    interrupting = {1, DISPATCH_MAX + 1, 3 * DISPATCH_MAX}

    async def main() -> None:
        waiting = [(None, Told(n, told, interrupts=n in interrupting)) for n in range(many)]
        teller.add(waiting, range(many), None)
        teller.dispatch()
        await asyncio.sleep(0.01)

    teller = ResultDispatcher(sliced=True)
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(main())
    assert told == [*range(many)]
    loop.run_until_complete(asyncio.sleep(0))
    assert not teller.is_busy
    loop.close()


def test_many_sessions_go_on_after_a_loop_that_ended_while_they_were_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(result_dispatch, "DISPATCH_MAX", 8)
    backend = Slow()
    store = perdure.open_async(backend)
    sessions: list[AsyncSession] = []
    writes: list[asyncio.Task[int]] = []

    async def failing() -> None:
        sessions.extend(await opened(store, 100))  # Half of them are in one commit.
        backend.pause = 0.01
        writes.extend([asyncio.create_task(one.append(said("cut"))) for one in sessions])
        while sum(one.done() for one in writes) < 8:  # noqa: ASYNC110 - round by round
            await asyncio.sleep(0)
        raise RuntimeError("the application fails")

    async def going_on() -> None:
        for session in sessions:
            await at_most(60, session.append(said("after")))
            texts = [message["content"] for message in await session.messages()]
            assert texts in (["first", "cut", "after"], ["first", "after"])
        await at_most(10, store.close())

    with pytest.raises(RuntimeError, match="application"):
        asyncio.run(failing())
    backend.pause = 0.0
    asyncio.run(going_on())


def test_a_loop_that_was_closed_while_many_were_told_does_not_block_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(result_dispatch, "DISPATCH_MAX", 8)
    store = perdure.open_async(Slow())
    sessions = asyncio.run(opened(store, 100))
    loop = asyncio.new_event_loop()
    writes = [loop.create_task(session.append(said("cut"))) for session in sessions]
    while sum(one.done() for one in writes) < 8:
        loop.run_until_complete(asyncio.sleep(0))
    left = [one for one in writes if not one.done()]
    assert left
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()

    async def going_on() -> None:
        for session in sessions:
            await at_most(60, session.append(said("after")))
            texts = [message["content"] for message in await session.messages()]
            assert texts in (["first", "cut", "after"], ["first", "after"])
        await at_most(60, store.close())

    asyncio.run(going_on())


class TimeLimit(Exception):  # noqa: N818 - as Celery's SoftTimeLimitExceeded
    """Raised by a signal handler."""


STEPS_OF_A_WRITE = [
    (AsyncBatcher, "enqueue"),
    (AsyncBatcher, "_start"),
    (AsyncBatcher, "on_done"),
    (AsyncBatcher, "finish"),
    (ResultDispatcher, "add"),
    (ResultDispatcher, "dispatch"),
    (StepRunner, "set_result"),
    (StepRunner, "_resume"),
    (StepRunner, "_perform"),
    (StepRunner, "_on_done"),
    (StallDetector, "_check"),
    (_Call, "_finish"),
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("owner", "name"), STEPS_OF_A_WRITE, ids=[f"{o.__name__}.{n}" for o, n in STEPS_OF_A_WRITE]
)
def test_an_interrupt_at_any_step_of_a_write_leaves_no_task_waiting(
    owner: type, name: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same loop, which goes on: callbacks that fail are only logged."""
    method, numbers = getattr(owner, name), iter(range(1_000_000))
    interrupts: set[int] = set()

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        number = next(numbers)
        if number in interrupts and when == "before":
            raise TimeLimit
        result = method(*args, **kwargs)
        if number in interrupts:
            raise TimeLimit
        return result

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        store = perdure.open_async(ThreadedBackend(MemoryBackend()))
        sessions = await opened(store, 3)
        one = await store.session("s0")  # So that there are conflicts, and reads between writes.
        monkeypatch.setattr(owner, name, interrupted)
        acknowledged: set[str] = set()

        async def append(session: AsyncSession, text: str) -> None:
            with contextlib.suppress(TimeLimit, perdure.errors.PerdureError):
                await session.append(said(text), id=text)
                if session.id == "s0":
                    acknowledged.add(text)

        for number in range(8):
            interrupts.add(next(numbers) + 1 + number)
            writes = [append(each, f"{number} {each.id}") for each in (*sessions, one)]
            async with asyncio.timeout(20):
                await asyncio.gather(*writes, append(one, f"{number} more"))
        interrupts.clear()
        for session in sessions:
            await at_most(20, session.note("after"))  # Writes of before may come in between.
        texts = [message["content"] for message in await sessions[0].messages()]
        assert len(texts) == len({*texts})
        assert acknowledged <= {*texts}
        assert acknowledged
        await at_most(20, store.close())

    asyncio.run(main())


async def test_the_delta_of_a_long_document_is_not_made_in_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []
    make = values.make_delta

    def noted(old: bytes, new: bytes) -> Any:
        threads.append(threading.get_ident())
        return make(old, new)

    monkeypatch.setattr(values, "make_delta", noted)
    rows = [{"number": number, "name": f"row {number}"} for number in range(10_000)]
    async with perdure.open_async("memory:") as store:
        session = await store.session("s")
        for document in (rows, rows[:100]):
            await session.set("document", document)
            changed = [*document[:-1], {"number": -1}]
            await session.set("document", changed)
            assert await session.get("document") == changed
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [False, True, True]
