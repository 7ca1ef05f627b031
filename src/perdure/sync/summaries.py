# Generated from aio/summaries.py by scripts/generate_sync.py: do not edit.
"""Summaries: have a summary written and put it in force, now or in the background."""

from typing import TYPE_CHECKING, Any

from perdure import events
from perdure.core import summaries
from perdure.core.summaries import Summarizer, SummaryJob
from perdure.core.window import EVERYTHING, WindowRequest
from perdure.errors import ConflictError, SummaryError
from perdure.journal.records import Summary
from perdure.sync.concurrency import call_function, require_resolved
from perdure.sync.handle import Handle

if TYPE_CHECKING:
    from concurrent.futures import Future


class Summaries:
    """The summaries of a session. While a text is being written, only its caller waits."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def make(self, summarizer: Summarizer, room: WindowRequest = EVERYTHING) -> Summary:
        """Have a summary written and put it in force; SummaryError if it is rejected."""
        handle, replica = self._handle, self._handle.replica
        with handle.span("summary") as seen:
            steps = summaries.select(replica, summarizer, live=handle.active_turns, room=room)
            work = handle.run(steps)
            seen.fields.update(first=work.first, last=work.last)
            content = summaries.validate(summarizer, work, self._ask(summarizer, work))
            handle.write(summaries.activate_summary(replica, content, work.digest))
            seen.fields["tokens"] = content.tokens
        return content

    def start(self, summarizer: Summarizer) -> "Future[Summary]":
        """Make a summary in the background; closing the handle waits for it."""
        self._handle.require_open()

        def work() -> Summary:
            try:
                return self.make(summarizer)
            except BaseException as error:
                self._report_failure(error)
                raise

        return self._handle.background.start(work)

    def make_room(self, summarizer: Summarizer, room: WindowRequest) -> bool:
        """Summarize messages that a window has no room for; log a failure and return False."""
        try:
            self.make(summarizer, room)
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

    def _ask(self, summarizer: Summarizer, work: SummaryJob) -> Any:
        # In a thread of its own: a function that hangs must not delay the end of the process.
        called = call_function(
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
