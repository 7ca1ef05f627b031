"""Compactions: what they free, what survives them, and what a crash in between leaves."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.backends.addresses import open_backend
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Append, Backend, Entry, Outcome
from perdure.core import compaction
from perdure.core import plans as plans_module
from perdure.core.state import session_state
from perdure.errors import (
    ChainError,
    CompactedError,
    ConflictError,
    DivergenceError,
    InUseError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from perdure.testing.faults import BackendWrapper, Crash
from tests.promises.places import fast_directory
from tests.support import contents, forgotten, said


@pytest.fixture
def directory() -> Iterator[Path]:
    with fast_directory() as directory:
        yield directory


@pytest.fixture(params=["memory:", "files", "store.db", "postgres", "redis"])
def backend(request: pytest.FixtureRequest, directory: Path) -> Iterator[Backend]:
    if request.param == "memory:":
        yield MemoryBackend()
        return
    address: Any = directory / request.param
    if request.param in ("postgres", "redis"):
        address = request.getfixturevalue(f"{request.param}_store")
    elif request.param == "files":
        address = f"files:{address}"
    opened = open_backend(address)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _no_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests name positions: no snapshot comes between the messages."""
    monkeypatch.setattr(session_state, "SNAPSHOT_EVERY", 256)


def filled(backend: Backend, count: int = 60) -> perdure.Session:
    """Return a session with this many messages, the last 15 in appends of their own."""
    session = perdure.open(backend).session("s")
    if count > 30:
        session.append(*(said(str(number)) for number in range(30)))
    if count > 45:
        session.append(*(said(str(number)) for number in range(30, 45)))
    for number in range(len(session), count):
        session.append(said(str(number)))
    return session


def positions(backend: Backend, stream: str = "s") -> list[int]:
    return [entry.position for entry in backend.read(stream)]


def reopened(session: perdure.Session) -> perdure.Session:
    return perdure.open(session._handle.driver._backend).session(session.id)


# What is kept.


def test_a_compaction_keeps_the_newest_messages_and_drops_the_entries_before(
    backend: Backend,
) -> None:
    session = filled(backend)
    result = session.compact(keep=10)
    assert result[:4] == ("s", 51, 50, 50)
    assert not result.limited_by
    assert positions(backend)[0] == 51 == session.complete_from
    for opened in (session, reopened(session)):
        assert contents(opened) == [str(number) for number in range(50, 60)]
        assert len(opened) == 10
        assert opened.complete_from == 51
        assert next(opened.records()).position == 51
        assert [*opened.records(reverse=True)][-1].position == 51
        assert opened.verify().complete_from == 51
        assert opened.last_message == said("59")
    after = session.append(said("next"))
    assert after == result.complete_from + 9 + 2 + 1, "positions continue"
    assert contents(reopened(session))[-1] == "next"


def test_a_position_that_was_dropped_is_a_typed_error(backend: Backend) -> None:
    session = filled(backend)
    session.compact(keep=10)
    assert session.record(51).content.message == said("50")  # type: ignore[attr-defined]
    with pytest.raises(CompactedError) as caught:
        session.record(50)
    assert (caught.value.position, caught.value.complete_from) == (50, 51)
    assert isinstance(caught.value, NotFoundError)
    with pytest.raises(NotFoundError) as beyond:
        session.record(1000)
    assert not isinstance(beyond.value, CompactedError)
    with pytest.raises(CompactedError):
        next(session.watch(after=3, timeout=0))


def test_a_position_can_be_given_instead_of_a_number_of_messages(backend: Backend) -> None:
    session = filled(backend)
    assert session.compact(before=31).complete_from == 31
    assert contents(session)[0] == "30"
    assert session.compact(keep=0).complete_from > 60
    assert contents(session) == []
    assert session.last_message is None
    assert len(session) == 0
    session.append(said("again"))
    assert contents(reopened(session)) == ["again"]
    assert reopened(session).verify().records > 0


def test_a_dry_run_says_the_same_and_changes_nothing(backend: Backend) -> None:
    session = filled(backend)
    session.set("plan", {"step": 1})
    session.compact(keep=40)
    before = [*backend.read("s")]
    trial = session.compact(keep=10, dry_run=True)
    assert [*backend.read("s")] == before
    assert session.compact(keep=10) == trial


@pytest.mark.parametrize(
    "wrong",
    [{}, {"keep": 1, "before": 1}, {"keep": -1}, {"keep": "all"}, {"keep": 1, "progress": 5}],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        filled(MemoryBackend()).compact(**wrong)


def test_nothing_happens_if_there_is_nothing_to_drop(backend: Backend) -> None:
    session = filled(backend, 5)
    before = [*backend.read("s")]
    assert session.compact(keep=5).records == session.compact(keep=50).records == 0
    assert [*backend.read("s")] == before


def test_a_cut_is_never_inside_a_turn_or_between_a_call_and_its_result(backend: Backend) -> None:
    session = filled(backend, 20)
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    with session.turn("what?") as turn:
        turn.append({"role": "assistant", "content": None, "tool_calls": [call]})
        turn.append({"role": "tool", "tool_call_id": "c1", "content": "42"})
        turn.append(said("42", "assistant"))
    session.append({"role": "assistant", "content": None, "tool_calls": [{**call, "id": "c2"}]})
    session.append({"role": "tool", "tool_call_id": "c2", "content": "43"})
    kept = session.compact(keep=1)
    assert [message["role"] for message in session.messages()] == ["assistant", "tool"]
    assert kept.limited_by
    session.append(said("end", "assistant"))
    with session.turn("open") as turn:
        limited = session.compact(keep=0)
        assert limited.limited_by
        assert contents(session) == ["open"]
        turn.append(said("closed", "assistant"))
    assert session.verify().complete_from == limited.complete_from


# What survives.


def test_state_survives(backend: Backend) -> None:
    store = perdure.open(backend)
    session = store.session("s")
    session.append(said("be brief", "system"))
    for number in range(20):
        session.set("doc", {"text": "x" * 400, "number": number})
        session.note({"n": number}, topic="progress")
    session.set("gone", 1)
    session.delete("gone")
    pinned = session.append(said("pinned"))
    session.pin(pinned)
    session.label("urgent")
    for number in range(20):
        session.append(said(str(number)), said("ok", "assistant"))
    session.retract(session.position - 3)
    session.summarize(lambda _: "short", keep_turns=2)
    for start in range(0, 300, 10):
        session.append(*(said(f"later {number}") for number in range(start, start + 10)))

    def facts(opened: perdure.Session) -> list[Any]:
        window = opened.messages(max_messages=6, format="openai.chat")
        (newest,) = opened.notes("progress", limit=1)
        values = [opened.get(key) for key in ("doc", "gone")]
        return [window, newest, values, opened.labels, opened.record(pinned).content]

    before = facts(session)
    assert session.compact(keep=4).carried > 3
    for opened in (session, reopened(session)):
        assert facts(opened) == before
        opened.verify()
    assert [note.content.data for note in session.notes("progress")] == [{"n": 19}]  # type: ignore[attr-defined]
    with pytest.raises(CompactedError):
        session.get("doc", version=1)
    assert session.set("doc", {"text": "x" * 400, "number": 20}) == 21
    with pytest.raises(ConflictError):
        session.note("late", topic="progress", expect=0)
    session.unpin(pinned)
    assert [info.id for info in store.sessions(labels=["urgent"])] == ["s"]
    # What the kept part refers to is carried by the next one too; what it no longer does is not.
    for number in range(5):
        session.append(said(str(number)))
    assert session.compact(keep=2).carried
    assert reopened(session).get("doc")["number"] == 20
    with pytest.raises(CompactedError):
        session.record(pinned)
    reopened(session).verify()


def test_ids_are_recognized_and_other_content_is_refused(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_state, "SNAPSHOT_EVERY", 60)  # Ids are in runs of the index too.
    session = perdure.open(backend).session("s")
    first = session.append(said("a"), said("b"), id="two")
    noted = session.note(1, id="note")
    with session.batch(id="batch") as batch:
        batch.append(said("in batch"))
        batch.set("x", 1)
    stored = batch.positions
    for number in range(40):
        with session.turn(f"q{number}", id=f"r{number}") as turn:
            turn.append(said(f"a{number}", "assistant"))
    for keep in (40, 6):  # The second one has to carry over what the first one wrote.
        session.compact(keep=keep)
        for opened in (session, reopened(session)):
            end = opened.position
            assert opened.append(said("a"), said("b"), id="two") == first
            assert opened.note(1, id="note") == noted
            with opened.batch(id="batch") as batch:
                batch.append(said("in batch"))
                batch.set("x", 1)
            assert batch.positions == stored
            assert opened.position == end
            with pytest.raises(DivergenceError):
                opened.append(said("other"), id="two")
            with pytest.raises(DivergenceError), opened.batch(id="batch") as batch:
                batch.append(said("other"))
            with pytest.raises(DivergenceError):
                opened.append(said("other"), id="r3")
            with pytest.raises(CompactedError), opened.turn("q3", id="r3"):
                pytest.fail("the turn ran again")
            with pytest.raises(CompactedError):
                opened.find("two")
            assert opened.find_turn("r39").id == "r39"
            assert not forgotten(opened)
            opened.verify()
    assert session.append(said("new"), id="new") == session.position


@pytest.mark.parametrize("id", [None, "mine"])
def test_a_turn_that_was_compacted_does_not_read_as_empty(id: str | None) -> None:
    session = filled(MemoryBackend(), 5)
    with session.turn("q", id=id) as turn:
        turn.append(said("a", "assistant"))
    assert turn.answer() == said("a", "assistant")
    session.compact(keep=0)
    for read in (turn.messages, turn.answer, lambda: [*turn.records()]):
        with pytest.raises(CompactedError):
            read()


def test_outcomes_of_calls_with_keys_are_returned_and_unknown_ones_stay(backend: Backend) -> None:
    session = perdure.open(backend).session("s")
    paid: list[str] = []

    def pay(who: str) -> str:
        paid.append(who)
        if who == "Bob":
            raise KeyboardInterrupt
        return f"paid {who}"

    with session.turn("pay"):
        result = session.tool(pay).keyed("p-1")("Ada")
    with pytest.raises(KeyboardInterrupt), session.turn("pay"):
        session.tool(pay)("Bob")
    (unknown,) = session.effects.unknown()
    for keep in (40, 6):
        for number in range(30):
            session.append(said(str(number)))
        session.compact(keep=keep)
        for opened in (reopened(session), session):
            opened.refresh()
            with opened.turn("again"):
                assert opened.tool(pay).keyed("p-1")("Ada") == result
            assert opened.effects.unknown() == [unknown]
            assert {effect.tool for effect in opened.effects.list()} == {"pay"}
            opened.verify()
    assert paid == ["Ada", "Bob"]
    session.effects.reconcile(unknown, perdure.DidNotHappen())
    assert reopened(session).effects.unknown() == []


def test_a_view_survives_and_keeps_what_it_has_not_seen(backend: Backend) -> None:
    session = filled(backend, 20)

    def count(state: int, record: perdure.Record) -> int:
        return state + (record.kind == "message")

    view = session.view(count, name="count", initial=0, every=10)
    assert view.state == 20
    for number in range(30):
        session.append(said(str(number)))
    result = session.compact(keep=1)
    assert result.limited_by == "a view"
    assert result.complete_from <= 22
    view = reopened(session).view(count, name="count", initial=0, every=10)
    assert view.state == 50
    session.refresh()
    assert session.compact(keep=1).complete_from > 40
    assert reopened(session).view(count, name="count", initial=0, every=10).state == 50


def test_a_failed_turn_that_is_continued_is_kept_whole(backend: Backend) -> None:
    session = filled(backend, 10)
    with pytest.raises(ValueError, match="model"), session.turn("hard", id="hard") as turn:  # noqa: PT012
        turn.append(said("thinking", "assistant"))
        raise ValueError("model")
    for number in range(10):
        session.append(said(str(number)))
    with session.turn("hard", id="hard") as turn:
        turn.append(said("done", "assistant"))
    session.compact(keep=1)
    assert [message["content"] for message in session.find_turn("hard").messages()] == [
        *("hard", "thinking", "done")
    ]
    assert contents(session)[0] == "hard"


def test_replacements_whose_place_was_dropped_come_first(backend: Backend) -> None:
    session = filled(backend, 10)
    session.replace(2, 8, said("instead"))
    session.append(said("end"))
    session.compact(before=10)
    assert contents(session) == contents(reopened(session)) == ["instead", "9", "end"]
    assert [m["content"] for m in session.messages(format="openai.chat")] == contents(session)


def test_the_last_messages_are_kept_also_if_a_replacement_before_them_is_newer(
    backend: Backend,
) -> None:
    session = filled(backend, 5)
    session.replace(2, 3, said("instead"))
    assert session.compact(keep=2).complete_from == 4
    for opened in (session, reopened(session)):
        assert contents(opened) == ["instead", "3", "4"]
        assert opened.last_message == said("4")
    assert session.compact(before=6).limited_by == "a replacement"
    assert contents(session) == ["instead", "4"]
    assert session.last_message == reopened(session).last_message == said("4")
    session.compact(keep=0)
    assert session.last_message is None


def test_a_session_with_a_snapshot_of_another_version_opens(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = filled(backend)
    session.set("plan", 1)
    session.compact(keep=10)
    session.append(said("after"))
    newer = session_state.STATE_VERSION + 1
    upcasts = {session_state.STATE_VERSION: lambda facts: {**facts, "messages": facts["messages"]}}
    for module in (session_state, plans_module):
        monkeypatch.setattr(module, "STATE_VERSION", newer)
    monkeypatch.setattr(session_state, "FACTS_UPCASTS", upcasts)
    opened = reopened(session)
    assert len(opened) == 11
    assert opened.get("plan") == 1
    assert opened.complete_from == 51


def test_facts_of_every_version_since_compactions_exist_can_be_read() -> None:
    assert {*range(15, session_state.STATE_VERSION)} <= {*session_state.FACTS_UPCASTS}


# Other handles, branches, copies.


def test_a_handle_of_an_empty_session_goes_on_behind_its_compaction(backend: Backend) -> None:
    """The first entry has a snapshot, and so names the session, as the first one of all does."""
    empty = perdure.open(backend).session("s")
    filled(backend).compact(keep=0)
    empty.note("later")
    assert (contents(empty), len(empty)) == ([], 0)
    assert reopened(empty).verify().complete_from > 60


def test_a_handle_behind_the_cut_appends_reads_and_refreshes(backend: Backend) -> None:
    session = filled(backend)
    stale, noting, reading = (reopened(session) for _ in range(3))
    for start in range(0, 300, 20):
        session.append(*(said(f"new {number}") for number in range(start, start + 20)))
    session.compact(keep=5)
    with pytest.raises(CompactedError):
        reading.messages()
    with pytest.raises(CompactedError):
        [*reading.records()]
    reading.refresh()
    assert contents(reading) == contents(session)
    with pytest.raises(ConflictError):
        stale.append(said("in view of what is gone"))
    stale.append(said("now"))
    assert noting.note("commutes") == stale.position + 1
    assert contents(noting) == contents(reopened(session)) == [*contents(session), "now"]
    reopened(session).verify()


def test_a_handle_that_was_opened_before_the_session_had_records_goes_on(backend: Backend) -> None:
    early, other = (perdure.open(backend).session("s") for _ in range(2))
    session = filled(backend, 10)
    session.compact(keep=2)
    assert early.note("commutes") == session.position + 1
    assert contents(early) == contents(session) == ["8", "9"]
    session.compact(keep=0)
    other.note("commutes")
    assert len(other) == 0


@pytest.mark.parametrize("compactions", [1, 2, 3])
def test_a_handle_of_a_session_that_was_deleted_and_begun_anew_stays_refused(
    backend: Backend, compactions: int
) -> None:
    store = perdure.open(backend)
    old = filled(backend, 3)
    store.delete("s")
    session = filled(backend, 10)
    session.compact(keep=2)
    session.append(said("10"))
    for _ in range(compactions - 1):  # Each drops the record of the one before it.
        session.compact(keep=2)
        session.append(said("more"))
    for _ in range(2):
        with pytest.raises(NotFoundError, match="its name was reused"):
            old.note("too late")
    assert not [*reopened(session).records(kinds=["note"])]
    reopened(session).verify()


def test_a_handle_within_what_is_kept_goes_on(backend: Backend) -> None:
    session = filled(backend)
    other = reopened(session)
    session.compact(keep=5)
    assert other.append(said("next"))
    assert len(other) == 6
    assert other.complete_from == 56
    assert [record.content for record in other.watch(after=55, timeout=0)]


def test_a_writer_during_a_compaction_loses_nothing(backend: Backend) -> None:
    session = filled(backend)
    writer = reopened(session)

    class Overtaken(BackendWrapper):
        rounds = 0

        def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
            if self.rounds < 3:  # Each time it is tried again with the newer records.
                self.rounds += 1
                writer.append(said(f"meanwhile {self.rounds}"))
            return self.backend.append(appends)

        def drop(self, stream: str, *, before: int) -> None:
            writer.append(said("before the drop"))
            self.backend.drop(stream, before=before)
            writer.append(said("after the drop"))

    perdure.open(Overtaken(backend)).session("s").compact(keep=2)
    expected = ["58", "59", "meanwhile 1", "meanwhile 2", "meanwhile 3"]
    expected += ["before the drop", "after the drop"]
    assert contents(reopened(session)) == contents(writer) == expected
    assert reopened(session).verify().complete_from == 59


def test_of_two_compactions_at_once_each_message_is_counted_once(backend: Backend) -> None:
    session = filled(backend)
    run, replica = session._handle.run, session._replica
    cut = run(compaction.find_cut(replica, compaction.CompactRequest(keep=3)))
    reopened(session).compact(keep=10)
    session.refresh()
    session._handle.write(compaction.plan_compaction(replica, cut, {}))
    for opened in (session, reopened(session)):
        assert len(opened) == 3
        assert contents(opened) == ["57", "58", "59"]
        opened.verify()


def test_branches_and_holds_prevent_it(backend: Backend) -> None:
    session = filled(backend)
    branch = session.branch("b", at=30)
    for dry_run in (True, False):
        with pytest.raises(InUseError):
            session.compact(keep=5, dry_run=dry_run)
    assert contents(branch) == [str(number) for number in range(30)]
    assert branch.compact(keep=5).limited_by, "its own stream has nothing to drop"
    for number in range(10):
        branch.append(said(f"own {number}"))
    branch.compact(keep=5)
    assert contents(branch) == contents(reopened(branch))
    assert len(branch) == 5
    branch.verify()
    session.refresh()
    session.compact(keep=5)  # The branch does not need it any more.
    perdure.open(backend).delete("s")
    assert len(reopened(branch)) == 5


def test_a_compacted_session_can_be_branched_where_its_state_is_known(backend: Backend) -> None:
    session = filled(backend)
    session.set("plan", 1)
    session.compact(keep=10)
    with pytest.raises(UsageError):
        session.branch("early", at=55)
    session.append(said("after"))
    branch = session.branch("b")
    branch.append(said("own"))
    assert contents(branch) == [*contents(session), "own"]
    assert branch.get("plan") == 1
    reopened(branch).verify()
    with pytest.raises(InUseError):
        session.compact(keep=2)


def test_a_compacted_session_is_copied(backend: Backend) -> None:
    session = filled(backend)
    session.append(said("known"), id="id")
    session.set("plan", 1)
    for start in range(0, 300, 10):
        session.append(*(said(str(number)) for number in range(start, start + 10)))
    session.compact(keep=10)
    copy = session.copy("c")
    assert contents(copy) == contents(session)
    assert copy.get("plan") == 1
    assert copy.append(said("known"), id="id") == 61
    assert copy.verify().complete_from == session.complete_from
    copy.append(said("own"))
    copy.compact(keep=2)
    reopened(copy).verify()
    target = MemoryBackend()
    assert perdure.copy(backend, target, final=True).complete
    other = perdure.open(target)
    assert contents(other.session("s")) == contents(session)
    assert other.verify().ok


def test_a_copy_in_another_store_follows_a_compaction(backend: Backend) -> None:
    session, target = filled(backend), MemoryBackend()
    assert perdure.copy(backend, target).complete
    session.compact(keep=10)
    assert perdure.copy(backend, target, final=True).complete
    assert positions(target) == positions(backend)
    for number in range(30):
        session.append(said(str(number)))
    session.compact(keep=2)
    (problem,) = perdure.copy(backend, target).problems
    assert problem.kind == "conflict"
    assert "compacted" in problem.reason


def test_a_replay_begins_at_what_is_kept(backend: Backend) -> None:
    session = perdure.open(backend).session("s")

    def answer(opened: perdure.Session, count: int) -> None:
        for number in range(count):
            with opened.turn(f"q{number}") as turn:
                turn.append(said(f"a{number}", "assistant"))

    answer(session, 20)
    session.set("plan", 1)
    session.compact(keep=0)
    answer(session, 3)
    assert perdure.replay(session, lambda opened: answer(opened, 3)).identical


def test_what_is_left_of_a_damaged_compacted_session_is_salvaged(backend: Backend) -> None:
    session = filled(backend)
    session.compact(keep=10)
    damage: list[perdure.DamagedError] = []
    records = [*perdure.open(backend).records("s", on_damage=damage.append)]
    assert records[0].position == 51
    assert not damage


def test_a_lost_beginning_is_damage_and_no_compaction(backend: Backend) -> None:
    session = perdure.open(backend).session("s")
    for number in range(60):
        session.append(said(str(number)))
    backend.drop("s", before=20)
    with pytest.raises(ChainError):
        session.messages()
    with pytest.raises(ChainError):
        reopened(session).verify()


# Crashes and errors.


class FailAt(BackendWrapper):
    """Fails before or after the nth call, of whatever kind."""

    def __init__(self, backend: Backend, nth: int, error: BaseException, *, after: bool) -> None:
        super().__init__(backend)
        self._left, self._error, self._after = nth, error, after

    def _call(self, work: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise self._error
        result = work()
        if self._left == 0:
            raise self._error
        return result

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        return self._call(lambda: self.backend.append(appends))  # type: ignore[no-any-return]

    def read(self, stream: str, **options: Any) -> Iterator[Entry]:
        return iter(self._call(lambda: [*self.backend.read(stream, **options)]))

    def streams(self, **filters: Any) -> Iterator[Any]:
        return iter(self._call(lambda: [*self.backend.streams(**filters)]))

    def drop(self, stream: str, *, before: int) -> None:
        self._call(lambda: self.backend.drop(stream, before=before))

    @property
    def reached(self) -> bool:
        return self._left <= 0


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [Crash(), UnavailableError("store", "injected")])
def test_after_a_failure_at_any_call_nothing_is_lost_and_the_next_one_ends_it(
    backend: Backend, error: BaseException, *, after: bool
) -> None:
    nth = 0
    while True:
        nth += 1
        name = f"s{nth}"
        session = perdure.open(backend).session(name)
        session.append(said("known"), id="id")
        with session.batch() as batch:
            batch.set("plan", 1)
            batch.append(*(said(str(number)) for number in range(5)))
        session.append(*(said(str(number)) for number in range(5, 8)))
        failing = FailAt(backend, nth, error, after=after)
        try:
            opened = perdure.open(failing).session(name)
            opened.compact(keep=3)
        except (Crash, UnavailableError):
            if isinstance(error, UnavailableError):
                opened = perdure.open(backend).session(name)
        else:
            if not failing.reached:
                break
        fresh = perdure.open(backend).session(name)
        fresh.verify()
        assert contents(fresh)[-3:] == ["5", "6", "7"]
        assert fresh.get("plan") == 1
        assert len(fresh) in (3, 9)
        assert fresh.complete_from in (1, 8)
        assert fresh.append(said("known"), id="id") == 1
        fresh.compact(keep=3)
        assert positions(backend, name)[0] == fresh.complete_from == 8
        assert contents(fresh) == ["5", "6", "7"]
        assert fresh.verify().complete_from == 8
    assert nth > 5


def test_the_handle_that_failed_goes_on(backend: Backend) -> None:
    filled(backend)

    class DropFails(BackendWrapper):
        fails = True

        def drop(self, stream: str, *, before: int) -> None:
            if self.fails:
                self.fails = False
                raise UnavailableError("store", "injected")
            self.backend.drop(stream, before=before)

    session = perdure.open(DropFails(backend)).session("s")
    with pytest.raises(UnavailableError):
        session.compact(keep=5)
    assert positions(backend)[0] == 1
    assert session.complete_from == 56
    session.append(said("next"))
    with pytest.raises(CompactedError):
        session.record(1)
    session.compact(keep=6)
    assert positions(backend)[0] == 56
    assert len(session) == 6


# Size.


def size(address: Path) -> int:
    return sum(file.stat().st_size for file in [address, *address.rglob("*")] if file.is_file())


@pytest.mark.parametrize("kind", ["files", "store.db"])
def test_a_compacted_session_is_about_as_large_as_a_new_one(kind: str, directory: Path) -> None:
    prefix = "files:" if kind == "files" else ""
    texts = [f"{number} " + "x" * 200 for number in range(6000)]
    sizes = []
    for name, kept, compacts in (("long", texts, True), ("new", texts[-500:], False)):
        with perdure.open(f"{prefix}{directory / name}") as store:
            session = store.session("s")
            for start in range(0, len(kept), 10):
                session.append(*(said(text) for text in kept[start : start + 10]))
            if compacts:
                session.compact(keep=500)
        sizes.append(size(directory / name))
    assert sizes[0] <= 1.3 * sizes[1], sizes
