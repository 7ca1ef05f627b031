"""AsyncStream: pass on the chunks of a streamed answer and make them durable."""

import time
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, Self

from perdure.aio.concurrency import close_source, iterate
from perdure.aio.handle import AsyncHandle
from perdure.core.plans import Plan
from perdure.core.streaming import AnswerRecorder
from perdure.errors import UsageError
from perdure.formats.intake import IncomingMessage


class AsyncStream:
    """Iterates over the chunks of an answer as they arrive. Created by `turn.stream`.

    The chunks so far are made durable at most once every `flush_every` seconds. Once the provider
    has declared the answer over, the whole message is stored at the end of the stream. If the
    stream ends or fails before that, the partial answer stays stored, and is marked as interrupted
    when the turn ends. A stream of plain texts is over when its source is.

    A value that is no chunk raises UsageError. The chunks before it are durable, and reading may
    continue. So does the end of a stream that brought no answer, such as one with an error.
    """

    def __init__(
        self,
        handle: AsyncHandle,
        answering: AnswerRecorder,
        source: AsyncIterable[Any],
        every: float,
    ) -> None:
        self.source = source
        """The source of the chunks, as passed to `turn.stream`."""
        self._handle = handle
        self._answering = answering
        self._chunks = iterate(source)
        self._every = every
        self._begun_at = self._stored_at = time.monotonic()
        self._ended = False
        self._is_read = False

    def require_read(self) -> None:
        """Raise UsageError if the stream was never read: nothing of it could be stored."""
        if not self._is_read and not self._ended:
            reason = "nothing was read from turn.stream(...), so nothing of it is stored"
            raise UsageError(f"{reason}: write `async for chunk in turn.stream(...)`")

    @property
    def messages(self) -> list[IncomingMessage]:
        """The messages of the answer so far, with their meta."""
        return self._answering.messages

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        self._handle.replica.require_live("stream")
        self._is_read = True
        if self._ended:
            raise StopAsyncIteration
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            await self._end(self._answering.end(self._duration, exhausted=True))
            self._answering.require_answer()
            raise
        except BaseException:
            await self._end(self._answering.piece())
            raise
        try:
            self._answering.take(chunk)
        except UsageError:
            await self._store(self._answering.piece())
            raise
        if time.monotonic() - self._stored_at >= self._every:
            await self._store(self._answering.piece())
        return chunk

    async def close(self) -> None:
        """Stop reading and close the source. The answer so far is durable on return. Idempotent."""
        self._handle.replica.require_live("stream")
        if not self._ended:
            await self._end(self._answering.end(self._duration, exhausted=False))
            await close_source(self.source)

    @property
    def _duration(self) -> float:
        """The seconds since the stream began."""
        return time.monotonic() - self._begun_at

    async def _end(self, plan: Plan[int] | None) -> None:
        self._ended = True
        await self._store(plan)

    async def _store(self, plan: Plan[int] | None) -> None:
        if plan is not None:
            await self._handle.write(plan)
        self._stored_at = time.monotonic()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
