"""Leases: one handle at a time writes; whoever slept too long is fenced; nothing asks the time."""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Append, Outcome
from perdure.core.conflicts import CONFLICT_RULES
from perdure.core.state.session_state import SessionState
from perdure.errors import (
    ConflictError,
    FencedError,
    LeaseHeldError,
    NotFoundError,
    PerdureError,
    UnavailableError,
    UsageError,
)
from perdure.journal.records import LeaseReleased, LeaseRenewed, LeaseTaken
from perdure.journal.requests import Request
from perdure.sync import lease as lease_module
from tests.support import contents, said

Pair = tuple[perdure.Session, perdure.Session]


class Clock:
    """A monotonic clock that goes only when it is turned, or when somebody sleeps."""

    def __init__(self) -> None:
        self.at = 1_000.0

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


class Away(MemoryBackend):
    """A store that can be away: before it stores what it gets, or before it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.away = ""
        self.appends = 0

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        if self.away == "before":
            raise UnavailableError("test", "away")
        self.appends += 1
        outcomes = super().append(appends)
        if self.away == "after":
            raise UnavailableError("test", "no answer")
        return outcomes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that leases go by. Renewals in the background wait in real time: for 10 s."""
    clock = Clock()
    monkeypatch.setattr(lease_module, "time", clock)
    monkeypatch.setattr(lease_module.Lease, "_wait", lambda _, seconds, __: clock.sleep(seconds))
    return clock


@pytest.fixture
def backend() -> Away:
    return Away()


@pytest.fixture
def store(backend: Away) -> perdure.Store:
    return perdure.open(backend)


@pytest.fixture
def pair(store: perdure.Store, backend: Away) -> Pair:
    store.session("s").append(said("first"))
    return store.session("s"), perdure.open(backend).session("s")


@pytest.fixture
def held(pair: Pair, clock: Clock) -> Iterator[tuple[perdure.Session, perdure.Session, Any]]:
    """A session that one handle holds, another handle, and the lease. The clock stands."""
    one, two = pair
    lease = one.lease(owner="one")
    lease.__enter__()
    two.refresh()
    yield one, two, lease
    lease.release()


Held = tuple[perdure.Session, perdure.Session, Any]


def in_a_turn(session: perdure.Session) -> None:
    with session.turn("hello"):
        pass


def abandon(session: perdure.Session) -> None:
    session.interrupted[0].abandon()


def go_on(session: perdure.Session) -> None:
    with session.interrupted[0]:
        pass


# What changes a session, and may be done only by whoever holds it.
BARRED: dict[str, Callable[[perdure.Session], object]] = {
    "append": lambda session: session.append(said("x")),
    "turn": in_a_turn,
    "continue": go_on,
    "abandon": abandon,
    "set": lambda session: session.set("key", 1),
    "delete": lambda session: session.delete("known"),
    "pin": lambda session: session.pin(1),
    "summarize": lambda session: session.summarize(lambda _: "short", keep_turns=1),
}


@pytest.fixture
def busy(store: perdure.Store) -> Pair:
    """Two handles on a session with a turn that was left open, a value and something to sum up."""
    session = store.session("s")
    session.append(said("a long beginning " * 50))
    session.set("known", 1)
    session.turn("left open").__enter__()
    return store.session("s"), store.session("s")


@pytest.mark.parametrize("act", BARRED.values(), ids=BARRED)
def test_others_can_not_change_what_one_holds(
    busy: Pair, act: Callable[[perdure.Session], object]
) -> None:
    one, two = busy
    with one.lease(owner="worker 1") as lease:
        with pytest.raises(LeaseHeldError, match="held by 'worker 1'") as refused:
            act(two)
        assert (refused.value.epoch, refused.value.ttl) == (lease.epoch, 30.0)
        before = one.refresh()
        assert before == refused.value.position, "something was written"
        act(one)
        assert one.position > before
    store_kinds = [record.kind for record in one.records()]
    assert store_kinds[-1] == "lease.released"
    one.verify()


@pytest.mark.parametrize("act", BARRED.values(), ids=BARRED)
def test_and_can_when_nobody_does(busy: Pair, act: Callable[[perdure.Session], object]) -> None:
    one, two = busy
    with one.lease():
        pass
    two.refresh()
    act(two)
    two.verify()


@pytest.mark.parametrize("act", BARRED.values(), ids=BARRED)
def test_a_handle_that_saw_the_lease_is_not_refused_after_its_release(
    busy: Pair, act: Callable[[perdure.Session], object]
) -> None:
    one, two = busy
    with one.lease(owner="one"):
        two.refresh()
        with pytest.raises(LeaseHeldError):
            act(two)
    act(two)
    two.verify()


def test_what_the_holder_wrote_is_a_conflict_for_who_has_not_seen_it(held: Held) -> None:
    one, two, lease = held
    one.append(said("written under the lease"))
    lease.release()
    two.note("open to all, and not yet a look")
    with pytest.raises(ConflictError):
        two.append(said("in view of what was before"))
    assert contents(two) == ["first", "written under the lease"]
    two.append(said("in view of it"))


def test_a_session_that_was_deleted_under_the_lease_is_a_conflict(
    held: Held, store: perdure.Store
) -> None:
    _, two, lease = held
    lease.release()
    store.delete("s")
    with pytest.raises(ConflictError):
        two.append(said("more"))
    with pytest.raises(NotFoundError):
        two.append(said("more"))


def test_a_refusal_costs_one_read(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    _, two, _ = held
    asked: list[object] = []
    driver = two._handle.driver
    answer = driver.answer

    def counted(request: Request) -> Any:
        asked.append(request)
        return answer(request)

    monkeypatch.setattr(driver, "answer", counted)
    for count in (1, 2):
        with pytest.raises(LeaseHeldError):
            two.append(said("x"))
        assert len(asked) == count
    two.note("open to all")
    two.refresh()
    assert len(asked) == 3, "a note asks nothing, and a refresh not twice"


def test_a_held_session_is_not_deleted(pair: Pair, store: perdure.Store) -> None:
    with pair[0].lease(), pytest.raises(LeaseHeldError):
        store.delete("s")
    store.delete("s")


def test_notes_labels_and_branches_are_open_to_all(held: Held, store: perdure.Store) -> None:
    one, two, _ = held
    two.note("seen")
    two.label("vip")
    branch = two.branch("b")
    assert branch.lease_holder is None
    branch.append(said("free"))
    one.append(said("second"))
    assert {"vip", "leased"} <= one.labels
    assert not {"vip", "leased"} & branch.labels
    one.verify()
    branch.verify()


def test_what_is_open_to_all_is_named_in_one_table() -> None:
    """A kind that comes new must not be open without being meant to be."""
    assert {kind for kind, yields in CONFLICT_RULES.items() if yields.bypasses_lease} == {
        "accept-rollback",
        "approval.decide",
        "catch-up",
        "copy",
        "effect.settle",
        "describe",
        "keep",
        "label",
        "lease.release",
        "lease.take",
        "note",
        "refresh",
        "release",
        "view",
    }


def test_a_decision_is_taken_from_anybody(pair: Pair) -> None:
    one, two = pair
    done: list[str] = []

    def pay() -> str:
        done.append("paid")
        return "paid"

    def decide() -> None:
        for record in two.watch(timeout=60):
            if record.kind == "approval.requested":
                two.approvals.approve(record.id, by="boss")
                return

    deciding = threading.Thread(target=decide)
    deciding.start()
    with one.lease(), one.turn("pay"):
        assert one.tool(pay, approval=True, approval_wait=60)() == "paid"
    deciding.join()
    assert done == ["paid"]
    (approval,) = one.approvals.list()
    assert (approval.by, approval.state) == ("boss", "used")


def test_an_outcome_is_taken_from_whoever_made_the_call(pair: Pair) -> None:
    """What became of a call is a fact, whoever holds the session by now."""
    one, two = pair

    def call() -> str:
        with two.lease(force=True):  # While the tool is at it.
            return "done"

    tool = one.tool(call, effect="idempotent")
    with pytest.raises(FencedError), one.lease(), one.turn("go"):
        assert tool() == "done"
    (effect,) = store_effects(one)
    assert effect.state == "succeeded"


def store_effects(session: perdure.Session) -> Any:
    session.refresh()
    return session.effects.list()


def test_who_holds_a_session_is_seen(pair: Pair, store: perdure.Store) -> None:
    one, two = pair
    assert one.lease_holder is None
    with one.lease(ttl=5, owner="one") as lease:
        assert (lease.epoch, lease.held, lease.lost.is_set()) == (1, True, False)
        assert one.lease_holder == (1, "one", 5.0, True)
        two.refresh()
        assert two.lease_holder == (1, "one", 5.0, False)
        assert store.session("s").lease_holder == two.lease_holder
        assert [head.id for head in store.sessions(labels=["leased"])] == ["s"]
    assert not lease.held
    assert one.lease_holder is None
    assert [*store.sessions(labels=["leased"])] == []
    with two.lease() as second:
        assert second.epoch == 2
        assert str(os.getpid()) in (two.lease_holder or ("", ""))[1]


def test_without_waiting_a_held_session_is_refused_at_once(held: Held, clock: Clock) -> None:
    _, two, _ = held
    before = clock.at
    with pytest.raises(LeaseHeldError), two.lease():
        pass
    assert clock.at == before
    with pytest.raises(LeaseHeldError), two.lease(timeout=12):
        pass
    assert before + 12 <= clock.at < before + 13


def test_a_lease_is_taken_over_when_its_time_has_passed(held: Held, clock: Clock) -> None:
    one, two, first = held
    before = clock.at
    with two.lease(timeout=True, owner="two") as second:
        assert second.epoch == 2
        assert before + 30 <= clock.at < before + 31
        two.append(said("by two"))
        assert not first.held
        with pytest.raises(FencedError) as fenced:
            one.append(said("stale"))
        assert (fenced.value.epoch, fenced.value.newer) == (1, 0)
    assert contents(two) == ["first", "by two"]


def test_a_renewal_makes_a_contender_wait_again(held: Held, clock: Clock) -> None:
    _, two, first = held
    with pytest.raises(LeaseHeldError), two.lease(timeout=29):
        pass
    first._renew()
    with pytest.raises(LeaseHeldError), two.lease(timeout=29):
        pass
    with two.lease(timeout=3):  # This handle has seen the renewal 29 seconds ago.
        pass


def test_a_renewal_after_the_last_look_voids_the_takeover(
    held: Held, clock: Clock, backend: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contender has made up its mind when the renewal comes first."""
    one, two, first = held
    renewed = False

    def append(appends: Sequence[Append]) -> Sequence[Outcome]:
        nonlocal renewed
        if not renewed:
            renewed = True
            clock.at -= 15  # The holder's own clock says that half of the time is left.
            assert first._renew() is not None
            clock.at += 15
        return MemoryBackend.append(backend, appends)

    clock.at += 29
    with pytest.raises(LeaseHeldError), two.lease():  # From now on two knows of the lease.
        pass
    clock.at += 30
    first._holding.renew(clock.at - 20)
    monkeypatch.setattr(backend, "append", append)
    with pytest.raises(LeaseHeldError), two.lease():
        pass
    monkeypatch.undo()
    assert renewed
    assert [record.kind for record in one.records()][-1] == "lease.renewed"


def test_whoever_was_taken_over_from_is_fenced_by_position(held: Held, clock: Clock) -> None:
    """Its own clock stood still, as that of a machine that slept: it believes in its lease."""
    one, two, first = held
    with one.turn("question") as turn:
        with two.lease(force=True, owner="operator"):
            with two.interrupted[0] as taken:
                taken.append(said("answer", "assistant"))
            acts: list[Callable[[], object]] = [
                lambda: turn.append(said("stale", "assistant")),
                lambda: one.append(said("stale")),
                lambda: one.set("key", 1),
                turn.complete,
            ]
            for act in acts:
                assert not first.lost.is_set() or act is not acts[0]
                with pytest.raises(FencedError, match="'operator' took over") as fenced:
                    act()
                assert (fenced.value.epoch, fenced.value.newer) == (1, 2)
                assert fenced.value.holder == "operator"
            one.note("what I know")
        with pytest.raises(FencedError):  # Although nobody holds it any more.
            one.append(said("stale"))
        turn.suspend()
    assert first.lost.is_set()
    with pytest.raises(FencedError):
        first.__exit__(None, None, None)
    one.refresh()
    one.append(said("as anybody may"))
    assert contents(one) == ["first", "question", "answer", "as anybody may"]
    (taken_record,) = [one for one in two.records() if one.kind == "lease.taken"][1:]
    assert taken_record.content.forced  # type: ignore[attr-defined]


def test_a_renewal_that_comes_too_late_renews_nothing(held: Held) -> None:
    """Its machine slept, and it has not seen that it was taken over from."""
    _, two, first = held
    with two.lease(force=True, owner="two"):
        assert first._renew() is None
        assert first.lost.is_set()
        assert not first.held


def test_the_end_of_a_lease_says_that_it_was_lost(pair: Pair, clock: Clock) -> None:
    """Also to a body that wrote nothing: it was not alone."""
    one, two = pair
    with pytest.raises(FencedError, match="took over"), one.lease(), two.lease(force=True):
        pass
    with pytest.raises(FencedError, match="no renewal was stored for 30 s"), one.lease():
        clock.at += 30
    with pytest.raises(ZeroDivisionError), one.lease():  # The body's own error says more.
        clock.at += 30 + 1 / 0


def test_a_holder_stops_before_others_may_take_over(
    held: Held, clock: Clock, backend: Away
) -> None:
    one, two, first = held
    clock.at += 29.9
    one.append(said("in time"))
    clock.at += 0.1
    before = backend.appends
    with pytest.raises(FencedError, match="no renewal"):
        one.append(said("late"))
    assert backend.appends == before, "it reached the store"
    assert first.lost.is_set()
    one.note("notes are open to all")
    with pytest.raises(LeaseHeldError), two.lease():  # Others count from later on.
        pass
    first._renew()
    with pytest.raises(FencedError, match="no renewal"):
        one.append(said("once lost, it stays lost"))


def test_a_renewal_that_fails_is_tried_again_until_the_time_has_passed(
    held: Held, clock: Clock, backend: Away
) -> None:
    one, _, first = held
    backend.away = "before"
    for _ in range(11):
        clock.at += 2.5
        pause = first._renew()
        assert pause == 2.5
        assert first.held
    backend.away = ""
    assert first._renew() == 10.0
    clock.at += 29
    assert first.held
    backend.away = "before"
    clock.at += 1
    assert first._renew() is None
    assert first.lost.is_set()
    backend.away = ""
    with pytest.raises(FencedError, match="no renewal"):
        one.append(said("late"))


def test_a_renewal_without_an_answer_counts_only_when_it_is_known(
    held: Held, clock: Clock, backend: Away
) -> None:
    one, _, first = held
    clock.at += 20
    backend.away = "after"
    assert first._renew() == 2.5
    backend.away = ""
    assert first.held
    clock.at += 10
    assert not first.held
    one.verify()


def test_a_wall_clock_that_tells_no_time_does_not_end_a_lease(clock: Clock) -> None:
    times = iter([0.0, 0.0, float("nan"), float("nan"), 1e300])
    session = perdure.open("memory:", clock=lambda: next(times, 0.0)).session("s")
    with session.lease() as lease:
        session.append(said("first"))
        for _ in range(3):
            clock.at += 2.5
            assert lease._renew() == 2.5
        assert lease._renew() == 10.0
        assert lease.held


def test_taking_without_an_answer_binds_nobody_here(pair: Pair, backend: Away) -> None:
    """The lease may stand in the record; the handle that asked for it can go on at once."""
    one, two = pair
    backend.away = "after"
    with pytest.raises(UnavailableError), one.lease():
        pass
    backend.away = ""
    one.append(said("without a lease"))
    with pytest.raises(LeaseHeldError):
        two.append(said("others wait"))
    with one.lease() as lease:
        assert lease.epoch == 2
    two.refresh()
    two.append(said("now they may"))
    two.verify()


def test_a_lease_that_could_not_be_given_back_is_given_back_by_the_next_write(
    pair: Pair, backend: Away
) -> None:
    one, two = pair
    with one.lease():
        backend.away = "before"
    backend.away = ""
    with pytest.raises(LeaseHeldError):
        two.append(said("others wait"))
    one.append(said("second"))
    with two.lease():
        two.append(said("third"))
    assert contents(two) == ["first", "second", "third"]


def test_an_interrupted_caller_leaves_no_lease_behind(
    pair: Pair, backend: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(appends: Sequence[Append]) -> Sequence[Outcome]:
        MemoryBackend.append(backend, appends)
        monkeypatch.undo()
        raise KeyboardInterrupt

    one, two = pair
    monkeypatch.setattr(backend, "append", append)
    with pytest.raises(KeyboardInterrupt), one.lease():
        pass
    two.refresh()
    assert two.lease_holder is None
    two.append(said("second"))


def test_a_caller_that_is_interrupted_before_it_takes_a_lease_can_take_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    one, two = pair
    lease = one.lease()
    monkeypatch.setattr(lease.lost, "clear", interrupt)
    with pytest.raises(KeyboardInterrupt):
        lease.__enter__()
    assert not lease.held
    with one.lease() as taken:
        assert taken.held
    two.append(said("second"))


def test_a_caller_that_sends_again_what_stands_is_answered(held: Held) -> None:
    one, two, _ = held
    position = one.append(said("second"), id="own")
    two.refresh()
    assert two.append(said("second"), id="own") == position
    with pytest.raises(LeaseHeldError):
        two.append(said("third"), id="other")


def test_whoever_takes_a_lease_sees_what_is_there(pair: Pair) -> None:
    one, two = pair
    one.append(said("second"))
    with two.lease():
        assert contents(two) == ["first", "second"]
        two.append(said("third"))


def test_a_lease_is_known_from_a_snapshot(store: perdure.Store, clock: Clock) -> None:
    one = store.session("s")
    with one.lease(owner="one", ttl=7):
        for number in range(300):
            one.append(said(str(number)))
        two = store.session("s")
        assert two.lease_holder == (1, "one", 7.0, False)
        with pytest.raises(LeaseHeldError):
            two.append(said("x"))
        assert two.verify().snapshots > 1
    assert store.session("s").lease_holder is None


def test_a_renewal_or_release_of_another_lease_says_nothing() -> None:
    fold = SessionState()
    fold.apply(1, ".a", LeaseRenewed(epoch=1, owner="a"), b"")
    fold.apply(2, ".b", LeaseReleased(epoch=1, owner="a"), b"")
    assert fold.lease is None
    fold.apply(3, ".c", LeaseTaken(epoch=2, owner="b", ttl=30.0, holder="b"), b"")
    for number, (epoch, owner) in enumerate(((1, "a"), (2, "a"), (1, "b")), start=4):
        fold.apply(number, ".d", LeaseRenewed(epoch=epoch, owner=owner), b"")
        fold.apply(number, ".e", LeaseReleased(epoch=epoch, owner=owner), b"")
    assert fold.lease == (2, "b", 30.0, "b", 3)


def test_a_lease_says_what_it_is(pair: Pair) -> None:
    lease = pair[0].lease()
    assert repr(lease) == "<Lease on 's': not held>"
    lease.release()  # It was never taken.
    with lease:
        assert repr(lease) == "<Lease on 's': epoch 1>"
    assert not lease.held


def test_after_a_deletion_leases_begin_anew(store: perdure.Store) -> None:
    one = store.session("s")
    with one.lease():
        one.append(said("first"))
    store.delete("s")
    anew = store.session("s")
    assert anew.lease_holder is None
    with anew.lease() as lease:
        anew.append(said("second"))
        assert lease.epoch == 1
    with pytest.raises(NotFoundError), one.lease():
        pass


def test_a_session_that_was_deleted_under_its_holder_is_lost(
    held: Held, store: perdure.Store
) -> None:
    _, two, first = held
    with two.lease(force=True):
        pass
    store.delete("s")
    assert first._renew() is None
    assert first.lost.is_set()
    with pytest.raises(FencedError):
        first.__exit__(None, None, None)


def test_a_handle_holds_one_lease_at_a_time(pair: Pair) -> None:
    one, _ = pair
    with one.lease() as first:
        with pytest.raises(UsageError, match="already"), one.lease():
            pass
        assert first.held
    with one.lease() as second:
        assert second.epoch == 2
    with second:
        assert second.epoch == 3
    second.release()


def test_closing_gives_the_lease_back(tmp_path: Path) -> None:
    store = perdure.open(tmp_path / "a.db")
    one = store.session("s")
    lease = one.lease()
    lease.__enter__()
    one.close()
    assert store.session("s").lease_holder is None
    lease.__exit__(None, None, None)
    second = store.session("s").lease()
    second.__enter__()
    store.close()
    assert second._renewing.task is not None
    assert not second._renewing.task.is_alive()
    assert perdure.open(tmp_path / "a.db").session("s").lease_holder is None
    second.__exit__(None, None, None)


def test_a_fork_does_not_hold_the_lease(pair: Pair) -> None:
    one, _ = pair
    with one.lease() as lease:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                try:
                    one.append(said("from the fork"))
                except FencedError:
                    lease.__exit__(None, None, None)
                    try:
                        one.append(said("from the fork"))
                    except LeaseHeldError:
                        code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert lease.held
        one.append(said("from the holder"))


def test_a_fork_while_another_thread_begins_a_lease_can_take_one(
    pair: Pair, store: perdure.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = pair
    begun, draw = threading.Event(), one._replica.settings.tokens

    def slow(count: int) -> list[str]:
        begun.set()
        time.sleep(0.2)
        return draw(count)

    monkeypatch.setattr(one._replica, "settings", one._replica.settings._replace(tokens=slow))
    thread = threading.Thread(target=lambda: one.lease().__enter__().release())
    thread.start()
    assert begun.wait(60)
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        code = 1
        try:
            with store.session("another").lease() as lease:
                code = int(not lease.held)
        finally:
            os._exit(code)
    thread.join()
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl": 0},
        {"ttl": -1},
        {"ttl": 0.01},
        {"ttl": float("nan")},
        {"ttl": float("inf")},
        {"ttl": "30"},
        {"ttl": None},
        {"ttl": True},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"timeout": "long"},
        {"owner": 1},
        {"owner": "x" * 300},
        {"owner": "\ud800"},
        {"force": 1},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(pair: Pair, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        pair[0].lease(**wrong)
    assert pair[0].position == 1


def test_errors_survive_copying() -> None:
    errors: list[PerdureError] = [
        LeaseHeldError("s", 3, "worker", 30.0, 17),
        FencedError("s", 2, 3, "worker"),
        FencedError("s", 2, 0, "", "no renewal was stored for 30 s"),
    ]
    for error in errors:
        assert str(type(error)(*error.args)) == str(error)
        assert "'s'" in str(error)


def renewals(session: perdure.Session) -> int:
    return sum(record.kind == "lease.renewed" for record in session.records())


def test_renewals_go_on_while_a_long_tool_runs(pair: Pair, clock: Clock) -> None:
    """They come in real time; the clock is turned between them, in all by four times the ttl."""
    one, two = pair
    began = time.monotonic()

    def work() -> None:
        for _ in range(5):
            clock.at += 0.2
            # The next one may have begun before the clock was turned.
            wanted = renewals(one) + 2
            end = time.monotonic() + 60
            while renewals(one) < wanted and time.monotonic() < end:
                time.sleep(0.01)

    with one.lease(ttl=0.25) as lease, one.turn("go"):
        with pytest.raises(LeaseHeldError), two.lease():
            pass
        one.tool(work)()
        with pytest.raises(LeaseHeldError), two.lease():
            pass
        assert lease.held
    assert 10 <= renewals(one) <= (time.monotonic() - began) / (0.25 / 12)


def test_a_store_that_hangs_is_told_of_when_the_time_has_passed(
    backend: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In real time: nothing answers, and whoever waits for `lost` wakes up."""
    hanging, session = threading.Event(), perdure.open(backend).session("s")

    def append(appends: Sequence[Append]) -> Sequence[Outcome]:
        hanging.wait(100)
        return MemoryBackend.append(backend, appends)

    lease = session.lease(ttl=0.3)
    lease.__enter__()
    monkeypatch.setattr(backend, "append", append)
    assert lease.lost.wait(60)
    assert not lease.held
    hanging.set()
    with pytest.raises(FencedError, match="no renewal"):
        lease.__exit__(None, None, None)


def test_threads_wait_for_each_other(store: perdure.Store) -> None:
    """In real time: each counts on from what the one before it had written."""

    def work(name: str) -> None:
        session = store.session("s")
        for _ in range(5):
            with session.lease(ttl=60, timeout=True, owner=name) as lease:
                session.append(said(f"{len(session)} {lease.epoch}"))

    threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = contents(store.session("s"))
    assert found == [f"{number} {number + 1}" for number in range(20)]


def test_a_lost_lease_is_told_of(
    held: Held, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    one, _, first = held
    clock.at += 31
    with pytest.raises(FencedError):
        one.append(said("late"))
    (record,) = [record for record in caplog.records if record.message.startswith("lease_lost")]
    assert (record.levelname, record.epoch) == ("WARNING", first.epoch)  # type: ignore[attr-defined]


# Sessions that nobody refers to any more.


def renewing() -> int:
    return sum(thread.name == "perdure-lease" for thread in threading.enumerate())


def until(fulfilled: Callable[[], bool]) -> bool:
    """Wait until something holds; return whether it does."""
    deadline = time.monotonic() + 20
    while not fulfilled() and time.monotonic() < deadline:
        time.sleep(0.01)
    return fulfilled()


@pytest.mark.parametrize("in_turn", [False, True])
def test_a_lease_that_nobody_refers_to_is_renewed_no_more(*, in_turn: bool) -> None:
    before, store = renewing(), perdure.open(MemoryBackend())

    def forget(number: int) -> None:
        session = store.session(f"session {number}")
        if in_turn:
            with session.turn("Go."):
                session.lease(ttl=3600).__enter__()
        else:
            session.lease(ttl=3600).__enter__()

    for number in range(50):
        forget(number)
    gc.collect()
    assert until(lambda: renewing() == before)


def test_a_lease_that_was_forgotten_expires(tmp_path: Path) -> None:
    store = perdure.open(tmp_path / "s.db")
    store.session("s").lease(ttl=0.3).__enter__()
    gc.collect()
    with store.session("s").lease(timeout=20) as lease:
        assert lease.epoch == 2


@pytest.mark.parametrize("kept", ["lease", "session", "turn", "tool"])
def test_a_lease_is_renewed_while_anything_of_its_session_is_kept(
    kept: str, tmp_path: Path
) -> None:
    def enter() -> Any:
        session = perdure.open(tmp_path / "s.db").session("s")
        things = {"session": session, "turn": session.turn("Go."), "tool": session.tool(max)}
        return {"lease": session.lease(ttl=1).__enter__(), **things}[kept]

    before, held = renewing(), enter()
    gc.collect()
    time.sleep(1.2)
    assert renewing() == before + 1
    with perdure.open(tmp_path / "s.db") as other:
        assert other.session("s").lease_holder is not None
        with pytest.raises(LeaseHeldError):
            other.session("s").append(said("x"))
    del held
    gc.collect()
    assert until(lambda: renewing() == before)
