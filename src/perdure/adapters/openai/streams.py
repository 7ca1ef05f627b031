"""Run a conversation's steps, blocking or in an event loop, and wrap the SDK's streams."""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, Self

from perdure.adapters.openai.client import Proxy
from perdure.adapters.openai.conversation import CallSite, Conversation, ConversationSteps
from perdure.errors import UsageError

_SUPERSEDED_ERROR = (
    "the stream was closed by the next call in its session: read it to its end first, "
    "or make both calls inside a session.turn(...)"
)


class SyncRunner:
    """Runs steps in the calling thread."""

    asynchronous = False

    def drive(self, steps: ConversationSteps[Any]) -> Any:
        resume: Callable[[Any], Callable[[], Any]] = steps.send
        value: Any = None
        try:
            while True:
                try:
                    action = resume(value)
                except StopIteration as end:
                    return end.value
                try:
                    resume, value = steps.send, action()
                except BaseException as error:  # noqa: BLE001 - the steps handle or re-raise it
                    resume, value = steps.throw, error
        finally:
            steps.close()  # In case an interrupt hit between two steps.

    def enter(self, turn: Any) -> Any:
        return turn.__enter__()

    def leave(self, turn: Any, error: BaseException | None) -> Any:
        return turn.__exit__(type(error) if error else None, error, None)

    def records(self, session: Any, after: int) -> Any:
        return list(session.records(after=after))

    def stream(
        self, conversation: Conversation, site: CallSite, source: Any, model_call: Any
    ) -> Any:
        return RecordedStream(conversation, site, source, model_call)


class AsyncRunner:
    """Runs steps in an event loop."""

    asynchronous = True

    async def drive(self, steps: ConversationSteps[Any]) -> Any:
        resume: Callable[[Any], Callable[[], Any]] = steps.send
        value: Any = None
        try:
            while True:
                try:
                    action = resume(value)
                except StopIteration as end:
                    return end.value
                try:
                    value = action()
                    if inspect.isawaitable(value):
                        value = await value
                    resume = steps.send
                except BaseException as error:  # noqa: BLE001 - the steps handle or re-raise it
                    resume, value = steps.throw, error
        finally:
            steps.close()  # In case an interrupt hit between two steps.

    async def enter(self, turn: Any) -> Any:
        return await turn.__aenter__()

    async def leave(self, turn: Any, error: BaseException | None) -> Any:
        return await turn.__aexit__(type(error) if error else None, error, None)

    async def records(self, session: Any, after: int) -> Any:
        return [record async for record in session.records(after=after)]

    def stream(
        self, conversation: Conversation, site: CallSite, source: Any, model_call: Any
    ) -> Any:
        return AsyncRecordedStream(conversation, site, source, model_call)


class _StreamProxy(Proxy):
    """Common part of both streams: proxies of the SDK's stream."""

    def __init__(
        self, conversation: Conversation, site: CallSite, source: Any, model_call: Any
    ) -> None:
        super().__init__(source)
        every = conversation.options.every
        recorded = site.turn.stream(source, every=every, answers=model_call)
        self._hold(_conversation=conversation, _site=site, _recorded=recorded)
        self._hold(_over=False, _superseded=False)

    @property
    def response(self) -> Any:
        """The HTTP response; closing it closes the stream: the SDK's helpers close only it."""
        return Proxy(self._target.response, close=self.close, aclose=self.close)

    def close(self) -> Any:
        raise NotImplementedError

    def _finish(self, error: BaseException | None = None) -> Any:
        self._hold(_over=True)
        steps = (
            self._conversation.end_stream(self._site, self._recorded)
            if error is None
            else self._conversation.stream_failed(self._site, error)
        )
        return self._conversation.runner.drive(steps)

    def _require_current(self) -> None:
        if self._superseded:
            raise UsageError(_SUPERSEDED_ERROR)


class RecordedStream(_StreamProxy):
    """The SDK's stream, recorded as it is read."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._require_current()
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


class AsyncRecordedStream(_StreamProxy):
    """The SDK's stream, recorded as it is read."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        self._require_current()
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

    aclose = close

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
