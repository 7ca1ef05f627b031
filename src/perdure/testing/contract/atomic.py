"""Contract tests of the capability `atomic`; skipped for stores that do not declare it."""

import threading

import pytest

from perdure.backends.protocol import ATOMIC, AtomicCapability, Backend, require_atomic
from perdure.errors import UnsupportedError, UsageError
from perdure.testing.contract.samples import (
    OpenBackend,
    append_all,
    append_of,
    append_to,
    digest,
    entries,
    entry,
    names,
    skip_unless_declared,
)


def atomic_or_skip(backend: Backend) -> AtomicCapability:
    """Return the backend typed as `AtomicCapability`, or skip the test."""
    skip_unless_declared(backend, ATOMIC)
    return require_atomic(backend)


class AtomicContract:
    """Appends to several streams, all or none."""

    reopens: bool

    def test_only_a_store_that_declares_atomic_appends_together(self, backend: Backend) -> None:
        if ATOMIC in backend.capabilities:
            assert require_atomic(backend).append_together([]).status == "stored"
            return
        with pytest.raises(UnsupportedError, match=r"session\.batch"):
            require_atomic(backend)

    def test_appends_together_are_all_stored(self, backend: Backend) -> None:
        atomic = atomic_or_skip(backend)
        append_all(backend, append_of("b", 1, 2))
        both = [append_of("a", 1, 2, "x"), append_of("b", 3, 4, "x"), append_of("c", 1, 1)]
        assert atomic.append_together(both).status == "stored"
        assert list(backend.read("a")) == entries(1, 2)
        assert list(backend.read("b")) == entries(1, 4)
        assert names(backend) == ["a", "b", "c"]
        assert names(backend, labels=["x"]) == ["a", "b"]
        heads = {head.stream: head.digest for head in backend.streams()}
        assert heads == {"a": digest(entry(2)), "b": digest(entry(4)), "c": digest(entry(1))}
        assert append_all(backend, append_of("a", 3, 3), append_of("c", 2, 2)) == ["stored"] * 2

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_one_conflict_leaves_everything_as_it_was(self, backend: Backend, place: int) -> None:
        atomic = atomic_or_skip(backend)
        append_all(backend, append_of("a", 1, 2, "x"), append_of("b", 1, 2), append_of("c", 1, 2))
        appends = [append_of(stream, 3, 3, "y") for stream in "abc"]
        appends[place] = append_of("abc"[place], 2, 3, mark="other")
        assert atomic.append_together(appends).status == "conflict"
        stale = append_of("abc"[place], 3, 3)
        appends[place] = stale._replace(previous=digest(entry(2, "another past")))
        assert atomic.append_together(appends).status == "conflict"
        appends[place] = append_of("abc"[place], 5, 5)
        assert atomic.append_together(appends).status == "refused"
        assert [list(backend.read(stream)) for stream in "abc"] == [entries(1, 2)] * 3
        assert names(backend, labels=["x"]) == ["a"]
        assert names(backend, labels=["y"]) == []
        assert append_all(backend, *(append_of(stream, 3, 3) for stream in "abc")) == ["stored"] * 3

    def test_a_resend_is_stored(self, backend: Backend) -> None:
        atomic = atomic_or_skip(backend)
        appends = [append_of("a", 1, 2), append_of("b", 1, 1)]
        assert atomic.append_together(appends).status == "stored"
        append_all(backend, append_of("b", 2, 2))  # Another writer continued one of them.
        assert atomic.append_together(appends).status == "stored"
        assert (list(backend.read("a")), list(backend.read("b"))) == (entries(1, 2), entries(1, 2))

    def test_a_stream_occurs_once(self, backend: Backend) -> None:
        atomic = atomic_or_skip(backend)
        with pytest.raises(UsageError, match="occurs twice"):
            atomic.append_together([append_of("a", 1, 1), append_of("a", 2, 2)])
        assert list(backend.read("a")) == []

    def test_appends_together_are_durable(self, open_backend: OpenBackend) -> None:
        backend = open_backend()
        try:
            atomic_or_skip(backend).append_together([append_of("a", 1, 1), append_of("b", 1, 1)])
        finally:
            backend.close()
        if not self.reopens:
            pytest.skip("this store does not outlive its backend")
        backend = open_backend()
        try:
            assert [list(backend.read(stream)) for stream in "ab"] == [entries(1, 1)] * 2
        finally:
            backend.close()

    def test_racing_writers_leave_no_half(self, backend: Backend) -> None:
        """Threads append to two streams together, in both orders: the streams stay equal."""
        atomic = atomic_or_skip(backend)
        stored = []

        def write(number: int) -> None:
            position = 1
            while position <= 10:
                appends = [
                    append_to(backend, stream, position, f"{number}")
                    for stream in ("ab" if number % 2 else "ba")
                ]
                if atomic.append_together(appends).status == "stored":
                    stored.append(position)
                position += 1

        threads = [threading.Thread(target=write, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert list(backend.read("a")) == list(backend.read("b"))
        assert sorted(stored) == list(range(1, 11))
