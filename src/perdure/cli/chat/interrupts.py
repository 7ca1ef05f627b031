"""Allow Ctrl-C only while waiting for the model or the user, never during a write."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self


class InterruptGuard:
    """Turns SIGINT into KeyboardInterrupt inside `interruptible`; elsewhere it is deferred.

    So a write is never cut in the middle, and received text is stored before the answer stops.
    """

    def __init__(self) -> None:
        self._interruptible = False
        self._deferred = False

    def __enter__(self) -> Self:
        self._previous_handler = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous_handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._interruptible:
            self._interruptible = False
            raise KeyboardInterrupt
        self._deferred = True

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let Ctrl-C interrupt the block; a deferred Ctrl-C interrupts it at once."""
        if self._deferred:
            self._deferred = False
            raise KeyboardInterrupt
        self._interruptible = True
        try:
            yield
        finally:
            self._interruptible = False

    def clear(self) -> None:
        """Discard a deferred Ctrl-C that came too late to stop anything."""
        self._deferred = False
