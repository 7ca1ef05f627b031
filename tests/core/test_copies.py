"""Copies within a store that are interrupted: hidden until they are whole, and finished later."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

import pytest

import perdure
from perdure.backends.addresses import open_backend
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import RECENT, Append, Backend, Outcome
from perdure.errors import ConflictError, NotFoundError, UsageError, VersionError
from perdure.journal import chain, headers
from perdure.journal.chain import EMPTY_CHAIN, ChainTip, PendingRecord, StreamIdentity
from perdure.journal.cipher import PlainCipher
from perdure.journal.records import Note, UnknownContent
from perdure.testing.faults import BackendWrapper, Crash, CrashAt, Torn
from tests.support import contents, forgotten, said


def filled(backend: Backend, count: int = 300) -> perdure.Session:
    session = perdure.open(backend).session("s")
    for number in range(count):
        session.append(said(str(number)), id=f"m-{number}")
    return session


@pytest.fixture(params=["memory:", "files", "store.db", "postgres", "redis"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    if request.param == "memory:":
        return MemoryBackend()
    if request.param in ("postgres", "redis"):
        return open_backend(request.getfixturevalue(f"{request.param}_store"))
    return open_backend(
        f"files:{tmp_path / 'files'}" if request.param == "files" else tmp_path / request.param
    )


def crash(session: perdure.Session, wrap: Callable[[Backend], Backend]) -> None:
    """Copy session s as a process that dies in between."""
    store = perdure.open(wrap(session._handle.driver._backend))
    with pytest.raises(Crash):
        store.session("s").copy("c")


Point = Literal["append.before", "append.after"]


def test_a_handle_from_before_the_copy_of_a_compacted_session_loads_its_state() -> None:
    backend = MemoryBackend()
    session = filled(backend, 20)
    session.set("plan", {"a": 1})
    for number in range(10):
        session.append(said(str(number)))
    session.compact(keep=5)
    setter, appender = (perdure.open(backend).session("c") for _ in range(2))
    session.copy("c")
    with pytest.raises(ConflictError, match="records that were compacted since came first"):
        setter.set("plan", {"b": 1})
    assert setter.get("plan") == {"a": 1}
    assert setter.set("plan", {"b": 1}) == 2
    with pytest.raises(ConflictError):
        appender.append(said("late"))
    appender.refresh()
    assert len(appender.messages()) == len(appender) == 5
    for number in range(300):
        appender.append(said(str(number)))
    assert perdure.open(backend).session("c").verify().snapshots


@pytest.mark.parametrize("keep", [5, 290])
def test_an_unfinished_copy_is_refused_after_its_source_was_compacted(keep: int) -> None:
    backend = MemoryBackend()
    session = filled(backend)
    crash(session, lambda inner: CrashAt(inner, "append.after", nth=2))
    session.compact(keep=keep)
    with pytest.raises(UsageError, match=r"choose another id, or call store.delete\('c'\)"):
        session.copy("c")
    store = perdure.open(backend)
    store.delete("c")
    session.copy("d").verify()


def add_unknown(backend: Backend) -> None:
    """Append a record of a kind that this version does not know, and may skip."""
    past = perdure.open(backend).session("s")._replica.history
    draft = PendingRecord(".a-record-of-a-newer-v", UnknownContent(), b'{"fine":true}')
    time = chain.timestamp(0)
    entry, _ = chain.link_entry(
        past.stream, past.tip, [draft], time=time, cipher=past.cipher, kinds=["~mood"]
    )
    assert backend.append([Append("s", [entry], previous=past.tip.digest or "")])


def test_a_record_of_a_kind_that_may_be_skipped_is_copied_as_it_is(backend: Backend) -> None:
    filled(backend, 2)
    add_unknown(backend)
    session = perdure.open(backend).session("s")
    copy = session.copy("c")
    assert [record.kind for record in copy.records()][-2:] == ["~mood", "copied"]
    assert contents(perdure.open(backend).session("c")) == ["0", "1"]
    copy.verify()

    def agent(live: perdure.Session) -> None:
        live.append(said("0"), id="m-0")
        live.append(said("1"), id="m-1")

    assert perdure.replay(session, agent).identical


def test_an_entry_with_a_record_without_a_kind_is_not_made() -> None:
    draft = PendingRecord(".x", UnknownContent(), b"{}")
    identity = StreamIdentity("s", "x")
    with pytest.raises(ValueError, match="without a kind"):
        chain.link_entry(identity, EMPTY_CHAIN, [draft], time="", cipher=PlainCipher())


def test_an_unfinished_copy_that_cannot_be_read_can_be_deleted(backend: Backend) -> None:
    session = filled(backend)
    crash(session, lambda inner: CrashAt(inner, "append.after", nth=1))
    head = next(iter(backend.streams(prefix="c")))
    past = StreamIdentity(
        "c", headers.stream_of(next(iter(backend.streams(prefix="c", headers=True))))
    )
    draft = PendingRecord(".x", Note(data=1), b"{}")
    entry, _ = chain.link_entry(
        past,
        ChainTip(head.position, head.digest),
        [draft],
        time=chain.timestamp(0),
        cipher=PlainCipher(),
        kinds=["newer"],
    )
    assert backend.append([Append("c", [entry], head.labels, head.digest, head.snapshot)])
    store = perdure.open(backend)
    with pytest.raises(VersionError, match="newer"):
        store.session("s").copy("c")
    store.delete("c")
    assert [info.id for info in store.sessions(deleted=True)] == ["c", "s"]
    assert not store.session("c").messages()


POINTS = [(nth, point) for nth in range(1, 5) for point in get_args(Point)]


@pytest.mark.parametrize(("nth", "point"), POINTS)
def test_a_half_copy_is_hidden_and_finished_by_the_same_call(
    backend: Backend, nth: int, point: Point
) -> None:
    session = filled(backend)
    crash(session, lambda inner: CrashAt(inner, point, nth=nth))
    store = perdure.open(backend)
    if nth == 4 and point == "append.after":  # It was whole.
        assert [info.id for info in store.sessions()] == ["c", "s"]
        with pytest.raises(UsageError, match="exists"):
            store.session("s").copy("c")
    else:
        assert [info.id for info in store.sessions()] == ["s"]
        if RECENT in backend.capabilities:
            assert [info.id for info in store.sessions(recent=True)] == ["s"]
        if (nth, point) != (1, "append.before"):
            for open_it in (store.session, store.resume):
                with pytest.raises(NotFoundError, match="an unfinished copy"):
                    open_it("c")
            with pytest.raises(UsageError, match="an unfinished copy"):
                store.session("s").branch("c")
            assert store.verify().ok
        store.session("s").copy("c")
    copy = store.resume("c")
    assert contents(copy) == contents(session)
    assert forgotten(copy) == []
    assert copy.verify().records == session.position + 1


@pytest.mark.parametrize("keep", [1, 50, 127])
def test_a_half_copy_that_ends_within_a_page_is_continued(keep: int) -> None:
    session = filled(backend := MemoryBackend())
    crash(session, lambda inner: CrashAt(Torn(inner, keep=keep, nth=2), "append.before", nth=3))
    copy = perdure.open(backend).session("s").copy("c")
    assert contents(copy) == contents(session)
    copy.verify()


def test_a_half_copy_can_be_deleted() -> None:
    session = filled(backend := MemoryBackend())
    crash(session, lambda inner: CrashAt(inner, "append.after", nth=2))
    store = perdure.open(backend)
    store.delete("c")
    assert [info.id for info in store.sessions(deleted=True)] == ["c", "s"]
    with pytest.raises(UsageError, match="was deleted"):
        store.session("s").copy("c")
    store.session("c").append(said("new"))


def test_a_half_copy_of_another_session_is_refused() -> None:
    session = filled(backend := MemoryBackend())
    crash(session, lambda inner: CrashAt(inner, "append.after", nth=2))
    other = perdure.open(backend).session("other")
    for _ in range(300):
        other.append(said("other"))
    with pytest.raises(UsageError, match="an unfinished copy of another session"):
        other.copy("c")
    assert contents(session.copy("c")) == contents(session)


def test_a_handle_opened_before_the_copy_does_not_write_to_a_half_of_it() -> None:
    session = filled(backend := MemoryBackend())
    early = perdure.open(backend).session("c")
    crash(session, lambda inner: CrashAt(inner, "append.after", nth=2))
    with pytest.raises(NotFoundError, match="an unfinished copy"):
        early.append(said("mine"))
    copy = session.copy("c")
    assert contents(copy) == contents(session)
    early.refresh()
    assert contents(early) == contents(session)


class _Overtaken(BackendWrapper):
    """Lets another process finish the same copy before the nth append."""

    def __init__(self, backend: Backend, act: Callable[[], object]) -> None:
        super().__init__(backend)
        self._act: Callable[[], object] | None = act

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        outcomes = self.backend.append(appends)
        if self._act is not None:
            act, self._act = self._act, None
            act()
        return outcomes


def test_two_processes_that_copy_at_once_make_one_copy() -> None:
    session = filled(backend := MemoryBackend())
    store = perdure.open(_Overtaken(backend, lambda: session.copy("c")))
    with pytest.raises(UsageError, match="exists"):
        store.session("s").copy("c")
    copy = perdure.open(backend).session("c")
    assert contents(copy) == contents(session)
    copy.verify()
