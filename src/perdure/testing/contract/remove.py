"""Contract tests of the capability `remove`; skipped for stores that do not declare it."""

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
    append_all,
    append_of,
    digest,
    entries,
    entry,
    names,
    skip_unless_declared,
    start_of,
)


def removal_or_skip(backend: Backend) -> RemovalCapability:
    """Return the backend typed as `RemovalCapability`, or skip the test."""
    skip_unless_declared(backend, REMOVE)
    return require_remove(backend)


class RemoveContract:
    """Complete removal of streams."""

    reopens: bool

    def test_only_a_store_that_declares_remove_can_remove_a_stream(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 2))
        method = getattr(backend, "remove", None)
        if REMOVE in backend.capabilities:
            assert method is not None
            assert method("s", digest=digest(entry(2))) is True
            return
        with pytest.raises(UnsupportedError, match="keeps its last entry"):
            require_remove(backend)
        if method is not None:
            with pytest.raises(UnsupportedError):
                method("s", digest=digest(entry(2)))

    def test_a_removed_stream_leaves_no_trace(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 300, "x"), append_of("t", 1, 2, "x"))
        assert removal_or_skip(backend).remove("s", digest=digest(entry(300))) is True
        assert list(backend.read("s")) == list(backend.read("s", reverse=True)) == []
        assert names(backend) == ["t"]
        assert names(backend, labels=["x"]) == ["t"]
        assert append_all(backend, append_of("s", 301, 301)) == ["refused"]
        assert append_all(backend, start_of("s", 9, 9, "y")) == ["stored"]
        assert list(backend.read("s")) == entries(9, 9)
        assert list(backend.read("t")) == entries(1, 2)
        assert names(backend, labels=["x"]) == ["t"]
        assert names(backend) == ["s", "t"]

    def test_a_stream_is_not_removed_if_its_last_entry_differs(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 3, "x"))
        for wrong in (entry(2), entry(3, "other"), entry(4)):
            assert removal_or_skip(backend).remove("s", digest=digest(wrong)) is False
        assert removal_or_skip(backend).remove("s", digest="") is False
        assert list(backend.read("s")) == entries(1, 3)
        assert append_all(backend, append_of("s", 4, 4)) == ["stored"]

    def test_removing_an_absent_stream_succeeds(self, backend: Backend) -> None:
        assert removal_or_skip(backend).remove("s", digest="") is True
        append_all(backend, append_of("s", 1, 1))
        assert removal_or_skip(backend).remove("s", digest=digest(entry(1))) is True
        assert removal_or_skip(backend).remove("s", digest=digest(entry(1))) is True
        assert names(backend) == []

    def test_any_name_can_be_removed_without_affecting_others(self, backend: Backend) -> None:
        for name in HOSTILE_NAMES:
            append_all(backend, append_of(name, 1, 1))
        remaining = set(HOSTILE_NAMES)
        for name in HOSTILE_NAMES[::2]:
            assert removal_or_skip(backend).remove(name, digest=digest(entry(1))) is True
            remaining.remove(name)
            assert set(names(backend)) == remaining

    def test_removed_streams_are_not_listed_by_recency(self, backend: Backend) -> None:
        skip_unless_declared(backend, RECENT)
        for name in ("a", "b", "c"):
            append_all(backend, append_of(name, 1, 3))
        assert removal_or_skip(backend).remove("c", digest=digest(entry(3))) is True
        append_all(backend, append_of("a", 4, 4))
        append_all(backend, append_of("d", 1, 1))
        heads = require_recent(backend).recent()
        assert [head.stream for head in heads] == ["d", "a", "b"]

    def test_other_handles_see_the_removal_at_once(self, open_handle: OpenBackend) -> None:
        if not self.reopens:
            pytest.skip("this store loses its data on close")
        first, second = open_handle(), open_handle()
        append_all(first, append_of("s", 1, 3), append_of("t", 1, 1))
        assert names(second) == ["s", "t"]
        assert removal_or_skip(first).remove("s", digest=digest(entry(3))) is True
        assert names(second) == names(first) == ["t"]
        assert list(second.read("s")) == []
        assert append_all(second, append_of("s", 1, 1, mark="new")) == ["stored"]
        assert list(first.read("s")) == entries(1, 1, "new")
        first.close()
        second.close()
        reopened = open_handle()
        assert names(reopened) == ["s", "t"]
        assert list(reopened.read("s")) == entries(1, 1, "new")

    def test_a_closed_store_refuses_remove(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 1))
        removal_or_skip(backend)
        backend.close()
        with pytest.raises(UsageError, match="closed"):
            removal_or_skip(backend).remove("s", digest=digest(entry(1)))
