# Generated from aio/driver.py by scripts/generate_sync.py: do not edit.
"""Driver: performs the requests of steps on a backend.

To wait for records it uses the store's `watch` capability, or polls the head of a stream.
"""

import time
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from perdure.backends import watchers
from perdure.backends.protocol import WATCH, Backend, require_watch
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
from perdure.sync.concurrency import collect, compute, sleep
from perdure.sync.group_commit import GroupCommitter


class Driver:
    """Runs steps: performs their requests on a backend."""

    def __init__(self, backend: Backend, committer: GroupCommitter) -> None:
        self.name = backend.name
        self.handles: WeakSet[Any] = WeakSet()
        """The handles that write through this driver, so that closing can wait for them."""
        self._backend = backend
        self.committer = committer
        self.longest_wait = watchers.longest_wait(backend)
        self.closed = False
        self.key_driver: Driver | None = None
        """Performs the requests to the key store, if that is another store."""
        self.reload_keys: Callable[[Driver], None] = _no_keys
        """Reads the keys of an encrypted store again; the store sets it."""

    def end_waits(self, stream: str) -> None:
        """Cancel this process's waits on a stream: a session is being closed."""
        watchers.cancel_waiters(self._backend, stream)

    def run(self, steps: Steps[T]) -> T:
        """Return the result of steps; errors of the backend are raised in the step that asked."""
        try:
            request = steps.send(None)
            while True:
                try:
                    if type(request) is Commit:  # The most frequent request: one call less.
                        answer: Any = self.committer.append(request.append)
                    else:
                        answer = self.answer(request)
                except BaseException as error:  # noqa: BLE001 - the steps handle or re-raise it
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def answer(self, request: Request) -> Any:  # noqa: C901 - a case for each request
        """Perform one request and return the reply."""
        backend = self._backend
        match request:
            case Commit(append):
                return self.committer.append(append)
            case CommitTogether(appends):
                return self.committer.append_together(appends)
            case Read(stream, after, limit, reverse, max_body):
                entries = backend.read(
                    stream, after=after, limit=limit, reverse=reverse, max_body=max_body
                )
                return collect(entries)
            case Tail(stream, limit):
                if TAIL not in backend.capabilities:
                    return None  # The steps then ask for the head and the entries.
                own = require_tail(backend)
                return own.tail(stream, limit=limit, max_body=PAGE_BODY_MAX)
            case Heads(prefix, after_name, labels, limit, without, headers):
                heads = backend.streams(
                    prefix=prefix,
                    after=after_name,
                    labels=labels,
                    without=without,
                    limit=limit,
                    headers=headers,
                )
                return collect(heads)
            case Drop(stream, before):
                return backend.drop(stream, before=before)
            case Wait(stream, after, timeout):
                return wait_for_records(backend, stream, after=after, timeout=timeout)
            case Keys(wrapped):
                return (self.key_driver or self).answer(wrapped)
            case Compute(work):
                return compute(work)
            case ReloadKeys():
                return self.reload_keys(self)


def _no_keys(_: Driver) -> None:
    """Do nothing: the store is not encrypted."""


def wait_for_records(backend: Backend, stream: str, *, after: int, timeout: float) -> bool:
    """Return True once a stream's head is beyond a position, False after `timeout` seconds."""
    if WATCH in backend.capabilities:
        return require_watch(backend).watch(stream, after=after, timeout=timeout)
    deadline, pause = time.monotonic() + timeout, FIRST_PAUSE
    while not _is_beyond(backend, stream, after):
        delay = min(pause, deadline - time.monotonic())
        if delay <= 0:
            return False
        sleep(delay)
        pause = min(pause * 1.5, LONGEST_PAUSE)
    return True


def _is_beyond(backend: Backend, stream: str, after: int) -> bool:
    for head in backend.streams(prefix=stream, limit=1):
        return head.stream == stream and head.position > after
    return False
