"""AsyncSummaries: have a summary written and put it in force, now or in the background."""

from typing import TYPE_CHECKING, Any

from perdure import events
from perdure.aio.concurrency import call_function, require_resolved
from perdure.aio.handle import AsyncHandle
from perdure.core import summaries
from perdure.core.summaries import Summarizer, SummaryJob
from perdure.core.window import EVERYTHING, WindowRequest
from perdure.errors import ConflictError, SummaryError
from perdure.journal.records import Summary

if TYPE_CHECKING:
    from asyncio import Task


class AsyncSummaries:
    """The summaries of a session. While a text is being written, only its caller waits."""

    def __init__(self, handle: AsyncHandle) -> None:
        self._handle = handle

    async def make(self, summarizer: Summarizer, room: WindowRequest = EVERYTHING) -> Summary:
        """Have a summary written and put it in force; SummaryError if it is rejected."""
        handle, replica = self._handle, self._handle.replica
        with handle.span("summary") as seen:
            steps = summaries.select(replica, summarizer, live=handle.active_turns, room=room)
            work = await handle.run(steps)
            seen.fields.update(first=work.first, last=work.last)
            content = summaries.validate(summarizer, work, await self._ask(summarizer, work))
            await handle.write(summaries.activate_summary(replica, content, work.digest))
            seen.fields["tokens"] = content.tokens
        return content

    def start(self, summarizer: Summarizer) -> "Task[Summary]":
        """Make a summary in the background; closing the handle waits for it."""
        self._handle.require_open()

        async def work() -> Summary:
            try:
                return await self.make(summarizer)
            except BaseException as error:
                self._report_failure(error)
                raise

        return self._handle.background.start(work)

    async def make_room(self, summarizer: Summarizer, room: WindowRequest) -> bool:
        """Summarize messages that a window has no room for; log a failure and return False."""
        try:
            await self.make(summarizer, room)
        except SummaryError as error:
            self._report_failure(error)
            return False
        except ConflictError:  # Another summary came first.
            return True
        return True

    def _report_failure(self, error: BaseException) -> None:
        name, reason = self._handle.replica.name, getattr(error, "reason", type(error).__name__)
        where = {"store": self._handle.driver.name, "session": name}
        events.emit("summary_failed", {**where, "reason": reason})

    async def _ask(self, summarizer: Summarizer, work: SummaryJob) -> Any:
        # In a thread of its own: a function that hangs must not delay the end of the process.
        called = await call_function(
            summaries.summary_call(summarizer, work),
            timeout=summarizer.timeout,
            name="perdure-summary",
            detached=True,
        )
        if called is None:
            reason = f"the summarizer took longer than {summarizer.timeout:g} seconds"
            raise SummaryError(work.session, reason)
        answer, error = called
        if error is not None:
            reason = f"the summarizer raised {type(error).__qualname__}"
            raise SummaryError(work.session, reason) from error
        require_resolved(answer)
        return answer
