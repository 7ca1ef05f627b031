"""Writes as plans over the fold: what to add, and what of others makes it void. Pure.

A plan is made once and may be carried out several times: when another writer was first, the
session catches up and asks `void_by` of everything new; a plan that still holds is made again, with
the same record ids, on the newer state.
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
    """The kinds of record that void a plan: any of them, or those about the same subject."""

    to_any: frozenset[str] = frozenset()
    to_same: frozenset[str] = frozenset()
    open: bool = False
    """Whether anybody may write it while one handle holds the session's lease."""


# The session is not the one that was seen: it ended, or it began as a branch meanwhile.
_NEW_PAST = frozenset({"deleted", "branched"})
_TURN_CHANGES = frozenset({"turn.continued", "turn.completed", "turn.failed", "turn.abandoned"})

# The one place that says who yields to whom. All but `delete` also yield to `_NEW_PAST`, and all
# that are not open yield to whoever holds the lease.
YIELDS: dict[str, Yields] = {
    # Said in view of a conversation that has gone on since: the speaker must look again.
    "message": Yields(to_any=frozenset({"message"}), to_same=_TURN_CHANGES),
    # A part of an answer says nothing yet; that the turn was taken over ends it. The end of a
    # streamed answer was heard already: it is not taken back because somebody else spoke meanwhile.
    "piece": Yields(to_same=_TURN_CHANGES),
    "answer": Yields(to_same=_TURN_CHANGES),
    "summary": Yields(to_any=frozenset({"summary", "summary.undone"})),
    "turn.begin": Yields(to_any=frozenset({"message", "turn.begun"})),
    "turn.continue": Yields(to_same=_TURN_CHANGES),
    # The end of a turn says nothing about what others wrote, only about the turn.
    "turn.end": Yields(to_same=_TURN_CHANGES),
    # A version is made in view of the version before.
    "value": Yields(to_same=frozenset({"value"})),
    # These commute with everything.
    "note": Yields(open=True),
    "label": Yields(open=True),
    "pin": Yields(),
    "tools": Yields(),
    # These ask the state about the same effect each time they are made. What became of a call is a
    # fact about the world, whoever holds the session by now.
    "effect.intend": Yields(),
    "effect.settle": Yields(open=True),
    # This asks the state about the same approval: the first decision counts, whoever decides.
    "approval.decide": Yields(open=True),
    "keep": Yields(open=True),
    "release": Yields(open=True),
    "refresh": Yields(open=True),
    "catch-up": Yields(open=True),
    # These ask the state who holds the session each time. A renewal is the holder's alone.
    "lease.take": Yields(open=True),
    "lease.renew": Yields(),
    "lease.release": Yields(open=True),
    # Whether it may go is asked of the state each time, so nothing that was appended voids it.
    "delete": Yields(),
}


class Batch:
    """The records of one append while they are put together, tried on a draft of the fold."""

    def __init__(self, name: str, fold: Fold, tip: Tip) -> None:
        self.name = name
        self.fold = fold.draft()
        self.tip = tip
        self.drafts: list[Draft] = []
        self.values: dict[str, bytes] = {}
        """Values in full that became known on the way, by key."""
        self.last: bytes | None = None

    @property
    def position(self) -> int:
        """The position of the newest record, drafts included."""
        return self.tip.position + len(self.drafts)

    def add(self, draft: Draft) -> int:
        """Add a record; later plans of the batch see its effect. Return its position."""
        return self.add_all((draft,))

    def add_all(self, drafts: Sequence[Draft]) -> int:
        """Add records, as `add` does; return the position of the last one."""
        apply, position = self.fold.apply, self.tip.position + len(self.drafts)
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

    def known(self, drafts: Sequence[Draft]) -> Known | None:
        """Return where drafts already stand under the caller's own id, or None if they do not.

        The first one bears the id, and a digest of all where there are several. The same id with
        other content is a DivergenceError.
        """
        if not drafts or drafts[0].id.startswith(GENERATED):
            return None
        record_id, given = drafts[0].id, fingerprint(said(drafts[0].content, drafts[0].payload))
        if turn_key(record_id) in self.fold.ids:
            raise DivergenceError(self.name, record_id, "a turn", "a record")
        known = self.fold.ids.get(record_id)
        if known is not None and known.fingerprint != given:
            own_id = record_id.partition("\t")[0]  # A turn's input is named after the turn.
            raise DivergenceError(self.name, own_id, known.fingerprint, given)
        return known


Made = Steps[int]
"""What making a plan gives. A name, because an annotation is evaluated at every `def`."""


class Plan(msgspec.Struct, frozen=True, gc=False):
    """`make` adds the plan's records to a batch and returns the answer for the caller.

    Where it has to read for that it is a generator of steps; otherwise a plain function will do.
    """

    kind: str
    subject: str
    make: Callable[[Batch], Made | int]

    def made(self, batch: Batch) -> Made:
        """Make the plan, whether it is a generator or not."""
        answer = self.make(batch)
        return answer if isinstance(answer, int) else (yield from answer)

    @property
    def turn(self) -> str:
        """The turn that the plan is about, if it is about one."""
        return self.subject if self.kind in _ABOUT_TURNS else ""

    @property
    def open(self) -> bool:
        """Whether it may be carried out while another handle holds the lease."""
        return YIELDS[self.kind].open

    def void_by(self, content: Content) -> bool:
        """Say whether a record by somebody else makes this plan void."""
        if content.kind in _NEW_PAST:
            return self.kind != "delete"
        yields = YIELDS[self.kind]
        if content.kind in yields.to_any:
            return True
        return content.kind in yields.to_same and content.subject == self.subject


def add_drafts(drafts: Sequence[Draft]) -> Callable[[Batch], int]:
    """Add records that need nothing of the fold, once: an id that stands already is answered."""
    return partial(_added, drafts)


def _added(drafts: Sequence[Draft], batch: Batch) -> int:
    known = batch.known(drafts) if drafts[0].id[:1] != GENERATED else None
    return batch.add_all(drafts) if known is None else known.position + len(drafts) - 1


def require_text(text: object, what: str, *, longest: int) -> str:
    """Return a name that a caller chose, or say what is wrong with it."""
    name = require_str(text, what)
    size = len(name.encode())
    if not 1 <= size <= longest:
        raise UsageError(f"{what} must be 1 to {longest} bytes of UTF-8, not {size}")
    if _CONTROL.search(name):
        raise UsageError(f"{what} must not hold control characters")
    return name


def require_str(text: object, what: str) -> str:
    """Return a text that may be empty, or say why it could not be read back as it is."""
    if type(text) is not str:
        raise UsageError(f"{what} must be str, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} holds a lone surrogate at index {error.start}") from None
    return text


def require_int(number: object, what: str) -> int:
    """Return a number that a caller gave, or say what is wrong with it."""
    if type(number) is not int:
        raise UsageError(f"{what} must be int, not {type(number).__name__}")
    return number


def require_timeout(seconds: object, what: str = "timeout") -> float | None:
    """Return for how long a caller is willing to wait; None for ever."""
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise UsageError(f"{what} must be a number of seconds, 0 or more, or None, not {seconds!r}")
    return float(seconds)
