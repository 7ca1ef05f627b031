"""Retry the appends of a failed group commit one by one.

One damaged or locked stream must not fail the others, so each append of the batch is sent again
alone and gets its own result. An unavailable store is not retried per append: every session would
wait for the full timeout.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from perdure.backends.protocol import Append
from perdure.errors import PerdureError, UnavailableError, UsageError

LockT = TypeVar("LockT")


class RetryAlone(Generic[LockT]):
    """Takes the place of an outcome: this append must be retried alone. One batch shares one.

    Retries run one at a time, under `lock`, so that none is sent to a store that an earlier one
    found unavailable. If the batch itself timed out, each retry may take as long, so then they run
    concurrently, without a lock.
    """

    __slots__ = ("_retry", "_store_down", "error", "lock")

    def __init__(
        self,
        error: Exception,
        size: int,
        lock: Callable[[], LockT],
        retry: "Callable[[RetryAlone[LockT], Any, Any], object]" = lambda *_: None,
    ) -> None:
        self.error = error
        self._store_down = error if size == 1 else None  # A batch of one was alone already.
        timed_out = isinstance(error, UnavailableError)
        self.lock: LockT | contextlib.nullcontext[None] = (
            contextlib.nullcontext() if timed_out else lock()
        )
        self._retry = retry

    def retry_for(self, append: Any, waiter: Any) -> None:
        """Send an append again for a waiter that is no thread, such as a future."""
        self._retry(self, append, waiter)

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Guard the sending of one append; raise at once if the store was found unavailable."""
        if self._store_down is not None:
            raise copy_for_waiter(self._store_down)
        try:
            yield
        except UsageError:
            if isinstance(self.error, UsageError):
                raise
            # The store was closed meanwhile, so the outcome of the first attempt stays unknown:
            # report that, not that the store is closed.
            raise copy_for_waiter(self.error) from None
        except UnavailableError as error:
            if is_store_down(error):
                self._store_down = error
            raise


def is_store_down(error: BaseException) -> bool:
    """Return whether an error concerns the whole store, so that retrying others is pointless."""
    return isinstance(error, UnavailableError) and not error.single_stream


def isolates_stream(error: Exception) -> bool:
    """Return whether the next append of the same stream must not share a commit with others."""
    return not (is_store_down(error) or isinstance(error, UsageError))


def require_retriable(error: UnavailableError, batch: Sequence[Append]) -> None:
    """Raise the error of a failed batch if repeating it is pointless.

    Otherwise it is safe: the backend reconnects by itself, and appends are idempotent.
    """
    if error.retries_exhausted or (error.single_stream and len(batch) > 1):
        raise error


def copy_for_waiter(error: BaseException) -> BaseException:
    """Return a copy of an error for another waiter, with the original as its cause.

    Each waiter raises its own object, because raising changes an exception's traceback.
    """
    if isinstance(error, PerdureError):
        copy: BaseException = type(error)(*error.args)
        vars(copy).update(vars(error))
    else:
        copy = UnavailableError("the commit", f"it was interrupted by {type(error).__name__}")
    copy.__cause__ = error
    return copy


ItemT = TypeVar("ItemT")

ResultT = TypeVar("ResultT")

T = TypeVar("T")


UNSPLIT_MAX = 16  # items; fewer than this take less time to prepare than to store


def batch_size(queued: int, previous: int) -> int:
    """Return the size of the next batch, given the queue and the size of the previous batch.

    Half of the sum: while one half is being stored, the other half can prepare its next items. A
    few items are never split.
    """
    return max((queued + previous + 1) // 2, UNSPLIT_MAX)


def group_by_stream(appends: Sequence[Append | None]) -> list[list[tuple[int, Append]]]:
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
