"""Tool: a function whose calls are recorded before and after. Its twin is in `tool_async`.

If the intent can not be made durable, the function does not run. What was recorded is returned and
never run again; what may have happened is told, and follows the tool's policy.
"""

import time
from contextvars import copy_context
from threading import Event, Semaphore, Thread
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
from perdure.handle import Handle
from perdure.plans import require_text
from perdure.replays import guard
from perdure.writing import CATCH_UP


class Tool:
    """A durable tool. Made by `session.tool`; called like the function that it wraps, in a turn."""

    def __init__(self, handle: Handle, spec: Spec, key: str = "", *, in_turn: bool = False) -> None:
        if spec.is_async:
            hint = "open the store with perdure.open_async"
            raise UsageError(f"{spec.name!r} is an async function: {hint}")
        self._handle = handle
        self.spec = spec
        self._key = key
        self._in_turn = in_turn

    @property
    def name(self) -> str:
        """The name that the model calls it by."""
        return self.spec.name

    def keyed(self, key: str, *, in_turn: bool = False) -> "Tool":
        """Return the tool for one call under a key of the caller's own.

        The key tells the call from all others of the session, or from those of its turn.
        """
        require_text(key, "a key", longest=tools.NAME_BYTES_MAX)
        return Tool(self._handle, self.spec, key, in_turn=in_turn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
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
            else running.sequence.identity(turn, parent, spec.name, digest)
        )
        call = Called(
            identity, spec.name, packed, digest, spec.policy, spec.version, spec.actor, parent
        )
        try:
            return self.make(call, Given(arguments, args, kwargs))
        except ApprovalPendingError:
            running.sequence.reuse(call, turn)
            raise

    def make(
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
        verdict = Verdict(running.ownership.turn, running.sequence.ended_attempts)
        if self.spec.approval is not False:
            call = self._with_need(call)
        self._intend(call, given, verdict, tell, slots)
        tools.report(self._handle, call, verdict)
        if verdict.action == "reconcile":
            found = self._reconcile(call, arguments, verdict, tell)
            if isinstance(found, Done):
                return found.result
            self._intend(call, given, verdict, tell, slots, again=True)
            tools.report(self._handle, call, verdict)
        if verdict.action == "unknown":
            if tell is not None:
                tell.stored = tell.latest
            raise UnknownOutcomeError(
                replica.name, call.tool, verdict.effect, verdict.key, effecting.NOTICE
            )
        if verdict.action == "refused" and tell is not None:
            tell.stored = tell.latest
        if verdict.action in ("serve", "refused") and verdict.outcome is not None:
            result = tools.served(replica.name, call.tool, verdict.key, verdict.outcome)
            return replica.settings.codec.unpack(result, stream=replica.name)
        try:
            return self._run(call, given, verdict, tell)
        except BaseException:
            running.sequence.ended_attempts[verdict.effect] = True
            raise

    def _with_need(self, call: Called) -> Called:
        need = consenting.asked_of(self._handle.replica, self.spec, call)
        return consenting.with_need(call, self.spec, need)

    def _intend(
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
        notice = tell.build(INTERRUPTED_NOTICE, failed=True) if tell and not again else None
        say = tell.build if tell else None
        while True:
            plan = effecting.intend(
                replica, ownership, call, verdict, again=again, notice=notice, build=say
            )
            try:
                handle.write(plan)
            except BaseException as error:
                ordinals.intent_failed(call, ownership.turn, verdict.attempt, error)
                raise
            if verdict.action != "wait":
                return
            now = time.monotonic()
            patience = patience or Patience(handle.driver.name, self.spec.approval_wait, now)
            seconds = patience.seconds(replica, call, verdict, now)
            self._wait(verdict, seconds, slots)
            consenting.require_unchanged(replica, call, given)

    def _wait(self, verdict: Verdict, seconds: float, slots: Semaphore | None) -> None:
        """Wait for whatever is written next, and take it in."""
        if slots is not None:
            slots.release()
        try:
            if not self._handle.wait(verdict.wait_after, seconds):
                self._handle.require_open()
        finally:
            if slots is not None:
                slots.acquire()
        self._handle.write(CATCH_UP)

    def _run(self, call: Called, given: Given, verdict: Verdict, tell: Telling | None) -> Any:
        effect = Effect(verdict.effect, call.tool, verdict.key, given.arguments)
        start = time.perf_counter()
        try:
            with tools.during(effect, call.identity):
                result = self._within_time(given.args, given.kwargs)
        except BaseException as error:
            outcome = tools.failure(error, time.perf_counter() - start, call.kind)
            self._record_failure(call, verdict, outcome, error, tell)
            raise
        duration = time.perf_counter() - start
        try:
            packed = self._handle.replica.settings.codec.pack(result, root="$.result")
            outcome = Outcome("succeeded", packed, duration=duration)
            self._settle(call, verdict, outcome, tools.text_of(result), tell)
        except UsageError as error:  # Of another type than can be stored, or too large.
            outcome = tools.unstorable(error, duration)
            self._settle(call, verdict, outcome, outcome.reason, tell)
            if self.spec.unstorable == "return":
                return result
            raise
        return result

    def _within_time(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.spec.timeout is None:
            return self.spec.function(*args, **kwargs)
        results: list[Any] = []
        errors: list[BaseException] = []
        done, context = Event(), copy_context()

        def work() -> None:
            try:
                results.append(context.run(self.spec.function, *args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised where the caller waits
                errors.append(error)
            done.set()

        # A daemon: a tool that hangs must not keep the process from ending.
        Thread(target=work, name=f"perdure tool {self.name}", daemon=True).start()
        if not done.wait(self.spec.timeout):
            raise tools.ToolTimeoutError(self.spec.timeout)
        if errors:
            raise errors[0]
        return results[0]

    def _reconcile(
        self, call: Called, arguments: dict[str, Any], verdict: Verdict, tell: Telling | None
    ) -> Any:
        effect = Effect(verdict.effect, call.tool, verdict.key, arguments)
        assert self.spec.reconcile is not None  # noqa: S101 - `require_spec` saw to it
        try:
            found = self.spec.reconcile(effect)
            packed = tools.packed_found(self._handle.replica, found)
        except Exception as error:
            outcome = tools.not_reconciled(error)
            self._settle(call, verdict, outcome, INTERRUPTED_NOTICE, tell)
            name = self._handle.replica.name
            raise UnknownOutcomeError(
                name, call.tool, verdict.effect, verdict.key, outcome.reason
            ) from error
        if isinstance(found, Done):
            outcome = Outcome("reconciled", packed)
            self._settle(call, verdict, outcome, tools.text_of(found.result), tell)
        return found

    def _settle(
        self,
        call: Called,
        verdict: Verdict,
        outcome: Outcome,
        text: str,
        tell: Telling | None,
    ) -> None:
        failed = outcome.state not in ("succeeded", "reconciled")
        said = tell.build(text, failed=failed) if tell else None
        plan = effecting.settle(
            self._handle.replica,
            call.identity,
            verdict.effect,
            outcome,
            message=said,
            turn=verdict.turn,
        )
        try:
            self._handle.write(plan)
        except UnavailableError:
            if not failed:  # Made again, it is the same call, and not another one.
                tools.running_turn(self._handle, call.tool).sequence.reuse(call, verdict.turn)
            raise
        if tell is not None and said is not None:
            tell.stored = said.message

    def _record_failure(
        self,
        call: Called,
        verdict: Verdict,
        outcome: Outcome,
        error: BaseException,
        tell: Telling | None,
    ) -> None:
        try:
            self._settle(call, verdict, outcome, tools.error_text(outcome), tell)
        except PerdureError as failed:
            # The tool's own error goes on; that it could not be recorded must not hide it.
            error.add_note(f"perdure could not record that the call failed: {failed}")
