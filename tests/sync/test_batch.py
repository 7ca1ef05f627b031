# Generated from aio/test_batch.py by scripts/generate_sync.py: do not edit.
"""Several records in one commit: all of them or none, repeatable by an id."""

from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.errors import (
    ConflictError,
    DivergenceError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def kinds(session: perdure.Session) -> list[str]:
    return [record.kind for record in session.records()]


def test_the_records_of_a_batch_are_stored_together_when_its_block_ends() -> None:
    with perdure.open("memory:") as store:
        session = store.session("c")
        session.append(user("before"))
        with session.batch() as batch:
            batch.append(user("one"), user("two"))
            batch.set("count", 1)
            batch.note({"seen": True}, author="ops")
            batch.label("vip")
            batch.pin(1)
            assert session.position == 1
            assert batch.positions == range(0)
        assert batch.positions == range(2, 8)
        assert (
            kinds(session)
            == [*("message", "message", "message", "value", "note", "labels", "pinned")][:7]
        )
        assert session.get("count") == 1
        assert "vip" in session.labels
        again = store.session("c")
        assert len(again) == 3


def test_a_block_that_raises_stores_nothing() -> None:
    with perdure.open("memory:") as store:
        session = store.session("c")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block's end writes
            with session.batch() as batch:
                batch.append(user("one"))
                raise ZeroDivisionError
        assert (session.position, batch.positions) == (0, range(0))
        session.append(user("afterwards"))
        assert len(session) == 1


def test_one_part_that_is_refused_refuses_all() -> None:
    with perdure.open("memory:") as store:
        session = store.session("c")
        with pytest.raises(NotFoundError):  # noqa: PT012 - the block's end writes
            with session.batch() as batch:
                batch.append(user("one"))
                batch.set("count", 1)
                batch.delete("unknown")
        assert session.position == 0
        assert session.get("count") is None
        with pytest.raises(UsageError):  # noqa: PT012 - the block's end writes
            with session.batch() as batch:
                batch.append(user("one"))
                batch.set("a set", {1, 2})
        assert session.position == 0


def test_later_parts_see_earlier_ones() -> None:
    with perdure.open("memory:") as store:
        session = store.session("c")
        document = {"text": "word " * 400, "step": 1}
        with session.batch() as batch:
            batch.set("plan", document)
            batch.set("plan", {**document, "step": 2})
            batch.set("gone", 1)
            batch.delete("gone")
        assert session.values.version("plan") == 2
        assert session.get("plan") == {**document, "step": 2}
        assert session.get("plan", version=1) == document
        assert session.values.keys() == ["plan"]


def test_a_batch_expects_a_position() -> None:
    backend = MemoryBackend()
    store = perdure.open(backend)
    session, other = store.session("c"), store.session("c")
    with session.batch(expect=0) as batch:
        batch.note("first")
    other.note("in between")
    with pytest.raises(ConflictError) as caught:
        with session.batch(expect=1) as batch:
            batch.note("second")
    assert (caught.value.position, caught.value.head) == (1, 2)
    with session.batch(expect=session.position) as batch:
        batch.note("second")
    with pytest.raises(ConflictError):
        with session.batch(expect=99) as batch:
            batch.note("third")


def test_a_batch_conflicts_if_one_of_its_parts_does() -> None:
    backend = MemoryBackend()
    store = perdure.open(backend)
    session, other = store.session("c"), store.session("c")
    other.append(user("hello"))
    with session.batch() as batch:  # Notes and labels commute with messages.
        batch.note("a")
        batch.label("b")
    assert batch.positions == range(2, 4)
    other.refresh()
    other.set("count", 7)
    session.refresh()
    other.set("count", 8)
    with pytest.raises(ConflictError):  # noqa: PT012 - the block's end writes
        with session.batch() as batch:
            batch.note("c")
            batch.set("count", 9)
    assert session.get("count") == 8


def test_a_repeated_batch_changes_nothing() -> None:
    backend = MemoryBackend()
    store = perdure.open(backend)
    session = store.session("c")
    for _ in range(3):
        with session.batch(id="req-1") as batch:
            batch.append(user("hello"))
            batch.set("count", 1)
        assert batch.positions == range(1, 4)
    again = perdure.open(backend).session("c")
    with again.batch(id="req-1", expect=0) as batch:
        batch.append(user("hello"))
        batch.set("count", 1)
    assert (batch.positions, again.position) == (range(1, 4), 3)
    assert kinds(again) == ["message", "value", "batch"]
    with pytest.raises(DivergenceError):  # noqa: PT012 - the block's end writes
        with again.batch(id="req-1") as batch:
            batch.append(user("hello"))
            batch.set("count", 2)
    again.note("mine", id="n-1")
    with pytest.raises(DivergenceError):
        with again.batch(id="n-1") as batch:
            batch.note("mine")
    with pytest.raises(DivergenceError):
        again.note("mine", id="req-1")
    assert again.position == 4


def test_a_turn_ends_together_with_a_value() -> None:
    with perdure.open("memory:") as store:
        session = store.session("c")
        with session.turn("hello", id="r1") as turn:
            with turn.batch() as batch:
                batch.append({"role": "assistant", "content": "hi"})
                batch.set("count", 1)
                batch.complete()
            assert turn.ended
        assert kinds(session) == [*("turn.begun", "message", "message", "value", "turn.completed")]
        assert not session.interrupted
        with session.turn("more") as turn, turn.batch() as batch:
            batch.append({"role": "assistant", "content": "yes"})
        assert turn.ended
        records = [record.content for record in session.records(after=5)]
        assert {content.turn for content in records if content.kind == "message"} == {turn.id}  # type: ignore[attr-defined]


def test_a_completed_batch_takes_nothing_more() -> None:
    with perdure.open("memory:") as store:
        session = store.session("c")
        with pytest.raises(UsageError, match="ended"):  # noqa: PT012 - the block's end writes
            with session.turn("hello") as turn, turn.batch() as batch:
                batch.complete()
                batch.note("too late")
        assert kinds(session) == ["turn.begun", "message", "turn.failed"]


def test_a_batch_is_used_in_its_block_and_once() -> None:
    with perdure.open("memory:") as store:
        session = store.session("c")
        batch = session.batch()
        with pytest.raises(UsageError, match="enter it"):
            batch.note("early")
        with batch:
            batch.note("in time")
        with pytest.raises(UsageError, match="has ended"):
            batch.note("late")
        with pytest.raises(UsageError, match="entered once"):
            with batch:
                pass
        with session.batch() as empty:
            pass
        assert (empty.positions, session.position) == (range(0), 1)


@pytest.mark.parametrize("arguments", [{"id": ""}, {"id": 5}, {"id": ".x"}, {"expect": "1"}])
def test_bad_arguments_are_refused_at_once(arguments: dict[str, Any]) -> None:
    with perdure.open("memory:") as store:
        session = store.session("c")
        with pytest.raises(UsageError):
            session.batch(**arguments)


def test_a_batch_that_is_too_large_is_refused() -> None:
    with perdure.open("memory:") as store:
        session = store.session("c")
        with pytest.raises(UsageError, match="split it"):  # noqa: PT012 - the block's end writes
            with session.batch() as batch:
                batch.note("x " * 4_500_000)
                batch.note("y " * 4_500_000)
        assert session.position == 0
        session.note("small")
        assert session.position == 1


def test_a_batch_is_replayed() -> None:
    with perdure.open("memory:") as store:
        session = store.session("c")

        def agent(session: perdure.Session) -> range:
            with session.turn("hello") as turn, turn.batch(id="b-1") as batch:
                batch.append({"role": "assistant", "content": "hi"})
                batch.set("count", 1)
                batch.complete()
            return batch.positions

        recorded = agent(session)
        replayed = perdure.replay(session, agent)
        assert replayed.identical, replayed.divergence
        assert replayed.returned == recorded


def test_records_of_several_sessions_are_stored_together() -> None:
    backend = MemoryBackend()
    store = perdure.open(backend)
    session, user_state = store.session("s-1"), store.session("user-17")
    user_state.set("visits", 1)
    with store.batch() as batch:
        writer = batch.session(session)
        writer.append(user("hello"))
        other = batch.session(user_state)
        other.set("visits", 2)
        batch.session("app", expect=0).note("seen")
        assert session.position == 0
    assert (writer.positions, other.positions) == (range(1, 2), range(2, 3))
    # The handles have caught up: their next writes are no conflict.
    session.append({"role": "assistant", "content": "hi"})
    assert user_state.set("visits", 3) == 3
    assert kinds(store.session("app")) == ["note"]


def test_a_conflict_in_one_session_stores_nothing_in_the_others() -> None:
    backend = MemoryBackend()
    store = perdure.open(backend)
    one, two = store.session("1"), store.session("2")
    store.session("2").append(user("another writer"))
    with pytest.raises(ConflictError):  # noqa: PT012 - the block's end writes
        with store.batch() as batch:
            batch.session(one).append(user("a"))
            batch.session(two).append(user("b"))
    assert (one.position, one.refresh()) == (0, 0)
    two.refresh()
    with store.batch() as batch:
        batch.session(one).append(user("a"))
        batch.session(two).append(user("b"))
    assert (one.position, two.position) == (1, 2)


def test_a_race_at_the_commit_stores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend()
    store = perdure.open(backend)
    one, two = store.session("1"), store.session("2")
    append_together = MemoryBackend.append_together

    def late(self: MemoryBackend, appends: Any) -> Any:
        monkeypatch.undo()
        perdure.open(backend).session("2").note("first")
        return append_together(self, appends)

    monkeypatch.setattr(MemoryBackend, "append_together", late)
    with pytest.raises(ConflictError):  # noqa: PT012 - the block's end writes
        with store.batch() as batch:
            batch.session(one).append(user("a"))
            batch.session(two).append(user("b"))
    assert (one.refresh(), two.refresh()) == (0, 1)


def test_a_store_batch_that_raises_stores_nothing_and_ends() -> None:
    with perdure.open("memory:") as store:
        one = store.session("1")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block's end writes
            with store.batch() as batch:
                writer = batch.session(one)
                writer.append(user("a"))
                raise ZeroDivisionError
        assert one.refresh() == 0
        with pytest.raises(UsageError, match="has ended"):
            writer.note("late")
        with pytest.raises(UsageError, match="not open"):
            batch.session(one)
        with pytest.raises(UsageError, match="already"):  # noqa: PT012 - the second call
            with store.batch() as batch:
                batch.session(one)
                batch.session("1")


def test_a_repeated_store_batch_changes_nothing() -> None:
    with perdure.open("memory:") as store:
        for _ in range(2):
            with store.batch() as batch:
                one = batch.session("1", id="r-1")
                one.append(user("a"))
                two = batch.session("2", id="r-1")
                two.set("count", 1)
            assert (one.positions, two.positions) == (range(1, 3), range(1, 3))


def test_files_cannot_write_to_several_sessions_together(tmp_path: Path) -> None:
    with perdure.open(f"files:{tmp_path / 'store'}") as store:
        with pytest.raises(UnsupportedError, match=r"session\.batch"):
            store.batch()
