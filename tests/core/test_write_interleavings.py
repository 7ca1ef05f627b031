"""Two handles write to one session in every order of their requests: who yields, and what stays."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Backend
from perdure.core import annotations, lifecycle, plans, turns, values
from perdure.core import messages as messages_module
from perdure.core.plans import Plan, T, TurnOwnership
from perdure.core.replica import Replica
from perdure.core.settings import Settings
from perdure.errors import ConflictError, PerdureError, UnavailableError
from perdure.journal.records import Record
from perdure.journal.requests import Commit, Request, Steps
from perdure.sync.session import Session
from perdure.sync.store import Store
from perdure.testing import Flaky
from tests.core.schedules import NEVER, Actor, copied, run, schedules, settings

TURN = "the turn"
OWNED = TurnOwnership(TURN, TURN)
LONG = {"text": "word " * 100}


def messages(replica: Replica) -> Plan[int]:
    return messages_module.append_messages(
        replica, [{"role": "user", "content": part} for part in "ab"]
    )


def in_turn(replica: Replica) -> Plan[int]:
    return messages_module.append_messages(
        replica, [{"role": "assistant", "content": "c"}], turn=OWNED
    )


def begin(replica: Replica) -> Plan[turns.TurnStart]:
    said = {"role": "user", "content": "d"}
    return turns.begin_turn(replica, "another turn", said, correlation_id="")


PLANS: dict[str, Callable[[Replica], Plan[Any]]] = {
    "messages": messages,
    "in turn": in_turn,
    "begin": begin,
    "complete": lambda replica: turns.complete_turn(replica, OWNED),
    "abandon": lambda replica: turns.abandon_turn(replica, TURN, "enough"),
    "continue": lambda replica: turns.continue_turn(replica, TURN)[0],
    "set x": lambda replica: values.set_value(replica, "x", {**LONG, "more": 1}),
    "set y": lambda replica: values.set_value(replica, "y", 1),
    "forget x": lambda replica: values.delete_value(replica, "x"),
    "note": lambda replica: annotations.add_note(replica, "n", author="", record_id=None),
    "label": lambda replica: annotations.change_labels(replica, ["l"], []),
}

# Who can not be second after whom. It says again, in other words, what `CONFLICT_RULES` says: a
# change there must be meant.
SPEECH = {"messages", "in turn", "begin"}
TURN_CHANGES = {"complete", "abandon", "continue"}
YIELDS_TO = {
    "messages": SPEECH,
    "in turn": SPEECH | TURN_CHANGES,
    "begin": SPEECH,
    "complete": TURN_CHANGES,
    "abandon": TURN_CHANGES,
    "continue": TURN_CHANGES,
    "set x": {"set x", "forget x"},
    "set y": {"set y"},
    "forget x": {"set x", "forget x"},
    "note": set(),
    "label": set(),
}
KINDS = {
    "messages": ["message", "message"],
    "in turn": ["message"],
    "begin": ["turn.begun", "message"],
    "complete": ["turn.completed"],
    "abandon": ["turn.abandoned"],
    "continue": ["turn.continued"],
    "set x": ["value"],
    "set y": ["value"],
    "forget x": ["value"],
    "note": ["note"],
    "label": ["labels"],
}


class World(NamedTuple):
    backend: MemoryBackend
    settings: Settings
    begins: int
    """The position after which everything is new."""

    def session(self) -> Session:
        return Store(self.backend, self.settings).resume("s")

    def new(self) -> list[Record]:
        return list(self.session().records(after=self.begins))


def a_session() -> World:
    """A session with a message, a long value and an open turn."""
    backend, with_settings = MemoryBackend(), settings()
    session = Store(backend, with_settings).session("s")
    session.append({"role": "user", "content": "before"})
    session.set("x", LONG)
    session.turn("in the turn", id=TURN).__enter__()
    return World(backend, with_settings, session.position)


class Stage:
    """Writers that have all read the same state, set up anew for each order."""

    def __init__(self, plays: Sequence[str], *, lives: Sequence[int] = ()) -> None:
        self._template = a_session()
        self._plays = plays
        self._lives = lives or [NEVER] * len(plays)
        self.world = self._template

    def __call__(self) -> Sequence[Actor]:
        self.world = self._template._replace(backend=copied(self._template.backend))
        return [
            Actor(self.world.backend, self.writes(play), lives=life)
            for play, life in zip(self._plays, self._lives, strict=True)
        ]

    def writes(self, play: str) -> Steps[Any]:
        replica = self.opened(self.world.backend)
        return write(replica, PLANS[play](replica))

    def opened(self, backend: Backend) -> Replica:
        steps = lifecycle.open_session("s", self.world.settings, must_exist=True)
        replica: Replica = run(backend, steps)
        return replica


def write(replica: Replica, plan: Plan[T]) -> Steps[T]:
    (answer,) = yield from replica.write([plan])
    if isinstance(answer, PerdureError):
        raise answer
    return answer  # type: ignore[no-any-return] # the answers of a batch have different types


PAIRS = list(itertools.combinations_with_replacement(PLANS, 2))


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda name: name.replace(" ", "-"))
def test_the_second_of_two_writers_yields_to_what_concerns_it_and_to_nothing_else(
    one: str, other: str
) -> None:
    stage = Stage([one, other])
    for order, (first, second) in schedules(stage):
        stored = [record.kind for record in stage.world.new()]
        assert stored in outcomes(one, other), order
        acknowledged = (KINDS[one] if first.acknowledged else []) + (
            KINDS[other] if second.acknowledged else []
        )
        assert sorted(stored) == sorted(acknowledged), order
        for actor in (first, second):
            assert isinstance(actor.error, ConflictError | None), f"{order}: {actor.error!r}"
        stage.world.session().verify()


def outcomes(one: str, other: str) -> list[list[str]]:
    """What may have been stored, in order, after both have been answered."""
    found = []
    for first, second in ((one, other), (other, one)):
        yields = first in YIELDS_TO[second]
        found.append(KINDS[first] if yields else KINDS[first] + KINDS[second])
    return found


def boundaries() -> Iterator[tuple[str, str, int]]:
    for one, other in (("messages", "note"), ("messages", "messages"), ("begin", "set x")):
        for lives in range(6):
            yield one, other, lives


@pytest.mark.parametrize(("one", "other", "lives"), list(boundaries()))
def test_a_writer_that_dies_anywhere_leaves_its_append_whole_or_absent(
    one: str, other: str, lives: int
) -> None:
    stage = Stage([one, other], lives=[lives, NEVER])
    for order, (dying, living) in schedules(stage):
        stored = [record.kind for record in stage.world.new()]
        whole = [KINDS[one], KINDS[other], KINDS[one] + KINDS[other], KINDS[other] + KINDS[one]]
        assert stored in whole, order
        assert not living.acknowledged or stored != KINDS[one] or one == other, order
        assert not dying.acknowledged or stored != KINDS[other] or one == other, order
        again = stage.world.session()
        again.append({"role": "user", "content": "and on"})
        again.verify()


class Doubtful(Stage):
    """The first writer loses the answer to its append, or the append itself, and asks again."""

    def __init__(self, plays: Sequence[str], *, after_commit: bool) -> None:
        super().__init__(plays)
        self._after_commit = after_commit

    def __call__(self) -> Sequence[Actor]:
        _, other = super().__call__()
        # The committer sends once more by itself, so it takes two failures to be in doubt.
        flaky = Flaky(
            self.world.backend, fail=lambda call: call <= 2, after_commit=self._after_commit
        )
        replica = self.opened(self.world.backend)
        return [Actor(flaky, self._insists(replica, PLANS[self._plays[0]](replica))), other]

    def _insists(self, replica: Replica, plan: Plan[Any]) -> Steps[list[str]]:
        try:
            yield from write(replica, plan)
        except UnavailableError:
            yield from write(replica, plans.REFRESH)
        return [record.kind for record in self.world.new()]


@pytest.mark.parametrize("after_commit", [False, True])
@pytest.mark.parametrize(("one", "other"), [("messages", "messages"), ("set x", "forget x")])
def test_a_write_in_doubt_is_stored_once_or_gives_way(
    one: str, other: str, *, after_commit: bool
) -> None:
    stage = Doubtful([one, other], after_commit=after_commit)
    ends = set()
    for order, (doubtful, certain) in schedules(stage):
        stored = [record.kind for record in stage.world.new()]
        assert stored == KINDS[one], f"{order}: one of the two, once"
        assert doubtful.acknowledged, f"{order}: {doubtful.error!r}"
        assert isinstance(certain.error, ConflictError | None), order
        ends.add(certain.acknowledged)
        stage.world.session().verify()
    assert ends == {True, False}, "each was first at times"


@pytest.mark.parametrize("after_commit", [False, True])
def test_a_write_in_doubt_and_one_that_commutes_are_both_stored_unless_the_doubt_is_over(
    *, after_commit: bool
) -> None:
    stage = Doubtful(["messages", "note"], after_commit=after_commit)
    for order, (_, certain) in schedules(stage):
        stored = [record.kind for record in stage.world.new()]
        assert certain.acknowledged, order
        assert stored.count("note") == 1, order
        # What was overtaken before it arrived is dropped: its caller was told that nobody knew.
        assert stored.count("message") in (0, 2), order


def test_a_write_takes_one_request_when_nobody_else_writes() -> None:
    stage = Stage(["messages"])
    (actor,) = stage()
    requests: list[Request] = []
    while actor.ready:
        assert actor.request is not None
        requests.append(actor.request)
        actor.step()
    assert [type(request) for request in requests] == [Commit]
