# Generated from aio/tools.py by scripts/generate_sync.py: do not edit.
"""Tool: a function whose calls are recorded before and after they run.

If the intent cannot be made durable, the function does not run; a read-only one is recorded once,
after it ran. A recorded result is returned and the function never runs again for it. A call that
may have happened is reported, and the tool's policy decides whether it runs again.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, update_wrapper
from typing import Any, Generic, NamedTuple

from perdure.core import messages, turn_records
from perdure.core.effects import approvals, calls, plans, requested_calls
from perdure.core.effects.approvals import ApprovalWait
from perdure.core.effects.calls import (
    ActiveTurn,
    CallArguments,
    CallDecision,
    CallOutcome,
    CallRequest,
    Effect,
    Happened,
    OutcomeState,
    P,
    R_co,
    ResultMessage,
    ToolSpec,
)
from perdure.core.effects.requested_calls import IssuedCall
from perdure.core.effects.results import (
    collect_results,
    failure_outcome,
    failure_text,
    may_run_again,
    recorded_failure_text,
    require_reconciliation,
    to_model_text,
    unreconciled_outcome,
    unstored_outcome,
)
from perdure.core.plans import REFRESH_SILENTLY
from perdure.core.validation import require_parallel, require_text
from perdure.errors import (
    ApprovalPendingError,
    EffectError,
    InFlightError,
    PerdureError,
    UnavailableError,
    UnknownOutcomeError,
    UsageError,
)
from perdure.formats.intake import copy_data
from perdure.formats.tool_calls import INTERRUPTED_NOTICE
from perdure.sync.concurrency import Semaphore, call_function, gather, require_plain_tool, resolve
from perdure.sync.handle import Handle


class Tool(Generic[P, R_co]):
    """A durable tool. Created by `session.tool`; called like the wrapped function, in a turn.

    It has the name, documentation and signature of the function.
    """

    def __init__(
        self, handle: Handle, spec: ToolSpec, key: str = "", *, in_turn: bool = False
    ) -> None:
        require_plain_tool(spec)
        self._handle = handle
        self.spec = spec
        self._key = key
        self._in_turn = in_turn
        update_wrapper(self, spec.function, updated=())

    @property
    def name(self) -> str:
        """The name by which the model calls it."""
        return self.spec.name

    def keyed(self, key: str, *, in_turn: bool = False) -> "Tool[P, R_co]":
        """Return the tool for one call with a caller's own key.

        The key identifies the call in the session, or with `in_turn` only in its turn.
        """
        require_text(key, "a key", longest=calls.NAME_BYTES_MAX)
        return Tool(self._handle, self.spec, key, in_turn=in_turn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the tool, or return the recorded result if this call was made before."""
        spec, replica = self.spec, self._handle.replica
        running = _active_turn(self._handle, spec.name)
        bound = calls.bind_arguments(spec, args, kwargs)
        packed, digest, given = calls.copy_arguments(replica, bound)
        parent = calls.current_identity()
        turn = running.ownership.turn
        identity = (
            calls.keyed_call_id(spec.name, self._key, turn if self._in_turn else "")
            if self._key
            else running.sequence.identity(turn, parent, spec.name, digest)
        )
        call = spec.request(identity, packed, digest, parent)
        try:
            result: R_co = self.make(call, given, running)
        except ApprovalPendingError:
            running.sequence.reuse(call, turn)
            raise
        return result

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
        if turn.ended:
            replica = self._handle.replica
            decision = self._handle.run(plans.read_recorded(replica, turn, call))
            return plans.conclude(replica, call, decision, reply)
        if self._handle.replay is not None:
            return self._handle.replay.serve(self.spec, call, reply)
        if self.spec.approval is not False:
            call = self._with_approval(call)
        return DurableCall(self._handle, self.spec, call, given, turn, reply, slots).make()

    def _with_approval(self, call: CallRequest) -> CallRequest:
        needed = approvals.needs_approval(self._handle.replica, self.spec, call)
        try:
            needed = resolve(needed)
        except Exception as error:
            raise approvals.approval_check_failed(self.spec, error) from error
        return approvals.with_approval(call, self.spec, needed)


def _active_turn(handle: Handle, tool: str) -> ActiveTurn:
    """Return the turn that a call belongs to; of one that has ended, read its effects first."""
    running = calls.active_turn(handle, tool)
    if running.ended and running.sequence.recorded is None:
        steps = turn_records.read_effects(handle.replica, running.ownership.turn)
        running.sequence.recorded = handle.run(steps)
    return running


class DurableCall(NamedTuple):
    """One call of a tool, from its intent to its outcome."""

    handle: Handle
    spec: ToolSpec
    call: CallRequest
    given: CallArguments
    turn: ActiveTurn
    reply: ResultMessage | None
    slots: Semaphore | None

    def make(self) -> Any:
        """Record the intent, run the tool if it has to run, record the outcome."""
        decision = self._intend()
        if decision.action == "reconcile":
            reconciled = self._reconcile(decision)
            if isinstance(reconciled, Happened):
                return reconciled.result
            decision = self._intend(again=True)
        if decision.action != "run":
            return plans.conclude(self.handle.replica, self.call, decision, self.reply)
        try:
            return self._run(decision)
        except BaseException:
            # Its outcome may not be stored: a repeated call must follow the policy, and not be
            # taken for one that is still in flight.
            self.turn.sequence.ended_attempts[decision.effect] = True
            raise

    def _intend(self, *, again: bool = False) -> CallDecision:
        """Record the intent of a call, after waiting for its approval if it needs one.

        Return what is to be done about the call: `plans.decide_rerun` lists the actions.
        """
        handle, call, turn, reply = self.handle, self.call, self.turn, self.reply
        waiting: ApprovalWait | None = None
        has_looked = False
        notice = reply.build(INTERRUPTED_NOTICE, failed=True) if reply and not again else None
        while True:
            plan, attempt = plans.plan_intent(
                handle.replica,
                turn,
                call,
                again=again,
                overdue=waiting is not None and waiting.overdue,
                notice=notice,
                build=reply.build if reply else None,
            )
            try:
                decision = handle.write(plan)
            except InFlightError:
                if has_looked:
                    raise
                # Another turn may have recorded the outcome since: this view may be old.
                has_looked = True
                handle.write(REFRESH_SILENTLY)
                continue
            except BaseException as error:
                turn.sequence.intent_failed(call, turn.ownership.turn, attempt, error)
                raise
            if decision.action != "wait":
                if decision.begun_version is not None:
                    calls.report_version_mismatch(handle, call, decision)
                return decision
            now = time.monotonic()
            waiting = waiting or ApprovalWait(handle.driver.name, self.spec.approval_wait, now)
            self._wait(decision, waiting.seconds(handle.replica, call, decision, now))

    def _wait(self, decision: CallDecision, seconds: float) -> None:
        """Wait for the next write to the session, and load it."""
        if self.slots is not None:
            self.slots.release()
        try:
            if not self.handle.wait(decision.wait_after, seconds):
                self.handle.require_open()
        finally:
            if self.slots is not None:
                self.slots.acquire()
        self.handle.write(REFRESH_SILENTLY)

    def _run(self, decision: CallDecision) -> Any:
        start = time.perf_counter()
        try:
            result = self._call_function(decision)
        except BaseException as error:
            outcome = failure_outcome(error, time.perf_counter() - start, self.call.kind)
            try:
                self._settle_failure(decision, outcome)
            except PerdureError as failure:
                # The caller gets the tool's own error; the failure to record it must not hide it.
                error.add_note(f"perdure could not record that the call failed: {failure}")
            raise
        self._settle_result(decision, "succeeded", result, time.perf_counter() - start)
        return result

    def _effect(self, decision: CallDecision, arguments: dict[str, Any]) -> Effect:
        return Effect(decision.effect, self.call.tool, decision.key, arguments)

    def _call_function(self, decision: CallDecision) -> Any:
        # Apart, because a StopIteration of the tool leaves async code as a RuntimeError.
        function = partial(self.spec.function, *self.given.args, **self.given.kwargs)
        name, timeout = f"perdure tool {self.call.tool}", self.spec.timeout
        effect = self._effect(decision, self.given.arguments)
        with calls.effect_context(effect, self.call.identity):
            called = call_function(function, timeout=timeout, name=name)
            return calls.require_returned(called, timeout)

    def _reconcile(self, decision: CallDecision) -> Any:
        replica = self.handle.replica
        assert self.spec.reconcile is not None  # noqa: S101 - checked by `require_spec`
        try:
            # A copy, because the tool may still be called, with the arguments that are recorded.
            arguments = replica.settings.codec.unpack(self.call.arguments, stream=replica.name)
            reconciled = resolve(self.spec.reconcile(self._effect(decision, arguments)))
            require_reconciliation(reconciled)
        except Exception as error:
            outcome = unreconciled_outcome(error)
            self._settle(decision, outcome, INTERRUPTED_NOTICE)
            which = replica.name, self.call.tool, decision.effect, decision.key
            raise UnknownOutcomeError(*which, outcome.reason) from error
        if isinstance(reconciled, Happened):
            self._settle_result(decision, "reconciled", reconciled.result)
        return reconciled

    def _settle_result(
        self, decision: CallDecision, state: OutcomeState, result: Any, duration: float = 0.0
    ) -> None:
        """Record the result of a call that took effect, as a text if it cannot be stored."""
        outcome = CallOutcome(state, result, duration=duration)
        try:
            self._settle(decision, outcome, to_model_text(result) if self.reply else "")
        except UsageError:  # It has a type that cannot be stored, or is too large.
            outcome = unstored_outcome(state, result, duration)
            self._settle(decision, outcome, outcome.result)
            calls.report_unstored(self.handle, self.call, decision.effect, outcome)

    def _settle_failure(self, decision: CallDecision, outcome: CallOutcome) -> None:
        """Record a failure, without its result if that cannot be stored."""
        text = failure_text(outcome)
        try:
            self._settle(decision, outcome, text)
        except UsageError:
            if outcome.result is None:
                raise
            self._settle(decision, outcome._replace(result=None), text)

    def _settle(self, decision: CallDecision, outcome: CallOutcome, text: str) -> None:
        """Record an outcome, whose result is not packed yet, and the message for the model."""
        replica, identity, turn = self.handle.replica, self.call.identity, self.turn.ownership.turn
        packed = replica.settings.codec.pack(outcome.result, root="$.result")
        outcome = outcome._replace(result=packed)
        failed = outcome.state not in ("succeeded", "reconciled")
        # The model is not told about a call that may run again when its turn is continued.
        tell = self.reply is not None and not may_run_again(outcome, self.call.policy)
        message = self.reply.build(text, failed=failed) if self.reply and tell else None
        plan = plans.plan_outcome(
            replica, identity, decision.effect, outcome, message=message, turn=turn
        )
        if decision.intent is not None:
            plan = plans.plan_whole_call(decision.intent, plan)
        # Cancelling the caller does not undo what the tool did: its outcome is recorded.
        try:
            self.handle.write(plan)
        except UnavailableError:
            # If the caller repeats the call, it must be the same call, not a new one.
            if not failed:
                self.turn.sequence.reuse(self.call, turn)
            raise
        if self.reply is not None and message is not None:
            self.reply.stored = message.message


class Model(Generic[P, R_co]):
    """A durable model. Created by `session.model`; call it with a request, in a turn."""

    def __init__(self, handle: Handle, spec: ToolSpec) -> None:
        self._handle = handle
        self._tool: Tool[..., Any] = Tool(handle, spec)
        update_wrapper(self, spec.function, updated=())

    @property
    def name(self) -> str:
        """The name under which its calls are recorded."""
        return self._tool.name

    def __call__(self, *args: P.args, **request: P.kwargs) -> R_co:
        """Call the model, or return the recorded answer if this request was made before."""
        spec = self._tool.spec
        running = _active_turn(self._handle, spec.name)
        # Copied first: what is digested is what is sent, whatever happens to the caller's objects.
        args, request = copy_data((args, request), objects=spec.digest_of is None)
        arguments = calls.bind_arguments(spec, args, request).by_name()
        digested = arguments if spec.digest_of is None else spec.digest_of(arguments)
        replica, turn = self._handle.replica, running.ownership.turn
        call = calls.model_call(replica, turn, running.sequence, spec.name, digested)
        call = call._replace(version=spec.version, actor=spec.actor)
        given = CallArguments(arguments, args, request)
        answer: R_co = self._tool.make(call, given, running)
        return answer


AnyTool = Tool[..., Any] | Callable[..., Any]

ToolSet = Mapping[str, AnyTool] | Sequence[AnyTool]


def run_tool_calls(
    handle: Handle, message: object | None, offered: ToolSet, *, parallel: int
) -> list[dict[str, Any]]:
    """Make the calls of a message, or all open calls, and return the result messages."""
    require_parallel(parallel)
    running = _active_turn(handle, "run_tool_calls")
    if message is None and running.ended:
        return []
    turn = running.ownership.turn
    jobs = handle.run(requested_calls.read_requested_calls(handle.replica, turn, message))
    by_name = tools_by_name(handle, offered)

    def run(job: IssuedCall, slots: Semaphore | None) -> dict[str, Any]:
        return _run_call(handle, running, job, by_name, slots)

    may_wait = any(tool.spec.approval for tool in by_name.values())
    return collect_results(gather(run, jobs, parallel=parallel, may_wait=may_wait))


def tools_by_name(handle: Handle, offered: ToolSet) -> dict[str, Tool[..., Any]]:
    """Return tools of the handle's session, by the names by which a model calls them."""
    given: object = offered
    if callable(given) or not isinstance(given, Iterable):
        kind = type(given).__qualname__
        raise UsageError(f"tools must be a list of functions, or a dict of them, not a {kind}")
    items = offered.items() if isinstance(offered, Mapping) else [("", tool) for tool in offered]
    by_name: dict[str, Tool[..., Any]] = {}
    for name, tool in items:
        if isinstance(tool, Tool):
            spec = tool.spec
        else:
            spec = calls.require_spec(ToolSpec(tool, name, "unsafe"))
        known = by_name.get(name or spec.name)
        if known is not None and known.spec.function != spec.function:
            reason = f"two tools have the name {spec.name!r}"
            raise UsageError(f"{reason}: give one another, by session.tool(function, name=...)")
        # The call belongs to this session, even if the tool was created by another one.
        by_name[name or spec.name] = Tool(handle, spec)
    return by_name


def _run_call(
    handle: Handle,
    turn: ActiveTurn,
    job: IssuedCall,
    by_name: Mapping[str, Tool[..., Any]],
    slots: Semaphore | None,
) -> dict[str, Any]:
    """Make one call and return its result message, which is stored whatever the outcome is."""
    if job.result is not None:
        return job.result
    reply = ResultMessage(job.answer)
    tool = by_name.get(job.issued.call.name)
    problem = job.problem(by_name)
    if tool is None or problem:
        return _store_result(handle, turn, reply, problem, failed=True)
    spec, arguments = tool.spec, job.issued.arguments
    packed, digest = calls.encode_arguments(handle.replica, arguments)
    failed = False
    call = spec.request(job.identity, packed, digest)
    try:
        result = tool.make(call, CallArguments(arguments, (), arguments), turn, reply, slots)
    except (UnknownOutcomeError, EffectError) as error:
        result, failed = recorded_failure_text(error), True
    except Exception:
        # An error that was stored with a message for the model does not stop the agent.
        if reply.stored is None:
            raise
        return reply.stored
    if reply.stored is None:  # The outcome was recorded earlier, without a message for the model.
        return _store_result(handle, turn, reply, to_model_text(result), failed=failed)
    return reply.stored


def _store_result(
    handle: Handle, turn: ActiveTurn, reply: ResultMessage, text: str, *, failed: bool
) -> dict[str, Any]:
    message = reply.build(text, failed=failed)
    handle.write(messages.append_parsed(handle.replica, [message], turn=turn.ownership))
    return message.message
