"""FilesBackend keeps the contract; here is what is special to a directory of files."""

import errno
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

import pytest

import perdure
from perdure.backends import filesystem
from perdure.backends.files.backend import FilesBackend
from perdure.backends.files.disk import Disk
from perdure.backends.files.format import file_stem
from perdure.backends.files.stream_file import locate_stream
from perdure.backends.protocol import Append, Backend, Entry
from perdure.errors import (
    DamagedError,
    PerdureError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    VersionError,
)
from perdure.testing import BackendContract
from perdure.testing.contract.samples import append_all, append_of, entries, entry, positions

MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory, where a sync costs nothing.


@pytest.fixture
def folder() -> Iterator[Path]:
    parent = MEMORY if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="perdure-", dir=parent) as name:
        yield Path(name)


class TestFiles(BackendContract):
    @pytest.fixture
    def open_backend(self, folder: Path) -> Callable[[], Backend]:
        return lambda: FilesBackend(folder / "store")


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "store"


@pytest.fixture
def backend(path: Path) -> FilesBackend:
    return FilesBackend(path, timeout=0.3)


def only_file(path: Path) -> Path:
    (found,) = path.rglob("*.jsonl")
    return found


def test_it_says_what_it_is_and_what_it_costs(backend: FilesBackend, path: Path) -> None:
    assert backend.name == f"files:{path}"
    assert backend.guarantees.shared_by == "one machine"
    assert "one sync for each stream" in backend.guarantees.detail


def test_an_address_opens_it(path: Path) -> None:
    with perdure.open(f"files:{path}") as store:
        session = store.session("claim-4711")
        with session.turn("Hello?") as turn:
            turn.append({"role": "assistant", "content": "Hello."})
        session.set("plan", {"step": 3})
    with perdure.open(f"files:{path}") as store:
        assert [head.id for head in store.sessions()] == ["claim-4711"]
        session = store.resume("claim-4711")
        assert [one["content"] for one in session.messages()] == ["Hello?", "Hello."]
        assert session.get("plan") == {"step": 3}
        assert session.verify()
    with pytest.raises(UsageError, match="a directory"):
        perdure.open("files:")


def test_every_line_is_json_that_a_person_can_read(path: Path) -> None:
    with perdure.open(f"files:{path}") as store:
        store.session("claim").append(
            {"role": "user", "content": "Tab\there, line\nthere, \U0001f989"}
        )
    text = only_file(path).read_text("utf-8")
    values = [[json.loads(part) for part in line.split("\t")] for line in text.splitlines()]
    assert values[0][0]["name"] == "claim"
    assert "Tab\\there, line\\nthere, \U0001f989" in text
    assert [len(parts) for parts in values] == [1, 1, 2]


def test_bytes_that_are_no_text_stand_in_base64(backend: FilesBackend, path: Path) -> None:
    odd = [
        Entry(1, b'{"perdure":[1,0,[],[],"x"]}', b"plain"),
        Entry(2, b"tab\there", b"\n{}"),
        Entry(3, b"", b""),
        Entry(4, b"[4]", b"\xff"),
        Entry(5, b"[5]", b'"quoted"'),
        Entry(6, b"[6]", b"tab\tin a body"),
    ]
    assert append_all(backend, Append("s", odd)) == ["stored"]
    assert list(backend.read("s")) == odd
    assert list(backend.read("s", reverse=True)) == odd[::-1]
    assert [one.body for one in backend.read("s", max_body=1)] == [
        None,
        None,
        b"",
        b"\xff",
        None,
        None,
    ]
    text = only_file(path).read_text("utf-8")
    assert b"\0" not in text.encode()
    assert '[4]\t"/w=="' in text


def test_files_are_for_their_owner_only(backend: FilesBackend, path: Path) -> None:
    append_all(backend, append_of("s", 1, 3))
    backend.drop("s", before=2)
    for one in [path, *path.rglob("*")]:
        assert one.stat().st_mode & 0o777 == (0o700 if one.is_dir() else 0o600)


def test_the_same_text_in_two_normal_forms_is_two_streams(backend: FilesBackend) -> None:
    append_all(backend, append_of("é", 1, 1), append_of("e\u0301", 1, 2))
    assert [len(list(backend.read(name))) for name in ("é", "e\u0301")] == [1, 2]


# Opening.


def test_a_directory_of_another_program_is_left_alone(path: Path) -> None:
    path.mkdir()
    (path / "theirs.txt").write_text("theirs")
    with pytest.raises(UsageError, match="nothing was changed"):
        FilesBackend(path)
    assert [one.name for one in path.iterdir()] == ["theirs.txt"]
    (path / "theirs.txt").unlink()
    assert append_all(FilesBackend(path), append_of("s", 1, 1)) == ["stored"], (
        "an empty one is welcome"
    )


def test_a_file_is_no_directory(path: Path) -> None:
    path.write_text("x")
    with pytest.raises(UsageError, match="not a directory"):
        FilesBackend(path)
    with pytest.raises(UnavailableError, match="no directory"):
        FilesBackend(path / "below")
    for wrong in ("", "a\0b"):
        with pytest.raises(UsageError, match="not a path"):
            FilesBackend(wrong)


@pytest.mark.parametrize(
    ("marker", "error"),
    [
        ('{"format":"perdure files","version":2}\n', VersionError),
        ('{"format":"perdure files","version":0}\n', DamagedError),
        ('{"format":"other","version":1}\n', UsageError),
        ("", DamagedError),
        ("\0" * 39, DamagedError),
        ('{"format":"perdure files","ver', DamagedError),
    ],
)
def test_a_marker_that_is_not_ours_is_refused(
    backend: FilesBackend, path: Path, marker: str, error: type[Exception]
) -> None:
    (path / "perdure-store").write_text(marker)
    with pytest.raises(error):
        FilesBackend(path)


def test_a_newer_stream_is_not_read(backend: FilesBackend, path: Path) -> None:
    append_all(backend, append_of("s", 1, 1))
    file = only_file(path)
    file.write_bytes(file.read_bytes().replace(b'"version":1,', b'"version":2,'))
    with pytest.raises(VersionError):
        list(backend.read("s"))
    with pytest.raises(VersionError):
        backend.append([append_of("s", 2, 2)])


def test_a_store_does_not_lie_in_another(backend: FilesBackend, path: Path) -> None:
    append_all(backend, append_of("s", 1, 1))
    folder = only_file(path).parent
    for inner in (path / "inner", folder / "inner"):
        with pytest.raises(UsageError, match="inside the store"):
            FilesBackend(inner)
        assert not inner.exists()
    around = sorted(path.parent.rglob("*"))
    with pytest.raises(UsageError, match="nothing was changed"):
        FilesBackend(path.parent)
    assert sorted(path.parent.rglob("*")) == around
    assert list(backend.read("s")) == entries(1, 1)


def test_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = path.parent / "mountinfo"
    mounts.write_text("1 1 0:1 / / rw - nfs4 server:/ rw\n")
    monkeypatch.setattr(filesystem, "MOUNTINFO", mounts)
    with pytest.raises(UnsupportedError, match="local disk"):
        FilesBackend(path)
    assert not path.exists()


def test_it_may_be_reached_through_a_link(backend: FilesBackend, path: Path) -> None:
    link = path.parent / "link"
    link.symlink_to(path)
    append_all(backend, append_of("s", 1, 1))
    assert append_all(FilesBackend(link), append_of("s", 2, 2)) == ["stored"]
    assert list(backend.read("s")) == entries(1, 2)


def test_many_may_make_it_at_once(folder: Path) -> None:
    for number in range(20):
        path = folder / str(number)
        ready = threading.Barrier(4)
        failures: list[Exception] = []

        def make(
            path: Path = path,
            ready: threading.Barrier = ready,
            failures: list[Exception] = failures,
        ) -> None:
            try:
                ready.wait()
                name = f"{threading.get_ident()}"
                assert append_all(FilesBackend(path), append_of(name, 1, 1)) == ["stored"]
            except Exception as error:  # noqa: BLE001 - shown below.
                failures.append(error)

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len(list(FilesBackend(path).streams())) == 4


class ReadOnly(Disk):
    """Refuses what a read-only medium refuses."""

    def open(self, path: str, flags: int = os.O_RDONLY) -> FileIO:
        if flags & (os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return super().open(path, flags)

    def make_directory(self, path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def _check_read_only(backend: FilesBackend, refusal: type[PerdureError]) -> None:
    assert list(backend.read("s")) == entries(1, 5)
    assert [head.position for head in backend.streams()] == [5]
    for use in (
        lambda: backend.append([append_of("s", 6, 6)]),
        lambda: backend.append([append_of("new", 1, 1)]),
        lambda: backend.drop("s", before=3),
    ):
        with pytest.raises(refusal, match="the file system is read-only"):
            use()


def test_a_medium_that_turns_read_only_can_be_read(backend: FilesBackend, path: Path) -> None:
    append_all(backend, append_of("s", 1, 3))
    file = only_file(path)
    line = file.read_bytes().splitlines(keepends=True)[0]
    append_all(backend, append_of("s", 4, 4))
    append_all(backend, append_of("s", 5, 5))
    _check_read_only(FilesBackend(path, disk=ReadOnly()), UnavailableError)
    # The marks were lost with the power, and the next append was torn.
    file.write_bytes(line + file.read_bytes()[len(line) :] + b'{"perdure":[6')
    _check_read_only(FilesBackend(path, disk=ReadOnly()), UnavailableError)
    with pytest.raises(UnavailableError, match="read-only"):
        FilesBackend(path.parent / "new", disk=ReadOnly())


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounts as root")
def test_a_read_only_mount_can_be_read(folder: Path) -> None:
    def run(*words: str | Path) -> bool:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    if not run("mount", "-t", "tmpfs", "perdure", folder):
        pytest.skip("mounting is not allowed here")
    try:
        backend = FilesBackend(folder / "store")
        append_all(backend, append_of("s", 1, 5))
        assert run("mount", "-o", "remount,ro", folder)
        _check_read_only(FilesBackend(folder / "store"), UsageError)
        with perdure.open(f"files:{folder / 'store'}") as store:
            session = store.session("new")
            with pytest.raises(UsageError, match="nothing was written"):
                session.append({"role": "user", "content": "Too late."})
            session.refresh()
    finally:
        assert run("umount", folder)


class Stumbling(Disk):
    """Can not open one file for reading, once."""

    def __init__(self) -> None:
        self.left = -1

    def open(self, path: str, flags: int = os.O_RDONLY) -> FileIO:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().open(path, flags)


def test_a_listing_that_failed_is_whole_the_next_time(path: Path) -> None:
    names = [str(number) for number in range(40)]
    append_all(FilesBackend(path), *(append_of(name, 1, 1) for name in names))
    for left in range(1, 30, 4):
        disk = Stumbling()
        backend = FilesBackend(path, disk=disk)
        disk.left = left
        with pytest.raises(UnavailableError, match="EMFILE"):
            list(backend.streams())
        assert [head.stream for head in backend.streams()] == sorted(names)


def test_names_that_come_and_go_stay_in_order(path: Path) -> None:
    backend, other = FilesBackend(path), FilesBackend(path)
    known: set[str] = set()
    for size in (1, 3, 150, 2, 200):
        some = {f"{size} {number}" for number in range(size)}
        append_all(other, *(append_of(name, 1, 1) for name in some))
        known |= some
        assert [head.stream for head in backend.streams()] == sorted(known)


# Locks and readers.


class Gated(Disk):
    """Waits in each sync until it is let through."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.gate = threading.Event()

    def sync(self, fd: int) -> None:
        self.reached.set()
        assert self.gate.wait(60)
        super().sync(fd)


class Noting(Disk):
    """Notes what was synced."""

    def __init__(self) -> None:
        self.synced: list[int] = []

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.synced.append(os.fstat(fd).st_ino)


def test_a_reader_never_sees_what_is_not_synced(path: Path) -> None:
    backend = FilesBackend(path)
    append_all(backend, append_of("s", 1, 1, "old"), append_of("other", 1, 1))
    disk = Gated()
    writer = threading.Thread(
        target=lambda: FilesBackend(path, disk=disk).append([append_of("s", 2, 2, "new")])
    )
    writer.start()
    assert disk.reached.wait(60)
    noting = Noting()
    hasty = FilesBackend(path, timeout=0.05, disk=noting)
    with pytest.raises(UnavailableError, match=r"holds the lock.*resume or end that process"):
        hasty.append([append_of("s", 3, 3)])
    assert noting.synced == []
    assert list(hasty.read("s")) == entries(1, 2), "it waits no longer, and does the writer's work"
    assert noting.synced == [Path(locate_stream(str(path), "s").path).stat().st_ino]
    assert list(hasty.read("other")) == entries(1, 1), "another stream is not concerned"
    assert append_all(hasty, append_of("other", 2, 2)) == ["stored"]
    found: list[list[Entry]] = []
    reader = threading.Thread(target=lambda: found.append(list(backend.read("s"))))
    reader.start()
    time.sleep(0.02)
    assert found == [], "it waits for the writer"
    disk.gate.set()
    writer.join()
    reader.join()
    assert found == [entries(1, 2)]


def test_a_new_stream_is_not_seen_before_its_name_is_durable(path: Path) -> None:
    class Late(Gated):
        def sync_directory(self, path: str) -> None:
            if Path(path).name != "store":
                self.reached.set()
                assert self.gate.wait(60)
            super().sync_directory(path)

        def sync(self, fd: int) -> None:
            Disk.sync(self, fd)

    noting = Noting()
    backend = FilesBackend(path, timeout=0.05, disk=noting)
    disk = Late()
    writer = threading.Thread(
        target=lambda: FilesBackend(path, disk=disk).append([append_of("s", 1, 1)])
    )
    writer.start()
    assert disk.reached.wait(60)
    file = only_file(path)
    noting.synced.clear()
    assert list(backend.read("s")) == entries(1, 1)
    assert noting.synced == [file.parent.stat().st_ino], "the reader made it durable"
    disk.gate.set()
    writer.join()
    assert list(backend.read("s")) == entries(1, 1)


def test_who_waits_for_a_stream_that_is_being_rewritten_writes_to_the_new_file(path: Path) -> None:
    backend = FilesBackend(path)
    append_all(backend, append_of("s", 1, 5))
    disk = Gated()
    dropper = threading.Thread(target=lambda: FilesBackend(path, disk=disk).drop("s", before=4))
    dropper.start()
    assert disk.reached.wait(60)
    outcomes: list[list[str]] = []
    writer = threading.Thread(
        target=lambda: outcomes.append(append_all(backend, append_of("s", 6, 6)))
    )
    writer.start()
    time.sleep(0.05)
    assert outcomes == []
    disk.gate.set()
    dropper.join()
    writer.join()
    assert outcomes == [["stored"]]
    assert list(backend.read("s")) == entries(4, 6)


def test_a_lock_that_is_held_too_long_is_unavailable_and_then_available(
    backend: FilesBackend, path: Path
) -> None:
    fcntl = pytest.importorskip("fcntl")
    append_all(backend, append_of("s", 1, 1))
    with only_file(path).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UnavailableError, match="holds the lock"):
            backend.append([append_of("s", 2, 2)])
        assert list(backend.read("s")) == entries(1, 1), "readers do not wait for nothing"
    assert append_all(backend, append_of("s", 2, 2)) == ["stored"]


def test_calls_that_name_the_same_streams_in_other_orders_do_not_wait_for_each_other(
    path: Path,
) -> None:
    names = [str(number) for number in range(8)]
    done: list[str] = []

    def work(order: list[str]) -> None:
        backend = FilesBackend(path, timeout=30)
        for position in range(1, 21):
            done.extend(
                append_all(backend, *(append_of(name, position, position) for name in order))
            )

    threads = [threading.Thread(target=work, args=(order,)) for order in (names, names[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == ["stored"] * 2 * 20 * 8


def test_an_error_of_one_stream_leaves_the_others_of_a_call_stored(
    backend: FilesBackend, path: Path
) -> None:
    append_all(backend, append_of("bad", 1, 1))
    only_file(path).write_bytes(b"")
    with pytest.raises(DamagedError, match="bad"):
        backend.append([append_of("bad", 2, 2), *(append_of(str(n), 1, 1) for n in range(9))])
    assert all(list(backend.read(str(n))) == entries(1, 1) for n in range(9))


def test_nothing_is_held_between_calls(backend: FilesBackend) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    before = len(list(Path("/proc/self/fd").iterdir()))
    append_all(backend, *(append_of(str(number), 1, 300) for number in range(50)))
    reader = backend.read("7")
    next(reader)
    listing = backend.streams()
    next(listing)
    backend.drop("7", before=200)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert positions(reader) == [*range(2, 301)]


def test_a_reader_goes_on_where_entries_were_dropped_meanwhile(backend: FilesBackend) -> None:
    for position in range(1, 601):
        append_all(backend, append_of("s", position, position))
    reader = backend.read("s")
    assert next(reader) == entry(1)
    backend.drop("s", before=400)
    assert positions(reader) == [*range(2, 257), *range(400, 601)]


# What it costs.


class Counting(Disk):
    """Counts calls and the bytes that are read."""

    def __init__(self) -> None:
        self.bytes = 0
        self.syncs = 0

    def read(self, fd: int, size: int, at: int) -> bytes:
        found = super().read(fd, size, at)
        self.bytes += len(found)
        return found

    def sync(self, fd: int) -> None:
        self.syncs += 1
        super().sync(fd)


@pytest.fixture
def long_stream(path: Path) -> tuple[FilesBackend, Counting]:
    """4 MB in 4000 batches."""
    disk = Counting()
    backend = FilesBackend(path, disk=disk)
    body = b'"' + b"x" * 900 + b'"'
    for position in range(1, 4001):
        given = append_of("s", position, position)
        append_all(backend, given._replace(entries=[entry(position, body=body)]))
    return backend, disk


def test_only_what_is_asked_for_is_read(long_stream: tuple[FilesBackend, Counting]) -> None:
    backend, disk = long_stream

    def cost(work: Callable[[], object]) -> int:
        disk.bytes = disk.syncs = 0
        work()
        return disk.bytes

    assert cost(lambda: list(backend.read("s", reverse=True, limit=16))) < 200_000
    found: list[Entry] = []
    for after in (1, 1234, 2000, 3777, 3999):
        one = backend.read("s", after=after, limit=1)
        assert cost(lambda one=one: found.extend(one)) < 300_000  # type: ignore[misc]
        assert positions(found) == [after + 1]
        found.clear()
        one = backend.read("s", after=after, limit=1, reverse=True)
        assert cost(lambda one=one: found.extend(one)) < 300_000  # type: ignore[misc]
        assert positions(found) == [after - 1] * (after > 1)
        found.clear()
    assert cost(lambda: next(backend.streams(prefix="s", limit=1))) < 80_000
    assert cost(lambda: append_all(backend, append_of("s", 4001, 4001))) < 80_000
    assert disk.syncs == 1, "an append is one sync"
    assert positions(backend.read("s", after=2500)) == list(range(2501, 4002))
    assert positions(backend.read("s", after=2500, reverse=True)) == list(range(2499, 0, -1))


def test_a_long_body_is_not_read_where_it_is_left_out(path: Path) -> None:
    disk = Counting()
    backend = FilesBackend(path, disk=disk)
    long = [entry(1), entry(2, body=b"x" * 3_000_000), entry(3), entry(4, body=b"\xff" * 3_000_000)]
    append_all(backend, Append("s", long))
    disk.bytes = 0
    assert [one.body is None for one in backend.read("s", max_body=100)] == [
        False,
        True,
        False,
        True,
    ]
    assert disk.bytes < 500_000


def test_a_new_stream_costs_two_syncs_and_a_resend_none(path: Path) -> None:
    disk = Counting()
    backend = FilesBackend(path, disk=disk)
    append_all(backend, append_of("s", 1, 1))
    disk.syncs = 0
    append_all(backend, append_of("s", 2, 3))
    assert disk.syncs == 1
    append_all(backend, append_of("s", 1, 3))
    assert disk.syncs == 1
    folder = only_file(path).parent.name
    names = (str(n) for n in range(99999))
    same = next(name for name in names if file_stem(name.encode()).startswith(folder))
    disk.syncs = 0
    append_all(backend, append_of(same, 1, 1))
    assert disk.syncs == 2, "the file, and the folder"


def test_dropped_bytes_are_not_in_the_directory_any_more(backend: FilesBackend, path: Path) -> None:
    canary = b"canary that sings"
    append_all(backend, Append("s", [entry(1, body=canary), entry(2, body=canary), entry(3)]))
    assert canary in only_file(path).read_bytes()
    backend.drop("s", before=3)
    assert not any(canary in one.read_bytes() for one in path.rglob("*") if one.is_file())
    assert list(backend.read("s")) == [entry(3)]
