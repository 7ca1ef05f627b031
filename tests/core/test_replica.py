"""Writes that fail: lost answers, failed group commits."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

import perdure
from perdure.backends import protocol
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import Append, Outcome
from perdure.errors import (
    ConflictError,
    HistoryReplacedError,
    UnavailableError,
    UnstorableError,
    UsageError,
)
from perdure.testing import Flaky
from tests.support import contents, said


class Failing(MemoryBackend):
    """Fails the appends whose numbers are listed, before or after they were carried out."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.before: set[int] = set()
        self.after: set[int] = set()

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        self.calls += 1
        if self.calls in self.before:
            raise UnavailableError("test", "failed before")
        outcomes = super().append(appends)
        if self.calls in self.after:
            raise UnavailableError("test", "failed after")
        return outcomes


@pytest.fixture
def backend() -> Failing:
    return Failing()


@pytest.fixture
def session(backend: Failing) -> perdure.Session:
    session = perdure.open(backend).session("s")
    session.append(said("first"))
    return session


def fail(backend: Failing, *, before: Sequence[int] = (), after: Sequence[int] = ()) -> None:
    """Fail appends, counted from the next one; the committer tries each twice."""
    backend.before = {backend.calls + number for number in before}
    backend.after = {backend.calls + number for number in after}


def test_one_failure_is_healed_by_sending_the_same_again(
    backend: Failing, session: perdure.Session
) -> None:
    for kind in ("before", "after"):
        fail(backend, **{kind: [1]})
        session.append(said(kind))
    assert contents(session) == ["first", "before", "after"]
    session.verify()


def test_a_write_in_doubt_that_was_stored_is_found_to_be_so(
    backend: Failing, session: perdure.Session
) -> None:
    fail(backend, after=[1, 2])
    with pytest.raises(UnavailableError, match="repeat the call only with the same id="):
        session.append(said("lost answer"))
    assert contents(session) == ["first"]
    session.append(said("next"))
    assert contents(session) == ["first", "lost answer", "next"]
    assert perdure.open(backend).session("s").verify().position == 3


def test_a_write_in_doubt_that_was_not_stored_is_stored_before_anything_else(
    backend: Failing, session: perdure.Session
) -> None:
    fail(backend, before=[1, 2])
    with pytest.raises(UnavailableError):
        session.append(said("late"), id="m-1")
    assert session.append(said("late"), id="m-1") == 2
    assert contents(session) == ["first", "late"]


def test_a_write_in_doubt_stays_so_while_the_store_takes_no_call(
    backend: Failing, session: perdure.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a file that can only be read for a while."""
    fail(backend, after=[1, 2])
    with pytest.raises(UnavailableError):
        session.append(said("mine"))

    def refuse(_: Sequence[Append]) -> Sequence[Outcome]:
        raise UsageError("it can only be read")

    with monkeypatch.context() as patch:
        patch.setattr(backend, "append", refuse)
        with pytest.raises(UsageError, match="only be read"):
            session.note("on the way")
    session.append(said("next"))
    assert contents(session) == ["first", "mine", "next"]


def test_a_write_in_doubt_that_the_store_will_never_take_is_given_up(
    backend: Failing, session: perdure.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(backend, before=[1, 2])
    with pytest.raises(UnavailableError):
        session.append(said("too much"))

    def refuse(_: Sequence[Append]) -> Sequence[Outcome]:
        raise UnstorableError("more than it can hold")

    with monkeypatch.context() as patch:
        patch.setattr(backend, "append", refuse)
        with pytest.raises(UsageError, match="more than it can hold"):
            session.append(said("next"))
    session.append(said("less"))
    assert contents(session) == ["first", "less"]


def test_a_write_in_doubt_gives_way_to_another_writer(
    backend: Failing, session: perdure.Session
) -> None:
    fail(backend, before=[1, 2])
    with pytest.raises(UnavailableError):
        session.append(said("never stored"))
    perdure.open(backend).session("s").append(said("theirs"))
    with pytest.raises(ConflictError):
        session.append(said("mine"))
    assert contents(session) == ["first", "theirs"]
    session.append(said("mine"))
    assert contents(session) == ["first", "theirs", "mine"]


def test_nothing_is_written_while_the_doubt_lasts(
    backend: Failing, session: perdure.Session
) -> None:
    fail(backend, before=range(1, 7))
    for text in ("a", "b", "c"):
        with pytest.raises(UnavailableError):
            session.append(said(text))
    session.refresh()
    assert contents(session) == ["first", "a"]


def test_closing_settles_what_is_in_doubt(backend: Failing, session: perdure.Session) -> None:
    fail(backend, before=[1, 2])
    with pytest.raises(UnavailableError):
        session.append(said("late"))
    session.close()
    assert contents(perdure.open(backend).session("s")) == ["first", "late"]


def test_a_turn_that_fails_because_the_store_does_keeps_its_own_error(
    backend: Failing, session: perdure.Session
) -> None:
    turn = session.turn("question")
    turn.__enter__()
    fail(backend, before=range(1, 3))
    error = KeyError("mine")
    turn.__exit__(KeyError, error, None)
    assert "could not record that the turn failed" in error.__notes__[0]
    session.refresh()
    assert session.interrupted == ()


def test_a_refused_gap_is_a_history_that_was_replaced_and_not_a_conflict(
    backend: Failing, session: perdure.Session
) -> None:
    """A store that was put back to an older state must not be written on."""
    older = {name: list(entries) for name, entries in _streams(backend).items()}
    session.append(said("second"))
    session.append(said("third"))
    _restore(backend, older)
    with pytest.raises(HistoryReplacedError):
        session.append(said("fourth"))


def _streams(backend: MemoryBackend) -> dict[str, list[protocol.Entry]]:
    return {head.stream: list(backend.read(head.stream)) for head in backend.streams()}


def _restore(backend: MemoryBackend, streams: dict[str, list[protocol.Entry]]) -> None:
    fresh = MemoryBackend()
    for name, entries in streams.items():
        fresh.append([Append(name, entries)])
    backend.__dict__.update(fresh.__dict__)


def test_a_group_commit_that_fails_answers_every_waiter_and_loses_nothing() -> None:
    backend = MemoryBackend()
    flaky = Flaky(backend, fail=0.5, seed=7, after_commit=True)
    store = perdure.open(flaky)
    acknowledged: dict[str, list[str]] = {f"s-{number}": [] for number in range(16)}

    def work(name: str) -> None:
        session = store.session(name)
        for number in range(20):
            try:
                session.append(said(str(number)), id=str(number))
            except UnavailableError:
                continue
            acknowledged[name].append(str(number))

    threads = [threading.Thread(target=work, args=(name,)) for name in acknowledged]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert any(len(done) < 20 for done in acknowledged.values())
    for name, done in acknowledged.items():
        stored = contents(perdure.open(backend).session(name))
        assert set(done) <= set(stored)
        assert len(stored) == len(set(stored))


class Lossy(MemoryBackend):
    """Fails appends to some streams before they are carried out."""

    def __init__(self) -> None:
        super().__init__()
        self.losing: set[str] = set()

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        if any(append.stream in self.losing for append in appends):
            raise UnavailableError("test", "lost")
        return super().append(appends)

    def close(self) -> None:
        """Stay, to be looked at."""


@pytest.mark.parametrize("is_async", [False, True])
def test_closing_a_store_settles_every_doubt_that_it_can(*, is_async: bool) -> None:
    backend = Lossy()
    names = {f"s{number}" for number in range(6)}
    backend.losing = {*names}
    if is_async:
        asyncio.run(_lose_and_close(backend, names))
    else:
        store = perdure.open(backend)
        sessions = [store.session(name) for name in names]
        for session in sessions:
            with pytest.raises(UnavailableError):
                session.append(said("mine"))
        backend.losing = {"s3"}
        with pytest.raises(UnavailableError):
            store.close()
    assert {head.stream for head in backend.streams()} == names - {"s3"}


async def _lose_and_close(backend: Lossy, names: set[str]) -> None:
    store = perdure.open_async(ThreadedBackend(backend))
    sessions = [await store.session(name) for name in names]
    for session in sessions:
        with pytest.raises(UnavailableError):
            await session.append(said("mine"))
    backend.losing = {"s3"}
    with pytest.raises(UnavailableError):
        await store.close()
