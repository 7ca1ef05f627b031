"""Contract tests of sharing: handles, threads, processes, reopening and closing."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from perdure.backends.protocol import Append, Backend, Entry
from perdure.errors import UsageError
from perdure.testing.contract.samples import (
    HOSTILE_BYTES,
    HOSTILE_NAMES,
    SIMILAR_TEXTS,
    OpenBackend,
    append_all,
    append_of,
    append_to,
    entries,
    entry,
    names,
    start_forked,
    start_of,
)

RACERS = 4  # processes

ROUNDS = 25  # positions or streams that are raced for


def _race(open_backend: OpenBackend, mark: str, results: Any) -> None:
    """Try to store every position; report the positions that were won."""
    backend = open_backend()
    try:
        won = [p for p in range(1, ROUNDS + 1) if _try_append(backend, p, mark)]
    finally:
        backend.close()
    results.put((mark, won))


def _try_append(backend: Backend, position: int, mark: str) -> bool:
    (outcome,) = backend.append([append_to(backend, "s", position, mark)])
    assert outcome.status in {"stored", "conflict"}
    return outcome.status == "stored"


def _append_and_kill_self(open_backend: OpenBackend) -> None:
    """Append, then kill this process: nothing is closed and no exit handler runs."""
    backend = open_backend()
    outcomes = append_all(backend, append_of("s", 1, 5, "old"), start_of("branch", 41, 41, "l"))
    assert outcomes == ["stored"] * 2
    assert append_all(backend, append_of("s", 6, 6, "new")) == ["stored"]
    backend.drop("s", before=3)
    os.kill(os.getpid(), signal.SIGKILL)


def _run_in_threads(count: int, work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread of the test
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _race_in_processes(open_backend: OpenBackend) -> list[tuple[str, list[int]]]:
    results: Any = multiprocessing.get_context("fork").SimpleQueue()
    racers = [
        start_forked(_race, open_backend, f"racer {number}", results) for number in range(RACERS)
    ]
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0] * RACERS
    return [results.get() for _ in racers]


class SharingContract:
    """One store with several handles, threads and processes."""

    reopens: bool
    processes: bool

    def _require_reopening(self) -> None:
        if not self.reopens:
            pytest.skip("this store loses its data on close")

    def _require_processes(self) -> None:
        if not self.processes:
            pytest.skip("other processes cannot reach this store")
        if "fork" not in multiprocessing.get_all_start_methods():
            pytest.skip("this system cannot fork")

    def test_stored_entries_survive_reopening(self, open_handle: OpenBackend) -> None:
        self._require_reopening()
        first = open_handle()
        append_all(first, append_of("s", 1, 5, "l"), append_of("other", 1, 1))
        first.drop("s", before=2)
        first.close()

        second = open_handle()
        assert list(second.read("s")) == entries(2, 5)
        assert names(second, labels=["l"]) == ["s"]
        outcomes = append_all(second, append_of("s", 5, 6), append_of("s2", 1, 1))
        assert outcomes == ["stored"] * 2

    def test_any_bytes_names_and_labels_survive_reopening(self, open_handle: OpenBackend) -> None:
        self._require_reopening()
        stored = [Entry(at, data, data) for at, data in enumerate(HOSTILE_BYTES, 1)]
        texts = sorted({*SIMILAR_TEXTS, *HOSTILE_NAMES})
        first = open_handle()
        append_all(first, *(append_of(name, 1, 1, name[:16]) for name in texts))
        append_all(first, Append("bytes", stored, snapshot=7))
        first.close()

        second = open_handle()
        assert list(second.read("bytes")) == stored
        assert next(second.streams(prefix="bytes")).snapshot == 7
        labels = {head.stream: head.labels for head in second.streams()}
        assert labels == {"bytes": frozenset(), **{name: {name[:16]} for name in texts}}
        assert all(list(second.read(name)) == entries(1, 1) for name in texts)

    def test_stored_entries_survive_a_killed_process(
        self, open_backend: OpenBackend, open_handle: OpenBackend
    ) -> None:
        self._require_reopening()
        self._require_processes()
        child = start_forked(_append_and_kill_self, open_backend)
        child.join()
        assert child.exitcode == -signal.SIGKILL, "the child failed before it killed itself"
        backend = open_handle()
        assert list(backend.read("s")) == entries(3, 6)
        labels = {head.stream: head.labels for head in backend.streams()}
        assert labels == {"s": {"new"}, "branch": {"l"}}
        outcomes = append_all(backend, start_of("branch", 41, 41), append_of("s", 7, 7))
        assert outcomes == ["stored"] * 2

    def test_two_handles_see_each_others_entries_at_once(self, open_handle: OpenBackend) -> None:
        self._require_reopening()
        first, second = open_handle(), open_handle()
        for position in range(1, 11, 2):
            assert append_all(first, append_of("s", position, position)) == ["stored"]
            assert list(second.read("s")) == entries(1, position)
            assert append_all(first, append_of("s", position, position, mark="two")) == ["conflict"]
            assert append_all(second, append_of("s", position + 1, position + 1)) == ["stored"]
            assert list(first.read("s")) == entries(1, position + 1)
        second.drop("s", before=9)
        assert list(first.read("s")) == entries(9, 10)
        first.close()
        assert list(second.read("s")) == entries(9, 10), "closing a handle affected the other"

    def test_two_handles_agree_on_labels_and_on_which_of_them_began_a_stream(
        self, open_handle: OpenBackend
    ) -> None:
        self._require_reopening()
        first, second = open_handle(), open_handle()
        for position, label in enumerate("xyxxyy", 1):
            writer = first if position % 2 else second
            assert append_all(writer, append_of("s", position, position, label)) == ["stored"]
            for handle in (first, second):
                assert [head.labels for head in handle.streams()] == [{label}]
        assert list(second.read("branch")) == []
        append_all(first, append_of("branch", 1, 2))
        assert append_all(second, start_of("branch", 3, 3)) == ["conflict"]
        assert append_all(second, start_of("other", 3, 3)) == ["stored"]
        assert append_all(first, append_of("other", 1, 1)) == ["conflict"]
        assert append_all(first, append_of("other", 4, 4)) == ["stored"]

    def test_exactly_one_of_many_threads_begins_a_stream(self, backend: Backend) -> None:
        won: dict[str, list[int]] = {f"s{number}": [] for number in range(ROUNDS)}
        ready = threading.Barrier(6)

        def race(first: int) -> None:
            for stream, winners in won.items():
                ready.wait()
                if append_all(backend, start_of(stream, first, first)) == ["stored"]:
                    winners.append(first)

        _run_in_threads(6, lambda number: race(number + 1))
        assert [len(winners) for winners in won.values()] == [1] * ROUNDS
        for stream, (first,) in won.items():
            assert list(backend.read(stream)) == entries(first, first)

    def test_exactly_one_of_many_threads_stores_each_position(self, backend: Backend) -> None:
        won: dict[int, list[int]] = {position: [] for position in range(1, ROUNDS + 1)}
        ready = threading.Barrier(8)

        def race(number: int) -> None:
            for position, winners in won.items():
                ready.wait()
                if _try_append(backend, position, f"thread {number}"):
                    winners.append(number)

        _run_in_threads(8, race)
        assert [len(winners) for winners in won.values()] == [1] * ROUNDS
        headers = [stored.header for stored in backend.read("s")]
        for position, (winner,) in won.items():
            assert headers[position - 1] == entry(position, f"thread {winner}").header

    def test_threads_that_write_different_streams_do_not_interfere(self, backend: Backend) -> None:
        def work(number: int) -> None:
            stream = f"stream {number}"
            for position in range(1, 21):
                assert append_all(backend, append_of(stream, position, position)) == ["stored"]
                assert list(backend.read(stream)) == entries(1, position)

        _run_in_threads(8, work)
        assert names(backend) == [f"stream {number}" for number in range(8)]

    def test_readers_see_only_complete_batches(self, backend: Backend) -> None:
        done = threading.Event()
        lengths: set[int] = set()

        def work(number: int) -> None:
            if number == 0:
                for first in range(1, 61, 3):
                    append_all(backend, append_of("s", first, first + 2))
                done.set()
            while not done.is_set():
                lengths.add(len(list(backend.read("s"))))

        _run_in_threads(3, work)
        lengths.add(len(list(backend.read("s"))))
        assert {length % 3 for length in lengths} == {0}
        assert max(lengths) == 60

    def test_exactly_one_of_many_processes_stores_each_position(
        self, open_backend: OpenBackend, open_handle: OpenBackend
    ) -> None:
        self._require_processes()
        won = _race_in_processes(open_backend)
        everything = sorted(position for _, positions in won for position in positions)
        assert everything == [*range(1, ROUNDS + 1)]
        backend = open_handle()
        headers = {stored.position: stored.header for stored in backend.read("s")}
        for mark, positions in won:
            for position in positions:
                assert headers[position] == entry(position, mark).header

    def test_closing_twice_is_harmless(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 1))
        backend.close()
        backend.close()

    def test_a_closed_store_refuses_every_call(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 1))
        assert list(backend.read("s")) == entries(1, 1)
        backend.close()
        with pytest.raises(UsageError, match="closed"):
            backend.append([append_of("s", 2, 2)])
        with pytest.raises(UsageError, match="closed"):
            list(backend.read("s"))
        with pytest.raises(UsageError, match="closed"):
            list(backend.streams())
        with pytest.raises(UsageError, match="closed"):
            backend.drop("s", before=1)
