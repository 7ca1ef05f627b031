"""Contract tests of the capability `recent`; skipped for stores that do not declare it."""

import itertools
import random
from typing import Any

import pytest

from perdure.backends.protocol import DELETED, RECENT, Backend, RecencyCapability, require_recent
from perdure.errors import UnsupportedError, UsageError
from perdure.testing.contract.samples import (
    SIMILAR_TEXTS,
    OpenBackend,
    append_all,
    append_of,
    entry,
    skip_unless_declared,
)


def recent_or_skip(backend: Backend) -> RecencyCapability:
    """Return the backend typed as `RecencyCapability`, or skip the test."""
    skip_unless_declared(backend, RECENT)
    return require_recent(backend)


def recent_names(backend: Backend) -> list[str]:
    """Return the names of all streams, the last appended first."""
    return [head.stream for head in recent_or_skip(backend).recent()]


class RecentContract:
    """Listings of streams by their last append."""

    reopens: bool

    def test_only_a_store_that_declares_recent_can_list_by_recency(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 1))
        method = getattr(backend, "recent", None)
        if RECENT in backend.capabilities:
            assert method is not None
            assert list(method()) == list(backend.streams())
            return
        with pytest.raises(UnsupportedError, match="list them by id"):
            require_recent(backend)
        if method is not None:
            with pytest.raises(UnsupportedError):
                list(method())

    def test_the_stream_with_the_latest_append_comes_first(self, backend: Backend) -> None:
        assert recent_names(backend) == []
        for name in ("b", "c", "a"):
            append_all(backend, append_of(name, 1, 1))
        assert recent_names(backend) == ["a", "c", "b"]
        append_all(backend, append_of("c", 2, 9))
        assert recent_names(backend) == ["c", "a", "b"]
        append_all(backend, append_of("b", 2, 2), append_of("d", 1, 1))
        assert set(recent_names(backend)[:2]) == {"b", "d"}
        assert recent_names(backend)[2:] == ["c", "a"]

    def test_recent_returns_the_same_heads_as_streams(self, backend: Backend) -> None:
        append_all(backend, append_of("a", 1, 3, "x"))
        append_all(backend, append_of("b", 1, 1))
        append_all(backend, append_of("a", 4, 4, "y"))
        assert list(recent_or_skip(backend).recent()) == list(backend.streams())
        recent = recent_or_skip(backend).recent(headers=True)
        assert [head.header for head in recent] == [entry(4).header, entry(1).header]

    def test_resends_refused_appends_and_drops_do_not_change_the_order(
        self, backend: Backend
    ) -> None:
        append_all(backend, append_of("a", 1, 3))
        append_all(backend, append_of("b", 1, 3))
        assert recent_names(backend) == ["b", "a"]
        assert append_all(backend, append_of("a", 2, 3)) == ["stored"]
        assert append_all(backend, append_of("a", 3, 3, mark="other")) == ["conflict"]
        assert append_all(backend, append_of("a", 9, 9)) == ["refused"]
        backend.drop("a", before=3)
        assert recent_names(backend) == ["b", "a"]
        append_all(backend, append_of("a", 4, 4))
        assert recent_names(backend) == ["a", "b"]
        backend.drop("a", before=4)
        assert recent_names(backend) == ["a", "b"]

    def test_recent_filters_by_prefix_and_labels(self, backend: Backend) -> None:
        append_all(backend, append_of("a/1", 1, 1, "x"))
        append_all(backend, append_of("b/1", 1, 1, "x", "y"))
        append_all(backend, append_of("a/2", 1, 1, "x", "y"))
        append_all(backend, append_of("a/3", 1, 1))
        append_all(backend, append_of("a/1", 2, 2, "x"))

        def listed(prefix: str = "", *labels: str, limit: int | None = None) -> list[str]:
            heads = recent_or_skip(backend).recent(prefix=prefix, labels=labels, limit=limit)
            return [head.stream for head in heads]

        assert listed("a/") == ["a/1", "a/3", "a/2"]
        assert listed("", "x") == ["a/1", "a/2", "b/1"]
        assert listed("a/", "x", "y") == ["a/2"]
        assert listed("a/", limit=2) == ["a/1", "a/3"]
        assert listed("", "x", limit=1) == ["a/1"]
        assert listed("", limit=1) == ["a/1"]
        assert listed(limit=0) == []
        assert listed("c") == listed("", "z") == []

    def test_recent_filters_exactly_as_streams_does(self, backend: Backend) -> None:
        append_all(
            backend,
            *(append_of(name, 1, 1, label) for name, label in itertools.pairwise(SIMILAR_TEXTS)),
        )
        for text in SIMILAR_TEXTS:
            for filters in ({"prefix": text}, {"labels": [text]}):
                heads = recent_or_skip(backend).recent(**filters)
                assert sorted(heads) == list(backend.streams(**filters))

    def test_recent_excludes_streams_with_unwanted_labels(self, backend: Backend) -> None:
        for number in range(3):
            append_all(backend, append_of(f"a/{number}", 1, 1, "x"))
            append_all(backend, append_of(f"b/{number}", 1, 1))
        for name in ("a/1", "b/1"):
            append_all(backend, append_of(name, 2, 2, DELETED))
        append_all(backend, *(append_of(f"c/{number:04}", 1, 1, DELETED) for number in range(600)))

        def listed(*without: str, **filters: Any) -> list[str]:
            heads = recent_or_skip(backend).recent(without=without, **filters)
            return [head.stream for head in heads]

        assert listed(DELETED) == ["b/2", "a/2", "b/0", "a/0"]
        assert listed(DELETED, limit=1) == ["b/2"]
        assert listed(DELETED, "x") == ["b/2", "b/0"]
        assert listed("x", prefix="a") == ["a/1"]
        assert listed(DELETED, prefix="a") == listed(DELETED, labels=["x"]) == ["a/2", "a/0"]
        assert listed(DELETED, labels=[DELETED]) == listed(DELETED, prefix="c/") == []
        assert listed(labels=[DELETED])[600:] == ["b/1", "a/1"]
        assert len(listed()) == 606
        append_all(backend, append_of("a/1", 3, 3))
        assert listed(DELETED) == ["a/1", "b/2", "a/2", "b/0", "a/0"]

    def test_streams_that_grow_unevenly_are_listed_in_order(self, backend: Backend) -> None:
        rng = random.Random(4711)  # noqa: S311 - must be reproducible, not secret
        lengths: dict[str, int] = {}
        for _ in range(300):
            name = f"{min(int(rng.expovariate(0.3)), 30)}"
            first = lengths.pop(name, 0) + 1
            lengths[name] = first + rng.choice([0, 0, 1, 40])
            append_all(backend, append_of(name, first, lengths[name]))
            if rng.random() < 0.05:
                backend.drop(name, before=lengths[name] - 1)
        assert recent_names(backend) == [*reversed(lengths)]

    def test_a_long_stream_does_not_hide_other_streams(self, backend: Backend) -> None:
        for number in range(300):
            append_all(backend, append_of(f"{number:03}", 1, 1))
        for first in range(1, 2000, 200):
            append_all(
                backend, append_of("long", first, first + 199), append_of("too", first, first)
            )
            if first == 1:
                append_all(backend, append_of("too", 2, 200))
            else:
                append_all(backend, append_of("too", first + 1, first + 199))
        listed = recent_names(backend)
        assert listed[:2] == ["too", "long"]
        assert listed[2:] == [f"{number:03}" for number in reversed(range(300))]

    def test_the_order_survives_reopening(self, open_handle: OpenBackend) -> None:
        if not self.reopens:
            pytest.skip("this store loses its data on close")
        first = open_handle()
        for name in ("b", "c", "a", "b"):
            last = max((head.position for head in first.streams(prefix=name)), default=0)
            append_all(first, append_of(name, last + 1, last + 1))
        first.close()
        assert recent_names(open_handle()) == ["b", "a", "c"]

    def test_a_closed_store_refuses_recent(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 1))
        backend.close()
        with pytest.raises(UsageError, match="closed"):
            list(recent_or_skip(backend).recent())
