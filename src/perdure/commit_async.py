"""Many tasks, one fsync: the same as `commit`, for callers in an event loop.

A write goes on whether or not its caller still waits, so a caller that is cancelled leaves the
others, and the session, in a known state. It needs no task for that: whoever brings the answer to a
request goes on with its steps. One task serves the appends of all; after
a commit that failed for the sake of one stream, each append has one of its own (`parting`).

All that goes together is told in one event loop. Another one may follow when it has ended.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Generic
from weakref import WeakSet

from perdure import forking, waiting, waiting_async
from perdure.backend import STORED, Append, AsyncBackend, Outcome
from perdure.commit import Answer, Item, T, rounds, share
from perdure.errors import UnavailableError, UsageError
from perdure.parting import Parting, is_away, sets_apart
from perdure.steps import Commit, Drop, Heads, Read, Request, Steps, Wait
from perdure.telling_async import Teller, Waiter, tell

Ended = Callable[[Any, BaseException | None], None]
"""Takes what something came to: a result, or an error."""


Told = Outcome | Parting[asyncio.Lock]

_Waiting = tuple[Item, Waiter[Answer]]
_following = forking.lock()


class AsyncCombiner(Generic[Item, Answer]):
    """Carries out the items of many tasks together; `run` tells it by `finish` of their end."""

    def __init__(
        self,
        run: Callable[[list[Item], "AsyncCombiner[Item, Answer]"], object],
        share: Callable[[int, int], int] = lambda waiting, _: waiting,
        teller: Teller | None = None,
    ) -> None:
        self._run = run
        self._share = share
        self._teller = teller
        self._last = 0
        self._under_way: list[_Waiting[Item, Answer]] | None = None
        self._queue: list[_Waiting[Item, Answer]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self.steps: _UnderWay | None = None
        """Those that were begun last to carry out what is under way, if it is steps that do."""

    def submit(self, item: Item) -> asyncio.Future[Answer]:
        """Return a future of the answer to an item. When cancelled, it may still be carried out."""
        # A future and no coroutine: one less to make and to resume in every write.
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.enter(item, future)
        return future

    def enter(self, item: Item, waiter: Waiter[Answer]) -> None:
        """Carry out an item for somebody who waits for the answer.

        UsageError if that is done for others in another event loop, which still runs.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._follow(loop)
        self._queue.append((item, waiter))
        if self._under_way is None:
            self._start()

    def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve another event loop from here on."""
        with _following:  # Loops of two threads may come at the same time.
            before = self._loop
            if before is not None and self._is_served_by(before):
                raise UsageError("another event loop uses this store: open it once for each loop")
            self._loop, self._pid = loop, os.getpid()
        self._forsake()

    def _is_served_by(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether a loop runs, or could still tell of what is under way.

        After a fork it does so in the parent, whatever its copy in the child says.
        """
        if self._pid != os.getpid():
            return False
        telling = self._teller is not None and self._teller.is_telling
        pending = telling or self._under_way is not None
        return loop.is_running() or (pending and not loop.is_closed())

    def _forsake(self) -> None:
        """Give up what was under way in a loop that has ended: its answer can not come any more.

        Steps are told, so that their session is in doubt. Whoever else waited is gone.
        """
        untold = self._teller.forsake() if self._teller is not None else ()
        left = [*untold, *(self._under_way or ()), *self._queue]
        self._under_way, self._queue = None, []
        waiters = [self.steps, *(waiter for _, waiter in left)]
        for steps in [waiter for waiter in waiters if isinstance(waiter, _UnderWay)]:
            if not steps.done():
                steps.cancel()

    def _start(self) -> None:
        size = self._share(len(self._queue), self._last)
        batch, self._queue = self._queue[:size], self._queue[size:]
        self._last = len(batch)
        self._under_way = batch
        self._run([item for item, _ in batch], self)

    @property
    def is_left(self) -> bool:
        """Whether nobody waits any more for what is under way."""
        return all(waiter.done() for _, waiter in self._under_way or ())

    def finish(self, answers: Sequence[Answer], error: BaseException | None) -> None:
        """Tell everybody what became of what was under way, and begin with those who came since."""
        batch, self._under_way = self._under_way or [], None
        if error is None and len(answers) != len(batch):  # Or somebody would wait for ever.
            error = ValueError(f"{len(answers)} answers for {len(batch)} items")
        if isinstance(error, asyncio.CancelledError):
            # The event loop ends, perhaps. Only what somebody still waits for goes on in it.
            batch += [waiting for waiting in self._queue if _is_left(waiting[1])]
            self._queue = [waiting for waiting in self._queue if not _is_left(waiting[1])]
        try:
            if self._queue:
                self._queue = [waiting for waiting in self._queue if not waiting[1].done()]
            if self._queue:
                self._start()
        finally:
            if self._teller is None:
                tell(batch, answers, error)
            else:
                self._teller.tell(batch, answers, error)


def _is_left(waiter: Waiter[Any]) -> bool:
    return waiter.is_left if isinstance(waiter, _UnderWay) else waiter.done()


def in_task(tasks: set["asyncio.Task[Any]"], work: Coroutine[Any, Any, Any], ended: Ended) -> None:
    """Do something in a task of its own, and say what it came to.

    `tasks` holds it meanwhile: an event loop does so only weakly.
    """

    def told(task: "asyncio.Task[Any]") -> None:
        tasks.discard(task)
        if task.cancelled():
            ended((), asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            ended((), error)
        else:
            ended(task.result(), None)

    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(told)


class AsyncCommitter:
    """Sends the appends of many sessions to a backend together."""

    def __init__(self, backend: AsyncBackend) -> None:
        self._backend = backend
        self.tasks: set[asyncio.Task[Any]] = set()
        self.combiner: AsyncCombiner[Append | None, Outcome] = self._new()
        self._apart: dict[str, AsyncCombiner[Append | None, Outcome]] = {}
        """Of streams whose last append failed for their own sake: they join no others."""

    def append(self, append: Append) -> asyncio.Future[Outcome]:
        """Return what became of an append; whatever was stored is durable."""
        return self.of(append).submit(append)

    async def drain(self) -> None:
        """Return when everything that was under way has been answered."""
        for combiner in (self.combiner, *self._apart.copy().values()):
            await combiner.submit(None)

    def of(self, append: Append) -> AsyncCombiner[Append | None, Outcome]:
        """Return where an append goes: to all others, unless its stream is in trouble."""
        apart = self._apart.get(append.stream) if self._apart else None
        return self.combiner if apart is None else apart

    def _new(self) -> AsyncCombiner[Append | None, Outcome]:
        return AsyncCombiner(
            lambda appends, combiner: in_task(self.tasks, self._send(appends), combiner.finish),
            share,
            Teller(self.tasks),
        )

    async def _send(self, appends: list[Append | None]) -> Sequence[Told]:
        if len(appends) == 1 and appends[0] is not None:
            return await self._send_one(appends[0])
        answers: list[Told] = [STORED] * len(appends)
        for group in rounds(appends):
            for (number, _), told in zip(group, await self._send_group(group), strict=True):
                answers[number] = told
        return answers

    async def _send_group(self, group: list[tuple[int, Append]]) -> Sequence[Told]:
        try:
            if len(group) == 1:
                return await self._send_one(group[0][1])
            return await self._attempt([append for _, append in group])
        except Exception as error:
            if is_away(error):
                raise

            def part(parting: Parting[Any], append: Append, waiter: Waiter[Outcome]) -> None:
                sent = self._alone(append, parting)
                in_task(self.tasks, sent, partial(tell, [(append, waiter)]))

            return [Parting(error, len(group), asyncio.Lock, part)] * len(group)

    async def _alone(self, append: Append, parting: Parting[asyncio.Lock]) -> Sequence[Outcome]:
        async with parting.turn:
            with parting.alone():
                return await self._send_one(append)

    async def _send_one(self, append: Append) -> Sequence[Outcome]:
        try:
            outcomes = await self._attempt([append])
        except Exception as error:
            if sets_apart(error):
                self._apart.setdefault(append.stream, self._new())
            raise
        if self._apart:
            self._apart.pop(append.stream, None)
        return outcomes

    async def _attempt(self, batch: list[Append]) -> Sequence[Outcome]:
        try:
            return await self._backend.append(batch)
        except UnavailableError as error:
            if error.was_waited_for or (error.of_one and len(batch) > 1):
                raise
            # The backend reopens itself; appends are idempotent, so once more can do no harm.
            try:
                return await self._backend.append(batch)
            except UsageError:  # It was closed meanwhile; what became of the first try is unknown.
                raise error from None


class AsyncDriver:
    """Carries out the requests of steps on an async backend."""

    def __init__(self, backend: AsyncBackend, committer: AsyncCommitter) -> None:
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

    async def run(self, steps: Steps[T]) -> T:
        """Return what the steps return; errors of the backend reach the step that asked."""
        try:
            request = next(steps)
            while True:
                try:
                    if type(request) is Commit:  # Most are.
                        answer: Any = await self.committer.append(request.append)
                    else:
                        answer = await self.answer(request)
                except BaseException as error:  # noqa: BLE001 - the steps decide, and raise it
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def answer(self, request: Request) -> Any:
        """Carry out one request, and return the answer to it."""
        backend = self._backend
        match request:
            case Commit(append):
                return await self.committer.append(append)
            case Read(stream, after, limit, reverse):
                entries = backend.read(stream, after=after, limit=limit, reverse=reverse)
                return [entry async for entry in entries]
            case Heads(prefix, after_name, labels, limit, without):
                heads = backend.streams(
                    prefix=prefix, after=after_name, labels=labels, without=without, limit=limit
                )
                return [head async for head in heads]
            case Drop(stream, before):
                return await backend.drop(stream, before=before)
            case Wait(stream, after, timeout):
                return await waiting_async.wait(backend, stream, after=after, timeout=timeout)


def begin(driver: AsyncDriver, steps: Steps[Any], combiner: AsyncCombiner[Any, Any]) -> None:
    """Carry out steps, whoever waits for them; tell a combiner what they returned or raised."""
    combiner.steps = _UnderWay(driver, steps, combiner)
    combiner.steps.set_result(None)


class _UnderWay:
    """Steps that go on when a request of theirs is answered, in whatever brings the answer."""

    __slots__ = ("_combiner", "_driver", "_ended", "_steps")

    def __init__(
        self, driver: AsyncDriver, steps: Steps[Any], combiner: AsyncCombiner[Any, Any]
    ) -> None:
        self._driver = driver
        self._steps = steps
        self._combiner = combiner
        self._ended = False

    @property
    def is_left(self) -> bool:
        """Whether nobody waits any more for what the steps will come to."""
        return self._combiner.is_left

    def done(self) -> bool:
        return self._ended  # Nobody takes them back before.

    def cancel(self) -> None:
        self.set_exception(asyncio.CancelledError())

    def set_result(self, answer: Any, /) -> None:
        self._go_on(self._steps.send, answer)

    def set_exception(self, error: BaseException, /) -> None:
        self._go_on(self._steps.throw, error)

    def _go_on(self, go: Callable[[Any], Request], answer: Any) -> None:
        try:
            request = go(answer)
        except StopIteration as end:
            self._ended = True
            self._combiner.finish(end.value, None)
        except BaseException as error:
            self._ended = True
            self._combiner.finish((), error)
            if error is not answer and isinstance(error, KeyboardInterrupt | SystemExit):
                raise  # As a task does. What came with the answer was raised where it came from.
        else:
            self._ask(request)

    def _ask(self, request: Request) -> None:
        driver = self._driver
        if type(request) is Commit:  # Most are.
            try:
                driver.committer.of(request.append).enter(request.append, self)
            except UsageError as error:
                self.set_exception(error)
        else:
            in_task(driver.committer.tasks, driver.answer(request), self._take)

    def _take(self, answer: Any, error: BaseException | None) -> None:
        if error is None:
            self.set_result(answer)
        else:
            self.set_exception(error)
