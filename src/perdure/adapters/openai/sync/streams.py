# Generated from aio/streams.py by scripts/generate_sync.py: do not edit.
"""The SDK's stream of a reply, recorded as it is read."""

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from perdure.adapters.openai.client import StreamProxy
from perdure.adapters.openai.state import CallSite
from perdure.errors import UsageError

if TYPE_CHECKING:
    from perdure.adapters.openai.sync.conversation import Conversation

_SUPERSEDED_ERROR = (
    "the stream was closed by the next call in its session: read it to its end first, "
    "or make both calls inside a session.turn(...)"
)


class RecordedStream(StreamProxy):
    """The SDK's stream, recorded as it is read."""

    def __init__(
        self, conversation: "Conversation", site: CallSite, source: Any, model_call: Any
    ) -> None:
        super().__init__(source)
        flush_every = conversation.options.flush_every
        recorded = site.turn.stream(source, flush_every=flush_every, reply_to=model_call)
        self._hold(_conversation=conversation, _site=site, _recorded=recorded)
        self._hold(_over=False, _superseded=False)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._superseded:
            raise UsageError(_SUPERSEDED_ERROR)
        try:
            return next(self._recorded)
        except StopIteration:
            if not self._over:
                self._finish()
            raise
        except BaseException as error:
            if not self._over:
                self._finish(error)
            raise

    def close(self) -> None:
        """Stop reading. The answer so far stays recorded as interrupted."""
        if self._over:
            self._target.close()
        else:
            self._recorded.close()
            self._finish()

    def supersede(self) -> None:
        if not self._over:
            self._hold(_superseded=True)
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _finish(self, error: BaseException | None = None) -> None:
        self._hold(_over=True)
        if error is None:
            self._conversation.end_stream(self._site, self._recorded)
        else:
            self._conversation.stream_failed(self._site, error)
