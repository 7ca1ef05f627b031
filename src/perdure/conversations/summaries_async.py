"""AsyncSummaries: has a text made, and puts it in force. Its twin is in `summaries`."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from perdure import events
from perdure.conversations import summarising, talking
from perdure.conversations.summarising import Summariser, Work
from perdure.conversations.window import EVERYTHING, Asked
from perdure.errors import ConflictError, SummaryError
from perdure.handle_async import AsyncHandle
from perdure.records import Summary


class AsyncSummaries:
    """What a session does about summaries. Nothing waits while a text is made but its caller."""

    def __init__(self, handle: AsyncHandle) -> None:
        self._handle = handle

    async def make(self, asked: Summariser, room: Asked = EVERYTHING) -> Summary:
        """Have a summary made and put it in force; SummaryError if it is refused."""
        handle, replica = self._handle, self._handle.replica
        with handle.observed("summary") as seen:
            steps = summarising.chosen(replica, asked, live=handle.own_turns, room=room)
            work = await handle.run(steps)
            seen.fields.update(first=work.first, last=work.last)
            content = summarising.checked(asked, work, await self._ask(asked, work))
            await handle.write(talking.summary(replica, content))
            seen.fields["tokens"] = content.tokens
        return content

    def start(self, asked: Summariser) -> "asyncio.Task[Summary]":
        """Make a summary in the background; closing the handle waits for it."""
        self._handle.require_open()

        async def work() -> Summary:
            try:
                return await self.make(asked)
            except BaseException as error:
                self._tell(error)
                raise

        return self._handle.background(work())

    async def make_room(self, asked: Summariser, room: Asked) -> bool:
        """Sum up what a window has no room for; False if that was refused, which is told of."""
        try:
            await self.make(asked, room)
        except SummaryError as error:
            self._tell(error)
            return False
        except ConflictError:  # Another summary came first.
            return True
        return True

    async def undo(self) -> None:
        """Go back to the summary before the one in force, or to the messages themselves."""
        await self._handle.write(talking.undo_summary(self._handle.replica))

    def _tell(self, error: BaseException) -> None:
        name, reason = self._handle.replica.name, getattr(error, "reason", type(error).__name__)
        where = {"store": self._handle.driver.name, "session": name}
        events.tell("unsummarised", {**where, "reason": reason})

    async def _ask(self, asked: Summariser, work: Work) -> Any:
        call = summarising.request(asked, work)
        limit = asyncio.timeout(asked.timeout)
        try:
            async with limit:
                if iscoroutinefunction(asked.with_):
                    return await call()
                answer, error = await _in_thread(call)
                if error is None:
                    return await answer if isawaitable(answer) else answer
        except Exception as failure:
            if limit.expired():
                raise summarising.too_slow(work, asked) from None
            raise summarising.raised(work, failure) from failure
        raise summarising.raised(work, error) from error


async def _in_thread(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Call a plain function in a thread that nobody waits for at the end of the program.

    Return what it returned, or raised: what ends a program must not end the event loop.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(answer: Any, error: BaseException | None) -> None:
        if not future.done():  # Else nobody waits any more.
            future.set_result((answer, error))

    def run() -> None:
        answer, failure = None, None
        try:
            answer = call()
        except BaseException as error:  # noqa: BLE001 - raised where the answer is waited for
            failure = error
        with suppress(RuntimeError):  # The loop has ended meanwhile.
            loop.call_soon_threadsafe(settle, answer, failure)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name="perdure-summary", daemon=True).start()
    return await future
