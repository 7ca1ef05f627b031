"""A model of sessions made of lists and dictionaries. Pure; it imports nothing from perdure.

A life is one session from its creation to its deletion: a list of records, from which every state
is computed from scratch. A write is evaluated on the state that its handle has seen. If other
handles wrote since, it is either invalidated or evaluated again on the newest state.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

CONVERSATION_KINDS = ("message", "messages.retracted", "messages.replaced")

DELETED_VALUE = "a value that was deleted"  # compared by identity; the text is for failure output


class ModelRecord(NamedTuple):
    """One record: its kind, its subject (a turn or a key), its value, and the caller's id."""

    kind: str
    about: str = ""
    value: Any = None
    id: str = ""
    position: int = 0
    call: tuple[Any, ...] = ()
    """All messages of the call; set on the first record of a call with an id."""


class ShownMessage(NamedTuple):
    """A message, and its place: its position, or that of the last message it replaced."""

    place: int
    position: int
    message: Any


class ModelState:
    """The state of a session after some records."""

    def __init__(self, records: Sequence[ModelRecord], first: int = 0) -> None:
        self.first = first
        """The first position that compactions kept, 0 without one."""
        self.shown: list[ShownMessage] = []
        self.topics: dict[str, list[tuple[int, Any]]] = {}
        self.values: dict[str, list[tuple[int, Any]]] = {}
        self.turns: dict[str, int] = {}
        self.failed: set[str] = set()
        self.begun: dict[str, int] = {}
        self.labels: set[str] = set()
        self.fields: dict[str, Any] = {}
        self.ids: dict[str, tuple[str, str, Any, tuple[Any, ...]]] = {}
        for record in records:
            self._apply(record)
        self.shown = [item for item in self.shown if item.position >= first]

    def _apply(self, record: ModelRecord) -> None:
        kind, about, value, record_id, position, call = record
        if record_id:
            self.ids[record_id] = (kind, about, value, call)
        if kind in CONVERSATION_KINDS:
            self._apply_message(kind, value, position)
        elif kind in ("note", "value"):
            versions = self.topics if kind == "note" else self.values
            versions.setdefault(about, []).append((position, value))
        elif kind in ("turn.begun", "turn.continued"):
            self.turns[about] = value
        elif kind.startswith("turn."):
            self.turns.pop(about, None)
        elif kind == "labels":
            self.labels = (self.labels | set(value[0])) - set(value[1])
        elif kind == "fields":
            self.fields = {k: v for k, v in {**self.fields, **value}.items() if v is not None}
        if kind.startswith("turn."):
            self.begun.setdefault(about, position)
            self.failed = self.failed | {about} if kind == "turn.failed" else self.failed - {about}

    def _apply_message(self, kind: str, value: Any, position: int) -> None:
        if kind == "message":
            self.shown.append(ShownMessage(position, position, value))
        elif kind == "messages.retracted":
            self.shown = [item for item in self.shown if item.position not in value]
        else:
            self._replace(*value)

    def _replace(self, first: int, last: int, count: int) -> None:
        """Move the newest messages to the place of others."""
        kept, new = self.shown[:-count], self.shown[-count:]
        before = [item for item in kept if item.place < first]
        after = [item for item in kept if item.place > last]
        self.shown = [*before, *(item._replace(place=last) for item in new), *after]

    def is_dropped(self, turn: str) -> bool:
        """Return whether a compaction dropped the records of a turn."""
        return self.begun.get(turn, self.first) < self.first

    @property
    def messages(self) -> list[Any]:
        """The messages that were not taken back, each in its place."""
        return [item.message for item in self.shown]

    def newest_note(self, topic: str) -> int:
        """Return the position of the newest note of a topic, 0 if there is none."""
        return self.topics[topic][-1][0] if topic in self.topics else 0

    def value(self, key: str) -> Any:
        """Return the newest version of a key, DELETED_VALUE if there is none."""
        return self.values[key][-1][1] if key in self.values else DELETED_VALUE


class SessionLife:
    """One session until its deletion. `begin` is the end of the previous life, or 0."""

    def __init__(self, name: str, *, begin: int) -> None:
        self.name = name
        self.begin = begin
        self.base = begin
        self.records: list[ModelRecord] = []
        self.owners: list[tuple[str, int]] = []
        """Sessions whose history this one shares: the nearest first, each up to a position."""
        self.compactions: list[tuple[int, int]] = []
        """The position of each compaction, and the first position that it kept."""

    @property
    def position(self) -> int:
        """The position of the newest record in the model."""
        return max(self.base, self.records[-1].position if self.records else 0)

    @property
    def first(self) -> int:
        """The first position that compactions kept, 0 without one."""
        return self.compactions[-1][1] if self.compactions else 0

    @property
    def state(self) -> ModelState:
        """The state after all records."""
        return ModelState(self.records, self.first)

    def seen(self, position: int) -> ModelState:
        """Return the state of a handle that has read up to a position."""
        records = [record for record in self.records if record.position <= position]
        firsts = [first for at, first in self.compactions if at <= position]
        return ModelState(records, firsts[-1] if firsts else 0)

    def compacted(self, at: int, first: int) -> None:
        """Drop what is before a position. A branch then needs no other session any more."""
        self.compactions.append((at, first))
        self.base = max(self.base, at)
        self.owners = []

    def branch(self, name: str, at: int) -> "SessionLife":
        """Return the life of a branch: it shares the records except labels and fields."""
        child = SessionLife(name, begin=self.begin)
        child.base = at + 1
        child.records = [
            record
            for record in self.records
            if record.position <= at and record.kind not in ("labels", "fields")
        ]
        child.compactions = [*self.compactions]
        beyond = [owner for owner, until in self.owners if until >= at]
        child.owners = [(beyond[-1] if beyond else self.name, at)]
        child.owners += [(owner, until) for owner, until in self.owners if until < at]
        return child


class AlreadyStored(NamedTuple):
    """The write is stored already under the caller's id, with `after` records after the first."""

    id: str
    after: int


Prediction = list[ModelRecord] | AlreadyStored | str

"""The result of a write: records to store, records stored already, or the name of an error."""


class ModelWrite(NamedTuple):
    """The records a call writes in a given state, and the records that invalidate it."""

    attempt: Callable[[ModelState], Prediction]
    invalidated_by: Callable[[ModelRecord], bool]


def predict(
    life: SessionLife, seen: int, write: ModelWrite, unseen: Sequence[ModelRecord]
) -> Prediction:
    """Return the result of a write through a handle that has read up to position `seen`.

    `unseen` are the records of other handles that the caller does not know, whether or not the
    handle has read them.
    """
    prediction = write.attempt(life.seen(seen))
    if not isinstance(prediction, list):
        return prediction
    if any(write.invalidated_by(record) for record in unseen):
        return "ConflictError"
    return write.attempt(life.state)


def _never(_: ModelRecord) -> bool:
    return False


def _find_stored(state: ModelState, records: Sequence[ModelRecord]) -> AlreadyStored | str | None:
    """Return where records are stored already, DivergenceError if others have their id, or None."""
    first = records[0]
    stored = state.ids.get(first.id)
    if stored is None:
        return None
    if stored != (*first[:3], first.call):
        return "DivergenceError"
    return AlreadyStored(first.id, len(records) - 1)


def append_write(
    messages: Sequence[Any], *, id: str = "", turn: str = "", owner: int = 0
) -> ModelWrite:
    """Append messages, with or without the caller's id, inside or outside a turn."""
    records = [ModelRecord("message", turn, message) for message in messages]
    if id:
        records[0] = records[0]._replace(id=id, call=tuple(messages))

    def attempt(state: ModelState) -> Prediction:
        stored = _find_stored(state, records) if id else None
        if stored is not None:
            return stored
        if turn and state.turns.get(turn) != owner:
            return "ConflictError"
        return records

    return ModelWrite(
        attempt, lambda other: other.kind in CONVERSATION_KINDS or _concerns_turn(turn, other)
    )


def _concerns_turn(turn: str, other: ModelRecord) -> bool:
    return bool(turn) and other.kind.startswith("turn.") and other.about == turn


def begin_turn_write(turn: str, message: Any, *, own_id: bool, owner: int) -> ModelWrite:
    """Begin a turn with its input message."""
    begun = ModelRecord("turn.begun", turn, owner, turn if own_id else "")
    input_message = ModelRecord("message", turn, message, f"{turn}\tinput" if own_id else "")

    def attempt(state: ModelState) -> Prediction:
        if own_id and turn in state.ids:
            return _find_stored(state, [input_message]) or "DivergenceError"
        return [begun, input_message]

    return ModelWrite(attempt, lambda other: other.kind in (*CONVERSATION_KINDS, "turn.begun"))


def change_turn_write(kind: str, turn: str, *, owner: int = 0, new_owner: int = 0) -> ModelWrite:
    """Continue, complete, fail or abandon a turn; `owner` must hold it, 0 for any."""

    def attempt(state: ModelState) -> Prediction:
        holder = state.turns.get(turn)
        if holder is None and kind == "turn.continued" and turn in state.failed:
            return [ModelRecord(kind, turn, new_owner)]
        if holder is None or (owner and holder != owner):
            return "ConflictError"
        return [ModelRecord(kind, turn, new_owner or None)]

    return ModelWrite(
        attempt, lambda other: other.kind != "turn.begun" and _concerns_turn(turn, other)
    )


def value_write(key: str, value: Any) -> ModelWrite:
    """Store a new version of a key; DELETED_VALUE deletes it."""

    def attempt(state: ModelState) -> Prediction:
        if value is DELETED_VALUE and state.value(key) is DELETED_VALUE:
            return "NotFoundError"
        return [ModelRecord("value", key, value)]

    return ModelWrite(attempt, lambda other: other.kind == "value" and other.about == key)


def note_write(
    data: Any, *, id: str = "", topic: str = "", expect: int | None = None
) -> ModelWrite:
    """Append a note; `expect` is the position of the newest one of its topic."""
    record = ModelRecord("note", topic, data, id)

    def attempt(state: ModelState) -> Prediction:
        stored = _find_stored(state, [record]) if id else None
        if stored is not None:
            return stored
        if expect is not None and state.newest_note(topic) != expect:
            return "ConflictError"
        return [record]

    return ModelWrite(attempt, _never)


def _is_retraction(other: ModelRecord) -> bool:
    return other.kind in CONVERSATION_KINDS and other.kind != "message"


def retract_write(positions: Sequence[int]) -> ModelWrite:
    """Take messages back; each must be shown."""

    def attempt(state: ModelState) -> Prediction:
        if not {*positions} <= {item.position for item in state.shown}:
            return "NotFoundError"
        return [ModelRecord("messages.retracted", "", tuple(positions))]

    return ModelWrite(attempt, _is_retraction)


def replace_write(first: int, last: int, messages: Sequence[Any]) -> ModelWrite:
    """Put messages in the place of those from one position to another; one must be shown."""

    def attempt(state: ModelState) -> Prediction:
        if not any(first <= item.place <= last for item in state.shown):
            return "NotFoundError"
        records = [ModelRecord("message", "", message) for message in messages]
        return [*records, ModelRecord("messages.replaced", "", (first, last, len(messages)))]

    return ModelWrite(attempt, _is_retraction)


def batch_write(parts: Sequence[ModelWrite]) -> ModelWrite:
    """Write everything in one commit, or nothing."""

    def attempt(state: ModelState) -> Prediction:
        records: list[ModelRecord] = []
        for part in parts:
            prediction = part.attempt(state)
            if not isinstance(prediction, list):
                return prediction
            records += prediction
        return records

    return ModelWrite(attempt, lambda other: any(part.invalidated_by(other) for part in parts))


def label_write(add: Sequence[str], remove: Sequence[str]) -> ModelWrite:
    """Add and remove labels."""
    return ModelWrite(lambda _: [ModelRecord("labels", "", (tuple(add), tuple(remove)))], _never)


def fields_write(fields: dict[str, Any]) -> ModelWrite:
    """Set fields; None removes one."""
    return ModelWrite(lambda _: [ModelRecord("fields", "", fields)], _never)


def wanted_first(state: ModelState, keep: int, end: int) -> int:
    """Return the first position that a compaction should keep, without what limits it."""
    positions = [item.position for item in state.shown]
    if keep >= len(positions):
        return state.first
    return min(positions[-keep:]) if keep else end
