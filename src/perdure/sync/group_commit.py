"""Group commit for threads: callers that arrive during a commit share the next one and its fsync.

In: plans of one session, or appends of many. Out: one result per item, in the caller's thread.

A lone caller works in its own thread, on a short path through `submit`. Of several waiting callers,
the first is woken to do the work of all (the leader); the others are woken once, with their result.
Needless wake-ups would cost more than everything else here. Two threads are woken at a time, and
each wakes another one on its way out: waking all at once would make them compete for the
interpreter lock.

A commit that fails because of one stream does not fail the others: each thread then sends its own
append alone, and a stream that keeps failing is isolated until an append succeeds
(`core.batching`).

To edit: a signal handler may raise between any two lines of `Batcher`. State that other threads
depend on is repaired in `_leave`, which must stay safe to call again.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from perdure.backends.protocol import STORED, Append, Backend, Outcome, require_atomic
from perdure.core.batching import (
    ItemT,
    ResultT,
    RetryAlone,
    copy_for_waiter,
    group_by_stream,
    is_store_down,
    isolates_stream,
    require_retriable,
)
from perdure.core.plans import Plan
from perdure.core.replica import Replica
from perdure.core.writes import write_steps
from perdure.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from perdure.sync.driver import Driver

WAKE_CONCURRENCY = 2  # threads; one computes while the next wakes up, more would only wait for it


_thread_state = threading.local()


class _Waiter(msgspec.Struct, Generic[ItemT, ResultT], eq=False):
    # A `Struct` is created in a third of the time: an append makes two of them.
    item: ItemT
    batcher: "Batcher[ItemT, ResultT]"
    outer: "_Waiter[Any, Any] | None"
    """The submit that this thread was already in when it called this one, if any."""
    answer: ResultT | None = None
    error: BaseException | None = None
    done: bool = False
    wake_lock: "threading.Lock | None" = None
    """Held until the thread is woken, to lead or to return its result."""
    woken: bool = False
    abandoned: bool = False
    finished: bool = False
    followers: "Sequence[_Waiter[ItemT, ResultT]]" = ()
    """The waiters whose items this one processes as the leader."""
    wake_next: "Sequence[_Waiter[ItemT, ResultT]]" = ()
    """The waiters to wake on the way out."""

    def wake_up(self) -> None:
        """Wake the thread. Calling this twice is harmless: the thread waits only once."""
        if self.wake_lock is not None and self.wake_lock.locked():
            self.wake_lock.release()


class Batcher(Generic[ItemT, ResultT]):
    """Processes the items of many threads together, in one of them.

    A signal handler may raise at any point in the thread that leads or waits. `_leave` completes
    what was interrupted. It is idempotent, and called again if it is interrupted itself.
    """

    def __init__(
        self,
        run: Callable[[list[ItemT]], Sequence[ResultT]],
        target: "Batcher[ItemT, ResultT] | None" = None,
        run_alone: Callable[[ItemT], ResultT] | None = None,
    ) -> None:
        self._run = run
        self._run_alone = run_alone or (lambda item: run([item])[0])
        self.target = target or self
        """Identifies batchers for the same target: a thread inside one may not enter another."""
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._leader: _Waiter[ItemT, ResultT] | None = None
        self._queue: list[_Waiter[ItemT, ResultT]] = []

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight or queued."""
        return self._leader is None and not self._queue

    def submit(self, item: ItemT) -> ResultT:
        """Return the result of an item once it was processed, by this thread or another."""
        if self._pid != os.getpid():
            self._reset()  # After a fork, the threads that held the lock or waited do not exist.
        waiter: _Waiter[ItemT, ResultT] = _Waiter(
            item, self, getattr(_thread_state, "waiter", None)
        )
        if waiter.outer is not None:
            waiter.outer = self._require_not_nested(waiter.outer)
        is_alone = False
        try:
            try:
                _thread_state.waiter = waiter
                with self._lock:
                    is_alone = self._leader is None and not self._queue
                    if is_alone:
                        self._leader = waiter
                if is_alone:
                    # The short path: no other thread writes, so there are no items to add. Threads
                    # that arrive from now on see a leader and queue; `_leave` hands over to them.
                    waiter.answer = self._run_alone(item)
                else:
                    self._join(waiter)
            finally:
                if is_alone:  # As `_leave` does, if no thread has queued meanwhile.
                    with self._lock:
                        if self._leader is waiter and not self._queue:
                            self._leader, waiter.finished = None, True
                if not waiter.finished:
                    self._leave(waiter)
        finally:
            _thread_state.waiter = waiter.outer
            while not waiter.finished:  # Interrupted, and an error is on its way to the caller.
                with contextlib.suppress(BaseException):
                    self._leave(waiter)
        if waiter.error is not None:
            raise waiter.error
        return waiter.answer  # type: ignore[return-value]

    def _require_not_nested(self, current: _Waiter[Any, Any] | None) -> _Waiter[Any, Any] | None:
        """Return the submit this thread is in; UsageError if waiting for it would deadlock."""
        while current is not None and current.finished:  # An interrupt left it behind.
            current = current.outer
        outer = current
        while outer is not None:
            if outer.batcher.target is self.target:
                reason = "this thread is in the middle of a write and cannot start another one"
                raise UsageError(f"{reason}: in a signal handler, set a flag or raise")
            outer = outer.outer
        return current

    def _join(self, waiter: _Waiter[ItemT, ResultT]) -> None:
        with self._lock:
            if self._leader is None:
                self._leader = waiter
            else:
                waiter.wake_lock = threading.Lock()
                waiter.wake_lock.acquire()
                self._queue.append(waiter)
        if waiter.wake_lock is not None:
            waiter.wake_lock.acquire()
            waiter.woken = True
        if self._leader is waiter:
            self._lead(waiter)

    def _lead(self, own: _Waiter[ItemT, ResultT]) -> None:
        if self._queue:
            with self._lock:
                others = [waiter for waiter in self._queue if waiter is not own]
                # One statement: a waiter that has a result but is still queued would be made the
                # leader after it has returned.
                own.followers, self._queue = others, []
        try:
            if not own.followers:
                (own.answer,) = self._run([own.item])
                return
            batch = [own, *own.followers]
            answers = self._run([waiter.item for waiter in batch])
            for waiter, answer in zip(batch, answers, strict=True):
                waiter.answer, waiter.done = answer, True
        except BaseException as error:  # noqa: BLE001 - re-raised in every waiting thread
            own.error = error
            for waiter in own.followers:
                waiter.error, waiter.done = copy_for_waiter(error), True

    def _leave(self, waiter: _Waiter[ItemT, ResultT]) -> None:
        """Make sure that no other thread keeps waiting for this one: hand over, deliver, wake."""
        if waiter.wake_lock is not None and not waiter.woken:
            with self._lock:
                waiter.abandoned = True
                self._queue = [other for other in self._queue if other is not waiter]
        if self._leader is waiter:
            with self._lock:
                if self._queue:  # An interrupt before `_lead` leaves this waiter queued.
                    self._queue = [other for other in self._queue if other is not waiter]
                if self._queue:
                    waiter.wake_next = [self._queue[0]]
                self._leader = self._queue[0] if self._queue else None
        if waiter.followers:
            self._answer(waiter.followers, waiter)
        for next_waiter in waiter.wake_next:
            next_waiter.wake_up()
        waiter.finished = True

    def _answer(
        self, answered: Sequence[_Waiter[ItemT, ResultT]], leader: _Waiter[ItemT, ResultT]
    ) -> None:
        with self._lock:
            waiting = [waiter for waiter in answered if not waiter.abandoned]
            for waiter in waiting:
                if not waiter.done:  # The leader was interrupted before it had this result.
                    waiter.error, waiter.done = copy_for_waiter(KeyboardInterrupt()), True
            for waiter, next_waiter in zip(waiting, waiting[WAKE_CONCURRENCY:], strict=False):
                waiter.wake_next = [next_waiter]
        leader.wake_next = [*leader.wake_next[:1], *waiting[:WAKE_CONCURRENCY]]


CommitResult = Outcome | RetryAlone[threading.Lock]


class GroupCommitter:
    """Sends the appends of many sessions to a backend together."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._batcher: Batcher[Append | None, CommitResult] = Batcher(
            self._send, run_alone=self._send_alone
        )
        self._isolated: dict[str, Batcher[Append | None, CommitResult]] = {}
        """Batchers of streams whose last append failed on its own: they share no commit."""

    def append(self, append: Append) -> Outcome:
        """Return the outcome of an append; what was stored is durable."""
        result = self.batcher_for(append).submit(append)
        return self._retry_alone(append, result) if isinstance(result, RetryAlone) else result

    def append_together(self, appends: Sequence[Append]) -> Outcome:
        """Store appends of several streams, all or none, in a commit of their own."""
        backend = require_atomic(self._backend)
        try:
            return backend.append_together(appends)
        except UnavailableError as error:
            require_retriable(error, appends)
            return backend.append_together(appends)

    def drain(self) -> None:
        """Return when everything submitted before has its result."""
        for batcher in (self._batcher, *self._isolated.copy().values()):
            batcher.submit(None)

    def batcher_for(self, append: Append) -> Batcher[Append | None, CommitResult]:
        """Return the batcher for an append: the shared one, unless its stream is isolated."""
        isolated = self._isolated.get(append.stream) if self._isolated else None
        return self._batcher if isolated is None else isolated

    def _new_batcher(self) -> Batcher[Append | None, CommitResult]:
        return Batcher(self._send, self._batcher, self._send_alone)

    def _send(self, appends: list[Append | None]) -> Sequence[CommitResult]:
        if len(appends) == 1:
            return [self._send_alone(appends[0])]
        results: list[CommitResult] = [STORED] * len(appends)
        for group in group_by_stream(appends):
            for (number, _), result in zip(group, self._send_group(group), strict=True):
                results[number] = result
        return results

    def _send_group(self, group: list[tuple[int, Append]]) -> Sequence[CommitResult]:
        try:
            if len(group) == 1:
                return [self._send_alone(group[0][1])]
            return self._append([append for _, append in group])
        except Exception as error:
            if is_store_down(error):
                raise
            return [RetryAlone(error, len(group), threading.Lock)] * len(group)

    def _retry_alone(self, append: Append, failed: RetryAlone[threading.Lock]) -> Outcome:
        """Send an append of a failed commit again, on its own."""
        with failed.lock, failed.attempt():
            return self._new_batcher().submit(append)  # type: ignore[return-value]

    def _send_alone(self, append: Append | None) -> Outcome:
        """Send one append that shares its commit with no other. None only waits for its turn."""
        if append is None:
            return STORED
        try:
            (outcome,) = self._append([append])
        except Exception as error:
            if isolates_stream(error):
                self._isolated.setdefault(append.stream, self._new_batcher())
            raise
        if self._isolated:
            self._isolated.pop(append.stream, None)
        return outcome

    def _append(self, batch: list[Append]) -> Sequence[Outcome]:
        """Append a batch; repeat it once if it failed, unless that is pointless."""
        try:
            return self._backend.append(batch)
        except UnavailableError as error:
            require_retriable(error, batch)
            try:
                return self._backend.append(batch)
            except UsageError:  # Closed meanwhile: the first attempt's outcome stays unknown.
                raise error from None


def plan_batcher(driver: "Driver", replica: Replica) -> Batcher[Plan[Any], Any]:
    """Return the batcher of a session's writes."""
    return Batcher(
        lambda plans: driver.run(write_steps(replica, plans)),
        run_alone=lambda plan: driver.run(write_steps(replica, [plan]))[0],
    )
