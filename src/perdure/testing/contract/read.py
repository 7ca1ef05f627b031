"""The sentences of `Backend.read` and `Backend.streams`, as tests."""

# ruff: noqa: S101 - these are tests, though they are shipped.
from typing import Any, get_args

import msgspec
import pytest

from perdure.backends.guarantees import Atomic, SharedBy, Survives, guarantees_of
from perdure.backends.protocol import DELETED, Append, Backend
from perdure.testing.contract.samples import (
    ALIKE,
    appended,
    begun,
    entries,
    entry,
    names,
    positions,
    status,
)


def _bodies(backend: Backend, max_body: int, *, reverse: bool) -> list[int | None]:
    found = backend.read("s", max_body=max_body, reverse=reverse)
    return [None if one.body is None else len(one.body) for one in found]


class ReadingContract:
    """What comes out of a store."""

    def test_an_unknown_stream_is_empty(self, backend: Backend) -> None:
        assert list(backend.read("unknown")) == []
        assert list(backend.read("unknown", reverse=True)) == []
        assert list(backend.streams()) == []

    def test_reverse_reads_from_the_end(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 4))
        assert list(backend.read("s", reverse=True)) == entries(1, 4)[::-1]

    def test_after_excludes_in_both_directions(self, backend: Backend) -> None:
        status(backend, begun("s", 3, 7))
        assert positions(backend.read("s", after=5)) == [6, 7]
        assert positions(backend.read("s", after=7)) == []
        assert positions(backend.read("s", after=99)) == []
        assert positions(backend.read("s", after=1)) == [3, 4, 5, 6, 7]
        assert positions(backend.read("s", after=5, reverse=True)) == [4, 3]
        assert positions(backend.read("s", after=3, reverse=True)) == []
        assert positions(backend.read("s", after=1, reverse=True)) == []
        assert positions(backend.read("s", after=99, reverse=True)) == [7, 6, 5, 4, 3]

    def test_limit_ends_reading_in_both_directions(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 5))
        assert positions(backend.read("s", limit=2)) == [1, 2]
        assert positions(backend.read("s", limit=0)) == []
        assert positions(backend.read("s", limit=9)) == [1, 2, 3, 4, 5]
        assert positions(backend.read("s", after=2, limit=2)) == [3, 4]
        assert positions(backend.read("s", limit=2, reverse=True)) == [5, 4]
        assert positions(backend.read("s", after=4, limit=2, reverse=True)) == [3, 2]

    def test_limit_counts_entries_and_not_positions(self, backend: Backend) -> None:
        status(backend, begun("branch", 5001, 5004), appended("s", 1, 700))
        backend.drop("s", before=600)
        assert positions(backend.read("branch", limit=2)) == [5001, 5002]
        assert positions(backend.read("branch", after=7, limit=2)) == [5001, 5002]
        assert positions(backend.read("branch", limit=9, reverse=True)) == [5004, 5003, 5002, 5001]
        assert positions(backend.read("s", limit=1)) == [600]
        assert positions(backend.read("s")) == list(range(600, 701))

    @pytest.mark.parametrize("reverse", [False, True])
    def test_longer_bodies_than_max_body_are_left_out(
        self, backend: Backend, *, reverse: bool
    ) -> None:
        long = [entry(number, body=b"x" * size) for number, size in enumerate([0, 10, 11, 9], 1)]
        status(backend, Append("s", long))
        direction = -1 if reverse else 1
        assert _bodies(backend, 10, reverse=reverse) == [0, 10, None, 9][::direction]
        assert _bodies(backend, 0, reverse=reverse) == [0, None, None, None][::direction]
        assert [one.header for one in backend.read("s", max_body=0)] == [e.header for e in long]

    def test_max_body_counts_bytes_and_not_characters(self, backend: Backend) -> None:
        status(backend, Append("s", [entry(1, body="ééé".encode())]))
        assert _bodies(backend, 6, reverse=False) == [6]
        assert _bodies(backend, 5, reverse=False) == [None]

    def test_a_long_stream_is_read_whole_in_both_directions(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 1500))
        assert list(backend.read("s")) == entries(1, 1500)
        assert positions(backend.read("s", reverse=True)) == list(range(1500, 0, -1))
        assert positions(backend.read("s", after=3, limit=1000)) == list(range(4, 1004))

    def test_long_bodies_are_read_whole_however_many(self, backend: Backend) -> None:
        long = [entry(number, body=bytes([number]) * 600_000) for number in range(1, 8)]
        status(backend, Append("s", long))
        assert list(backend.read("s")) == long
        assert list(backend.read("s", reverse=True, limit=5)) == long[:1:-1]

    def test_a_reader_that_pauses_keeps_nobody_waiting(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 600))
        reader = backend.read("s")
        assert next(reader) == entry(1)
        assert status(backend, appended("s", 601, 601)) == ["stored"]
        backend.drop("other", before=1)
        assert positions(reader)[:599] == list(range(2, 601))

    def test_a_reader_that_pauses_meets_all_that_was_not_dropped_meanwhile(
        self, backend: Backend
    ) -> None:
        status(backend, appended("s", 1, 1500))
        reader = backend.read("s")
        assert next(reader) == entry(1)
        backend.drop("s", before=700)
        found = positions(reader)
        assert found == sorted(set(found))
        assert found[-801:] == list(range(700, 1501))

    def test_a_listing_that_pauses_gives_each_stream_once(self, backend: Backend) -> None:
        there = [f"s{number:04}" for number in range(700)]
        status(backend, *(appended(name, 1, 1) for name in there))
        listing = backend.streams()
        found = [next(listing).stream]
        status(backend, *(appended(f"r{number}", 1, 1) for number in range(9)))
        assert status(backend, appended("s0001", 2, 2)) == ["stored"], "nobody is kept waiting"
        found += [head.stream for head in listing]
        assert found == there

    def test_streams_are_listed_in_code_point_order(self, backend: Backend) -> None:
        wanted = ["", "a", "B", "é", "\ud7ff", "\ue000", "\uffff", "\U00010000", "🦉", "ab", "a b"]
        wanted.remove("")
        status(backend, *(appended(name, 1, 1) for name in reversed(wanted)))
        assert names(backend) == sorted(wanted)

    def test_a_prefix_may_itself_be_a_name(self, backend: Backend) -> None:
        for name in ["a", "a/1", "a/2", "a0", "b", "a/🦉", "a%", "a_"]:
            status(backend, appended(name, 1, 1))
        assert names(backend, prefix="a/") == ["a/1", "a/2", "a/🦉"]
        assert names(backend, prefix="a") == ["a", "a%", "a/1", "a/2", "a/🦉", "a0", "a_"]
        assert names(backend, prefix="a%") == ["a%"]
        assert names(backend, prefix="a_") == ["a_"]
        assert names(backend, prefix="c") == []

    def test_a_prefix_is_compared_by_code_points_and_is_no_pattern(self, backend: Backend) -> None:
        status(backend, *(appended(name, 1, 1) for name in ALIKE))
        for prefix in ALIKE:
            wanted = sorted(name for name in ALIKE if name.startswith(prefix))
            assert names(backend, prefix=prefix) == wanted
            assert names(backend, after=prefix) == sorted(name for name in ALIKE if name > prefix)

    def test_a_prefix_of_last_code_points_is_no_trap(self, backend: Backend) -> None:
        for name in ["\U0010ffff", "\U0010ffff\U0010ffff", "\ud7ff", "\ue000"]:
            status(backend, appended(name, 1, 1))
        assert names(backend, prefix="\U0010ffff") == ["\U0010ffff", "\U0010ffff\U0010ffff"]
        assert names(backend, prefix="\ud7ff") == ["\ud7ff"]

    def test_after_excludes_names_and_works_with_a_prefix(self, backend: Backend) -> None:
        for name in ["a", "a\x01", "aa", "ab", "b"]:
            status(backend, appended(name, 1, 1))
        assert names(backend, after="a") == ["a\x01", "aa", "ab", "b"]
        assert names(backend, after="aa", prefix="a") == ["ab"]
        assert names(backend, after="A", prefix="b") == ["b"]
        assert names(backend, after="c", prefix="a") == []
        assert names(backend, after="b") == []

    def test_labels_filter_and_all_of_them_must_be_there(self, backend: Backend) -> None:
        status(backend, appended("1", 1, 1, "x"), appended("2", 1, 1, "x", "y"))
        status(backend, appended("3", 1, 1, "y"), appended("4", 1, 1))
        assert [head.stream for head in backend.streams(labels=["x"])] == ["1", "2"]
        assert [head.stream for head in backend.streams(labels=["y", "x"])] == ["2"]
        assert [head.stream for head in backend.streams(labels=["x", "x"])] == ["1", "2"]
        assert [head.stream for head in backend.streams(labels=["z"])] == []
        assert [head.stream for head in backend.streams(labels=["x", "z"])] == []
        assert [head.stream for head in backend.streams(labels=["y"], after="2")] == ["3"]
        assert [head.stream for head in backend.streams(labels=["y"], prefix="2")] == ["2"]

    def test_labels_that_differ_little_are_different_labels(self, backend: Backend) -> None:
        bearing = {f"{number:02}": label for number, label in enumerate(ALIKE)}
        status(backend, *(appended(name, 1, 1, label) for name, label in bearing.items()))
        status(backend, appended("two", 1, 1, "a", "A"))
        for name, label in bearing.items():
            both = ["two"] if label in {"a", "A"} else []
            assert [head.stream for head in backend.streams(labels=[label])] == [name, *both]
        assert [head.labels for head in backend.streams(labels=["a", "A"])] == [{"a", "A"}]

    def test_none_of_the_labels_without_may_be_there(self, backend: Backend) -> None:
        status(backend, appended("1", 1, 1, "x"), appended("2", 1, 1, "x", "y"))
        status(backend, appended("3", 1, 1, DELETED), appended("4", 1, 1))
        status(backend, appended("5", 1, 1, DELETED, "x"), appended("6", 1, 1, DELETED))

        def left(*without: str, **chosen: Any) -> list[str]:
            return [head.stream for head in backend.streams(without=without, **chosen)]

        assert left(DELETED) == ["1", "2", "4"]
        assert left("x") == ["3", "4", "6"]
        assert left("y", DELETED) == ["1", "4"]
        assert left(DELETED, labels=["x"]) == ["1", "2"]
        assert left("y", labels=["x"]) == ["1", "5"]
        assert left(DELETED, labels=[DELETED]) == []
        assert left(DELETED, prefix="4") == ["4"]
        assert left(DELETED, prefix="3") == []
        assert left(DELETED, after="1", limit=2) == ["2", "4"]
        assert left("unknown") == ["1", "2", "3", "4", "5", "6"]

    def test_a_label_that_comes_or_goes_counts_at_once(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 1, DELETED), appended("t", 1, 1))
        assert [head.stream for head in backend.streams(without=[DELETED])] == ["t"]
        status(backend, appended("s", 2, 2), appended("t", 2, 2, DELETED))
        assert [head.stream for head in backend.streams(without=[DELETED])] == ["s"]
        assert [head.stream for head in backend.streams()] == ["s", "t"]

    def test_many_that_are_left_out_do_not_end_a_listing(self, backend: Backend) -> None:
        gone = [appended(f"a{number:04}", 1, 1, DELETED) for number in range(600)]
        live = [appended(f"b{number:04}", 1, 1) for number in range(300)]
        status(backend, *live, *gone)
        found = [head.stream for head in backend.streams(without=[DELETED])]
        assert found == [one.stream for one in live]
        assert list(backend.streams(prefix="a", without=[DELETED])) == []
        assert len(list(backend.streams())) == 900  # noqa: PLR2004

    def test_a_changed_label_moves_a_stream_between_listings(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 1, "x"))
        assert [head.labels for head in backend.streams(labels=["x"])] == [{"x"}]
        status(backend, appended("s", 2, 2, "y"))
        assert list(backend.streams(labels=["x"])) == []
        assert [head.labels for head in backend.streams(labels=["y"])] == [{"y"}]

    def test_listing_ends_at_the_limit_and_goes_on_after_it(self, backend: Backend) -> None:
        everything = [f"{number:04}" for number in range(700)]
        status(backend, *(appended(name, 1, 1, f"odd{int(name) % 2}") for name in everything))
        assert names(backend) == everything
        assert [head.stream for head in backend.streams(limit=3)] == everything[:3]
        assert [head.stream for head in backend.streams(limit=3, after="0002")] == everything[3:6]
        assert list(backend.streams(limit=0)) == []
        found = backend.streams(labels=["odd1"], limit=340)
        assert [head.stream for head in found] == everything[1:680:2]

    def test_a_store_says_who_it_is_and_what_it_keeps(self, backend: Backend) -> None:
        assert backend.name
        assert isinstance(backend.capabilities, frozenset)
        promised = guarantees_of(backend)
        assert promised.survives in get_args(Survives)
        assert promised.shared_by in get_args(SharedBy)
        assert promised.atomic in get_args(Atomic)
        assert promised.detail
        assert promised.capabilities == tuple(sorted(backend.capabilities))
        assert all(one.name and one.found for one in promised.checks)
        assert all(one.advice for one in promised.checks if one.verdict == "weak"), "say what to do"
        assert msgspec.json.decode(msgspec.json.encode(promised.as_data())) == promised.as_data()
