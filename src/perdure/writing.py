"""Plans for turns, values, notes and labels. Pure.

In: arguments of public methods. Out: a `Plan`. Arguments are checked and encoded at once, so a
value that cannot be stored is refused before anything is written, and an object changed after the
call does not change the record.

To edit: generate record ids outside `make`, because a plan may be executed more than once.
"""

from collections.abc import Collection, Sequence

from perdure import codec, deltas, reading
from perdure.backend import LABEL_BYTES_MAX, LABELS_MAX
from perdure.conversations import talking
from perdure.deltas import CHAIN_MAX, ValueFacts
from perdure.effects import effecting
from perdure.errors import (
    ChainError,
    DivergenceError,
    NotFoundError,
    PayloadError,
    UsageError,
)
from perdure.fold import DELETED, GENERATED, HALF_COPIED, RESERVED_LABELS, turn_key
from perdure.journal import Draft
from perdure.plans import Batch, Made, Plan, add_drafts, require_str, require_text
from perdure.records import (
    Labelled,
    Note,
    TurnAbandoned,
    TurnBegun,
    TurnChange,
    TurnCompleted,
    TurnContinued,
    TurnFailed,
    Value,
)
from perdure.replica import Replica
from perdure.saying import (
    NOBODY,
    Ownership,
    Voice,
    message_drafts,
    named,
    require_id,
    require_open,
    require_turn,
    taken_in,
)
from perdure.steps import Steps

SESSION_ID_BYTES_MAX = 512  # bytes of UTF-8
NAME_BYTES_MAX = 512  # bytes of UTF-8; keys and correlation ids
REASON_MAX = 2_000  # characters of an error's text; enough to read, too few for a dump


def begin_turn(
    replica: Replica,
    turn_id: str,
    message: object | None,
    *,
    correlation_id: str,
    voice: Voice = NOBODY,
    live: Collection[str] = (),
) -> Plan:
    """Plan a turn with the input that opened it, in one append.

    Partial answers and open calls of earlier turns are closed first, except those of `live` turns.
    The result is the turn's position, negated if the turn had already begun under a caller's id.
    """
    begun = TurnBegun(correlation_id=require_str(correlation_id, "correlation_id"))
    input_id = f"{turn_id}\tinput"
    if len(require_str(correlation_id, "correlation_id").encode()) > NAME_BYTES_MAX:
        raise UsageError(f"a correlation_id must be at most {NAME_BYTES_MAX} bytes of UTF-8")
    drafts = []
    if message is not None:
        drafts = message_drafts(replica, taken_in(message), voice, turn_id, None)
        if not turn_id.startswith(GENERATED):
            drafts[0] = named(drafts, input_id)

    def make(batch: Batch) -> Made:
        yield from ()
        begun_at = _begun(batch, turn_id)
        if begun_at:
            batch.find_stored(drafts)  # Raises DivergenceError if the input differs.
            return -begun_at
        if batch.state.talk.partials:
            turns = {partial.turn for partial in batch.state.talk.partials.values()} - {*live}
            yield from talking.settle_answers(replica, batch, turns=turns)
        if batch.state.talk.calls:
            yield from talking.close_calls(replica, batch, live=live)
        position = batch.add_content(turn_id, begun)
        for draft in drafts:
            batch.add(draft)
        return position

    return Plan("turn.begin", turn_id, make)


def _begun(batch: Batch, turn: str) -> int:
    """Return the start of a turn that is open, or that began under a caller's id; otherwise 0."""
    if turn in batch.state.turns:
        return batch.state.turns[turn].position
    if turn in batch.state.ids:
        raise DivergenceError(batch.name, turn, "a record", "a turn")
    stored = batch.state.ids.get(turn_key(turn))
    return stored.position if stored is not None else 0


def continue_turn(replica: Replica, turn: str) -> tuple[Plan, Ownership]:
    """Plan to take over an interrupted turn; also return the ownership that this gives."""
    owner = replica.settings.new_id()

    def make(batch: Batch) -> Made:
        yield from ()
        require_open(batch, turn)
        return batch.add_content(owner, TurnContinued(turn=turn))

    return Plan("turn.continue", turn, make), Ownership(turn, owner)


def complete_turn(replica: Replica, turn: Ownership) -> Plan:
    """Plan to end a turn as complete."""
    return _end_turn(replica, turn, TurnCompleted(turn=turn.turn))


def fail_turn(replica: Replica, turn: Ownership, error: BaseException) -> Plan:
    """Plan to end a turn with an error; its type and text are stored."""
    name = type(error).__qualname__
    reason = _text_of(error)[:REASON_MAX].encode("utf-8", "replace").decode()
    return _end_turn(replica, turn, TurnFailed(turn=turn.turn, error=name, reason=reason))


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a failure must be recorded even if its __str__ raises
        return "(it has no text)"


def _end_turn(replica: Replica, turn: Ownership, content: TurnChange) -> Plan:
    record_id = replica.settings.new_id()

    def make(batch: Batch) -> Made:
        require_turn(batch, turn)
        yield from talking.settle_answers(replica, batch, turns=[turn.turn])
        failed = content if isinstance(content, TurnFailed) else TurnFailed(turn="", error="")
        effecting.forsake(replica, batch, turn.turn, failed.error, failed.reason)
        return batch.add_content(record_id, content)

    return Plan("turn.end", turn.turn, make)


def abandon_turn(replica: Replica, turn: str, reason: str) -> Plan:
    """Plan to abandon a turn, whichever handle owns it."""
    record_id = replica.settings.new_id()
    content = TurnAbandoned(turn=turn, reason=require_str(reason, "reason"))

    def make(batch: Batch) -> Made:
        require_open(batch, turn)
        yield from talking.settle_answers(replica, batch, turns=[turn])
        effecting.forsake(replica, batch, turn)
        return batch.add_content(record_id, content)

    return Plan("turn.end", turn, make)


def put(replica: Replica, key: str, value: object) -> Plan:
    """Plan a new version of a value, as a delta if that is shorter. The result is the version."""
    require_text(key, "a key", longest=NAME_BYTES_MAX)
    data = codec.encode_tree(replica.settings.codec.pack(value))
    if len(data) > codec.PAYLOAD_MAX:
        reason = f"{len(data)} bytes exceed the limit of {codec.PAYLOAD_MAX} for one record"
        raise UsageError(f"{reason}: split the value over several keys", "$")
    record_id = replica.settings.new_id()

    def make(batch: Batch) -> Made:
        facts = batch.state.values.get(key)
        edits = yield from _edits(replica, batch, key, facts, data)
        content = _version(key, facts, data, edits)
        batch.add_content(record_id, content)
        batch.values[key] = data
        return content.version

    return Plan("value", key, make)


def _edits(
    replica: Replica, batch: Batch, key: str, facts: ValueFacts | None, data: bytes
) -> Steps[list[deltas.Edit] | None]:
    """Return the edits from the current version to new data, or None to store it in full."""
    if facts is None or facts.deleted or len(facts.chain) > CHAIN_MAX or len(data) < deltas.SMALL:
        return None
    old = batch.values.get(key) or replica.values.get(key, facts.position)
    if old is None:
        old = yield from value_data(replica, facts.chain)
    return deltas.delta(old, data)


def _version(
    key: str, facts: ValueFacts | None, data: bytes, edits: list[deltas.Edit] | None
) -> Value:
    version = facts.version + 1 if facts else 1
    previous = facts.position if facts else 0
    if edits is not None:
        return Value(key=key, version=version, form="delta", data=edits, previous=previous)
    earlier = facts.chain[0] if facts else 0
    tree = codec.decode_tree(data)
    return Value(
        key=key, version=version, form="full", data=tree, previous=previous, earlier=earlier
    )


def value_data(replica: Replica, chain: Sequence[int]) -> Steps[bytes]:
    """Read one version of a value: a full version, then the deltas that follow it."""
    data = b""
    for position in chain:
        content = yield from reading.content_at(replica.past, position)
        if not isinstance(content, Value):
            raise ChainError(replica.name, position, "a value is expected here")
        data = apply_version(replica.name, position, data, content)
    return data


def apply_version(name: str, position: int, data: bytes, content: Value) -> bytes:
    """Return the full value after applying one more version."""
    if content.form != "delta":
        return codec.encode_tree(content.data)
    try:
        return deltas.apply(data, content.data)
    except (LookupError, TypeError, ValueError) as error:
        raise PayloadError(
            name, position, "its delta does not apply to the previous version"
        ) from error


def forget(replica: Replica, key: str) -> Plan:
    """Plan the deletion of a value; earlier versions stay readable."""
    require_text(key, "a key", longest=NAME_BYTES_MAX)
    record_id = replica.settings.new_id()

    def make(batch: Batch) -> Made:
        yield from ()
        facts = batch.state.values.get(key)
        if facts is None or facts.deleted:
            raise NotFoundError(f"value {key!r}")
        content = Value(
            key=key,
            version=facts.version + 1,
            form="deleted",
            previous=facts.position,
            earlier=facts.chain[0],
        )
        batch.values.pop(key, None)  # An earlier plan of this batch may have set it.
        return batch.add_content(record_id, content)

    return Plan("value", key, make)


def remark(replica: Replica, data: object, *, author: str, record_id: str | None) -> Plan:
    """Plan a note: data that is not part of the conversation."""
    content = Note(data=replica.settings.codec.pack(data), author=require_str(author, "author"))
    note_id = require_id(record_id) if record_id is not None else replica.settings.new_id()
    return Plan("note", "", add_drafts([Draft(note_id, content, codec.encode(content))]))


def label(replica: Replica, add: Sequence[str], remove: Sequence[str]) -> Plan:
    """Plan a change of labels."""
    require_labels(remove)
    for text in (*add, *remove):
        require_text(text, "a label", longest=LABEL_BYTES_MAX)
        if text in RESERVED_LABELS:
            raise UsageError(f"the label {text!r} is reserved: choose another")
    record_id = replica.settings.new_id()
    content = Labelled(add=tuple(add), remove=tuple(remove))
    # A head must have room for the reserved labels too. These two never occur with others.
    limit = LABELS_MAX - len(RESERVED_LABELS - {DELETED, HALF_COPIED})

    def make(batch: Batch) -> Made:
        yield from ()
        if len((batch.state.labels | set(add)) - set(remove)) > limit:
            raise UsageError(f"a session has at most {limit} labels: remove one first")
        return batch.add_content(record_id, content)

    return Plan("label", "", make)


def nothing(batch: Batch) -> Steps[int]:
    """Add nothing. Writing it waits for all plans queued before."""
    yield from ()
    return batch.position


NOTHING = Plan("note", "", nothing)
# `Replica.write` catches up before these two kinds. REFRESH also counts the new records as seen by
# the caller; after CATCH_UP, a later plan made without knowing them is still a conflict.
CATCH_UP = Plan("catch-up", "", nothing)
REFRESH = Plan("refresh", "", nothing)


def require_session_id(session_id: object) -> str:
    """Return a session id, or raise UsageError that says what is wrong with it."""
    return require_text(session_id, "a session id", longest=SESSION_ID_BYTES_MAX)


def require_labels(labels: Sequence[str]) -> None:
    """Raise UsageError for a str instead of a list: it would be read as single letters."""
    if isinstance(labels, str):
        raise UsageError(f"labels must be a list of str, not str: write [{labels!r}]")
    if not isinstance(labels, Collection):
        raise UsageError(f"labels must be a list of str, not {type(labels).__name__}")
