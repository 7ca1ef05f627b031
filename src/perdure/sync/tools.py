"""Tool: a function whose calls are recorded before and after. Its twin is in `tool_async`.

If the intent can not be made durable, the function does not run. What was recorded is returned and
never run again; what may have happened is told, and follows the tool's policy.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from threading import Event, Semaphore, Thread
from typing import Any

from perdure.core import messages
from perdure.core.effects import approvals, calls, pending, plans
from perdure.core.effects.approvals import ApprovalWait
from perdure.core.effects.calls import (
    CallArguments,
    CallDecision,
    CallOutcome,
    CallRequest,
    Done,
    Effect,
    ResultMessage,
    ToolSpec,
)
from perdure.core.effects.pending import PendingCall
from perdure.core.effects.results import (
    collect_results,
    encode_reconciliation,
    failure_outcome,
    failure_text,
    replay_result,
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
from perdure.sync.handle import Handle


class Tool:
    """A durable tool. Made by `session.tool`; called like the function that it wraps, in a turn."""

    def __init__(
        self, handle: Handle, spec: ToolSpec, key: str = "", *, in_turn: bool = False
    ) -> None:
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
        require_text(key, "a key", longest=calls.NAME_BYTES_MAX)
        return Tool(self._handle, self.spec, key, in_turn=in_turn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the tool, or return what it returned when this very call was made before."""
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
            return self.make(call, CallArguments(arguments, args, kwargs))
        except ApprovalPendingError:
            running.sequence.reuse(call, turn)
            raise

    def make(
        self,
        call: CallRequest,
        given: CallArguments,
        tell: ResultMessage | None = None,
        slots: Semaphore | None = None,
    ) -> Any:
        """Make a call once: see to its intent, run it if it is to be run, record its outcome.

        `tell` makes the message that tells the model of the outcome, stored together with it, and
        knows when it was. Of `slots`, one is held, and let go while the call waits for an approval.
        """
        if self._handle.replay is not None:
            return self._handle.replay.serve(self.spec, call, tell)
        guard.require_live(f"a live call of {call.tool!r}")
        replica, arguments = self._handle.replica, given.arguments
        running = calls.active_turn(self._handle, call.tool)
        verdict = CallDecision(running.ownership.turn, running.sequence.ended_attempts)
        if self.spec.approval is not False:
            call = self._with_need(call)
        self._intend(call, given, verdict, tell, slots)
        calls.report_version_mismatch(self._handle, call, verdict)
        if verdict.action == "reconcile":
            found = self._reconcile(call, arguments, verdict, tell)
            if isinstance(found, Done):
                return found.result
            self._intend(call, given, verdict, tell, slots, again=True)
            calls.report_version_mismatch(self._handle, call, verdict)
        if verdict.action == "unknown":
            if tell is not None:
                tell.stored = tell.latest
            raise UnknownOutcomeError(
                replica.name, call.tool, verdict.effect, verdict.key, plans.PROCESS_DIED_REASON
            )
        if verdict.action == "refused" and tell is not None:
            tell.stored = tell.latest
        if verdict.action in ("serve", "refused") and verdict.outcome is not None:
            result = replay_result(replica.name, call.tool, verdict.key, verdict.outcome)
            return replica.settings.codec.unpack(result, stream=replica.name)
        try:
            return self._run(call, given, verdict, tell)
        except BaseException:
            running.sequence.ended_attempts[verdict.effect] = True
            raise

    def _with_need(self, call: CallRequest) -> CallRequest:
        need = approvals.needs_approval(self._handle.replica, self.spec, call)
        return approvals.with_approval(call, self.spec, need)

    def _intend(
        self,
        call: CallRequest,
        given: CallArguments,
        verdict: CallDecision,
        tell: ResultMessage | None,
        slots: Semaphore | None,
        *,
        again: bool = False,
    ) -> None:
        """See to the intent of a call, waiting for its approval where it needs one."""
        handle, replica = self._handle, self._handle.replica
        ownership, ordinals = calls.active_turn(handle, call.tool)
        patience: ApprovalWait | None = None
        notice = tell.build(INTERRUPTED_NOTICE, failed=True) if tell and not again else None
        say = tell.build if tell else None
        while True:
            plan = plans.plan_intent(
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
            patience = patience or ApprovalWait(handle.driver.name, self.spec.approval_wait, now)
            seconds = patience.seconds(replica, call, verdict, now)
            self._wait(verdict, seconds, slots)
            approvals.require_same_arguments(replica, call, given)

    def _wait(self, verdict: CallDecision, seconds: float, slots: Semaphore | None) -> None:
        """Wait for whatever is written next, and take it in."""
        if slots is not None:
            slots.release()
        try:
            if not self._handle.wait(verdict.wait_after, seconds):
                self._handle.require_open()
        finally:
            if slots is not None:
                slots.acquire()
        self._handle.write(REFRESH_SILENTLY)

    def _run(
        self,
        call: CallRequest,
        given: CallArguments,
        verdict: CallDecision,
        tell: ResultMessage | None,
    ) -> Any:
        effect = Effect(verdict.effect, call.tool, verdict.key, given.arguments)
        start = time.perf_counter()
        try:
            with calls.effect_context(effect, call.identity):
                result = self._within_time(given.args, given.kwargs)
        except BaseException as error:
            outcome = failure_outcome(error, time.perf_counter() - start, call.kind)
            self._record_failure(call, verdict, outcome, error, tell)
            raise
        duration = time.perf_counter() - start
        try:
            packed = self._handle.replica.settings.codec.pack(result, root="$.result")
            outcome = CallOutcome("succeeded", packed, duration=duration)
            self._settle(call, verdict, outcome, to_model_text(result), tell)
        except UsageError as error:  # Of another type than can be stored, or too large.
            outcome = unstorable_outcome(error, duration)
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
            raise calls.ToolTimeoutError(self.spec.timeout)
        if errors:
            raise errors[0]
        return results[0]

    def _reconcile(
        self,
        call: CallRequest,
        arguments: dict[str, Any],
        verdict: CallDecision,
        tell: ResultMessage | None,
    ) -> Any:
        effect = Effect(verdict.effect, call.tool, verdict.key, arguments)
        assert self.spec.reconcile is not None  # noqa: S101 - `require_spec` saw to it
        try:
            found = self.spec.reconcile(effect)
            packed = encode_reconciliation(self._handle.replica, found)
        except Exception as error:
            outcome = unreconciled_outcome(error)
            self._settle(call, verdict, outcome, INTERRUPTED_NOTICE, tell)
            name = self._handle.replica.name
            raise UnknownOutcomeError(
                name, call.tool, verdict.effect, verdict.key, outcome.reason
            ) from error
        if isinstance(found, Done):
            outcome = CallOutcome("reconciled", packed)
            self._settle(call, verdict, outcome, to_model_text(found.result), tell)
        return found

    def _settle(
        self,
        call: CallRequest,
        verdict: CallDecision,
        outcome: CallOutcome,
        text: str,
        tell: ResultMessage | None,
    ) -> None:
        failed = outcome.state not in ("succeeded", "reconciled")
        said = tell.build(text, failed=failed) if tell else None
        plan = plans.plan_outcome(
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
                calls.active_turn(self._handle, call.tool).sequence.reuse(call, verdict.turn)
            raise
        if tell is not None and said is not None:
            tell.stored = said.message

    def _record_failure(
        self,
        call: CallRequest,
        verdict: CallDecision,
        outcome: CallOutcome,
        error: BaseException,
        tell: ResultMessage | None,
    ) -> None:
        try:
            self._settle(call, verdict, outcome, failure_text(outcome), tell)
        except PerdureError as failed:
            # The tool's own error goes on; that it could not be recorded must not hide it.
            error.add_note(f"perdure could not record that the call failed: {failed}")


class Model:
    """A durable model. Made by `session.model`; called with a request, in a turn."""

    def __init__(self, handle: Handle, spec: ToolSpec) -> None:
        self._handle = handle
        self._tool = Tool(handle, spec)

    @property
    def name(self) -> str:
        """The name that it is recorded under."""
        return self._tool.name

    def __call__(self, *args: Any, **request: Any) -> Any:
        """Ask the model, or return what it answered when this very request was made before."""
        spec = self._tool.spec
        running = calls.active_turn(self._handle, spec.name)
        arguments = calls.bind_arguments(spec, args, request)
        call = calls.model_call(self._handle.replica, running, spec, arguments)
        return self._tool.make(call, CallArguments(arguments, args, request))


ToolSet = Mapping[str, "Tool | Callable[..., Any]"] | Sequence["Tool | Callable[..., Any]"]


def run_tool_calls(
    handle: Handle, message: object | None, offered: ToolSet, *, parallel: int
) -> list[dict[str, Any]]:
    """Make the calls of a message, or all that are open, and return what the model is told."""
    require_int(parallel, "parallel")
    running = calls.active_turn(handle, "run_tool_calls")
    jobs = handle.run(pending.read_pending_calls(handle.replica, running.ownership.turn, message))
    box = _tools_by_name(handle, offered)
    if parallel <= 1 or len(jobs) <= 1:
        return [_run_call(handle, job, box) for job in jobs]
    from concurrent.futures import ThreadPoolExecutor  # It brings `logging` along.

    slots, threads = None, min(parallel, len(jobs))
    if any(tool.spec.approval for tool in box.values()):
        # Those that wait for an approval have threads, but do not keep the others from running.
        slots, threads = Semaphore(parallel), len(jobs)
    with ThreadPoolExecutor(threads, "perdure tools") as pool:
        started = [
            pool.submit(copy_context().run, _run_call, handle, job, box, slots) for job in jobs
        ]
    found = [future.exception() or future.result() for future in started]
    return collect_results(found)


def _tools_by_name(handle: Handle, offered: ToolSet) -> dict[str, Tool]:
    named = offered.items() if isinstance(offered, Mapping) else [("", one) for one in offered]
    found: dict[str, Tool] = {}
    for name, one in named:
        spec = (
            one.spec if isinstance(one, Tool) else calls.require_spec(ToolSpec(one, name, "unsafe"))
        )
        # Whichever session a tool was made in, the call is one of this session.
        found[name or spec.name] = Tool(handle, spec)
    return found


def _run_call(
    handle: Handle, job: PendingCall, box: Mapping[str, Tool], slots: Semaphore | None = None
) -> dict[str, Any]:
    """Make one call, when there is a slot. Whatever becomes of it, the model is told."""
    if slots is not None:
        with slots:
            return _run_call_in_slot(handle, job, box, slots)
    return _run_call_in_slot(handle, job, box, None)


def _run_call_in_slot(
    handle: Handle, job: PendingCall, box: Mapping[str, Tool], slots: Semaphore | None
) -> dict[str, Any]:
    tell = ResultMessage(job.answer)
    tool = box.get(job.issued.call.name)
    problem = job.problem(box)
    if tool is None or problem:
        return _store_result(handle, tell, problem, failed=True)
    spec, arguments = tool.spec, job.issued.arguments
    packed, digest = calls.encode_arguments(handle.replica, arguments)
    failed = False
    call = CallRequest(
        job.identity, spec.name, packed, digest, spec.policy, spec.version, spec.actor
    )
    try:
        result = tool.make(call, CallArguments(arguments, (), arguments), tell, slots)
    except Exception as error:
        # What was recorded of the call, the model was told with it, and goes on.
        if tell.stored is None and not isinstance(error, UnknownOutcomeError | EffectError):
            raise
        result, failed = str(error), True
    if tell.stored is None:  # It was served from the record, where nobody had told the model.
        return _store_result(handle, tell, to_model_text(result), failed=failed)
    return tell.stored


def _store_result(
    handle: Handle, tell: ResultMessage, text: str, *, failed: bool
) -> dict[str, Any]:
    running = calls.active_turn(handle, "run_tool_calls")
    said = tell.build(text, failed=failed)
    handle.write(messages.append_parsed(handle.replica, [said], turn=running.ownership))
    return said.message
