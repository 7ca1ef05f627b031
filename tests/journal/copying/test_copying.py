"""A copy is the same store: what goes along, what is refused, and what happens meanwhile."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.backends.digests import digest_of
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import DELETED, HALF_COPIED, Append, Backend, Entry, Head, Outcome
from perdure.backends.sqlite import backend as backend_module
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.cli.doctor.scratch import ScratchSession
from perdure.errors import NotFoundError, UnavailableError, UsageError
from perdure.journal.copying.pairs import Selection
from perdure.journal.copying.requests import CopyProgress
from perdure.journal.copying.rounds import CopyResult, CopyRun
from perdure.journal.records import Deleted
from perdure.sync.copy import run_copy
from perdure.testing import Crash, CrashAt, Flaky
from tests.journal.copying.breaking import Counted, Dying, Lying, Unable
from tests.journal.copying.stores import obey, settled, shown
from tests.support import contents, said

PHASES = ("counting", "copying", "verifying")


@pytest.fixture
def source() -> Iterator[MemoryBackend]:
    """A store with a few sessions, a branch, labels and a deleted one."""
    backend = MemoryBackend()
    store = perdure.open(backend)
    for name in ("claim-1", "claim-2", "order-1"):
        session = store.session(name)
        with session.turn(f"hello {name}") as turn:
            turn.append(said("hi", "assistant"))
    store.session("claim-1").label("vip")
    store.session("order-1").branch("a branch").append(said("what if"))
    store.session("gone").append(said("x"))
    store.delete("gone")
    yield backend
    backend.close()


def spoil(backend: MemoryBackend, name: str, position: int, *, header: bool = False) -> None:
    """Change a byte of an entry behind everybody's back."""
    entries = backend._streams[name].entries
    at = next(at for at, entry in enumerate(entries) if position <= entry.last)
    entry = entries[at]
    if header:
        entries[at] = entry._replace(header=entry.header.replace(b'"', b"'", 1))
    else:
        entries[at] = entry._replace(body=(entry.body or b"")[:-2] + b" ]")


def kinds(copied: CopyResult) -> dict[str, str]:
    return {problem.session: problem.kind for problem in copied.problems}


def test_a_copy_shows_the_same_in_every_view(source: MemoryBackend) -> None:
    target = MemoryBackend()
    copied = perdure.copy(source, target)
    assert copied.complete
    assert copied.sessions == copied.of_sessions == len(shown(source)) == 5
    entries = [entry for one in shown(source).values() for entry in one.entries]
    assert copied.records == sum(entry.records for entry in entries)
    assert shown(target) == shown(source)
    store = perdure.open(target)
    store.session("a branch").append(said("and on it goes"))
    assert contents(store.session("a branch"))[-1] == "and on it goes"


def test_what_is_there_is_not_copied_again(source: MemoryBackend) -> None:
    target = Counted(MemoryBackend())
    perdure.copy(source, target)
    sent = len(target.sent)
    again = perdure.copy(source, target)
    assert (again.sessions, again.records, again.complete) == (0, 0, True)
    assert len(target.sent) == sent == len(set(target.sent))
    perdure.open(source).session("claim-2").append(said("more"))
    assert perdure.copy(source, target).records == 1
    assert shown(target) == shown(source)


def test_a_branch_of_hundreds_of_branches_is_copied() -> None:
    """The youngest is listed first, and needs all of the others."""
    source, target = MemoryBackend(), MemoryBackend()
    session = perdure.open(source).session("999")
    session.append(said("x"))
    for number in range(300):
        session = session.branch(f"{998 - number}")
    assert perdure.copy(source, target).complete
    assert perdure.open(target).session(session.id).verify().records == 301


def test_many_short_sessions_share_few_commits() -> None:
    source, target = MemoryBackend(), Counted(MemoryBackend())
    store = perdure.open(source)
    for number in range(700):
        store.session(f"{number:04}").append(said("x"))
    assert perdure.copy(source, target).sessions == 700
    assert target.calls == 3


def test_long_sessions_arrive_in_whole_entries() -> None:
    source, target = MemoryBackend(), Counted(MemoryBackend())
    session = perdure.open(source).session("long")
    for number in range(60):
        session.append(*[said(f"{number} {part} " + "x" * 5000) for part in range(17)])
    seen = []
    real = target.append

    def append(appends: Sequence[Append]) -> Sequence[Outcome]:
        outcomes = real(appends)
        copied = perdure.open(target.backend).session("long")
        seen.append(len(copied))
        copied.verify()
        return outcomes

    target.append = append  # type: ignore[method-assign]
    assert perdure.copy(source, target).complete
    assert len(seen) > 1
    assert {count % 17 for count in seen} == {0}
    assert shown(target.backend) == shown(source)


def test_a_copy_that_is_cut_short_leaves_no_label_that_its_records_do_not_say() -> None:
    source, target = MemoryBackend(), MemoryBackend()
    session = perdure.open(source).session("long")
    for number in range(300):
        session.note({"n": number, "long": "x" * 5000})
    session.label("vip")
    session.turn("hello").__enter__()
    with pytest.raises(Crash):
        perdure.copy(source, Dying(target, 1, after=True))
    store = perdure.open(target)
    (head,) = store.sessions(labels=[HALF_COPIED])
    assert head.labels == {HALF_COPIED}
    assert 0 < store.session("long").verify().position < session.position
    assert store.session("long").verify().half_copied
    assert perdure.copy(source, target, final=True).complete
    assert shown(target) == shown(source)
    assert list(store.sessions(labels=["vip", "turn-open"]))


def test_and_whoever_goes_on_with_it_sets_its_labels_right() -> None:
    target = MemoryBackend()
    store = perdure.open(target)
    session = store.session("s")
    session.append(said("x"))
    target._streams["s"].labels = frozenset({HALF_COPIED})
    assert session.verify().half_copied
    session.append(said("y"))
    assert not session.verify().half_copied
    assert [head.labels for head in store.sessions()] == [frozenset()]
    with pytest.raises(UsageError, match="is reserved"):
        session.label(HALF_COPIED)


class Removing(Counted):
    """Removes a stream when it is read for the nth time."""

    def __init__(self, backend: Backend, stream: str, nth: int) -> None:
        super().__init__(backend)
        self._stream = stream
        self._left = nth

    def read(self, stream: str, **options: Any) -> Iterator[Entry]:
        if stream == self._stream:
            self._left -= 1
            if not self._left:
                (head,) = self.streams(prefix=stream)
                assert self.remove(stream, digest=head.digest)
        return super().read(stream, **options)


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_what_a_doctor_tries_and_takes_away_meanwhile_is_no_damage(
    source: MemoryBackend, nth: int
) -> None:
    scratch = ScratchSession(source, lambda: source)
    append = scratch.append()
    source.append([append])
    copied = perdure.copy(Removing(source, scratch.name, nth), MemoryBackend(), final=True)
    assert copied.problems == ()
    assert copied.complete


def test_a_target_with_other_sessions_keeps_them(source: MemoryBackend) -> None:
    target = MemoryBackend()
    perdure.open(target).session("mine").append(said("x"))
    before = shown(target)["mine"]
    assert perdure.copy(source, target, final=True).complete
    assert shown(target).pop("mine") == before
    assert {**shown(source), "mine": before} == shown(target)


def test_another_session_of_the_same_name_is_refused_and_the_rest_goes_on(
    source: MemoryBackend,
) -> None:
    target = MemoryBackend()
    store = perdure.open(target)
    store.session("claim-1").append(said("somebody else's"))
    store.session("claim-2").append(*[said("somebody else's")] * 9)
    before = shown(target)
    copied = perdure.copy(source, target)
    assert kinds(copied) == {"claim-1": "conflict", "claim-2": "conflict"}
    assert not copied.complete
    assert "another session of that name" in copied.problems[0].reason
    after = shown(target)
    assert {name: after[name] for name in before} == before
    assert after["order-1"] == shown(source)["order-1"]


def test_a_target_that_went_on_is_not_turned_back(source: MemoryBackend) -> None:
    target = MemoryBackend()
    perdure.copy(source, target)
    perdure.open(target).session("claim-1").append(said("written to the copy"))
    copied = perdure.copy(source, target)
    assert kinds(copied) == {"claim-1": "conflict"}
    assert "the target is ahead" in copied.problems[0].reason
    perdure.open(source).session("claim-1").append(*[said("written to the source"), said("too")])
    assert kinds(perdure.copy(source, target)) == {"claim-1": "conflict"}


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("position", [1, 2, 4])
def test_damage_in_the_source_is_told_and_nothing_of_that_session_is_copied(
    source: MemoryBackend, position: int, *, header: bool
) -> None:
    spoil(source, "order-1", position, header=header)
    target = MemoryBackend()
    copied = perdure.copy(source, target)
    assert kinds(copied)["order-1"] == "damaged"
    assert {head.stream for head in target.streams()} <= {"claim-1", "claim-2", "gone"}
    (problem,) = [one for one in copied.problems if one.session == "order-1"]
    assert problem.position in {position, position + 1, position - 1}
    assert kinds(copied)["a branch"] in {"past", "damaged"}, "its past was not copied"


def forged(backend: MemoryBackend, name: str) -> None:
    """Put another body into an entry, with a header that names it."""
    entries = backend._streams[name].entries
    old, body = entries[1], b'["0123456789012345678901",{}]'
    mine, theirs = digest_of(old.body or b""), digest_of(body)
    entries[1] = old._replace(header=old.header.replace(mine.encode(), theirs.encode()), body=body)


def exchanged(backend: MemoryBackend, name: str) -> None:
    """Put another session's entry in the place of one."""
    backend._streams[name].entries[-1] = backend._streams["claim-1"].entries[3]
    backend._streams[name].digest = digest_of(backend._streams["claim-1"].entries[3].header)


def lost(backend: MemoryBackend, name: str) -> None:
    """Lose an entry of the middle."""
    del backend._streams[name].entries[2]


def headless(backend: MemoryBackend, name: str) -> None:
    """Lose the first entry."""
    del backend._streams[name].entries[0]


def swapped(backend: MemoryBackend, name: str) -> None:
    """Put the whole of another session there."""
    other, mine = backend._streams["claim-1"], backend._streams[name]
    mine.entries, mine.digest = [*other.entries], other.digest


@pytest.mark.parametrize("harm", [forged, exchanged, swapped, lost, headless])
def test_a_chain_that_does_not_hold_is_not_copied(
    source: MemoryBackend, harm: Callable[[MemoryBackend, str], None]
) -> None:
    harm(source, "claim-2")
    target = MemoryBackend()
    assert kinds(perdure.copy(source, target)) == {"claim-2": "damaged"}
    assert "claim-2" not in {head.stream for head in target.streams()}


def test_damage_late_in_a_long_session_keeps_all_of_it_back() -> None:
    source, target = MemoryBackend(), MemoryBackend()
    session = perdure.open(source).session("long")
    for _ in range(40):
        session.append(*[said("x" * 4000) for _ in range(20)])
    spoil(source, "long", 777)
    copied = perdure.copy(source, target)
    (problem,) = copied.problems
    assert problem.session == "long"
    assert 777 <= problem.position < 777 + 20, "in the same entry"
    assert list(target.streams()) == []


def test_a_store_that_stores_something_else_is_found_out(source: MemoryBackend) -> None:
    inner = MemoryBackend()
    copied = perdure.copy(source, Lying(inner, "claim-2"))
    assert kinds(copied) == {"claim-2": "damaged"}
    assert "read back" in copied.problems[0].reason


def test_a_final_copy_reads_everything_on_both_sides(source: MemoryBackend) -> None:
    target = MemoryBackend()
    perdure.copy(source, target)
    good = perdure.copy(source, target, final=True)
    assert good.complete
    entries = [entry for one in shown(source).values() for entry in one.entries]
    assert good.verified == sum(entry.records for entry in entries)
    assert perdure.copy(source, target).verified == 0
    spoil(target, "claim-2", 2)
    assert perdure.copy(source, target).complete, "heads alone do not show it"
    bad = perdure.copy(source, target, final=True)
    assert [(one.session, one.position) for one in bad.problems] == [("claim-2", 1)]


def test_sessions_are_chosen_by_prefix_label_or_id(source: MemoryBackend) -> None:
    def names(**chosen: object) -> set[str]:
        target = MemoryBackend()
        assert perdure.copy(source, target, **chosen).complete  # type: ignore[arg-type]
        return {head.stream for head in target.streams()}

    assert names(prefix="claim-") == {"claim-1", "claim-2"}
    assert names(labels=["vip"]) == {"claim-1"}
    assert names(sessions=["claim-2", "gone", "claim-2"]) == {"claim-2", "gone"}
    assert names(prefix="nothing") == set()
    with pytest.raises(NotFoundError, match="'no-such'"):
        names(sessions=["claim-2", "no-such"])
    with pytest.raises(UsageError, match="not both"):
        names(sessions=["claim-2"], prefix="c")
    with pytest.raises(UsageError, match="list of ids"):
        names(sessions="claim-2")


def test_a_branch_brings_its_past_along(source: MemoryBackend) -> None:
    perdure.open(source).session("a branch").branch("a/deeper").append(said("deeper"))
    target = MemoryBackend()
    copied = perdure.copy(source, target, sessions=["a/deeper"])
    assert copied.ancestors == ("a branch", "order-1")
    store = perdure.open(target)
    assert contents(store.session("a/deeper")) == ["hello order-1", "hi", "what if", "deeper"]
    assert store.session("a/deeper").verify().records


def test_a_dry_run_writes_nothing_and_counts_what_a_copy_copies(
    source: MemoryBackend, tmp_path: Path
) -> None:
    dry = perdure.copy(source, tmp_path / "new.db", dry_run=True)
    assert not (tmp_path / "new.db").exists()
    target = Counted(MemoryBackend())
    perdure.open(target.backend).session("claim-1").append(said("other"))
    second = perdure.copy(source, target, dry_run=True)
    assert (target.sent, second.rounds) == ([], 0)
    assert kinds(second) == {"claim-1": "conflict"}
    wet = perdure.copy(source, tmp_path / "new.db")
    assert (wet.sessions, wet.records) == (dry.sessions, dry.records)
    assert not dry.complete


def test_a_session_that_is_deleted_between_two_copies_is_deleted_in_the_copy(
    source: MemoryBackend,
) -> None:
    target = MemoryBackend()
    perdure.copy(source, target)
    store = perdure.open(source)
    store.delete("claim-2", reason="at once")
    assert perdure.copy(source, target).complete
    assert shown(target) == shown(source)
    assert len([*target.read("claim-2")]) == 1
    store.session("claim-2").append(said("a second life"))
    assert perdure.copy(source, target, final=True).complete
    assert contents(perdure.open(target).session("claim-2")) == ["a second life"]


def test_what_can_not_be_compared_any_more_is_left_until_it_is_deleted_by_hand(
    source: MemoryBackend,
) -> None:
    target = MemoryBackend()
    perdure.copy(source, target)
    store = perdure.open(source)
    store.session("claim-1").append(said("one"), said("two"))
    store.delete("claim-1", reason="after more was said")
    before = shown(target)
    assert kinds(perdure.copy(source, target)) == {"claim-1": "conflict"}
    copied = perdure.copy(source, target, final=True)
    assert kinds(copied) == {"claim-1": "conflict"}
    assert copied.left == 0
    assert "perdure.open(TARGET).delete('claim-1')" in copied.problems[0].reason
    assert shown(target) == before
    obey(target, copied)
    assert perdure.copy(source, target, final=True).complete
    assert shown(target) == shown(source)
    assert len([*target.read("claim-1")]) == 1


@pytest.mark.parametrize("mine", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("again", [False, True])
def test_a_deletion_takes_nothing_that_was_said_in_the_target_only(
    mine: int, *, again: bool
) -> None:
    source, target = MemoryBackend(), MemoryBackend()
    here, there = perdure.open(source), perdure.open(target)
    here.session("s").append(said("in both"))
    perdure.copy(source, target)
    there.session("s").append(*[said(f"here only {number}") for number in range(mine)])
    here.session("s").append(said("in the source"), said("too"))
    here.delete("s")
    if again:
        here.session("s").append(said("a second life"))
    before = shown(target)
    copied = perdure.copy(source, target, final=True)
    assert kinds(copied) == {"s": "conflict"}
    assert shown(target) == before
    if again and mine > 2:
        assert "another session" in copied.problems[0].reason
        return
    obey(target, copied)
    assert perdure.copy(source, target, final=True).complete
    assert shown(target) == shown(source)


def test_a_second_life_that_was_deleted_in_the_target_does_not_come_back() -> None:
    source, target = MemoryBackend(), MemoryBackend()
    here, there = perdure.open(source), perdure.open(target)
    here.session("s").append(said("a first life"))
    here.delete("s")
    here.session("s").append(said("a second life"))
    perdure.copy(source, target)
    there.delete("s")
    copied = perdure.copy(source, target, final=True)
    assert kinds(copied) == {"s": "conflict"}
    assert not list(there.sessions())


def test_a_deletion_leaves_the_past_of_a_branch_that_was_made_in_the_target() -> None:
    source, target = MemoryBackend(), MemoryBackend()
    here, there = perdure.open(source), perdure.open(target)
    here.session("s").append(said("in both"))
    perdure.copy(source, target)
    there.session("s").branch("what-if").append(said("in the branch"))
    here.session("s").append(*[said("in the source")] * 6)
    here.delete("s")
    assert kinds(perdure.copy(source, target, final=True)) == {"s": "conflict"}
    assert contents(there.resume("what-if")) == ["in both", "in the branch"]


def cut_release(backend: MemoryBackend, store: perdure.Store) -> None:
    """Delete a branch and its parent, with a crash before the parent has let go of it."""
    with pytest.raises(Crash):
        perdure.open(CrashAt(backend, "append.before", nth=2)).delete("what-if")
    store.delete("s")


@pytest.mark.parametrize("wrote", [False, True])
def test_a_deletion_waits_for_the_branches_that_live_in_the_target(*, wrote: bool) -> None:
    source, target = MemoryBackend(), MemoryBackend()
    here, there = perdure.open(source), perdure.open(target)
    here.session("s").append(said("in both"))
    here.session("s").branch("what-if").append(said("in the branch"))
    perdure.copy(source, target)
    if wrote:
        there.session("what-if").append(said("here only"))
    cut_release(source, here)
    before = shown(target)
    copied = perdure.copy(source, target, sessions=["s"], final=True)
    if wrote:
        assert kinds(copied)["s"] == "conflict"
        assert "its branch 'what-if' exists in the target" in copied.problems[0].reason
        assert copied.left == 0
        assert shown(target) == before
    settled(source, target)
    assert shown(target) == shown(source)


def test_half_a_copy_is_known_to_be_one() -> None:
    source, target = MemoryBackend(), MemoryBackend()
    store = perdure.open(source)
    session = store.session("long")
    for number in range(300):
        session.note({"n": number, "long": "x" * 5000})
    with pytest.raises(Crash):
        perdure.copy(source, Dying(target, 1, after=True))
    store.delete("long")
    assert perdure.copy(source, target, final=True).complete
    assert shown(target) == shown(source)


class Deleting(Counted):
    """Goes on with a session, and deletes it, when a copy lists the store for the second time."""

    def streams(self, **filters: Any) -> Iterator[Head]:
        self.calls += not filters.get("prefix")
        if self.calls == 3:
            store = perdure.open(self.backend)
            store.session("claim-1").append(said("one"), said("two"))
            store.delete("claim-1")
        return super().streams(**filters)


def test_a_run_knows_what_it_has_copied_itself(source: MemoryBackend) -> None:
    target = MemoryBackend()
    copied = perdure.copy(Deleting(source), target)
    assert copied.complete
    assert copied.rounds == 3
    assert shown(target) == shown(source)


def test_who_follows_a_store_knows_what_earlier_rounds_have_copied(source: MemoryBackend) -> None:
    target, before = MemoryBackend(), dict[str, str]()
    for _ in range(2):
        following = CopyRun(Selection(), final=False, dry_run=False, copied=before)
        copied = run_copy(following, source, target, None)
        assert copied.complete
        assert copied.sessions
        store = perdure.open(source)
        store.session("claim-1").append(said("one"), said("two"))
        store.delete("claim-1")


def test_a_target_that_can_not_remove_says_so(source: MemoryBackend) -> None:
    target = MemoryBackend()
    perdure.copy(source, target)
    store = perdure.open(source)
    store.session("claim-1").append(*[said("one"), said("two")])
    store.delete("claim-1")
    obey(target, perdure.copy(source, target))
    copied = perdure.copy(source, Unable(target))
    assert kinds(copied) == {"claim-1": "unsupported"}
    assert "cannot remove" in copied.problems[0].reason


def test_what_a_deletion_has_not_dropped_yet_is_not_copied(source: MemoryBackend) -> None:
    kept = [*source.read("claim-2")]
    perdure.open(source).delete("claim-2")
    stream = source._streams["claim-2"]
    stream.entries = [*kept, *stream.entries]  # As a crash before the dropping leaves it.
    target = MemoryBackend()
    assert perdure.copy(source, target).complete
    (left,) = target.read("claim-2")
    assert Deleted.kind.encode() in left.header
    assert next(target.streams(prefix="claim-2")).labels == {DELETED}


def test_a_server_that_fails_now_and_then_does_not_stop_a_copy(source: MemoryBackend) -> None:
    for after_commit in (False, True):
        target = Flaky(MemoryBackend(), fail=lambda call: call % 2 == 1, after_commit=after_commit)
        assert perdure.copy(source, target).complete
        assert shown(target.backend) == shown(source)
    away = Flaky(MemoryBackend(), fail=1.0)
    with pytest.raises(UnavailableError):
        perdure.copy(source, away)


def test_a_copy_tells_how_far_it_is() -> None:
    source, seen = MemoryBackend(), list[CopyProgress]()
    store = perdure.open(source)
    for number in range(200):
        store.session(f"{number:03}").append(said("x"))
    perdure.copy(source, MemoryBackend(), final=True, on_progress=seen.append)
    assert [*dict.fromkeys(one.phase for one in seen)] == ["counting", "copying", "verifying"]
    copying = [one for one in seen if one.phase == "copying" and one.round == 1]
    assert copying[-1].records == copying[-1].of_records == 200
    assert [one.sessions for one in copying] == sorted(one.sessions for one in copying)


def test_a_copy_of_a_few_long_sessions_tells_how_far_it_is() -> None:
    source, seen = MemoryBackend(), list[CopyProgress]()
    session = perdure.open(source).session("long")
    for _ in range(40):
        session.append(*[said("x" * 4000) for _ in range(20)])
    perdure.copy(source, MemoryBackend(), final=True, on_progress=seen.append)
    begun = [next(one for one in seen if one.phase == phase) for phase in PHASES]
    assert [one.records for one in begun] == [0, 0, 0], "before anything was done"
    for phase in PHASES[1:]:
        told = [one.records for one in seen if one.phase == phase]
        assert told == sorted(told)
        assert len(set(told)) > 1


def test_nobody_knows_of_how_many_while_they_are_counted(source: MemoryBackend) -> None:
    seen = list[CopyProgress]()
    perdure.copy(source, MemoryBackend(), final=True, on_progress=seen.append)
    totals = {(one.of_sessions, one.of_records) for one in seen if one.phase == "counting"}
    assert totals == {(0, 0)}


def test_what_is_no_source_or_no_target_is_refused(tmp_path: Path, source: MemoryBackend) -> None:
    with pytest.raises(NotFoundError, match=r"nope\.db.*it was not created"):
        perdure.copy(tmp_path / "nope.db", MemoryBackend())
    assert not (tmp_path / "nope.db").exists()
    with pytest.raises(UsageError, match="same store"):
        perdure.copy(source, source)
    perdure.open(tmp_path / "a.db").close()
    for other in (f"sqlite:{tmp_path / 'a.db'}", tmp_path / "a.db"):
        with pytest.raises(UsageError, match="same store"):
            perdure.copy(str(tmp_path / "a.db"), other)
    with (
        closing(SqliteBackend(tmp_path / "a.db")) as one,
        closing(SqliteBackend(tmp_path / "a.db")) as two,
        pytest.raises(UsageError, match="same store"),
    ):
        perdure.copy(one, two)
    with pytest.raises(UsageError, match="backend"):
        perdure.copy(source, 7)  # type: ignore[arg-type]


def test_an_event_loop_copies_alike(source: MemoryBackend, tmp_path: Path) -> None:
    async def scenario() -> None:
        copied = await perdure.copy_async(ThreadedBackend(source), tmp_path / "copy.db", final=True)
        assert copied.complete
        assert copied.verified == copied.records
        again = await perdure.copy_async(ThreadedBackend(source), tmp_path / "copy.db")
        assert again.records == 0

    asyncio.run(scenario())
    backend: Backend = backend_module.SqliteBackend(tmp_path / "copy.db")
    assert shown(backend) == shown(source)
    backend.close()
