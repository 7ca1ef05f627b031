"""What sessions should do, said with lists and dictionaries. Pure, and knows nothing of perdure.

A life is one session from its beginning to its deletion: a list of records, from which every state
is computed anew. A write is tried on the state that its handle has seen; if others wrote since, it
is void or it is tried again on the newest state.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

GONE = "a value that was deleted"  # Compared by identity; its text is for people.


class Said(NamedTuple):
    """One record: its kind, what it is about, what it says, and the caller's own id for it."""

    kind: str
    about: str = ""
    says: Any = None
    id: str = ""
    position: int = 0
    call: tuple[Any, ...] = ()
    """All that was said in the call, on the first record of one that bears an id."""


class State:
    """What a session knows after some records."""

    def __init__(self, records: Sequence[Said]) -> None:
        self.messages: list[Any] = []
        self.values: dict[str, list[tuple[int, Any]]] = {}
        self.turns: dict[str, int] = {}
        self.labels: set[str] = set()
        self.ids: dict[str, tuple[str, str, Any, tuple[Any, ...]]] = {}
        for record in records:
            self._take(record)

    def _take(self, record: Said) -> None:
        kind, about, says, record_id, position, call = record
        if record_id:
            self.ids[record_id] = (kind, about, says, call)
        if kind == "message":
            self.messages.append(says)
        elif kind == "value":
            self.values.setdefault(about, []).append((position, says))
        elif kind in ("turn.begun", "turn.continued"):
            self.turns[about] = says
        elif kind.startswith("turn."):
            self.turns.pop(about, None)
        elif kind == "labelled":
            self.labels = (self.labels | set(says[0])) - set(says[1])

    def value(self, key: str) -> Any:
        """The newest version of a key, GONE where there is none."""
        return self.values[key][-1][1] if key in self.values else GONE


class Life:
    """One session until it is deleted. `begin` is where the life before it ended, or 0."""

    def __init__(self, name: str, *, begin: int) -> None:
        self.name = name
        self.begin = begin
        self.base = begin
        self.records: list[Said] = []
        self.owners: list[tuple[str, int]] = []
        """Whose past this one shares: the nearest first, each up to a position."""
        self.torn: set[int] = set()
        """Positions of appends that a crash cut short: they were never stored."""

    @property
    def position(self) -> int:
        """The position of the newest record that the model knows of."""
        return max(self.base, self.records[-1].position if self.records else 0)

    def seen(self, position: int) -> State:
        """The state of a handle that has read up to a position."""
        return State([record for record in self.records if record.position <= position])

    def branch(self, name: str, at: int) -> "Life":
        """The life of a branch: it shares what was said, but not the labels."""
        child = Life(name, begin=self.begin)
        child.base = at + 1
        child.torn = {position for position in self.torn if position <= at}
        child.records = [
            record for record in self.records if record.position <= at and record.kind != "labelled"
        ]
        beyond = [owner for owner, until in self.owners if until >= at]
        child.owners = [(beyond[-1] if beyond else self.name, at)]
        child.owners += [(owner, until) for owner, until in self.owners if until < at]
        return child


class Known(NamedTuple):
    """The write stands already, under the caller's own id, with so many records after the first."""

    id: str
    after: int


Answer = list[Said] | Known | str

"""What a write comes to: records to be stored, the ones that stand already, or an error's name."""


class Write(NamedTuple):
    """What a call would write in a state, and which records of others make it void."""

    attempt: Callable[[State], Answer]
    void_by: Callable[[Said], bool]


def predict(life: Life, seen: int, write: Write, untold: Sequence[Said]) -> Answer:
    """Return what becomes of a write through a handle that has seen so much.

    `untold` is what others wrote that its caller was not told of, seen by the handle or not.
    """
    answer = write.attempt(life.seen(seen))
    if not isinstance(answer, list):
        return answer
    if any(write.void_by(record) for record in untold):
        return "ConflictError"
    return write.attempt(State(life.records))


def _never(_: Said) -> bool:
    return False


def _known(state: State, records: Sequence[Said]) -> Known | str | None:
    """Whether records stand already: where, or why that can not be, or not at all."""
    first = records[0]
    found = state.ids.get(first.id)
    if found is None:
        return None
    if found != (*first[:3], first.call):
        return "DivergenceError"
    return Known(first.id, len(records) - 1)


def saying(messages: Sequence[Any], *, id: str = "", turn: str = "", owner: int = 0) -> Write:
    """Append messages, with or without an id of one's own, in a turn or outside of all."""
    records = [Said("message", turn, message) for message in messages]
    if id:
        records[0] = records[0]._replace(id=id, call=tuple(messages))

    def attempt(state: State) -> Answer:
        known = _known(state, records) if id else None
        if known is not None:
            return known
        if turn and state.turns.get(turn) != owner:
            return "ConflictError"
        return records

    return Write(attempt, lambda other: other.kind == "message" or _ends(turn, other))


def _ends(turn: str, other: Said) -> bool:
    return bool(turn) and other.kind.startswith("turn.") and other.about == turn


def beginning(turn: str, message: Any, *, own: bool, owner: int) -> Write:
    """Begin a turn with the input that opened it."""
    begun = Said("turn.begun", turn, owner, turn if own else "")
    said = Said("message", turn, message, f"{turn}\tinput" if own else "")

    def attempt(state: State) -> Answer:
        if own and turn in state.ids:
            return _known(state, [said]) or "DivergenceError"
        return [begun, said]

    return Write(attempt, lambda other: other.kind in ("message", "turn.begun"))


def changing(kind: str, turn: str, *, owner: int = 0, now: int = 0) -> Write:
    """Continue, complete, fail or abandon a turn; `owner` is who must hold it, 0 for anyone."""

    def attempt(state: State) -> Answer:
        holder = state.turns.get(turn)
        if holder is None or (owner and holder != owner):
            return "ConflictError"
        return [Said(kind, turn, now or None)]

    return Write(attempt, lambda other: other.kind != "turn.begun" and _ends(turn, other))


def setting(key: str, value: Any) -> Write:
    """Store a new version of a key, or with GONE delete it."""

    def attempt(state: State) -> Answer:
        if value is GONE and state.value(key) is GONE:
            return "NotFoundError"
        return [Said("value", key, value)]

    return Write(attempt, lambda other: other.kind == "value" and other.about == key)


def noting(data: Any, *, id: str = "") -> Write:
    """Append a remark."""
    record = Said("note", "", data, id)

    def attempt(state: State) -> Answer:
        return (_known(state, [record]) if id else None) or [record]

    return Write(attempt, _never)


def labelling(add: Sequence[str], remove: Sequence[str]) -> Write:
    """Put labels on, and take others off."""
    return Write(lambda _: [Said("labelled", "", (tuple(add), tuple(remove)))], _never)
