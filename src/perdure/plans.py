"""Writes as plans over a session's state: the records to add, and the records that conflict. Pure.

In: arguments that were checked and encoded already. Out: a `Plan`, whose `make` adds records to a
`Batch`. No plan does I/O itself; one that has to read yields steps.

A plan is created once and may be executed several times. When another writer was first, the session
catches up and calls `invalidated_by` for each new record; a plan that is still valid is executed
again on the newer state, with the same record ids. To edit: `make` must therefore decide from the
batch alone and must not generate ids, and a new plan kind needs a row in `YIELDS`.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from perdure import codec
from perdure.content import Content
from perdure.errors import DivergenceError, UsageError
from perdure.fold import GENERATED, Fold, Known, fingerprint, said, turn_key
from perdure.journal import Draft, Tip
from perdure.steps import Steps

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


_ABOUT_TURNS = frozenset(
    {"answer", "message", "piece", "tools", "turn.begin", "turn.continue", "turn.end"}
)


class Yields(NamedTuple):
    """The kinds of record that invalidate a plan: with any subject, or only with the same one."""

    any_subject: frozenset[str] = frozenset()
    same_subject: frozenset[str] = frozenset()
    bypasses_lease: bool = False
    """Whether any handle may write it while another one holds the session's lease."""


# The session is no longer the one the caller saw: it was deleted, or created as a branch.
_NEW_PAST = frozenset({"deleted", "branched"})
_TURN_CHANGES = frozenset({"turn.continued", "turn.completed", "turn.failed", "turn.abandoned"})

# The only definition of which records invalidate which plans. `_NEW_PAST` also invalidates every
# plan but `delete`. Plans that do not bypass the lease fail while another handle holds it.
YIELDS: dict[str, Yields] = {
    # Written in view of a conversation that has changed since: the caller must re-read it.
    "message": Yields(any_subject=frozenset({"message"}), same_subject=_TURN_CHANGES),
    # A chunk is no message yet, so only the loss of its turn invalidates it. The end of a streamed
    # answer was already shown to the user, so another writer's message does not invalidate it.
    "piece": Yields(same_subject=_TURN_CHANGES),
    "answer": Yields(same_subject=_TURN_CHANGES),
    "summary": Yields(any_subject=frozenset({"summary", "summary.undone"})),
    "turn.begin": Yields(any_subject=frozenset({"message", "turn.begun"})),
    "turn.continue": Yields(same_subject=_TURN_CHANGES),
    # Ending a turn depends on that turn only, not on other writers' messages.
    "turn.end": Yields(same_subject=_TURN_CHANGES),
    # A new version is derived from the version before.
    "value": Yields(same_subject=frozenset({"value"})),
    # These commute with everything.
    "note": Yields(bypasses_lease=True),
    "label": Yields(bypasses_lease=True),
    "pin": Yields(),
    "tools": Yields(),
    # These look up their effect in the state at each execution. The outcome of a call is a fact
    # about the outside world, so it is recorded even if another handle holds the lease by now.
    "effect.intend": Yields(),
    "effect.settle": Yields(bypasses_lease=True),
    # This looks up its approval in the state at each execution: the first decision counts.
    "approval.decide": Yields(bypasses_lease=True),
    "keep": Yields(bypasses_lease=True),
    "release": Yields(bypasses_lease=True),
    "refresh": Yields(bypasses_lease=True),
    "catch-up": Yields(bypasses_lease=True),
    # These look up the lease holder in the state at each execution. Only the holder may renew.
    "lease.take": Yields(bypasses_lease=True),
    "lease.renew": Yields(),
    "lease.release": Yields(bypasses_lease=True),
    # It checks at each execution whether the session is in use, so no record invalidates it.
    "delete": Yields(),
}


class Batch:
    """The records of one append while it is being built, applied to a draft of the state."""

    def __init__(self, name: str, state: Fold, tip: Tip) -> None:
        self.name = name
        self.state = state.draft()
        self.tip = tip
        self.drafts: list[Draft] = []
        self.values: dict[str, bytes] = {}
        """The full values that this batch sets, by key."""
        self.last: bytes | None = None
        """The payload of the newest message in this batch."""

    @property
    def position(self) -> int:
        """The position of the newest record, drafts included."""
        return self.tip.position + len(self.drafts)

    def add(self, draft: Draft) -> int:
        """Add a record; later plans of the batch see its effect. Return its position."""
        return self.add_all((draft,))

    def add_all(self, drafts: Sequence[Draft]) -> int:
        """Add records, as `add` does; return the position of the last one."""
        apply, position = self.state.apply, self.tip.position + len(self.drafts)
        for draft in drafts:
            content, payload = draft.content, draft.payload
            position += 1
            self.drafts.append(draft)
            apply(position, draft.id, content, payload)
            if content.kind == "message":
                self.last = payload
        return position

    def add_content(self, record_id: str, content: Content) -> int:
        return self.add(Draft(record_id, content, codec.encode(content)))

    def find_stored(self, drafts: Sequence[Draft]) -> Known | None:
        """Return where drafts are already stored under the caller's id, or None if they are not.

        The first draft has the caller's id, and a digest of all drafts if there are several. The
        same id with other content is a DivergenceError.
        """
        if not drafts or drafts[0].id.startswith(GENERATED):
            return None
        record_id = drafts[0].id
        new_fingerprint = fingerprint(said(drafts[0].content, drafts[0].payload))
        if turn_key(record_id) in self.state.ids:
            raise DivergenceError(self.name, record_id, "a turn", "a record")
        stored = self.state.ids.get(record_id)
        if stored is not None and stored.fingerprint != new_fingerprint:
            caller_id = record_id.partition("\t")[0]  # A turn's input is "<turn id>\tinput".
            raise DivergenceError(self.name, caller_id, stored.fingerprint, new_fingerprint)
        return stored


Made = Steps[int]
"""The steps that execute a plan. An alias, because annotations are evaluated at every `def`."""


class Plan(msgspec.Struct, frozen=True, gc=False):
    """A write: `make` adds its records to a batch and returns the result for the caller.

    `make` is a generator of steps if it has to read; otherwise a plain function will do.
    """

    kind: str
    subject: str
    make: Callable[[Batch], Made | int]

    def execute(self, batch: Batch) -> Made:
        """Add the plan's records to a batch, whether `make` is a generator or not."""
        result = self.make(batch)
        return result if isinstance(result, int) else (yield from result)

    @property
    def turn(self) -> str:
        """The id of the turn that the plan writes to, or an empty string."""
        return self.subject if self.kind in _ABOUT_TURNS else ""

    @property
    def bypasses_lease(self) -> bool:
        """Whether the plan may be executed while another handle holds the lease."""
        return YIELDS[self.kind].bypasses_lease

    def invalidated_by(self, content: Content) -> bool:
        """Return whether a record by another writer makes this plan invalid."""
        if content.kind in _NEW_PAST:
            return self.kind != "delete"
        rule = YIELDS[self.kind]
        if content.kind in rule.any_subject:
            return True
        return content.kind in rule.same_subject and content.subject == self.subject


def add_drafts(drafts: Sequence[Draft]) -> Callable[[Batch], int]:
    """Return a `make` that adds fixed records, unless they are already stored under their id."""
    return partial(_added, drafts)


def _added(drafts: Sequence[Draft], batch: Batch) -> int:
    stored = batch.find_stored(drafts) if drafts[0].id[:1] != GENERATED else None
    return batch.add_all(drafts) if stored is None else stored.position + len(drafts) - 1


def require_text(text: object, what: str, *, longest: int) -> str:
    """Return a caller-chosen name, or raise UsageError that says what is wrong with it."""
    name = require_str(text, what)
    size = len(name.encode())
    if not 1 <= size <= longest:
        raise UsageError(f"{what} must be 1 to {longest} bytes of UTF-8, not {size}")
    if _CONTROL.search(name):
        raise UsageError(f"{what} must not contain control characters")
    return name


def require_str(text: object, what: str) -> str:
    """Return a text, which may be empty; raise UsageError if UTF-8 cannot encode it."""
    if type(text) is not str:
        raise UsageError(f"{what} must be str, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} contains a lone surrogate at index {error.start}") from None
    return text


def require_int(number: object, what: str) -> int:
    """Return an integer argument, or raise UsageError that says what is wrong with it."""
    if type(number) is not int:
        raise UsageError(f"{what} must be int, not {type(number).__name__}")
    return number


def require_timeout(seconds: object, what: str = "timeout") -> float | None:
    """Return a timeout in seconds; None waits forever. Anything else is a UsageError."""
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise UsageError(f"{what} must be a number of seconds, 0 or more, or None, not {seconds!r}")
    return float(seconds)
