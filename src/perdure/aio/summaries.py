"""AsyncSummaries: have a summary written and put it in force, now or in the background."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from perdure import events
from perdure.aio.handle import AsyncHandle
from perdure.core import summaries
from perdure.core.summaries import Summariser, SummaryJob
from perdure.core.window import EVERYTHING, WindowRequest
from perdure.errors import ConflictError, SummaryError
from perdure.journal.records import Summary


class AsyncSummaries:
    """The summaries of a session. While a text is being written, only its caller waits."""

    def __init__(self, handle: AsyncHandle) -> None:
        self._handle = handle

    async def make(self, summarizer: Summariser, room: WindowRequest = EVERYTHING) -> Summary:
        """Have a summary written and put it in force; SummaryError if it is rejected."""
        handle, replica = self._handle, self._handle.replica
        with handle.observed("summary") as seen:
            steps = summaries.select(replica, summarizer, live=handle.own_turns, room=room)
            work = await handle.run(steps)
            seen.fields.update(first=work.first, last=work.last)
            content = summaries.validate(summarizer, work, await self._ask(summarizer, work))
            await handle.write(summaries.activate_summary(replica, content))
            seen.fields["tokens"] = content.tokens
        return content

    def start(self, summarizer: Summariser) -> "asyncio.Task[Summary]":
        """Make a summary in the background; closing the handle waits for it."""
        self._handle.require_open()

        async def work() -> Summary:
            try:
                return await self.make(summarizer)
            except BaseException as error:
                self._report_failure(error)
                raise

        return self._handle.background(work())

    async def make_room(self, summarizer: Summariser, room: WindowRequest) -> bool:
        """Summarize messages that a window has no room for; log a failure and return False."""
        try:
            await self.make(summarizer, room)
        except SummaryError as error:
            self._report_failure(error)
            return False
        except ConflictError:  # Another summary came first.
            return True
        return True

    async def undo(self) -> None:
        """Restore the previous summary, or the messages themselves if there is none."""
        await self._handle.write(summaries.undo_summary(self._handle.replica))

    def _report_failure(self, error: BaseException) -> None:
        name, reason = self._handle.replica.name, getattr(error, "reason", type(error).__name__)
        where = {"store": self._handle.driver.name, "session": name}
        events.emit("unsummarised", {**where, "reason": reason})

    async def _ask(self, summarizer: Summariser, work: SummaryJob) -> Any:
        call = summaries.summary_call(summarizer, work)
        limit = asyncio.timeout(summarizer.timeout)
        try:
            async with limit:
                if iscoroutinefunction(summarizer.with_):
                    return await call()
                answer, error = await _run_in_thread(call)
                if error is None:
                    return await answer if isawaitable(answer) else answer
        except Exception as failure:
            if limit.expired():
                raise summaries.timeout_failure(work, summarizer) from None
            raise summaries.failure(work, failure) from failure
        raise summaries.failure(work, error) from error


async def _run_in_thread(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Call a plain function in a daemon thread, which does not delay the end of the program.

    Return its result or its exception: a SystemExit raised there must not end the event loop.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(answer: Any, error: BaseException | None) -> None:
        if not future.done():  # Otherwise the caller no longer waits.
            future.set_result((answer, error))

    def run() -> None:
        answer, failure = None, None
        try:
            answer = call()
        except BaseException as error:  # noqa: BLE001 - raised where the answer is waited for
            failure = error
        with suppress(RuntimeError):  # The loop has ended in the meantime.
            loop.call_soon_threadsafe(settle, answer, failure)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name="perdure-summary", daemon=True).start()
    return await future
