"""What a store must keep that declares the capability `recent`, as tests; others are skipped."""

# ruff: noqa: S101, PLR2004 - these are tests, though they are shipped.
import itertools
import random
from typing import Any

import pytest

from perdure.backends.protocol import DELETED, RECENT, Backend, RecencyCapability, require_recent
from perdure.errors import UnsupportedError, UsageError
from perdure.testing.contract.samples import ALIKE, OpenBackend, appended, status


def recent(backend: Backend) -> RecencyCapability:
    """Return the backend as one that knows recency, or skip the test."""
    if RECENT not in backend.capabilities:
        pytest.skip("this store does not declare the capability `recent`")
    return require_recent(backend)


def newest(backend: Backend) -> list[str]:
    """Return the names of all streams, those first that were appended to last."""
    return [head.stream for head in recent(backend).recent()]


class RecentContract:
    """The streams of a store by their last change."""

    reopens: bool

    def test_a_store_that_declares_recent_has_the_method_and_others_refuse(
        self, backend: Backend
    ) -> None:
        status(backend, appended("s", 1, 1))
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

    def test_the_stream_that_was_appended_to_last_comes_first(self, backend: Backend) -> None:
        assert newest(backend) == []
        for name in ("b", "c", "a"):
            status(backend, appended(name, 1, 1))
        assert newest(backend) == ["a", "c", "b"]
        status(backend, appended("c", 2, 9))
        assert newest(backend) == ["c", "a", "b"]
        status(backend, appended("b", 2, 2), appended("d", 1, 1))
        assert set(newest(backend)[:2]) == {"b", "d"}
        assert newest(backend)[2:] == ["c", "a"]

    def test_recent_heads_are_those_of_the_listing(self, backend: Backend) -> None:
        status(backend, appended("a", 1, 3, "x"))
        status(backend, appended("b", 1, 1))
        status(backend, appended("a", 4, 4, "y"))
        assert list(recent(backend).recent()) == list(backend.streams())

    def test_what_changes_nothing_changes_no_place(self, backend: Backend) -> None:
        status(backend, appended("a", 1, 3))
        status(backend, appended("b", 1, 3))
        assert newest(backend) == ["b", "a"]
        assert status(backend, appended("a", 2, 3)) == ["stored"]
        assert status(backend, appended("a", 3, 3, mark="other")) == ["conflict"]
        assert status(backend, appended("a", 9, 9)) == ["refused"]
        backend.drop("a", before=3)
        assert newest(backend) == ["b", "a"]
        status(backend, appended("a", 4, 4))
        assert newest(backend) == ["a", "b"]
        backend.drop("a", before=4)
        assert newest(backend) == ["a", "b"]

    def test_recent_streams_are_chosen_by_prefix_and_labels(self, backend: Backend) -> None:
        status(backend, appended("a/1", 1, 1, "x"))
        status(backend, appended("b/1", 1, 1, "x", "y"))
        status(backend, appended("a/2", 1, 1, "x", "y"))
        status(backend, appended("a/3", 1, 1))
        status(backend, appended("a/1", 2, 2, "x"))

        def chosen(prefix: str = "", *labels: str, limit: int | None = None) -> list[str]:
            found = recent(backend).recent(prefix=prefix, labels=labels, limit=limit)
            return [head.stream for head in found]

        assert chosen("a/") == ["a/1", "a/3", "a/2"]
        assert chosen("", "x") == ["a/1", "a/2", "b/1"]
        assert chosen("a/", "x", "y") == ["a/2"]
        assert chosen("a/", limit=2) == ["a/1", "a/3"]
        assert chosen("", "x", limit=1) == ["a/1"]
        assert chosen("", limit=1) == ["a/1"]
        assert chosen(limit=0) == []
        assert chosen("c") == chosen("", "z") == []

    def test_recent_streams_are_chosen_as_those_of_the_listing(self, backend: Backend) -> None:
        status(backend, *(appended(name, 1, 1, label) for name, label in itertools.pairwise(ALIKE)))
        for text in ALIKE:
            for chosen in ({"prefix": text}, {"labels": [text]}):
                found = recent(backend).recent(**chosen)
                assert sorted(found) == list(backend.streams(**chosen))

    def test_recent_streams_are_chosen_by_what_they_are_without(self, backend: Backend) -> None:
        for number in range(3):
            status(backend, appended(f"a/{number}", 1, 1, "x"))
            status(backend, appended(f"b/{number}", 1, 1))
        for name in ("a/1", "b/1"):
            status(backend, appended(name, 2, 2, DELETED))
        status(backend, *(appended(f"c/{number:04}", 1, 1, DELETED) for number in range(600)))

        def chosen(*without: str, **chosen: Any) -> list[str]:
            found = recent(backend).recent(without=without, **chosen)
            return [head.stream for head in found]

        assert chosen(DELETED) == ["b/2", "a/2", "b/0", "a/0"]
        assert chosen(DELETED, limit=1) == ["b/2"]
        assert chosen(DELETED, "x") == ["b/2", "b/0"]
        assert chosen("x", prefix="a") == ["a/1"]
        assert chosen(DELETED, prefix="a") == chosen(DELETED, labels=["x"]) == ["a/2", "a/0"]
        assert chosen(DELETED, labels=[DELETED]) == chosen(DELETED, prefix="c/") == []
        assert chosen(labels=[DELETED])[600:] == ["b/1", "a/1"]
        assert len(chosen()) == 606
        status(backend, appended("a/1", 3, 3))
        assert chosen(DELETED) == ["a/1", "b/2", "a/2", "b/0", "a/0"]

    def test_recent_streams_are_in_order_however_unevenly_they_grow(self, backend: Backend) -> None:
        draw = random.Random(4711)  # noqa: S311 - it must repeat, not be secret.
        lengths: dict[str, int] = {}
        for _ in range(300):
            name = f"{min(int(draw.expovariate(0.3)), 30)}"
            first = lengths.pop(name, 0) + 1
            lengths[name] = first + draw.choice([0, 0, 1, 40])
            status(backend, appended(name, first, lengths[name]))
            if draw.random() < 0.05:
                backend.drop(name, before=lengths[name] - 1)
        assert newest(backend) == [*reversed(lengths)]

    def test_a_long_stream_does_not_hide_the_others(self, backend: Backend) -> None:
        for number in range(300):
            status(backend, appended(f"{number:03}", 1, 1))
        for first in range(1, 2000, 200):
            status(backend, appended("long", first, first + 199), appended("too", first, first))
            if first == 1:
                status(backend, appended("too", 2, 200))
            else:
                status(backend, appended("too", first + 1, first + 199))
        found = newest(backend)
        assert found[:2] == ["too", "long"]
        assert found[2:] == [f"{number:03}" for number in reversed(range(300))]

    def test_recency_is_known_when_the_store_is_opened_again(
        self, open_backend: OpenBackend
    ) -> None:
        if not self.reopens:
            pytest.skip("this store is gone when it is closed")
        first = open_backend()
        for name in ("b", "c", "a", "b"):
            last = max((head.position for head in first.streams(prefix=name)), default=0)
            status(first, appended(name, last + 1, last + 1))
        first.close()
        second = open_backend()
        try:
            assert newest(second) == ["b", "a", "c"]
        finally:
            second.close()

    def test_a_closed_store_does_not_say_what_is_recent(self, open_backend: OpenBackend) -> None:
        backend = open_backend()
        status(backend, appended("s", 1, 1))
        backend.close()
        with pytest.raises(UsageError, match="closed"):
            list(recent(backend).recent())
