"""Stream: hands chunks of an answer on and makes them durable. Its twin is in `stream_async`."""

import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from perdure.core.plans import Plan
from perdure.core.streaming import AnswerRecorder
from perdure.errors import UsageError
from perdure.formats.intake import IncomingMessage
from perdure.sync.handle import Handle


class Stream:
    """The chunks of an answer, as they come. Made by `turn.stream`.

    At most every `every` seconds what came is made durable. When the provider has said that the
    answer is over, the whole message is; where the stream ends or breaks before, what there is of
    it stays, and is marked as interrupted when the turn ends.
    """

    def __init__(
        self, handle: Handle, answering: AnswerRecorder, source: Iterable[Any], every: float
    ) -> None:
        self.source = source
        """What the chunks come from, as it was given."""
        self._handle = handle
        self._answering = answering
        self._chunks = iter(source)
        self._every = every
        self._begun_at = self._stored_at = time.monotonic()
        self._ended = False
        self._is_read = False

    def require_read(self) -> None:
        """Raise UsageError if nobody has begun to read it: nothing of it could be stored."""
        if not self._is_read and not self._ended:
            reason = "nothing was read from turn.stream(...), so nothing of it is stored"
            raise UsageError(f"{reason}: write `for chunk in turn.stream(...)`")

    @property
    def said(self) -> list[IncomingMessage]:
        """What was said so far: messages, and what came with them."""
        return self._answering.said

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._is_read = True
        if self._ended:
            raise StopIteration
        try:
            chunk = next(self._chunks)
        except StopIteration:
            self._end(self._answering.end(time.monotonic() - self._begun_at))
            raise
        except BaseException:
            self._end(self._answering.piece())
            raise
        self._answering.take(chunk)
        if time.monotonic() - self._stored_at >= self._every:
            self._store(self._answering.piece())
        return chunk

    def close(self) -> None:
        """Stop reading. What was said so far is durable on return. Twice is harmless."""
        if not self._ended:
            self._end(self._answering.end(time.monotonic() - self._begun_at))
            close = getattr(self.source, "close", None)
            if close is not None:
                close()

    def _end(self, plan: Plan | None) -> None:
        self._ended = True
        self._store(plan)

    def _store(self, plan: Plan | None) -> None:
        if plan is not None:
            self._handle.write(plan)
        self._stored_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
