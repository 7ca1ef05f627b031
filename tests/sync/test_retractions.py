# Generated from aio/test_retractions.py by scripts/generate_sync.py: do not edit.
"""Messages that are taken back or replaced: conversations leave them out, the records stay."""

import random
from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.core.state import session_state
from perdure.errors import ConflictError, DivergenceError, NotFoundError, UsageError
from tests.support import said


def texts(session: perdure.Session, **options: Any) -> list[str]:
    return [message["content"] for message in session.messages(**options)]


def numbered(backend: MemoryBackend, count: int) -> perdure.Session:
    session = perdure.open(backend).session("c")
    for number in range(1, count + 1):
        session.append(said(f"{number}"))
    return session


def test_retracted_messages_are_left_out_and_their_records_stay() -> None:
    backend = MemoryBackend()
    session = numbered(backend, 6)
    session.retract(2, 3, reason="a typo")
    session.retract(6)
    again = perdure.open(backend).session("c")
    for each in (session, again):
        assert texts(each) == ["1", "4", "5"]
        assert texts(each, last=2) == ["4", "5"]
        assert texts(each, format="openai.chat", max_messages=2) == ["4", "5"]
        assert (len(each), each.last_message) == (3, said("5"))
        kinds = [record.kind for record in each.records()]
        assert kinds == ["message"] * 6 + ["messages.retracted"] * 2
        each.verify()
    session.append(said("7"))
    assert texts(session) == ["1", "4", "5", "7"]


def test_everything_can_be_retracted() -> None:
    backend = MemoryBackend()
    session = numbered(backend, 5)
    other = perdure.open(backend).session("c")
    session.retract(range(1, 100))
    other.refresh()
    for each in (session, other):
        assert (texts(each), len(each), each.last_message) == ([], 0, None)
    session.append(said("new"))
    assert (texts(session), session.last_message) == (["new"], said("new"))


def test_a_replacement_stands_where_the_messages_were() -> None:
    backend = MemoryBackend()
    session = numbered(backend, 6)
    other = perdure.open(backend).session("c")
    session.replace(2, 4, said("two"), said("three"))
    other.refresh()
    again = perdure.open(backend).session("c")
    for each in (session, other, again):
        assert texts(each) == ["1", "two", "three", "5", "6"]
        assert texts(each, last=3) == ["three", "5", "6"]
        assert texts(each, max_messages=4) == ["two", "three", "5", "6"]
        assert (len(each), each.last_message) == (5, said("6"))
        each.verify()
    # A replacement is replaced with its place, and can be retracted by its own positions.
    session.replace(1, 5, said("one to five"))
    assert texts(session) == ["one to five", "6"]
    session.replace(6, 6, said("six"))
    assert (texts(session), session.last_message) == (["one to five", "six"], said("six"))
    session.retract(session.position - 1)
    assert (texts(session), session.last_message) == (["one to five"], said("one to five"))


def test_positions_without_a_message_are_not_found() -> None:
    session = numbered(MemoryBackend(), 3)
    session.note("n")
    session.retract(2)
    for position in (0, -1, 2, 4, 5, 99):
        with pytest.raises(NotFoundError, match=f"a message at {position}"):
            session.retract(position)
        with pytest.raises(NotFoundError):
            session.retract(1, position)
    with pytest.raises(NotFoundError):
        session.replace(4, 9, said("x"))
    for bad in ((), ("1",), (range(3, 1),), (range(1, 9, 2),), (True,)):
        with pytest.raises(UsageError):
            session.retract(*bad)
    for first, last in ((2, 1), (0, 1), ("1", 2)):
        with pytest.raises(UsageError):
            session.replace(first, last, said("x"))  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        session.replace(1, 1)
    assert texts(session) == ["1", "3"]


def test_a_repeated_call_changes_nothing() -> None:
    session = numbered(MemoryBackend(), 5)
    position = session.retract(2, id="r")
    assert session.retract(2, id="r") == position
    with pytest.raises(DivergenceError):
        session.retract(3, id="r")
    replaced = session.replace(3, 4, said("x"), id="s")
    assert session.replace(3, 4, said("x"), id="s") == replaced
    with pytest.raises(DivergenceError):
        session.replace(3, 4, said("y"), id="s")
    assert texts(session) == ["1", "x", "5"]


def test_a_writer_that_has_not_seen_a_retraction_conflicts() -> None:
    backend = MemoryBackend()
    session = numbered(backend, 3)
    other = perdure.open(backend).session("c")
    session.retract(3)
    with pytest.raises(ConflictError):
        other.append(said("in view of 3"))
    assert texts(other) == ["1", "2"]
    session.replace(1, 2, said("x"))
    with pytest.raises(ConflictError):
        other.retract(2)
    assert texts(other) == ["x"]


def test_calls_go_with_their_message() -> None:
    with perdure.open("memory:") as store:
        session = store.session("c")
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        session.append(said("hello"))
        session.append({"role": "assistant", "content": None, "tool_calls": [call]})
        with pytest.raises(UsageError, match="without a result"):
            session.replace(1, 2, said("x"))
        session.append({"role": "tool", "tool_call_id": "c1", "content": "done"})
        session.append(said("thanks", "assistant"))
        for format in ("openai.chat", "openai.responses", "anthropic", "gemini"):
            assert len(session.messages(format=format)) > 1
        session.retract(3)  # The result alone: the call is shown as interrupted.
        window = session.messages(format="openai.chat")
        assert [message["role"] for message in window] == ["user", "assistant", "tool", "assistant"]
        session.retract(2)
        assert texts(session, format="openai.chat") == ["hello", "thanks"]


def test_instructions_pins_and_summaries_follow() -> None:
    with perdure.open("memory:") as store:
        session = store.session("c")
        session.append({"role": "system", "content": "old rules " * 9})
        for number in range(10):
            with session.turn(f"question {number} " * 9) as turn:
                turn.append(said(f"answer {number} " * 9, "assistant"))
        session.pin(3)
        session.summarize(lambda _: "short", keep_turns=2)
        assert "short" in str(session.messages(max_messages=9))
        session.replace(1, 1, {"role": "system", "content": "new rules"})
        window = str(session.messages(max_messages=30))
        assert "new rules" in window
        assert "old rules" not in window
        assert "short" not in window  # It summarized what was replaced.
        session.retract(3)
        assert "question 0" not in str(session.messages(max_messages=30))
        session.summarize(lambda _: "shorter", keep_turns=1)
        assert "shorter" in str(session.messages(max_messages=9))


def test_a_branch_has_what_was_left_at_its_beginning() -> None:
    session = numbered(MemoryBackend(), 6)
    session.retract(2)
    branch = session.branch("b")
    session.retract(3)
    branch.replace(4, 5, said("x"))
    assert texts(branch) == ["1", "3", "x", "6"]
    assert texts(session) == ["1", "4", "5", "6"]
    assert texts(session.branch("earlier", at=6)) == list("123456")


@pytest.mark.parametrize("seed", range(12))
def test_any_history_shows_what_a_list_would(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_state, "SNAPSHOT_EVERY", 16)
    draw = random.Random(seed)
    backend = MemoryBackend()
    session = perdure.open(backend).session("c")
    other = perdure.open(backend).session("c")
    model: list[tuple[int, str]] = []  # The place and the text of each message.
    for step in range(60):
        choice = draw.random()
        if choice < 0.5 or not model:
            position = session.append(said(f"{step}"))
            model.append((position, f"{step}"))
        elif choice < 0.7:
            first = draw.choice(model)[0]
            last = first + draw.randrange(6)
            session.retract(range(first, last + 1))
            model = [item for item in model if not first <= item[0] <= last]
        else:
            first = draw.choice(model)[0]
            last = first + draw.randrange(6)
            last = min(last, session.position)
            session.replace(first, last, said(f"{step}a"), said(f"{step}b"))
            index = sum(place < first for place, _ in model)
            model = [item for item in model if not first <= item[0] <= last]
            model[index:index] = [(last, f"{step}a"), (last, f"{step}b")]
        if step % 7 == 0:
            session = perdure.open(backend).session("c")
        other.refresh()
        for each in (session, other):
            assert texts(each) == [text for _, text in model]
            assert len(each) == len(model)
            assert each.last_message == (said(model[-1][1]) if model else None)
    session.verify()
