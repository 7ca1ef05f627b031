"""A store that is put back to an earlier state under live handles: noticed, refused, accepted."""

import asyncio
import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import Append, Entry, Outcome
from perdure.core.plans import ACCEPT_ROLLBACK, REFRESH
from perdure.core.values import set_value
from perdure.errors import (
    ChainError,
    ConflictError,
    DamagedError,
    FencedError,
    HistoryReplacedError,
    NotFoundError,
    PerdureError,
    UnavailableError,
    UsageError,
)
from tests.support import said

LONG = {"text": "x" * 300, "items": ["one", "two", "three"]}

MORE = " and so on" * 20  # A summary must be shorter than what it stands for.


class Rewindable(MemoryBackend):
    """A store that can be put back to an earlier state, and that can lose answers."""

    def __init__(self) -> None:
        super().__init__()
        self.losing = False

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        outcomes = super().append(appends)
        if self.losing:
            raise UnavailableError("test", "the answer was lost")
        return outcomes

    def close(self) -> None:
        """Stay, to be looked at."""

    def saved(self) -> Any:
        return copy.deepcopy(self._streams)

    def put_back(self, saved: Any) -> None:
        self._index.changed |= {*self._streams, *saved}
        self._streams = copy.deepcopy(saved)

    def lose(self, stream: str) -> None:
        self._streams.pop(stream)
        self._index.changed.add(stream)


class World:
    """A live handle at position 5, and the store put back under it."""

    def __init__(self) -> None:
        self.backend = Rewindable()
        self.store = perdure.open(self.backend)
        self.session = self.store.session("s")
        self.saved = {0: self.backend.saved()}
        for number in range(1, 6):
            self._write(number)
            self.saved[number] = self.backend.saved()
        assert self.session.position == 5

    def _write(self, number: int) -> None:
        if number in {2, 4}:
            self.session.set("plan", {**LONG, "number": number})
        elif number == 1:
            self.session.append(said(f"mine {number}{MORE}"), id="own")
        else:
            self.session.append(said(f"mine {number}{MORE}"))

    def rewind(self, to: int, more: int = 0) -> None:
        """Put the store back, and have another process append records."""
        self.backend.put_back(self.saved[to])
        for number in range(to + 1, to + more + 1):
            with self.other() as other:
                if number in {2, 4}:
                    other.set("plan", {**LONG, "number": -number})
                else:
                    other.append(said(f"theirs {number}"))

    def other(self) -> perdure.Session:
        return perdure.open(self.backend).session("s")


CASES = {"gone": (0, 0), "shorter": (3, 0), "same length": (3, 2), "longer": (1, 9)}

REASONS = {
    "gone": "it is no longer in the store, and this handle had read 5 records",
    "shorter": "it ends at position 3, and this handle had read up to 5",
    "same length": "record 5 is not the one that this handle had read:",
    "longer": "record 5 is not the one that this handle had read, and it now ends at 10",
}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def replaced(world: World, case: str) -> World:
    world.rewind(*CASES[case])
    return world


def run_tool(session: perdure.Session) -> None:
    with session.turn("go") as turn:
        turn.append(said("never", "assistant"))


def in_a_batch(session: perdure.Session) -> None:
    with session.batch() as batch:
        batch.append(said("more"))
        batch.note("more")


CALLS: dict[str, Callable[[perdure.Session], object]] = {
    "batch": in_a_batch,
    "append": lambda session: session.append(said("more")),
    "append with id": lambda session: session.append(said("more"), id="other"),
    "note": lambda session: session.note("more"),
    "label": lambda session: session.label("more"),
    "set": lambda session: session.set("plan", {**LONG, "number": 9}),
    "delete a value": lambda session: session.delete("plan"),
    "pin": lambda session: session.pin(1),
    "turn": run_tool,
    "lease": lambda session: session.lease().__enter__(),
    "branch": lambda session: session.branch("child"),
    "branch at": lambda session: session.branch("child", at=3),
    "refresh": lambda session: session.refresh(),
    "messages": lambda session: session.messages(),
    "last messages": lambda session: session.messages(last=1),
    "window": lambda session: session.messages(max_tokens=1000, format="openai.chat"),
    "records": lambda session: list(session.records()),
    "records after": lambda session: list(session.records(after=4)),
    "an earlier version": lambda session: session.get("plan", version=1),
    "versions": lambda session: session.values.history("plan"),
    "a record": lambda session: session.record(3),
    "an id": lambda session: session.find("own"),
    "records backward": lambda session: list(session.records(reverse=True, limit=1)),
    "verify": lambda session: session.verify(),
    "watch": lambda session: list(session.watch(timeout=0)),
    "summarize": lambda session: session.summarize(lambda _: "Sum.", keep_turns=1),
}


def contents(session: perdure.Session) -> list[str]:
    return [message["content"].removesuffix(MORE) for message in session.messages()]


def streams(backend: MemoryBackend) -> dict[str, list[Entry]]:
    return {head.stream: list(backend.read(head.stream)) for head in backend.streams()}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_that_asks_the_store_says_that_its_history_was_replaced(
    replaced: World, case: str, call: str
) -> None:
    stored = streams(replaced.backend)
    with pytest.raises(HistoryReplacedError) as caught:
        CALLS[call](replaced.session)
    error = caught.value
    assert (error.stream, error.position) == ("s", 5)
    assert error.head == {"gone": 0, "shorter": 3, "same length": 5, "longer": 10}[case]
    assert REASONS[case] in str(error)
    assert "session.refresh(accept_rollback=True)" in str(error)
    assert streams(replaced.backend) == stored, "nothing was written"


@pytest.mark.parametrize("call", CALLS)
def test_a_history_that_is_still_there_refuses_none_of_them(world: World, call: str) -> None:
    with world.other() as other:
        other.note("in between")
    CALLS[call](world.session)
    world.session.close()
    assert world.other().verify()


@pytest.mark.parametrize("first", ["append", "refresh", "messages", "versions"])
def test_a_handle_stays_refused_until_the_caller_decides(replaced: World, first: str) -> None:
    session = replaced.session
    with pytest.raises(HistoryReplacedError):
        CALLS[first](session)
    replaced.backend.put_back(replaced.saved[5])  # Even if the lost records come back.
    for call in CALLS.values():
        with pytest.raises(HistoryReplacedError):
            call(session)
    with pytest.raises(HistoryReplacedError):
        session.get("plan")  # Also what is in memory.
    assert session.refresh(accept_rollback=True) == 5
    assert contents(session) == ["mine 1", "mine 3", "mine 5"]
    session.append(said("more"))


def test_values_in_memory_are_as_old_as_the_view(replaced: World) -> None:
    assert replaced.session.get("plan")["number"] == 4


@pytest.mark.parametrize("detected", [True, False])
def test_an_accepted_history_is_continued(replaced: World, case: str, *, detected: bool) -> None:
    session = replaced.session
    if detected:
        with pytest.raises(HistoryReplacedError):
            session.append(said("never"))
    stored = replaced.other()
    assert session.refresh(accept_rollback=True) == stored.position
    assert contents(session) == contents(stored)
    assert session.get("plan") == stored.get("plan"), "the cache is of this history"
    versions = stored.values.version("plan") if stored.values.keys() else 0
    assert session.set("plan", {**LONG, "number": 9}) == versions + 1
    session.append(said("again"))
    reader = replaced.other()
    assert contents(reader) == [*contents(stored), "again"]
    assert reader.get("plan")["number"] == 9
    assert reader.verify().position == session.position
    assert session.verify()
    assert case  # Each of them.


def test_without_a_rollback_accepting_is_a_refresh(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with world.other() as other:
        other.append(said("theirs"))
    assert world.session.refresh(accept_rollback=True) == 6
    assert contents(world.session)[-1] == "theirs"
    world.session.append(said("mine"))
    assert "rollback_accepted" not in caplog.text
    with pytest.raises(UsageError, match="accept_rollback must be True or False"):
        world.session.refresh(accept_rollback=1)  # type: ignore[arg-type]


def test_both_are_events(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.rewind(3, 1)
    for _ in range(2):
        with pytest.raises(HistoryReplacedError):
            world.session.messages()
    world.session.refresh(accept_rollback=True)
    found = [(record.event, record.position, record.head) for record in caplog.records]  # type: ignore[attr-defined]
    assert found == [("history_replaced", 5, 4), ("rollback_accepted", 5, 4)]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_ids_are_looked_up_in_the_accepted_history(world: World) -> None:
    """They are found through pages at the same positions, which differ in the two histories."""

    def write(session: perdure.Session, who: str) -> None:
        for number in range(300):  # Enough for a snapshot, and the pages of ids before it.
            session.append(said(f"{who} {number}"), id=f"{who} {number}")

    write(world.session, "mine")
    assert world.session.find("mine 7").content.message["content"] == "mine 7"  # type: ignore[attr-defined]
    world.rewind(5)
    with world.other() as other:
        write(other, "theirs")
    assert world.session.refresh(accept_rollback=True) > 300
    assert world.session.find("theirs 7").content.message["content"] == "theirs 7"  # type: ignore[attr-defined]
    with pytest.raises(NotFoundError):
        world.session.find("mine 7")
    world.session.append(said("mine 7"), id="mine 7")
    assert contents(world.other())[-1] == "mine 7"
    assert world.other().verify()


def texts(state: list[str], record: perdure.Record) -> list[str]:
    if record.kind == "message":
        state = [*state, record.content.message["content"].removesuffix(MORE)]  # type: ignore[attr-defined]
    return state


@pytest.mark.parametrize("every", [1, 100], ids=["stored", "not stored"])
def test_a_view_is_computed_from_the_accepted_history(world: World, case: str, every: int) -> None:
    view = world.session.view(texts, name="texts", initial=[], every=every)
    assert view.state == ["mine 1", "mine 3", "mine 5"]
    world.rewind(*CASES[case])
    world.session.refresh(accept_rollback=True)
    assert view.refresh() == contents(world.session)
    again = world.other().view(texts, name="texts", initial=[])
    assert again.state == contents(world.session)


def test_a_view_of_lost_records_is_not_stored(world: World) -> None:
    def fold(state: list[str], record: perdure.Record) -> list[str]:
        if record.position == 6:
            world.rewind(3, 2)
            world.session.refresh(accept_rollback=True)
        return texts(state, record)

    view = world.session.view(fold, name="texts", initial=[], every=6)
    world.session.append(said("mine 6"))
    with pytest.raises(PerdureError):
        view.refresh()
    assert not world.session._replica.state.views
    assert view.refresh() == contents(world.session)


def test_values_of_a_store_accept_it_as_well(world: World) -> None:
    values = world.store.values("s")
    world.rewind(3, 2)
    with pytest.raises(HistoryReplacedError):
        values.set("plan", 1)
    assert values.refresh(accept_rollback=True) == 5
    assert values.get("plan")["number"] == -4


def test_a_batch_of_several_sessions_does_not_continue_another_history(replaced: World) -> None:
    stored = streams(replaced.backend)
    with pytest.raises(HistoryReplacedError), replaced.store.batch() as batch:  # noqa: PT012
        batch.session("other").note("more")
        batch.session(replaced.session).append(said("more"))
    assert streams(replaced.backend) == stored
    replaced.session.refresh(accept_rollback=True)
    with replaced.store.batch() as batch:
        batch.session("other").note("more")
        batch.session(replaced.session).append(said("more"))
    assert contents(replaced.other())[-1] == "more"
    assert replaced.other().verify()


def test_a_batch_is_put_back_under(world: World) -> None:
    stored = {**streams(world.backend)}
    with pytest.raises(ConflictError), world.store.batch() as batch:  # noqa: PT012
        batch.session("other").note("more")
        batch.session(world.session).append(said("more"))
        world.rewind(3)
        stored = streams(world.backend)
    assert streams(world.backend) == stored


# What else looks like it.


def test_a_deletion_is_no_rollback(world: World) -> None:
    world.store.delete("s")
    with pytest.raises(ConflictError):
        world.session.append(said("more"))
    with pytest.raises(NotFoundError):
        world.session.append(said("more"))


def test_nor_is_a_deletion_and_a_new_session_of_that_name(world: World) -> None:
    world.store.delete("s")
    with world.other() as other:
        other.append(said("new"))
    with pytest.raises(NotFoundError):
        world.session.messages()
    with pytest.raises(NotFoundError):
        world.session.refresh()


def test_a_rollback_of_a_deletion_is_one(world: World) -> None:
    world.store.delete("s")
    deleted = world.other()
    assert deleted.position == 6
    world.rewind(5)
    with pytest.raises(HistoryReplacedError):
        deleted.append(said("new"))
    assert deleted.refresh(accept_rollback=True) == 5
    assert contents(deleted) == ["mine 1", "mine 3", "mine 5"]
    world.session.append(said("as before"))


def test_accepting_a_history_that_ends_with_a_deletion_is_not_found(world: World) -> None:
    world.rewind(1)
    world.store.delete("s")
    with pytest.raises(HistoryReplacedError):
        world.session.append(said("more"))
    for _ in range(2):
        with pytest.raises(NotFoundError, match="open it again"):
            world.session.refresh(accept_rollback=True)


@pytest.mark.parametrize("records", [1, 5, 7])
def test_another_session_of_the_same_name_is_another_history(world: World, records: int) -> None:
    world.rewind(0)
    with world.other() as other:
        for number in range(records):
            other.append(said(f"new {number}"))
    with pytest.raises(HistoryReplacedError):
        world.session.append(said("more"))
    assert world.session.refresh(accept_rollback=True) == records
    world.session.append(said("more"))
    assert world.other().verify()


def test_a_branch_that_took_the_name_meanwhile_is_another_history(world: World) -> None:
    parent = world.store.session("parent")
    for _ in range(8):
        parent.append(said("parent"))
    world.backend.lose("s")
    parent.branch("s", at=7)
    with pytest.raises(HistoryReplacedError) as caught:
        world.session.append(said("more"))
    assert caught.value.head == 8
    world.session.refresh(accept_rollback=True)
    assert contents(world.session) == ["parent"] * 7
    world.session.append(said("more"))
    assert world.other().verify()


def test_a_branch_notices_its_own_rollback(world: World) -> None:
    child = world.session.branch("child", at=3)
    child.append(said("one"))
    saved = world.backend.saved()
    child.append(said("two"))
    world.backend.put_back(saved)
    with perdure.open(world.backend).session("child") as other:
        other.append(said("other"))
    with pytest.raises(HistoryReplacedError):
        child.append(said("three"))
    child.refresh(accept_rollback=True)
    assert contents(child) == ["mine 1", "mine 3", "one", "other"]
    child.append(said("three"))
    assert child.verify()
    world.session.append(said("the parent was not put back"))


def test_a_branch_that_is_not_complete_in_the_accepted_history_is_opened_again(
    world: World,
) -> None:
    child = world.session.branch("child", at=3)
    child.append(said("one"))
    state = world.backend._streams["child"]
    del state.entries[1:]
    state.digest = perdure.backends.digests.digest_of(state.entries[0].header)
    del world.backend._streams["s"].entries[-1:]  # The keep that says that it is complete.
    last = world.backend._streams["s"].entries[-1]
    world.backend._streams["s"].digest = perdure.backends.digests.digest_of(last.header)
    with pytest.raises(HistoryReplacedError):
        child.append(said("two"))
    with pytest.raises(NotFoundError):
        child.refresh(accept_rollback=True)
    again = perdure.open(world.backend).session("child")
    again.append(said("two"))
    assert contents(again) == ["mine 1", "mine 3", "two"]


@pytest.mark.parametrize("call", ["refresh", "messages", "records backward"])
def test_damage_is_no_rollback(world: World, call: str) -> None:
    entries = world.backend._streams["s"].entries
    entries[-1] = entries[-1]._replace(header=entries[-1].header.replace(b'"plain"', b'"Plain"'))
    with pytest.raises(DamagedError) as caught:
        CALLS[call](world.session)
    assert not isinstance(caught.value, HistoryReplacedError)


def test_nor_is_a_damaged_head(world: World) -> None:
    world.backend._streams["s"].digest = "A" * 43 + "="
    with pytest.raises(ChainError, match="head of the stream is not its last entry"):
        world.session.append(said("more"))
    assert len(world.backend._streams["s"].entries) == 5


# What the handle had begun.


def lose_an_answer(world: World, act: Callable[[], object]) -> None:
    world.backend.losing = True
    with pytest.raises(UnavailableError):
        act()
    world.backend.losing = False


def settled(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.outcome for record in caplog.records if record.event == "settled"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("found_by", ["append", "messages", "accepting", "closing"])
def test_a_write_in_doubt_on_a_replaced_history_was_not_stored(
    world: World, case: str, caplog: pytest.LogCaptureFixture, found_by: str
) -> None:
    caplog.set_level("INFO", "perdure")
    session = world.session
    lose_an_answer(world, lambda: session.append(said("doubtful"), id="doubt"))
    world.rewind(*CASES[case])
    if found_by == "closing":
        session.close()
    elif found_by == "accepting":
        session.refresh(accept_rollback=True)
    else:
        with pytest.raises(HistoryReplacedError):
            CALLS[found_by](session)
        session.refresh(accept_rollback=True)
    assert settled(caplog) == ["not stored"]
    assert "doubtful" not in contents(world.other())
    if found_by != "closing":
        session.append(said("doubtful"), id="doubt")
        assert contents(world.other())[-1] == "doubtful"


def test_a_write_in_doubt_is_stored_where_its_history_still_is(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "perdure")
    lose_an_answer(world, lambda: world.session.append(said("doubtful")))
    world.rewind(5)  # Without it, but with everything that it links to.
    assert world.session.refresh(accept_rollback=True) == 6
    assert settled(caplog) == ["stored"]
    assert contents(world.other())[-1] == "doubtful"


def test_closing_says_it_once(world: World) -> None:
    world.rewind(3)
    with pytest.raises(HistoryReplacedError):
        world.session.append(said("more"))
    world.session.close()
    world.store.close()


def test_a_plan_that_other_records_invalidate_is_told_of_the_rollback_first(world: World) -> None:
    with world.other() as other:
        other.set("plan", {**LONG, "number": 6})
    world.session.note("applies the value, which the caller has not seen")
    world.rewind(3)
    with pytest.raises(HistoryReplacedError):
        world.session.set("plan", {**LONG, "number": 9})


def test_a_lease_is_lost_when_its_history_is(world: World) -> None:
    session = world.session
    lease = session.lease(ttl=60)
    with pytest.raises(FencedError, match="the store's history was replaced"), lease:  # noqa: PT012
        world.rewind(5)
        with pytest.raises(HistoryReplacedError):
            session.append(said("more"))
        assert lease.lost.is_set()
        assert not lease.held
        session.refresh(accept_rollback=True)
        with pytest.raises(FencedError):
            session.append(said("more"))
        with pytest.raises(FencedError), world.store.batch() as batch:
            batch.session(session).append(said("more"))
    with session.lease():
        session.append(said("more"))
    assert world.other().verify()


def test_a_lease_that_the_store_still_has_is_given_back(world: World) -> None:
    lease = world.session.lease(ttl=60)
    with pytest.raises(FencedError), lease:  # noqa: PT012
        saved = world.backend.saved()
        world.session.append(said("more"))
        world.backend.put_back(saved)
        world.session.refresh(accept_rollback=True)
        assert world.session.lease_holder is not None
    assert world.session.lease_holder is None
    with world.other() as other:
        other.append(said("more"))


def test_a_contender_counts_the_time_of_the_other_history_anew(world: World) -> None:
    replica = world.session._replica
    replica.lease_seen_at = ((1, 5), 0.0)
    world.rewind(3, 2)
    world.session.refresh(accept_rollback=True)
    assert replica.lease_seen_at is None


def test_a_running_turn_continues_if_the_store_still_has_it(world: World) -> None:
    with world.session.turn("hello") as turn:
        saved = world.backend.saved()
        turn.append(said("lost", "assistant"))
        world.backend.put_back(saved)
        with pytest.raises(HistoryReplacedError):
            turn.append(said("more", "assistant"))
        world.session.refresh(accept_rollback=True)
        turn.append(said("again", "assistant"))
    reader = world.other()
    assert contents(reader)[-2:] == ["hello", "again"]
    assert reader.interrupted == ()
    assert reader.verify()


def test_a_running_turn_that_the_store_lost_is_a_conflict(world: World) -> None:
    with pytest.raises(ConflictError), world.session.turn("hello") as turn:  # noqa: PT012
        world.rewind(5)
        world.session.refresh(accept_rollback=True)
        with pytest.raises(ConflictError):
            turn.append(said("more", "assistant"))
    assert contents(world.other()) == ["mine 1", "mine 3", "mine 5"]
    with world.session.turn("again") as turn:
        turn.append(said("more", "assistant"))
    assert world.other().verify()


def test_so_is_one_that_another_handle_continued_there(world: World) -> None:
    with pytest.raises(ConflictError), world.session.turn("hello"):  # noqa: PT012
        saved = world.backend.saved()
        world.session.note("lost")
        world.backend.put_back(saved)
        (theirs,) = world.other().interrupted
        with theirs:
            theirs.append(said("theirs", "assistant"))
        world.session.refresh(accept_rollback=True)
    assert contents(world.other())[-2:] == ["hello", "theirs"]


def test_an_error_of_the_body_is_kept_and_says_that_the_turn_could_not_be_ended(
    world: World,
) -> None:
    with pytest.raises(HistoryReplacedError) as caught, world.session.turn("hello") as turn:  # noqa: PT012
        world.rewind(5)
        turn.append(said("more", "assistant"))
    assert "could not record that the turn failed" in caught.value.__notes__[0]


def test_a_tool_does_not_run_if_its_intent_is_refused(world: World) -> None:
    ran: list[int] = []
    tool = world.session.tool(lambda: ran.append(1), name="pay")
    with pytest.raises(HistoryReplacedError), world.session.turn("pay"):  # noqa: PT012
        world.rewind(5)
        tool()
    assert ran == []


def test_the_outcome_of_a_call_that_the_store_lost_is_a_conflict(world: World) -> None:
    def pay() -> str:
        world.rewind(5)
        world.session.refresh(accept_rollback=True)
        return "paid"

    tool = world.session.tool(pay, name="pay")
    with pytest.raises(ConflictError), world.session.turn("pay"):
        tool()
    assert world.other().verify()


def test_a_recorded_result_is_not_served_from_another_history(world: World) -> None:
    """The store then has an outcome at the same position, of another call."""
    session = world.session

    def pay(store: perdure.Session, who: str) -> Any:
        with store.turn("pay"):
            return store.tool(lambda who: f"paid {who}", name="pay").keyed("key")(who)

    assert pay(session, "ada") == "paid ada"
    world.rewind(5)
    assert pay(world.other(), "bob") == "paid bob"
    with pytest.raises(HistoryReplacedError):
        pay(session, "ada")
    session.refresh(accept_rollback=True)
    with pytest.raises(PerdureError, match="different content"):
        pay(session, "ada")


def test_a_summary_of_lost_messages_is_not_put_in_force(world: World) -> None:
    def summarize(_: object) -> str:
        world.rewind(2, 6)
        world.session.refresh(accept_rollback=True)
        return "Sum."

    with pytest.raises(ConflictError, match="no longer stored"):
        world.session.summarize(summarize, keep_turns=1)
    assert world.other().verify()


def test_a_summary_of_messages_that_are_beyond_the_end_is_not_put_in_force(world: World) -> None:
    def summarize(_: object) -> str:
        world.rewind(1)
        world.session.refresh(accept_rollback=True)
        return "Sum."

    with pytest.raises(ConflictError, match="no longer stored"):
        world.session.summarize(summarize, keep_turns=1)
    assert world.other().verify()


def test_plans_that_share_the_batch_were_made_in_view_of_what_is_gone(world: World) -> None:
    world.rewind(3, 2)
    replica, driver = world.session._replica, world.session._handle.driver
    plans = [set_value(replica, "plan", 1), ACCEPT_ROLLBACK, REFRESH]
    refused, accepted, refreshed = driver.run(replica.write(plans))
    assert isinstance(refused, HistoryReplacedError)
    assert accepted == refreshed == 5
    assert world.other().get("plan")["number"] == -4


def test_a_read_that_began_before_is_told_and_does_not_refuse_the_accepted_history(
    world: World,
) -> None:
    records = world.session.records()
    assert next(records).position == 1
    for _ in range(200):
        world.session.note("many")
    records = world.session.records()
    next(records)
    world.rewind(3, 2)
    world.session.refresh(accept_rollback=True)
    with pytest.raises(HistoryReplacedError):
        list(records)
    world.session.append(said("more"))


def test_a_watcher_is_told_though_nothing_new_comes(world: World) -> None:
    watching = world.session.watch(timeout=0.2)
    world.rewind(3)
    with pytest.raises(HistoryReplacedError):
        next(watching)


def test_two_threads_are_told_alike(world: World) -> None:
    world.rewind(3, 2)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            world.session.note("more")
        except PerdureError as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(error) for error in errors] == [HistoryReplacedError] * 8
    assert len({id(error) for error in errors}) == 8, "each has its own"


# In an event loop.

ASYNC_CALLS: dict[str, Callable[[perdure.AsyncSession], Any]] = {
    "append": lambda session: session.append(said("more")),
    "set": lambda session: session.set("plan", 1),
    "refresh": lambda session: session.refresh(),
    "messages": lambda session: session.messages(),
    "window": lambda session: session.messages(max_tokens=1000),
    "versions": lambda session: session.values.history("plan"),
    "verify": lambda session: session.verify(),
}


@pytest.mark.parametrize("call", ASYNC_CALLS)
def test_in_an_event_loop_it_is_the_same(world: World, case: str, call: str) -> None:
    async def main() -> None:
        async with perdure.open_async(ThreadedBackend(world.backend)) as store:
            session = await store.session("s")
            world.rewind(*CASES[case])
            for _ in range(2):
                with pytest.raises(HistoryReplacedError):
                    await ASYNC_CALLS[call](session)
            await session.refresh(accept_rollback=True)
            await session.append(said("async"))
            await session.verify()

    asyncio.run(main())
    assert contents(world.other())[-1] == "async"
    assert world.other().verify()


def test_in_an_event_loop_what_was_begun_ends_the_same_way(world: World) -> None:
    async def main() -> None:
        async with perdure.open_async(ThreadedBackend(world.backend)) as store:
            session = await store.session("s")
            lease = session.lease(ttl=60)
            with pytest.raises(FencedError):  # noqa: PT012
                async with lease:
                    world.rewind(5)
                    with pytest.raises(HistoryReplacedError):
                        await session.append(said("more"))
                    assert lease.lost.is_set()
                    await session.refresh(accept_rollback=True)
            with pytest.raises(ConflictError):  # noqa: PT012
                async with session.turn("hello"):
                    world.rewind(5)
                    await session.refresh(accept_rollback=True)
            world.rewind(3)
            with pytest.raises(HistoryReplacedError):
                async for _ in session.watch(timeout=0.1):
                    pass
            await session.close()

    asyncio.run(main())
