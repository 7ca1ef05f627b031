"""The short way of the usual write has the results, errors and doubts of the general one."""

from collections.abc import Callable
from functools import partial

import pytest

import perdure
from perdure.backends.protocol import STORED
from perdure.core.messages import append_messages
from perdure.core.plans import REFRESH, Plan, RecordBatch
from perdure.core.writes import PlanSteps, prepare_usual
from perdure.errors import ConflictError, UnavailableError, UsageError
from perdure.journal.records import Note
from perdure.journal.requests import Commit, Steps
from tests.support import contents, said, store_in_memory


def session_of(store: perdure.Store) -> perdure.Session:
    session = store.session("s")
    session.append(said("first"))
    return session


def test_a_plain_append_is_usual() -> None:
    replica = session_of(perdure.open("memory:"))._replica
    plan = append_messages(replica, [said("a"), said("b")])
    write = prepare_usual(replica, plan)
    assert write is not None
    assert write.answer == 3
    assert replica.tip.position == 1


def lease(session: perdure.Session) -> None:
    session.lease().__enter__()


def due_snapshot(session: perdure.Session) -> None:
    for number in range(254):
        session.note(number)


@pytest.mark.parametrize("change", [lease, due_snapshot])
def test_a_lease_or_a_due_snapshot_needs_the_general_way(
    change: Callable[[perdure.Session], None],
) -> None:
    session = session_of(perdure.open("memory:"))
    change(session)
    assert prepare_usual(session._replica, append_messages(session._replica, [said("a")])) is None


def test_a_refresh_a_failing_plan_and_one_that_adds_nothing_need_the_general_way() -> None:
    replica = session_of(perdure.open("memory:"))._replica

    def fail(_: object) -> int:
        raise UsageError("no")

    for plan in (REFRESH, Plan("note", "", fail), Plan("note", "", lambda batch: batch.position)):
        assert prepare_usual(replica, plan) is None


def test_a_plan_is_usual_if_its_steps_need_not_read() -> None:
    session = session_of(perdure.open("memory:"))
    replica = session._replica
    new_id = replica.new_id()

    def steps(batch: RecordBatch, *, reads: bool) -> Steps[str]:
        batch.add_content(new_id, Note(data="a"))
        if reads:
            yield from batch.read_record(1)
        return "done"

    write = prepare_usual(replica, Plan("note", "", partial(steps, reads=False)))
    assert write is not None
    assert write.answer == "done"
    assert prepare_usual(replica, Plan("note", "", partial(steps, reads=True))) is None
    plan: Plan[str] = Plan("note", "", partial(steps, reads=True))
    assert session._handle.write(plan) == "done"
    assert len(session) == 1


def test_verified_writes_and_a_write_in_doubt_need_the_general_way() -> None:
    session = session_of(perdure.open("memory:", verify_writes=True))
    assert prepare_usual(session._replica, append_messages(session._replica, [said("a")])) is None
    session = session_of(perdure.open("memory:"))
    plan = append_messages(session._replica, [said("a")])
    session._replica.doubt = prepare_usual(session._replica, plan)
    assert prepare_usual(session._replica, plan) is None


def test_a_conflict_is_resolved_by_the_general_way() -> None:
    store, _ = store_in_memory()
    one, two = session_of(store), store.session("s")
    two.append(said("from two"))
    with pytest.raises(ConflictError):
        one.append(said("not seen"))
    one.append(said("seen now"))
    two.note("commutes")
    assert contents(one) == ["first", "from two", "seen now"]
    assert one._replica.doubt is None is two._replica.doubt


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UnavailableError("store", "gone")])
def test_a_write_without_a_reply_is_in_doubt(error: BaseException) -> None:
    replica = session_of(perdure.open("memory:"))._replica
    steps = PlanSteps(replica, append_messages(replica, [said("a")]))
    request = steps.send(None)
    assert isinstance(request, Commit)
    with pytest.raises(type(error)):
        steps.throw(error)
    assert replica.doubt is not None
    assert replica.doubt.append is request.append
    assert [notice.event for notice in replica.pending_events] == ["write_in_doubt"]


def test_a_write_that_never_reached_the_store_is_not_in_doubt() -> None:
    replica = session_of(perdure.open("memory:"))._replica
    steps = PlanSteps(replica, append_messages(replica, [said("a")]))
    steps.send(None)
    with pytest.raises(UsageError):
        steps.throw(UsageError("closed"))
    assert replica.doubt is None


@pytest.mark.parametrize("dropped", [True, False])
def test_a_write_is_in_doubt_until_it_is_published(*, dropped: bool) -> None:
    """An interrupt may end its steps at any line, and then nothing tells the replica."""
    replica = session_of(perdure.open("memory:"))._replica
    steps = PlanSteps(replica, append_messages(replica, [said("a")]))
    request = steps.send(None)
    if dropped:
        del steps
        assert replica.doubt is not None
        return
    assert isinstance(request, Commit)
    with pytest.raises(StopIteration) as end:
        steps.send(STORED)
    assert end.value.value == [2]
    assert replica.doubt is None
    assert replica.tip.position == 2


def test_a_second_interrupt_while_the_first_is_noted_leaves_the_write_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = session_of(perdure.open("memory:"))._replica
    steps = PlanSteps(replica, append_messages(replica, [said("a")]))
    steps.send(None)

    def interrupted(*_: object) -> BaseException:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(replica), "fail", interrupted)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())
    assert replica.doubt is not None
