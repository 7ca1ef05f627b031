"""SqliteBackend when disks fill up and fail, processes fork and die."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.backends.sqlite import connections as connections_module
from perdure.backends.sqlite import schema
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.errors import UnavailableError, UnsupportedError, UsageError
from perdure.testing.contract.samples import append_all, append_of, entries, entry

pytestmark = pytest.mark.durability


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def backend(path: Path) -> Iterator[SqliteBackend]:
    backend = SqliteBackend(path)
    yield backend
    backend.close()


def in_child(work: Callable[[], bool]) -> int:
    """Fork, do the work, and let the child end without cleaning up, as a crash would."""
    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(100)  # A child that hangs must not outlive the test.
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return child


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class FailingVfs(apsw.VFS):
    """The real file system, whose syncs of one kind of file fail while `fails` says so."""

    def __init__(self) -> None:
        self.fails: str | None = None
        self.synced: list[str] = []
        super().__init__("failing", "")

    def xOpen(self, name: Any, flags: Any) -> apsw.VFSFile:  # noqa: N802 - apsw's name.
        return FailingFile(self, name, flags)


class FailingFile(apsw.VFSFile):
    def __init__(self, vfs: FailingVfs, name: Any, flags: Any) -> None:
        super().__init__("", name, flags)
        self._vfs = vfs
        self._name = name if isinstance(name, str) or name is None else name.filename()

    def xSync(self, flags: int) -> None:  # noqa: N802 - apsw's name.
        if self._vfs.fails is not None and str(self._name).endswith(self._vfs.fails):
            raise apsw.IOError(self._vfs.fails)
        self._vfs.synced.append(str(self._name))
        super().xSync(flags)


@pytest.fixture
def vfs() -> Iterator[FailingVfs]:
    vfs = FailingVfs()
    yield vfs
    vfs.unregister()


def test_after_a_failed_sync_the_log_is_rewritten_before_anything_is_acknowledged(
    path: Path, vfs: FailingVfs
) -> None:
    backend = SqliteBackend(path, vfs="failing")
    append_all(backend, append_of("s", 1, 1))
    assert any(name.endswith("-wal") for name in vfs.synced), "the shim sees syncs"

    vfs.fails = "-wal"
    with pytest.raises(UnavailableError) as caught:
        backend.append([append_of("s", 2, 2)])
    assert isinstance(caught.value.__cause__, apsw.IOError)
    assert backend._connections._poisoned
    assert backend._connections._writer is None
    assert list(backend.read("s")) == entries(1, 1), "what was acknowledged can be read"

    vfs.fails = None
    vfs.synced.clear()
    assert append_all(backend, append_of("s", 2, 2)) == ["stored"]
    assert str(path) in vfs.synced[:-1], "the checkpoint synced the database"
    assert vfs.synced[-1].endswith("-wal"), "and then the append its log"
    assert not backend._connections._poisoned
    assert list(backend.read("s")) == entries(1, 2)
    backend.close()


def test_while_the_log_can_not_be_rewritten_nothing_is_acknowledged(
    path: Path, vfs: FailingVfs
) -> None:
    backend = SqliteBackend(path, vfs="failing")
    append_all(backend, append_of("s", 1, 1))
    vfs.fails = "-wal"
    with pytest.raises(UnavailableError):
        backend.append([append_of("s", 2, 2)])
    vfs.fails = "store.db"
    for _ in range(2):
        with pytest.raises(UnavailableError):
            backend.append([append_of("s", 1, 1)])
        assert backend._connections._poisoned
        assert list(backend.read("s")) == entries(1, 1)
    vfs.fails = None
    assert append_all(backend, append_of("s", 1, 2)) == ["stored"]
    backend.close()


def test_a_poisoned_store_waits_for_readers_of_the_log_only_so_long(
    path: Path, vfs: FailingVfs
) -> None:
    backend = SqliteBackend(path, vfs="failing", timeout=0.2)
    append_all(backend, append_of("s", 1, 1))
    reader = apsw.Connection(str(path))
    reader.execute("begin")
    reader.execute("select * from head").fetchall()
    vfs.fails = "-wal"
    with pytest.raises(UnavailableError):
        backend.append([append_of("s", 2, 2)])
    vfs.fails = None
    with pytest.raises(UnavailableError):
        backend.append([append_of("s", 2, 2)])
    assert backend._connections._poisoned
    reader.close()
    assert append_all(backend, append_of("s", 2, 2)) == ["stored"]
    backend.close()


def test_entries_of_a_killed_process_are_synced_before_they_are_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write() -> bool:
        backend = SqliteBackend(path)
        append_all(backend, append_of("s", 1, 2))
        os.kill(os.getpid(), signal.SIGKILL)
        return False

    assert exit_code(in_child(write)) == -signal.SIGKILL
    assert Path(f"{path}-wal").stat().st_size > 0
    synced: list[str] = []
    real = schema.sync_file

    def watched(name: str) -> None:
        synced.append(name)
        real(name)

    monkeypatch.setattr(schema, "sync_file", watched)
    backend = SqliteBackend(path)
    assert set(synced) == {f"{path}-wal"}
    assert list(backend.read("s")) == entries(1, 2)
    assert append_all(backend, append_of("s", 1, 2)) == ["stored"]
    backend.close()


def test_a_full_disk_is_said_and_spoils_nothing(backend: SqliteBackend) -> None:
    append_all(backend, append_of("s", 1, 1))
    writer = backend._connections._writer
    assert writer is not None
    writer.pragma("max_page_count", writer.pragma("page_count") + 2)
    large = append_of("s", 2, 2)._replace(entries=[entry(2, body=b"x" * 100_000)])
    with pytest.raises(UnavailableError, match=r"disk is full.*free space"):
        backend.append([large])
    assert list(backend.read("s")) == entries(1, 1)
    assert append_all(backend, large) == ["stored"], "the new connection has no such limit"


def test_a_file_that_may_not_grow_is_said_and_spoils_nothing(path: Path) -> None:
    def work() -> bool:
        backend = SqliteBackend(path)
        append_all(backend, append_of("s", 1, 1))
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        large = append_of("s", 2, 2)._replace(entries=[entry(2, body=b"x" * 400_000)])
        try:
            backend.append([large])
        except UnavailableError:
            kept = list(backend.read("s")) == entries(1, 1)
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            return kept and append_all(backend, large) == ["stored"]
        return False

    assert exit_code(in_child(work)) == 0
    backend = SqliteBackend(path)
    assert [one.position for one in backend.read("s")] == [1, 2]
    backend.close()


def test_a_forked_child_and_its_parent_both_go_on(backend: SqliteBackend) -> None:
    append_all(backend, append_of("before", 1, 1))
    assert list(backend.read("before")) == entries(1, 1)

    def work() -> bool:
        for position in range(1, 31):
            assert append_all(backend, append_of("child", position, position)) == ["stored"]
        return list(backend.read("before")) == entries(1, 1)

    child = in_child(work)
    for position in range(1, 31):
        assert append_all(backend, append_of("parent", position, position)) == ["stored"]
    assert exit_code(child) == 0
    assert list(backend.read("child")) == list(backend.read("parent")) == entries(1, 30)


def test_what_a_child_stored_is_there_though_the_parent_closed_meanwhile(path: Path) -> None:
    """A connection that lived through a fork would let the parent delete the child's log."""
    backend = SqliteBackend(path)
    append_all(backend, append_of("s", 1, 1))
    list(backend.read("s"))
    closed, stored = os.pipe(), os.pipe()

    def work() -> bool:
        append_all(backend, append_of("s", 2, 2))
        os.write(stored[1], b"x")
        os.read(closed[0], 1)
        return append_all(backend, append_of("s", 3, 3)) == ["stored"]

    child = in_child(work)
    os.read(stored[0], 1)
    backend.close()
    other = SqliteBackend(path)
    append_all(other, append_of("other", 1, 1))
    os.write(closed[1], b"x")
    assert exit_code(child) == 0
    assert append_all(other, append_of("other", 2, 2)) == ["stored"]
    assert list(other.read("s")) == entries(1, 3)
    other.close()
    again = SqliteBackend(path)
    assert list(again.read("s")) == entries(1, 3)
    again.close()
    for end in (*closed, *stored):
        os.close(end)


def test_forks_in_the_middle_of_other_threads_work_lose_nothing(backend: SqliteBackend) -> None:
    done = threading.Event()
    written = [0, 0]

    def work(number: int) -> None:
        while not done.is_set():
            written[number] += 1
            position = written[number]
            assert append_all(backend, append_of(f"thread {number}", position, position)) == [
                "stored"
            ]
            assert next(backend.read(f"thread {number}", reverse=True)).position == position

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    children = []
    for number in range(5):
        before = [*written]
        while any(now < then + 2 for now, then in zip(written, before, strict=True)):
            time.sleep(0.001)  # Both are at work.
        name = f"child {number}"
        append = append_of(name, 1, 1)
        children.append(in_child(lambda one=append: append_all(backend, one) == ["stored"]))  # type: ignore[misc]
    codes = [exit_code(child) for child in children]
    done.set()
    for thread in threads:
        thread.join()
    assert codes == [0] * 5
    for number in range(2):
        assert list(backend.read(f"thread {number}"))[-1].position == written[number] > 0


def test_a_connection_that_lived_through_a_fork_is_not_used(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that is not Python's can fork without telling."""
    monkeypatch.setattr(connections_module, "_paused_pools", [])
    monkeypatch.setattr(connections_module.ConnectionPool, "pause", lambda _: None)

    def work() -> bool:
        with pytest.raises(UnsupportedError, match="after the fork"):
            backend.append([append_of("s", 1, 1)])
        with pytest.raises(UnsupportedError, match="after the fork"):
            list(backend.read("s"))
        backend.close()
        return True

    assert exit_code(in_child(work)) == 0
    assert append_all(backend, append_of("s", 1, 1)) == ["stored"], "the parent goes on"


def test_processes_that_hammer_one_file_never_see_a_lock(path: Path) -> None:
    def work(number: int) -> bool:
        backend = SqliteBackend(path)
        for position in range(1, 51):
            assert append_all(backend, append_of(str(number), position, position)) == ["stored"]
            assert len(list(backend.read(str(number)))) == position
            list(backend.streams())
        backend.close()
        return True

    children = [in_child(lambda n=n: work(n)) for n in range(4)]  # type: ignore[misc]
    assert [exit_code(child) for child in children] == [0] * 4
    backend = SqliteBackend(path)
    assert [head.position for head in backend.streams()] == [50] * 4
    backend.close()


@pytest.mark.timeout(30)
def test_what_interrupts_a_write_of_its_own_thread_is_refused(path: Path) -> None:
    """A signal handler that closes the store or drops a stream would wait for itself."""
    backend = SqliteBackend(path)
    append_all(backend, append_of("s", 1, 3))

    def work(_db: apsw.Connection) -> None:
        for call in (backend.close, lambda: backend.drop("s", before=2)):
            with pytest.raises(UsageError, match="in a signal handler"):
                call()

    backend._connections.write("s", work)
    assert append_all(backend, append_of("s", 4, 4)) == ["stored"]
    backend.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_removed_or_replaced_while_open_is_not_written_to(
    path: Path, *, replaced: bool
) -> None:
    backend = SqliteBackend(path)
    append_all(backend, append_of("s", 1, 1))
    path.rename(path.with_name("elsewhere.db"))
    if replaced:
        SqliteBackend(path.with_name("other.db")).close()
        path.with_name("other.db").rename(path)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="removed or replaced while it was open"):
            append_all(backend, append_of("s", 2, 2))
    path.with_name("elsewhere.db").rename(path)
    assert append_all(backend, append_of("s", 2, 2)) == ["stored"]
    backend.close()


@pytest.mark.parametrize("seconds", [0.0, 0.15])
@pytest.mark.parametrize("lost", [["-wal"], ["-shm"], ["-wal", "-shm"]])
def test_a_log_that_is_removed_while_open_is_not_written_to_and_closing_saves_it(
    path: Path, lost: list[str], seconds: float
) -> None:
    """Also when it was there for a while, and only a change of the directory is looked for."""
    backend = SqliteBackend(path)
    time.sleep(seconds)
    append_all(backend, append_of("s", 1, 1))
    for suffix in lost:
        path.with_name(path.name + suffix).unlink()
    for _ in range(2):
        with pytest.raises(UnavailableError, match="-wal or -shm file was removed or replaced"):
            append_all(backend, append_of("s", 2, 2))
    backend.close()

    backend = SqliteBackend(path)
    assert [entry.position for entry in backend.read("s")] == [1]
    assert append_all(backend, append_of("s", 2, 2)) == ["stored"]
    backend.close()


def test_whoever_lost_the_locks_leaves_alone_what_others_store_under_new_ones(path: Path) -> None:
    backend = SqliteBackend(path)
    append_all(backend, append_of("s", 1, 1))
    path.with_name(path.name + "-shm").unlink()
    # Not a fork: that would close the connections whose locks are lost.
    script = (
        "import sys; from perdure.backends.sqlite import SqliteBackend\n"
        "from perdure.testing.contract.samples import append_all, append_of\n"
        "print(*append_all(SqliteBackend(sys.argv[1]), append_of('other', 1, 9)), flush=True)\n"
        "import os; os._exit(0)"
    )
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["stored"]
    with pytest.raises(UnavailableError, match="-wal or -shm file was removed or replaced"):
        append_all(backend, append_of("s", 2, 2))
    backend.close()

    backend = SqliteBackend(path)
    assert {head.stream: head.position for head in backend.streams()} == {"other": 9, "s": 1}
    backend.close()


def test_a_directory_that_does_not_change_is_all_that_is_looked_at(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = SqliteBackend(path)
    time.sleep(0.15)
    append_all(backend, append_of("s", 1, 1))
    asked: list[object] = []
    real = os.stat

    def stat(place: Any, **how: Any) -> os.stat_result:
        if str(place).startswith(str(path.parent)):
            asked.append(place)
        return real(place, **how)

    monkeypatch.setattr(os, "stat", stat)
    append_all(backend, append_of("s", 2, 2))
    assert asked == [str(path.parent)]
    path.with_name("another").touch()
    append_all(backend, append_of("s", 3, 3))
    assert str(path) + "-wal" in asked
    monkeypatch.undo()
    backend.close()


def test_a_file_is_not_written_to_after_a_restore_that_set_the_time_of_its_directory_back(
    path: Path,
) -> None:
    """As `tar` and `rsync` do: what they replaced shows in no time that can be set."""
    backend = SqliteBackend(path)
    time.sleep(0.15)
    append_all(backend, append_of("s", 1, 1))
    before = path.parent.stat()
    restored = path.with_name("restored")
    restored.write_bytes(path.read_bytes())
    restored.replace(path)
    os.utime(path.parent, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(UnavailableError, match="was removed or replaced while it was open"):
        backend.append([append_of("s", 2, 2)])
    backend.close()


def test_who_reads_while_the_writer_is_opened_anew_is_not_told_of_a_lost_log(
    path: Path, backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a fork the log is another file."""
    connections = backend._connections
    append_all(backend, append_of("s", 1, 1))
    connections.pause()
    for name in "abcd":
        path.with_name(name).touch()  # Or the new files could bear the numbers of the old ones.
    connections.resume()
    opening, go_on, real = threading.Event(), threading.Event(), connections._prepare_writer

    def slow(writer: apsw.Connection) -> object:
        opening.set()
        assert go_on.wait(20)
        return real(writer)

    monkeypatch.setattr(connections, "_prepare_writer", slow)
    writing = threading.Thread(target=append_all, args=(backend, append_of("s", 2, 2)))
    writing.start()
    assert opening.wait(20)
    try:
        assert list(backend.read("s")) == entries(1, 1)
    finally:
        go_on.set()
        writing.join()
    assert list(backend.read("s")) == entries(1, 2)
    backend.close()
    assert not path.with_name(path.name + "-wal").exists(), "closing brought it into the file"


def test_a_child_whose_first_write_found_the_store_busy_writes_the_next(path: Path) -> None:
    backend = SqliteBackend(path, timeout=0.1)
    streams = "abcdef"  # So many are stored in one statement, which has to be prepared.
    for stream in streams:
        append_all(backend, append_of(stream, 1, 1))

    def work() -> bool:
        other = apsw.Connection(str(path))
        other.execute("begin immediate")
        with pytest.raises(UnavailableError, match="holds the lock"):
            backend.append([append_of("a", 2, 2)])
        other.execute("rollback")
        return set(append_all(backend, *[append_of(one, 2, 2) for one in streams])) == {"stored"}

    assert exit_code(in_child(work)) == 0
    backend.close()
