"""A durable team: a team or an agent whose runs are turns of a session.

Created by `agentchat.persist`. It decides nothing about records: `saved_runs` saves the state
and the runs, `run_log` records the calls.
"""

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, Self

from autogen_agentchat.base import TaskResult

from perdure import AsyncSession
from perdure.adapters.agentchat.introspection import TeamNode
from perdure.adapters.agentchat.messages import SkippedMessages
from perdure.adapters.agentchat.patches import Patches, patch_team
from perdure.adapters.agentchat.run_log import RunLog, RunStopped
from perdure.adapters.agentchat.saved_runs import SavedRuns, StartedRun
from perdure.adapters.tool_policies import ToolPolicy
from perdure.errors import UsageError


class DurableTeam:
    """A team or an agent whose runs are recorded. Use it in `async with`; one run at a time."""

    def __init__(
        self,
        session: AsyncSession,
        root: TeamNode,
        policies: dict[str, ToolPolicy],
        lease: float | None = None,
    ) -> None:
        # Waiting longer than the TTL: a dead holder's lease expires, a live one's is renewed.
        self._lease = session.lease(ttl=lease, timeout=lease + 1) if lease is not None else None
        self._session = session
        self._root = root
        self._run_log = RunLog(session, policies)
        self._saved_runs = SavedRuns(session, root)
        self._patches = Patches()
        self._running: AsyncGenerator[Any, None] | None = None
        self._entered = False

    async def __aenter__(self) -> Self:
        if self._lease is not None:
            await self._lease.__aenter__()
        try:
            await self._session.refresh()
            await self._saved_runs.restore()
            await patch_team(self._root, self._run_log, self._patches, self._saved_runs.messages)
            await self._saved_runs.require_tools(self._run_log.policies)
        except BaseException:  # Cancellation, too: the team must not stay patched.
            self._patches.restore()
            await self._release()
            raise
        self._entered = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered = False
        try:
            await self._stop()
            await self._save_changes(error)
        finally:
            self._patches.restore()
            await self._release()
            # The caller may use the same team without a session, or with another one.
            await self._saved_runs.restore_original()

    async def _save_changes(self, error: BaseException | None) -> None:
        try:
            await self._saved_runs.save_changes()
        except Exception as failure:
            if error is None:  # Must not hide the error with which the block is left.
                raise
            error.add_note(f"changes to the team were not saved: {failure}")

    async def _release(self) -> None:
        if self._lease is not None:
            await self._lease.release()

    @property
    def interrupted(self) -> str | None:
        """The task of an interrupted run as text, or None. Run it again to resume it."""
        return self._saved_runs.interrupted

    async def abandon(self, reason: str = "") -> None:
        """Abandon an interrupted run: the team returns to its state before the run.

        Messages and effects of the run stay in the record.
        """
        await self._saved_runs.abandon(reason)

    async def run(
        self,
        *,
        task: Any = None,
        id: str | None = None,
        cancellation_token: Any = None,
        output_task_messages: bool = True,
    ) -> Any:
        """Run a task to its end, as `run_stream` does; return the result."""
        result = None
        stream = self.run_stream(
            task=task,
            id=id,
            cancellation_token=cancellation_token,
            output_task_messages=output_task_messages,
        )
        async for event in stream:
            result = event
        return result

    async def run_stream(
        self,
        *,
        task: Any = None,
        id: str | None = None,
        cancellation_token: Any = None,
        output_task_messages: bool = True,
    ) -> AsyncGenerator[Any, None]:
        """Run a task; yield the team's events and last the result, each once it is durable.

        An interrupted run resumes when the same task is passed, or none; another task is a
        UsageError then. An error leaves the run open, to be resumed in the same way. With an `id`
        chosen by the caller, a finished run is not repeated: its recorded result is returned,
        however many runs came since. Without `output_task_messages` the task is omitted from the
        events and the result; it is recorded all the same.
        """
        if not self._entered:
            raise UsageError("the team is not open: use it in `async with persist(...)`")
        await self._stop()
        output = output_task_messages
        # The stream is kept: a reader that stops early leaves a run that has to be stopped.
        running = self._running = self._stream(task, id, cancellation_token, output=output)
        try:
            async for event in running:
                yield event
            if self._running is not running:
                raise UsageError(
                    "this run was stopped because another was started: run one at a time"
                )
        finally:
            if self._running is running:
                await self._stop()

    async def _stop(self) -> None:
        """Stop a run whose stream is no longer read; UsageError if it is being read."""
        if self._running is not None:
            try:
                await self._running.aclose()
            except RuntimeError as error:  # Python's error for a generator that is running.
                raise UsageError("a run is in progress: wait for its end") from error
            self._running = None

    async def _stream(
        self, task: Any, id: str | None, token: Any, *, output: bool
    ) -> AsyncGenerator[Any, None]:
        started = await self._saved_runs.begin(task, id)
        skipped = SkippedMessages(() if output else started.task)
        if started.result is not None:
            yield skipped.without(started.result)
            return
        self._run_log.begin(started.order, started.failed)
        team = self._root.component
        stream = team.run_stream(task=started.task or None, cancellation_token=token)
        result: Any = None
        try:
            async for event in stream:
                if isinstance(event, TaskResult):  # Passed on only when the run is finished.
                    result = event
                    continue
                await self._saved_runs.record_event(started, event)
                if not skipped.skip(event):
                    yield event
            self._run_log.raise_if_stopped()
            await self._saved_runs.finish(started, result)
        except BaseException as error:
            await self._interrupt(started, stream, error)
            # The package wraps or replaces errors of its agents: raise the one that came first.
            failure = self._run_log.error
            if failure is not None and failure is not error and not isinstance(failure, RunStopped):
                raise failure from error
            raise
        finally:
            self._run_log.end()
        yield skipped.without(result)

    async def _interrupt(self, started: StartedRun, stream: Any, error: BaseException) -> None:
        """Stop a run where it is: no more calls are made, and its turn stays open."""
        self._run_log.fail(RunStopped(f"the run was stopped: {type(error).__name__}"))
        try:
            await stream.aclose()
        except Exception as close_error:  # noqa: BLE001 - the first error is raised
            error.add_note(f"the team was stopped: {close_error}")
        # Tasks of the team may outlive its stream, and must not record into a turn that is left.
        await self._run_log.drain()
        await self._saved_runs.leave(started)
