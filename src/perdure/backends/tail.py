"""The capability `tail`: return the head of a stream and its newest entries in one call.

Opening a session needs both. Without the capability it asks for one after the other, which works on
every store, but costs an async store a second hop to its thread or its server.
"""

from collections.abc import Sequence
from typing import Protocol, cast, overload

from perdure.backends.protocol import AsyncBackend, Backend, Entry, Head
from perdure.errors import UnsupportedError

TAIL = "tail"  # capability: the store implements `TailCapability`


class TailCapability(Protocol):
    """The method of a store with the capability `tail`: read the end of a stream."""

    def tail(
        self, stream: str, *, limit: int, max_body: int | None = None
    ) -> tuple[Head | None, Sequence[Entry]]:
        """Return the head and the newest entries, newest first, as they were at one moment.

        The entries reach back to the one that covers the head's `snapshot`. If that was dropped,
        they reach as far as there are entries. If the head has none, they are the last `limit`
        entries, or fewer if these are long. Long bodies are left out as in `Backend.read`. An
        unknown stream has neither head nor entries.
        """
        ...


class AsyncTailCapability(Protocol):
    """`TailCapability` for callers in an event loop."""

    async def tail(
        self, stream: str, *, limit: int, max_body: int | None = None
    ) -> tuple[Head | None, Sequence[Entry]]:
        """As `TailCapability.tail`."""
        ...


@overload
def require_tail(backend: Backend) -> TailCapability: ...


@overload
def require_tail(backend: AsyncBackend) -> AsyncTailCapability: ...


def require_tail(backend: Backend | AsyncBackend) -> TailCapability | AsyncTailCapability:
    """Return the backend typed as `TailCapability`, or raise UnsupportedError."""
    if TAIL not in backend.capabilities:
        reason = f"{backend.name} cannot return a head and entries in one call"
        raise UnsupportedError(reason, "ask for the head, then read from its snapshot on")
    return cast("TailCapability | AsyncTailCapability", backend)
