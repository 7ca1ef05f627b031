"""P5, quick: a sample of I/O errors, and proof that the harness sees errors that are swallowed."""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.backend import STORED, Append, Outcome
from perdure.backends.sqlite import SqliteBackend
from perdure.backends.sqlite_connections import Connections
from perdure.errors import UnavailableError
from tests.durability import limits, p05_errors, places, straced
from tests.durability.children import ledger_of
from tests.durability.p05_errors import faults, try_fault
from tests.durability.promise import sample
from tests.durability.spoiler import ERRORS, Fault, Spoiler
from tests.durability.vfs import Call

pytestmark = [pytest.mark.durability, pytest.mark.slow]
needs_mounting = pytest.mark.skipif(not places.can_mount(), reason="may not mount here")


@pytest.fixture
def directory() -> Iterator[Path]:
    with places.fast_directory() as directory:
        yield directory


def failures(
    directory: Path, *, op: str, error: str, most: int = 60, spoiler: type[Spoiler] = Spoiler
) -> Iterator[str]:
    wanted = [fault for fault in faults(directory) if (fault.op, fault.error) == (op, error)]
    draw = random.Random(1)
    for fault in draw.sample(wanted, min(most, len(wanted))):
        failure = try_fault(directory, fault, draw, spoiler).failure
        if failure:
            yield failure


def test_every_error_is_told_or_survived_and_nothing_is_half_written() -> None:
    assert sample(p05_errors.PROMISE, seed=1, seconds=6, least=20) >= 20


def test_every_kind_of_call_can_be_spoiled(directory: Path) -> None:
    assert {fault.op for fault in faults(directory)} == set(ERRORS)


def test_an_error_while_a_file_is_looked_at_is_not_taken_for_damage(directory: Path) -> None:
    reads = [fault for fault in faults(directory) if fault.op == "read"]
    draw = random.Random(1)
    opening = [try_fault(directory, fault, draw) for fault in reads[:20]]
    assert [trial for trial in opening if trial.failure] == []


class Liar(Spoiler):
    """A disk whose failed syncs nobody hears of."""

    def __call__(self, call: Call) -> Any:
        try:
            return super().__call__(call)
        except apsw.IOError:
            return None


def test_a_failed_sync_that_is_taken_for_a_good_one_is_seen(directory: Path) -> None:
    found = failures(directory, op="sync", error="EIO", spoiler=Liar)
    assert any("lost" in failure for failure in found)


def test_an_error_that_is_swallowed_is_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[[SqliteBackend, Sequence[Append]], Sequence[Outcome]] = SqliteBackend.append

    def careless(backend: SqliteBackend, appends: Sequence[Append]) -> Sequence[Outcome]:
        try:
            return real(backend, appends)
        except UnavailableError:
            return [STORED for _ in appends]

    monkeypatch.setattr(SqliteBackend, "append", careless)
    assert any(failures(directory, op="write", error="ENOSPC"))


def test_an_error_of_another_type_is_seen(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def untranslated(connections: Connections, stream: str) -> Iterator[apsw.Connection]:
        writer = connections._writer or connections._open_writer()
        with writer:
            yield writer

    monkeypatch.setattr(Connections, "writing", untranslated)
    found = failures(directory, op="write", error="EIO")
    assert any("IOError" in failure for failure in found)


def test_a_file_that_may_not_grow_is_told_and_goes_on_when_it_may(directory: Path) -> None:
    assert limits.growth_limited(directory) == ""


@needs_mounting
def test_a_full_disk_is_told_and_goes_on_when_there_is_room(directory: Path) -> None:
    assert limits.full_disk(directory) == ""


@needs_mounting
def test_a_read_only_disk_is_told(directory: Path) -> None:
    assert limits.read_only_disk(directory) == ""


@pytest.mark.skipif(places.is_root(), reason="root may write everywhere")
def test_missing_permission_is_told(directory: Path) -> None:
    assert limits.without_permission(directory) == ""


@pytest.mark.skipif(not straced.WORKS, reason="strace is not there, or not allowed")
def test_a_system_call_that_fails_is_told(directory: Path) -> None:
    path = directory / "store.db"
    end = straced.run(path, 20, "fdatasync:error=EIO:when=30+")
    assert end.code == 1
    assert "perdure.errors.UnavailableError" in end.last_words
    assert limits.judge(path, ledger_of(end.said)) == ""
    assert ledger_of(end.said).acks > 0


def test_a_fault_says_what_it_is() -> None:
    assert str(Fault(3, "write", "EIO", lasting=True)) == "EIO from write, call 3 and later ones"
