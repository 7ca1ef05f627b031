"""A SQLite store that may only be read: others may write to it, and writing says why not."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import perdure
from perdure.backends.sqlite import connections as connections_module
from perdure.backends.sqlite import schema
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.backends.sqlite.errors import translate_error
from perdure.errors import DamagedError, UnavailableError, UsageError
from perdure.testing.contract.samples import append_all, append_of, entries
from tests.promises import places

needs_mounting = pytest.mark.skipif(not places.can_mount(), reason="may not mount here")
ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with three entries that was closed."""
    found = tmp_path / "a store?.db"  # As a part of a URI it needs to be quoted.
    backend = SqliteBackend(found)
    append_all(backend, append_of("s", 1, 3, "label"))
    backend.close()
    return found


def refuse(path: str, name: str, *_: object, **__: object) -> apsw.Connection:
    raise UnavailableError(name, "it can not be written") from apsw.ReadOnlyError()


@pytest.fixture
def only_reading(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteBackend]:
    """The store, opened as if this process might not write to it; others may."""
    with monkeypatch.context() as patched:
        patched.setattr(schema, "open_writer", refuse)
        patched.setattr(connections_module, "why_read_only", lambda *_: "a test wants it so")
        backend = SqliteBackend(path)
    yield backend
    backend.close()


def write(path: Path, position: int) -> None:
    """Append as another process would, which leaves no log behind."""
    other = SqliteBackend(path)
    append_all(other, append_of("s", position, position))
    other.close()


def test_it_can_be_read_and_writing_says_why_not(only_reading: SqliteBackend, path: Path) -> None:
    before = path.read_bytes()
    assert list(only_reading.read("s")) == entries(1, 3)
    assert list(only_reading.read("s", reverse=True)) == entries(1, 3)[::-1]
    assert [head.position for head in only_reading.streams(labels=["label"])] == [3]
    assert [head.stream for head in only_reading.recent()] == ["s"]
    for use in (
        lambda: only_reading.append([append_of("s", 4, 4)]),
        lambda: only_reading.drop("s", before=2),
    ):
        with pytest.raises(UsageError, match="is read-only, because a test wants it so"):
            use()
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_it_can_be_listed_without_the_index_of_live_sessions(
    only_reading: SqliteBackend, path: Path
) -> None:
    other = apsw.Connection(str(path))
    other.execute("drop index head_live")
    other.close()
    (head,) = only_reading.streams()
    assert list(only_reading.streams(without=["deleted"])) == [head]
    assert list(only_reading.recent(prefix=head.stream, without=["deleted"])) == [head]


def test_a_session_whose_write_was_refused_is_not_in_doubt(only_reading: SqliteBackend) -> None:
    with perdure.open(only_reading) as store:
        session = store.session("new")
        for _ in range(2):
            with pytest.raises(UsageError, match="is read-only"):
                session.append({"role": "user", "content": "Too late."})
        assert session.position == 0
        session.refresh()


def test_what_others_write_is_seen(only_reading: SqliteBackend, path: Path) -> None:
    write(path, 4)
    assert list(only_reading.read("s")) == entries(1, 4)
    writer = SqliteBackend(path)
    append_all(writer, append_of("s", 5, 5))
    assert path.with_name(path.name + "-wal").stat().st_size, "it is in the log"
    assert list(only_reading.read("s")) == entries(1, 5)
    append_all(writer, append_of("s", 6, 6))
    assert list(only_reading.read("s")) == entries(1, 6)
    writer.close()
    assert list(only_reading.read("s")) == entries(1, 6)


def test_a_page_during_which_others_wrote_is_thrown_away(
    only_reading: SqliteBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = only_reading._connections

    def use(position: int, error: Exception | None) -> None:
        def read(reader: apsw.Connection) -> None:
            assert reader.execute("select count(*) from entry").get == 3
            if position:
                write(path, position)
            if error is not None:
                raise error

        connections.read(read)

    with pytest.raises(DamagedError):
        use(0, DamagedError("s", 1, "it is"))
    use(0, None)
    content = path.read_bytes()
    with pytest.raises(UnavailableError, match="read again"):
        use(4, None)
    path.write_bytes(content)
    with pytest.raises(UnavailableError, match="read again"):
        use(4, DamagedError("s", 1, "it seems so, for it was written to meanwhile"))
    check = connections_module.ReadOnlyPool._require_unchanged

    def check_late(given: connections_module.ReadOnlyPool, reader: apsw.Connection) -> None:
        write(path, 5)
        check(given, reader)

    monkeypatch.setattr(connections_module.ReadOnlyPool, "_require_unchanged", check_late)
    with pytest.raises(UnavailableError):
        next(only_reading.read("s"))


def test_nothing_is_opened_that_is_no_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "open_writer", refuse)
    with pytest.raises(UnavailableError, match="can not be written"):
        SqliteBackend(path)  # Not because it may not be written.
    monkeypatch.setattr(connections_module, "why_read_only", lambda *_: "a test wants it so")
    with pytest.raises(UnavailableError, match="can not be written"):
        SqliteBackend(path.with_name("missing"))
    path.write_bytes(b"")
    with pytest.raises(UnavailableError, match="empty"):
        SqliteBackend(path)
    path.write_bytes(b"no database" * 100)
    with pytest.raises(DamagedError):
        SqliteBackend(path)
    path.unlink()
    with apsw.Connection(str(path)) as other:
        other.execute("create table theirs (x)")
    with pytest.raises(UsageError, match="another program"):
        SqliteBackend(path)


def test_a_store_that_is_only_busy_is_not_taken_for_one_that_can_only_be_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "why_read_only", lambda *_: "a test wants it so")
    other = apsw.Connection(str(path))
    other.execute("begin immediate")
    backend = SqliteBackend(path, timeout=0.05)
    assert list(backend.read("s")) == entries(1, 3)
    with pytest.raises(UnavailableError, match=r"holds the lock.*resume or end that process"):
        backend.append([append_of("s", 4, 4)])
    other.close()
    assert append_all(backend, append_of("s", 4, 4)) == ["stored"]
    backend.close()


def test_a_store_that_another_process_creates_or_recovers_says_what_to_do(path: Path) -> None:
    other = apsw.Connection(str(path))
    other.pragma("locking_mode", "exclusive")
    other.execute("begin exclusive")
    with pytest.raises(UnavailableError, match=r"creates or recovers.*resume or end that process"):
        SqliteBackend(path, timeout=0.05)
    other.close()
    SqliteBackend(path).close()


@pytest.mark.parametrize("error", [apsw.BusyError, apsw.ProtocolError])
def test_an_error_about_a_lock_says_what_to_do(error: type[apsw.Error]) -> None:
    translated = translate_error(error(), "sqlite:agents.db")
    assert isinstance(translated, UnavailableError)
    assert "resume or end that process" in str(translated)


def test_a_file_that_goes_away_is_told_of(only_reading: SqliteBackend, path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(UnavailableError):
        list(only_reading.read("s"))
    path.with_name("elsewhere").rename(path)
    assert list(only_reading.read("s")) == entries(1, 3)


DIE = (
    "import os, signal, sys; from perdure.backends.sqlite import SqliteBackend;"
    "from perdure.testing.contract.samples import append_of;"
    "backend = SqliteBackend(sys.argv[1]); backend.append([append_of('s', 1, 3)]);"
    "os.kill(os.getpid(), signal.SIGKILL)"
)


@needs_mounting
@pytest.mark.parametrize("left", ["nothing", "a log", "a log without its index"])
def test_a_read_only_mount_can_be_read(left: str) -> None:
    with (
        places.fast_directory() as directory,
        places.mounted(directory / "disk", "-t", "tmpfs", "perdure") as disk,
    ):
        path = disk / "store.db"
        if left == "nothing":
            backend = SqliteBackend(path)
            append_all(backend, append_of("s", 1, 3))
            backend.close()
        else:
            search = os.pathsep.join(filter(None, sys.path))
            environment = {**os.environ, "PYTHONPATH": search}
            words = [sys.executable, "-c", DIE, str(path)]
            died = subprocess.run(words, env=environment, check=False)
            assert died.returncode == -signal.SIGKILL
        if left == "a log without its index":
            path.with_name("store.db-shm").unlink()
        places.command("mount", "-o", "remount,ro", disk)
        if left == "a log without its index":
            with pytest.raises(UnavailableError, match="open the copy"):
                SqliteBackend(path)
            return
        backend = SqliteBackend(path)
        assert list(backend.read("s")) == entries(1, 3)
        with pytest.raises(UsageError, match="the file system is read-only"):
            backend.append([append_of("s", 4, 4)])
        backend.close()
