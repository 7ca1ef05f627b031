"""P1 and P4, quick: a sample of power failures, and proof that the harness sees what it must."""

import copy
import itertools
import random
from pathlib import Path

import apsw
import pytest

import perdure
from perdure.backends.files import recovery
from tests.promises import p01_power_loss, p01_tutorial, places
from tests.promises.calls import Done
from tests.promises.disk import Disk
from tests.promises.kinds import FILES, KINDS, SQLITE, Kind, Sqlite
from tests.promises.ledger import Event, Hasty
from tests.promises.p01_power_loss import Recording, crashes, judge, moments, record, succeed
from tests.promises.promise import Promise, sample
from tests.promises.watched_files import WatchedFiles

pytestmark = [pytest.mark.durability, pytest.mark.slow]

CONTROL_STATES = 250
WAL = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_CREATE


each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def failures(
    kind: Kind, recording: Recording, directory: Path, states: int = CONTROL_STATES
) -> list[str]:
    draw = random.Random(1)
    some = itertools.islice(crashes(kind, recording, 1), states)
    found = [judge(kind, directory, crash, ledger, draw) for _, crash, ledger in some]
    return [failure for failure in found if failure]


@pytest.mark.parametrize("promise", p01_power_loss.PROMISES, ids=lambda promise: promise.key)
def test_no_power_failure_loses_what_was_acknowledged(promise: Promise) -> None:
    seconds, least = (3.5, 100) if promise.store == "sqlite" else (2, 30)
    assert sample(promise, seed=1, seconds=seconds, least=least) >= least


def test_the_tutorials_way_loses_or_corrupts_in_every_power_failure() -> None:
    """The control: the whole list to the same path, with no other file and no sync."""
    with places.fast_directory() as directory:
        found = list(p01_tutorial.failures(directory, 1))
        assert p01_tutorial.is_safe(directory, 1) == ""
    every = [one for moment in found for one in moment]
    assert all(any(moment) for moment in found), "at each moment, whatever was saved before"
    assert sum(map(bool, every)) > 0.7 * len(every)
    assert any("lost" in one for one in every)
    assert any("corrupt" in one for one in every)


def test_the_script_holds_checkpoints_group_commits_snapshots_and_deletions() -> None:
    with places.fast_directory() as directory:
        recording = record(SQLITE, directory)
        with perdure.open(directory / "store.db") as store:
            kinds = {found.kind for found in store.session("main").records()}
            deleted = [head for head in store.sessions(deleted=True) if "deleted" in head.labels]
    calls = [event for event in recording if isinstance(event, Done)]
    sent = [event for event in recording if isinstance(event, Event) and event.what == "sent"]
    restarts = [call for call in calls if call.path.endswith("-wal") and call.op == "write"]
    assert sum(call.at == 0 for call in restarts) > 10, "the log was begun anew"
    assert sum(call.op == "sync" and call.path == "store.db" for call in calls) > 10
    assert any(len(event.appends) > 1 for event in sent), "sessions committed together"
    assert {"snapshot", "value", "note", "labels", "branch.kept", "turn.failed"} <= kinds
    assert len(deleted) == 10


def test_without_full_syncs_acknowledged_records_are_seen_to_be_lost() -> None:
    with places.fast_directory() as directory:
        found = failures(SQLITE, record(Sqlite("normal"), directory, 20), directory)
    assert any("lost" in failure for failure in found)
    damaged = [failure for failure in found if "damaged" in failure]
    assert damaged, "a log that was not synced before each commit is told from one that was torn"
    assert all("its write-ahead log is damaged" in failure for failure in damaged), (
        "NORMAL loses, but keeps order"
    )


def test_without_syncs_damage_is_seen() -> None:
    with places.fast_directory() as directory:
        found = failures(SQLITE, record(Sqlite("off"), directory, 20), directory)
    assert any("Damaged" in failure for failure in found)


@pytest.mark.parametrize(
    ("left_out", "seen"), [("sync", "Damaged"), ("sync", "lost"), ("sync_directory", "lost")]
)
def test_without_a_sync_files_are_seen_to_be_lost_or_damaged(left_out: str, seen: str) -> None:
    with places.fast_directory() as directory:
        recording = record(FILES, directory, 10)
        left = [one for one in recording if not isinstance(one, Done) or one.op != left_out]
        assert len(left) < len(recording) - 5
        assert not failures(FILES, recording, directory, 30)
        assert any(seen in failure for failure in failures(FILES, left, directory, 500))


@each_kind
def test_an_acknowledgement_before_the_commit_is_seen(kind: Kind) -> None:
    with places.fast_directory() as directory:
        found = failures(kind, record(kind, directory, 10, Hasty), directory, 120)
    assert any("lost" in failure for failure in found)


def test_a_turn_that_is_taken_for_complete_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perdure.Session, "interrupted", ())
    with places.fast_directory() as directory:
        found = failures(SQLITE, record(SQLITE, directory, 20), directory)
    assert any("are open" in failure for failure in found)


def test_what_a_successor_reads_survives_only_because_it_is_synced_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with places.fast_directory() as directory:
        recording = record(SQLITE, directory, 20)
        some = itertools.islice(moments(SQLITE, recording, random.Random(1)), 60)
        assert not any(succeed(SQLITE, directory, disk) for _, disk, _ in some)

        sync = Disk._sync
        monkeypatch.setattr(Disk, "_sync", lambda disk, done: done.handle and sync(disk, done))
        some = itertools.islice(moments(SQLITE, recording, random.Random(1)), 400)
        assert any(succeed(SQLITE, directory, disk) for _, disk, _ in some)


@pytest.mark.parametrize("spoiled", ["sync", "_rewrite_range"])
def test_what_a_successor_reads_in_files_survives_only_because_it_is_written_anew_and_synced(
    monkeypatch: pytest.MonkeyPatch, spoiled: str
) -> None:
    with places.fast_directory() as directory:
        recording = record(FILES, directory, 10)

        def lost(most: int) -> list[str]:
            some = itertools.islice(moments(FILES, recording, random.Random(1)), most)
            found = (succeed(FILES, directory, disk, sync_failed=True) for _, disk, _ in some)
            return [one for one in found if one]

        assert not lost(30)
        where = recovery if spoiled == "_rewrite_range" else WatchedFiles
        monkeypatch.setattr(where, spoiled, lambda *_: None)
        assert lost(60)


def test_what_a_successor_reads_survives_a_failed_sync_only_because_it_is_written_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with places.fast_directory() as directory:
        recording = record(SQLITE, directory, 20)
        waiting = [
            copy.deepcopy(disk)
            for _, disk, _ in itertools.islice(moments(SQLITE, recording, random.Random(1)), 400)
            if disk.may_forget and not disk.settled
        ]
        assert len(waiting) > 10
        assert not any(succeed(SQLITE, directory, disk, sync_failed=True) for disk in waiting)
        write = Disk._write
        monkeypatch.setattr(Disk, "_write", lambda disk, done: done.handle and write(disk, done))
        assert any(succeed(SQLITE, directory, disk, sync_failed=True) for disk in waiting)


def test_what_was_not_synced_may_be_dropped_kept_or_torn() -> None:
    disk = Disk()
    disk.apply(Done("open", "f", 1))
    disk.apply(Done("write", "f", 1, 0, b"a" * 2048))
    assert disk.drop().files == {}
    assert disk.keep().files == {"f": b"a" * 2048}
    assert disk.names_only().files == {"f": b""}
    draw = random.Random(1)
    torn = {disk.torn(draw).files.get("f", b"") for _ in range(200)}
    assert bytes(512) + b"a" * 512 in torn, "a hole where a sector is missing"


def test_a_synced_file_may_still_be_missing_until_its_directory_is_synced() -> None:
    disk = Disk()
    disk.apply(Done("open", "f", 1))
    disk.apply(Done("write", "f", 1, 0, b"a"))
    disk.apply(Done("sync", "f", 1))
    assert disk.drop().files == {}
    assert disk.names_only().files == {"f": b"a"}
    disk.apply(Done("open", "f-wal", 2, WAL))
    disk.apply(Done("sync", "f-wal", 2))
    assert disk.drop().files == {"f": b"a", "f-wal": b""}


def test_after_a_failed_sync_only_what_is_written_again_reaches_the_disk() -> None:
    disk = Disk()
    disk.apply(Done("open", "f", 1, WAL))
    disk.apply(Done("sync", "f", 1))
    disk.apply(Done("write", "f", 1, 0, b"a"))
    disk.apply(Done("failed_sync", "f", 1))
    disk.apply(Done("sync", "f", 1))
    assert disk.drop().files == {"f": b""}
    disk.apply(Done("write", "f", 1, 0, b"a"))
    disk.apply(Done("sync", "f", 1))
    assert disk.drop().files == {"f": b"a"}
