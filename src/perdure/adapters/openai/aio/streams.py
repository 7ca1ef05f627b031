"""The SDK's stream of a reply, recorded as it is read."""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from perdure.adapters.openai.client import StreamProxy
from perdure.adapters.openai.state import CallSite
from perdure.errors import UsageError

if TYPE_CHECKING:
    from perdure.adapters.openai.aio.conversation import AsyncConversation

_SUPERSEDED_ERROR = (
    "the stream was closed by the next call in its session: read it to its end first, "
    "or make both calls inside a session.turn(...)"
)


class AsyncRecordedStream(StreamProxy):
    """The SDK's stream, recorded as it is read."""

    def __init__(
        self, conversation: "AsyncConversation", site: CallSite, source: Any, model_call: Any
    ) -> None:
        super().__init__(source)
        flush_every = conversation.options.flush_every
        recorded = site.turn.stream(source, flush_every=flush_every, reply_to=model_call)
        self._hold(_conversation=conversation, _site=site, _recorded=recorded)
        self._hold(_over=False, _superseded=False)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if self._superseded:
            raise UsageError(_SUPERSEDED_ERROR)
        try:
            return await anext(self._recorded)
        except StopAsyncIteration:
            if not self._over:
                await self._finish()
            raise
        except BaseException as error:
            if not self._over:
                await self._finish(error)
            raise

    async def close(self) -> None:
        """Stop reading. The answer so far stays recorded as interrupted."""
        if self._over:
            await self._target.close()
        else:
            await self._recorded.close()
            await self._finish()

    async def supersede(self) -> None:
        if not self._over:
            self._hold(_superseded=True)
            await self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _finish(self, error: BaseException | None = None) -> None:
        self._hold(_over=True)
        if error is None:
            await self._conversation.end_stream(self._site, self._recorded)
        else:
            await self._conversation.stream_failed(self._site, error)
