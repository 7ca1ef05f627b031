"""One session's trouble does not fail another's: what each is told of a batch that failed."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import perdure
from perdure.aio.group_commit import AsyncGroupCommitter
from perdure.backends.digests import digest_of
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Append, Entry, Outcome
from perdure.errors import DamagedError, PerdureError, UnavailableError, UsageError
from perdure.sync.group_commit import GroupCommitter
from tests.support import said

Answers = dict[str, Outcome | BaseException]


def append(stream: str, position: int = 1) -> Append:
    previous = digest_of(f"{stream} {position - 1}".encode()) if position > 1 else ""
    return Append(
        stream, [Entry(position, f"{stream} {position}".encode(), b"")], previous=previous
    )


def name_of(given: Append) -> str:
    position = given.entries[0].position
    return given.stream if position == 1 else f"{given.stream} {position}"


def damaged(_: int = 0) -> Exception:
    return DamagedError("b", 2, "broken")


def away() -> UnavailableError:
    error = UnavailableError("store", "away")
    error.retries_exhausted = True
    return error


def blocked() -> UnavailableError:
    error = away()
    error.single_stream = True
    return error


class Troubled(MemoryBackend):
    """A store that raises what some streams are in trouble with; its first commit waits."""

    def __init__(self) -> None:
        super().__init__()
        self.troubles: dict[str, Callable[[int], Exception]] = {}
        """By stream, what to raise for a batch of so many."""
        self.batches: list[list[str]] = []
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.met: Callable[[list[str]], object] = lambda _: None
        self.expected = 0
        """How many batches have to come before any is answered."""

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        streams = self._begin(appends)
        if len(self.batches) == 1:
            self.entered.set()
            assert self.go_on.wait(30)
        return self._end(streams, appends)

    def _begin(self, appends: Sequence[Append]) -> list[str]:
        streams = [given.stream for given in appends]
        self.batches.append(streams)
        return streams

    def _end(self, streams: list[str], appends: Sequence[Append]) -> Sequence[Outcome]:
        self.met(streams)
        for stream in streams:
            if stream in self.troubles:
                raise self.troubles[stream](len(streams))
        return super().append(appends)


class AsyncTroubled(Troubled):
    """The same for an event loop."""

    async def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:  # type: ignore[override]
        streams = self._begin(appends)
        while len(self.batches) == 1 and not self.go_on.is_set():  # noqa: ASYNC110 - of threads
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        while len(self.batches) < self.expected:  # noqa: ASYNC110 - simple
            await asyncio.sleep(0.001)
        return self._end(streams, appends)


class Threads:
    """Sends appends together, by threads."""

    def __init__(self) -> None:
        self.backend = Troubled()
        self.committer = GroupCommitter(self.backend)

    def together(self, *appends: Append) -> Answers:
        """Have them wait for a commit, so that they go in one; return what each was told."""
        answers: Answers = {}
        self.backend.batches.clear()
        self.backend.go_on.clear()
        self.backend.entered.clear()

        def send(given: Append) -> None:
            try:
                answers[name_of(given)] = self.committer.append(given)
            except BaseException as error:  # noqa: BLE001 - which one it is, is what is asked
                answers[name_of(given)] = error

        threads = [threading.Thread(target=send, args=[append(f"first {time.monotonic()}")])]
        threads[0].start()
        assert self.backend.entered.wait(30)
        for given in appends:
            threads.append(threading.Thread(target=send, args=[given]))
            threads[-1].start()
        time.sleep(0.1)
        self.backend.go_on.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        self.backend.batches.pop(0)
        return {name_of(given): answers[name_of(given)] for given in appends}


class Tasks:
    """The same by tasks."""

    def __init__(self) -> None:
        self.backend = AsyncTroubled()
        self.committer = AsyncGroupCommitter(self.backend)  # type: ignore[arg-type]
        self._loop = asyncio.new_event_loop()

    def together(self, *appends: Append) -> Answers:
        self.backend.batches.clear()
        self.backend.go_on.clear()

        async def send() -> list[Any]:
            first = self.committer.append(append(f"first {time.monotonic()}"))
            await asyncio.sleep(0.01)
            others = [self.committer.append(given) for given in appends]
            await asyncio.sleep(0.01)
            self.backend.go_on.set()
            told = await asyncio.wait_for(
                asyncio.gather(first, *others, return_exceptions=True), 30
            )
            return told[1:]

        told = self._loop.run_until_complete(send())
        self.backend.batches.pop(0)
        return dict(zip(map(name_of, appends), told, strict=True))

    def close(self) -> None:
        self._loop.close()


@pytest.fixture(params=[Threads, Tasks])
def callers(request: pytest.FixtureRequest) -> Iterator[Threads | Tasks]:
    made = request.param()
    yield made
    if isinstance(made, Tasks):
        made.close()


def kinds(answers: Answers) -> dict[str, str]:
    return {
        stream: told.status if isinstance(told, Outcome) else type(told).__name__
        for stream, told in answers.items()
    }


def test_a_stream_that_is_damaged_does_not_fail_those_that_went_with_it(
    callers: Threads | Tasks,
) -> None:
    callers.backend.troubles["b"] = damaged
    told = callers.together(*map(append, "abc"))
    assert kinds(told) == {"a": "stored", "b": "DamagedError", "c": "stored"}
    shared, *alone = callers.backend.batches
    assert shared == ["a", "b", "c"]
    assert sorted(alone) == [["a"], ["b"], ["c"]], "each once more, alone"


def test_a_stream_in_trouble_joins_no_others_until_it_is_well(callers: Threads | Tasks) -> None:
    callers.backend.troubles["b"] = damaged
    callers.together(*map(append, "ab"))
    assert kinds(callers.together(append("a", 2), append("b"), append("c"))) == {
        "a 2": "stored",
        "b": "DamagedError",
        "c": "stored",
    }
    assert sorted(callers.backend.batches) == [["a", "c"], ["b"]], "nothing is sent twice"
    callers.backend.troubles.clear()
    callers.together(append("a", 3), append("b"))
    assert sorted(callers.backend.batches) == [["a"], ["b"]]
    callers.together(append("a", 4), append("b", 2))
    assert callers.backend.batches == [["a", "b"]]


def test_a_store_that_is_away_is_waited_for_once_by_all(callers: Threads | Tasks) -> None:
    callers.backend.troubles["b"] = lambda _: away()
    told = callers.together(*map(append, "abc"))
    assert kinds(told) == dict.fromkeys("abc", "UnavailableError")
    assert callers.backend.batches == [["a", "b", "c"]]
    callers.backend.troubles.clear()
    callers.together(*map(append, "abc"))
    assert callers.backend.batches == [["a", "b", "c"]], "nobody was set apart for that"


def test_a_store_that_goes_away_meanwhile_is_waited_for_once_by_all(
    callers: Threads | Tasks,
) -> None:
    def trouble(size: int) -> Exception:
        return damaged() if size > 1 else away()

    callers.backend.troubles.update(dict.fromkeys("abcdef", trouble))
    told = callers.together(*map(append, "abcdef"))
    assert kinds(told) == dict.fromkeys("abcdef", "UnavailableError")
    assert len(callers.backend.batches) == 2, "the batch, and one of them"
    assert len({id(error) for error in told.values()}) == 6


def test_a_batch_that_is_blocked_is_not_sent_twice(callers: Threads | Tasks) -> None:
    """It would wait for the same lock; alone, most need not."""

    def trouble(_: int) -> Exception:
        error = blocked()
        error.retries_exhausted = False
        return error

    callers.backend.troubles["b"] = trouble
    told = callers.together(*map(append, "abc"))
    assert kinds(told) == {"a": "stored", "b": "UnavailableError", "c": "stored"}
    assert sorted(callers.backend.batches) == [["a"], ["a", "b", "c"], ["b"], ["b"], ["c"]]


def test_those_that_are_blocked_wait_at_the_same_time() -> None:
    """One patience more, however many they are: all of them are sent before any is answered."""
    callers = Threads()
    barrier = threading.Barrier(3)
    callers.backend.met = lambda streams: (
        barrier.wait(30) if len(streams) == 1 and streams[0] in "abc" else None
    )
    callers.backend.troubles["b"] = lambda _: blocked()
    told = callers.together(*map(append, "abc"))
    assert kinds(told) == {"a": "stored", "b": "UnavailableError", "c": "stored"}


def test_those_that_are_blocked_wait_at_the_same_time_in_an_event_loop() -> None:
    callers = Tasks()

    def trouble(size: int) -> Exception:
        callers.backend.expected = 5  # The first one, that of three, and the three alone.
        return blocked()

    callers.backend.troubles["b"] = trouble
    told = callers.together(*map(append, "abc"))
    assert kinds(told) == {"a": "stored", "b": "UnavailableError", "c": "stored"}
    callers.close()


def test_what_one_may_not_ask_for_does_not_fail_the_others(callers: Threads | Tasks) -> None:
    """Such as an entry that is larger than the store can hold."""
    callers.backend.troubles["b"] = lambda _: UsageError("too large")
    told = callers.together(*map(append, "abc"))
    assert kinds(told) == {"a": "stored", "b": "UsageError", "c": "stored"}
    callers.backend.troubles.clear()
    callers.together(append("a", 2), append("b"))
    assert callers.backend.batches == [["a", "b"]], "that was about the call, not the stream"


def test_a_store_that_was_closed_meanwhile_leaves_them_in_doubt(callers: Threads | Tasks) -> None:
    """UsageError would say that nothing was stored, which is not known of the first try."""

    def trouble(size: int) -> Exception:
        return damaged() if size > 1 else UsageError("it is closed")

    callers.backend.troubles.update(dict.fromkeys("ab", trouble))
    assert kinds(callers.together(*map(append, "ab"))) == dict.fromkeys("ab", "DamagedError")


def test_an_error_of_one_of_two_handles_of_a_stream_is_its_own(callers: Threads | Tasks) -> None:
    """They can not go in one batch, and the first one was answered already."""
    second = append("a", 2)
    callers.backend.met = lambda _: (
        callers.backend.troubles.update(a=damaged) if len(callers.backend.batches) == 3 else None
    )
    told = callers.together(append("a"), append("b"), second)
    assert kinds(told) == {"a": "stored", "b": "stored", "a 2": "DamagedError"}
    assert callers.backend.batches == [["a", "b"], ["a"]]


def test_draining_does_not_fail_with_others() -> None:
    callers = Threads()
    callers.backend.troubles["a"] = damaged
    callers.backend.go_on.set()
    with pytest.raises(DamagedError):
        callers.committer.append(append("a"))
    callers.committer.drain()


def test_a_handler_can_not_write_in_the_middle_of_a_resend() -> None:
    callers = Threads()
    told: list[BaseException] = []

    def interrupt(streams: list[str]) -> None:
        if streams == ["a"]:
            try:
                callers.committer.append(append("z"))
            except UsageError as error:
                told.append(error)

    callers.backend.met = interrupt
    callers.backend.troubles["b"] = damaged
    callers.together(*map(append, "ab"))
    assert "middle of a write" in str(told[0])


def test_sessions_of_a_store_are_told_of_their_own() -> None:
    backend = Troubled()
    backend.go_on.set()
    store = perdure.open(backend)
    names = [f"s{number}" for number in range(6)]
    sessions = [store.session(name) for name in names]
    for session in sessions:
        session.append(said("1"))
    backend.troubles["s3"] = damaged
    told: dict[str, list[str]] = {name: [] for name in names}

    def write(number: int) -> None:
        for _ in range(20):
            try:
                sessions[number].append(said("2"))
                told[names[number]].append("stored")
            except PerdureError as error:
                told[names[number]].append(type(error).__name__)

    threads = [threading.Thread(target=write, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    expected = {name: ["stored"] * 20 for name in names} | {"s3": ["DamagedError"] * 20}
    assert told == expected
    backend.troubles.clear()
    sessions[3].append(said("3"))
    assert len(sessions[3].messages()) == 3, "the first that was in doubt is there, too"
    store.close()
