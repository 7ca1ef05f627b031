"""Every exception, grouped by what the caller can do about it.

    PerdureError
    ├── UsageError        fix the call                       also a ValueError
    │   └── BudgetError   the newest turn does not fit the window
    ├── NotFoundError     there is nothing under that name   also a LookupError
    ├── SummaryError      no summary was made: try another way, or go on without
    ├── ConflictError     somebody wrote first: look, decide, append again
    ├── LeaseHeldError    another worker holds the session: wait for its lease
    ├── FencedError       this worker's lease is lost: stop, and begin anew
    ├── InUseError        living branches or a hold need it
    ├── DivergenceError   the same id was used for something else
    │   └── ReplayDivergenceError  a replayed agent did something else than is recorded
    ├── RefusedError      the network and other programs are off limits to a replayed agent
    ├── InFlightError     this very call is being made: wait for it
    ├── UnknownOutcomeError  a call may have happened: find out, then reconcile it
    ├── EffectError       a call failed when it was made, and is not made again
    │   └── ApprovalDeniedError   nobody let it happen: it was denied, or nobody decided in time
    ├── ApprovalPendingError  a call waits for somebody's approval: have it decided, then go on
    ├── ApprovalError     an approval can not be decided (any more): look at what became of it
    ├── UnavailableError  the store did not answer: try later
    ├── UnsupportedError  this store or machine can not do that: choose another
    ├── VersionError      written by a newer perdure: upgrade
    └── DamagedError      what was read is not what was written: stop and look
        ├── ChainError    an entry is missing, out of order or altered
        ├── TornError     the end was cut in the middle of a batch
        └── PayloadError  intact, but not a record

Rules for editors: arguments go to `super().__init__`, so that errors survive copying between
processes; the text is made in `__str__`; messages carry names and positions, never bodies.
"""


class PerdureError(Exception):
    """The root of everything perdure raises."""


class UsageError(PerdureError, ValueError):
    """The call can not work as it is; nothing was written. Fix the call.

    `path` says where in the given value the trouble lies, such as `$.content[2]`.
    """

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


class BudgetError(UsageError):
    """The newest turn and what every window keeps are more than was allowed. Allow more."""

    def __init__(self, session: str, needed: int, given: int, unit: str) -> None:
        PerdureError.__init__(self, session, needed, given, unit)
        self.session = session
        self.needed = needed
        self.given = given
        self.unit = unit
        self.path = ""

    @property
    def reason(self) -> str:  # type: ignore[override]
        """What is too small, and by how much."""
        what = f"the newest turn of {self.session!r} and what every window keeps"
        return f"{what} take {self.needed} {self.unit}, and {self.given} were allowed"

    def __str__(self) -> str:
        return f"{self.reason}: allow more, unpin messages, or shorten the instructions"


class NotFoundError(PerdureError, LookupError):
    """Absence was asked about: no session, version or position of that name is there."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what, hint)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what} not found" + (f": {self.hint}" if self.hint else "")


class SummaryError(PerdureError):
    """No summary was made, and the conversation is shown as it was. Its cause says what failed."""

    def __init__(self, session: str, reason: str) -> None:
        super().__init__(session, reason)
        self.session = session
        self.reason = reason

    def __str__(self) -> str:
        hint = "try another way, or go on with the messages as they are"
        return f"no summary of {self.session!r} was made, {self.reason}: {hint}"


class ConflictError(PerdureError):
    """Another writer was first, and what this call was based on no longer holds.

    Nothing of the call was written. The session has been refreshed: look at what is new, decide,
    and call again. `head` is the position that the stream has now.
    """

    def __init__(self, stream: str, position: int, head: int, reason: str = "") -> None:
        super().__init__(stream, position, head, reason)
        self.stream = stream
        self.position = position
        self.head = head
        self.reason = reason

    def __str__(self) -> str:
        because = f" ({self.reason})" if self.reason else ""
        if self.position == self.head:
            return f"{self.stream!r} can not take this{because}: look at it and decide again"
        hint = "the session has been refreshed, look at what is new and decide again"
        moved = f"{self.stream!r} moved on from position {self.position} to {self.head}"
        return f"{moved}{because}: {hint}"


class LeaseHeldError(PerdureError):
    """Another handle holds the session's lease, so this call has to wait. Nothing was written.

    `who` is what the holder called itself, `position` where it took or renewed its lease last.
    """

    def __init__(self, stream: str, epoch: int, who: str, ttl: float, position: int) -> None:
        super().__init__(stream, epoch, who, ttl, position)
        self.stream = stream
        self.epoch = epoch
        self.who = who
        self.ttl = ttl
        self.position = position

    def __str__(self) -> str:
        lease = f"epoch {self.epoch}, {self.ttl:g} s from position {self.position} on"
        hint = "wait for it with session.lease(wait=True), or leave a note"
        return f"{self.stream!r} is held by {self.who!r} ({lease}): {hint}"


class FencedError(PerdureError):
    """The lease that this call relied on is lost; nothing of the call was written.

    Stop what was begun under it: somebody else may be at it. `newer` is the epoch that stands now
    and `who` its holder; 0 and empty where nobody is known to have taken over.
    """

    def __init__(self, stream: str, epoch: int, newer: int, who: str, reason: str = "") -> None:
        super().__init__(stream, epoch, newer, who, reason)
        self.stream = stream
        self.epoch = epoch
        self.newer = newer
        self.who = who
        self.reason = reason

    def __str__(self) -> str:
        why = self.reason or f"{self.who!r} took it over with epoch {self.newer}"
        hint = "stop, then take a new lease and look at what is new"
        return f"the lease on {self.stream!r} of epoch {self.epoch} is lost, {why}: {hint}"


class InUseError(PerdureError):
    """The session can not be deleted: `by` names the branches and holds that need it."""

    def __init__(self, stream: str, by: tuple[str, ...]) -> None:
        super().__init__(stream, by)
        self.stream = stream
        self.by = by

    def __str__(self) -> str:
        return f"{self.stream!r} is needed by {', '.join(map(repr, self.by))}: delete those first"


class DivergenceError(PerdureError):
    """What was recorded is not what is asked for now: an `id`, or a call that is made again.

    Nothing was written. `recorded` and `given` name the two contents, with their digests.
    """

    def __init__(
        self,
        stream: str,
        record_id: str,
        recorded: str,
        given: str,
        hint: str = "choose another id",
    ) -> None:
        super().__init__(stream, record_id, recorded, given, hint)
        self.stream = stream
        self.record_id = record_id
        self.recorded = recorded
        self.given = given
        self.hint = hint

    def __str__(self) -> str:
        return (
            f"{self.stream!r} already holds {self.record_id!r} with other content "
            f"({self.recorded} recorded, {self.given} given): {self.hint}"
        )


class ReplayDivergenceError(DivergenceError):
    """A replayed agent did something else than what is recorded, at the place `record_id`."""

    def __str__(self) -> str:
        return f"the agent departs from {self.stream!r} at {self.record_id}: see its divergence"


class RefusedError(PerdureError):
    """A replayed agent reached for the network, another program or another session."""

    def __str__(self) -> str:
        hint = "use session.tool(...) or session.model(...) of the session that the agent is given"
        return f"{self.args[0]} is refused in a replay: {hint}"


class InFlightError(PerdureError):
    """The same call is being made in this turn right now, and has no outcome yet."""

    def __init__(self, stream: str, tool: str, identity: str) -> None:
        super().__init__(stream, tool, identity)
        self.stream = stream
        self.tool = tool
        self.identity = identity

    def __str__(self) -> str:
        return f"{self.tool!r} is being called already in {self.stream!r}: wait for its outcome"


class UnknownOutcomeError(PerdureError):
    """A call was begun and nobody knows whether it took effect; it is not made again.

    Look at the outside world, then tell: `session.effects.reconcile(effect, …)`. `key` is what the
    tool was given to make itself known there.
    """

    def __init__(self, stream: str, tool: str, effect: str, key: str, reason: str = "") -> None:
        super().__init__(stream, tool, effect, key, reason)
        self.stream = stream
        self.tool = tool
        self.effect = effect
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        which = f"effect {self.effect}, key {self.key}"
        what = f"{self.tool!r} in {self.stream!r} may have happened ({which})"
        why = f" {self.reason}" if self.reason else ""
        return f"{what}.{why} Find out, then session.effects.reconcile({self.effect!r}, …)"


class EffectError(PerdureError):
    """A call that failed when it was made, served from the record: `error` was raised then."""

    def __init__(self, stream: str, tool: str, error: str, reason: str) -> None:
        super().__init__(stream, tool, error, reason)
        self.stream = stream
        self.tool = tool
        self.error = error
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.tool!r} in {self.stream!r} failed with {self.error}: {self.reason}"


class ApprovalDeniedError(EffectError):
    """A call was not made: somebody denied it, or its approval expired before it was used.

    `error` is `ApprovalDenied` or `ApprovalExpired`, and `reason` what the model is told.
    """

    def __str__(self) -> str:
        return f"{self.tool!r} in {self.stream!r} was not called: {self.reason}"


class ApprovalPendingError(PerdureError):
    """A call waits for an approval, and its caller waits no longer. The turn is left open.

    Have it decided, then enter the turn again and make the call again: it finds the decision.
    `approvals` are the ids of all that wait, this one among them.
    """

    def __init__(
        self, stream: str, tool: str, approval: str, store: str, approvals: tuple[str, ...] = ()
    ) -> None:
        super().__init__(stream, tool, approval, store, approvals)
        self.stream = stream
        self.tool = tool
        self.approval = approval
        self.store = store
        self.approvals = approvals or (approval,)

    @property
    def command(self) -> str:
        """What to run to decide about it."""
        from shlex import quote

        where = f" --store {quote(self.store)}" if self.store else ""
        return f"perdure approve{where} {quote(self.stream)} {quote(self.approval)}"

    def __str__(self) -> str:
        more = len(self.approvals) - 1
        others = f" and {more} more" if more else ""
        return (
            f"{self.tool!r} in {self.stream!r} waits for approval {self.approval}{others}: "
            f"run `{self.command}`, then enter the turn again"
        )


class ApprovalError(PerdureError):
    """The approval is not one that waits: `state` says what became of it. Nothing was written."""

    def __init__(self, stream: str, approval: str, state: str, detail: str = "") -> None:
        super().__init__(stream, approval, state, detail)
        self.stream = stream
        self.approval = approval
        self.state = state
        self.detail = detail

    def __str__(self) -> str:
        detail = f" {self.detail}" if self.detail else ""
        return f"approval {self.approval} in {self.stream!r} is {self.state}{detail}"


class UnavailableError(PerdureError):
    """The store did not do what was asked, and may later.

    After a write, whether it was stored is unknown: the session is in doubt and finds out before
    it writes anything else. Calling again is safe where the call carried an `id`.
    """

    was_waited_for = False
    """Whether the backend itself tried for as long as it may: nobody has to try again at once."""
    of_one = False  # Whether one stream may be the reason, such as a lock on it; others go on.

    def __init__(self, backend: str, reason: str, hint: str = "try again later") -> None:
        super().__init__(backend, reason, hint)
        self.backend = backend
        self.reason = reason
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}: {self.hint}"


class UnsupportedError(PerdureError):
    """This store, file system or library version can not keep what is promised."""

    def __init__(self, capability: str, hint: str) -> None:
        super().__init__(capability, hint)
        self.capability = capability
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.capability}: {self.hint}"


class VersionError(PerdureError):
    """The data was written by a newer perdure. Nothing is wrong with it: upgrade to read it."""

    def __init__(self, what: str, found: str, known: str) -> None:
        super().__init__(what, found, known)
        self.what = what
        self.found = found
        self.known = known

    def __str__(self) -> str:
        return (
            f"{self.what} is of version {self.found}, this perdure knows {self.known}: upgrade it"
        )


class DamagedError(PerdureError):
    """What was read is not what was written. Stop, keep a copy of the store, and look.

    `position` is the first bad position, or 0 where the damage is not in one entry.
    """

    def __init__(self, stream: str, position: int, reason: str) -> None:
        super().__init__(stream, position, reason)
        self.stream = stream
        self.position = position
        self.reason = reason

    def __str__(self) -> str:
        where = f"{self.stream!r} entry {self.position}" if self.position else f"{self.stream!r}"
        return f"{where} is damaged: {self.reason}"


class ChainError(DamagedError):
    """An entry is missing, out of order, altered, or belongs to another stream."""


class TornError(DamagedError):
    """A batch was cut in the middle by a crash. It was never acknowledged and counts as absent."""


class PayloadError(DamagedError):
    """The entry is intact, but what it holds is not a record of its kind."""
