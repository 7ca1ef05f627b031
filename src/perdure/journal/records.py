"""Records, and the kinds of content they hold. The field names and kinds are the stored format.

Content holds plain JSON trees only; `codec` converts richer values to such trees and back.

When editing: list a new kind in `kinds`. A field added later needs a default. A change that
old readers would misread raises the version of its kind and needs an upcast (see `codec`).
"""

from datetime import datetime
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from perdure.journal.ranges import Count, Position, Positions


class Content(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,  # plain trees hold no cycles; tracking them would slow every collection down
):
    """The content of one record. A field with its default is not stored.

    `v` is the version of its schema.
    """

    kind: ClassVar[str] = ""
    schema: ClassVar[int] = 1
    subject_field: ClassVar[str] = ""
    """The field that names the record's subject; empty if it has none."""

    v: int = 1
    origin: str = ""
    """Where the content came from, such as a user, a tool or a document."""
    trust: str = ""
    """How far that origin is trusted."""
    sources: tuple[Position, ...] = ()
    """The positions of the records that it was made from."""
    about: str = ""
    """The data subject, whose key a sealed store uses for it."""
    parts: tuple[tuple[Position, Position], ...] = ()
    """Ranges of positions: all `part` records that it cites (`journal.large`)."""

    @property
    def subject(self) -> str:
        """The turn, value, effect, approval or keep that the record is about; empty if none."""
        return getattr(self, self.subject_field) if self.subject_field else ""


class ApprovalRequested(Content, frozen=True, kw_only=True):
    """A call waits for approval; the approval's id is the id of this record.

    It covers exactly this tool, its version, and the arguments with this digest.
    """

    kind: ClassVar[str] = "approval.requested"
    subject_field: ClassVar[str] = "identity"

    identity: str
    """Identifies the call of the agent; the intent will have the same identity."""
    tool: str
    arguments: Any
    digest: str
    """The digest of the arguments as stored."""
    turn: str
    version: str = ""
    actor: str = ""
    expires: str = ""
    """The time of expiry, in the format of headers; empty if it does not expire."""


class ApprovalDecided(Content, frozen=True, kw_only=True):
    """The decision on an approval. The first decision counts; `expired` ends any approval.

    `call_digest` is the digest of the tool, its version and the arguments that the decision covers.
    """

    kind: ClassVar[str] = "approval.decided"
    subject_field: ClassVar[str] = "approval"

    approval: str
    decision: Literal["approved", "denied", "expired"]
    call_digest: str
    by: str = ""
    reason: str = ""


class LeaseChange(Content, frozen=True, kw_only=True):
    """The common base of the records about a lease."""

    epoch: Count
    owner: str


class LeaseTaken(LeaseChange, frozen=True, kw_only=True):
    """A worker holds the session from here on; the previous holder is fenced.

    The lease lasts `ttl` seconds from this record or its newest renewal. `holder` names it for
    people. `forced` means that the holder did not wait for the previous lease to expire.
    """

    kind: ClassVar[str] = "lease.taken"

    ttl: float
    holder: str = ""
    forced: bool = False


class LeaseRenewed(LeaseChange, frozen=True, kw_only=True):
    """The holder extended its lease."""

    kind: ClassVar[str] = "lease.renewed"


class LeaseReleased(LeaseChange, frozen=True, kw_only=True):
    """The holder released the lease: another worker may take it at once."""

    kind: ClassVar[str] = "lease.released"


class Message(Content, frozen=True, kw_only=True):
    """A message in the provider's or framework's own form, with its author and recipient."""

    kind: ClassVar[str] = "message"
    subject_field: ClassVar[str] = "turn"

    message: dict[str, Any]
    turn: str = ""
    author: str = ""
    recipient: str = ""
    channel: str = ""
    append_digest: str = ""
    """The digest of all messages appended under one caller id; stored in the first of them."""
    meta: dict[str, Any] = {}
    """Metadata of the response: its id, model, usage and finish reason."""
    tokens: Count = 0
    counter: str = ""
    """The token counter that computed `tokens`; empty if the message was not counted."""
    interrupted: bool = False
    """Whether this is only the beginning of an answer whose stream was cut off."""
    opaque: bool = False
    """Whether the message is in no known format: it is kept as it is, and sent to no provider."""


class MessageChunk(Content, frozen=True, kw_only=True):
    """A chunk of a streamed answer. The message with the id `answer` supersedes it.

    `previous` is the position of the previous chunk, 0 in the first.
    """

    kind: ClassVar[str] = "message.chunk"
    subject_field: ClassVar[str] = "turn"

    answer: str
    data: dict[str, Any]
    turn: str = ""
    previous: Position = 0


class MessagesRetracted(Content, frozen=True, kw_only=True):
    """Messages were taken back: conversations and windows leave them out; the records stay.

    `positions` are those of single messages, `ranges` pairs of a first and a last place, which may
    be later than this record. `count` messages are gone with it; `last_message` is the newest one
    that is left, or 0.
    """

    kind: ClassVar[str] = "messages.retracted"

    positions: tuple[Position, ...] = ()
    ranges: tuple[tuple[Count, Count], ...] = ()
    reason: str = ""
    count: Count = 0
    last_message: Position = 0


class MessagesReplaced(Content, frozen=True, kw_only=True):
    """The messages from `new_first` to `new_last` stand in the place of those from `first` on.

    They are directly before this record, in the same append. `digest` is that of their payloads;
    `count` and `last_message` are as in `messages.retracted`.
    """

    kind: ClassVar[str] = "messages.replaced"

    first: Position
    last: Position
    digest: str
    new_first: Position = 0
    new_last: Position = 0
    count: Count = 0
    last_message: Position = 0


class Pinned(Content, frozen=True, kw_only=True):
    """A message, given by its position, is pinned: every window keeps it. `on=False` unpins it."""

    kind: ClassVar[str] = "pinned"

    message: Position
    on: bool = True


class Summary(Content, frozen=True, kw_only=True):
    """A text that replaces the messages from `first` to `last` in windows; they stay stored.

    `previous` is the position of the summary that this one includes, or 0.
    """

    kind: ClassVar[str] = "summary"

    text: str
    first: Position
    last: Position
    previous: Position = 0
    meta: dict[str, Any] = {}
    tokens: Count = 0
    counter: str = ""


class SummaryUndone(Content, frozen=True, kw_only=True):
    """The summary at a position is no longer used; the previous one applies again."""

    kind: ClassVar[str] = "summary.undone"

    summary: Position


class Tools(Content, frozen=True, kw_only=True):
    """The tools offered to the model from here on: a digest of each, and their definitions."""

    kind: ClassVar[str] = "tools"

    digest: str
    catalogue: dict[str, str]
    tools: list[Any]
    turn: str = ""


class EffectIntent(Content, frozen=True, kw_only=True):
    """A tool or a model is called; the effect's id is the id of this record.

    `identity` says which call of the agent this is, so that a later process recognizes it. `owner`
    is the record by which the writer owned the turn: only a writer that took the turn over may
    decide about an effect that it did not begin. `retry_of` is the position of the intent that this
    one retries, or 0.
    """

    kind: ClassVar[str] = "effect.intent"
    subject_field: ClassVar[str] = "identity"

    identity: str
    tool: str
    arguments: Any = None
    """The tool's arguments. A model's request is not stored again: the messages contain it."""
    digest: str = ""
    """The digest of the model's request. That of a tool's arguments is computed from them."""
    key: str = ""
    """The idempotency key for the outside world: the same for every attempt.

    If it is left out, it is the id of this record without its dot.
    """
    policy: Literal["read_only", "idempotent", "reconcile", "unsafe"] = "unsafe"
    turn: str
    owner: str = ""
    """Left out if it is the turn itself: the writer began the turn."""
    version: str = ""
    actor: str = ""
    parent: str = ""
    """The identity of the effect during which this one was called."""
    retry_of: Position = 0
    approval: str = ""
    """The id of the approval that this intent consumed."""
    call_type: Literal["tool", "model"] = "tool"
    begun_after: Position = 0
    """The last position before the call, if it was recorded after it, as `read_only` ones are."""


class EffectOutcome(Content, frozen=True, kw_only=True):
    """The outcome of an effect: its result or its error as data, or `unknown`.

    `unknown` may be followed by `reconciled`; every other outcome is final.
    """

    kind: ClassVar[str] = "effect.outcome"
    subject_field: ClassVar[str] = "identity"

    effect: str
    identity: str
    state: Literal["succeeded", "failed", "unknown", "reconciled"]
    result: Any = None
    error: str = ""
    """The name of the exception's type if the call failed.

    In an unknown outcome: the exception that interrupted the call. If its turn is continued, the
    policy of the call decides about it, as after a crash.
    """
    reason: str = ""
    duration: float = 0.0
    turn: str = ""
    intent: Position = 0
    """The position of the intent, if the caller chose the key of the call: the index needs it."""
    message_count: Count = 0
    """The result is this many messages directly before this record, in the same append."""
    shared_form: Literal["", "text", "json"] = ""
    """A large result is stored once: as the text of the previous message, or as JSON in it."""
    unstored: str = ""
    """The type of a result that could not be stored; `result` is then a text for people."""


class Value(Content, frozen=True, kw_only=True):
    """A version of a named document: complete, a delta against the previous version, or deleted.

    `previous` is the position of the previous version; `previous_full`, in a complete version, that
    of the complete version before it. Both are 0 if there is none.
    """

    kind: ClassVar[str] = "value"
    subject_field: ClassVar[str] = "key"

    key: str
    version: Count
    form: Literal["full", "delta", "deleted"]
    data: Any = None
    previous: Position = 0
    previous_full: Position = 0


class TurnBegun(Content, frozen=True, kw_only=True):
    """A turn began; its id is the id of this record."""

    kind: ClassVar[str] = "turn.begun"

    correlation_id: str = ""


class TurnChange(Content, frozen=True, kw_only=True):
    """The common base of the later records of a turn."""

    subject_field: ClassVar[str] = "turn"

    turn: str


EffectRow = tuple[str, str, str, int, int, str, str, str, str, str]
"""An effect as snapshots store it: `perdure.core.state.effects.EffectState`."""

ApprovalRow = tuple[str, str, str, str, str, int, int, int, str, str]
"""An approval as snapshots store it: `perdure.core.state.approvals.ApprovalState`."""

CallRow = tuple[int, str, str]
"""A call without a result as snapshots store it: `perdure.core.state.conversation.OpenCall`."""


class TurnContinued(TurnChange, frozen=True, kw_only=True):
    """Another handle took over an interrupted turn, or a failed turn is open again.

    The previous owner is fenced. A failed turn was no longer part of the state. The record of its
    continuation therefore has all that the state needs to know of it, as snapshots store it.
    """

    kind: ClassVar[str] = "turn.continued"

    ended: Position = 0
    """The position of the `turn.failed` that this undoes; 0 if the turn was open."""
    begun: Position = 0
    correlation_id: str = ""
    effects: dict[str, EffectRow] = {}
    approvals: dict[str, ApprovalRow] = {}
    calls: dict[str, CallRow] = {}
    """The calls of the turn's messages that have no result, by id."""


class TurnEnd(TurnChange, frozen=True, kw_only=True):
    """The common base of the records that end a turn."""

    begun: Position = 0
    """The position of the `turn.begun`."""
    reopened: Position = 0
    """The position of the `turn.continued` that opened the turn again after a failure, or 0."""


class TurnCompleted(TurnEnd, frozen=True, kw_only=True):
    """The turn ended: the agent's answer is complete."""

    kind: ClassVar[str] = "turn.completed"


class TurnFailed(TurnEnd, frozen=True, kw_only=True):
    """The turn ended with an error, stored as its type and its text. It can be continued."""

    kind: ClassVar[str] = "turn.failed"

    error: str
    reason: str = ""


class TurnAbandoned(TurnEnd, frozen=True, kw_only=True):
    """An interrupted turn was abandoned: it will not be continued."""

    kind: ClassVar[str] = "turn.abandoned"

    reason: str = ""


class Note(Content, frozen=True, kw_only=True):
    """A remark for people and programs; never part of the conversation.

    `previous` is the position of the note before it with the same topic, or 0.
    """

    kind: ClassVar[str] = "note"

    data: Any
    author: str = ""
    topic: str = ""
    previous: Position = 0


class ViewStored(Content, frozen=True, kw_only=True):
    """The state of a caller's view after the record at `at`, so that it need not read all."""

    kind: ClassVar[str] = "view"

    name: str
    version: Count
    at: Position
    data: Any


class BatchStored(Content, frozen=True, kw_only=True):
    """The end of a batch that has a caller's id, which is the id of this record.

    The `count` records directly before it belong to the batch. `digest` is that of its content, so
    that a repeated batch is recognized and another one under the same id is refused.
    """

    kind: ClassVar[str] = "batch"

    count: Count
    digest: str


class LabelsChanged(Content, frozen=True, kw_only=True):
    """Labels were added to the session or removed from it."""

    kind: ClassVar[str] = "labels"

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


class FieldsChanged(Content, frozen=True, kw_only=True):
    """Fields that describe the session got values; None removed one."""

    kind: ClassVar[str] = "fields"

    fields: dict[str, Any]


class Branched(Content, frozen=True, kw_only=True):
    """The first record of a branch, which shares `parent`'s history through position `at`."""

    kind: ClassVar[str] = "branched"

    parent: str
    stream: str
    at: Position


class BranchKept(Content, frozen=True, kw_only=True):
    """The session must not be deleted: for a branch (`branch` and its stream id), or a reason.

    For a branch, the reason says whether the branch exists or is still being created.
    """

    kind: ClassVar[str] = "branch.kept"
    CREATING: ClassVar[str] = "a branch begins"
    EXISTS: ClassVar[str] = "branch"

    reason: str
    branch: str = ""
    stream: str = ""

    @property
    def complete(self) -> bool:
        """Whether this prevents deletion; a branch still being created may lose to a deletion."""
        return self.reason != self.CREATING


class BranchReleased(Content, frozen=True, kw_only=True):
    """A keep, given by the id of its record, was released."""

    kind: ClassVar[str] = "branch.released"
    subject_field: ClassVar[str] = "keep"

    keep: str


class Copied(Content, frozen=True, kw_only=True):
    """The end of a copy: the records before it are those of another session, up to a position.

    `stream`, `position` and `digest` say which entry was the last. Nothing ties the two sessions.
    """

    kind: ClassVar[str] = "copied"

    session: str
    stream: str
    position: Count
    digest: str


class Omitted(Content, frozen=True, kw_only=True):
    """A copy has this in the place of a record of that kind, which concerns its source."""

    kind: ClassVar[str] = "omitted"

    record_kind: str = ""


class Deleted(Content, frozen=True, kw_only=True):
    """The session was deleted; earlier entries may be dropped. Later records start a new one."""

    kind: ClassVar[str] = "deleted"

    reason: str = ""


class Erased(Content, frozen=True, kw_only=True):
    """The bodies of earlier records were erased: those in `ranges`, and those under `keys`.

    An erased record counts as if it had never had an effect; its position, kind and time stay. The
    entry of this record, or the next one of the same append, ends with a snapshot of that state.
    """

    kind: ClassVar[str] = "erased"

    ranges: tuple[Positions, ...] = ()
    keys: tuple[str, ...] = ()
    reason: str = ""


class EmptiedContent(Content, frozen=True, kw_only=True):
    """In the place of the content of an erased record. It is never stored."""


class UnknownContent(Content, frozen=True, kw_only=True):
    """The content of a kind that this version does not know, and may skip. It is never stored."""

    data: Any = None


class IndexPage(Content, frozen=True, kw_only=True):
    """A page of the index, which finds records by the ids and keys that callers chose.

    `rows` is base64 of sorted rows of 16 bytes: the first 8 of the id's SHA-256, and its position.
    A run is 2**bits pages at consecutive positions; a row's page is the first bits of its digest.
    The last page of a run has the number of its rows in `size`, and in `merged` how many of the
    newest runs it replaces.
    """

    kind: ClassVar[str] = "index"

    rows: str
    page: Count = 0
    bits: Count = 0
    size: Count = 0
    merged: Count = 0


class Snapshot(Content, frozen=True, kw_only=True):
    """The session state after the previous record, so that opening reads no further back."""

    kind: ClassVar[str] = "snapshot"

    state_version: Count
    facts: dict[str, Any]


SKIPPED_PREFIX = "~"  # A kind that begins so may be skipped by a version that does not know it.


class Record(NamedTuple):
    """A stored record as `session.records()` shows it. `digest` is that of its entry."""

    position: int
    id: str
    kind: str
    time: datetime
    content: Content
    digest: str
