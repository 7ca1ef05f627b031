"""P5, quick: a sample of I/O errors, and proof that the harness sees errors that are swallowed."""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.backends.files import append
from perdure.backends.files.backend import FilesBackend
from perdure.backends.protocol import STORED, Append, Outcome
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.backends.sqlite.connections import ConnectionPool
from perdure.errors import UnavailableError
from tests.promises import limits, p05_errors, places, straced
from tests.promises.calls import Call
from tests.promises.children import ledger_of
from tests.promises.kinds import FILES, KINDS, SQLITE, Kind
from tests.promises.p05_errors import faults, try_fault
from tests.promises.promise import Promise, sample
from tests.promises.spoiler import ERRORS, SPOILERS, Fault, Spoiler

pytestmark = [pytest.mark.durability, pytest.mark.slow]
UNUSUAL = {"truncate"}  # Files only need it where something went wrong.
needs_mounting = pytest.mark.skipif(not places.can_mount(), reason="may not mount here")


each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def failures(
    kind: Kind,
    directory: Path,
    *,
    op: str,
    error: str,
    most: int = 60,
    spoiler: type[Spoiler] | None = None,
) -> Iterator[str]:
    every = faults(kind, directory)
    wanted = [fault for fault in every if (fault.op, fault.error) == (op, error)]
    draw = random.Random(1)
    for fault in draw.sample(wanted, min(most, len(wanted))):
        failure = try_fault(kind, directory, fault, draw, spoiler).failure
        if failure:
            yield failure


@pytest.mark.parametrize("promise", p05_errors.PROMISES, ids=lambda promise: promise.key)
def test_every_error_is_told_or_survived_and_nothing_is_half_written(promise: Promise) -> None:
    assert sample(promise, seed=1, seconds=2.5, least=20) >= 20


@each_kind
def test_every_kind_of_call_can_be_spoiled(kind: Kind, directory: Path) -> None:
    unusual = UNUSUAL if kind is FILES else set()
    assert {fault.op for fault in faults(kind, directory)} == set(ERRORS[kind.name]) - unusual


def test_an_error_while_a_file_is_looked_at_is_not_taken_for_damage(directory: Path) -> None:
    reads = [fault for fault in faults(SQLITE, directory) if fault.op == "read"]
    draw = random.Random(1)
    opening = [try_fault(SQLITE, directory, fault, draw) for fault in reads[:20]]
    assert [trial for trial in opening if trial.failure] == []


def liar(kind: Kind) -> type[Spoiler]:
    """Return a disk whose failed syncs nobody hears of."""
    base: Any = SPOILERS[kind.name]

    class Liar(base):  # type: ignore[misc]
        def __call__(self, call: Call) -> Any:
            try:
                return super().__call__(call)
            except (apsw.IOError, OSError):
                if call.op != "sync":
                    raise
                return None

    return Liar


@each_kind
def test_a_failed_sync_that_is_taken_for_a_good_one_is_seen(kind: Kind, directory: Path) -> None:
    found = failures(kind, directory, op="sync", error="EIO", spoiler=liar(kind))
    assert any("lost" in failure or "its file was truncated" in failure for failure in found)


@each_kind
def test_an_error_that_is_swallowed_is_seen(
    kind: Kind, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner: Any = SqliteBackend if kind is SQLITE else FilesBackend
    real: Callable[[Any, Sequence[Append]], Sequence[Outcome]] = owner.append

    def careless(backend: Any, appends: Sequence[Append]) -> Sequence[Outcome]:
        try:
            return real(backend, appends)
        except UnavailableError:
            return [STORED for _ in appends]

    monkeypatch.setattr(owner, "append", careless)
    assert any(failures(kind, directory, op="write", error="ENOSPC"))


def test_an_error_of_another_type_is_seen(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def untranslated(
        connections: ConnectionPool, _stream: str, work: Callable[[apsw.Connection], Any], **_: bool
    ) -> Any:
        writer = connections._writer or connections._open_writer()
        with writer:
            return work(writer)

    monkeypatch.setattr(ConnectionPool, "write", untranslated)
    found = failures(SQLITE, directory, op="write", error="EIO")
    assert any("IOError" in failure for failure in found)


def test_an_error_of_the_system_that_escapes_from_files_is_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "translate_stream_error", lambda error, *_: error)
    monkeypatch.setattr(FilesBackend, "_translate_errors", lambda *_: contextlib.nullcontext())
    found = failures(FILES, directory, op="write", error="EIO")
    assert any("OSError" in failure for failure in found)


@each_kind
def test_a_file_that_may_not_grow_is_told_and_goes_on_when_it_may(
    kind: Kind, directory: Path
) -> None:
    assert limits.growth_limited(kind, directory) == ""


@needs_mounting
@each_kind
def test_a_full_disk_is_told_and_goes_on_when_there_is_room(kind: Kind, directory: Path) -> None:
    assert limits.full_disk(kind, directory) == ""


@needs_mounting
@each_kind
def test_a_read_only_disk_can_be_read_and_writing_says_why_not(kind: Kind, directory: Path) -> None:
    assert limits.read_only_disk(kind, directory) == ""


@each_kind
def test_without_permission_one_can_read_and_writing_says_why_not(
    kind: Kind, directory: Path
) -> None:
    assert limits.without_permission(kind, directory) == ""


@pytest.mark.skipif(not straced.WORKS, reason="strace is not there, or not allowed")
@pytest.mark.parametrize(("kind", "call"), [(SQLITE, "fdatasync"), (FILES, "fsync")], ids=str)
def test_a_system_call_that_fails_is_told(kind: Kind, call: str, directory: Path) -> None:
    end = straced.run(kind, directory, 20, f"{call}:error=EIO:when=30+")
    assert end.code == 1
    assert "perdure.errors.UnavailableError" in end.last_words
    assert limits.judge(kind.address(directory), ledger_of(end.said)) == ""
    assert ledger_of(end.said).acks > 0


def test_a_fault_says_what_it_is() -> None:
    assert str(Fault(3, "write", "EIO", lasting=True)) == "EIO from write, call 3 and later ones"
