"""AsyncDriver: performs the requests of steps on a backend.

To wait for records it uses the store's `watch` capability, or polls the head of a stream.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakSet

from perdure.aio.concurrency import collect, compute, sleep
from perdure.aio.group_commit import AsyncGroupCommitter
from perdure.backends import watchers
from perdure.backends.protocol import WATCH, AsyncBackend, require_watch
from perdure.backends.tail import TAIL, require_tail
from perdure.backends.watchers import FIRST_PAUSE, LONGEST_PAUSE
from perdure.core.batching import T
from perdure.journal.requests import (
    PAGE_BODY_MAX,
    Commit,
    CommitTogether,
    Compute,
    Drop,
    Heads,
    Keys,
    Read,
    ReloadKeys,
    Request,
    Steps,
    Tail,
    Wait,
)


class AsyncDriver:
    """Runs steps: performs their requests on a backend."""

    def __init__(self, backend: AsyncBackend, committer: AsyncGroupCommitter) -> None:
        self.name = backend.name
        self.handles: WeakSet[Any] = WeakSet()
        """The handles that write through this driver, so that closing can wait for them."""
        self._backend = backend
        self.committer = committer
        self.longest_wait = watchers.longest_wait(backend)
        self.closed = False
        self.key_driver: AsyncDriver | None = None
        """Performs the requests to the key store, if that is another store."""
        self.reload_keys: Callable[[AsyncDriver], Awaitable[None]] = _no_keys
        """Reads the keys of an encrypted store again; the store sets it."""

    def end_waits(self, stream: str) -> None:
        """Cancel this process's waits on a stream: a session is being closed."""
        watchers.cancel_waiters(self._backend, stream)

    async def run(self, steps: Steps[T]) -> T:
        """Return the result of steps; errors of the backend are raised in the step that asked."""
        try:
            request = steps.send(None)
            while True:
                try:
                    if type(request) is Commit:  # The most frequent request: one coroutine less.
                        answer: Any = await self.committer.append(request.append)
                    else:
                        answer = await self.answer(request)
                except BaseException as error:  # noqa: BLE001 - the steps handle or re-raise it
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def answer(self, request: Request) -> Any:  # noqa: C901 - a case for each request
        """Perform one request and return the reply."""
        backend = self._backend
        match request:
            case Commit(append):
                return await self.committer.append(append)
            case CommitTogether(appends):
                return await self.committer.append_together(appends)
            case Read(stream, after, limit, reverse, max_body):
                entries = backend.read(
                    stream, after=after, limit=limit, reverse=reverse, max_body=max_body
                )
                return await collect(entries)
            case Tail(stream, limit):
                if TAIL not in backend.capabilities:
                    return None  # The steps then ask for the head and the entries.
                own = require_tail(backend)
                return await own.tail(stream, limit=limit, max_body=PAGE_BODY_MAX)
            case Heads(prefix, after_name, labels, limit, without, headers):
                heads = backend.streams(
                    prefix=prefix,
                    after=after_name,
                    labels=labels,
                    without=without,
                    limit=limit,
                    headers=headers,
                )
                return await collect(heads)
            case Drop(stream, before):
                return await backend.drop(stream, before=before)
            case Wait(stream, after, timeout):
                return await wait_for_records(backend, stream, after=after, timeout=timeout)
            case Keys(wrapped):
                return await (self.key_driver or self).answer(wrapped)
            case Compute(work):
                return await compute(work)
            case ReloadKeys():
                return await self.reload_keys(self)


async def _no_keys(_: AsyncDriver) -> None:
    """Do nothing: the store is not encrypted."""


async def wait_for_records(
    backend: AsyncBackend,
    stream: str,
    *,
    after: int,
    timeout: float,  # noqa: ASYNC109 - as in the backend's `watch`
) -> bool:
    """Return True once a stream's head is beyond a position, False after `timeout` seconds."""
    if WATCH in backend.capabilities:
        return await require_watch(backend).watch(stream, after=after, timeout=timeout)
    deadline, pause = time.monotonic() + timeout, FIRST_PAUSE
    while not await _is_beyond(backend, stream, after):
        delay = min(pause, deadline - time.monotonic())
        if delay <= 0:
            return False
        await sleep(delay)
        pause = min(pause * 1.5, LONGEST_PAUSE)
    return True


async def _is_beyond(backend: AsyncBackend, stream: str, after: int) -> bool:
    async for head in backend.streams(prefix=stream, limit=1):
        return head.stream == stream and head.position > after
    return False
