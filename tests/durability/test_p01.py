"""P1 and P4, quick: a sample of power failures, and proof that the harness sees what it must."""

import copy
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import apsw
import pytest

import perdure
from perdure.backend import STORED, Append, Outcome
from tests.durability import p01_power_loss, places
from tests.durability.disk import Disk, Done
from tests.durability.ledger import Event, Hasty, Witness
from tests.durability.p01_power_loss import (
    Recording,
    crashes,
    judge,
    moments,
    record,
    succeed,
)
from tests.durability.promise import sample

pytestmark = [pytest.mark.durability, pytest.mark.slow]

CONTROL_STATES = 250
WAL = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_CREATE


def failures(recording: Recording, directory: Path) -> list[str]:
    draw = random.Random(1)
    states = itertools.islice(crashes(recording, 1), CONTROL_STATES)
    found = [judge(directory, crash, ledger, draw) for _, crash, ledger in states]
    return [failure for failure in found if failure]


class Piecemeal(Witness):
    """Commits the entries of an append one by one."""

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        self._report(Event("sent", appends))
        for append in appends:
            for entry in append.entries:
                self.backend.append([append._replace(entries=[entry])])
        self._report(Event("stored", appends))
        return [STORED for _ in appends]


def test_no_power_failure_loses_what_was_acknowledged() -> None:
    assert sample(p01_power_loss.PROMISE, seed=1, seconds=6, least=100) >= 100


def test_the_script_holds_checkpoints_group_commits_snapshots_and_deletions() -> None:
    with places.fast_directory() as directory:
        recording = record(directory)
        with perdure.open(directory / "store.db") as store:
            kinds = {found.kind for found in store.session("main").records()}
            deleted = [head for head in store.sessions(deleted=True) if "deleted" in head.labels]
    calls = [event for event in recording if isinstance(event, Done)]
    sent = [event for event in recording if isinstance(event, Event) and event.what == "sent"]
    restarts = [call for call in calls if call.path.endswith("-wal") and call.op == "write"]
    assert sum(call.at == 0 for call in restarts) > 10, "the log was begun anew"
    assert sum(call.op == "sync" and call.path == "store.db" for call in calls) > 10
    assert any(len(event.appends) > 1 for event in sent), "sessions committed together"
    assert {"snapshot", "value", "note", "labelled", "kept", "turn.failed"} <= kinds
    assert len(deleted) == 10


def test_without_full_syncs_acknowledged_records_are_seen_to_be_lost() -> None:
    with places.fast_directory() as directory:
        found = failures(record(directory, 20, synchronous="normal"), directory)
    assert any("lost" in failure for failure in found)
    assert not any("damaged" in failure for failure in found), "NORMAL loses, but keeps order"


def test_without_syncs_damage_is_seen() -> None:
    with places.fast_directory() as directory:
        found = failures(record(directory, 20, synchronous="off"), directory)
    assert any("Damaged" in failure for failure in found)


def test_an_acknowledgement_before_the_commit_is_seen() -> None:
    with places.fast_directory() as directory:
        found = failures(record(directory, 20, Hasty), directory)
    assert any("lost" in failure for failure in found)


def test_an_append_that_is_stored_in_pieces_is_seen() -> None:
    with places.fast_directory() as directory:
        found = failures(record(directory, 20, Piecemeal), directory)
    assert any("not all or nothing" in failure for failure in found)


def test_a_turn_that_is_taken_for_complete_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perdure.Session, "interrupted", ())
    with places.fast_directory() as directory:
        found = failures(record(directory, 20), directory)
    assert any("are open" in failure for failure in found)


def test_what_a_successor_reads_survives_only_because_it_is_synced_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with places.fast_directory() as directory:
        recording = record(directory, 20)
        some = itertools.islice(moments(recording, random.Random(1)), 60)
        assert not any(succeed(directory, disk) for _, disk, _ in some)

        sync = Disk._sync
        monkeypatch.setattr(Disk, "_sync", lambda disk, done: done.handle and sync(disk, done))
        some = itertools.islice(moments(recording, random.Random(1)), 400)
        assert any(succeed(directory, disk) for _, disk, _ in some)


def test_what_a_successor_reads_survives_a_failed_sync_only_because_it_is_written_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with places.fast_directory() as directory:
        recording = record(directory, 20)
        waiting = [
            copy.deepcopy(disk)
            for _, disk, _ in itertools.islice(moments(recording, random.Random(1)), 400)
            if disk.log_only and not disk.settled
        ]
        assert len(waiting) > 10
        assert not any(succeed(directory, disk, sync_failed=True) for disk in waiting)
        write = Disk._write
        monkeypatch.setattr(Disk, "_write", lambda disk, done: done.handle and write(disk, done))
        assert any(succeed(directory, disk, sync_failed=True) for disk in waiting)


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
