"""Ctrl-C where it may come: while the model or the user is waited for, and never in a write."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self


class Stop:
    """Turns SIGINT into KeyboardInterrupt, but only inside `waiting`; elsewhere it is remembered.

    So a write is never cut in the middle, and what was said is stored before the answer stops.
    """

    def __init__(self) -> None:
        self._waiting = False
        self._asked = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._waiting:
            self._waiting = False
            raise KeyboardInterrupt
        self._asked = True

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let Ctrl-C end what is waited for; one that came before ends it at once."""
        if self._asked:
            self._asked = False
            raise KeyboardInterrupt
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    def forget(self) -> None:
        """Forget a Ctrl-C that came too late for what it meant to stop."""
        self._asked = False
