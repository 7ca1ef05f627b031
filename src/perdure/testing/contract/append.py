"""Contract tests of `Backend.append` and `Backend.drop`."""

from typing import Any

import pytest

from perdure.backends.fields import FieldOrder
from perdure.backends.protocol import (
    HEADER_MAX,
    LABEL_BYTES_MAX,
    LABELS_MAX,
    ORDER,
    RECENT,
    REMOVE,
    Append,
    Backend,
    Entry,
    Head,
    require_order,
    require_recent,
    require_remove,
)
from perdure.errors import UsageError
from perdure.testing.contract.samples import (
    HOSTILE_BYTES,
    HOSTILE_NAMES,
    SIMILAR_TEXTS,
    append_all,
    append_of,
    digest,
    entries,
    entry,
    names,
    positions,
    skip_unless_declared,
    start_of,
)


def _labels(backend: Backend, stream: str) -> frozenset[str]:
    return next(head.labels for head in backend.streams() if head.stream == stream)


INVALID = {
    "stream twice": [append_of("s", 1, 1), append_of("s", 2, 2)],
    "no entries": [Append("s", [])],
    "a hole": [Append("s", [entry(1), entry(3)])],
    "backwards": [Append("s", [entry(2), entry(1)])],
    "position 0": [Append("s", [entry(0)])],
    "no body": [Append("s", [Entry(1, b"{}", None)])],
    "header too long": [Append("s", [Entry(1, b"x" * (HEADER_MAX + 1), b"")])],
    "no name": [Append("", [entry(1)])],
    "a snapshot after the last entry": [append_of("s", 1, 2)._replace(snapshot=3)],
    "a snapshot before the first position": [append_of("s", 1, 2)._replace(snapshot=-1)],
    "an entry before the first": [Append("s", [entry(1)], previous=digest(entry(1)))],
    "too many labels": [append_of("s", 1, 1, *(str(n) for n in range(LABELS_MAX + 1)))],
    "label too long": [append_of("s", 1, 1, "x" * (LABEL_BYTES_MAX + 1))],
    "label too long in UTF-8": [append_of("s", 1, 1, "ü" * (LABEL_BYTES_MAX // 2 + 1))],
}


class AppendContract:
    """Outcomes of appends, and the entries stored after them."""

    def test_appended_entries_are_read_back_in_order(self, backend: Backend) -> None:
        assert append_all(backend, append_of("s", 1, 3)) == ["stored"]
        assert list(backend.read("s")) == entries(1, 3)

    def test_the_next_entry_is_stored(self, backend: Backend) -> None:
        assert append_all(backend, append_of("s", 1, 2)) == ["stored"]
        assert append_all(backend, append_of("s", 3, 4)) == ["stored"]
        assert list(backend.read("s")) == entries(1, 4)

    def test_a_stream_can_begin_at_any_position_if_the_append_says_so(
        self, backend: Backend
    ) -> None:
        assert append_all(backend, append_of("branch", 41, 42)) == ["refused"], (
            "the append links to an earlier entry"
        )
        assert list(backend.read("branch")) == []
        assert names(backend) == []
        assert append_all(backend, start_of("branch", 41, 42, "l")) == ["stored"]
        assert list(backend.read("branch")) == entries(41, 42)
        assert _labels(backend, "branch") == {"l"}
        assert append_all(backend, append_of("branch", 43, 43)) == ["stored"]

    @pytest.mark.parametrize("first", [1, 2**31, 2**53 + 1, 2**62 + 1])
    def test_a_stream_can_begin_at_the_first_position_or_far_beyond(
        self, backend: Backend, first: int
    ) -> None:
        assert append_all(backend, start_of("s", first, first + 1)) == ["stored"]
        assert append_all(backend, append_of("s", first + 2, first + 2)) == ["stored"]
        assert list(backend.read("s", after=first)) == entries(first + 1, first + 2)
        assert [head.position for head in backend.streams()] == [first + 2]

    @pytest.mark.parametrize("first", [3, 4, 9], ids=["next", "a gap", "a long gap"])
    def test_beginning_a_stream_that_has_earlier_entries_conflicts_and_changes_nothing(
        self, backend: Backend, first: int
    ) -> None:
        append_all(backend, append_of("s", 1, 2, "old"))
        outcomes = append_all(
            backend, start_of("s", first, first, "new"), start_of("free", first, first)
        )
        assert outcomes == ["conflict", "stored"]
        assert list(backend.read("s")) == entries(1, 2)
        assert _labels(backend, "s") == {"old"}
        assert append_all(backend, append_of("s", 3, 3)) == ["stored"], (
            "a plain append continues the stream"
        )

    def test_beginning_a_stream_twice_conflicts_at_every_position(self, backend: Backend) -> None:
        append_all(backend, start_of("s", 5, 7, "old"))
        for first in (1, 4, 5, 7, 8):
            other = append_of("s", first, first + 1, "new", mark="other")._replace(previous="")
            assert append_all(backend, other) == ["conflict"]
        assert append_all(backend, append_of("s", 4, 4)) == ["conflict"]
        backend.drop("s", before=7)
        assert append_all(backend, start_of("s", 5, 5)) == ["conflict"], "it was dropped"
        assert append_all(backend, start_of("s", 8, 8)) == ["conflict"], (
            "the last entry is still stored"
        )
        assert list(backend.read("s")) == entries(7, 7)
        assert _labels(backend, "s") == {"old"}

    def test_resending_the_beginning_of_a_stream_is_stored(self, backend: Backend) -> None:
        append_all(backend, start_of("s", 41, 42, "first"))
        assert append_all(backend, start_of("s", 41, 42, "second")) == ["stored"]
        assert _labels(backend, "s") == {"first"}
        append_all(backend, append_of("s", 43, 44, "third"))
        assert append_all(backend, start_of("s", 41, 42, "second")) == ["stored"], (
            "more entries were appended since"
        )
        assert list(backend.read("s")) == entries(41, 44)
        assert _labels(backend, "s") == {"third"}

    def test_a_gap_is_refused_and_changes_nothing(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 2))
        (outcome,) = backend.append([append_of("s", 4, 5, "new")])
        assert outcome.status == "refused"
        assert outcome.reason
        assert list(backend.read("s")) == entries(1, 2)
        assert _labels(backend, "s") == frozenset()
        assert append_all(backend, append_of("s", 3, 3)) == ["stored"]

    @pytest.mark.parametrize("streams", [1, 2, 8], ids=["alone", "a few", "many at once"])
    def test_an_append_that_links_to_another_entry_conflicts_and_changes_nothing(
        self, backend: Backend, streams: int
    ) -> None:
        others = [f"other {number}" for number in range(1, streams)]
        for position in (1, 2):  # Stores may treat streams that they wrote to before differently.
            append_all(backend, *(append_of(s, position, position, "l") for s in ["s", *others]))
        stale = append_of("s", 3, 4, "l")._replace(previous=digest(entry(2, "another past")))
        outcomes = append_all(backend, stale, *(append_of(other, 3, 3, "l") for other in others))
        assert outcomes == ["conflict", *["stored"] * len(others)], (
            "its position is the next one, but it continues another history"
        )
        assert list(backend.read("s")) == entries(1, 2)
        (head,) = (head for head in backend.streams() if head.stream == "s")
        assert head[:4] == Head("s", 2, digest(entry(2)), frozenset({"l"}))[:4]
        assert all(list(backend.read(other)) == entries(1, 3) for other in others)
        assert append_all(backend, append_of("s", 3, 4, "new")) == ["stored"]

    def test_other_labels_do_not_hide_that_an_append_links_to_another_entry(
        self, backend: Backend
    ) -> None:
        append_all(backend, append_of("s", 1, 2, "old"))
        other = digest(entry(2, "another past"))
        for labels in ((), ("old",), ("new",)):
            stale = append_of("s", 3, 3, *labels)._replace(previous=other)
            assert append_all(backend, stale) == ["conflict"]
        assert list(backend.read("s")) == entries(1, 2)
        assert _labels(backend, "s") == {"old"}

    def test_a_resend_that_links_to_another_entry_conflicts_while_that_one_is_stored(
        self, backend: Backend
    ) -> None:
        append_all(backend, append_of("s", 1, 4, "old"))
        other = digest(entry(2, "another past"))
        for last in (3, 4, 5):
            resend = append_of("s", 3, last, "new")
            assert append_all(backend, resend._replace(previous=other)) == ["conflict"]
            assert append_all(backend, resend._replace(previous="")) == ["conflict"], (
                "they are not the first of their stream"
            )
        assert list(backend.read("s")) == entries(1, 4)
        assert _labels(backend, "s") == {"old"}
        backend.drop("s", before=3)
        assert append_all(backend, append_of("s", 3, 4)) == ["stored"], "nothing is left to compare"

    def test_a_stream_that_was_put_back_and_continued_refuses_its_old_successor(
        self, backend: Backend
    ) -> None:
        skip_unless_declared(backend, REMOVE)
        append_all(backend, append_of("s", 1, 5))
        assert require_remove(backend).remove("s", digest=digest(entry(5)))
        assert append_all(backend, append_of("s", 6, 6)) == ["refused"]
        append_all(backend, append_of("s", 1, 3))
        assert append_all(backend, append_of("s", 6, 6)) == ["refused"]
        append_all(backend, append_of("s", 4, 5, mark="new"))
        assert append_all(backend, append_of("s", 6, 6)) == ["conflict"]
        assert list(backend.read("s")) == [*entries(1, 3), *entries(4, 5, "new")]
        continued = append_of("s", 6, 6)._replace(previous=digest(entry(5, "new")))
        assert append_all(backend, continued) == ["stored"]

    def test_a_different_entry_at_a_stored_position_conflicts_and_changes_nothing(
        self, backend: Backend
    ) -> None:
        append_all(backend, append_of("s", 1, 3, "old"))
        assert append_all(backend, append_of("s", 3, 3, "new", mark="other")) == ["conflict"]
        assert append_all(backend, append_of("s", 1, 4, "new", mark="other")) == ["conflict"]
        assert list(backend.read("s")) == entries(1, 3)
        assert _labels(backend, "s") == {"old"}

    def test_a_batch_that_differs_only_in_a_later_entry_conflicts(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 3))
        changed = [*entries(1, 2), entry(3, "other"), entry(4)]
        assert append_all(backend, Append("s", changed)) == ["conflict"]
        assert list(backend.read("s")) == entries(1, 3)

    @pytest.mark.parametrize("other", [1, 2, 3])
    def test_a_resend_with_one_different_entry_conflicts_and_changes_nothing(
        self, backend: Backend, other: int
    ) -> None:
        append_all(backend, append_of("s", 1, 4, "old"))
        changed = entries(1, 3)
        changed[other - 1] = entry(other, "other")
        assert append_all(backend, Append("s", changed, frozenset({"new"}))) == ["conflict"]
        assert list(backend.read("s")) == entries(1, 4)
        assert _labels(backend, "s") == {"old"}
        assert append_all(backend, append_of("s", 1, 3)) == ["stored"]

    def test_a_resend_is_stored_and_adds_nothing(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 3, "first"))
        assert append_all(backend, append_of("s", 1, 3, "second")) == ["stored"]
        assert append_all(backend, append_of("s", 2, 2, "second")) == ["stored"]
        assert list(backend.read("s")) == entries(1, 3)
        assert _labels(backend, "s") == {"first"}, "a resend leaves the labels unchanged"

    def test_a_resend_with_more_entries_adds_the_missing_ones(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 2, "first"))
        assert append_all(backend, append_of("s", 1, 4, "second")) == ["stored"]
        assert list(backend.read("s")) == entries(1, 4)
        assert _labels(backend, "s") == {"second"}
        assert append_all(backend, append_of("s", 4, 5)) == ["stored"]
        assert list(backend.read("s")) == entries(1, 5)

    @pytest.mark.parametrize("streams", [1, 2, 8], ids=["alone", "a few", "many at once"])
    def test_a_head_has_the_snapshot_of_its_newest_append(
        self, backend: Backend, streams: int
    ) -> None:
        names = [f"s{number}" for number in range(streams)]
        for position, snapshot in ((1, 0), (2, 2), (3, 2), (4, 3), (5, 0)):
            labels = ["l"] if position > 3 else []
            appends = [append_of(name, position, position, *labels) for name in names]
            appends = [append._replace(snapshot=snapshot) for append in appends]
            assert append_all(backend, *appends) == ["stored"] * streams
            heads = backend.streams()
            assert [(head.position, head.snapshot) for head in heads] == [
                (position, snapshot) for _ in names
            ]

    def test_every_listing_has_the_snapshots(self, backend: Backend) -> None:
        for number in (1, 2, 3):
            append = append_of(f"s{number}", 1, 3, "l", "kind\tsx")
            append_all(backend, append._replace(snapshot=number))
        filters: list[dict[str, Any]] = [{}, {"labels": ["l"]}, {"without": ["deleted"]}]
        for options in [*filters, *({**one, "headers": True} for one in filters)]:
            assert [head.snapshot for head in backend.streams(**options)] == [1, 2, 3]
            if RECENT in backend.capabilities:
                recent = require_recent(backend).recent(**options)
                assert [head.snapshot for head in recent] == [3, 2, 1]
            if ORDER in backend.capabilities:
                ordered = require_order(backend).ordered(FieldOrder("kind"), **options)
                assert [head.snapshot for head in ordered] == [1, 2, 3]

    def test_a_resend_changes_the_snapshot_only_if_it_adds_entries(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 3)._replace(snapshot=2))
        append_all(backend, append_of("s", 1, 3)._replace(snapshot=3))
        assert [head.snapshot for head in backend.streams()] == [2]
        append_all(backend, append_of("s", 3, 4)._replace(snapshot=4))
        assert [head.snapshot for head in backend.streams()] == [4]

    def test_a_conflict_and_a_drop_leave_the_snapshot_unchanged(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 3)._replace(snapshot=3))
        append_all(backend, append_of("s", 3, 3, mark="other")._replace(snapshot=1))
        backend.drop("s", before=3)
        assert [head.snapshot for head in backend.streams()] == [3]

    def test_the_head_is_the_last_entry(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 3))
        (head,) = backend.streams()
        assert (head.stream, head.position, head.digest) == ("s", 3, digest(entry(3)))
        append_all(backend, append_of("s", 4, 4))
        (head,) = backend.streams()
        assert (head.position, head.digest) == (4, digest(entry(4)))

    def test_labels_are_those_of_the_latest_append(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 1, "a", "b"))
        assert _labels(backend, "s") == {"a", "b"}
        append_all(backend, append_of("s", 2, 2, "b", "ü"))
        assert _labels(backend, "s") == {"b", "ü"}
        append_all(backend, append_of("s", 3, 3))
        assert _labels(backend, "s") == frozenset()

    def test_a_conflict_does_not_affect_other_streams_of_the_call(self, backend: Backend) -> None:
        append_all(backend, append_of("taken", 1, 1))
        outcomes = append_all(
            backend,
            append_of("a", 1, 2),
            append_of("taken", 1, 1, mark="other"),
            append_of("b", 1, 1),
            append_of("a gap", 7, 7, "l"),
            start_of("a branch", 7, 7),
        )
        assert outcomes == ["stored", "conflict", "stored", "refused", "stored"]
        assert names(backend) == ["a", "a branch", "b", "taken"]
        assert list(backend.read("a")) == entries(1, 2)
        assert list(backend.read("b")) == entries(1, 1)
        assert list(backend.read("taken")) == entries(1, 1)

    def test_a_call_without_appends_does_nothing(self, backend: Backend) -> None:
        assert list(backend.append([])) == []
        assert list(backend.streams()) == []

    @pytest.mark.parametrize("appends", INVALID.values(), ids=INVALID)
    def test_an_invalid_call_is_a_usage_error_and_stores_nothing(
        self, backend: Backend, appends: list[Append]
    ) -> None:
        with pytest.raises(UsageError):
            backend.append([append_of("good", 1, 1), *appends])
        assert list(backend.streams()) == []

    def test_a_header_at_the_limit_is_stored(self, backend: Backend) -> None:
        long = Entry(1, b"x" * HEADER_MAX, b"")
        assert append_all(backend, Append("s", [long])) == ["stored"]
        assert list(backend.read("s")) == list(backend.read("s", reverse=True)) == [long]

    def test_labels_at_the_limits_are_stored(self, backend: Backend) -> None:
        labels = {f"{number:02}".ljust(LABEL_BYTES_MAX, "x") for number in range(LABELS_MAX)}
        assert append_all(backend, append_of("s", 1, 1, *labels)) == ["stored"]
        assert _labels(backend, "s") == labels

    @pytest.mark.parametrize("data", HOSTILE_BYTES)
    def test_any_bytes_are_returned_unchanged(self, backend: Backend, data: bytes) -> None:
        stored = [Entry(1, data, data), Entry(2, b"\xff\0" + data, b"{}"), Entry(3, b"{}", data)]
        assert append_all(backend, Append("s", stored[:2])) == ["stored"]
        next_one = Append("s", stored[2:], previous=digest(stored[1]))
        assert append_all(backend, next_one) == ["stored"]
        assert list(backend.read("s")) == stored
        assert list(backend.read("s", reverse=True)) == stored[::-1]
        assert append_all(backend, Append("s", stored)) == ["stored"], "equal headers are a resend"

    def test_a_body_of_5_mb_is_returned_unchanged(self, backend: Backend) -> None:
        stored = [entry(1), entry(2, body=bytes(range(250)) * 20_000), entry(3)]
        assert append_all(backend, Append("s", stored)) == ["stored"]
        assert list(backend.read("s")) == stored

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_no_character_of_a_name_is_special(self, backend: Backend, name: str) -> None:
        append_all(backend, append_of("bystander", 1, 1))
        assert append_all(backend, append_of(name, 1, 2, "l")) == ["stored"]
        assert append_all(backend, append_of(name, 2, 2, mark="other")) == ["conflict"]
        assert list(backend.read(name)) == entries(1, 2)
        assert names(backend) == sorted(["bystander", name])
        assert names(backend, prefix=name) == [name]
        assert names(backend, labels=["l"]) == [name]

    def test_similar_names_are_different_streams(self, backend: Backend) -> None:
        for number, name in enumerate(SIMILAR_TEXTS, 1):
            assert append_all(backend, append_of(name, 1, number)) == ["stored"]
        assert [len(list(backend.read(name))) for name in SIMILAR_TEXTS] == [
            *range(1, len(SIMILAR_TEXTS) + 1)
        ]
        backend.drop(SIMILAR_TEXTS[-1], before=len(SIMILAR_TEXTS))
        assert [len(list(backend.read(name))) for name in SIMILAR_TEXTS] == [
            *range(1, len(SIMILAR_TEXTS)),
            1,
        ]
        assert names(backend) == sorted(SIMILAR_TEXTS)

    def test_drop_removes_the_entries_before_a_position(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 5, "l"), append_of("other", 1, 5))
        backend.drop("s", before=4)
        assert list(backend.read("s")) == entries(4, 5)
        assert positions(backend.read("s", reverse=True)) == [5, 4]
        assert list(backend.read("other")) == entries(1, 5)
        assert _labels(backend, "s") == {"l"}

    def test_drop_always_leaves_the_last_entry(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 5))
        backend.drop("s", before=100)
        assert list(backend.read("s")) == entries(5, 5)
        assert append_all(backend, append_of("s", 6, 6)) == ["stored"]

    def test_drop_without_matching_entries_changes_nothing(self, backend: Backend) -> None:
        append_all(backend, start_of("s", 3, 5))
        backend.drop("s", before=1)
        backend.drop("s", before=3)
        backend.drop("unknown", before=9)
        assert list(backend.read("s")) == entries(3, 5)
        assert names(backend) == ["s"]

    def test_a_dropped_position_conflicts_even_with_the_same_entries(
        self, backend: Backend
    ) -> None:
        append_all(backend, append_of("s", 1, 5))
        backend.drop("s", before=4)
        assert append_all(backend, append_of("s", 1, 1)) == ["conflict"]
        assert append_all(backend, append_of("s", 3, 6)) == ["conflict"]
        assert list(backend.read("s")) == entries(4, 5)
        assert append_all(backend, append_of("s", 4, 6)) == ["stored"]
        assert list(backend.read("s")) == entries(4, 6)
