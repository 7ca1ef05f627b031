"""What a store must keep that declares the capability `remove`, as tests; others are skipped."""

# ruff: noqa: S101 - these are tests, though they are shipped.
import pytest

from perdure.backends.protocol import (
    RECENT,
    REMOVE,
    Backend,
    RemovalCapability,
    require_recent,
    require_remove,
)
from perdure.errors import UnsupportedError, UsageError
from perdure.testing.contract.samples import (
    HOSTILE_NAMES,
    OpenBackend,
    appended,
    begun,
    digest,
    entries,
    entry,
    names,
    status,
)


def removing(backend: Backend) -> RemovalCapability:
    """Return the backend as one that can remove a stream, or skip the test."""
    if REMOVE not in backend.capabilities:
        pytest.skip("this store does not declare the capability `remove`")
    return require_remove(backend)


class RemovingContract:
    """Streams that are forgotten whole."""

    reopens: bool

    def test_a_store_that_declares_remove_has_the_method_and_others_refuse(
        self, backend: Backend
    ) -> None:
        status(backend, appended("s", 1, 2))
        method = getattr(backend, "remove", None)
        if REMOVE in backend.capabilities:
            assert method is not None
            assert method("s", digest=digest(entry(2))) is True
            return
        with pytest.raises(UnsupportedError, match="its last entry stays"):
            require_remove(backend)
        if method is not None:
            with pytest.raises(UnsupportedError):
                method("s", digest=digest(entry(2)))

    def test_a_removed_stream_is_as_if_it_had_never_been(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 300, "x"), appended("t", 1, 2, "x"))
        assert removing(backend).remove("s", digest=digest(entry(300))) is True
        assert list(backend.read("s")) == list(backend.read("s", reverse=True)) == []
        assert names(backend) == ["t"]
        assert [head.stream for head in backend.streams(labels=["x"])] == ["t"]
        assert status(backend, appended("s", 301, 301)) == ["refused"]
        assert status(backend, begun("s", 9, 9, "y")) == ["stored"]
        assert list(backend.read("s")) == entries(9, 9)
        assert list(backend.read("t")) == entries(1, 2)
        assert [head.stream for head in backend.streams(labels=["x"])] == ["t"]
        assert names(backend) == ["s", "t"]

    def test_a_stream_with_another_end_stays(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 3, "x"))
        for wrong in (entry(2), entry(3, "other"), entry(4)):
            assert removing(backend).remove("s", digest=digest(wrong)) is False
        assert removing(backend).remove("s", digest="") is False
        assert list(backend.read("s")) == entries(1, 3)
        assert status(backend, appended("s", 4, 4)) == ["stored"]

    def test_what_is_not_there_is_gone(self, backend: Backend) -> None:
        assert removing(backend).remove("s", digest="") is True
        status(backend, appended("s", 1, 1))
        assert removing(backend).remove("s", digest=digest(entry(1))) is True
        assert removing(backend).remove("s", digest=digest(entry(1))) is True
        assert names(backend) == []

    def test_any_name_can_be_removed_and_no_other_is_touched(self, backend: Backend) -> None:
        for name in HOSTILE_NAMES:
            status(backend, appended(name, 1, 1))
        left = set(HOSTILE_NAMES)
        for name in HOSTILE_NAMES[::2]:
            assert removing(backend).remove(name, digest=digest(entry(1))) is True
            left.remove(name)
            assert set(names(backend)) == left

    def test_recency_knows_nothing_of_what_was_removed(self, backend: Backend) -> None:
        if RECENT not in backend.capabilities:
            pytest.skip("this store does not declare the capability `recent`")
        for name in ("a", "b", "c"):
            status(backend, appended(name, 1, 3))
        assert removing(backend).remove("c", digest=digest(entry(3))) is True
        status(backend, appended("a", 4, 4))
        status(backend, appended("d", 1, 1))
        found = require_recent(backend).recent()
        assert [head.stream for head in found] == ["d", "a", "b"]

    def test_two_handles_see_that_a_stream_was_removed(self, open_backend: OpenBackend) -> None:
        if not self.reopens:
            pytest.skip("this store is gone when it is closed")
        one, two = open_backend(), open_backend()
        try:
            status(one, appended("s", 1, 3), appended("t", 1, 1))
            assert names(two) == ["s", "t"]
            assert removing(one).remove("s", digest=digest(entry(3))) is True
            assert names(two) == names(one) == ["t"]
            assert list(two.read("s")) == []
            assert status(two, appended("s", 1, 1, mark="new")) == ["stored"]
            assert list(one.read("s")) == entries(1, 1, "new")
        finally:
            one.close()
            two.close()
        again = open_backend()
        try:
            assert names(again) == ["s", "t"]
            assert list(again.read("s")) == entries(1, 1, "new")
        finally:
            again.close()

    def test_a_closed_store_removes_nothing(self, open_backend: OpenBackend) -> None:
        backend = open_backend()
        status(backend, appended("s", 1, 1))
        removing(backend)
        backend.close()
        with pytest.raises(UsageError, match="closed"):
            removing(backend).remove("s", digest=digest(entry(1)))
