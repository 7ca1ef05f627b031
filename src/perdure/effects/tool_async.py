"""AsyncTool: a function whose calls are recorded before and after they run.

If the intent cannot be made durable, the function does not run. A recorded result is returned and
the function never runs again for it. A call that may have happened is reported, and the tool's
policy decides whether it runs again.
"""

import asyncio
import inspect
import time
from asyncio import Semaphore
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from threading import Thread
from typing import Any

from perdure.approvals import consenting
from perdure.approvals.consenting import Patience
from perdure.effects import effecting, tools
from perdure.effects.calls import INTERRUPTED_NOTICE
from perdure.effects.effecting import Called, Outcome, Verdict
from perdure.effects.tools import Done, Effect, Given, Spec, Telling
from perdure.errors import (
    ApprovalPendingError,
    PerdureError,
    UnavailableError,
    UnknownOutcomeError,
    UsageError,
)
from perdure.handle_async import AsyncHandle
from perdure.plans import require_text
from perdure.replays import guard
from perdure.writing import CATCH_UP


class AsyncTool:
    """A durable tool. Created by `session.tool`; called like the wrapped function, in a turn."""

    def __init__(
        self, handle: AsyncHandle, spec: Spec, key: str = "", *, in_turn: bool = False
    ) -> None:
        self._handle = handle
        self.spec = spec
        self._key = key
        self._in_turn = in_turn

    @property
    def name(self) -> str:
        """The name by which the model calls it."""
        return self.spec.name

    def keyed(self, key: str, *, in_turn: bool = False) -> "AsyncTool":
        """Return the tool for one call with a caller's own key.

        The key identifies the call in the session, or with `in_turn` only in its turn.
        """
        require_text(key, "a key", longest=tools.NAME_BYTES_MAX)
        return AsyncTool(self._handle, self.spec, key, in_turn=in_turn)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the tool, or return the recorded result if this call was made before."""
        spec, replica = self.spec, self._handle.replica
        running = tools.running_turn(self._handle, spec.name)
        arguments = tools.bound(spec, args, kwargs)
        packed, digest = effecting.encoded(replica, arguments)
        parent = tools.current_identity()
        turn = running.ownership.turn
        identity = (
            tools.keyed(spec.name, self._key, turn if self._in_turn else "")
            if self._key
            else running.sequence.identity(turn, parent, spec.name, digest)
        )
        call = Called(
            identity, spec.name, packed, digest, spec.policy, spec.version, spec.actor, parent
        )
        try:
            return await self.make(call, Given(arguments, args, kwargs))
        except ApprovalPendingError:
            running.sequence.reuse(call, turn)
            raise

    async def make(
        self,
        call: Called,
        given: Given,
        reply: Telling | None = None,
        slots: Semaphore | None = None,
    ) -> Any:
        """Make a call once: record its intent, run it if it has to run, record its outcome.

        `reply` builds the message with the outcome for the model, which is stored together with the
        outcome. The caller holds one of the `slots`; it is released while the call waits for an
        approval.
        """
        if self._handle.replay is not None:
            return self._handle.replay.serve(self.spec, call, reply)
        guard.require_free(f"a live call of {call.tool!r}")
        replica, arguments = self._handle.replica, given.arguments
        running = tools.running_turn(self._handle, call.tool)
        decision = Verdict(running.ownership.turn, running.sequence.ended_attempts)
        if self.spec.approval is not False:
            call = await self._with_approval(call)
        await self._intend(call, given, decision, reply, slots)
        tools.report(self._handle, call, decision)
        if decision.action == "reconcile":
            reconciled = await self._reconcile(call, arguments, decision, reply)
            if isinstance(reconciled, Done):
                return reconciled.result
            await self._intend(call, given, decision, reply, slots, again=True)
            tools.report(self._handle, call, decision)
        if decision.action == "unknown":
            if reply is not None:
                reply.stored = reply.latest
            raise UnknownOutcomeError(
                replica.name, call.tool, decision.effect, decision.key, effecting.NOTICE
            )
        if decision.action == "refused" and reply is not None:
            reply.stored = reply.latest
        if decision.action in ("serve", "refused") and decision.outcome is not None:
            result = tools.served(replica.name, call.tool, decision.key, decision.outcome)
            return replica.settings.codec.unpack(result, stream=replica.name)
        try:
            return await self._run(call, given, decision, reply)
        except BaseException:
            # Its outcome may not be stored: a repeated call must follow the policy, and not be
            # taken for one that is still in flight.
            running.sequence.ended_attempts[decision.effect] = True
            raise

    async def _with_approval(self, call: Called) -> Called:
        needed = consenting.asked_of(self._handle.replica, self.spec, call)
        try:
            needed = await needed if inspect.isawaitable(needed) else needed
        except Exception as error:
            raise consenting.undecided(self.spec, error) from error
        return consenting.with_need(call, self.spec, needed)

    async def _intend(
        self,
        call: Called,
        given: Given,
        decision: Verdict,
        reply: Telling | None,
        slots: Semaphore | None,
        *,
        again: bool = False,
    ) -> None:
        """Record the intent of a call, after waiting for its approval if it needs one."""
        handle, replica = self._handle, self._handle.replica
        ownership, sequence = tools.running_turn(handle, call.tool)
        waiting: Patience | None = None
        notice = reply.build(INTERRUPTED_NOTICE, failed=True) if reply and not again else None
        build = reply.build if reply else None
        while True:
            plan = effecting.intend(
                replica, ownership, call, decision, again=again, notice=notice, build=build
            )
            try:
                await handle.write(plan)
            except BaseException as error:
                sequence.intent_failed(call, ownership.turn, decision.attempt, error)
                raise
            if decision.action != "wait":
                return
            now = time.monotonic()
            waiting = waiting or Patience(handle.driver.name, self.spec.approval_wait, now)
            seconds = waiting.seconds(replica, call, decision, now)
            await self._wait(decision, seconds, slots)
            consenting.require_unchanged(replica, call, given)

    async def _wait(self, decision: Verdict, seconds: float, slots: Semaphore | None) -> None:
        """Wait for the next write to the session, and load it."""
        if slots is not None:
            slots.release()
        try:
            if not await self._handle.wait(decision.wait_after, seconds):
                self._handle.require_open()
        finally:
            if slots is not None:
                await slots.acquire()
        await self._handle.write(CATCH_UP)

    async def _run(
        self, call: Called, given: Given, decision: Verdict, reply: Telling | None
    ) -> Any:
        effect = Effect(decision.effect, call.tool, decision.key, given.arguments)
        start = time.perf_counter()
        try:
            with tools.during(effect, call.identity):
                result = await self._within_time(given.args, given.kwargs)
        except BaseException as error:
            outcome = tools.failure(error, time.perf_counter() - start, call.kind)
            await self._record_failure(call, decision, outcome, error, reply)
            raise
        duration = time.perf_counter() - start
        try:
            packed = self._handle.replica.settings.codec.pack(result, root="$.result")
            outcome = Outcome("succeeded", packed, duration=duration)
            await self._settle(call, decision, outcome, tools.text_of(result), reply)
        except UsageError as error:  # The result has a type that cannot be stored, or is too large.
            outcome = tools.unstorable(error, duration)
            await self._settle(call, decision, outcome, outcome.reason, reply)
            if self.spec.unstorable == "return":
                return result
            raise
        return result

    async def _within_time(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        timeout = self.spec.timeout
        if timeout is None:
            return await self._awaited(args, kwargs)
        # Not `wait_for`: it cannot tell its own timeout from a TimeoutError that the tool raised.
        task = asyncio.ensure_future(self._awaited(args, kwargs))
        try:
            done, _ = await asyncio.wait([task], timeout=timeout)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
            raise tools.ToolTimeoutError(timeout)
        return task.result()

    async def _awaited(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.spec.is_async:
            return await self.spec.function(*args, **kwargs)
        work = partial(_done, partial(self.spec.function, *args, **kwargs))
        if self.spec.timeout is None:
            result, error = await asyncio.to_thread(work)
        else:
            result, error = await _beside(work, f"perdure tool {self.name}")
        if error is not None:
            raise error
        return await result if inspect.isawaitable(result) else result

    async def _reconcile(
        self, call: Called, arguments: dict[str, Any], decision: Verdict, reply: Telling | None
    ) -> Any:
        effect = Effect(decision.effect, call.tool, decision.key, arguments)
        assert self.spec.reconcile is not None  # noqa: S101 - checked by `require_spec`
        try:
            reconciled = self.spec.reconcile(effect)
            if inspect.isawaitable(reconciled):
                reconciled = await reconciled
            packed = tools.packed_found(self._handle.replica, reconciled)
        except Exception as error:
            outcome = tools.not_reconciled(error)
            await self._settle(call, decision, outcome, INTERRUPTED_NOTICE, reply)
            name = self._handle.replica.name
            raise UnknownOutcomeError(
                name, call.tool, decision.effect, decision.key, outcome.reason
            ) from error
        if isinstance(reconciled, Done):
            outcome = Outcome("reconciled", packed)
            await self._settle(call, decision, outcome, tools.text_of(reconciled.result), reply)
        return reconciled

    async def _settle(
        self,
        call: Called,
        decision: Verdict,
        outcome: Outcome,
        text: str,
        reply: Telling | None,
    ) -> None:
        failed = outcome.state not in ("succeeded", "reconciled")
        message = reply.build(text, failed=failed) if reply else None
        plan = effecting.settle(
            self._handle.replica,
            call.identity,
            decision.effect,
            outcome,
            message=message,
            turn=decision.turn,
        )
        # Cancelling the caller does not undo what the tool did: its outcome is recorded.
        writing = asyncio.ensure_future(self._handle.write(plan))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing
            raise
        except UnavailableError:
            if (
                not failed
            ):  # If the caller repeats the call, it must be the same call, not a new one.
                tools.running_turn(self._handle, call.tool).sequence.reuse(call, decision.turn)
            raise
        if reply is not None and message is not None:
            reply.stored = message.message

    async def _record_failure(
        self,
        call: Called,
        decision: Verdict,
        outcome: Outcome,
        error: BaseException,
        reply: Telling | None,
    ) -> None:
        try:
            await self._settle(call, decision, outcome, tools.error_text(outcome), reply)
        except PerdureError as failed:
            # The caller gets the tool's own error; the failure to record it must not hide it.
            error.add_note(f"perdure could not record that the call failed: {failed}")


Returned = tuple[Any, BaseException | None]


def _done(function: Callable[[], Any]) -> Returned:
    """Return a function's result and error: a future does not accept every error."""
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - raised where the caller waits
        return None, error


async def _beside(work: Callable[[], Returned], name: str) -> Returned:
    """Run work in a daemon thread: the loop's own threads are joined when the process ends."""
    loop, context = asyncio.get_running_loop(), copy_context()
    future: asyncio.Future[Returned] = loop.create_future()

    def deliver(returned: Returned) -> None:
        if not future.done():
            future.set_result(returned)

    def run() -> None:
        returned = context.run(work)
        with suppress(RuntimeError):  # The loop is closed: it is too late to deliver.
            loop.call_soon_threadsafe(deliver, returned)

    # A tool that hangs must not keep the process from ending.
    Thread(target=run, name=name, daemon=True).start()
    return await future
