"""An index of a thread's records: checkpoints, the writes on each, the newest of each namespace.

In: records of the session, in order. Out: positions; the notes themselves are read when needed. The
newest checkpoint of a namespace is the one that was stored last, whatever the clocks of the writers
said when they made its id.
"""

from typing import Any, NamedTuple

import perdure

CHECKPOINTS = "langgraph"  # The topic of notes on checkpoints of the graph itself,
NESTED = "langgraph.nested"  # and of those of its subgraphs.
WRITES = "langgraph.writes"  # The key of a note on writes that belong to a checkpoint.

Key = tuple[str, str]  # A namespace and the id of a checkpoint.


class CheckpointPlace(NamedTuple):
    """The place of a stored checkpoint."""

    position: int
    namespace: str
    id: str
    at: int
    """The position of the checkpoint that it follows; 0 if that is not known."""

    @property
    def key(self) -> Key:
        return self.namespace, self.id


class ThreadIndex:
    """The checkpoints of a thread: all, or only the newest and what came after it."""

    def __init__(self, session: perdure.Session) -> None:
        self._session = session
        self._start()

    def _start(self) -> None:
        self.position = 0
        self.complete = True
        """Whether all records of the session were read."""
        self.places: dict[Key, CheckpointPlace] = {}
        self.dropped: dict[Key, CheckpointPlace] = {}
        """Checkpoints that are not listed any more; channels may still depend on their writes."""
        self.heads: dict[str, CheckpointPlace] = {}
        self.writes: dict[Key, list[int]] = {}
        self.early: dict[Key, list[int]] = {}
        """Positions of messages that tasks wrote, and that no checkpoint listed at the time."""
        self.topics: dict[str, int] = {}
        """The position of the newest note of each topic."""
        self.newest_message = 0
        self.messages: list[int] = []
        self.hidden: set[int] = set()
        """Positions of messages that were taken back."""
        self.replaced: dict[int, int] = {}
        """The place in the conversation of each message that was put there instead of another."""

    def begin_at(self, position: int, data: dict[str, Any], newest_message: int) -> None:
        """Begin with the newest checkpoint instead of the first record."""
        self.complete = False
        self.position = position
        self.newest_message = newest_message
        self.messages = [newest_message]
        self.add_note(position, CHECKPOINTS, data)

    def read(self) -> None:
        """Include the records that the session has, and that were not included yet."""
        if self._session.position > self.position:
            for record in self._session.records(after=self.position):
                self._add(record)
            self.position = self._session.position

    def require_complete(self) -> None:
        """Read all records, if that was not done yet."""
        if not self.complete:
            self._start()
            self.read()

    def _add(self, record: perdure.Record) -> None:
        content: Any = record.content
        if record.kind == "note":
            self.add_note(record.position, content.topic, content.data)
        elif record.kind == "message":
            self.add_message(record.position)
        elif record.kind == "messages.retracted":
            self.hidden |= {*content.positions}
            for first, last in content.ranges:
                self.hidden |= {at for at in self.messages if first <= self.place(at) <= last}
        elif record.kind == "messages.replaced":
            new = range(content.new_first, content.new_last + 1)
            within = range(content.first, content.last + 1)
            self.hidden |= {at for at in self.messages if self.place(at) in within} - {*new}
            self.replaced |= dict.fromkeys(new, content.last)
        self.position = record.position

    def place(self, position: int) -> int:
        """Return the place of a message in the conversation: its position, or that of another."""
        return self.replaced.get(position, position)

    def add_message(self, position: int) -> None:
        """Include a message."""
        self.newest_message = position
        self.messages.append(position)

    def add_note(self, position: int, topic: str, data: Any) -> None:
        """Include a note: a checkpoint, writes, or checkpoints that were dropped."""
        if topic in (CHECKPOINTS, NESTED):
            self.topics[topic] = position
            if "put" in data:
                if data.get("again"):  # Pruned: its writes follow, those before are not needed.
                    self.writes.pop((data.get("ns", ""), data["put"]), None)
                self._add_place(
                    CheckpointPlace(position, data.get("ns", ""), data["put"], data.get("at", 0))
                )
            elif "drop" in data:
                self._drop([(namespace, id) for namespace, id in data["drop"]])
        elif type(data) is dict and WRITES in data:
            key = data.get("ns", ""), data[WRITES]
            self.writes.setdefault(key, []).append(position)
            if data.get("stored"):
                early = self.early.setdefault(key, [])
                early += range(position - data["stored"], position)

    def _add_place(self, place: CheckpointPlace) -> None:
        self.places.pop(place.key, None)  # Stored again, it is the newest.
        self.places[place.key] = place
        self.heads[place.namespace] = place

    def _drop(self, keys: list[Key]) -> None:
        for key in keys:
            if key in self.places:
                self.dropped[key] = self.places.pop(key)
        self.heads = {place.namespace: place for place in self.places.values()}
