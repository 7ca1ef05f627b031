"""Many threads, one fsync: callers that arrive while a commit is under way share the next one.

A lone caller works in its own thread. Of those that wait, the first is woken to carry out the
work of all, the others are woken once, with their answer in hand: threads that wake each other
for nothing cost more than everything else here. Nor are all woken at the same time, to fight over
the interpreter: two are, and each of them wakes another before it goes its way.

A commit that fails for the sake of one stream does not fail the others: each thread then sends its
own append alone, and a stream that is still in trouble stays apart until it is well (`parting`).
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

UNDIVIDED_MAX = 16  # Preparing fewer than these takes less time than storing them.
WOKEN_AT_ONCE = 2  # One computes while the next one wakes up; more of them only wait for it.

_here = threading.local()


class _Waiter(Generic[Item, Answer]):
    __slots__ = (
        "answer",
        "combiner",
        "done",
        "error",
        "following",
        "gone",
        "inside",
        "item",
        "left",
        "others",
        "wake",
        "woken",
    )

    def __init__(self, item: Item, combiner: "Combiner[Item, Answer]") -> None:
        self.item = item
        self.combiner = combiner
        self.inside: _Waiter[Any, Any] | None = getattr(_here, "waiter", None)
        """That in the midst of which this thread came here."""
        self.answer: Answer | None = None
        self.error: BaseException | None = None
        self.done = False
        self.wake: threading.Lock | None = None
        """Held until its thread is to wake up: to lead, or with its answer."""
        self.woken = False
        self.left = False
        self.gone = False
        self.others: Sequence[_Waiter[Item, Answer]] = ()
        """Those whose work this one carries out."""
        self.following: Sequence[_Waiter[Item, Answer]] = ()
        """Whom to wake on the way out."""

    def rouse(self) -> None:
        """Wake its thread. Doing so twice is harmless: it waits only once."""
        if self.wake is not None and self.wake.locked():
            self.wake.release()


class Combiner(Generic[Item, Answer]):
    """Carries out the items of many threads together, in one of them.

    A signal handler may raise at any moment in the thread that leads or waits. Whatever that cuts
    short is done in `_leave`, which does nothing twice and is therefore called twice.
    """

    def __init__(
        self,
        run: Callable[[list[Item]], Sequence[Answer]],
        among: "Combiner[Item, Answer] | None" = None,
    ) -> None:
        self._run = run
        self.whole = among or self
        """Of combiners that lead to the same place, one: whoever is inside comes to none."""
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._leader: _Waiter[Item, Answer] | None = None
        self._queue: list[_Waiter[Item, Answer]] = []

    def submit(self, item: Item) -> Answer:
        """Return the answer to an item once it was carried out, by this thread or another."""
        if self._pid != os.getpid():
            self._reset()  # The threads that held the lock or waited stayed behind in the parent.
        waiter: _Waiter[Item, Answer] = _Waiter(item, self)
        if waiter.inside is not None:
            waiter.inside = self._outside(waiter.inside)
        try:
            try:
                _here.waiter = waiter
                self._take_part(waiter)
            finally:
                self._leave(waiter)
        finally:
            _here.waiter = waiter.inside
            if not waiter.gone:
                self._leave(waiter)
        if waiter.error is not None:
            raise waiter.error
        return waiter.answer  # type: ignore[return-value]

    def _outside(self, inside: _Waiter[Any, Any] | None) -> _Waiter[Any, Any] | None:
        """Return what this thread is in the midst of; refuse to wait for it to end."""
        while inside is not None and inside.gone:  # An interrupt left it behind.
            inside = inside.inside
        outer = inside
        while outer is not None:
            if outer.combiner.whole is self.whole:
                reason = "this thread is in the middle of a write, and what interrupted it can not"
                raise UsageError(f"{reason} write: in a signal handler set a flag, or raise")
            outer = outer.inside
        return inside

    def _take_part(self, waiter: _Waiter[Item, Answer]) -> None:
        with self._lock:
            if self._leader is None:
                self._leader = waiter
            else:
                waiter.wake = threading.Lock()
                waiter.wake.acquire()
                self._queue.append(waiter)
        if waiter.wake is not None:
            waiter.wake.acquire()
            waiter.woken = True
        if self._leader is waiter:
            self._lead(waiter)

    def _lead(self, own: _Waiter[Item, Answer]) -> None:
        if self._queue:
            with self._lock:
                others = [waiter for waiter in self._queue if waiter is not own]
                # Both or neither: who is answered and still queued would lead after it has gone.
                own.others, self._queue = others, []
        try:
            if not own.others:
                (own.answer,) = self._run([own.item])
                return
            batch = [own, *own.others]
            answers = self._run([waiter.item for waiter in batch])
            for waiter, answer in zip(batch, answers, strict=True):
                waiter.answer, waiter.done = answer, True
        except BaseException as error:  # noqa: BLE001 - raised in every thread that waits
            own.error = error
            for waiter in own.others:
                waiter.error, waiter.done = for_another(error), True

    def _leave(self, waiter: _Waiter[Item, Answer]) -> None:
        """Leave nobody waiting for this thread."""
        if waiter.wake is not None and not waiter.woken:
            with self._lock:
                waiter.left = True
                self._queue = [other for other in self._queue if other is not waiter]
        if self._leader is waiter:
            with self._lock:
                if self._queue:  # An interrupt may have come before it led: it is in there still.
                    self._queue = [other for other in self._queue if other is not waiter]
                if self._queue:
                    waiter.following = [self._queue[0]]
                self._leader = self._queue[0] if self._queue else None
        if waiter.others:
            self._answer(waiter.others, waiter)
        for following in waiter.following:
            following.rouse()
        waiter.gone = True

    def _answer(
        self, answered: Sequence[_Waiter[Item, Answer]], leader: _Waiter[Item, Answer]
    ) -> None:
        with self._lock:
            waiting = [waiter for waiter in answered if not waiter.left]
            for waiter in waiting:
                if not waiter.done:
                    waiter.error, waiter.done = for_another(KeyboardInterrupt()), True
            for waiter, following in zip(waiting, waiting[WOKEN_AT_ONCE:], strict=False):
                waiter.following = [following]
        leader.following = [*leader.following[:1], *waiting[:WOKEN_AT_ONCE]]


Told = Outcome | Parting[threading.Lock]


class Committer:
    """Sends the appends of many sessions to a backend together."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._combiner: Combiner[Append | None, Told] = Combiner(self._send)
        self._apart: dict[str, Combiner[Append | None, Told]] = {}
        """Of streams whose last append failed for their own sake: they join no others."""

    def append(self, append: Append) -> Outcome:
        """Return what became of an append; whatever was stored is durable."""
        told = self.of(append).submit(append)
        return self._alone(append, told) if isinstance(told, Parting) else told

    def drain(self) -> None:
        """Return when everything that was under way has been answered."""
        for combiner in (self._combiner, *self._apart.copy().values()):
            combiner.submit(None)

    def of(self, append: Append) -> Combiner[Append | None, Told]:
        """Return where an append goes: to all others, unless its stream is in trouble."""
        apart = self._apart.get(append.stream) if self._apart else None
        return self._combiner if apart is None else apart

    def _new(self) -> Combiner[Append | None, Told]:
        return Combiner(self._send, self._combiner)

    def _send(self, appends: list[Append | None]) -> Sequence[Told]:
        if len(appends) == 1 and appends[0] is not None:
            return self._send_one(appends[0])
        answers: list[Told] = [STORED] * len(appends)
        for group in rounds(appends):
            for (number, _), told in zip(group, self._send_group(group), strict=True):
                answers[number] = told
        return answers

    def _send_group(self, group: list[tuple[int, Append]]) -> Sequence[Told]:
        try:
            if len(group) == 1:
                return self._send_one(group[0][1])
            return self._attempt([append for _, append in group])
        except Exception as error:
            if is_away(error):
                raise
            return [Parting(error, len(group), threading.Lock)] * len(group)

    def _alone(self, append: Append, parting: Parting[threading.Lock]) -> Outcome:
        with parting.turn, parting.alone():
            return self._new().submit(append)  # type: ignore[return-value]

    def _send_one(self, append: Append) -> Sequence[Outcome]:
        try:
            outcomes = self._attempt([append])
        except Exception as error:
            if sets_apart(error):
                self._apart.setdefault(append.stream, self._new())
            raise
        if self._apart:
            self._apart.pop(append.stream, None)
        return outcomes

    def _attempt(self, batch: list[Append]) -> Sequence[Outcome]:
        try:
            return self._backend.append(batch)
        except UnavailableError as error:
            if error.was_waited_for or (error.of_one and len(batch) > 1):
                raise
            # The backend reopens itself; appends are idempotent, so once more can do no harm.
            try:
                return self._backend.append(batch)
            except UsageError:  # It was closed meanwhile; what became of the first try is unknown.
                raise error from None


def share(waiting: int, before: int) -> int:
    """Return how many of those who wait go together, when `before` have just been answered.

    Half of both: while one half is being stored, the other half can prepare what comes next. A few
    go together as they are.
    """
    return max((waiting + before + 1) // 2, UNDIVIDED_MAX)


def rounds(appends: Sequence[Append | None]) -> list[list[tuple[int, Append]]]:
    """Return numbered appends in groups that name each stream once, in order of stream."""
    groups: list[dict[str, tuple[int, Append]]] = [{}]
    for number, append in enumerate(appends):
        if append is None:
            continue
        group = groups[0]
        if append.stream in group:  # Its session was opened twice; that is seldom.
            group = next((other for other in groups if append.stream not in other), {})
            if not group:
                groups.append(group)
        group[append.stream] = (number, append)
    return [[group[stream] for stream in sorted(group)] for group in groups if group]


class Driver:
    """Carries out the requests of steps on a blocking backend."""

    def __init__(self, backend: Backend, committer: Committer) -> None:
        self.name = backend.name
        self.handles: WeakSet[Any] = WeakSet()
        """Those that write through this driver, so that closing can wait for them."""
        self._backend = backend
        self.committer = committer
        self.longest_wait = waiting.longest(backend)
        self.closed = False

    def end_waits(self, stream: str) -> None:
        """Have nobody wait any longer for a stream: a session is being closed."""
        waiting.end(self._backend, stream)

    def run(self, steps: Steps[T]) -> T:
        """Return what the steps return; errors of the backend reach the step that asked."""
        try:
            request = next(steps)
            while True:
                try:
                    answer = self.answer(request)
                except BaseException as error:  # noqa: BLE001 - the steps decide, and raise it
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def answer(self, request: Request) -> Any:
        """Carry out one request, and return the answer to it."""
        if type(request) is Commit:  # Most are, and matching takes its time.
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
