"""P3, quick: a sample of kills, how much recovery reads, and proof that the harness sees losses."""

import os
import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.protocol import Append, Backend, Entry, Outcome
from perdure.core import dropped_ids
from perdure.core.state.session_state import SNAPSHOT_EVERY
from perdure.journal.reader import PAGE
from perdure.testing.faults import BackendWrapper
from tests.promises import p03_batches, p03_bodies, p03_compactions, p03_copies, p03_kills, straced
from tests.promises.children import collect, fork, ledger_of
from tests.promises.kinds import KINDS, SQLITE, Kind
from tests.promises.ledger import Hasty
from tests.promises.p03_kills import TURNS, Point, judge, killed_at, points
from tests.promises.promise import Promise, sample
from tests.promises.works import Line, Place, Work

pytestmark = [pytest.mark.durability, pytest.mark.slow]

RECORDS = 10_000
BATCH = 50


each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


@pytest.mark.parametrize("promise", p03_kills.PROMISES, ids=lambda promise: promise.key)
def test_no_kill_loses_what_was_acknowledged_or_stops_a_session(promise: Promise) -> None:
    assert sample(promise, seed=1, seconds=2.5, least=12) >= 12


@pytest.mark.parametrize("promise", p03_copies.PROMISES, ids=lambda promise: promise.key)
def test_a_killed_copy_is_hidden_and_can_be_finished(promise: Promise) -> None:
    assert sample(promise, seed=1, seconds=2, least=6) >= 6


@each_kind
def test_a_killed_compaction_loses_nothing_and_can_be_finished(kind: Kind, directory: Path) -> None:
    place = Place(p03_compactions.WORK, kind, directory)
    every = place.points()
    assert len(every) > 50
    trials = [place.killed_at(point) for point in random.Random(1).sample(every, 6)]
    assert {trial.failure for trial in trials if trial is not None} == {""}


@each_kind
def test_a_kill_leaves_all_of_a_large_body_or_none_of_it(kind: Kind, directory: Path) -> None:
    place = Place(p03_bodies.WORK, kind, directory)
    every = place.points()
    assert len(every) > 30
    trials = [place.killed_at(point) for point in random.Random(1).sample(every, 6)]
    assert {trial.failure for trial in trials if trial is not None} == {""}


@pytest.fixture
def line(postgres_url: str) -> Iterator[Line]:
    line = Line(postgres_url)
    yield line
    line.close()


@pytest.mark.parametrize(
    "work",
    [p03_compactions.WORK, p03_batches.WORK, p03_bodies.WORK],
    ids=lambda work: work.name,
)
def test_a_client_of_postgres_that_is_killed_at_a_message_leaves_all_or_nothing(
    work: Work, line: Line
) -> None:
    cuts = random.Random(2).sample(line.cuts(work), 4)
    trials = [line.killed_at(work, cut) for cut in cuts]
    assert {trial.failure for trial in trials if trial is not None} == {""}


def test_a_compaction_that_forgets_ids_is_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(p03_compactions.WORK, SQLITE, directory)
    monkeypatch.setattr(dropped_ids, "encode_pages", lambda _: [])
    trial = place.killed_at(place.points()[-1])
    assert trial is not None
    assert "ids are not known" in trial.failure


def test_a_batch_in_several_commits_is_seen(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    work = p03_batches.WORK

    def apart(backend: PostgresBackend, appends: Sequence[Append]) -> Outcome:
        return [backend.append([one])[0] for one in appends][-1]

    monkeypatch.setattr(PostgresBackend, "append_together", apart)
    cuts = [cut for cut in line.cuts(work)[-40:] if cut.way == "before"]
    trials = [line.killed_at(work, cut) for cut in cuts[::2]]
    assert any("half of the joint batch" in trial.failure for trial in trials if trial is not None)


@each_kind
def test_every_kind_of_call_that_changes_a_file_is_a_point_to_die_at(
    kind: Kind, directory: Path
) -> None:
    every = points(kind, directory)
    assert len(every) > 1_000
    assert {point.how for point in every} == {"before", "half of", "after"}


@each_kind
def test_a_child_dies_where_it_was_told_to(kind: Kind, directory: Path) -> None:
    end = killed_at(kind, directory, Point(300, "half of"))
    assert end.code == -signal.SIGKILL
    ledger = ledger_of(end.said)
    assert ledger.acks > 0
    assert judge(kind, directory, ledger, random.Random(1)) == ""


@each_kind
def test_an_acknowledgement_before_the_commit_is_seen(kind: Kind, directory: Path) -> None:
    draw = random.Random(1)
    failures = []
    for number in range(60, 80):
        end = killed_at(kind, directory, Point(number, "before"), Hasty)
        failures.append(judge(kind, directory, ledger_of(end.said), draw))
    assert any("lost" in failure for failure in failures)


@pytest.mark.skipif(not straced.WORKS, reason="strace is not there, or not allowed")
@each_kind
def test_strace_kills_a_child_at_a_system_call(kind: Kind, directory: Path) -> None:
    end = straced.run(kind, directory, TURNS, "pwrite64:signal=KILL:when=100")
    assert end.code == -signal.SIGKILL
    ledger = ledger_of(end.said)
    assert ledger.acks > 0
    assert judge(kind, directory, ledger, random.Random(1)) == ""


class Counting(BackendWrapper):
    """Counts what is read."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.entries = 0
        self.bytes = 0

    def read(self, stream: str, **options: Any) -> Iterator[Entry]:
        found = super().read(stream, **options)
        for entry in found:
            self.entries += 1
            self.bytes += entry.size
            yield entry


@each_kind
def test_recovery_of_a_long_session_reads_only_its_tail(kind: Kind, directory: Path) -> None:
    address = kind.address(directory)
    assert collect(*fork(lambda _: _write_and_die(address))).code == -signal.SIGKILL

    counting = Counting(kind.opener(directory)())
    with perdure.open(counting) as store:
        session = store.session("long")
        assert session.position > RECORDS
        assert [turn.id for turn in session.interrupted] == ["last"]
        # To the newest snapshot, which a batch may delay, in whole pages; and the last message.
        assert counting.entries <= SNAPSHOT_EVERY + BATCH + PAGE + 1
        opened = counting.bytes
        assert len(list(session.records())) == session.position
        assert opened < counting.bytes / 10, "the rest is read when it is asked for"


def _write_and_die(address: str) -> None:
    session = perdure.open(address).session("long")
    for number in range(0, RECORDS, BATCH):
        session.append(*({"role": "user", "content": f"{number + i}"} for i in range(BATCH)))
    with session.turn("The last one?", id="last"):
        os.kill(os.getpid(), signal.SIGKILL)
