"""Many tasks, one fsync: the same as `commit`, for callers in an event loop.

The work goes on in a task of its own, so a caller that is cancelled leaves the others, and the
session, in a known state.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Generic
from weakref import WeakSet

from perdure import waiting_async
from perdure.backend import STORED, Append, AsyncBackend, Outcome
from perdure.commit import Answer, Item, T, rounds, share
from perdure.errors import UnavailableError, UsageError
from perdure.steps import Commit, Drop, Heads, Read, Request, Steps, Wait

_Waiting = tuple[Item, asyncio.Future[Answer]]


class AsyncCombiner(Generic[Item, Answer]):
    """Carries out the items of many tasks together."""

    def __init__(
        self,
        run: Callable[[list[Item]], Coroutine[Any, Any, Sequence[Answer]]],
        share: Callable[[int, int], int] = lambda waiting, _: waiting,
    ) -> None:
        self._run = run
        self._share = share
        self._last = 0
        self._task: asyncio.Task[Sequence[Answer]] | None = None
        self._queue: list[_Waiting[Item, Answer]] = []

    def submit(self, item: Item) -> asyncio.Future[Answer]:
        """Return a future of the answer to an item. When cancelled, it may still be carried out."""
        # A future and no coroutine: one less to make and to resume in every write.
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queue.append((item, future))
        if self._task is None:
            self._start()
        return future

    def _start(self) -> None:
        size = self._share(len(self._queue), self._last)
        batch, self._queue = self._queue[:size], self._queue[size:]
        self._last = len(batch)
        task = asyncio.create_task(self._run([item for item, _ in batch]))  # noqa: RUF006 - it is kept
        self._task = task
        task.add_done_callback(partial(self._finish, batch))

    def _finish(
        self, batch: list[_Waiting[Item, Answer]], task: asyncio.Task[Sequence[Answer]]
    ) -> None:
        self._task = None
        self._queue = [waiting for waiting in self._queue if not waiting[1].done()]
        if self._queue and not task.cancelled():
            self._start()
        if task.cancelled():
            for _, future in batch:
                future.cancel()
            return
        error = task.exception()
        answers = task.result() if error is None else ()
        if error is None and len(answers) != len(batch):  # Or somebody would wait for ever.
            error = ValueError(f"{len(answers)} answers for {len(batch)} items")
        if error is not None:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)


class AsyncCommitter:
    """Sends the appends of many sessions to a backend together."""

    def __init__(self, backend: AsyncBackend) -> None:
        self._backend = backend
        self._combiner: AsyncCombiner[Append | None, Outcome] = AsyncCombiner(self._send, share)

    def append(self, append: Append) -> asyncio.Future[Outcome]:
        """Return what became of an append; whatever was stored is durable."""
        return self._combiner.submit(append)

    async def drain(self) -> None:
        """Return when everything that was under way has been answered."""
        await self._combiner.submit(None)

    async def _send(self, appends: list[Append | None]) -> Sequence[Outcome]:
        if len(appends) == 1 and appends[0] is not None:
            return await self._attempt([appends[0]])
        outcomes: list[Outcome] = [STORED] * len(appends)
        for group in rounds(appends):
            answers = await self._attempt([append for _, append in group])
            for (number, _), outcome in zip(group, answers, strict=True):
                outcomes[number] = outcome
        return outcomes

    async def _attempt(self, batch: list[Append]) -> Sequence[Outcome]:
        try:
            return await self._backend.append(batch)
        except UnavailableError as error:
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
        self._committer = committer

    async def run(self, steps: Steps[T]) -> T:
        """Return what the steps return; errors of the backend reach the step that asked."""
        try:
            request = next(steps)
            while True:
                try:
                    if type(request) is Commit:  # Most are.
                        answer: Any = await self._committer.append(request.append)
                    else:
                        answer = await self._answer(request)
                except BaseException as error:  # noqa: BLE001 - the steps decide, and raise it
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def _answer(self, request: Request) -> Any:
        backend = self._backend
        match request:
            case Commit(append):
                return await self._committer.append(append)
            case Read(stream, after, limit, reverse):
                entries = backend.read(stream, after=after, limit=limit, reverse=reverse)
                return [entry async for entry in entries]
            case Heads(prefix, after_name, labels, limit):
                heads = backend.streams(prefix=prefix, after=after_name, labels=labels, limit=limit)
                return [head async for head in heads]
            case Drop(stream, before):
                return await backend.drop(stream, before=before)
            case Wait(stream, after, timeout):
                return await waiting_async.wait(backend, stream, after=after, timeout=timeout)
