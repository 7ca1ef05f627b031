"""What a session promises in ordinary use. Faults and races are in the files beside this one."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from decimal import Decimal
from typing import Any
from weakref import WeakSet

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Append, Entry, Outcome
from perdure.core.state import session_state
from perdure.errors import ConflictError, DivergenceError, NotFoundError, UsageError
from tests.support import contents, said, store_in_memory


@pytest.fixture
def store() -> perdure.Store:
    return store_in_memory()[0]


@pytest.fixture
def session(store: perdure.Store) -> perdure.Session:
    return store.session("claim-4711")


def test_a_session_is_resumed_exactly(store: perdure.Store, session: perdure.Session) -> None:
    with session.turn("Draft a checklist.", correlation_id="req-9") as turn:
        turn.append(said("1. …", "assistant"))
    session.set("plan", {"step": 3})
    again = store.session("claim-4711")
    assert again.messages() == [said("Draft a checklist."), said("1. …", "assistant")]
    assert (len(again), again.last_message, again.get("plan")) == (
        2,
        said("1. …", "assistant"),
        {"step": 3},
    )
    assert again.interrupted == ()
    assert again.position == session.position == 5


def test_a_new_session_is_empty_and_exists_from_its_first_record(store: perdure.Store) -> None:
    session = store.session("new")
    assert (len(session), session.last_message, session.messages(), session.position) == (
        0,
        None,
        [],
        0,
    )
    assert session
    with pytest.raises(NotFoundError, match="'new' not found"):
        store.resume("new")
    session.append(said("hello"))
    assert contents(store.resume("new")) == ["hello"]


def test_an_append_is_one_batch_and_returns_its_last_position(session: perdure.Session) -> None:
    assert session.append(said("a"), said("b"), said("c")) == 3
    assert contents(session) == ["a", "b", "c"]
    assert session.messages(last=2) == [said("b"), said("c")]
    assert session.messages(last=0) == []
    assert session.messages(last=99) == session.messages()


def test_messages_keep_who_spoke_to_whom(session: perdure.Session) -> None:
    session.append(said("x"), author="bot", recipient="ann", channel="mail", origin="tool")
    (record,) = session.records()
    message: Any = record.content
    attribution = (message.author, message.recipient, message.channel, message.origin)
    assert attribution == ("bot", "ann", "mail", "tool")


def test_what_is_changed_after_the_call_does_not_change_the_record(
    session: perdure.Session,
) -> None:
    message, plan = said("a"), {"steps": [1] * 200}
    session.append(message)
    session.set("plan", plan)
    message["content"] = "b"
    plan["steps"].append(2)
    assert contents(session) == ["a"]
    assert session.get("plan") == {"steps": [1] * 200}
    session.get("plan")["steps"].clear()
    assert session.get("plan") == {"steps": [1] * 200}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("text", "a str has no role"),
        (None, "is not a message"),
        (7, "is not a message"),
        ([], "one by one"),
        (("role", "user"), "one by one"),
        ({"a": 1}, 'needs a "role"'),
        ({"role": "bot", "content": "x"}, "is not a role"),
        ({"role": "tool", "content": "x"}, "must name the call it answers"),
    ],
)
def test_what_is_no_message_is_refused(session: perdure.Session, given: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        session.append(given)
    with pytest.raises(UsageError, match="at least one"):
        session.append()
    assert session.position == 0


def test_what_can_not_be_stored_is_refused_before_anything_is_written(
    session: perdure.Session,
) -> None:
    with pytest.raises(UsageError) as caught:
        session.append(said("fine"), {"role": "user", "content": [{1, 2}]})
    assert caught.value.path == "$.content[0]"
    with pytest.raises(UsageError):
        session.set("plan", {"when": object()})
    with pytest.raises(UsageError), session.turn({"role": object()}):
        pytest.fail("the body must not run")
    assert (session.position, session.interrupted) == (0, ())


def test_a_turn_has_its_message_stored_before_the_body_runs(
    store: perdure.Store, session: perdure.Session
) -> None:
    with session.turn("question", correlation_id="req-9") as turn:
        seen = store.session("claim-4711")
        assert contents(seen) == ["question"]
        assert [found.id for found in seen.interrupted] == [turn.id]
        assert session.interrupted == ()
        assert session.labels == {"turn-open"}
    assert session.labels == frozenset()
    assert [record.kind for record in session.records()] == [
        "turn.begun",
        "message",
        "turn.completed",
    ]


def test_a_turn_whose_body_raises_has_failed_and_the_error_goes_on(
    session: perdure.Session,
) -> None:
    turn = session.turn("question")
    with pytest.raises(KeyError, match="boom"), turn:
        raise KeyError("boom")
    *_, last = session.records()
    content: Any = last.content
    assert (last.kind, content.error, content.reason) == ("turn.failed", "KeyError", "'boom'")
    assert (session.interrupted, turn.ended) == ((), True)


def test_an_interrupted_turn_is_continued(store: perdure.Store, session: perdure.Session) -> None:
    session.turn("question", correlation_id="req-9").__enter__()
    again = store.session("claim-4711")
    (turn,) = again.interrupted
    assert (turn.correlation_id, turn.branch_point) == ("req-9", 0)
    with turn:
        turn.append(said("answer", "assistant"))
    assert store.session("claim-4711").interrupted == ()
    assert contents(again) == ["question", "answer"]


def test_a_worker_whose_turn_was_taken_over_is_told_so(
    store: perdure.Store, session: perdure.Session
) -> None:
    slow = session.turn("question")
    slow.__enter__()
    (taken,) = store.session("claim-4711").interrupted
    with taken:
        with pytest.raises(ConflictError, match=r"turn.continued record came first"):
            slow.append(said("late", "assistant"))
        with pytest.raises(ConflictError, match="another handle continued the turn"):
            slow.append(said("again", "assistant"))
        taken.append(said("answer", "assistant"))
    assert contents(store.session("claim-4711")) == ["question", "answer"]


def test_an_interrupted_turn_that_another_has_ended_is_not_entered(
    store: perdure.Store, session: perdure.Session
) -> None:
    for text in ("one", "two"):
        turn = session.turn(text)
        turn.__enter__()
        turn.suspend()
    mine, other = store.session("claim-4711"), store.session("claim-4711")
    seen = mine.interrupted
    for turn in other.interrupted:
        with turn:
            turn.append(said("done"))
    for turn in seen:
        with pytest.raises(ConflictError), turn:
            pytest.fail("its body would ask a model again")
    mine.refresh()
    assert len(mine) == 4


def test_a_turn_that_has_not_begun_can_not_be_given_up(session: perdure.Session) -> None:
    with pytest.raises(UsageError, match="has not begun"):
        session.turn("hello").abandon()
    assert session.position == 0


def test_an_interrupted_turn_is_abandoned(store: perdure.Store, session: perdure.Session) -> None:
    session.turn("question").__enter__()
    again = store.session("claim-4711")
    again.interrupted[0].abandon("the user left")
    assert store.session("claim-4711").interrupted == ()
    *_, last = again.records()
    content: Any = last.content
    assert (last.kind, content.reason) == ("turn.abandoned", "the user left")


def test_a_turn_that_is_left_is_interrupted_and_can_be_entered_again(
    store: perdure.Store, session: perdure.Session
) -> None:
    with session.turn("question", correlation_id="req-9") as turn:
        turn.suspend()
        with pytest.raises(UsageError, match="not open"):
            turn.append(said("too late", "assistant"))
    assert (session.current_turn, turn.ended) == (None, False)
    assert [one.id for one in session.interrupted] == [turn.id]
    assert [one.id for one in store.session("claim-4711").interrupted] == [turn.id]
    with turn:
        turn.append(said("answer", "assistant"))
    assert (session.interrupted, turn.ended) == ((), True)
    assert contents(session) == ["question", "answer"]
    with pytest.raises(UsageError, match="has ended"):
        turn.suspend()


def test_a_turn_with_an_id_is_entered_again_after_a_crash(
    store: perdure.Store, session: perdure.Session
) -> None:
    session.turn("question", id="req-9").__enter__()
    again = store.session("claim-4711")
    with again.turn("question", id="req-9", correlation_id="second try") as turn:
        assert not turn.ended
        turn.append(said("answer", "assistant"))
    assert contents(again) == ["question", "answer"]
    with again.turn("question", id="req-9") as done:
        assert done.ended
        with pytest.raises(UsageError, match="has ended"):
            done.append(said("more", "assistant"))
    with pytest.raises(DivergenceError), again.turn("another question", id="req-9"):
        pytest.fail("the body must not run")


def test_a_turn_is_used_inside_with_only(session: perdure.Session) -> None:
    turn = session.turn("question")
    with pytest.raises(UsageError, match="enter it"):
        turn.append(said("x"))
    with pytest.raises(UsageError, match="has not begun"):
        _ = turn.branch_point
    with turn:
        turn.complete()
        with pytest.raises(UsageError, match="has ended"):
            turn.append(said("x"))


def test_an_id_makes_an_append_repeatable(store: perdure.Store, session: perdure.Session) -> None:
    position = session.append(said("a"), said("b"), id="m-1")
    for again in (session, store.session("claim-4711")):
        assert again.append(said("a"), said("b"), id="m-1") == position
        for other in ([said("a"), said("c")], [said("a")], [said("a"), said("b"), said("c")]):
            with pytest.raises(DivergenceError, match="m-1"):
                again.append(*other, id="m-1")
    assert contents(store.session("claim-4711")) == ["a", "b"]


@pytest.mark.parametrize("given", ["", ".x", "a\tb", "x" * 129, "\ud800", 7])
def test_an_illegal_record_id_is_refused(session: perdure.Session, given: Any) -> None:
    with pytest.raises(UsageError, match="id"):
        session.append(said("a"), id=given)
    assert session.position == 0


@pytest.mark.parametrize("given", ["", "a\nb", "\x00", "\x9f", "é" * 257, "\ud800", 7, None])
def test_an_illegal_session_id_is_refused(store: perdure.Store, given: Any) -> None:
    with pytest.raises(UsageError, match="a session id"):
        store.session(given)


@pytest.mark.parametrize(
    "given", ["../../etc", "CON", "a b", "😀", "'; drop table entry", "x" * 512]
)
def test_any_other_text_is_a_session_id(store: perdure.Store, given: str) -> None:
    store.session(given).append(said(given))
    assert contents(store.session(given)) == [given]


def test_values_have_versions_and_a_history(store: perdure.Store, session: perdure.Session) -> None:
    document = {"items": [{"n": number, "text": "t" * 40} for number in range(20)]}
    versions = []
    for step in range(40):
        document["items"][step % 20]["n"] = -step
        assert session.set("doc", document) == step + 1
        versions.append(deepcopy(document))
    again = store.session("claim-4711")
    assert again.get("doc") == document
    assert [again.get("doc", version=number) for number in range(1, 41)] == versions
    history = again.values.history("doc")
    assert [version.version for version in history] == list(range(1, 41))
    assert again.values.keys() == ["doc"]


def test_a_small_change_of_a_long_document_costs_little_and_chains_are_bounded(
    session: perdure.Session,
) -> None:
    document = {"text": "word " * 2000, "n": 0}
    for number in range(40):
        session.set("doc", {**document, "n": number})
    values: list[Any] = [item.content for item in session.records() if item.kind == "value"]
    forms = [value.form for value in values]
    assert forms == (["full"] + ["delta"] * 16) * 2 + ["full"] + ["delta"] * 5


def test_a_deleted_value_is_gone_but_its_history_stays(session: perdure.Session) -> None:
    session.set("plan", 1)
    session.delete("plan")
    assert session.get("plan", "none") == "none"
    assert session.values.keys() == []
    with pytest.raises(NotFoundError):
        session.delete("plan")
    with pytest.raises(NotFoundError, match="deleted then"):
        session.get("plan", version=2)
    assert session.get("plan", version=1) == 1
    assert session.set("plan", 2) == 3
    assert [version.deleted for version in session.values.history("plan")] == [False, True, False]
    for version in (0, 4, -1):
        with pytest.raises(NotFoundError):
            session.get("plan", version=version)


def test_scalars_survive_in_messages_values_and_notes(session: perdure.Session) -> None:
    rich = {"amount": Decimal("1.50"), "$": b"x"}
    session.append({"role": "user", "content": "", "data": rich})
    session.set("v", rich)
    session.note(rich)
    assert session.messages() == [{"role": "user", "content": "", "data": rich}]
    assert session.get("v") == rich
    *_, note = session.records()
    content: Any = note.content
    assert content.data == rich


def test_labels_find_sessions_and_mark_open_turns(store: perdure.Store) -> None:
    for name in ("a-1", "a-2", "b-1"):
        store.session(name).label("vip", "claims")
    store.session("a-2").label(remove=["vip"])
    store.session("b-1").turn("open").__enter__()
    found = [head.id for head in store.sessions(labels=["vip"])]
    assert found == ["a-1", "b-1"]
    assert [head.id for head in store.sessions(prefix="a-")] == ["a-1", "a-2"]
    assert [head.id for head in store.sessions(labels=["vip", "turn-open"])] == ["b-1"]
    assert [head.id for head in store.sessions(after="a-1")] == ["a-2", "b-1"]


def test_labels_are_few_short_and_not_the_reserved_ones(session: perdure.Session) -> None:
    with pytest.raises(UsageError, match="is reserved"):
        session.label("deleted")
    with pytest.raises(UsageError, match="1 to 64 bytes"):
        session.label("x" * 65)
    session.label(*map(str, range(12)))
    with pytest.raises(UsageError, match="at most 12"):
        session.label("one more")
    assert len(session.labels) == 12


def test_listing_goes_on_over_many_pages(store: perdure.Store) -> None:
    names = [f"s-{number:04}" for number in range(600)]
    for name in names:
        store.session(name).note("here")
    store.delete("s-0300")
    listed = [head.id for head in store.sessions()]
    assert listed == [name for name in names if name != "s-0300"]
    assert len(list(store.sessions(deleted=True))) == 600


def test_a_branch_shares_the_past_and_goes_its_own_way(
    store: perdure.Store, session: perdure.Session
) -> None:
    session.append(said("a"))
    session.set("plan", {"step": 1})
    with session.turn("b") as turn:
        turn.append(said("c", "assistant"))
    branch = session.branch("what-if", at=turn.branch_point)
    branch.append(said("d"))
    branch.set("plan", {"step": 2})
    session.append(said("e"))
    assert contents(branch) == ["a", "d"]
    assert contents(session) == ["a", "b", "c", "e"]
    again = store.session("what-if")
    assert (contents(again), again.get("plan"), again.get("plan", version=1)) == (
        ["a", "d"],
        {"step": 2},
        {"step": 1},
    )
    assert session.get("plan") == {"step": 1}
    assert again.verify().records == 5
    deeper = again.branch("deeper", at=1).branch("deepest")
    assert (contents(deeper), deeper.verify().position) == (["a"], 3)


def test_a_branch_in_the_middle_of_a_turn_has_that_turn_interrupted(
    store: perdure.Store, session: perdure.Session
) -> None:
    with session.turn("question") as turn:
        turn.append(said("answer", "assistant"))
    branch = session.branch("retry", at=turn.branch_point + 2)
    assert [found.id for found in branch.interrupted] == [turn.id]
    assert branch.labels == {"turn-open"}
    branch.verify()
    with branch.interrupted[0] as again:
        again.append(said("better", "assistant"))
    assert contents(store.session("retry")) == ["question", "better"]


@pytest.mark.parametrize("at", [None, 0])
def test_a_branch_of_a_session_that_has_no_records_has_none_either(
    session: perdure.Session, at: int | None
) -> None:
    branch = session.branch("what-if", at=at)
    assert (branch.position, session.position) == (0, 0)
    branch.append(said("a"))
    assert contents(branch) == ["a"]
    assert contents(session) == []


@pytest.mark.parametrize("at", [-1, 3])
def test_a_branch_begins_at_a_position_that_is_there(session: perdure.Session, at: int) -> None:
    session.append(said("a"), said("b"))
    with pytest.raises(UsageError, match="must begin at 1 to 2"):
        session.branch("what-if", at=at)


def test_a_branch_needs_a_name_of_its_own(session: perdure.Session) -> None:
    session.append(said("a"))
    session.branch("taken")
    for name in ("taken", "claim-4711"):
        with pytest.raises(UsageError, match="choose another id"):
            session.branch(name)
    assert session.verify().position == session.position


def test_a_parent_is_deleted_only_after_its_branches(
    store: perdure.Store, session: perdure.Session
) -> None:
    session.append(said("a"))
    session.branch("what-if")
    with pytest.raises(perdure.InUseError, match="'what-if'"):
        store.delete("claim-4711")
    assert contents(store.session("what-if")) == ["a"]
    store.delete("what-if")
    store.delete("claim-4711")
    for name in ("what-if", "claim-4711", "never"):
        with pytest.raises(NotFoundError):
            store.resume(name)
        with pytest.raises(NotFoundError):
            store.delete(name)


def test_a_session_made_anew_continues_the_numbering(
    store: perdure.Store, session: perdure.Session
) -> None:
    session.append(said("a"), said("b"))
    session.set("plan", 1)
    store.delete("claim-4711", reason="asked for")
    anew = store.session("claim-4711")
    assert (len(anew), anew.get("plan"), anew.position) == (0, None, 4)
    anew.append(said("c"))
    again = store.resume("claim-4711")
    assert (contents(again), again.position, again.verify().records) == (["c"], 5, 2)
    assert [record.kind for record in again.records()] == ["deleted", "message"]


def test_a_stale_handle_does_not_bring_a_deleted_session_back(
    store: perdure.Store, session: perdure.Session
) -> None:
    session.append(said("a"))
    store.delete("claim-4711")
    with pytest.raises(ConflictError, match="deleted record came first"):
        session.append(said("b"))
    for call in (lambda: session.append(said("c")), session.messages, session.refresh):
        with pytest.raises(NotFoundError, match="it was deleted"):
            call()
    assert (len(session), session.last_message) == (0, None)
    session.close()
    assert list(store.sessions()) == []


def test_refresh_tells_of_a_deletion(store: perdure.Store, session: perdure.Session) -> None:
    session.append(said("a"))
    store.delete("claim-4711")
    with pytest.raises(NotFoundError, match="it was deleted"):
        session.refresh()


def test_opening_reads_the_tail_only(
    store: perdure.Store, session: perdure.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_state, "SNAPSHOT_EVERY", 8)
    session.set("plan", {"step": 0})
    session.append(said("first"), id="m-1")
    for number in range(100):
        session.note(number)
    with session.turn("open", id="t-1"):
        again = store.session("claim-4711")
        assert (len(again), again.last_message, again.get("plan")) == (2, said("open"), {"step": 0})
        assert [turn.id for turn in again.interrupted] == ["t-1"]
        with pytest.raises(DivergenceError):
            again.append(said("other"), id="m-1")
    assert session.verify().snapshots > 10
    assert store.session("claim-4711").verify() == session.verify()


def test_the_last_messages_are_found_with_few_reads_however_much_is_between_them() -> None:
    class Counting(MemoryBackend):
        reads = 0

        def read(self, stream: str, **how: Any) -> Iterator[Entry]:
            self.reads += 1
            return super().read(stream, **how)

    backend = Counting()
    session = perdure.open(backend).session("s")
    for number in range(3):
        session.append(said(str(number)))
        for note in range(200):
            session.note(note)
    backend.reads = 0
    assert session.messages(last=2) == [said("1"), said("2")]
    assert backend.reads <= 8


def test_records_can_be_read_from_a_position_on(session: perdure.Session) -> None:
    for number in range(300):
        session.note(number)
    positions = [record.position for record in session.records(after=150)]
    assert positions == list(range(151, session.position + 1))


def test_a_closed_session_and_a_closed_store_say_so(
    store: perdure.Store, session: perdure.Session
) -> None:
    with session:
        session.append(said("a"))
    session.close()
    for call in (lambda: session.append(said("b")), session.messages, lambda: session.get("x")):
        with pytest.raises(UsageError, match="is closed"):
            call()
    with store:
        assert contents(store.session("claim-4711")) == ["a"]
        assert not store.closed
    assert store.closed
    store.close()
    assert store.closed
    with pytest.raises(UsageError, match="closed"):
        store.session("claim-4711")


def test_a_snapshot_of_another_version_is_skipped_and_reported(
    store: perdure.Store,
    session: perdure.Session,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(session_state, "SNAPSHOT_EVERY", 4)
    for number in range(10):
        session.append(said(str(number)))
    assert contents(store.session("claim-4711")) == [str(number) for number in range(10)]
    assert caplog.records == []
    newer = session_state.STATE_VERSION + 1
    for module in ("state.session_state", "verify"):
        monkeypatch.setattr(f"perdure.core.{module}.STATE_VERSION", newer)
    again = store.session("claim-4711")
    assert contents(again) == [str(number) for number in range(10)]
    assert "a state snapshot of another version" in caplog.text
    assert again.verify().snapshots == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.messages(last="1"),
        lambda session: session.get("plan", version="1"),
        lambda session: session.branch("b", at="1"),
        lambda session: session.label(remove="vip"),
    ],
    ids=["last", "version", "at", "remove"],
)
def test_numbers_and_lists_of_the_wrong_type_are_refused(
    session: perdure.Session, call: Callable[[perdure.Session], object]
) -> None:
    session.append(said("a"))
    session.set("plan", 1)
    with pytest.raises(UsageError, match="must be"):
        call(session)
    assert session.position == 2


def test_a_label_given_as_text_is_not_taken_for_its_letters(store: perdure.Store) -> None:
    given: Any = "vip"
    with pytest.raises(UsageError, match=r"write \['vip'\]"):
        list(store.sessions(labels=given))


def test_turns_and_heads_show_whose_they_are(
    store: perdure.Store, session: perdure.Session
) -> None:
    turn = session.turn("question", id="t-1")
    assert repr(turn) == "<Turn 't-1' of 'claim-4711': new>"
    with turn:
        assert repr(turn) == "<Turn 't-1' of 'claim-4711': open>"
    assert repr(turn) == "<Turn 't-1' of 'claim-4711': completed>"
    assert [head.id for head in store.sessions()] == ["claim-4711"]


def test_an_id_covers_a_call_of_many_messages_and_takes_one_place(
    store: perdure.Store, session: perdure.Session
) -> None:
    many = [said(str(number)) for number in range(1500)]
    session.append(said("first"), id="m-0")
    position = session.append(*many, id="m-1")
    for again in (session, store.session("claim-4711")):
        assert again.append(*many, id="m-1") == position
        assert again.append(said("first"), id="m-0") == 1
        with pytest.raises(DivergenceError):
            again.append(*many[:-1], said("other"), id="m-1")


def test_an_open_turn_is_recognised_however_many_ids_came_since(
    store: perdure.Store, session: perdure.Session
) -> None:
    session.turn("question", id="t-1").__enter__()
    for number in range(0, 1100, 100):
        for one in range(number, number + 100):
            session.note(one, id=f"n-{one}")
    with store.session("claim-4711").turn("question", id="t-1") as turn:
        assert not turn.ended
    assert len(store.session("claim-4711")) == 1


def test_one_id_is_not_both_a_turn_and_a_message(session: perdure.Session) -> None:
    session.append(said("a"), id="x")
    with pytest.raises(DivergenceError), session.turn(id="x"):
        pytest.fail("the body must not run")
    with session.turn("b", id="y"):
        pass
    with pytest.raises(DivergenceError):
        session.append(said("a"), id="y")


def test_a_session_opens_without_the_types_of_its_last_message() -> None:
    backend = MemoryBackend()
    with_types = perdure.open(backend, types={"set": perdure.TypeCodec(set, sorted, set)})
    with_types.session("s").append({**said("first"), "tags": {1, 2}})
    session = perdure.open(backend).session("s")
    session.append(said("next"))
    assert (len(session), session.last_message) == (2, said("next"))


def test_a_snapshot_that_is_too_large_is_left_out(
    store: perdure.Store, session: perdure.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_state, "SNAPSHOT_EVERY", 4)
    monkeypatch.setattr("perdure.journal.codec.PAYLOAD_MAX", 400)
    for number in range(20):
        session.set(f"a key that is not short {number}", number)
    assert store.session("claim-4711").verify().records == session.position
    assert store.session("claim-4711").get("a key that is not short 7") == 7


def test_a_branch_at_the_start_of_a_first_turn_is_empty(
    store: perdure.Store, session: perdure.Session
) -> None:
    with session.turn("question") as turn:
        pass
    again = session.branch("again", at=turn.branch_point)
    again.append(said("otherwise"))
    assert contents(store.session("again")) == ["otherwise"]


def test_an_error_without_a_text_is_recorded(session: perdure.Session) -> None:
    class Mute(Exception):  # noqa: N818 - a name for a test
        def __str__(self) -> str:
            raise RuntimeError

    with pytest.raises(Mute), session.turn("question"):
        raise Mute
    *_, last = session.records()
    content: Any = last.content
    assert (last.kind, content.error.endswith("Mute")) == ("turn.failed", True)


class Gate(MemoryBackend):
    """Lets nothing be stored until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        assert self.open.wait(60)
        return super().append(appends)


def test_closing_a_store_waits_for_what_was_asked_before() -> None:
    gate = Gate()
    store = perdure.open(gate)
    session = store.session("s")
    threads = [
        threading.Thread(target=session.append, args=(said(str(number)),)) for number in range(5)
    ]
    for thread in threads:
        thread.start()
    while len(session._handle._batcher._queue) < 4:  # The first one is under way.
        time.sleep(0.001)
    threading.Timer(0.05, gate.open.set).start()
    store.close()
    for thread in threads:
        thread.join(60)
    assert len(session) == 5


def test_a_store_is_closed_while_another_thread_opens_sessions(store: perdure.Store) -> None:
    opened = [store.session("first"), store.session("second")]

    class Handles(WeakSet[Any]):
        """Another thread adds a handle in the middle of the first look at them all."""

        def __iter__(self) -> Iterator[Any]:
            for number, handle in enumerate(super().__iter__()):
                if number == 0 and len(opened) == 2:
                    opened.append(store.session("third"))
                yield handle

    store._driver.handles = Handles([session._handle for session in opened])
    store.close()
    assert len(opened) == 3


def test_a_store_that_lost_a_session_is_not_written_on(session: perdure.Session) -> None:
    store, backend = store_in_memory()
    session = store.session("s")
    session.append(said("a"), said("b"))
    backend._streams.clear()
    with pytest.raises(perdure.HistoryReplacedError, match="no longer in the store"):
        session.append(said("c"))
    assert not [*backend.streams()]
