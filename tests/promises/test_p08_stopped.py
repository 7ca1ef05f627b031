"""P8 with writers that are stopped, a seeded sample; commands while a writer is stopped."""

import itertools
from pathlib import Path

import pytest

from perdure.backends.files import backend as files_backend
from perdure.backends.files.backend import FilesBackend
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.backends.sqlite.connections import ConnectionPool
from perdure.backends.sqlite.schema import check_settings
from perdure.errors import UnavailableError
from tests.cli.support import invoke
from tests.promises import p08_stopped as stopped
from tests.promises.kinds import FILES, KINDS, SQLITE, Kind
from tests.promises.promise import sample

pytestmark = [pytest.mark.durability, pytest.mark.slow]

PROMISES = {promise.store: promise for promise in stopped.PROMISES}

LOCKED = {"sqlite": 20, "files": 2}
"""A call of the child's script at which it holds the lock of the session, or of the store."""


@pytest.mark.parametrize("store", PROMISES)
def test_a_sample_holds(store: str) -> None:
    sample(PROMISES[store], seed=1, seconds=3, least=8)


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_commands_read_while_a_writer_is_stopped(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults: dict[str, object] = SqliteBackend.__init__.__kwdefaults__ or {}
    monkeypatch.setitem(defaults, "timeout", 0.3)
    place = stopped.files_place(kind, tmp_path)
    stopped.prepare(place)
    writer = stopped.StoppedWriter(place, call=LOCKED[kind.name])
    address = kind.address(tmp_path)
    try:
        assert stopped.try_write(place) == ("", True), "it holds a lock, and a write says so"
        for words in (["ls"], ["show", "s"], ["verify"], ["stats"]):
            done = invoke(address, *words)
            assert done.exit_code == 0, done.output
        assert "1 session" in invoke(address, "verify").output
        report = invoke(None, "doctor", "--appends", "3", address).output
        assert "every session is in every list" in report
        is_blocked = kind is SQLITE  # In files the doctor's session has a lock of its own.
        assert ("resume or end that process" in " ".join(report.split())) == is_blocked
    finally:
        writer.kill()
    assert stopped.try_write(place) == ("", False)


def test_readers_that_take_the_lock_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin, on both stores."""

    def open_locked(pool: ConnectionPool) -> object:
        return pool.write("", lambda db: check_settings(db, pool._name))

    monkeypatch.setattr(stopped, "READING", 0.1)
    monkeypatch.setattr(ConnectionPool, "open", open_locked)
    monkeypatch.setattr(FilesBackend, "_sync_tail", _refuse)
    monkeypatch.setattr(files_backend, "READ_LOCK_TIMEOUT", 0.1)
    for kind in (SQLITE, FILES):
        trials = stopped.files_trials(kind, 1, float("inf"))
        failures = (trial.failure for trial in itertools.islice(trials, 100) if trial.failure)
        assert "while a writer is stopped" in next(failures)


def _refuse(backend: FilesBackend, *_: object) -> None:
    raise UnavailableError(backend.name, "another process holds the lock")
