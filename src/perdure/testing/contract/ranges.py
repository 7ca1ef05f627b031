"""Contract tests of entries that hold several records, and so cover several positions."""

import pytest

from perdure.backends.protocol import Append, Backend, Entry
from perdure.errors import UsageError
from perdure.testing.contract.samples import append_all, digest, entry

SIZES = (1, 3, 1, 5, 2)  # records of the entries, at the positions 1, 2 to 4, 5, 6 to 10, 11 to 12


def ranges(*sizes: int, first: int = 1, mark: str = "") -> list[Entry]:
    """Return entries with these numbers of records, one after the other."""
    found = []
    for size in sizes:
        found.append(entry(first, mark)._replace(records=size))
        first += size
    return found


def append_ranges(backend: Backend, *sizes: int, stream: str = "s") -> list[Entry]:
    """Append entries one by one, each linked to the one before; return them."""
    stored, previous = ranges(*sizes), ""
    for one in stored:
        assert append_all(backend, Append(stream, [one], previous=previous)) == ["stored"]
        previous = digest(one)
    return stored


class RangeContract:
    """Entries of several records: where they are found, and what may follow them."""

    def test_entries_of_several_records_are_returned_unchanged(self, backend: Backend) -> None:
        stored = append_ranges(backend, *SIZES)
        assert list(backend.read("s")) == stored
        assert list(backend.read("s", reverse=True)) == stored[::-1]
        together = ranges(2, 3, 4)
        assert append_all(backend, Append("t", together)) == ["stored"]
        assert list(backend.read("t")) == together

    def test_the_head_is_at_the_last_position_of_the_last_entry(self, backend: Backend) -> None:
        stored = append_ranges(backend, *SIZES)
        (head,) = backend.streams(headers=True)
        assert (head.position, head.digest, head.header) == (
            12,
            digest(stored[-1]),
            stored[-1].header,
        )

    def test_reading_begins_with_the_entry_that_covers_the_next_position(
        self, backend: Backend
    ) -> None:
        stored = append_ranges(backend, *SIZES)
        for after in range(15):
            later = [one for one in stored if one.last > after]
            assert list(backend.read("s", after=after)) == later
            assert list(backend.read("s", after=after, limit=1)) == later[:1]
            earlier = [one for one in stored if after == 0 or one.position < after][::-1]
            assert list(backend.read("s", after=after, reverse=True)) == earlier
            assert list(backend.read("s", after=after, limit=1, reverse=True)) == earlier[:1]

    def test_a_long_stream_of_long_ranges_is_read_completely(self, backend: Backend) -> None:
        stored = ranges(*(1 + number % 7 for number in range(700)))
        assert append_all(backend, Append("s", stored)) == ["stored"]
        assert list(backend.read("s")) == stored
        assert list(backend.read("s", reverse=True)) == stored[::-1]
        assert list(backend.read("s", after=1000)) == [one for one in stored if one.last > 1000]

    def test_the_next_entry_begins_after_the_last_position(self, backend: Backend) -> None:
        stored = append_ranges(backend, 3)
        previous = digest(stored[0])
        for first, status in ((2, "conflict"), (3, "conflict"), (5, "refused"), (4, "stored")):
            append = Append("s", ranges(2, first=first, mark="x"), previous=previous)
            assert append_all(backend, append) == [status], first
        assert [one.position for one in backend.read("s")] == [1, 4]

    def test_a_resend_is_stored_and_one_with_other_ranges_conflicts(self, backend: Backend) -> None:
        stored = append_ranges(backend, *SIZES)
        previous = digest(stored[0])
        resend = Append("s", stored[1:], previous=previous)
        assert append_all(backend, resend) == ["stored"]
        assert append_all(backend, Append("s", stored)) == ["stored"]
        other = [stored[1]._replace(records=4)]
        assert append_all(backend, Append("s", other, previous=previous)) == ["conflict"]
        more = [*stored[3:], *ranges(2, first=13)]
        assert append_all(backend, Append("s", more, previous=digest(stored[2]))) == ["stored"]
        assert list(backend.read("s")) == [*stored, *ranges(2, first=13)]

    def test_drop_removes_only_entries_that_end_before_a_position(self, backend: Backend) -> None:
        stored = append_ranges(backend, *SIZES)
        for before, left in ((4, 1), (5, 2), (9, 3), (11, 4), (99, 4)):
            backend.drop("s", before=before)
            assert list(backend.read("s")) == stored[left:], before

    def test_ranges_of_many_streams_are_stored_in_one_call(self, backend: Backend) -> None:
        names = [f"s{number}" for number in range(9)]
        for round_ in range(3):
            first = 1 + 4 * round_
            appends = []
            for name in names:
                before = ranges(4, first=first - 4, mark=name)
                previous = digest(before[0]) if round_ else ""
                appends.append(Append(name, ranges(4, first=first, mark=name), previous=previous))
            assert append_all(backend, *appends) == ["stored"] * 9
        for name in names:
            assert list(backend.read(name)) == ranges(4, 4, 4, mark=name)

    def test_an_entry_without_records_is_a_usage_error(self, backend: Backend) -> None:
        with pytest.raises(UsageError, match="covers no position"):
            append_all(backend, Append("s", [entry(1)._replace(records=0)]))
        assert list(backend.read("s")) == []
