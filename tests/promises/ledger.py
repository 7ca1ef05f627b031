"""What was sent to a store and what it acknowledged, and whether a store found later agrees.

The ledger reads headers and bodies as plain JSON, and shares no code with what it checks.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import perdure
from perdure.backends.digests import digest_of
from perdure.backends.protocol import Append, Backend, Entry, Outcome
from perdure.errors import PerdureError
from perdure.testing.faults import BackendWrapper
from tests.support import forgotten

OPENED = 0.3  # Of sampled stores, those in which the session written to last is opened.
WHOLE = 0.06  # And those in which all of some session is read and verified.
ENDS = frozenset({"turn.completed", "turn.failed", "turn.abandoned"})


class Event(NamedTuple):
    """`sent`, `joined` or `stored` appends, or `dropping` or `dropped` entries of a stream."""

    what: str
    appends: Sequence[Append] = ()
    stream: str = ""
    before: int = 0


class Witness(BackendWrapper):
    """A backend that reports what is sent, and what was acknowledged as soon as it was."""

    def __init__(self, backend: Backend, report: Callable[[Event], object]) -> None:
        super().__init__(backend)
        self._report = report

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        self._report(Event("sent", appends))
        outcomes = super().append(appends)
        pairs = zip(appends, outcomes, strict=True)
        stored = [append for append, outcome in pairs if outcome.status == "stored"]
        self._report(Event("stored", stored))
        return outcomes

    def append_together(self, appends: Sequence[Append]) -> Outcome:
        self._report(Event("sent", appends))
        self._report(Event("joined", appends))
        outcome = super().append_together(appends)
        if outcome.status == "stored":
            self._report(Event("stored", appends))
        return outcome

    def drop(self, stream: str, *, before: int) -> None:
        self._report(Event("dropping", stream=stream, before=before))
        super().drop(stream, before=before)
        self._report(Event("dropped", stream=stream, before=before))


class Hasty(Witness):
    """Tells of an acknowledgement before the commit: the mistake that every trial must see."""

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        self._report(Event("sent", appends))
        self._report(Event("stored", appends))
        return self.backend.append(appends)


class Lane:
    """One stream: every entry that was sent, and how far it was acknowledged."""

    def __init__(self) -> None:
        self.parent = ""
        self.first = 0
        self.acked = 0
        self.digests: dict[int, str] = {}
        self.turns: dict[int, frozenset[str]] = {0: frozenset()}
        self.deleted = 0
        self.dropping = 0
        self.dropped = 0

    def send(self, append: Append, inherited: frozenset[str]) -> None:
        first = append.entries[0].position
        self.first = self.first or first
        open_turns = self.turns.get(first - 1, inherited)
        for entry in append.entries:
            digest = digest_of(entry.header)
            self.digests.update(dict.fromkeys(range(entry.position, entry.last + 1), digest))
            for kind, record, payload in records_of(entry):
                open_turns = _after(open_turns, kind, record, payload)
                if kind == "deleted":
                    self.deleted = entry.position
            self.turns[entry.last] = open_turns  # Only here it may end: an entry is all or nothing.

    def judge(self, head: perdure.SessionInfo | None) -> str:
        """Say what is wrong with the end of the stream that was found."""
        if head is None:
            return f"lost: {self.acked} acknowledged, nothing there" if self.acked else ""
        if head.position < self.acked:
            return f"lost: {self.acked} acknowledged, {head.position} there"
        if head.position not in self.turns:
            return f"not all or nothing: it ends at {head.position}"
        if head.digest != self.digests[head.position]:
            return f"phantom: {head.position} is not what was sent"
        if bool(self.turns[head.position]) != ("turn-open" in head.labels):
            return f"turns {set(self.turns[head.position])} are open, it is labelled {head.labels}"
        return ""


def records_of(entry: Entry) -> Iterator[tuple[str, str, Any]]:
    """Yield the kind, the id and the payload of each record in an entry."""
    start = 0
    for kind, own, length, *_ in json.loads(entry.header)[8]:
        _, payload, *given = json.loads((entry.body or b"")[start : start + length])
        yield kind, given[0] if given else own, payload
        start += length


def _after(turns: frozenset[str], kind: str, record: str, payload: Any) -> frozenset[str]:
    if kind == "turn.begun":
        return turns | {record}
    if kind in ENDS:
        return turns - {payload["turn"]}
    if kind == "turn.continued":  # It may have failed before.
        return turns | {payload["turn"]}
    return frozenset() if kind == "deleted" else turns


class Ledger:
    """All streams of a store. Give it every `Event` in order; then ask `judge`."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self.recent = ""
        self.acks = 0
        self.joined: list[dict[str, int]] = []
        """Of appends that are stored together or not at all: where each of them ends."""

    def note(self, event: Event) -> None:
        getattr(self, f"_{event.what}")(event)

    def _sent(self, event: Event) -> None:
        self.recent = event.appends[0].stream
        for append in event.appends:
            lane = self.lanes.setdefault(append.stream, Lane())
            lane.send(append, self._inherited(append))

    def _joined(self, event: Event) -> None:
        self.joined.append({each.stream: each.entries[-1].last for each in event.appends})

    def _inherited(self, append: Append) -> frozenset[str]:
        (kind, _, origin), *_ = records_of(append.entries[0])
        if kind != "branched":
            return frozenset()
        self.lanes[append.stream].parent = origin["parent"]
        return self.lanes[origin["parent"]].turns.get(origin["at"], frozenset())

    def _stored(self, event: Event) -> None:
        self.acks += 1
        for append in event.appends:
            lane = self.lanes[append.stream]
            lane.acked = max(lane.acked, append.entries[-1].last)

    def _dropping(self, event: Event) -> None:
        self.lanes[event.stream].dropping = event.before

    def _dropped(self, event: Event) -> None:
        self.acks += 1
        self.lanes[event.stream].dropped = event.before

    def judge(self, store: perdure.Store, sample: random.Random | None = None) -> str:
        """Return what a store lost, made up or shows in part; "" if it kept its promises.

        Every head is compared. Then every session is opened, verified and its records compared;
        given a `sample` that is drawn from, only some are, because most states are alike.
        """
        try:
            return self._judge(store, sample)
        except PerdureError as error:
            return f"{type(error).__name__}: {error}"

    def _judge(self, store: perdure.Store, sample: random.Random | None) -> str:
        heads = {head.id: head for head in store.sessions(deleted=True)}
        if made_up := heads.keys() - self.lanes.keys():
            return f"phantom: sessions {sorted(made_up)}"
        for name, lane in self.lanes.items():
            if failure := lane.judge(heads.get(name)):
                return f"{name!r}: {failure}"
        for ends in self.joined:
            found = {name: name in heads and heads[name].position >= ends[name] for name in ends}
            if len({*found.values()}) > 1:
                return f"half of a batch is there: {found}"
        if sample is None:
            failures = (self._judge_whole(store, head) for head in heads.values())
            return next(filter(None, failures), "")
        recent = heads.get(self.recent)
        failure = ""
        if recent is not None:
            failure = self._judge_end(store, recent)
            if not failure and sample.random() < OPENED:
                failure = self._judge_turns(store.session(recent.id), recent)
        if heads and not failure and sample.random() < WHOLE:
            failure = self._judge_whole(store, heads[sample.choice(sorted(heads))])
        return failure

    def _judge_end(self, store: perdure.Store, head: perdure.SessionInfo) -> str:
        for entry in store._backend.read(head.id, limit=6, reverse=True):
            digest = digest_of(entry.header)
            if digest != self.lanes[head.id].digests[entry.last]:
                return f"{head.id!r}: phantom: {entry.position} is not what was sent"
        return ""

    def _judge_turns(self, session: perdure.Session, head: perdure.SessionInfo) -> str:
        sent = self.lanes[session.id].turns[head.position]
        shown = frozenset(turn.id for turn in session.interrupted)
        if session.position > head.position and not shown:
            return ""  # Opening it ended a branch that was cut off while it was made.
        if shown != sent:
            return f"{session.id!r}: turns {set(sent)} are open, {set(shown)} are shown as such"
        return ""

    def _judge_whole(self, store: perdure.Store, head: perdure.SessionInfo) -> str:
        name, lane = head.id, self.lanes[head.id]
        session = store.session(name)
        if failure := self._judge_turns(session, head):
            return failure
        for record in session.records():
            if not self._is_sent(head, record):
                return f"{name!r}: phantom: record {record.position} is not what was sent"
        session.verify()
        if lost := forgotten(session):
            return f"{name!r}: forgotten: ids {lost} are stored, and not known"
        first = next(store._backend.read(name, limit=1)).position
        allowed = {lane.dropped or lane.first, lane.dropping or lane.first, lane.deleted}
        if first not in allowed and first <= head.position:
            return f"{name!r}: it begins at {first}, not in {allowed}"
        return ""

    def _is_sent(self, head: perdure.SessionInfo, record: perdure.Record) -> bool:
        """Whether a record is the one sent for its place; a branch's past lies in its parents.

        What comes after the head was written by opening the session: who finds a branch or a
        deletion that a crash cut short completes it.
        """
        if record.position > head.position:
            return True
        name = head.id
        while record.position < self.lanes[name].first:
            name = self.lanes[name].parent
        return self.lanes[name].digests[record.position] == record.digest
