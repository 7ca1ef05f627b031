"""AsyncStream: hands chunks of an answer on and makes them durable. Its twin is in `stream`."""

import inspect
import time
from collections.abc import AsyncIterable, AsyncIterator
from types import TracebackType
from typing import Any, Self

from perdure.conversations.answering import Answering
from perdure.conversations.intake import Taken
from perdure.errors import UsageError
from perdure.handle_async import AsyncHandle
from perdure.plans import Plan


class AsyncStream:
    """The chunks of an answer, as they come. Made by `turn.stream`.

    At most every `every` seconds what came is made durable. When the provider has said that the
    answer is over, the whole message is; where the stream ends or breaks before, what there is of
    it stays, and is marked as interrupted when the turn ends.
    """

    def __init__(
        self, handle: AsyncHandle, answering: Answering, source: AsyncIterable[Any], every: float
    ) -> None:
        self.source = source
        """What the chunks come from, as it was given."""
        self._handle = handle
        self._answering = answering
        self._chunks = aiter(source)
        self._every = every
        self._begun_at = self._stored_at = time.monotonic()
        self._ended = False
        self._is_read = False

    def require_read(self) -> None:
        """Raise UsageError if nobody has begun to read it: nothing of it could be stored."""
        if not self._is_read and not self._ended:
            reason = "nothing was read from turn.stream(...), so nothing of it is stored"
            raise UsageError(f"{reason}: write `async for chunk in turn.stream(...)`")

    @property
    def said(self) -> list[Taken]:
        """What was said so far: messages, and what came with them."""
        return self._answering.said

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        self._is_read = True
        if self._ended:
            raise StopAsyncIteration
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            await self._end(self._answering.end(time.monotonic() - self._begun_at))
            raise
        except BaseException:
            await self._end(self._answering.piece())
            raise
        self._answering.take(chunk)
        if time.monotonic() - self._stored_at >= self._every:
            await self._store(self._answering.piece())
        return chunk

    async def close(self) -> None:
        """Stop reading. What was said so far is durable on return. Twice is harmless."""
        if not self._ended:
            await self._end(self._answering.end(time.monotonic() - self._begun_at))
            close = getattr(self.source, "close", None) or getattr(self.source, "aclose", None)
            if close is not None:
                closing = close()
                if inspect.isawaitable(closing):
                    await closing

    async def _end(self, plan: Plan | None) -> None:
        self._ended = True
        await self._store(plan)

    async def _store(self, plan: Plan | None) -> None:
        if plan is not None:
            await self._handle.write(plan)
        self._stored_at = time.monotonic()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
