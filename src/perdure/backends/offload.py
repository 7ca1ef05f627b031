"""A blocking store for callers in an event loop: one thread does all its work, in order.

Order is the promise: a read that is asked for after a cancelled append tells whether it happened.
"""

import contextlib
import os
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from perdure import forking
from perdure.backend import (
    Append,
    Backend,
    Entry,
    Head,
    Outcome,
    able_to_remove,
    knowing_recency,
    knowing_watch,
)
from perdure.backends.watching import PAUSE, Vigil, Watchers
from perdure.errors import UsageError

if TYPE_CHECKING:
    from asyncio import Future

PAGE_ITEMS = 256  # Fetched in one hop between the threads.
PAGE_BYTES = 2**20  # Long bodies make a page shorter, so that memory stays bounded.
MANY = 4  # Behind an append of so many sessions there are others, who keep the loop busy.
BEGINS_WITHIN = 0.001  # Seconds; waking a thread takes a tenth of it.

T = TypeVar("T")
Job = Callable[[], None]


class Offload:
    """An AsyncBackend over a blocking one. Cancelling a call does not stop its work."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name = backend.name
        self.capabilities = backend.capabilities
        self.guarantees = backend.guarantees
        self._worker: _Worker | None = None
        own = getattr(backend, "watchers", None)
        self.watchers = own if isinstance(own, Watchers) else Watchers()
        self._rings = own is not self.watchers  # The store does not ring by itself.
        self._closed = False

    async def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """As `Backend.append`. When cancelled it is done nevertheless, before any later call."""
        worker, work = self._running(), partial(self._backend.append, appends)
        stored = _begun(worker, work) if len(appends) >= MANY else _posted(worker, work)
        outcomes = await stored
        if self._rings:
            self.watchers.ring(appends)
        return outcomes

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        limit: int | None = None,
        reverse: bool = False,
        max_body: int | None = None,
    ) -> AsyncIterator[Entry]:
        """As `Backend.read`."""
        return self._iterate(
            lambda: self._backend.read(
                stream, after=after, limit=limit, reverse=reverse, max_body=max_body
            ),
            lambda entry: len(entry.header) + len(entry.body or b""),
        )

    def streams(
        self,
        *,
        prefix: str = "",
        after: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> AsyncIterator[Head]:
        """As `Backend.streams`."""
        return self._iterate(
            lambda: self._backend.streams(
                prefix=prefix, after=after, labels=labels, without=without, limit=limit
            ),
            lambda _: 0,
        )

    def recent(
        self,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> AsyncIterator[Head]:
        """As `Recent.recent`, where the store declares it; otherwise UnsupportedError."""
        backend = knowing_recency(self._backend)
        return self._iterate(
            lambda: backend.recent(prefix=prefix, labels=labels, without=without, limit=limit),
            lambda _: 0,
        )

    async def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - as its twin
        """As `Watch.watch`, where the store declares it; otherwise UnsupportedError.

        The thread is not kept by those who wait: it looks for them when they are woken.
        """
        import asyncio  # Here, because `import perdure` must stay fast.

        backend, loop = knowing_watch(self._backend), asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # The loop may have been closed since.
                loop.call_soon_threadsafe(woken.set)

        with self.watchers.waking(stream, wake):
            vigil = Vigil(self.watchers, stream, timeout)
            while not await self._call(lambda: backend.watch(stream, after=after, timeout=0)):
                left = min(vigil.pause(), PAUSE) if self._rings else vigil.pause()
                if left <= 0:
                    return False
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await woken.wait()
                woken.clear()
        return True

    async def drop(self, stream: str, *, before: int) -> None:
        """As `Backend.drop`."""
        await self._call(lambda: self._backend.drop(stream, before=before))

    async def remove(self, stream: str, *, digest: str) -> bool:
        """As `Removing.remove`, where the store declares it; otherwise UnsupportedError."""
        backend = able_to_remove(self._backend)
        return await self._call(lambda: backend.remove(stream, digest=digest))

    async def close(self) -> None:
        """Finish what is under way, close the store, end the thread. Twice is harmless."""
        if self._closed:
            return
        worker = self._running()
        self._closed = True
        self.watchers.ring_all()
        done = _posted(worker, self._backend.close)
        worker.stop()
        await done
        worker.thread.join()  # Only its return is left.

    def _running(self) -> "_Worker":
        if self._closed:
            raise UsageError(f"{self.name} is closed: open the store again")
        worker = self._worker
        if worker is None or worker.pid != os.getpid():
            with _starting:  # Loops in several threads may come here at the same time.
                worker = self._worker
                # A child of os.fork has no threads but one.
                if worker is None or worker.pid != os.getpid():
                    worker = self._worker = _Worker(f"perdure {self.name}")
                    weakref.finalize(self, worker.stop)
        return worker

    def _call(self, work: Callable[[], T]) -> "Future[T]":
        return _posted(self._running(), work)

    async def _iterate(
        self, begin: Callable[[], Iterator[T]], size: Callable[[T], int]
    ) -> AsyncIterator[T]:
        pages = _Pages(begin, size)
        try:
            while True:
                items, error = await self._call(pages.next)
                for item in items:
                    yield item
                if error is not None:
                    raise error
                if not items:
                    return
        finally:
            # In the thread and after a page that may be under way; nobody waits for it.
            if not self._closed:
                self._running().jobs.put(pages.close)


_starting = forking.lock()


class _Worker:
    """A thread and its queue. It holds no backend, so that a forgotten Offload can go."""

    def __init__(self, name: str) -> None:
        self.pid = os.getpid()
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        # A daemon: a process that ends without close() must not wait here for ever. What it cuts
        # off is like any crash, and stores survive that.
        self.busy = False
        self.thread = threading.Thread(target=_work, args=(self,), name=name, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.jobs.put(None)


def _work(worker: _Worker) -> None:
    while (job := worker.jobs.get()) is not None:
        worker.busy = True
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - nobody waits for it, and others wait here
            told = (type(error), error, error.__traceback__, worker.thread)
            threading.excepthook(threading.ExceptHookArgs(told))
            del error, told
        del job  # Or the last job's result would live until the next one.
        worker.busy = False


def _begun(worker: _Worker, work: Callable[[], T]) -> "Future[T]":
    """The same as `_posted`, but return when the thread has begun, if it is free.

    A thread that wakes up has to wait until the loop has nothing to do for a moment. With many
    sessions that is when all of them have prepared their next appends, and then wait for this one.
    """
    if worker.busy or not worker.jobs.empty():
        return _posted(worker, work)
    begun = threading.Lock()
    begun.acquire()

    def begin() -> T:
        begun.release()
        return work()

    future = _posted(worker, begin)
    begun.acquire(timeout=BEGINS_WITHIN)
    return future


def _posted(worker: _Worker, work: Callable[[], T]) -> "Future[T]":
    """Queue the work and return a future that wakes the event loop once, when it is done."""
    import asyncio  # Here, because `import perdure` must stay fast.

    loop = asyncio.get_running_loop()
    future: Future[T] = loop.create_future()

    def job() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - whoever awaits gets it, whatever it is.
            settle: tuple[Any, ...] = (_fail, future, error)
        else:
            settle = (_succeed, future, result)
        # The loop may have been closed since: then nobody is left to be told.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(*settle)

    worker.jobs.put(job)
    return future


def _succeed(future: "Future[T]", result: T) -> None:
    if not future.cancelled():
        future.set_result(result)


def _fail(future: "Future[Any]", error: BaseException) -> None:
    if not future.cancelled():
        future.set_exception(error)


class _Pages:
    """An iterator of the thread's, read by pages. Items before an error are not lost with it."""

    def __init__(self, begin: Callable[[], Iterator[Any]], size: Callable[[Any], int]) -> None:
        self._begin = begin
        self._size = size
        self._iterator: Iterator[Any] | None = None

    def next(self) -> tuple[list[Any], Exception | None]:
        items: list[Any] = []
        loaded = 0
        try:
            if self._iterator is None:
                self._iterator = self._begin()
            for item in self._iterator:
                items.append(item)
                loaded += self._size(item)
                if len(items) >= PAGE_ITEMS or loaded >= PAGE_BYTES:
                    break
        except Exception as error:  # noqa: BLE001 - raised again where the items were taken.
            return items, error
        return items, None

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()
