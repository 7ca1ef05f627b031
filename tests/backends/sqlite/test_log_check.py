"""A damaged write-ahead log is told from one that a crash cut off, and is left in place."""

import os
import random
import struct
import subprocess
import sys
import threading
from pathlib import Path

import apsw
import pytest

from perdure.backends.sqlite.backend import SqliteBackend
from perdure.backends.sqlite.log_check import BIG, LITTLE, LogFile, add_checksum
from perdure.errors import DamagedError, UnavailableError
from perdure.testing.contract.samples import append_all, append_of, entries

FRAME = 24 + 4096
COMMITS = 6

WRITER = """
import os, sys
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.testing.contract.samples import append_all, append_of

backend = SqliteBackend(sys.argv[1])
for first, last in zip(map(int, sys.argv[2::2]), map(int, sys.argv[3::2])):
    append_all(backend, append_of("s", first, last))
os._exit(0)
"""

COUNT = """
import sys
from perdure.backends.sqlite.backend import SqliteBackend

print(len([*SqliteBackend(sys.argv[1]).read("s")]))
"""


def leave(path: Path, *appends: tuple[int, int]) -> None:
    """Append in another process, which dies without closing the store."""
    words = [str(number) for append in appends for number in append]
    subprocess.run([sys.executable, "-c", WRITER, str(path), *words], check=True)
    path.with_name(path.name + "-shm").unlink()  # As after a power failure.


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("left") / "store.db"
    leave(path, *((number, number) for number in range(1, COMMITS + 1)))
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


@pytest.fixture
def path(tmp_path: Path, contents: dict[str, bytes]) -> Path:
    """A store whose commits, one per entry, are in its log only."""
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path / "store.db"


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def commits(log: bytes) -> list[int]:
    """The offsets at which the commits of a log end; the first one is that of the tables."""
    starts = range(32, len(log), FRAME)
    return [at + FRAME for at in starts if log[at + 4 : at + 8] != bytes(4)]


def read(path: Path) -> int:
    """Open the store and return how many entries there are."""
    backend = SqliteBackend(path)
    try:
        found = list(backend.read("s"))
        assert found == entries(1, len(found))
        return len(found)
    finally:
        backend.close()


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


def test_a_log_that_is_whole_is_read_to_its_end(path: Path) -> None:
    assert len(commits(log_of(path).read_bytes())) == COMMITS + 1
    assert read(path) == COMMITS


@pytest.mark.parametrize("number", range(COMMITS))
@pytest.mark.parametrize("where", ["first frame", "last frame"])
def test_a_flipped_bit_before_the_last_commit_is_damage(
    path: Path, where: str, number: int
) -> None:
    log = log_of(path)
    content = log.read_bytes()
    start, end = [32, *commits(content)][number], commits(content)[number]
    at = start + 24 + 100 if where == "first frame" else end - 100
    log.write_bytes(flipped(content, at))
    with pytest.raises(DamagedError, match="write-ahead log is damaged"):
        SqliteBackend(path)
    assert log.read_bytes() == flipped(content, at), "the log is evidence: it stays as it is"
    log.write_bytes(content)
    assert read(path) == COMMITS


def test_any_byte_of_the_headers_but_the_last_ones_is_watched_over(path: Path) -> None:
    """Salts, checksums and page numbers of each frame, and the header of the log itself."""
    log = log_of(path)
    content = log.read_bytes()
    frames = range(32, commits(content)[-3], FRAME)
    offsets = [*range(32), *(at + part for at in frames for part in range(24))]
    file = path.read_bytes()
    for at in random.Random(1).sample(offsets, 60):
        log.write_bytes(flipped(content, at))
        path.write_bytes(file)
        with pytest.raises((DamagedError, UnavailableError)):
            read(path)


@pytest.mark.parametrize("how", ["cut", "zeros", "flip"])
def test_the_last_commit_may_be_torn(path: Path, how: str) -> None:
    log = log_of(path)
    content = log.read_bytes()
    before = commits(content)[-2]
    middle = (before + len(content)) // 2
    torn = {
        "cut": content[:middle],
        "zeros": content[:before] + bytes(FRAME) + content[before + FRAME :],
        "flip": flipped(content, middle),
    }
    log.write_bytes(torn[how])
    assert read(path) == COMMITS - 1


def test_frames_of_an_older_generation_are_no_evidence(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("wal_autocheckpoint", 0)
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close()
    leave(path, (COMMITS + 1, COMMITS + 1))
    content = log_of(path).read_bytes()
    assert len(commits(content)) > 2, "what the log held before stands behind"
    assert read(path) == COMMITS + 1


def test_a_log_that_is_about_to_be_emptied_is_no_evidence(path: Path) -> None:
    """A checkpoint empties SQLite's index of the log first; its process may die or stop then."""
    log = log_of(path)
    other = apsw.Connection(str(path))
    other.execute("select count(*) from entry").fetchall()
    content = log.read_bytes()
    other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    log.write_bytes(content)
    words = [sys.executable, "-c", COUNT, str(path)]
    found = subprocess.run(words, check=False, capture_output=True, text=True)
    assert found.stdout.split() == [str(COMMITS)], found.stderr
    other.close()


def test_what_torn_commits_left_behind_is_no_evidence(path: Path) -> None:
    """Each torn one is longer than what was written over it, so that its end stays."""
    log = log_of(path)
    end = log.stat().st_size
    for many in (900, 600, 300):
        leave(path, (COMMITS + 1, COMMITS + many))
        content = log.read_bytes()
        log.write_bytes(content[:end] + bytes(FRAME) + content[end + FRAME :])
    leave(path, (COMMITS + 1, COMMITS + 1))
    assert len(commits(log.read_bytes())) == COMMITS + 1 + 4
    assert read(path) == COMMITS + 1


def test_checksums_in_the_other_byte_order_are_understood(path: Path) -> None:
    """As a log that was written on a machine of the other kind."""
    log = log_of(path)
    content = in_other_order(log.read_bytes())
    log.write_bytes(flipped(content, commits(content)[2] - 100))
    with pytest.raises(DamagedError, match="write-ahead log"):
        read(path)
    log.write_bytes(content)
    assert read(path) == COMMITS


def in_other_order(content: bytes) -> bytes:
    (magic,) = struct.unpack_from(">I", content)
    order = {0x377F0682: BIG, 0x377F0683: LITTLE}[magic]
    header = struct.pack(">I", magic ^ 1) + content[4:24]
    checksum = add_checksum((0, 0), header, order)
    parts = [header, struct.pack(">2I", *checksum)]
    for at in range(32, len(content), FRAME):
        page = content[at + 24 : at + FRAME]
        checksum = add_checksum(checksum, content[at : at + 8] + page, order)
        parts += content[at : at + 16], struct.pack(">2I", *checksum), page
    return b"".join(parts)


def test_frames_are_counted_as_sqlite_counts_them(path: Path) -> None:
    """Where a log cannot be written, SQLite does not say how much of it it accepts."""
    content = log_of(path).read_bytes()
    for at in (None, 10, 40, commits(content)[2] + 200, len(content) - 50):
        log_of(path).write_bytes(content if at is None else flipped(content, at))
        connection = apsw.Connection(str(path))
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.execute("pragma user_version").get  # noqa: B018 - it recovers the log
        accepted, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        handle = os.open(log_of(path), os.O_RDONLY)
        assert LogFile(handle, 4096).count_valid() == accepted
        os.close(handle)
        connection.close()


def test_a_store_that_others_write_to_can_be_opened_at_any_moment(tmp_path: Path) -> None:
    """Frames appear behind those that were counted, and the log is begun anew again and again."""
    path = tmp_path / "store.db"
    writer = SqliteBackend(path)
    writer._connections.write("", lambda db: db.pragma("wal_autocheckpoint", 20), begin=False)
    ended = threading.Event()

    def write() -> None:
        for number in range(1, 1500):
            append_all(writer, append_of("s", number, number))
            if ended.is_set():
                return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(60):
            SqliteBackend(path).close()
    finally:
        ended.set()
        thread.join()
        writer.close()
