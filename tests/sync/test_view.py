# Generated from aio/test_view.py by scripts/generate_sync.py: do not edit.
"""A caller's own state over the records of a session: computed once, stored, continued."""

from collections.abc import Iterator
from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Entry
from perdure.errors import UsageError
from tests.support import said


def count_kinds(state: dict[str, int], record: perdure.Record) -> dict[str, int]:
    return {**state, record.kind: state.get(record.kind, 0) + 1}


def change_in_place(state: dict[str, int], record: perdure.Record) -> dict[str, int]:
    state[record.kind] = state.get(record.kind, 0) + 1
    return state


class CountingBackend(MemoryBackend):
    """Counts the entries that it returns."""

    entries = 0

    def read(self, stream: str, **options: Any) -> Iterator[Entry]:
        for entry in super().read(stream, **options):
            self.entries += 1
            yield entry


def session_of(backend: MemoryBackend) -> perdure.Session:
    return perdure.open(backend).session("c")


@pytest.mark.parametrize("fold", [count_kinds, change_in_place])
def test_a_view_is_computed_from_the_records_in_order(fold: Any) -> None:
    initial: dict[str, int] = {}
    session = session_of(MemoryBackend())
    view = session.view(fold, name="kinds", initial=initial)
    assert (view.state, view.position) == ({}, 0)
    session.append(said("one"), said("two"))
    assert view.state == {}
    assert view.refresh() == view.state == {"message": 2}
    session.note("n")
    assert view.refresh() == {"message": 2, "note": 1}
    assert view.position == session.position
    assert initial == {}


def test_what_perdure_writes_for_itself_is_left_out() -> None:
    session = session_of(MemoryBackend())
    view = session.view(count_kinds, name="kinds", initial={}, every=10)
    for number in range(600):
        session.append(said("x"), id=f"m-{number}")
        if not number % 50:
            view.refresh()
    assert view.refresh() == {"message": 600}
    kinds = {record.kind for record in session.records()}
    assert kinds == {"message", "snapshot", "index", "view"}


def test_opening_reads_at_most_the_records_since_it_was_stored() -> None:
    backend = CountingBackend()
    session = session_of(backend)
    view = session.view(count_kinds, name="kinds", initial={}, every=100)
    for _ in range(1000):
        session.append(said("x"))
        view.refresh()
    again = session_of(backend)
    backend.entries = 0
    assert again.view(count_kinds, name="kinds", initial={}).state == {"message": 1000}
    assert backend.entries <= 102
    backend.entries = 0
    assert again.view(count_kinds, name="other", initial={}).state == {"message": 1000}
    assert backend.entries > 1000


def test_another_version_begins_anew() -> None:
    backend = MemoryBackend()
    session = session_of(backend)
    session.append(*(said("x") for _ in range(20)))
    session.view(count_kinds, name="v", initial={}, every=5)

    def length(state: int, record: perdure.Record) -> int:
        return state + 1

    again = session_of(backend)
    newer = again.view(length, name="v", initial=0, version=2, every=5)
    assert newer.state == 20
    assert (session_of(backend).view(length, name="v", version=2)).state == 20


def test_a_function_that_raises_changes_nothing() -> None:
    session = session_of(MemoryBackend())
    session.append(said("one"))
    view = session.view(change_in_place, name="v", initial={})
    broken = True

    def fold(state: Any, record: perdure.Record) -> Any:
        change_in_place(state, record)
        if broken and record.kind == "note":
            raise ZeroDivisionError
        return state

    view = session.view(fold, name="v", initial={})
    session.append(said("two"))
    session.note("n")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            view.refresh()
    broken = False
    assert view.refresh() == {"message": 2, "note": 1}


def test_a_state_that_cannot_be_stored_is_refused() -> None:
    session = session_of(MemoryBackend())
    session.append(said("one"))
    with pytest.raises(UsageError):
        session.view(lambda _state, _record: {1, 2}, name="v", every=1)
    with pytest.raises(UsageError):
        session.view(count_kinds, name="v", initial={1, 2})
    assert session.position == 1


@pytest.mark.parametrize(
    "options", [{"name": ""}, {"name": "v", "every": 0}, {"name": "v", "version": 0}]
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    session = session_of(MemoryBackend())
    with pytest.raises(UsageError):
        session.view(count_kinds, **options)
    with pytest.raises(UsageError):
        session.view("no function", name="v")  # type: ignore[arg-type]


def test_a_branch_continues_the_views_of_its_parent() -> None:
    session = session_of(MemoryBackend())
    session.append(*(said("x") for _ in range(20)))
    session.view(count_kinds, name="v", initial={}, every=5)
    branch = session.branch("b", at=10)
    branch.append(said("y"))
    state = branch.view(count_kinds, name="v", initial={}).state
    assert state["message"] == 11
