"""Group commit for threads: callers that arrive during a commit share the next one and its fsync.

In: plans of one session, or appends of many. Out: one result per item, in the caller's thread.

A lone caller works in its own thread. Of several waiting callers, the first is woken to do the work
of all (the leader); the others are woken once, with their result. Needless wake-ups would cost more
than everything else here. Two threads are woken at a time, and each wakes another one on its way
out: waking all at once would make them compete for the interpreter lock.

A commit that fails because of one stream does not fail the others: each thread then sends its own
append alone, and a stream that keeps failing is isolated until an append succeeds (`parting`).

To edit: a signal handler may raise between any two lines of `Combiner`. State that other threads
depend on is repaired in `_leave`, which must stay safe to call twice.
"""

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from perdure import waiting
from perdure.backend import STORED, Append, Backend, Outcome
from perdure.errors import UnavailableError, UsageError
from perdure.parting import Parting, for_another, is_away, sets_apart
from perdure.steps import Commit, Drop, Heads, Read, Request, Steps, Wait

Item = TypeVar("Item")
Answer = TypeVar("Answer")
T = TypeVar("T")

UNDIVIDED_MAX = 16  # items; fewer than this take less time to prepare than to store
WOKEN_AT_ONCE = 2  # threads; one computes while the next wakes up, more would only wait for it

_here = threading.local()


class _Waiter(Generic[Item, Answer]):
    __slots__ = (
        "abandoned",
        "answer",
        "combiner",
        "done",
        "error",
        "finished",
        "followers",
        "item",
        "outer",
        "wake_lock",
        "wake_next",
        "woken",
    )

    def __init__(self, item: Item, combiner: "Combiner[Item, Answer]") -> None:
        self.item = item
        self.combiner = combiner
        self.outer: _Waiter[Any, Any] | None = getattr(_here, "waiter", None)
        """The submit that this thread was already in when it called this one, if any."""
        self.answer: Answer | None = None
        self.error: BaseException | None = None
        self.done = False
        self.wake_lock: threading.Lock | None = None
        """Held until the thread is woken, to lead or to return its result."""
        self.woken = False
        self.abandoned = False
        self.finished = False
        self.followers: Sequence[_Waiter[Item, Answer]] = ()
        """The waiters whose items this one processes as the leader."""
        self.wake_next: Sequence[_Waiter[Item, Answer]] = ()
        """The waiters to wake on the way out."""

    def wake_up(self) -> None:
        """Wake the thread. Calling this twice is harmless: the thread waits only once."""
        if self.wake_lock is not None and self.wake_lock.locked():
            self.wake_lock.release()


class Combiner(Generic[Item, Answer]):
    """Processes the items of many threads together, in one of them.

    A signal handler may raise at any point in the thread that leads or waits. `_leave` completes
    what was interrupted. It is idempotent, and called twice in case it is interrupted itself.
    """

    def __init__(
        self,
        run: Callable[[list[Item]], Sequence[Answer]],
        target: "Combiner[Item, Answer] | None" = None,
    ) -> None:
        self._run = run
        self.target = target or self
        """Identifies combiners for the same target: a thread inside one may not enter another."""
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._leader: _Waiter[Item, Answer] | None = None
        self._queue: list[_Waiter[Item, Answer]] = []

    def submit(self, item: Item) -> Answer:
        """Return the result of an item once it was processed, by this thread or another."""
        if self._pid != os.getpid():
            self._reset()  # After a fork, the threads that held the lock or waited do not exist.
        waiter: _Waiter[Item, Answer] = _Waiter(item, self)
        if waiter.outer is not None:
            waiter.outer = self._require_not_nested(waiter.outer)
        try:
            try:
                _here.waiter = waiter
                self._join(waiter)
            finally:
                self._leave(waiter)
        finally:
            _here.waiter = waiter.outer
            if not waiter.finished:
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
            if outer.combiner.target is self.target:
                reason = "this thread is in the middle of a write and cannot start another one"
                raise UsageError(f"{reason}: in a signal handler, set a flag or raise")
            outer = outer.outer
        return current

    def _join(self, waiter: _Waiter[Item, Answer]) -> None:
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

    def _lead(self, own: _Waiter[Item, Answer]) -> None:
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
                waiter.error, waiter.done = for_another(error), True

    def _leave(self, waiter: _Waiter[Item, Answer]) -> None:
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
        self, answered: Sequence[_Waiter[Item, Answer]], leader: _Waiter[Item, Answer]
    ) -> None:
        with self._lock:
            waiting = [waiter for waiter in answered if not waiter.abandoned]
            for waiter in waiting:
                if not waiter.done:  # The leader was interrupted before it had this result.
                    waiter.error, waiter.done = for_another(KeyboardInterrupt()), True
            for waiter, next_waiter in zip(waiting, waiting[WOKEN_AT_ONCE:], strict=False):
                waiter.wake_next = [next_waiter]
        leader.wake_next = [*leader.wake_next[:1], *waiting[:WOKEN_AT_ONCE]]


Told = Outcome | Parting[threading.Lock]


class Committer:
    """Sends the appends of many sessions to a backend together."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._combiner: Combiner[Append | None, Told] = Combiner(self._send)
        self._isolated: dict[str, Combiner[Append | None, Told]] = {}
        """Combiners of streams whose last append failed on its own: they share no commit."""

    def append(self, append: Append) -> Outcome:
        """Return the outcome of an append; what was stored is durable."""
        result = self.combiner_for(append).submit(append)
        return self._retry_alone(append, result) if isinstance(result, Parting) else result

    def drain(self) -> None:
        """Return when everything submitted before has its result."""
        for combiner in (self._combiner, *self._isolated.copy().values()):
            combiner.submit(None)

    def combiner_for(self, append: Append) -> Combiner[Append | None, Told]:
        """Return the combiner for an append: the shared one, unless its stream is isolated."""
        isolated = self._isolated.get(append.stream) if self._isolated else None
        return self._combiner if isolated is None else isolated

    def _new_combiner(self) -> Combiner[Append | None, Told]:
        return Combiner(self._send, self._combiner)

    def _send(self, appends: list[Append | None]) -> Sequence[Told]:
        if len(appends) == 1 and appends[0] is not None:
            return self._send_one(appends[0])
        results: list[Told] = [STORED] * len(appends)
        for group in rounds(appends):
            for (number, _), result in zip(group, self._send_group(group), strict=True):
                results[number] = result
        return results

    def _send_group(self, group: list[tuple[int, Append]]) -> Sequence[Told]:
        try:
            if len(group) == 1:
                return self._send_one(group[0][1])
            return self._attempt([append for _, append in group])
        except Exception as error:
            if is_away(error):
                raise
            return [Parting(error, len(group), threading.Lock)] * len(group)

    def _retry_alone(self, append: Append, parting: Parting[threading.Lock]) -> Outcome:
        """Send an append of a failed commit again, on its own."""
        with parting.lock, parting.attempt():
            return self._new_combiner().submit(append)  # type: ignore[return-value]

    def _send_one(self, append: Append) -> Sequence[Outcome]:
        try:
            outcomes = self._attempt([append])
        except Exception as error:
            if sets_apart(error):
                self._isolated.setdefault(append.stream, self._new_combiner())
            raise
        if self._isolated:
            self._isolated.pop(append.stream, None)
        return outcomes

    def _attempt(self, batch: list[Append]) -> Sequence[Outcome]:
        try:
            return self._backend.append(batch)
        except UnavailableError as error:
            if error.was_waited_for or (error.of_one and len(batch) > 1):
                raise
            # The backend reconnects by itself, and appends are idempotent, so a retry is safe.
            try:
                return self._backend.append(batch)
            except UsageError:  # Closed meanwhile: the first attempt's outcome stays unknown.
                raise error from None


def share(queued: int, previous: int) -> int:
    """Return the size of the next batch, given the queue and the size of the previous batch.

    Half of the sum: while one half is being stored, the other half can prepare its next items. A
    few items are never split.
    """
    return max((queued + previous + 1) // 2, UNDIVIDED_MAX)


def rounds(appends: Sequence[Append | None]) -> list[list[tuple[int, Append]]]:
    """Group numbered appends so that no group has a stream twice; sort each by stream."""
    groups: list[dict[str, tuple[int, Append]]] = [{}]
    for number, append in enumerate(appends):
        if append is None:
            continue
        group = groups[0]
        if append.stream in group:  # Rare: the same session is open in two handles.
            group = next((other for other in groups if append.stream not in other), {})
            if not group:
                groups.append(group)
        group[append.stream] = (number, append)
    return [[group[stream] for stream in sorted(group)] for group in groups if group]


class Driver:
    """Runs steps: performs their requests on a blocking backend."""

    def __init__(self, backend: Backend, committer: Committer) -> None:
        self.name = backend.name
        self.handles: WeakSet[Any] = WeakSet()
        """The handles that write through this driver, so that closing can wait for them."""
        self._backend = backend
        self.committer = committer
        self.longest_wait = waiting.longest(backend)
        self.closed = False

    def end_waits(self, stream: str) -> None:
        """Cancel this process's waits on a stream: a session is being closed."""
        waiting.end(self._backend, stream)

    def run(self, steps: Steps[T]) -> T:
        """Return the result of steps; errors of the backend are raised in the step that asked."""
        try:
            request = next(steps)
            while True:
                try:
                    answer = self.answer(request)
                except BaseException as error:  # noqa: BLE001 - the steps handle or re-raise it
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def answer(self, request: Request) -> Any:
        """Perform one request and return the reply."""
        if type(request) is Commit:  # The most frequent request, so it skips the slower `match`.
            return self.committer.append(request.append)
        match request:
            case Read(stream, after, limit, reverse):
                return list(self._backend.read(stream, after=after, limit=limit, reverse=reverse))
            case Heads(prefix, after_name, labels, limit, without):
                return list(
                    self._backend.streams(
                        prefix=prefix, after=after_name, labels=labels, without=without, limit=limit
                    )
                )
            case Drop(stream, before):
                return self._backend.drop(stream, before=before)
            case Wait(stream, after, timeout):
                return waiting.wait(self._backend, stream, after=after, timeout=timeout)
