"""P3, quick: a sample of kills, how much recovery reads, and proof that the harness sees losses."""

import os
import random
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import perdure
from perdure.backend import Entry
from perdure.backends.sqlite import SqliteBackend
from perdure.fold import SNAPSHOT_EVERY
from perdure.reading import PAGE
from perdure.testing.faults import _Around
from tests.durability import p03_kills, places, straced
from tests.durability.children import collect, fork, ledger_of, play_on
from tests.durability.ledger import Hasty
from tests.durability.p03_kills import TURNS, Killer, Point, judge, killed_at, points
from tests.durability.promise import sample
from tests.durability.vfs import watching

pytestmark = [pytest.mark.durability, pytest.mark.slow]

RECORDS = 10_000
BATCH = 50


@pytest.fixture
def path() -> Iterator[Path]:
    with places.fast_directory() as directory:
        yield directory / "store.db"


def test_no_kill_loses_what_was_acknowledged_or_stops_a_session() -> None:
    assert sample(p03_kills.PROMISE, seed=1, seconds=6, least=12) >= 12


def test_every_kind_of_call_that_changes_a_file_is_a_point_to_die_at(path: Path) -> None:
    every = points(path.parent)
    assert len(every) > 1_000
    assert {point.how for point in every} == {"before", "half of", "after"}


def test_a_child_dies_where_it_was_told_to(path: Path) -> None:
    end = killed_at(path, Point(300, "half of"))
    assert end.code == -signal.SIGKILL
    ledger = ledger_of(end.said)
    assert ledger.acks > 0
    assert judge(path, ledger, random.Random(1)) == ""


def test_an_acknowledgement_before_the_commit_is_seen(path: Path) -> None:
    draw = random.Random(1)
    failures = []
    for number in range(60, 90):
        killer = Killer(Point(number, "before"))
        end = collect(*fork(partial(_play_hastily, path, killer)))
        failures.append(judge(path, ledger_of(end.said), draw))
        p03_kills._fresh(path.parent)
    assert any("lost" in failure for failure in failures)


def _play_hastily(path: Path, killer: Killer, pipe: int) -> None:
    with watching(killer) as vfs:
        play_on(lambda: SqliteBackend(path, vfs=vfs.name), pipe, TURNS, Hasty)


@pytest.mark.skipif(not straced.WORKS, reason="strace is not there, or not allowed")
def test_strace_kills_a_child_at_a_system_call(path: Path) -> None:
    end = straced.run(path, TURNS, "pwrite64:signal=KILL:when=200")
    assert end.code == -signal.SIGKILL
    ledger = ledger_of(end.said)
    assert ledger.acks > 0
    assert judge(path, ledger, random.Random(1)) == ""


class Counting(_Around):
    """Counts what is read."""

    def __init__(self, backend: SqliteBackend) -> None:
        super().__init__(backend)
        self.entries = 0
        self.bytes = 0

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        limit: int | None = None,
        reverse: bool = False,
        max_body: int | None = None,
    ) -> Iterator[Entry]:
        found = super().read(stream, after=after, limit=limit, reverse=reverse, max_body=max_body)
        for entry in found:
            self.entries += 1
            self.bytes += len(entry.header) + len(entry.body or b"")
            yield entry


def test_recovery_of_a_long_session_reads_only_its_tail(path: Path) -> None:
    assert collect(*fork(lambda _: _write_and_die(path))).code == -signal.SIGKILL

    counting = Counting(SqliteBackend(path))
    with perdure.open(counting) as store:
        session = store.session("long")
        assert session.position > RECORDS
        assert [turn.id for turn in session.interrupted] == ["last"]
        # To the newest snapshot, which a batch may delay, in whole pages; and the last message.
        assert counting.entries <= SNAPSHOT_EVERY + BATCH + PAGE + 1
        opened = counting.bytes
        assert len(list(session.records())) == session.position
        assert opened < counting.bytes / 10, "the rest is read when it is asked for"


def _write_and_die(path: Path) -> None:
    session = perdure.open(path).session("long")
    for number in range(0, RECORDS, BATCH):
        session.append(*({"role": "user", "content": f"{number + i}"} for i in range(BATCH)))
    with session.turn("The last one?", id="last"):
        os.kill(os.getpid(), signal.SIGKILL)
