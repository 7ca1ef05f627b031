"""Every exception that perdure raises, grouped by what the caller can do about it.

    PerdureError
    ├── UsageError        fix the call                       also a ValueError
    │   └── ContextWindowError   the newest turn does not fit into the window
    ├── NotFoundError     nothing is stored under that name  also a LookupError
    │   ├── CompactedError       it was there, and a compaction dropped it
    │   └── ErasedError          it was there, and its key was destroyed
    ├── SummaryError      no summary was made: retry another way, or continue without one
    ├── ConflictError     another writer was first: re-read, decide and retry
    ├── LeaseHeldError    another worker holds the session: wait for its lease
    ├── FencedError       this worker lost its lease: stop, then start over under a new one
    ├── InUseError        branches or a hold still need the session
    ├── DivergenceError   the same id was used for different content
    │   └── ReplayDivergenceError  a replayed agent differs from its recording
    ├── ReplayBlockedError      a replayed agent used the network, another process or a live session
    ├── InFlightError     the same call is running: wait for its outcome
    ├── UnknownOutcomeError  a call may have happened: find out, then reconcile it
    ├── UnstoredResultError  a recorded call succeeded, and its result could not be stored
    ├── EffectError       a recorded call failed, and is not called again
    │   └── ApprovalDeniedError   it was denied, or its approval expired
    ├── AgentLimitError   an agent reached a limit: raise it and run the turn again, or abandon it
    ├── ApprovalPendingError  a call waits for an approval: have it decided, then resume
    ├── ApprovalError     the approval is already decided, used or expired
    ├── SealedError       the store is encrypted: get the key
    │   ├── MissingKeyError      no key was given, or the key store has no such key
    │   └── WrongKeyError        the key is not the one that the store was sealed with
    ├── UnavailableError  the store did not respond: retry later
    ├── UnsupportedError  this store or machine cannot do that: choose another
    ├── VersionError      written by a newer perdure: upgrade
    └── DamagedError      stored data was altered or lost: stop, copy the store, verify it
        ├── ChainError    an entry is missing, out of order or altered
        ├── HistoryReplacedError     the store was put back to another history: decide
        └── PayloadError  the entry is intact, but is not a valid record

Rules for editing: pass all arguments to `super().__init__`, so that errors survive pickling between
processes. Build the text in `__str__`: what happened, where, what to do next. Texts carry names,
positions and ids, never content, arguments or secrets.
"""

from typing import Any


class PerdureError(Exception):
    """The root of all exceptions that perdure raises."""

    def __repr__(self) -> str:
        # Not the arguments: some are a tool's words, which only those who ask for them should get.
        return f"{type(self).__name__}({str(self)!r})"


class UsageError(PerdureError, ValueError):
    """The call is invalid; nothing was written. Fix the call.

    `path` locates the problem inside the value that was passed, such as `$.content[2]`.
    """

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


class ContextWindowError(UsageError):
    """The newest turn, the instructions and the pins exceed the window. Raise the limit.

    `needed` and `given` are counts of `unit`: "tokens" or "messages".
    """

    def __init__(self, session: str, needed: int, given: int, unit: str) -> None:
        PerdureError.__init__(self, session, needed, given, unit)
        self.session = session
        self.needed = needed
        self.given = given
        self.unit = unit
        self.path = ""

    @property
    def reason(self) -> str:  # type: ignore[override]
        """The size that is needed, and the limit that was set."""
        what = f"the newest turn, instructions and pins of {self.session!r}"
        return f"{what} need {self.needed} {self.unit}; max_{self.unit} is {self.given}"

    def __str__(self) -> str:
        return f"{self.reason}: raise the limit, unpin messages, or shorten the instructions"


class NotFoundError(PerdureError, LookupError):
    """No session, value, version or position of that name is stored."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what, hint)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what} not found" + (f": {self.hint}" if self.hint else "")


class CompactedError(NotFoundError):
    """A compaction dropped the record at a position. The session is complete from a later one.

    Records from `complete_from` on, and the state of the session, are as before.
    """

    def __init__(self, session: str, position: int, complete_from: int) -> None:
        PerdureError.__init__(self, session, position, complete_from)
        self.session = session
        self.position = position
        self.complete_from = complete_from
        self.what = f"a record at {position} in session {session!r}"
        self.hint = f"it was compacted, and is complete from {complete_from}"

    def __str__(self) -> str:
        what = f"the record at {self.position} of session {self.session!r} was compacted"
        hint = "call session.refresh() if this view is older, and read from there"
        return f"{what}, which is complete from {self.complete_from}: {hint}"


class ErasedError(NotFoundError):
    """The key of a record was destroyed on purpose: its content is gone for good."""

    def __init__(self, session: str, position: int, key: str) -> None:
        PerdureError.__init__(self, session, position, key)
        self.session = session
        self.position = position
        self.key = key
        self.what = f"the record at {position} in session {session!r}"
        self.hint = f"its key {key!r} was destroyed"

    def __str__(self) -> str:
        what = f"the record at {self.position} of session {self.session!r} was erased"
        return f"{what}: its key {self.key!r} was destroyed, and no record of the session says so"


class SummaryError(PerdureError):
    """No summary was made, and windows are unchanged. `__cause__` is the underlying failure."""

    def __init__(self, session: str, reason: str) -> None:
        super().__init__(session, reason)
        self.session = session
        self.reason = reason

    def __str__(self) -> str:
        hint = "retry, use another summarizer, or continue with the full messages"
        return f"session {self.session!r} was not summarized, {self.reason}: {hint}"


class ConflictError(PerdureError):
    """Another writer was first, and the state that this call was based on has changed.

    Nothing was written. The session has been refreshed: re-read it, decide, and call again.
    `position` is where this call expected the stream to end, `head` where it ends now.
    """

    def __init__(self, stream: str, position: int, head: int, reason: str = "") -> None:
        super().__init__(stream, position, head, reason)
        self.stream = stream
        self.position = position
        self.head = head
        self.reason = reason

    def __str__(self) -> str:
        because = f" ({self.reason})" if self.reason else ""
        where = f"conflict in session {self.stream!r}"
        if self.position == self.head:
            return f"{where}{because}: re-read it and retry"
        moved = f"it moved from position {self.position} to {self.head}"
        return f"{where}: {moved}{because} and has been refreshed: re-read it and retry"


class LeaseHeldError(PerdureError):
    """Another handle holds the session's lease, so this call must wait. Nothing was written.

    `holder` is the name that the holder gave itself, `ttl` the lease's length in seconds, and
    `position` where the lease was last taken or renewed.
    """

    def __init__(self, stream: str, epoch: int, holder: str, ttl: float, position: int) -> None:
        super().__init__(stream, epoch, holder, ttl, position)
        self.stream = stream
        self.epoch = epoch
        self.holder = holder
        self.ttl = ttl
        self.position = position

    def __str__(self) -> str:
        lease = f"epoch {self.epoch}, {self.ttl:g} s, last renewed at position {self.position}"
        hint = "wait for the lease with session.lease(timeout=True), or leave a note"
        return f"session {self.stream!r} is held by {self.holder!r} ({lease}): {hint}"


class FencedError(PerdureError):
    """The lease that this call relied on is lost; nothing was written.

    Stop the work that was started under it: another worker may be doing it. `newer` is the current
    epoch and `holder` its holder; 0 and empty if no other holder is known.
    """

    def __init__(self, stream: str, epoch: int, newer: int, holder: str, reason: str = "") -> None:
        super().__init__(stream, epoch, newer, holder, reason)
        self.stream = stream
        self.epoch = epoch
        self.newer = newer
        self.holder = holder
        self.reason = reason

    def __str__(self) -> str:
        why = self.reason or f"{self.holder!r} took over with epoch {self.newer}"
        hint = "stop this work, take a new lease and re-read the session"
        return f"lost the lease on session {self.stream!r} (epoch {self.epoch}), {why}: {hint}"


class InUseError(PerdureError):
    """The session cannot be deleted: `by` names the branches and holds that need it."""

    def __init__(self, stream: str, by: tuple[str, ...]) -> None:
        super().__init__(stream, by)
        self.stream = stream
        self.by = by

    def __str__(self) -> str:
        needed_by = ", ".join(map(repr, self.by))
        return f"session {self.stream!r} is needed by {needed_by}: delete or release those first"


class DivergenceError(PerdureError):
    """An `id` or a repeated call has different content than the one that is recorded.

    Nothing was written. `recorded` and `given` describe the two contents by names and digests.
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
            f"session {self.stream!r} already has {self.record_id!r} with different content "
            f"({self.recorded} recorded, {self.given} given): {self.hint}"
        )


class ReplayDivergenceError(DivergenceError):
    """A replayed agent did something that differs from its recording, at `record_id`."""

    def __str__(self) -> str:
        where = f"session {self.stream!r} at {self.record_id}"
        return f"the agent differs from the recording of {where}: print replay.divergence"


class ReplayBlockedError(PerdureError):
    """A replayed agent used the network, another process or a live session. It was blocked."""

    def __str__(self) -> str:
        hint = "call it through session.tool(...) or session.model(...) of the replayed session"
        return f"{self.args[0]} is blocked during a replay: {hint}"


class InFlightError(PerdureError):
    """The same call is already running in this turn, and has no outcome yet."""

    def __init__(self, stream: str, tool: str, identity: str) -> None:
        super().__init__(stream, tool, identity)
        self.stream = stream
        self.tool = tool
        self.identity = identity

    def __str__(self) -> str:
        return f"{self.tool!r} is already running in {self.stream!r}: wait for its outcome"


class UnknownOutcomeError(PerdureError):
    """A call was started, but whether it took effect is unknown; it is not repeated.

    Check the outside world, then record the result: `session.effects.reconcile(effect, …)`. `key`
    is the idempotency key that the tool was given, to look the call up by. `reason` is the recorded
    text of why the outcome is unknown.
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
        return f"{what}: find out, then call session.effects.reconcile({self.effect!r}, …)"


class UnstoredResultError(PerdureError):
    """A recorded call succeeded, but its result, of type `type`, could not be stored.

    It is not called again. `position` is that of the recorded outcome.
    """

    def __init__(self, stream: str, tool: str, type: str, position: int) -> None:
        super().__init__(stream, tool, type, position)
        self.stream = stream
        self.tool = tool
        self.type = type
        self.position = position

    def __str__(self) -> str:
        what = f"{self.tool!r} in {self.stream!r} succeeded, and is not called again"
        why = f"its result of type {self.type} could not be stored (position {self.position})"
        hint = "return data that can be stored, or register the type with perdure.open(types=…)"
        return f"{what}; {why}: {hint}"


class ToolFailureError(Exception):
    """Raised by a tool that failed and still has a result: both are recorded.

    A tool raises it, not perdure: it is no PerdureError. Once the failure is recorded, EffectError
    has the result.
    """

    def __init__(self, reason: str, result: Any = None) -> None:
        super().__init__(reason, result)
        self.reason = reason
        self.result = result

    def __str__(self) -> str:
        return self.reason


class EffectError(PerdureError):
    """A recorded call had failed: `error` names the exception that it raised then.

    `reason` is the text of that exception. It is not part of this one's: a tool's words may hold
    content. `result` is what the tool returned all the same, with ToolFailureError.
    """

    def __init__(self, stream: str, tool: str, error: str, reason: str, result: Any = None) -> None:
        super().__init__(stream, tool, error, reason, result)
        self.stream = stream
        self.tool = tool
        self.error = error
        self.reason = reason
        self.result = result

    def __str__(self) -> str:
        call = f"the recorded call of {self.tool!r} in {self.stream!r}"
        return f"{call} failed with {self.error}, and is not repeated: see `reason`"


class ApprovalDeniedError(EffectError):
    """A call was not made: it was denied, or its approval expired before it was used.

    `error` is `ApprovalDenied` or `ApprovalExpired`; `reason` is the text that the model gets.
    """

    def __str__(self) -> str:
        why = "its approval expired" if self.error == "ApprovalExpired" else "it was denied"
        return f"{self.tool!r} in {self.stream!r} was not called, {why}: see `reason`"


class AgentLimitError(PerdureError):
    """An agent stopped at a limit before it had an answer. Its turn can be continued.

    `limit` is the name of the parameter: "max_steps", "max_tool_calls" or "timeout". `value` is its
    value. Calls of tools beyond the limit were not made.
    """

    def __init__(self, session: str, turn: str, limit: str, value: float) -> None:
        super().__init__(session, turn, limit, value)
        self.session = session
        self.turn = turn
        self.limit = limit
        self.value = value

    def __str__(self) -> str:
        where = f"the agent stopped in turn {self.turn!r} of session {self.session!r}"
        hint = "run the turn again with a higher limit to continue it, or abandon it"
        return f"{where} at its limit {self.limit}={self.value}: {hint}"


class ApprovalPendingError(PerdureError):
    """A call still waits for an approval, and its caller stopped waiting. The turn stays open.

    Have it decided, then enter the turn again and repeat the call: it finds the decision.
    `approvals` are the ids of all pending approvals, including this one.
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
        """The shell command that approves the call."""
        from perdure.safe_text import shell_command

        where = ("--store", self.store) if self.store else ()
        return shell_command("perdure", "approve", *where, ids=(self.stream, self.approval))

    def __str__(self) -> str:
        more = len(self.approvals) - 1
        others = f" and {more} more" if more else ""
        return (
            f"{self.tool!r} in {self.stream!r} waits for approval {self.approval}{others}: "
            f"run `{self.command}`, then enter the turn again"
        )


class ApprovalError(PerdureError):
    """The approval is not pending (`state` says what it is). Nothing was written."""

    def __init__(self, stream: str, approval: str, state: str, detail: str = "") -> None:
        super().__init__(stream, approval, state, detail)
        self.stream = stream
        self.approval = approval
        self.state = state
        self.detail = detail

    def __str__(self) -> str:
        detail = f" {self.detail}" if self.detail else ""
        what = f"approval {self.approval} in {self.stream!r} is {self.state}{detail}"
        return f"{what}: see session.approvals.list()"


class SealedError(PerdureError):
    """The store is encrypted, and this process has not the key for it. Nothing was changed.

    `subject` is the store, or a session and a position; `key` is the id of the key, if known.
    """

    def __init__(self, subject: str, reason: str, hint: str, key: str = "") -> None:
        super().__init__(subject, reason, hint, key)
        self.subject = subject
        self.reason = reason
        self.hint = hint
        self.key = key

    def __str__(self) -> str:
        key = f" (key {self.key!r})" if self.key else ""
        return f"{self.subject}: {self.reason}{key}: {self.hint}"


class MissingKeyError(SealedError):
    """No key was given, or the key store does not have the one that a record was sealed with."""


class WrongKeyError(SealedError):
    """The key that was given is not the one that the store was sealed with."""


class UnavailableError(PerdureError):
    """The store failed to carry out the request, and may succeed later.

    After a write it is unknown whether it was stored: the write is in doubt, and the session
    resolves that before it writes anything else. Calling again is safe if the call had an `id`.
    """

    retries_exhausted = False
    """Whether the backend already retried until its timeout: an immediate retry is pointless."""
    single_stream = False
    """Whether one stream may be the cause, such as a lock on it; other streams can proceed."""

    def __init__(self, backend: str, reason: str, hint: str = "try again later") -> None:
        super().__init__(backend, reason, hint)
        self.backend = backend
        self.reason = reason
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}: {self.hint}"


class UnsupportedError(PerdureError):
    """This store, file system or library version cannot keep the promised guarantees."""

    def __init__(self, capability: str, hint: str) -> None:
        super().__init__(capability, hint)
        self.capability = capability
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.capability}: {self.hint}"


class VersionError(PerdureError):
    """A newer perdure wrote the data. It is not damaged: upgrade to read it."""

    def __init__(self, what: str, found: str, known: str) -> None:
        super().__init__(what, found, known)
        self.what = what
        self.found = found
        self.known = known

    def __str__(self) -> str:
        if not self.known:
            return f"{self.what} has {self.found} that this perdure does not know: upgrade perdure"
        supported = f"this perdure supports {self.known}"
        return f"{self.what} has version {self.found}, {supported}: upgrade perdure"


class DamagedError(PerdureError):
    """The data that was read is not the data that was written. Stop, copy the store, verify it.

    `position` is the first bad position, or 0 if the damage is not in one entry.
    """

    _hint = "copy the store, then run `perdure verify`"

    def __init__(self, stream: str, position: int, reason: str, hint: str = "") -> None:
        super().__init__(stream, position, reason, hint)
        self.stream = stream
        self.position = position
        self.reason = reason
        self.hint = hint or self._hint

    def __str__(self) -> str:
        where = f"{self.stream!r} entry {self.position}" if self.position else f"{self.stream!r}"
        return f"{where} is damaged: {self.reason}: {self.hint}"


class ChainError(DamagedError):
    """An entry is missing, out of order, altered, or belongs to another stream."""


class HistoryReplacedError(DamagedError):
    """The store no longer has the history that this handle read or wrote. Nothing was written.

    A backup was restored, or a standby without the newest records took over. This handle refuses
    every call until `session.refresh(accept_rollback=True)`, which continues with the history that
    the store has now. `position` is where this handle's history ends; the two differ there or
    before. `head` is where the store's ends: 0 if the session is gone.
    """

    _hint = (
        "find out whether a backup was restored or a standby took over, then continue from the "
        "store as it is with session.refresh(accept_rollback=True)"
    )

    def __init__(self, stream: str, position: int, head: int) -> None:
        PerdureError.__init__(self, stream, position, head)
        self.stream = stream
        self.position = position
        self.head = head
        self.hint = self._hint

    @property
    def reason(self) -> str:  # type: ignore[override]
        """How the store's history differs from the one that this handle read."""
        if self.head == 0:
            return f"it is no longer in the store, and this handle had read {self.position} records"
        if self.head < self.position:
            return (
                f"it ends at position {self.head}, and this handle had read up to {self.position}"
            )
        now = f", and it now ends at {self.head}" if self.head > self.position else ""
        return f"record {self.position} is not the one that this handle had read{now}"

    def __str__(self) -> str:
        return f"the history of session {self.stream!r} was replaced: {self.reason}: {self.hint}"


class PayloadError(DamagedError):
    """The entry is intact, but its content is not a valid record of its kind."""


class UnstorableError(UsageError):
    """The store rejected an append that it can never hold, such as an oversized entry."""


class StoreMissingError(UnavailableError):
    """The store does not exist yet, and the address says not to create it."""
