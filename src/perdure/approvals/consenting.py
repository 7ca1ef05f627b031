"""Whether a call needs an approval, and how long its caller waits for it. Pure.

An approval's lifetime is measured twice: by its recorded expiry, which every process compares with
its own clock, and by the waiting caller on a monotonic clock. The earlier end counts.
"""

from typing import Any

from perdure import events
from perdure.approvals import approving
from perdure.effects import effecting
from perdure.effects.effecting import Called, Verdict
from perdure.effects.tools import Given, Spec
from perdure.errors import ApprovalPendingError, UsageError
from perdure.replica import Replica

LOOK = 30.0  # seconds; how often a waiting caller compares the recorded expiry with the clock


def asked_of(replica: Replica, spec: Spec, call: Called) -> Any:
    """Return whether the tool requires an approval, or an awaitable for it.

    The tool's function gets a copy of the arguments, so that it cannot change the call.
    """
    if isinstance(spec.approval, bool):
        return spec.approval
    arguments = replica.settings.codec.unpack(call.arguments, stream=replica.name)
    try:
        return spec.approval(arguments)
    except Exception as error:
        raise undecided(spec, error) from error


def undecided(spec: Spec, error: Exception) -> UsageError:
    """Return the error for a tool whose approval function raised."""
    return UsageError(
        f"the approval function of {spec.name!r} raised {error!r}: nothing was called"
    )


def with_need(call: Called, spec: Spec, needed: object) -> Called:
    """Return the call with its approval requirement set."""
    if not isinstance(needed, bool):
        kind = type(needed).__name__
        raise UsageError(
            f"the approval function of {spec.name!r} must return True or False, not {kind}: "
            "nothing was called"
        )
    return call._replace(approval=needed, approval_ttl=spec.approval_ttl) if needed else call


def require_unchanged(replica: Replica, call: Called, given: Given) -> None:
    """Raise UsageError if the arguments changed while the call waited: others were approved."""
    if effecting.encoded(replica, given.arguments)[1] != call.digest:
        raise UsageError(
            f"the arguments of {call.tool!r} were changed while it waited for its approval: "
            "nothing was called"
        )


class Patience:
    """The wait of one caller for an approval, measured on a monotonic clock."""

    def __init__(self, store: str, wait: float | None, now: float) -> None:
        self._store = store
        self._deadline = None if wait is None else now + wait
        self._approval = ""
        self._expiry: float | None = None
        self._looked = False

    def seconds(self, replica: Replica, call: Called, decision: Verdict, now: float) -> float:
        """Return how long to wait before the next look, or raise ApprovalPendingError."""
        if decision.approval != self._approval:
            self._begin(replica, call, decision, now)
        if self._expiry is not None and now >= self._expiry:
            decision.overdue = True
            return 0.0
        if self._deadline is not None and now >= self._deadline and self._looked:
            raise ApprovalPendingError(replica.name, call.tool, decision.approval, self._store)
        self._looked = True  # Even a caller that does not wait looks once: its view may be stale.
        ends = [end - now for end in (self._deadline, self._expiry) if end is not None]
        return max(min([LOOK, *ends]), 0.0)

    def _begin(self, replica: Replica, call: Called, decision: Verdict, now: float) -> None:
        self._approval, self._expiry, self._looked = decision.approval, None, False
        match = replica.state.deeds.consents.find(decision.approval)
        seconds = approving.seconds_left(replica.settings, match[1].expires) if match else None
        if seconds is not None:
            # At most the TTL, even if the clock was set back since the request.
            most = seconds if call.approval_ttl is None else call.approval_ttl
            self._expiry = now + min(seconds, most)
        if self._deadline is None or now < self._deadline:
            pending = ApprovalPendingError(replica.name, call.tool, decision.approval, self._store)
            where = {"store": self._store, "session": replica.name, "tool": call.tool}
            details = {**where, "approval": decision.approval, "decide": pending.command}
            events.tell("approval", details)
