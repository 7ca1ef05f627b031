# Generated from aio/test_records.py by scripts/generate_sync.py: do not edit.
"""Records by position and by kind, from either end: only what is asked for is read."""

from collections.abc import Iterator
from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Entry
from perdure.errors import NotFoundError, UsageError
from tests.support import said


class CountingBackend(MemoryBackend):
    """Counts the entries that it returns."""

    entries = 0

    def read(self, stream: str, **options: Any) -> Iterator[Entry]:
        for entry in super().read(stream, **options):
            self.entries += 1
            yield entry


def long_session(backend: MemoryBackend, count: int) -> perdure.Session:
    store = perdure.open(backend)
    session = store.session("c")
    for number in range(0, count, 10):
        session.append(*(said(f"{each}") for each in range(number, number + 10)))
        session.note(number)
    return session


def positions(records: Any) -> list[int]:
    return [record.position for record in records]


def test_one_record_is_read_by_its_position() -> None:
    backend = CountingBackend()
    session = long_session(backend, 2000)
    for position in (1, 777, session.position):
        backend.entries = 0
        record = session.record(position)
        assert (record.position, backend.entries) == (position, 1)
    assert session.record(11).content.data == 0  # type: ignore[attr-defined]
    assert session.record(10).kind == "message"


@pytest.mark.parametrize("position", [-1, 0, 4, 2**70])
def test_no_record_is_at_another_position(position: int) -> None:
    with perdure.open("memory:") as store:
        session = store.session("c")
        session.append(said("one"), said("two"), said("three"))
        with pytest.raises(NotFoundError, match="from 1 to 3"):
            session.record(position)
        with pytest.raises(UsageError):
            session.record("1")  # type: ignore[arg-type]


def test_records_are_selected_by_kind() -> None:
    session = long_session(MemoryBackend(), 30)
    assert positions(session.records(kinds=["note"])) == [11, 22, 34]
    assert positions(session.records(kinds=["note"], reverse=True)) == [34, 22, 11]
    assert positions(session.records(kinds={"note"}, after=11, limit=1)) == [22]
    assert positions(session.records(kinds=["note"], reverse=True, after=11)) == [34, 22]
    assert positions(session.records(kinds=["value"])) == []


@pytest.mark.parametrize("count", [300, 3000])
def test_a_limit_bounds_what_is_read(count: int) -> None:
    backend = CountingBackend()
    session = long_session(backend, count)
    backend.entries = 0
    assert positions(session.records(reverse=True, limit=1)) == [session.position]
    assert backend.entries <= 2
    backend.entries = 0
    assert positions(session.records(limit=3, after=50)) == [51, 52, 53]
    assert backend.entries <= 16  # A batch is read whole: it is all or nothing.
    backend.entries = 0
    assert positions(session.records(limit=0)) == []
    assert backend.entries == 0


def test_both_directions_give_the_same_records() -> None:
    session = long_session(MemoryBackend(), 400)
    branch = session.branch("b", at=250)
    branch.append(said("in the branch"))
    for each in (session, branch):
        forward = list(each.records())
        backward = list(each.records(reverse=True))
        assert backward == forward[::-1]
        assert len(forward) == each.position
        some = list(each.records(limit=130, reverse=True))
        assert some == backward[:130]
        assert [each.record(position) for position in (1, 251)] == [forward[0], forward[250]]


def test_bad_filters_are_refused() -> None:
    session = long_session(MemoryBackend(), 100)
    for options in (
        {"kinds": "note"},
        {"kinds": ["no such kind"]},
        {"limit": -1},
        {"limit": "1"},
        {"after": None},
        {"reverse": True, "on_damage": print},
    ):
        with pytest.raises(UsageError):
            positions(session.records(**options))
