"""AsyncTool: a function whose calls are recorded before and after. Its twin is in `tool`.

If the intent can not be made durable, the function does not run. What was recorded is returned and
never run again; what may have happened is told, and follows the tool's policy.
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
    """A durable tool. Made by `session.tool`; called like the function that it wraps, in a turn."""

    def __init__(
        self, handle: AsyncHandle, spec: Spec, key: str = "", *, in_turn: bool = False
    ) -> None:
        self._handle = handle
        self.spec = spec
        self._key = key
        self._in_turn = in_turn

    @property
    def name(self) -> str:
        """The name that the model calls it by."""
        return self.spec.name

    def keyed(self, key: str, *, in_turn: bool = False) -> "AsyncTool":
        """Return the tool for one call under a key of the caller's own.

        The key tells the call from all others of the session, or from those of its turn.
        """
        require_text(key, "a key", longest=tools.NAME_BYTES_MAX)
        return AsyncTool(self._handle, self.spec, key, in_turn=in_turn)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the tool, or return what it returned when this very call was made before."""
        spec, replica = self.spec, self._handle.replica
        running = tools.running_turn(self._handle, spec.name)
        arguments = tools.bound(spec, args, kwargs)
        packed, digest = effecting.encoded(replica, arguments)
        parent = tools.current_identity()
        turn = running.ownership.turn
        identity = (
            tools.keyed(spec.name, self._key, turn if self._in_turn else "")
            if self._key
            else running.ordinals.identity(turn, parent, spec.name, digest)
        )
        call = Called(
            identity, spec.name, packed, digest, spec.policy, spec.version, spec.actor, parent
        )
        try:
            return await self.make(call, Given(arguments, args, kwargs))
        except ApprovalPendingError:
            running.ordinals.give_back(call, turn)
            raise

    async def make(
        self,
        call: Called,
        given: Given,
        tell: Telling | None = None,
        slots: Semaphore | None = None,
    ) -> Any:
        """Make a call once: see to its intent, run it if it is to be run, record its outcome.

        `tell` makes the message that tells the model of the outcome, stored together with it, and
        knows when it was. Of `slots`, one is held, and let go while the call waits for an approval.
        """
        if self._handle.replay is not None:
            return self._handle.replay.serve(self.spec, call, tell)
        guard.require_free(f"a live call of {call.tool!r}")
        replica, arguments = self._handle.replica, given.arguments
        running = tools.running_turn(self._handle, call.tool)
        verdict = Verdict(running.ownership.turn, running.ordinals.ended)
        if self.spec.approval is not False:
            call = await self._with_need(call)
        await self._intend(call, given, verdict, tell, slots)
        tools.report(self._handle, call, verdict)
        if verdict.action == "reconcile":
            found = await self._reconcile(call, arguments, verdict, tell)
            if isinstance(found, Done):
                return found.result
            await self._intend(call, given, verdict, tell, slots, again=True)
            tools.report(self._handle, call, verdict)
        if verdict.action == "unknown":
            if tell is not None:
                tell.told = tell.last
            raise UnknownOutcomeError(
                replica.name, call.tool, verdict.effect, verdict.key, effecting.NOTICE
            )
        if verdict.action == "refused" and tell is not None:
            tell.told = tell.last
        if verdict.action in ("serve", "refused") and verdict.outcome is not None:
            result = tools.served(replica.name, call.tool, verdict.key, verdict.outcome)
            return replica.settings.codec.unpack(result, stream=replica.name)
        try:
            return await self._run(call, given, verdict, tell)
        except BaseException:
            running.ordinals.ended[verdict.effect] = True
            raise

    async def _with_need(self, call: Called) -> Called:
        need = consenting.asked_of(self._handle.replica, self.spec, call)
        try:
            need = await need if inspect.isawaitable(need) else need
        except Exception as error:
            raise consenting.undecided(self.spec, error) from error
        return consenting.with_need(call, self.spec, need)

    async def _intend(
        self,
        call: Called,
        given: Given,
        verdict: Verdict,
        tell: Telling | None,
        slots: Semaphore | None,
        *,
        again: bool = False,
    ) -> None:
        """See to the intent of a call, waiting for its approval where it needs one."""
        handle, replica = self._handle, self._handle.replica
        ownership, ordinals = tools.running_turn(handle, call.tool)
        patience: Patience | None = None
        notice = tell.say(INTERRUPTED_NOTICE, failed=True) if tell and not again else None
        say = tell.say if tell else None
        while True:
            plan = effecting.intend(
                replica, ownership, call, verdict, again=again, notice=notice, say=say
            )
            try:
                await handle.write(plan)
            except BaseException as error:
                ordinals.unmade(call, ownership.turn, verdict.attempt, error)
                raise
            if verdict.action != "wait":
                return
            now = time.monotonic()
            patience = patience or Patience(handle.driver.name, self.spec.approval_wait, now)
            seconds = patience.seconds(replica, call, verdict, now)
            await self._wait(verdict, seconds, slots)
            consenting.require_unchanged(replica, call, given)

    async def _wait(self, verdict: Verdict, seconds: float, slots: Semaphore | None) -> None:
        """Wait for whatever is written next, and take it in."""
        if slots is not None:
            slots.release()
        try:
            if not await self._handle.wait(verdict.seen, seconds):
                self._handle.require_open()
        finally:
            if slots is not None:
                await slots.acquire()
        await self._handle.write(CATCH_UP)

    async def _run(self, call: Called, given: Given, verdict: Verdict, tell: Telling | None) -> Any:
        effect = Effect(verdict.effect, call.tool, verdict.key, given.arguments)
        start = time.perf_counter()
        try:
            with tools.during(effect, call.identity):
                result = await self._within_time(given.args, given.kwargs)
        except BaseException as error:
            outcome = tools.failure(error, time.perf_counter() - start, call.called)
            await self._record_failure(call, verdict, outcome, error, tell)
            raise
        duration = time.perf_counter() - start
        try:
            packed = self._handle.replica.settings.codec.pack(result, root="$.result")
            outcome = Outcome("succeeded", packed, duration=duration)
            await self._settle(call, verdict, outcome, tools.text_of(result), tell)
        except UsageError as error:  # Of another type than can be stored, or too large.
            outcome = tools.unstorable(error, duration)
            await self._settle(call, verdict, outcome, outcome.reason, tell)
            if self.spec.unstorable == "return":
                return result
            raise
        return result

    async def _within_time(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        timeout = self.spec.timeout
        if timeout is None:
            return await self._awaited(args, kwargs)
        # Not `wait_for`, which can not tell its own timeout from one that the tool raised.
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
        self, call: Called, arguments: dict[str, Any], verdict: Verdict, tell: Telling | None
    ) -> Any:
        effect = Effect(verdict.effect, call.tool, verdict.key, arguments)
        assert self.spec.reconcile is not None  # noqa: S101 - `require_spec` saw to it
        try:
            found = self.spec.reconcile(effect)
            if inspect.isawaitable(found):
                found = await found
            packed = tools.packed_found(self._handle.replica, found)
        except Exception as error:
            outcome = tools.not_reconciled(error)
            await self._settle(call, verdict, outcome, INTERRUPTED_NOTICE, tell)
            name = self._handle.replica.name
            raise UnknownOutcomeError(
                name, call.tool, verdict.effect, verdict.key, outcome.reason
            ) from error
        if isinstance(found, Done):
            outcome = Outcome("reconciled", packed)
            await self._settle(call, verdict, outcome, tools.text_of(found.result), tell)
        return found

    async def _settle(
        self,
        call: Called,
        verdict: Verdict,
        outcome: Outcome,
        text: str,
        tell: Telling | None,
    ) -> None:
        failed = outcome.state not in ("succeeded", "reconciled")
        said = tell.say(text, failed=failed) if tell else None
        plan = effecting.settle(
            self._handle.replica,
            call.identity,
            verdict.effect,
            outcome,
            said=said,
            turn=verdict.turn,
        )
        # A caller that is cancelled does not undo what the tool did: its outcome is recorded.
        writing = asyncio.ensure_future(self._handle.write(plan))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing
            raise
        except UnavailableError:
            if not failed:  # Made again, it is the same call, and not another one.
                tools.running_turn(self._handle, call.tool).ordinals.give_back(call, verdict.turn)
            raise
        if tell is not None and said is not None:
            tell.told = said.message

    async def _record_failure(
        self,
        call: Called,
        verdict: Verdict,
        outcome: Outcome,
        error: BaseException,
        tell: Telling | None,
    ) -> None:
        try:
            await self._settle(call, verdict, outcome, tools.error_text(outcome), tell)
        except PerdureError as failed:
            # The tool's own error goes on; that it could not be recorded must not hide it.
            error.add_note(f"perdure could not record that the call failed: {failed}")


Returned = tuple[Any, BaseException | None]


def _done(function: Callable[[], Any]) -> Returned:
    """Return what a function returned and raised: a future does not take every error."""
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - raised where the caller waits
        return None, error


async def _beside(work: Callable[[], Returned], name: str) -> Returned:
    """Await what runs in a thread that nobody waits for at the end: the loop's own are joined."""
    loop, context = asyncio.get_running_loop(), copy_context()
    future: asyncio.Future[Returned] = loop.create_future()

    def tell(found: Returned) -> None:
        if not future.done():
            future.set_result(found)

    def run() -> None:
        found = context.run(work)
        with suppress(RuntimeError):  # The loop is closed: it was too late.
            loop.call_soon_threadsafe(tell, found)

    # A daemon: a tool that hangs must not keep the process from ending.
    Thread(target=run, name=name, daemon=True).start()
    return await future
