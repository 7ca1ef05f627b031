"""Durable: a team or an agent whose runs are turns of a session. Made by `agentchat.persist`."""

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, Self

from autogen_agentchat.base import TaskResult

from perdure import AsyncSession
from perdure.adapters.agentchat_journal import Journal, Policy, Stopped
from perdure.adapters.agentchat_keeping import Begun, Keeping
from perdure.adapters.agentchat_places import stand_in
from perdure.adapters.agentchat_record import LeftOut
from perdure.adapters.agentchat_tree import Node, Places
from perdure.errors import UsageError


class Durable:
    """A team or an agent whose runs are kept. Use it in `async with`; one run at a time."""

    def __init__(
        self,
        session: AsyncSession,
        root: Node,
        policies: dict[str, Policy],
        lease: float | None = None,
    ) -> None:
        # One that a dead process held runs out meanwhile, one that is renewed does not.
        self._lease = session.lease(ttl=lease, wait=lease + 1) if lease is not None else None
        self._session = session
        self._root = root
        self._journal = Journal(session, policies)
        self._keeping = Keeping(session, root)
        self._places = Places()
        self._running: AsyncGenerator[Any, None] | None = None
        self._entered = False

    async def __aenter__(self) -> Self:
        if self._lease is not None:
            await self._lease.__aenter__()
        try:
            await self._session.refresh()
            await self._keeping.restore()
            await stand_in(self._root, self._journal, self._places, self._keeping.messages)
            await self._keeping.require_tools(self._journal.policies)
        except BaseException:
            self._places.restore()
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
            await self._keep(error)
        finally:
            self._places.restore()
            await self._release()
            await self._keeping.let_go()

    async def _keep(self, error: BaseException | None) -> None:
        try:
            await self._keeping.keep()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"what was changed of the team was not kept: {failure}")

    async def _release(self) -> None:
        if self._lease is not None:
            await self._lease.release()

    @property
    def interrupted(self) -> str | None:
        """The task of a run that was cut off, in words, or None. Run it again to go on with it."""
        return self._keeping.interrupted

    async def abandon(self, reason: str = "") -> None:
        """Give up a run that was cut off: the team goes back to where it was before it.

        What the run said and did stays in the record.
        """
        await self._keeping.abandon(reason)

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
        """Run a task, and yield what the team does and last the result, each when it is durable.

        A run that was cut off goes on when the same task is given, or none; another task is a
        UsageError then. An error leaves the run open, to be gone on with in the same way. With an
        `id` of the caller's own, a run that is over is not made again: its result is returned, if
        no other came since. Without `output_task_messages` the task is left out of what is yielded
        and of the result; it is recorded all the same.
        """
        if not self._entered:
            raise UsageError("the team is not open: use it in `async with persist(...)`")
        await self._stop()
        output = output_task_messages
        running = self._running = self._stream(task, id, cancellation_token, output=output)
        try:
            async for event in running:
                yield event
            if self._running is not running:
                raise UsageError("this run was cut off, as another was begun: run one at a time")
        finally:
            if self._running is running:
                await self._stop()

    async def _stop(self) -> None:
        """Cut off a run that nobody listens to any more; refuse if somebody does."""
        if self._running is not None:
            try:
                await self._running.aclose()
            except RuntimeError as error:
                raise UsageError("a run is under way: wait for its end") from error
            self._running = None

    async def _stream(
        self, task: Any, id: str | None, token: Any, *, output: bool
    ) -> AsyncGenerator[Any, None]:
        begun = await self._keeping.begin(task, id)
        left_out = LeftOut(() if output else begun.task)
        if begun.result is not None:
            yield left_out.of(begun.result)
            return
        self._journal.begin(begun.order, begun.failed)
        team = self._root.component
        stream = team.run_stream(task=begun.task or None, cancellation_token=token)
        result: Any = None
        try:
            async for event in stream:
                if isinstance(event, TaskResult):
                    result = event
                    continue
                await self._keeping.tell(begun, event)
                if not left_out.has(event):
                    yield event
            self._journal.require_going_on()
            await self._keeping.finish(begun, result)
        except BaseException as error:
            await self._cut(begun, stream, error)
            found = self._journal.error
            if found is not None and found is not error and not isinstance(found, Stopped):
                raise found from error
            raise
        finally:
            self._journal.end()
        yield left_out.of(result)

    async def _cut(self, begun: Begun, stream: Any, error: BaseException) -> None:
        """Let a run end where it is: no call is made any more, and its turn stays open."""
        self._journal.fail(Stopped(f"the run was stopped: {type(error).__name__}"))
        try:
            await stream.aclose()
        except Exception as closing:  # noqa: BLE001 - the first error is the one that is told
            error.add_note(f"the team was stopped: {closing}")
        await self._journal.drain()
        await self._keeping.leave(begun)
