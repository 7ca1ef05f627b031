"""The sentences of `Backend.append` and `Backend.drop`, as tests."""

# ruff: noqa: S101 - these are tests, though they are shipped.
import pytest

from perdure.backends.protocol import LABEL_BYTES_MAX, LABELS_MAX, Append, Backend, Entry
from perdure.errors import UsageError
from perdure.testing.contract.samples import (
    ALIKE,
    HOSTILE_BYTES,
    HOSTILE_NAMES,
    appended,
    begun,
    digest,
    entries,
    entry,
    names,
    positions,
    status,
)


def _labels(backend: Backend, stream: str) -> frozenset[str]:
    return next(head.labels for head in backend.streams() if head.stream == stream)


class AppendingContract:
    """What becomes of an append."""

    def test_what_was_appended_is_read_back_in_order(self, backend: Backend) -> None:
        assert status(backend, appended("s", 1, 3)) == ["stored"]
        assert list(backend.read("s")) == entries(1, 3)

    def test_the_next_entry_is_stored(self, backend: Backend) -> None:
        assert status(backend, appended("s", 1, 2)) == ["stored"]
        assert status(backend, appended("s", 3, 4)) == ["stored"]
        assert list(backend.read("s")) == entries(1, 4)

    def test_a_stream_may_begin_at_any_position(self, backend: Backend) -> None:
        assert status(backend, appended("branch", 41, 42)) == ["refused"], "it does not begin it"
        assert list(backend.read("branch")) == []
        assert names(backend) == []
        assert status(backend, begun("branch", 41, 42, "l")) == ["stored"]
        assert list(backend.read("branch")) == entries(41, 42)
        assert _labels(backend, "branch") == {"l"}
        assert status(backend, appended("branch", 43, 43)) == ["stored"]

    @pytest.mark.parametrize("first", [1, 2**31, 2**53 + 1, 2**62 + 1])
    def test_a_beginning_may_stand_at_the_first_position_or_far_away(
        self, backend: Backend, first: int
    ) -> None:
        assert status(backend, begun("s", first, first + 1)) == ["stored"]
        assert status(backend, appended("s", first + 2, first + 2)) == ["stored"]
        assert list(backend.read("s", after=first)) == entries(first + 1, first + 2)
        assert [head.position for head in backend.streams()] == [first + 2]

    @pytest.mark.parametrize("first", [3, 4, 9], ids=["next", "a gap", "a long gap"])
    def test_a_beginning_conflicts_where_entries_stand_before_it_and_changes_nothing(
        self, backend: Backend, first: int
    ) -> None:
        status(backend, appended("s", 1, 2, "old"))
        outcomes = status(backend, begun("s", first, first, "new"), begun("free", first, first))
        assert outcomes == ["conflict", "stored"]
        assert list(backend.read("s")) == entries(1, 2)
        assert _labels(backend, "s") == {"old"}
        assert status(backend, appended("s", 3, 3)) == ["stored"], "it goes on, and begins nothing"

    def test_a_beginning_conflicts_with_another_one_wherever_that_stands(
        self, backend: Backend
    ) -> None:
        status(backend, begun("s", 5, 7, "old"))
        for first in (1, 4, 5, 7, 8):
            other = appended("s", first, first + 1, "new", mark="other")._replace(begins=True)
            assert status(backend, other) == ["conflict"]
        assert status(backend, appended("s", 4, 4)) == ["conflict"]
        backend.drop("s", before=7)
        assert status(backend, begun("s", 5, 5)) == ["conflict"], "it was dropped"
        assert status(backend, begun("s", 8, 8)) == ["conflict"], "the last one still stands"
        assert list(backend.read("s")) == entries(7, 7)
        assert _labels(backend, "s") == {"old"}

    def test_a_beginning_that_is_sent_again_is_stored(self, backend: Backend) -> None:
        status(backend, begun("s", 41, 42, "first"))
        assert status(backend, begun("s", 41, 42, "second")) == ["stored"]
        assert _labels(backend, "s") == {"first"}
        status(backend, appended("s", 43, 44, "third"))
        assert status(backend, begun("s", 41, 42, "second")) == ["stored"], "others came since"
        assert list(backend.read("s")) == entries(41, 44)
        assert _labels(backend, "s") == {"third"}

    def test_a_gap_is_refused_and_changes_nothing(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 2))
        (outcome,) = backend.append([appended("s", 4, 5, "new")])
        assert outcome.status == "refused"
        assert outcome.reason
        assert list(backend.read("s")) == entries(1, 2)
        assert _labels(backend, "s") == frozenset()
        assert status(backend, appended("s", 3, 3)) == ["stored"]

    def test_another_entry_at_a_taken_position_conflicts_and_changes_nothing(
        self, backend: Backend
    ) -> None:
        status(backend, appended("s", 1, 3, "old"))
        assert status(backend, appended("s", 3, 3, "new", mark="other")) == ["conflict"]
        assert status(backend, appended("s", 1, 4, "new", mark="other")) == ["conflict"]
        assert list(backend.read("s")) == entries(1, 3)
        assert _labels(backend, "s") == {"old"}

    def test_a_batch_that_differs_only_later_conflicts(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 3))
        changed = [*entries(1, 2), entry(3, "other"), entry(4)]
        assert status(backend, Append("s", changed)) == ["conflict"]
        assert list(backend.read("s")) == entries(1, 3)

    @pytest.mark.parametrize("other", [1, 2, 3])
    def test_what_is_sent_again_with_one_other_entry_conflicts_and_changes_nothing(
        self, backend: Backend, other: int
    ) -> None:
        status(backend, appended("s", 1, 4, "old"))
        changed = entries(1, 3)
        changed[other - 1] = entry(other, "other")
        assert status(backend, Append("s", changed, frozenset({"new"}))) == ["conflict"]
        assert list(backend.read("s")) == entries(1, 4)
        assert _labels(backend, "s") == {"old"}
        assert status(backend, appended("s", 1, 3)) == ["stored"]

    def test_sending_the_same_again_is_stored_and_stores_nothing(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 3, "first"))
        assert status(backend, appended("s", 1, 3, "second")) == ["stored"]
        assert status(backend, appended("s", 2, 2, "second")) == ["stored"]
        assert list(backend.read("s")) == entries(1, 3)
        assert _labels(backend, "s") == {"first"}, "a resend leaves the labels"

    def test_a_standing_beginning_is_completed(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 2, "first"))
        assert status(backend, appended("s", 1, 4, "second")) == ["stored"]
        assert list(backend.read("s")) == entries(1, 4)
        assert _labels(backend, "s") == {"second"}
        assert status(backend, appended("s", 4, 5)) == ["stored"]
        assert list(backend.read("s")) == entries(1, 5)

    def test_the_head_is_the_last_entry(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 3))
        (head,) = backend.streams()
        assert (head.stream, head.position, head.digest) == ("s", 3, digest(entry(3)))
        status(backend, appended("s", 4, 4))
        (head,) = backend.streams()
        assert (head.position, head.digest) == (4, digest(entry(4)))

    def test_labels_are_those_of_the_latest_append(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 1, "a", "b"))
        assert _labels(backend, "s") == {"a", "b"}
        status(backend, appended("s", 2, 2, "b", "ü"))
        assert _labels(backend, "s") == {"b", "ü"}
        status(backend, appended("s", 3, 3))
        assert _labels(backend, "s") == frozenset()

    def test_one_conflict_leaves_the_other_streams_of_a_call_alone(self, backend: Backend) -> None:
        status(backend, appended("taken", 1, 1))
        outcomes = status(
            backend,
            appended("a", 1, 2),
            appended("taken", 1, 1, mark="other"),
            appended("b", 1, 1),
            appended("a gap", 7, 7, "l"),
            begun("a branch", 7, 7),
        )
        assert outcomes == ["stored", "conflict", "stored", "refused", "stored"]
        assert names(backend) == ["a", "a branch", "b", "taken"]
        assert list(backend.read("a")) == entries(1, 2)
        assert list(backend.read("b")) == entries(1, 1)
        assert list(backend.read("taken")) == entries(1, 1)

    def test_a_call_without_appends_does_nothing(self, backend: Backend) -> None:
        assert list(backend.append([])) == []
        assert list(backend.streams()) == []

    @pytest.mark.parametrize(
        "appends",
        [
            [appended("s", 1, 1), appended("s", 2, 2)],
            [Append("s", [])],
            [Append("s", [entry(1), entry(3)])],
            [Append("s", [entry(2), entry(1)])],
            [Append("s", [entry(0)])],
            [Append("s", [Entry(1, b"{}", None)])],
            [Append("", [entry(1)])],
            [appended("s", 1, 1, *(str(n) for n in range(LABELS_MAX + 1)))],
            [appended("s", 1, 1, "x" * (LABEL_BYTES_MAX + 1))],
            [appended("s", 1, 1, "ü" * (LABEL_BYTES_MAX // 2 + 1))],
        ],
        ids=[
            "stream twice",
            "no entries",
            "a hole",
            "backwards",
            "position 0",
            "no body",
            "no name",
            "too many labels",
            "label too long",
            "label too long in UTF-8",
        ],
    )
    def test_an_impossible_call_is_a_usage_error_and_stores_nothing(
        self, backend: Backend, appends: list[Append]
    ) -> None:
        with pytest.raises(UsageError):
            backend.append([appended("good", 1, 1), *appends])
        assert list(backend.streams()) == []

    def test_as_many_and_as_long_labels_as_allowed_are_stored(self, backend: Backend) -> None:
        labels = {f"{number:02}".ljust(LABEL_BYTES_MAX, "x") for number in range(LABELS_MAX)}
        assert status(backend, appended("s", 1, 1, *labels)) == ["stored"]
        assert _labels(backend, "s") == labels

    @pytest.mark.parametrize("data", HOSTILE_BYTES)
    def test_any_bytes_come_back_as_they_were(self, backend: Backend, data: bytes) -> None:
        stored = [Entry(1, data, data), Entry(2, b"\xff\0" + data, b"{}"), Entry(3, b"{}", data)]
        assert status(backend, Append("s", stored[:2])) == ["stored"]
        assert status(backend, Append("s", stored[2:])) == ["stored"]
        assert list(backend.read("s")) == stored
        assert list(backend.read("s", reverse=True)) == stored[::-1]
        assert status(backend, Append("s", stored)) == ["stored"], "equal headers are recognised"

    def test_a_body_of_5_mb_comes_back_as_it_was(self, backend: Backend) -> None:
        stored = [entry(1), entry(2, body=bytes(range(250)) * 20_000), entry(3)]
        assert status(backend, Append("s", stored)) == ["stored"]
        assert list(backend.read("s")) == stored

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_any_name_is_only_a_name(self, backend: Backend, name: str) -> None:
        status(backend, appended("bystander", 1, 1))
        assert status(backend, appended(name, 1, 2, "l")) == ["stored"]
        assert status(backend, appended(name, 2, 2, mark="other")) == ["conflict"]
        assert list(backend.read(name)) == entries(1, 2)
        assert names(backend) == sorted(["bystander", name])
        assert names(backend, prefix=name) == [name]
        assert [head.stream for head in backend.streams(labels=["l"])] == [name]

    def test_names_that_differ_little_are_different_streams(self, backend: Backend) -> None:
        for number, name in enumerate(ALIKE, 1):
            assert status(backend, appended(name, 1, number)) == ["stored"]
        assert [len(list(backend.read(name))) for name in ALIKE] == [*range(1, len(ALIKE) + 1)]
        backend.drop(ALIKE[-1], before=len(ALIKE))
        assert [len(list(backend.read(name))) for name in ALIKE] == [*range(1, len(ALIKE)), 1]
        assert names(backend) == sorted(ALIKE)

    def test_drop_removes_what_is_before_a_position(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 5, "l"), appended("other", 1, 5))
        backend.drop("s", before=4)
        assert list(backend.read("s")) == entries(4, 5)
        assert positions(backend.read("s", reverse=True)) == [5, 4]
        assert list(backend.read("other")) == entries(1, 5)
        assert _labels(backend, "s") == {"l"}

    def test_drop_always_leaves_the_last_entry(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 5))
        backend.drop("s", before=100)
        assert list(backend.read("s")) == entries(5, 5)
        assert status(backend, appended("s", 6, 6)) == ["stored"]

    def test_drop_of_nothing_changes_nothing(self, backend: Backend) -> None:
        status(backend, begun("s", 3, 5))
        backend.drop("s", before=1)
        backend.drop("s", before=3)
        backend.drop("unknown", before=9)
        assert list(backend.read("s")) == entries(3, 5)
        assert names(backend) == ["s"]

    def test_a_dropped_position_conflicts_even_with_the_same_entries(
        self, backend: Backend
    ) -> None:
        status(backend, appended("s", 1, 5))
        backend.drop("s", before=4)
        assert status(backend, appended("s", 1, 1)) == ["conflict"]
        assert status(backend, appended("s", 3, 6)) == ["conflict"]
        assert list(backend.read("s")) == entries(4, 5)
        assert status(backend, appended("s", 4, 6)) == ["stored"]
        assert list(backend.read("s")) == entries(4, 6)
