"""The context of a persisted chat: its `with persist(...)` block, and its protocol for patches.

Chats start inside the block, one at a time, and end there. This module never touches the session or
the agents: the chat passes in a callback that undoes its patches.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any, NamedTuple, Protocol

from perdure.errors import UsageError


class PersistScope:
    """State of one `with persist(...)` block: whether it is entered, and which chat is running.

    Safe to share between threads and tasks.
    """

    def __init__(self, on_release: Callable[[], None]) -> None:
        self._on_release = on_release
        self._lock = Lock()
        self._busy = False  # Whether a chat is running.
        self._expected = 0  # Chats whose thread or task was created and has not reached them.
        self.entered = False

    def require_entered(self) -> None:
        if not self.entered:
            raise UsageError(
                "the chat is recorded only inside `with persist(...) as chat:`: enter it"
            )

    def enter(self) -> None:
        self.entered, self._expected = True, 0

    def leave(self) -> None:
        """Leave the block; UsageError if a chat is still running in a thread or a task.

        That chat stays recorded until its end. One that starts later is refused when it does.
        """
        with self._lock:
            self.entered, busy, expected = False, self._busy, self._expected
        if not busy:  # Otherwise the running chat releases: its patches must work to its end.
            self._on_release()
        if busy or expected:
            status = "is still running" if busy else "of run() has not started, and will not,"
            reason = f"a chat {status} where `with persist(...)` ends"
            raise UsageError(
                f"{reason}: wait for its end inside the block, with await or process()"
            )

    def expect_chat(self) -> None:
        """Note that a thread or a task was created that is about to start a chat."""
        with self._lock:
            self.require_entered()
            self._expected += 1

    def chat_arrived(self) -> None:
        """Note that the expected thread or task has reached its chat."""
        with self._lock:
            self._expected -= 1

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Run as the only chat; afterwards release the block if it was left in the meantime."""
        with self._lock:
            self.require_entered()
            if self._busy:
                reason = "another chat of this session is running"
                raise UsageError(f"{reason}: run one chat at a time per session")
            self._busy = True
        try:
            yield
        finally:
            with self._lock:
                # `leave` skipped the release because this chat was running: it is now due here.
                self._busy, is_left = False, not self.entered
            if is_left:
                self._on_release()


class ChatContext(Protocol):
    """A chat, as patched clients and groups see it."""

    @property
    def is_running(self) -> bool: ...

    def call_model(
        self, wrapper: Any, create: Callable[..., Any], config: dict[str, Any]
    ) -> Any: ...

    def select_speaker(self, group: Any, select: Callable[..., Any], agents: Any) -> Any: ...


class ToolContext(NamedTuple):
    """A chat and its tool that is running."""

    chat: ChatContext
    tool: str


# The chat that the running code belongs to.
current_chat: ContextVar[ChatContext | None] = ContextVar("perdure_autogen_chat", default=None)

# The tool that the running code belongs to.
current_tool: ContextVar[ToolContext | None] = ContextVar("perdure_autogen_tool", default=None)
