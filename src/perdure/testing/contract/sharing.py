"""What holds between handles, threads, processes, and after closing, as tests."""

# ruff: noqa: S101, PLR2004 - these are tests, though they are shipped.
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from perdure.backends.protocol import Append, Backend, Entry
from perdure.errors import UsageError
from perdure.testing.contract.samples import (
    ALIKE,
    HOSTILE_BYTES,
    HOSTILE_NAMES,
    OpenBackend,
    appended,
    begun,
    entries,
    names,
    status,
)

RACERS = 4

ROUNDS = 25


def _race(open_backend: OpenBackend, mark: str, results: Any) -> None:
    """Try to be the one who stores each position; tell which were won."""
    backend = open_backend()
    try:
        won = [p for p in range(1, ROUNDS + 1) if _one_round(backend, p, mark)]
    finally:
        backend.close()
    results.put((mark, won))


def _one_round(backend: Backend, position: int, mark: str) -> bool:
    (outcome,) = backend.append([appended("s", position, position, mark=mark)])
    assert outcome.status in {"stored", "conflict"}
    return outcome.status == "stored"


def _append_and_die(open_backend: OpenBackend) -> None:
    """Die as a process dies that is killed: nothing is closed, and nothing runs at its exit."""
    backend = open_backend()
    assert status(backend, appended("s", 1, 5, "old"), begun("branch", 41, 41, "l")) == [
        "stored",
        "stored",
    ]
    assert status(backend, appended("s", 6, 6, "new")) == ["stored"]
    backend.drop("s", before=3)
    os.kill(os.getpid(), signal.SIGKILL)


def _in_threads(count: int, work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread.
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _in_processes(open_backend: OpenBackend) -> list[tuple[str, list[int]]]:
    context = multiprocessing.get_context("fork")  # A factory can not be sent to another program.
    results: Any = context.SimpleQueue()
    racers = [
        context.Process(target=_race, args=(open_backend, f"racer {number}", results))
        for number in range(RACERS)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # The children only open a store.
        for racer in racers:
            racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0] * RACERS
    return [results.get() for _ in racers]


class SharingContract:
    """One store, many users."""

    reopens: bool
    processes: bool

    def _require_reopening(self) -> None:
        if not self.reopens:
            pytest.skip("this store is gone when it is closed")

    def _require_processes(self) -> None:
        if not self.processes:
            pytest.skip("other processes can not reach this store")
        if "fork" not in multiprocessing.get_all_start_methods():
            pytest.skip("this system can not fork")

    def test_what_was_stored_is_there_when_the_store_is_opened_again(
        self, open_backend: OpenBackend
    ) -> None:
        self._require_reopening()
        first = open_backend()
        status(first, appended("s", 1, 5, "l"), appended("other", 1, 1))
        first.drop("s", before=2)
        first.close()

        second = open_backend()
        assert list(second.read("s")) == entries(2, 5)
        assert [head.stream for head in second.streams(labels=["l"])] == ["s"]
        assert status(second, appended("s", 5, 6), appended("s2", 1, 1)) == ["stored", "stored"]
        second.close()

    def test_any_bytes_names_and_labels_are_there_when_the_store_is_opened_again(
        self, open_backend: OpenBackend
    ) -> None:
        self._require_reopening()
        stored = [Entry(at, data, data) for at, data in enumerate(HOSTILE_BYTES, 1)]
        texts = sorted({*ALIKE, *HOSTILE_NAMES})
        first = open_backend()
        status(first, *(appended(name, 1, 1, name[:16]) for name in texts))
        status(first, Append("bytes", stored))
        first.close()

        second = open_backend()
        assert list(second.read("bytes")) == stored
        found = {head.stream: head.labels for head in second.streams()}
        assert found == {"bytes": frozenset(), **{name: {name[:16]} for name in texts}}
        assert all(list(second.read(name)) == entries(1, 1) for name in texts)
        second.close()

    def test_what_was_stored_is_there_though_the_process_died(
        self, open_backend: OpenBackend
    ) -> None:
        self._require_reopening()
        self._require_processes()
        context = multiprocessing.get_context("fork")
        child = context.Process(target=_append_and_die, args=(open_backend,))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL, "it did not get as far as to die"
        backend = open_backend()
        assert list(backend.read("s")) == entries(3, 6)
        assert {head.stream: head.labels for head in backend.streams()} == {
            "s": {"new"},
            "branch": {"l"},
        }
        assert status(backend, begun("branch", 41, 41), appended("s", 7, 7)) == ["stored"] * 2
        backend.close()

    def test_two_handles_see_each_others_entries_at_once(self, open_backend: OpenBackend) -> None:
        self._require_reopening()
        one, two = open_backend(), open_backend()
        for position in range(1, 11, 2):
            assert status(one, appended("s", position, position)) == ["stored"]
            assert list(two.read("s")) == entries(1, position)
            assert status(one, appended("s", position, position, mark="two")) == ["conflict"]
            assert status(two, appended("s", position + 1, position + 1)) == ["stored"]
            assert list(one.read("s")) == entries(1, position + 1)
        two.drop("s", before=9)
        assert list(one.read("s")) == entries(9, 10)
        one.close()
        assert list(two.read("s")) == entries(9, 10), "closing one leaves the other alone"
        two.close()

    def test_two_handles_agree_on_labels_and_on_who_began(self, open_backend: OpenBackend) -> None:
        self._require_reopening()
        one, two = open_backend(), open_backend()
        for position, label in enumerate("xyxxyy", 1):
            writer = one if position % 2 else two
            assert status(writer, appended("s", position, position, label)) == ["stored"]
            for handle in (one, two):
                assert [head.labels for head in handle.streams()] == [{label}]
        assert list(two.read("branch")) == []
        status(one, appended("branch", 1, 2))
        assert status(two, begun("branch", 3, 3)) == ["conflict"]
        assert status(two, begun("other", 3, 3)) == ["stored"]
        assert status(one, appended("other", 1, 1)) == ["conflict"]
        assert status(one, appended("other", 4, 4)) == ["stored"]
        one.close()
        two.close()

    def test_of_many_who_begin_a_stream_exactly_one_does(self, backend: Backend) -> None:
        won: dict[str, list[int]] = {f"s{number}": [] for number in range(ROUNDS)}
        ready = threading.Barrier(6)

        def race(first: int) -> None:
            for stream, winners in won.items():
                ready.wait()
                if status(backend, begun(stream, first, first)) == ["stored"]:
                    winners.append(first)

        _in_threads(6, lambda number: race(number + 1))
        assert [len(winners) for winners in won.values()] == [1] * ROUNDS
        for stream, (first,) in won.items():
            assert list(backend.read(stream)) == entries(first, first)

    def test_of_many_threads_exactly_one_stores_each_position(self, backend: Backend) -> None:
        won: dict[int, list[int]] = {position: [] for position in range(1, ROUNDS + 1)}
        ready = threading.Barrier(8)

        def race(number: int) -> None:
            for position, winners in won.items():
                ready.wait()
                if _one_round(backend, position, f"thread {number}"):
                    winners.append(number)

        _in_threads(8, race)
        assert [len(winners) for winners in won.values()] == [1] * ROUNDS
        marks = [one.header for one in backend.read("s")]
        for position, (winner,) in won.items():
            assert (
                marks[position - 1]
                == appended("s", position, position, mark=f"thread {winner}").entries[0].header
            )

    def test_threads_with_their_own_streams_do_not_disturb_each_other(
        self, backend: Backend
    ) -> None:
        def work(number: int) -> None:
            stream = f"stream {number}"
            for position in range(1, 21):
                assert status(backend, appended(stream, position, position)) == ["stored"]
                assert list(backend.read(stream)) == entries(1, position)

        _in_threads(8, work)
        assert names(backend) == [f"stream {number}" for number in range(8)]

    def test_readers_see_whole_batches_only(self, backend: Backend) -> None:
        done = threading.Event()
        lengths: set[int] = set()

        def work(number: int) -> None:
            if number == 0:
                for first in range(1, 61, 3):
                    status(backend, appended("s", first, first + 2))
                done.set()
            while not done.is_set():
                lengths.add(len(list(backend.read("s"))))

        _in_threads(3, work)
        lengths.add(len(list(backend.read("s"))))
        assert {length % 3 for length in lengths} == {0}
        assert max(lengths) == 60

    def test_of_many_processes_exactly_one_stores_each_position(
        self, open_backend: OpenBackend
    ) -> None:
        self._require_processes()
        won = _in_processes(open_backend)
        assert sorted(position for _, mine in won for position in mine) == [*range(1, ROUNDS + 1)]
        backend = open_backend()
        headers = {one.position: one.header for one in backend.read("s")}
        for mark, mine in won:
            for position in mine:
                (wanted,) = appended("s", position, position, mark=mark).entries
                assert headers[position] == wanted.header
        backend.close()

    def test_closing_twice_is_harmless(self, open_backend: OpenBackend) -> None:
        backend = open_backend()
        status(backend, appended("s", 1, 1))
        backend.close()
        backend.close()

    def test_a_closed_store_refuses_every_call(self, open_backend: OpenBackend) -> None:
        backend = open_backend()
        status(backend, appended("s", 1, 1))
        assert list(backend.read("s")) == entries(1, 1)
        backend.close()
        with pytest.raises(UsageError, match="closed"):
            backend.append([appended("s", 2, 2)])
        with pytest.raises(UsageError, match="closed"):
            list(backend.read("s"))
        with pytest.raises(UsageError, match="closed"):
            list(backend.streams())
        with pytest.raises(UsageError, match="closed"):
            backend.drop("s", before=1)
