"""Contract tests of `Backend.read`, `Backend.streams` and the declared guarantees."""

from typing import Any, get_args

import msgspec
import pytest

from perdure.backends.guarantees import Atomic, SharedBy, Survives, guarantees_of
from perdure.backends.protocol import DELETED, HEADER_MAX, Append, Backend, Entry
from perdure.testing.contract.samples import (
    HOSTILE_BYTES,
    SIMILAR_TEXTS,
    append_all,
    append_of,
    digest,
    entries,
    entry,
    names,
    positions,
    start_of,
)


def _bodies(backend: Backend, max_body: int, *, reverse: bool) -> list[int | None]:
    stored = backend.read("s", max_body=max_body, reverse=reverse)
    return [None if entry.body is None else len(entry.body) for entry in stored]


class ReadContract:
    """Reads, listings, and the guarantees that a store declares."""

    def test_an_unknown_stream_is_empty(self, backend: Backend) -> None:
        assert list(backend.read("unknown")) == []
        assert list(backend.read("unknown", reverse=True)) == []
        assert list(backend.streams()) == []

    def test_reverse_reads_from_the_end(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 4))
        assert list(backend.read("s", reverse=True)) == entries(1, 4)[::-1]

    def test_after_excludes_in_both_directions(self, backend: Backend) -> None:
        append_all(backend, start_of("s", 3, 7))
        assert positions(backend.read("s", after=5)) == [6, 7]
        assert positions(backend.read("s", after=7)) == []
        assert positions(backend.read("s", after=99)) == []
        assert positions(backend.read("s", after=1)) == [3, 4, 5, 6, 7]
        assert positions(backend.read("s", after=5, reverse=True)) == [4, 3]
        assert positions(backend.read("s", after=3, reverse=True)) == []
        assert positions(backend.read("s", after=1, reverse=True)) == []
        assert positions(backend.read("s", after=99, reverse=True)) == [7, 6, 5, 4, 3]

    def test_limit_ends_reading_in_both_directions(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 5))
        assert positions(backend.read("s", limit=2)) == [1, 2]
        assert positions(backend.read("s", limit=0)) == []
        assert positions(backend.read("s", limit=9)) == [1, 2, 3, 4, 5]
        assert positions(backend.read("s", after=2, limit=2)) == [3, 4]
        assert positions(backend.read("s", limit=2, reverse=True)) == [5, 4]
        assert positions(backend.read("s", after=4, limit=2, reverse=True)) == [3, 2]

    def test_limit_counts_entries_and_not_positions(self, backend: Backend) -> None:
        append_all(backend, start_of("branch", 5001, 5004), append_of("s", 1, 700))
        backend.drop("s", before=600)
        assert positions(backend.read("branch", limit=2)) == [5001, 5002]
        assert positions(backend.read("branch", after=7, limit=2)) == [5001, 5002]
        assert positions(backend.read("branch", limit=9, reverse=True)) == [5004, 5003, 5002, 5001]
        assert positions(backend.read("s", limit=1)) == [600]
        assert positions(backend.read("s")) == list(range(600, 701))

    @pytest.mark.parametrize("reverse", [False, True])
    def test_bodies_longer_than_max_body_are_omitted(
        self, backend: Backend, *, reverse: bool
    ) -> None:
        long = [entry(number, body=b"x" * size) for number, size in enumerate([0, 10, 11, 9], 1)]
        append_all(backend, Append("s", long))
        direction = -1 if reverse else 1
        assert _bodies(backend, 10, reverse=reverse) == [0, 10, None, 9][::direction]
        assert _bodies(backend, 0, reverse=reverse) == [0, None, None, None][::direction]
        assert [read.header for read in backend.read("s", max_body=0)] == [e.header for e in long]

    def test_max_body_counts_bytes_and_not_characters(self, backend: Backend) -> None:
        append_all(backend, Append("s", [entry(1, body="ééé".encode())]))
        assert _bodies(backend, 6, reverse=False) == [6]
        assert _bodies(backend, 5, reverse=False) == [None]

    def test_a_long_stream_is_read_completely_in_both_directions(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 1500))
        assert list(backend.read("s")) == entries(1, 1500)
        assert positions(backend.read("s", reverse=True)) == list(range(1500, 0, -1))
        assert positions(backend.read("s", after=3, limit=1000)) == list(range(4, 1004))

    def test_many_long_bodies_are_read_completely(self, backend: Backend) -> None:
        long = [entry(number, body=bytes([number]) * 600_000) for number in range(1, 8)]
        append_all(backend, Append("s", long))
        assert list(backend.read("s")) == long
        assert list(backend.read("s", reverse=True, limit=5)) == long[:1:-1]

    def test_a_paused_reader_does_not_block_writers(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 600))
        reader = backend.read("s")
        assert next(reader) == entry(1)
        assert append_all(backend, append_of("s", 601, 601)) == ["stored"]
        backend.drop("other", before=1)
        assert positions(reader)[:599] == list(range(2, 601))

    def test_a_paused_reader_reads_all_entries_that_were_not_dropped(
        self, backend: Backend
    ) -> None:
        append_all(backend, append_of("s", 1, 1500))
        reader = backend.read("s")
        assert next(reader) == entry(1)
        backend.drop("s", before=700)
        seen = positions(reader)
        assert seen == sorted(set(seen))
        assert seen[-801:] == list(range(700, 1501))

    def test_a_paused_listing_returns_each_stream_once(self, backend: Backend) -> None:
        existing = [f"s{number:04}" for number in range(700)]
        append_all(backend, *(append_of(name, 1, 1) for name in existing))
        listing = backend.streams()
        listed = [next(listing).stream]
        append_all(backend, *(append_of(f"r{number}", 1, 1) for number in range(9)))
        assert append_all(backend, append_of("s0001", 2, 2)) == ["stored"], (
            "a paused listing blocks no writer"
        )
        listed += [head.stream for head in listing]
        assert listed == existing

    def test_streams_are_listed_in_code_point_order(self, backend: Backend) -> None:
        high = ["\ud7ff", "\ue000", "\uffff", "\U00010000", "🦉"]
        expected = ["a", "B", "é", *high, "ab", "a b"]
        append_all(backend, *(append_of(name, 1, 1) for name in reversed(expected)))
        assert names(backend) == sorted(expected)

    def test_a_prefix_can_itself_be_a_name(self, backend: Backend) -> None:
        for name in ["a", "a/1", "a/2", "a0", "b", "a/🦉", "a%", "a_"]:
            append_all(backend, append_of(name, 1, 1))
        assert names(backend, prefix="a/") == ["a/1", "a/2", "a/🦉"]
        assert names(backend, prefix="a") == ["a", "a%", "a/1", "a/2", "a/🦉", "a0", "a_"]
        assert names(backend, prefix="a%") == ["a%"]
        assert names(backend, prefix="a_") == ["a_"]
        assert names(backend, prefix="c") == []

    def test_a_prefix_is_compared_by_code_points_and_is_not_a_pattern(
        self, backend: Backend
    ) -> None:
        append_all(backend, *(append_of(name, 1, 1) for name in SIMILAR_TEXTS))
        for prefix in SIMILAR_TEXTS:
            expected = sorted(name for name in SIMILAR_TEXTS if name.startswith(prefix))
            assert names(backend, prefix=prefix) == expected
            assert names(backend, after=prefix) == sorted(
                name for name in SIMILAR_TEXTS if name > prefix
            )

    def test_a_prefix_can_end_with_the_highest_code_points(self, backend: Backend) -> None:
        for name in ["\U0010ffff", "\U0010ffff\U0010ffff", "\ud7ff", "\ue000"]:
            append_all(backend, append_of(name, 1, 1))
        assert names(backend, prefix="\U0010ffff") == ["\U0010ffff", "\U0010ffff\U0010ffff"]
        assert names(backend, prefix="\ud7ff") == ["\ud7ff"]

    def test_after_excludes_names_and_combines_with_a_prefix(self, backend: Backend) -> None:
        for name in ["a", "a\x01", "aa", "ab", "b"]:
            append_all(backend, append_of(name, 1, 1))
        assert names(backend, after="a") == ["a\x01", "aa", "ab", "b"]
        assert names(backend, after="aa", prefix="a") == ["ab"]
        assert names(backend, after="A", prefix="b") == ["b"]
        assert names(backend, after="c", prefix="a") == []
        assert names(backend, after="b") == []

    def test_a_listed_head_has_the_header_of_the_last_entry(self, backend: Backend) -> None:
        headers = [*HOSTILE_BYTES, b"x" * HEADER_MAX]
        for position in (1, 2):  # Stores may treat streams that they wrote to before differently.
            appends = []
            for number, header in enumerate(headers):
                last = entry(position)._replace(header=header if position > 1 else b"first")
                before = digest(entry(1)._replace(header=b"first")) if position > 1 else ""
                appends.append(Append(f"s{number:03}", [last], frozenset({"l"}), before))
            assert {*append_all(backend, *appends)} == {"stored"}
        assert [head.header for head in backend.streams(headers=True)] == headers
        assert {head.header for head in backend.streams()} == {b""}
        assert [head.header for head in backend.streams(labels=["l"], headers=True)] == headers
        assert [
            head.header for head in backend.streams(without=["deleted"], headers=True)
        ] == headers
        backend.drop("s000", before=2)
        append_all(backend, append_of("s000", 3, 5)._replace(previous=digest(Entry(2, b"", b""))))
        (head, *_) = backend.streams(headers=True)
        assert (head.header, head.digest) == (entry(5).header, digest(entry(5)))

    def test_a_listing_by_labels_requires_all_of_them(self, backend: Backend) -> None:
        append_all(backend, append_of("1", 1, 1, "x"), append_of("2", 1, 1, "x", "y"))
        append_all(backend, append_of("3", 1, 1, "y"), append_of("4", 1, 1))
        assert names(backend, labels=["x"]) == ["1", "2"]
        assert names(backend, labels=["y", "x"]) == ["2"]
        assert names(backend, labels=["x", "x"]) == ["1", "2"]
        assert names(backend, labels=["z"]) == []
        assert names(backend, labels=["x", "z"]) == []
        assert names(backend, labels=["y"], after="2") == ["3"]
        assert names(backend, labels=["y"], prefix="2") == ["2"]

    def test_similar_labels_are_different_labels(self, backend: Backend) -> None:
        labels = {f"{number:02}": label for number, label in enumerate(SIMILAR_TEXTS)}
        append_all(backend, *(append_of(name, 1, 1, label) for name, label in labels.items()))
        append_all(backend, append_of("two", 1, 1, "a", "A"))
        for name, label in labels.items():
            both = ["two"] if label in {"a", "A"} else []
            assert names(backend, labels=[label]) == [name, *both]
        assert [head.labels for head in backend.streams(labels=["a", "A"])] == [{"a", "A"}]

    def test_a_listing_without_labels_excludes_streams_that_have_any_of_them(
        self, backend: Backend
    ) -> None:
        append_all(backend, append_of("1", 1, 1, "x"), append_of("2", 1, 1, "x", "y"))
        append_all(backend, append_of("3", 1, 1, DELETED), append_of("4", 1, 1))
        append_all(backend, append_of("5", 1, 1, DELETED, "x"), append_of("6", 1, 1, DELETED))

        def listed(*without: str, **filters: Any) -> list[str]:
            return names(backend, without=without, **filters)

        assert listed(DELETED) == ["1", "2", "4"]
        assert listed("x") == ["3", "4", "6"]
        assert listed("y", DELETED) == ["1", "4"]
        assert listed(DELETED, labels=["x"]) == ["1", "2"]
        assert listed("y", labels=["x"]) == ["1", "5"]
        assert listed(DELETED, labels=[DELETED]) == []
        assert listed(DELETED, prefix="4") == ["4"]
        assert listed(DELETED, prefix="3") == []
        assert listed(DELETED, after="1", limit=2) == ["2", "4"]
        assert listed("unknown") == ["1", "2", "3", "4", "5", "6"]

    def test_a_changed_label_changes_a_listing_without_it_at_once(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 1, DELETED), append_of("t", 1, 1))
        assert names(backend, without=[DELETED]) == ["t"]
        append_all(backend, append_of("s", 2, 2), append_of("t", 2, 2, DELETED))
        assert names(backend, without=[DELETED]) == ["s"]
        assert names(backend) == ["s", "t"]

    def test_many_excluded_streams_do_not_end_a_listing(self, backend: Backend) -> None:
        deleted = [append_of(f"a{number:04}", 1, 1, DELETED) for number in range(600)]
        live = [append_of(f"b{number:04}", 1, 1) for number in range(300)]
        append_all(backend, *live, *deleted)
        listed = names(backend, without=[DELETED])
        assert listed == [append.stream for append in live]
        assert list(backend.streams(prefix="a", without=[DELETED])) == []
        assert len(list(backend.streams())) == 900

    def test_a_changed_label_moves_a_stream_between_listings(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 1, "x"))
        assert [head.labels for head in backend.streams(labels=["x"])] == [{"x"}]
        append_all(backend, append_of("s", 2, 2, "y"))
        assert list(backend.streams(labels=["x"])) == []
        assert [head.labels for head in backend.streams(labels=["y"])] == [{"y"}]

    def test_a_listing_ends_at_its_limit_and_continues_after_it(self, backend: Backend) -> None:
        everything = [f"{number:04}" for number in range(700)]
        append_all(backend, *(append_of(name, 1, 1, f"odd{int(name) % 2}") for name in everything))
        assert names(backend) == everything
        assert names(backend, limit=3) == everything[:3]
        assert names(backend, limit=3, after="0002") == everything[3:6]
        assert list(backend.streams(limit=0)) == []
        odd = backend.streams(labels=["odd1"], limit=340)
        assert [head.stream for head in odd] == everything[1:680:2]

    def test_a_store_declares_its_name_and_guarantees(self, backend: Backend) -> None:
        assert backend.name
        assert isinstance(backend.capabilities, frozenset)
        declared = guarantees_of(backend)
        assert declared.survives in get_args(Survives)
        assert declared.shared_by in get_args(SharedBy)
        assert declared.atomic in get_args(Atomic)
        assert declared.detail
        assert declared.capabilities == tuple(sorted(backend.capabilities))
        assert all(check.name and check.found for check in declared.checks)
        assert all(check.advice for check in declared.checks if check.verdict == "weak")
        assert msgspec.json.decode(msgspec.json.encode(declared.as_data())) == declared.as_data()
