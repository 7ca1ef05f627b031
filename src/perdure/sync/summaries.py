"""Summaries: has a text made, and puts it in force. Its twin is in `summaries_async`."""

import contextvars
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perdure import events
from perdure.core import summaries
from perdure.core.summaries import Summariser, SummaryJob
from perdure.core.window import EVERYTHING, WindowRequest
from perdure.errors import ConflictError, SummaryError, UsageError
from perdure.journal.records import Summary
from perdure.sync.handle import Handle

if TYPE_CHECKING:
    from concurrent.futures import Future


class Summaries:
    """What a session does about summaries. Nothing waits while a text is made but its caller."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def make(self, summarizer: Summariser, room: WindowRequest = EVERYTHING) -> Summary:
        """Have a summary made and put it in force; SummaryError if it is refused."""
        handle, replica = self._handle, self._handle.replica
        with handle.observed("summary") as seen:
            steps = summaries.select(replica, summarizer, live=handle.own_turns, room=room)
            work = handle.run(steps)
            seen.fields.update(first=work.first, last=work.last)
            content = summaries.validate(summarizer, work, self._ask(summarizer, work))
            handle.write(summaries.activate_summary(replica, content))
            seen.fields["tokens"] = content.tokens
        return content

    def start(self, summarizer: Summariser) -> "Future[Summary]":
        """Make a summary in the background; closing the handle waits for it."""
        from concurrent.futures import Future

        self._handle.require_open()
        future: Future[Summary] = Future()
        future.set_running_or_notify_cancel()

        def work() -> None:
            try:
                future.set_result(self.make(summarizer))
            except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
                self._report_failure(error)
                future.set_exception(error)

        self._handle.background(work)
        return future

    def make_room(self, summarizer: Summariser, room: WindowRequest) -> bool:
        """Sum up what a window has no room for; False if that was refused, which is told of."""
        try:
            self.make(summarizer, room)
        except SummaryError as error:
            self._report_failure(error)
            return False
        except ConflictError:  # Another summary came first.
            return True
        return True

    def undo(self) -> None:
        """Go back to the summary before the one in force, or to the messages themselves."""
        self._handle.write(summaries.undo_summary(self._handle.replica))

    def _report_failure(self, error: BaseException) -> None:
        name, reason = self._handle.replica.name, getattr(error, "reason", type(error).__name__)
        where = {"store": self._handle.driver.name, "session": name}
        events.emit("unsummarised", {**where, "reason": reason})

    def _ask(self, summarizer: Summariser, work: SummaryJob) -> Any:
        call = _ThreadCall(summaries.summary_call(summarizer, work))
        # A thread that nobody waits for: a function that hangs must not hold up the caller.
        run = contextvars.copy_context().run
        thread = threading.Thread(target=run, args=(call,), name="perdure-summary", daemon=True)
        thread.start()
        thread.join(summarizer.timeout)
        if thread.is_alive():
            raise summaries.timeout_failure(work, summarizer)
        if call.error is not None:
            raise summaries.failure(work, call.error) from call.error
        from inspect import isawaitable  # It would be a fifth of the time that opening takes.

        if isawaitable(call.answer):
            getattr(call.answer, "close", bool)()
            raise UsageError("an async function or client needs open_async, or give a plain one")
        return call.answer


class _ThreadCall:
    """A call in a thread of its own, with what became of it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.answer: Any = None
        self.error: BaseException | None = None

    def __call__(self) -> None:
        try:
            self.answer = self._function()
        except BaseException as error:  # noqa: BLE001 - raised where the answer is waited for
            self.error = error
