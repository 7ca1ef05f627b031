"""Make a blocking store usable from an event loop: one thread does all its work, in order.

A `Backend` comes in, an `AsyncBackend` goes out. The order is a promise: a read that is requested
after a cancelled append shows whether the append happened. Nothing here runs two jobs at once.

To edit: a signal handler may raise in the event loop's thread between any two lines, and before the
first line of a callback (`interrupt_safety`). The worker thread is never interrupted, so it is the
one that makes sure of things: that a result has arrived, and that it ends with its backend.
"""

import math
import os
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.backends import fork_safety
from perdure.backends.fields import FieldOrder
from perdure.backends.interrupt_safety import AsyncWakeSignal, WakeSignal, start_thread
from perdure.backends.protocol import (
    Append,
    Backend,
    Entry,
    Head,
    Outcome,
    require_atomic,
    require_check,
    require_order,
    require_recent,
    require_remove,
    require_watch,
    tenant_of,
)
from perdure.backends.tail import require_tail
from perdure.backends.watchers import POLL_INTERVAL, WaitTimer, Watchers
from perdure.errors import DamagedError, UsageError

if TYPE_CHECKING:
    from asyncio import Future

PAGE_ITEMS = 256  # items per hop between the threads; a hop per item would dominate the cost

PAGE_BYTES = 2**20  # bytes; long bodies make a page shorter, so that memory stays bounded

BUSY_APPENDS = 4  # sessions in one append; with so many, others are likely to keep the loop busy

START_TIMEOUT = 0.001  # seconds; ten times what waking a thread takes

RESEND_FIRST = 0.1  # seconds until a result that has not arrived is sent again; then twice as many

RESEND_CALLS = 64  # calls; after so many, a thread that is never idle sends the first one again

RESEND_MAX = 10.0  # seconds; the event loop may be stopped, and each try adds a callback to it


T = TypeVar("T")


class ThreadedBackend:
    """An AsyncBackend over a blocking one. Cancelling a call does not stop its work."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name = backend.name
        self.capabilities = backend.capabilities
        self.guarantees = backend.guarantees
        self.tenant = tenant_of(backend)
        self._worker: _Worker | None = None
        own = getattr(backend, "watchers", None)
        self.watchers = own if isinstance(own, Watchers) else Watchers()
        self._must_notify = own is not self.watchers  # The store does not notify by itself.
        self._closed = False
        self._is_finished = False  # Unlike a close that was interrupted.

    async def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """As `Backend.append`. A cancelled append is still carried out, before any later call."""
        worker, work = self._running(), partial(self._backend.append, appends)
        post = _post_and_await_start if len(appends) >= BUSY_APPENDS else _post
        outcomes = await post(worker, work)
        if self._must_notify:
            self.watchers.notify(appends)
        return outcomes

    async def append_together(self, appends: Sequence[Append]) -> Outcome:
        """As `AtomicCapability.append_together`; UnsupportedError if the store does not declare it.

        A cancelled call is still carried out, before any later call.
        """
        backend = require_atomic(self._backend)
        outcome = await self._call(lambda: backend.append_together(appends))
        if self._must_notify:
            self.watchers.notify(appends)
        return outcome

    # The options of a read or a listing are passed on as they are.

    def read(self, stream: str, **options: Any) -> AsyncIterator[Entry]:
        """As `Backend.read`."""
        return self._iterate(partial(self._backend.read, stream, **options))

    def streams(self, **options: Any) -> AsyncIterator[Head]:
        """As `Backend.streams`."""
        return self._iterate(partial(self._backend.streams, **options))

    def recent(self, **options: Any) -> AsyncIterator[Head]:
        """As `RecencyCapability.recent`; UnsupportedError if the store does not declare it."""
        return self._iterate(partial(require_recent(self._backend).recent, **options))

    def ordered(self, order: FieldOrder, **options: Any) -> AsyncIterator[Head]:
        """As `OrderCapability.ordered`; UnsupportedError if the store does not declare it."""
        return self._iterate(partial(require_order(self._backend).ordered, order, **options))

    async def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - as in `WatchCapability`
        """As `WatchCapability.watch`; UnsupportedError if the store does not declare it.

        Waiters do not occupy the worker thread: it only checks the head when one is woken.
        """
        backend, signal = require_watch(self._backend), AsyncWakeSignal()
        # A store without watchers of its own wakes nothing for other processes: poll it.
        longest = POLL_INTERVAL if self._must_notify else math.inf
        with self.watchers.registered(stream, signal):
            timer = WaitTimer(self.watchers, stream, timeout)
            while not await self._call(lambda: backend.watch(stream, after=after, timeout=0)):
                delay = min(timer.next_sleep(), longest)
                if delay <= 0:
                    return False
                await signal.sleep(delay)
        return True

    def check(self, **options: Any) -> AsyncIterator[DamagedError]:
        """As `CheckCapability.check`; UnsupportedError if the store does not declare it."""
        return self._iterate(partial(require_check(self._backend).check, **options))

    async def tail(
        self, stream: str, *, limit: int, max_body: int | None = None
    ) -> tuple[Head | None, Sequence[Entry]]:
        """As `TailCapability.tail`; UnsupportedError if the store does not declare it."""
        backend = require_tail(self._backend)
        return await self._call(lambda: backend.tail(stream, limit=limit, max_body=max_body))

    async def drop(self, stream: str, *, before: int) -> None:
        """As `Backend.drop`."""
        await self._call(lambda: self._backend.drop(stream, before=before))

    async def remove(self, stream: str, *, digest: str) -> bool:
        """As `RemovalCapability.remove`; UnsupportedError if the store does not declare it."""
        backend = require_remove(self._backend)
        return await self._call(lambda: backend.remove(stream, digest=digest))

    async def close(self) -> None:
        """Finish pending work, close the store, end the thread. Closing twice is harmless."""
        if self._is_finished:
            return
        self._closed = True
        self.watchers.notify_all()
        worker = self._worker_here()
        await _post(worker, self._backend.close)
        self._is_finished = True
        worker.stop()
        worker.thread.join()  # It has nothing left to do but return.

    def _running(self) -> "_Worker":
        if self._closed:
            raise UsageError(f"{self.name} is closed: open the store again")
        worker = self._worker
        if worker is not None and worker.pid == os.getpid():
            return worker
        return self._worker_here()

    def _worker_here(self) -> "_Worker":
        """Return the worker of this process, started if there is none."""
        with _start_lock:  # Event loops of several threads may get here at the same time.
            worker = self._worker
            # A child of os.fork inherits no threads: it needs a worker of its own.
            if worker is None or worker.pid != os.getpid():
                worker = self._worker = _Worker(self)
        return worker

    def _call(self, work: Callable[[], T]) -> "Future[T]":
        return _post(self._running(), work)

    async def _iterate(self, begin: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
        pages = _PageReader(begin)
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
            # On the worker, behind a page that may be in progress; its result is not awaited.
            if not self._closed:
                self._running().add(pages.close)


_start_lock = fork_safety.fork_safe_lock()


class _Worker:
    """A thread and its queue. It has no reference to its backend, which can be collected."""

    def __init__(self, owner: ThreadedBackend) -> None:
        self.pid = os.getpid()
        self.jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._signal = WakeSignal()
        # The end of the queue, also put there when the backend is collected: by a call of C alone,
        # as a signal handler could interrupt a function of ours.
        self.end = weakref.ref(owner, self.jobs.put)
        self.busy = False
        name = f"perdure {owner.name}"
        # A daemon thread: a process that exits without close() must not hang here. Work that is cut
        # off is like a crash, which stores survive.
        self.thread = threading.Thread(target=_run_jobs, args=(self,), name=name, daemon=True)
        try:
            start_thread(self.thread)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self.add(self.end)

    def add(self, job: Callable[[], object]) -> None:
        """Queue a job. If this is interrupted, the thread may notice it a little later."""
        self.jobs.put(job)
        self._signal.wake()

    def next_job(self, timeout: float) -> Any:
        """Return the next job; raise `queue.Empty` after `timeout` seconds."""
        # Not by `jobs.get`: a signal can make it wait forever, in spite of a timeout
        # (`interrupt_safety`). Then a result that was lost would not be sent again.
        while self.jobs.empty() and self._signal.sleep(timeout):
            pass  # Woken for a job that was taken without a sleep, at most once.
        return self.jobs.get_nowait()


def _run_jobs(worker: _Worker) -> None:
    calls: list[_Call] = []
    """The last ones, whose results may not have arrived yet."""
    pause = RESEND_FIRST
    while True:
        try:
            job = worker.next_job(pause) if calls else worker.jobs.get()
        except queue.Empty:
            calls = [call for call in calls if not call.has_arrived(resend=True)]
            pause = min(pause * 2, RESEND_MAX)
            continue
        if job is worker.end:
            for call in calls:
                call.has_arrived(resend=True)
            return
        worker.busy = True
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - no caller awaits it, and later jobs must still run
            details = (type(error), error, error.__traceback__, worker.thread)
            threading.excepthook(threading.ExceptHookArgs(details))
            del error, details
        if type(job) is _Call:
            calls.append(job)
            pause = RESEND_FIRST
            if len(calls) >= RESEND_CALLS:
                calls = [call for call in calls if not call.future.done()]
                if calls and calls[0].has_arrived(resend=True):
                    del calls[0]
        del job  # Otherwise the result would stay alive until the next job.
        worker.busy = False


def _post_and_await_start(worker: _Worker, work: Callable[[], T]) -> "Future[T]":
    """Queue the work like `_post`, but return only once an idle thread has started it.

    A thread that wakes up must wait until the event loop is idle for a moment (the GIL). With many
    sessions that is after all of them have prepared their next appends, which then wait for this.
    """
    if worker.busy or not worker.jobs.empty():
        return _post(worker, work)
    started = threading.Lock()
    started.acquire()

    def start() -> T:
        started.release()
        return work()

    future = _post(worker, start)
    started.acquire(timeout=START_TIMEOUT)
    return future


def _post(worker: _Worker, work: Callable[[], T]) -> "Future[T]":
    """Queue the work; return a future that wakes the event loop once, on completion."""
    import asyncio  # imported here to keep `import perdure` fast

    future: Future[T] = asyncio.get_running_loop().create_future()
    worker.add(_Call(work, future))
    return future


class _Call:
    """A call on the worker thread. Its result completes a future of an event loop."""

    __slots__ = ("_complete", "_result", "_work", "future")

    def __init__(self, work: Callable[[], Any], future: "Future[Any]") -> None:
        self._work: Callable[[], Any] | None = work
        self.future = future

    def __call__(self) -> None:
        work, self._work = self._work, None  # Kept no longer than needed, nor is the result.
        self._complete: Callable[[Any], None] = self.future.set_result
        try:
            self._result: Any = work()  # type: ignore[misc] # called once
        except BaseException as error:  # noqa: BLE001 - passed on to the awaiting task
            self._complete, self._result = self.future.set_exception, error
        del work
        self._send()

    def _send(self) -> bool:
        """Have the loop complete the future; return False if the loop is closed."""
        try:
            self.future.get_loop().call_soon_threadsafe(self._finish)
        except RuntimeError:
            return False
        return True

    def _finish(self) -> None:
        if not self.future.done():
            self._complete(self._result)
        self._result = None

    def has_arrived(self, *, resend: bool = False) -> bool:
        """Return whether the future is completed, or never will be: its loop is closed.

        A signal handler may have raised just as the loop called `_finish`.
        """
        return self.future.done() or (resend and not self._send())


class _PageReader:
    """Reads an iterator in pages on the worker thread. Items before an error are not lost."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin
        self._iterator: Iterator[Any] | None = None

    def next(self) -> tuple[list[Any], Exception | None]:
        items: list[Any] = []
        loaded = 0
        try:
            if self._iterator is None:
                self._iterator = self._begin()
            for item in self._iterator:
                items.append(item)
                loaded += item.size if isinstance(item, Entry) else 0
                if len(items) >= PAGE_ITEMS or loaded >= PAGE_BYTES:
                    break
        except Exception as error:  # noqa: BLE001 - re-raised by the caller, after the items
            return items, error
        return items, None

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()
