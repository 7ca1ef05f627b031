"""What a session can write, as plans. Pure. What a caller gives is checked and encoded at once.

So a value that can not be stored is refused before anything is written, and one that is changed
after the call has no effect on the record.
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

SESSION_ID_BYTES_MAX = 512
NAME_BYTES_MAX = 512
REASON_MAX = 2_000  # The text of an error, for people; not a place for dumps.


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

    What earlier turns left open is settled before it, but for those that are `live`. The answer is
    negative if the turn has begun already, under an id that the caller chose.
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
            batch.known(drafts)  # Another input under the same id is told.
            return -begun_at
        if batch.fold.talk.partials:
            left = {partial.turn for partial in batch.fold.talk.partials.values()} - {*live}
            yield from talking.settle_answers(replica, batch, turns=left)
        if batch.fold.talk.calls:
            yield from talking.close_calls(replica, batch, live=live)
        position = batch.add_content(turn_id, begun)
        for draft in drafts:
            batch.add(draft)
        return position

    return Plan("turn.begin", turn_id, make)


def _begun(batch: Batch, turn: str) -> int:
    """Return where a turn began that is open or was begun under the caller's own id, or 0."""
    if turn in batch.fold.turns:
        return batch.fold.turns[turn].position
    if turn in batch.fold.ids:
        raise DivergenceError(batch.name, turn, "a record", "a turn")
    known = batch.fold.ids.get(turn_key(turn))
    return known.position if known is not None else 0


def continue_turn(replica: Replica, turn: str) -> tuple[Plan, Ownership]:
    """Plan to take an interrupted turn over, and the ownership that comes with it."""
    owner = replica.settings.new_id()

    def make(batch: Batch) -> Made:
        yield from ()
        require_open(batch, turn)
        return batch.add_content(owner, TurnContinued(turn=turn))

    return Plan("turn.continue", turn, make), Ownership(turn, owner)


def complete_turn(replica: Replica, turn: Ownership) -> Plan:
    return _end_turn(replica, turn, TurnCompleted(turn=turn.turn))


def fail_turn(replica: Replica, turn: Ownership, error: BaseException) -> Plan:
    """Plan to end a turn with an error, of which the type and the text are kept."""
    name = type(error).__qualname__
    reason = _text_of(error)[:REASON_MAX].encode("utf-8", "replace").decode()
    return _end_turn(replica, turn, TurnFailed(turn=turn.turn, error=name, reason=reason))


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an error that can not tell itself must still be recorded
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
    """Plan to give a turn up, whoever holds it."""
    record_id = replica.settings.new_id()
    content = TurnAbandoned(turn=turn, reason=require_str(reason, "reason"))

    def make(batch: Batch) -> Made:
        require_open(batch, turn)
        yield from talking.settle_answers(replica, batch, turns=[turn])
        effecting.forsake(replica, batch, turn)
        return batch.add_content(record_id, content)

    return Plan("turn.end", turn, make)


def put(replica: Replica, key: str, value: object) -> Plan:
    """Plan a new version of a value, as a delta where that is shorter. The answer is its number."""
    require_text(key, "a key", longest=NAME_BYTES_MAX)
    data = codec.encode_tree(replica.settings.codec.pack(value))
    if len(data) > codec.PAYLOAD_MAX:
        reason = f"{len(data)} bytes are more than the {codec.PAYLOAD_MAX} of one record"
        raise UsageError(f"{reason}: split it over several keys", "$")
    record_id = replica.settings.new_id()

    def make(batch: Batch) -> Made:
        facts = batch.fold.values.get(key)
        edits = yield from _edits(replica, batch, key, facts, data)
        content = _version(key, facts, data, edits)
        batch.add_content(record_id, content)
        batch.values[key] = data
        return content.version

    return Plan("value", key, make)


def _edits(
    replica: Replica, batch: Batch, key: str, facts: ValueFacts | None, data: bytes
) -> Steps[list[deltas.Edit] | None]:
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
    """Read one version of a value: the one in full, and the deltas up to it."""
    data = b""
    for position in chain:
        content = yield from reading.content_at(replica.past, position)
        if not isinstance(content, Value):
            raise ChainError(replica.name, position, "a value is expected here")
        data = apply_version(replica.name, position, data, content)
    return data


def apply_version(name: str, position: int, data: bytes, content: Value) -> bytes:
    """Return a value in full after one more version."""
    if content.form != "delta":
        return codec.encode_tree(content.data)
    try:
        return deltas.apply(data, content.data)
    except (LookupError, TypeError, ValueError) as error:
        raise PayloadError(name, position, "its delta does not fit the version before") from error


def forget(replica: Replica, key: str) -> Plan:
    """Plan the deletion of a value; its history stays."""
    require_text(key, "a key", longest=NAME_BYTES_MAX)
    record_id = replica.settings.new_id()

    def make(batch: Batch) -> Made:
        yield from ()
        facts = batch.fold.values.get(key)
        if facts is None or facts.deleted:
            raise NotFoundError(f"value {key!r}")
        content = Value(
            key=key,
            version=facts.version + 1,
            form="deleted",
            previous=facts.position,
            earlier=facts.chain[0],
        )
        batch.values.pop(key, None)
        return batch.add_content(record_id, content)

    return Plan("value", key, make)


def remark(replica: Replica, data: object, *, author: str, record_id: str | None) -> Plan:
    """Plan a note."""
    content = Note(data=replica.settings.codec.pack(data), author=require_str(author, "author"))
    own_id = require_id(record_id) if record_id is not None else replica.settings.new_id()
    return Plan("note", "", add_drafts([Draft(own_id, content, codec.encode(content))]))


def label(replica: Replica, add: Sequence[str], remove: Sequence[str]) -> Plan:
    """Plan a change of labels."""
    require_labels(remove)
    for text in (*add, *remove):
        require_text(text, "a label", longest=LABEL_BYTES_MAX)
        if text in RESERVED_LABELS:
            raise UsageError(f"the label {text!r} is perdure's own: choose another")
    record_id = replica.settings.new_id()
    content = Labelled(add=tuple(add), remove=tuple(remove))
    most = LABELS_MAX - len(RESERVED_LABELS - {DELETED, HALF_COPIED})  # These two stand alone.

    def make(batch: Batch) -> Made:
        yield from ()
        if len((batch.fold.labels | set(add)) - set(remove)) > most:
            raise UsageError(f"a session bears at most {most} labels: remove one first")
        return batch.add_content(record_id, content)

    return Plan("label", "", make)


def nothing(batch: Batch) -> Steps[int]:
    """Add nothing. Going through the queue is what it is for."""
    yield from ()
    return batch.position


NOTHING = Plan("note", "", nothing)
CATCH_UP = Plan("catch-up", "", nothing)  # The same, without anybody being told.
REFRESH = Plan("refresh", "", nothing)  # `Replica.write` catches up before plans of this kind.


def require_session_id(session_id: object) -> str:
    """Return a session id, or say what is wrong with it."""
    return require_text(session_id, "a session id", longest=SESSION_ID_BYTES_MAX)


def require_labels(labels: Sequence[str]) -> None:
    """Refuse a text where several are meant: it would count as its letters."""
    if isinstance(labels, str):
        raise UsageError(f"labels must be a list of str, not str: write [{labels!r}]")
    if not isinstance(labels, Collection):
        raise UsageError(f"labels must be a list of str, not {type(labels).__name__}")
