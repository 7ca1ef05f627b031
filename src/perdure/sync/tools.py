# Generated from aio/tools.py by scripts/generate_sync.py: do not edit.
"""Tool: a function whose calls are recorded before and after they run.

If the intent cannot be made durable, the function does not run. A recorded result is returned and
the function never runs again for it. A call that may have happened is reported, and the tool's
policy decides whether it runs again.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from perdure.core import messages
from perdure.core.effects import approvals, calls, pending, plans
from perdure.core.effects.approvals import ApprovalWait
from perdure.core.effects.calls import (
    ActiveTurn,
    CallArguments,
    CallDecision,
    CallOutcome,
    CallRequest,
    Effect,
    Happened,
    ResultMessage,
    ToolSpec,
)
from perdure.core.effects.pending import PendingCall
from perdure.core.effects.results import (
    collect_results,
    encode_reconciliation,
    failure_outcome,
    failure_text,
    to_model_text,
    unreconciled_outcome,
    unstorable_outcome,
)
from perdure.core.plans import REFRESH_SILENTLY
from perdure.core.replay import guard
from perdure.core.validation import require_int, require_text
from perdure.errors import (
    ApprovalPendingError,
    EffectError,
    PerdureError,
    UnavailableError,
    UnknownOutcomeError,
    UsageError,
)
from perdure.formats.tool_calls import INTERRUPTED_NOTICE
from perdure.sync.concurrency import (
    Semaphore,
    call_function,
    gather,
    require_plain_tool,
    resolve,
    shielded,
)
from perdure.sync.handle import Handle


class Tool:
    """A durable tool. Created by `session.tool`; called like the wrapped function, in a turn."""

    def __init__(
        self, handle: Handle, spec: ToolSpec, key: str = "", *, in_turn: bool = False
    ) -> None:
        require_plain_tool(spec)
        self._handle = handle
        self.spec = spec
        self._key = key
        self._in_turn = in_turn

    @property
    def name(self) -> str:
        """The name by which the model calls it."""
        return self.spec.name

    def keyed(self, key: str, *, in_turn: bool = False) -> "Tool":
        """Return the tool for one call with a caller's own key.

        The key identifies the call in the session, or with `in_turn` only in its turn.
        """
        require_text(key, "a key", longest=calls.NAME_BYTES_MAX)
        return Tool(self._handle, self.spec, key, in_turn=in_turn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the tool, or return the recorded result if this call was made before."""
        spec, replica = self.spec, self._handle.replica
        running = calls.active_turn(self._handle, spec.name)
        arguments = calls.bind_arguments(spec, args, kwargs)
        packed, digest = calls.encode_arguments(replica, arguments)
        parent = calls.current_identity()
        turn = running.ownership.turn
        identity = (
            calls.keyed_call_id(spec.name, self._key, turn if self._in_turn else "")
            if self._key
            else running.sequence.identity(turn, parent, spec.name, digest)
        )
        call = CallRequest(
            identity, spec.name, packed, digest, spec.policy, spec.version, spec.actor, parent
        )
        try:
            return self.make(call, CallArguments(arguments, args, kwargs), running)
        except ApprovalPendingError:
            running.sequence.reuse(call, turn)
            raise

    def make(
        self,
        call: CallRequest,
        given: CallArguments,
        turn: ActiveTurn,
        reply: ResultMessage | None = None,
        slots: Semaphore | None = None,
    ) -> Any:
        """Make a call once: record its intent, run it if it has to run, record its outcome.

        `reply` builds the message with the outcome for the model, which is stored together with the
        outcome. The caller holds one of the `slots`; it is released while the call waits for an
        approval.
        """
        if self._handle.replay is not None:
            return self._handle.replay.serve(self.spec, call, reply)
        if guard.active:
            guard.require_live(f"a live call of {call.tool!r}")
        if self.spec.approval is not False:
            call = self._with_approval(call)
        decision = self._intend(call, given, turn, reply, slots)
        if decision.action == "reconcile":
            reconciled = self._reconcile(call, given.arguments, turn, decision, reply)
            if isinstance(reconciled, Happened):
                return reconciled.result
            decision = self._intend(call, given, turn, reply, slots, again=True)
        if decision.action != "run":
            return plans.conclude(self._handle.replica, call, decision, reply)
        try:
            return self._run(call, given, turn, decision, reply)
        except BaseException:
            # Its outcome may not be stored: a repeated call must follow the policy, and not be
            # taken for one that is still in flight.
            turn.sequence.ended_attempts[decision.effect] = True
            raise

    def _with_approval(self, call: CallRequest) -> CallRequest:
        needed = approvals.needs_approval(self._handle.replica, self.spec, call)
        try:
            needed = resolve(needed)
        except Exception as error:
            raise approvals.approval_check_failed(self.spec, error) from error
        return approvals.with_approval(call, self.spec, needed)

    def _intend(
        self,
        call: CallRequest,
        given: CallArguments,
        turn: ActiveTurn,
        reply: ResultMessage | None,
        slots: Semaphore | None,
        *,
        again: bool = False,
    ) -> CallDecision:
        """Record the intent of a call, after waiting for its approval if it needs one.

        Return what is to be done about the call: `plans.decide_rerun` lists the actions.
        """
        handle, replica = self._handle, self._handle.replica
        waiting: ApprovalWait | None = None
        notice = reply.build(INTERRUPTED_NOTICE, failed=True) if reply and not again else None
        while True:
            plan, attempt = plans.plan_intent(
                replica,
                turn,
                call,
                again=again,
                overdue=waiting is not None and waiting.overdue,
                notice=notice,
                build=reply.build if reply else None,
            )
            try:
                decision = handle.write(plan)
            except BaseException as error:
                turn.sequence.intent_failed(call, turn.ownership.turn, attempt, error)
                raise
            if decision.action != "wait":
                if decision.begun_version is not None:
                    calls.report_version_mismatch(handle, call, decision)
                return decision
            now = time.monotonic()
            waiting = waiting or ApprovalWait(handle.driver.name, self.spec.approval_wait, now)
            seconds = waiting.seconds(replica, call, decision, now)
            self._wait(decision, seconds, slots)
            approvals.require_same_arguments(replica, call, given)

    def _wait(self, decision: CallDecision, seconds: float, slots: Semaphore | None) -> None:
        """Wait for the next write to the session, and load it."""
        if slots is not None:
            slots.release()
        try:
            if not self._handle.wait(decision.wait_after, seconds):
                self._handle.require_open()
        finally:
            if slots is not None:
                slots.acquire()
        self._handle.write(REFRESH_SILENTLY)

    def _run(
        self,
        call: CallRequest,
        given: CallArguments,
        turn: ActiveTurn,
        decision: CallDecision,
        reply: ResultMessage | None,
    ) -> Any:
        effect = Effect(decision.effect, call.tool, decision.key, given.arguments)
        start = time.perf_counter()
        try:
            result = self._call_function(call, given, effect)
        except BaseException as error:
            outcome = failure_outcome(error, time.perf_counter() - start, call.kind)
            self._record_failure(call, turn, decision, outcome, error, reply)
            raise
        duration = time.perf_counter() - start
        try:
            packed = self._handle.replica.settings.codec.pack(result, root="$.result")
            outcome = CallOutcome("succeeded", packed, duration=duration)
            text = to_model_text(result) if reply else ""
            self._settle(call, turn, decision, outcome, text, reply)
        except UsageError as error:  # The result has a type that cannot be stored, or is too large.
            outcome = unstorable_outcome(error, duration)
            self._settle(call, turn, decision, outcome, outcome.reason, reply)
            if self.spec.on_unserializable == "return":
                return result
            raise
        return result

    def _call_function(self, call: CallRequest, given: CallArguments, effect: Effect) -> Any:
        # A coroutine of its own: a StopIteration of the tool leaves it as a RuntimeError.
        with calls.effect_context(effect, call.identity):
            called = call_function(
                partial(self.spec.function, *given.args, **given.kwargs),
                timeout=self.spec.timeout,
                name=f"perdure tool {call.tool}",
            )
            return calls.require_returned(called, self.spec.timeout)

    def _reconcile(
        self,
        call: CallRequest,
        arguments: dict[str, Any],
        turn: ActiveTurn,
        decision: CallDecision,
        reply: ResultMessage | None,
    ) -> Any:
        effect = Effect(decision.effect, call.tool, decision.key, arguments)
        assert self.spec.reconcile is not None
        try:
            reconciled = resolve(self.spec.reconcile(effect))
            packed = encode_reconciliation(self._handle.replica, reconciled)
        except Exception as error:
            outcome = unreconciled_outcome(error)
            self._settle(call, turn, decision, outcome, INTERRUPTED_NOTICE, reply)
            name = self._handle.replica.name
            raise UnknownOutcomeError(
                name, call.tool, decision.effect, decision.key, outcome.reason
            ) from error
        if isinstance(reconciled, Happened):
            outcome = CallOutcome("reconciled", packed)
            text = to_model_text(reconciled.result)
            self._settle(call, turn, decision, outcome, text, reply)
        return reconciled

    def _settle(
        self,
        call: CallRequest,
        turn: ActiveTurn,
        decision: CallDecision,
        outcome: CallOutcome,
        text: str,
        reply: ResultMessage | None,
    ) -> None:
        failed = outcome.state not in ("succeeded", "reconciled")
        message = reply.build(text, failed=failed) if reply else None
        plan = plans.plan_outcome(
            self._handle.replica,
            call.identity,
            decision.effect,
            outcome,
            message=message,
            turn=turn.ownership.turn,
        )
        # Cancelling the caller does not undo what the tool did: its outcome is recorded.
        try:
            shielded(self._handle.write, plan)
        except UnavailableError:
            # If the caller repeats the call, it must be the same call, not a new one.
            if not failed:
                turn.sequence.reuse(call, turn.ownership.turn)
            raise
        if reply is not None and message is not None:
            reply.stored = message.message

    def _record_failure(
        self,
        call: CallRequest,
        turn: ActiveTurn,
        decision: CallDecision,
        outcome: CallOutcome,
        error: BaseException,
        reply: ResultMessage | None,
    ) -> None:
        try:
            self._settle(call, turn, decision, outcome, failure_text(outcome), reply)
        except PerdureError as failed:
            # The caller gets the tool's own error; the failure to record it must not hide it.
            error.add_note(f"perdure could not record that the call failed: {failed}")


class Model:
    """A durable model. Created by `session.model`; call it with a request, in a turn."""

    def __init__(self, handle: Handle, spec: ToolSpec) -> None:
        self._handle = handle
        self._tool = Tool(handle, spec)

    @property
    def name(self) -> str:
        """The name under which its calls are recorded."""
        return self._tool.name

    def __call__(self, *args: Any, **request: Any) -> Any:
        """Call the model, or return the recorded answer if this request was made before."""
        spec = self._tool.spec
        running = calls.active_turn(self._handle, spec.name)
        arguments = calls.bind_arguments(spec, args, request)
        call = calls.model_call(self._handle.replica, running, spec, arguments)
        return self._tool.make(call, CallArguments(arguments, args, request), running)


ToolSet = Mapping[str, "Tool | Callable[..., Any]"] | Sequence["Tool | Callable[..., Any]"]


def run_tool_calls(
    handle: Handle, message: object | None, offered: ToolSet, *, parallel: int
) -> list[dict[str, Any]]:
    """Make the calls of a message, or all open calls, and return the result messages."""
    require_int(parallel, "parallel")
    running = calls.active_turn(handle, "run_tool_calls")
    jobs = handle.run(pending.read_pending_calls(handle.replica, running.ownership.turn, message))
    by_name = _tools_by_name(handle, offered)

    def run(job: PendingCall, slots: Semaphore | None) -> dict[str, Any]:
        return _run_call(handle, running, job, by_name, slots)

    may_wait = any(tool.spec.approval for tool in by_name.values())
    return collect_results(gather(run, jobs, parallel=parallel, may_wait=may_wait))


def _tools_by_name(handle: Handle, offered: ToolSet) -> dict[str, Tool]:
    items = offered.items() if isinstance(offered, Mapping) else [("", tool) for tool in offered]
    by_name: dict[str, Tool] = {}
    for name, tool in items:
        spec = (
            tool.spec
            if isinstance(tool, Tool)
            else calls.require_spec(ToolSpec(tool, name, "unsafe"))
        )
        # The call belongs to this session, even if the tool was created by another one.
        by_name[name or spec.name] = Tool(handle, spec)
    return by_name


def _run_call(
    handle: Handle,
    turn: ActiveTurn,
    job: PendingCall,
    by_name: Mapping[str, Tool],
    slots: Semaphore | None,
) -> dict[str, Any]:
    """Make one call and return its result message, which is stored whatever the outcome is."""
    reply = ResultMessage(job.answer)
    tool = by_name.get(job.issued.call.name)
    problem = job.problem(by_name)
    if tool is None or problem:
        return _store_result(handle, turn, reply, problem, failed=True)
    spec, arguments = tool.spec, job.issued.arguments
    packed, digest = calls.encode_arguments(handle.replica, arguments)
    failed = False
    call = CallRequest(
        job.identity, spec.name, packed, digest, spec.policy, spec.version, spec.actor
    )
    try:
        result = tool.make(call, CallArguments(arguments, (), arguments), turn, reply, slots)
    except Exception as error:
        # An error that was stored with a message for the model does not stop the agent.
        if reply.stored is None and not isinstance(error, UnknownOutcomeError | EffectError):
            raise
        result, failed = str(error), True
    if reply.stored is None:  # The outcome was recorded earlier, without a message for the model.
        return _store_result(handle, turn, reply, to_model_text(result), failed=failed)
    return reply.stored


def _store_result(
    handle: Handle, turn: ActiveTurn, reply: ResultMessage, text: str, *, failed: bool
) -> dict[str, Any]:
    message = reply.build(text, failed=failed)
    handle.write(messages.append_parsed(handle.replica, [message], turn=turn.ownership))
    return message.message
