"""Contract tests of the capability `tail`; skipped for stores that do not declare it."""

import pytest

from perdure.backends.protocol import Append, Backend
from perdure.backends.tail import TAIL, TailCapability, require_tail
from perdure.errors import UnsupportedError
from perdure.testing.contract.samples import (
    append_all,
    append_of,
    entries,
    entry,
    skip_unless_declared,
)

LARGE = 300_000  # bytes; a few of these bodies are more than a store reads at a time


def tail_or_skip(backend: Backend) -> TailCapability:
    """Return the backend typed as `TailCapability`, or skip the test."""
    skip_unless_declared(backend, TAIL)
    return require_tail(backend)


class TailContract:
    """The head of a stream and its newest entries in one call."""

    def test_only_a_store_that_declares_tail_returns_one(self, backend: Backend) -> None:
        if TAIL in backend.capabilities:
            head, newest = require_tail(backend).tail("unknown", limit=1)
            assert (head, [*newest]) == (None, [])
            return
        with pytest.raises(UnsupportedError, match="ask for the head"):
            require_tail(backend)

    def test_a_tail_without_a_snapshot_is_the_last_entries(self, backend: Backend) -> None:
        store = tail_or_skip(backend)
        append_all(backend, append_of("s", 1, 5, "l"), append_of("t", 1, 2))
        for limit in (1, 2, 5, 9):
            head, newest = store.tail("s", limit=limit)
            assert head == next(backend.streams())
            assert [*newest] == entries(1, 5)[::-1][:limit]

    def test_a_tail_reaches_back_to_the_snapshot_whatever_the_limit(self, backend: Backend) -> None:
        store = tail_or_skip(backend)
        append_all(backend, append_of("s", 1, 5))
        for snapshot in range(1, 8):
            at = 5 + snapshot
            append_all(backend, append_of("s", at, at)._replace(snapshot=snapshot))
            head, newest = store.tail("s", limit=1)
            assert head is not None
            assert (head.position, head.snapshot) == (at, snapshot)
            assert [*newest] == entries(snapshot, at)[::-1]

    def test_a_tail_begins_with_the_entry_that_covers_the_snapshot(self, backend: Backend) -> None:
        store = tail_or_skip(backend)
        stored = [entry(1)._replace(records=3), entry(4)._replace(records=4), entry(8)]
        append_all(backend, Append("s", stored, snapshot=5))
        assert [*store.tail("s", limit=1)[1]] == [stored[2], stored[1]]

    def test_a_tail_may_be_long_and_leaves_long_bodies_out(self, backend: Backend) -> None:
        store = tail_or_skip(backend)
        stored = [entry(at, body=bytes([at]) * LARGE) for at in range(1, 10)]
        append_all(backend, Append("s", stored, snapshot=2))
        assert [*store.tail("s", limit=1)[1]] == stored[1:][::-1]
        without = [item._replace(body=None) for item in stored]
        assert [*store.tail("s", limit=1, max_body=LARGE - 1)[1]] == without[1:][::-1]

    def test_a_tail_ends_where_entries_were_dropped(self, backend: Backend) -> None:
        store = tail_or_skip(backend)
        append_all(backend, append_of("s", 1, 5)._replace(snapshot=2))
        backend.drop("s", before=4)
        head, newest = store.tail("s", limit=1)
        assert head is not None
        assert head.snapshot == 2
        assert [*newest] == entries(4, 5)[::-1]
