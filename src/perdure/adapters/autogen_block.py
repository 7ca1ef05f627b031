"""The block of a `with persist(...)`: chats begin inside of it, one at a time, and end there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from perdure import UsageError


class Block:
    """Whether a block is entered, and what goes on in it. Threads and tasks may share it."""

    def __init__(self, let_go: Callable[[], None]) -> None:
        self._let_go = let_go
        self._lock = Lock()
        self._busy = False
        self._coming = 0
        self.entered = False

    def require_entered(self) -> None:
        if not self.entered:
            raise UsageError(
                "the chat is kept inside of `with persist(...) as chat:` only: enter it"
            )

    def enter(self) -> None:
        self.entered, self._coming = True, 0

    def leave(self) -> None:
        """Leave the block; UsageError if a chat goes on in a thread or a task.

        That stays kept until its end. One that would begin now is refused when it does.
        """
        with self._lock:
            self.entered, busy, coming = False, self._busy, self._coming
        if not busy:
            self._let_go()
        if busy or coming:
            what = "is still going on" if busy else "of run() has not begun, and will not,"
            reason = f"a chat {what} where `with persist(...)` ends"
            raise UsageError(f"{reason}: wait for its end inside, with await or process()")

    def announce(self) -> None:
        """Take in that a thread or a task was made that is about to begin a chat."""
        with self._lock:
            self.require_entered()
            self._coming += 1

    def arrive(self) -> None:
        """Take in that it has come so far."""
        with self._lock:
            self._coming -= 1

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only chat; at its end, let go what was left meanwhile."""
        with self._lock:
            self.require_entered()
            if self._busy:
                reason = "another chat of this session is going on"
                raise UsageError(f"{reason}: one session is for one chat at a time")
            self._busy = True
        try:
            yield
        finally:
            with self._lock:
                self._busy, left = False, not self.entered
            if left:
                self._let_go()
