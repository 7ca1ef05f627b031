"""Whether a call needs an approval, and for how long its caller waits for one. Pure.

An approval's time is counted twice: by the recorded time it ends at, which any process compares
with its own clock, and by whoever waits, on a clock that nobody can set. Whichever is first.
"""

from typing import Any

from perdure import events
from perdure.approvals import approving
from perdure.effects import effecting
from perdure.effects.effecting import Called, Verdict
from perdure.effects.tools import Given, Spec
from perdure.errors import ApprovalPendingError, UsageError
from perdure.replica import Replica

LOOK = 30.0  # Seconds; so often somebody who waits compares the recorded end with the clock.


def asked_of(replica: Replica, spec: Spec, call: Called) -> Any:
    """Return what the tool says about the need for an approval, of a copy of the arguments."""
    if isinstance(spec.approval, bool):
        return spec.approval
    arguments = replica.settings.codec.unpack(call.arguments, stream=replica.name)
    try:
        return spec.approval(arguments)
    except Exception as error:
        raise undecided(spec, error) from error


def undecided(spec: Spec, error: Exception) -> UsageError:
    """Return the error of a tool that could not say whether a call needs an approval."""
    return UsageError(
        f"the approval function of {spec.name!r} raised {error!r}: nothing was called"
    )


def with_need(call: Called, spec: Spec, need: object) -> Called:
    """Return a call that knows whether it needs an approval."""
    if not isinstance(need, bool):
        kind = type(need).__name__
        raise UsageError(
            f"the approval function of {spec.name!r} must return True or False, not {kind}: "
            "nothing was called"
        )
    return call._replace(approval=need, approval_ttl=spec.approval_ttl) if need else call


def require_unchanged(replica: Replica, call: Called, given: Given) -> None:
    """Raise if the arguments were changed while the call waited: others were approved."""
    if effecting.encoded(replica, given.arguments)[1] != call.digest:
        raise UsageError(
            f"the arguments of {call.tool!r} were changed while it waited for its approval: "
            "nothing was called"
        )


class Patience:
    """For how long one caller waits, on a clock that nobody sets."""

    def __init__(self, store: str, wait: float | None, now: float) -> None:
        self._store = store
        self._deadline = None if wait is None else now + wait
        self._approval = ""
        self._end: float | None = None
        self._looked = False

    def seconds(self, replica: Replica, call: Called, verdict: Verdict, now: float) -> float:
        """Return for how long to wait before the next look, or raise ApprovalPendingError."""
        if verdict.approval != self._approval:
            self._begin(replica, call, verdict, now)
        if self._end is not None and now >= self._end:
            verdict.overdue = True
            return 0.0
        if self._deadline is not None and now >= self._deadline and self._looked:
            raise ApprovalPendingError(replica.name, call.tool, verdict.approval, self._store)
        self._looked = True  # Even who does not wait looks once: the view may be old.
        ends = [end - now for end in (self._deadline, self._end) if end is not None]
        return max(min([LOOK, *ends]), 0.0)

    def _begin(self, replica: Replica, call: Called, verdict: Verdict, now: float) -> None:
        self._approval, self._end, self._looked = verdict.approval, None, False
        found = replica.fold.deeds.consents.find(verdict.approval)
        left = approving.seconds_left(replica.settings, found[1].expires) if found else None
        if left is not None:
            most = left if call.approval_ttl is None else call.approval_ttl
            self._end = now + min(left, most)  # However far back the clock was set.
        if self._deadline is None or now < self._deadline:
            pending = ApprovalPendingError(replica.name, call.tool, verdict.approval, self._store)
            where = {"store": self._store, "session": replica.name, "tool": call.tool}
            told = {**where, "approval": verdict.approval, "decide": pending.command}
            events.tell("approval", told)
