"""Group commit: who does the work, who waits, and what each is told."""

import asyncio
import contextlib
import linecache
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import perdure
from perdure.aio.group_commit import AsyncBatcher, StallDetector
from perdure.backends.digests import digest_of
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import Append, Entry, Outcome
from perdure.core.batching import UNSPLIT_MAX, batch_size, group_by_stream
from perdure.errors import UnavailableError, UsageError
from perdure.sync.group_commit import Batcher, GroupCommitter
from tests.support import said


def append(stream: str, position: int = 1) -> Append:
    previous = digest_of(f"{stream} {position - 1}".encode()) if position > 1 else ""
    return Append(
        stream, [Entry(position, f"{stream} {position}".encode(), b"")], previous=previous
    )


class Gate(MemoryBackend):
    """A store whose first commit waits until it is told to go on; counts commits."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.batches: list[list[str]] = []
        self.threads: list[int] = []
        self.error: BaseException | None = None

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        self.batches.append([given.stream for given in appends])
        self.threads.append(threading.get_ident())
        if len(self.batches) == 1:
            self.entered.set()
            assert self.go_on.wait(30)
        elif self.error is not None:
            raise self.error
        return super().append(appends)


def started(target: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=target)
    thread.start()
    return thread


def waiting(
    gate: Gate, committer: GroupCommitter, appends: Sequence[Append]
) -> list[threading.Thread]:
    """Start a commit that waits, and let all others queue behind it."""
    first = started(lambda: committer.append(append("first")))
    assert gate.entered.wait(30)
    threads = [first]
    for number, given in enumerate(appends, 1):
        threads.append(started(lambda given=given: committer.append(given)))  # type: ignore[misc]
        while len(committer._batcher._queue) < number:
            time.sleep(0.001)
    return threads


def finish(gate: Gate, threads: list[threading.Thread]) -> None:
    gate.go_on.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_lone_caller_works_in_its_own_thread() -> None:
    gate = Gate()
    gate.go_on.set()
    assert GroupCommitter(gate).append(append("a")).status == "stored"
    assert gate.threads == [threading.get_ident()]


def test_callers_that_come_during_a_commit_share_the_next_one_in_order_of_stream() -> None:
    gate = Gate()
    committer = GroupCommitter(gate)
    threads = waiting(gate, committer, [append(name) for name in "dbca"])
    finish(gate, threads)
    assert gate.batches == [["first"], ["a", "b", "c", "d"]]


def test_a_conflict_of_one_stream_leaves_the_others_alone() -> None:
    gate = Gate()
    committer = GroupCommitter(gate)
    answers: dict[str, Outcome] = {}

    def send(name: str, given: Append) -> None:
        answers[name] = committer.append(given)

    taken = Append("a", [Entry(1, b"somebody else's", b"")])
    first = started(lambda: send("first", append("a")))
    assert gate.entered.wait(30)
    others = [
        started(lambda: send("conflict", taken)),
        started(lambda: send("gap", append("b", 1))),
    ]
    while len(committer._batcher._queue) < 2:
        time.sleep(0.001)
    finish(gate, [first, *others])
    assert {name: outcome.status for name, outcome in answers.items()} == {
        "first": "stored",
        "conflict": "conflict",
        "gap": "stored",
    }


def test_two_appends_of_one_stream_go_one_after_the_other() -> None:
    groups = group_by_stream([append("b"), append("a"), None, append("b", 2)])
    assert [[(number, given.stream) for number, given in group] for group in groups] == [
        [(1, "a"), (0, "b")],
        [(3, "b")],
    ]


def test_a_commit_that_fails_twice_gives_every_waiter_an_error_of_its_own() -> None:
    gate = Gate()
    gate.error = UnavailableError("store", "away")
    committer = GroupCommitter(gate)
    caught: list[BaseException] = []

    def send(name: str) -> None:
        try:
            committer.append(append(name))
        except UnavailableError as error:
            caught.append(error)

    first = started(lambda: committer.append(append("first")))
    assert gate.entered.wait(30)
    others = [started(lambda name=name: send(name)) for name in "abc"]  # type: ignore[misc]
    while len(committer._batcher._queue) < 3:
        time.sleep(0.001)
    finish(gate, [first, *others])
    assert [str(error) for error in caught] == [str(gate.error)] * 3
    assert len({id(error) for error in caught}) == 3
    assert gate.batches == [["first"], ["a", "b", "c"], ["a", "b", "c"]]


def test_an_unavailable_store_is_tried_twice_and_no_more() -> None:
    gate = Gate()
    gate.go_on.set()
    committer = GroupCommitter(gate)
    committer.append(append("a"))
    gate.error = UnavailableError("store", "away")
    with pytest.raises(UnavailableError):
        committer.append(append("b"))
    assert gate.batches == [["a"], ["b"], ["b"]]


def test_one_that_was_waited_for_is_tried_once() -> None:
    """Otherwise a caller waits twice as long as the store's address says."""
    gate = Gate()
    gate.go_on.set()
    committer = GroupCommitter(gate)
    committer.append(append("a"))
    gate.error = UnavailableError("store", "away")
    gate.error.retries_exhausted = True
    with pytest.raises(UnavailableError):
        committer.append(append("b"))
    assert gate.batches == [["a"], ["b"]]


def test_draining_waits_for_what_is_under_way() -> None:
    gate = Gate()
    committer = GroupCommitter(gate)
    first = started(lambda: committer.append(append("first")))
    assert gate.entered.wait(30)
    drained = threading.Event()

    def drain() -> None:
        committer.drain()
        drained.set()

    draining = started(drain)
    assert not drained.wait(0.05)
    finish(gate, [first, draining])
    assert drained.is_set()


def test_a_leader_that_is_interrupted_leaves_the_others_a_typed_error_and_the_queue_usable() -> (
    None
):
    began, go_on = threading.Event(), threading.Event()
    calls: list[list[str]] = []

    def run(items: list[str]) -> list[str]:
        calls.append(items)
        if len(calls) == 1:
            began.set()
            assert go_on.wait(30)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return [item.upper() for item in items]

    batcher: Batcher[str, str] = Batcher(run)
    answers: dict[str, object] = {}

    def submit(item: str) -> None:
        try:
            answers[item] = batcher.submit(item)
        except BaseException as error:  # noqa: BLE001 - which one it is, is what is asked
            answers[item] = type(error)

    threads = [started(lambda: submit("a"))]
    assert began.wait(30)
    for number, item in enumerate("bc", 1):
        threads.append(started(lambda item=item: submit(item)))  # type: ignore[misc]
        while len(batcher._queue) < number:
            time.sleep(0.001)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert answers == {"a": "A", "b": KeyboardInterrupt, "c": UnavailableError}
    assert batcher.submit("d") == "D"


def test_an_interrupt_at_any_line_leaves_nobody_waiting() -> None:
    """A signal handler can raise anywhere in the main thread: here, at every line in turn."""
    lines = 0
    while _survives_interrupt(lines):
        lines += 1
    assert lines > 15


def _survives_interrupt(line: int) -> bool:
    batcher: Batcher[int, int] = Batcher(lambda items: [-item for item in items])
    others = [started(lambda: [batcher.submit(n) for n in range(3)]) for _ in range(2)]
    reached = _interrupted_at(line + 1, lambda: batcher.submit(7))
    for thread in others:
        thread.join(30)
        assert not thread.is_alive(), f"line {line}"
    assert batcher.submit(8) == -8
    assert batcher._leader is None
    return reached


@pytest.mark.timeout(60)
def test_an_interrupt_of_one_that_waited_and_is_to_lead_leaves_nobody_waiting() -> None:
    lines = 0
    while _survives_interrupt_after_waiting(lines):
        lines += 1
    assert lines > 25


def _survives_interrupt_after_waiting(line: int) -> bool:
    """One is at work, the one to be interrupted comes next, and another one waits behind it."""
    began, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def run(items: list[int]) -> list[int]:
        if not began.is_set():
            began.set()
            assert go_on.wait(30)
        return [-item for item in items]

    batcher: Batcher[int, int] = Batcher(run)

    def queued(number: int) -> None:
        while len(batcher._queue) < number and not over.is_set():
            time.sleep(0.0002)

    def follow() -> None:
        with contextlib.suppress(UnavailableError):  # Whoever worked for it was interrupted.
            batcher.submit(3)

    def behind() -> None:
        queued(1)
        last = started(follow)
        queued(2)
        go_on.set()
        last.join(10)

    threads = [started(lambda: batcher.submit(1))]
    assert began.wait(30)
    threads.append(started(behind))
    reached = _interrupted_at(line + 1, lambda: batcher.submit(2))
    over.set()
    for thread in threads:
        thread.join(30)
    assert batcher._leader is None, f"line {line}"
    assert batcher.submit(4) == -4
    return reached


def _interrupted_at(nth: int, call: Callable[[], object]) -> bool:
    """Raise KeyboardInterrupt at the nth line that runs in commit.py; say if it came so far."""
    left = nth

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal left
        name = frame.f_code.co_filename
        if not name.endswith("commit.py"):
            return None
        # The interpreter lets no signal in between taking a lock by `with` and its block, nor
        # between the block and giving it back; a trace function would get in there.
        if event == "line" and not linecache.getline(name, frame.f_lineno).strip().startswith(
            "with"
        ):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return left <= 0


class Interrupting(MemoryBackend):
    """Calls something in the middle of a commit, as a signal handler is called."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers: list[Callable[[], object]] = []

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        if self.handlers:
            self.handlers.pop()()
        return super().append(appends)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["same", "other"])
def test_what_interrupts_a_write_of_its_own_thread_is_refused_and_the_write_goes_on(
    name: str,
) -> None:
    """It would wait for ever for what it keeps from ending."""
    backend = Interrupting()
    store = perdure.open(backend)
    session, other = store.session("same"), store.session(name)
    told = []

    def handler() -> None:
        with pytest.raises(UsageError, match="in a signal handler") as refused:
            other.note("interrupted")
        told.append(refused.value)

    backend.handlers = [handler]
    assert session.append(said("one")) == 1
    assert len(told) == 1
    session.append(said("two"))
    assert store.session(name).note("afterwards") == (3 if name == "same" else 1)
    session.verify()


def test_half_of_many_go_together_and_a_few_as_they_are() -> None:
    assert batch_size(63, 1) == batch_size(32, 32) == batch_size(64, 0) == 32
    assert all(batch_size(count, 0) >= count for count in range(1, UNSPLIT_MAX + 1))


def test_a_store_that_answers_too_few_leaves_no_task_waiting() -> None:
    def answer_nobody(_items: list[int], batcher: AsyncBatcher[int, int]) -> None:
        asyncio.get_running_loop().call_soon(batcher.finish, [], None)

    async def main() -> None:
        batcher: AsyncBatcher[int, int] = AsyncBatcher(answer_nobody, StallDetector())
        found = await asyncio.wait_for(
            asyncio.gather(*map(batcher.submit, range(3)), return_exceptions=True), 10
        )
        assert [type(one) for one in found] == [ValueError] * 3

    asyncio.run(main())


def test_writes_of_many_sessions_share_one_task() -> None:
    async def main() -> None:
        async with perdure.open_async(ThreadedBackend(MemoryBackend())) as store:
            sessions = [await store.session(f"s{number}") for number in range(12)]
            waiting = [asyncio.ensure_future(one.append(said("Hello"))) for one in sessions]
            await asyncio.sleep(0)
            others = asyncio.all_tasks() - {*waiting, asyncio.current_task()}
            assert len(others) == 1
            assert await asyncio.gather(*waiting) == [1] * 12

    asyncio.run(main())
