"""What an application means: records, and the kinds of content they carry.

Content holds plain JSON trees only; `codec` turns richer values into such trees and back. A kind
is added here, in `KINDS`, and nowhere else; its fields get defaults when they come later, and a
change that old readers would misread raises the version and brings an upcast (see `codec`).
"""

from datetime import datetime
from typing import Any, ClassVar, Literal, NamedTuple

from perdure.approvals.records import ApprovalAsked, ApprovalDecided
from perdure.content import Content
from perdure.leases.records import LeaseReleased, LeaseRenewed, LeaseTaken


class Message(Content, frozen=True, kw_only=True):
    """Something said, as the provider or framework phrased it, and who said it to whom.

    `origin` says where the words came from (a user, a tool, a document), so that what must not be
    trusted can be told apart later.
    """

    kind: ClassVar[str] = "message"

    message: dict[str, Any]
    turn: str = ""
    author: str = ""
    recipient: str = ""
    channel: str = ""
    origin: str = ""
    call: str = ""
    """The first of several messages under one id of the caller's: the digest of them all."""
    meta: dict[str, Any] = {}  # noqa: RUF012 - msgspec gives each its own
    """What came with it: the response's id, its model, the usage, why it ended."""
    tokens: int = 0
    counter: str = ""
    """How many tokens it takes, and by whose count; nobody's where it was not counted."""
    interrupted: bool = False
    """The beginning of an answer whose stream was cut."""

    @property
    def subject(self) -> str:
        return self.turn


class Piece(Content, frozen=True, kw_only=True):
    """A part of a streamed answer, on its way. The message under the id `answer` supersedes it.

    `previous` is the position of the piece before, 0 in the first.
    """

    kind: ClassVar[str] = "piece"

    answer: str
    data: dict[str, Any]
    turn: str = ""
    previous: int = 0

    @property
    def subject(self) -> str:
        return self.turn


class Pinned(Content, frozen=True, kw_only=True):
    """A message that every window keeps, named by its position; or one that need not be kept."""

    kind: ClassVar[str] = "pinned"

    message: int
    on: bool = True


class Summary(Content, frozen=True, kw_only=True):
    """Words that stand for the messages from `first` to `last` in windows; those stay stored.

    `digest` is that of the entry at `last`, and the chain binds everything before it. `previous` is
    the position of the summary that this one takes in, or 0.
    """

    kind: ClassVar[str] = "summary"

    text: str
    first: int
    last: int
    digest: str
    previous: int = 0
    meta: dict[str, Any] = {}  # noqa: RUF012 - msgspec gives each its own
    tokens: int = 0
    counter: str = ""


class SummaryUndone(Content, frozen=True, kw_only=True):
    """The summary at a position does not stand for anything any more; the one before it does."""

    kind: ClassVar[str] = "summary.undone"

    summary: int


class Tools(Content, frozen=True, kw_only=True):
    """The tools that the model was offered from here on: a digest each, and as they were given."""

    kind: ClassVar[str] = "tools"

    digest: str
    catalogue: dict[str, str]
    tools: list[Any]
    turn: str = ""


class EffectIntended(Content, frozen=True, kw_only=True):
    """A tool or a model is about to be called; the effect's id is the id of this record.

    `identity` says which call of the agent this is, so that a process that comes later knows it
    again. `owner` is the record by which the writer held the turn: only who took the turn over may
    judge an effect that it did not begin. `retries` is the position of the intent that this one
    repeats, or 0.
    """

    kind: ClassVar[str] = "effect.intended"

    identity: str
    tool: str
    arguments: Any = None
    """Of a tool. A model's request is not stored again: what it says stands in the messages."""
    digest: str
    """Of the arguments as they were stored, or of the model's request."""
    key: str
    """For the outside world: the same for every attempt."""
    policy: Literal["read_only", "idempotent", "reconcile", "unsafe"]
    turn: str
    owner: str
    version: str = ""
    actor: str = ""
    parent: str = ""
    """The identity of the effect in which this one happened."""
    retries: int = 0
    approval: str = ""
    """The id of the approval that this intent used up."""
    called: Literal["tool", "model"] = "tool"

    @property
    def subject(self) -> str:
        return self.identity


class EffectSettled(Content, frozen=True, kw_only=True):
    """What became of an effect: its result or its error as data, or that nobody knows.

    `unknown` may be followed by `reconciled`; nothing else is followed by anything.
    """

    kind: ClassVar[str] = "effect.settled"

    effect: str
    identity: str
    state: Literal["succeeded", "failed", "unknown", "reconciled"]
    result: Any = None
    error: str = ""
    """The name of the error's type where it failed."""
    reason: str = ""
    duration: float = 0.0
    turn: str = ""
    said: int = 0
    """The result is the last so many messages before this record, of the same append."""
    told: Literal["", "text", "json"] = ""
    """The result is large, and is the text of the message before this record, or JSON in it."""

    @property
    def subject(self) -> str:
        return self.identity


class Value(Content, frozen=True, kw_only=True):
    """A version of a named document: in full, as a delta against the version before, or gone.

    `previous` is the position of the version before, `earlier` that of the last one in full
    before this one in full; both are 0 where there is none.
    """

    kind: ClassVar[str] = "value"

    key: str
    version: int
    form: Literal["full", "delta", "deleted"]
    data: Any = None
    previous: int = 0
    earlier: int = 0

    @property
    def subject(self) -> str:
        return self.key


class TurnBegun(Content, frozen=True, kw_only=True):
    """A turn began; its id is the id of this record."""

    kind: ClassVar[str] = "turn.begun"

    correlation_id: str = ""


class TurnChange(Content, frozen=True, kw_only=True):
    """What later records about a turn have in common."""

    turn: str

    @property
    def subject(self) -> str:
        return self.turn


class TurnContinued(TurnChange, frozen=True, kw_only=True):
    """Another handle took an interrupted turn over; the one that began it is fenced off."""

    kind: ClassVar[str] = "turn.continued"


class TurnCompleted(TurnChange, frozen=True, kw_only=True):
    """The agent's answer is whole."""

    kind: ClassVar[str] = "turn.completed"


class TurnFailed(TurnChange, frozen=True, kw_only=True):
    """The turn ended with an error, kept as its type and its text."""

    kind: ClassVar[str] = "turn.failed"

    error: str
    reason: str = ""


class TurnAbandoned(TurnChange, frozen=True, kw_only=True):
    """Somebody decided that an interrupted turn is not to be continued."""

    kind: ClassVar[str] = "turn.abandoned"

    reason: str = ""


class Note(Content, frozen=True, kw_only=True):
    """A remark for people and programs; never part of the conversation."""

    kind: ClassVar[str] = "note"

    data: Any
    author: str = ""


class Labelled(Content, frozen=True, kw_only=True):
    """Labels put on the session and taken off it."""

    kind: ClassVar[str] = "labelled"

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


class Branched(Content, frozen=True, kw_only=True):
    """The first record of a branch: its past is `parent`'s, up to and with position `at`."""

    kind: ClassVar[str] = "branched"

    parent: str
    stream: str
    at: int


class Kept(Content, frozen=True, kw_only=True):
    """The session must stay: for a branch (`branch` and its stream id), or for a stated reason.

    The reason of a branch's keep says whether the branch may not be there yet, or is.
    """

    kind: ClassVar[str] = "kept"
    BEGINS: ClassVar[str] = "a branch begins"
    STANDS: ClassVar[str] = "branch"

    reason: str
    branch: str = ""
    stream: str = ""

    @property
    def complete(self) -> bool:
        """Whether the session will stay for this; a branch that only begins may come too late."""
        return self.reason != self.BEGINS


class Released(Content, frozen=True, kw_only=True):
    """A keep, named by the id of its record, has ended."""

    kind: ClassVar[str] = "released"

    keep: str

    @property
    def subject(self) -> str:
        return self.keep


class Deleted(Content, frozen=True, kw_only=True):
    """The session ended here and what was before may be dropped. Later records begin anew."""

    kind: ClassVar[str] = "deleted"

    reason: str = ""


class Recovered(Content, frozen=True, kw_only=True):
    """The entries from `first` to `last` are a batch torn by a crash and count as absent."""

    kind: ClassVar[str] = "recovered"

    first: int
    last: int


class Snapshot(Content, frozen=True, kw_only=True):
    """The fold after the record before, so that opening reads no further back."""

    kind: ClassVar[str] = "snapshot"

    fold: int
    facts: dict[str, Any]


KINDS: dict[str, type[Content]] = {
    content.kind: content
    for content in (
        EffectIntended,
        EffectSettled,
        ApprovalAsked,
        ApprovalDecided,
        Message,
        Piece,
        Pinned,
        Summary,
        SummaryUndone,
        Tools,
        Value,
        TurnBegun,
        TurnContinued,
        TurnCompleted,
        TurnFailed,
        TurnAbandoned,
        Note,
        Labelled,
        Branched,
        Kept,
        Released,
        LeaseTaken,
        LeaseRenewed,
        LeaseReleased,
        Deleted,
        Recovered,
        Snapshot,
    )
}


class Record(NamedTuple):
    """A stored record as `session.records()` shows it. `digest` is that of its entry."""

    position: int
    id: str
    kind: str
    time: datetime
    content: Content
    digest: str
