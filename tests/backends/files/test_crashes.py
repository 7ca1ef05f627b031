"""P1 to P5 for a directory of files: the power fails, calls fail, processes die, at every call."""

import contextlib
import errno
import os
import random
import shutil
import signal
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.backends.files.backend import FilesBackend
from perdure.backends.files.disk import Disk, LockedFiles
from perdure.backends.protocol import Append, Entry, Outcome
from perdure.errors import NotFoundError, PerdureError, UnavailableError
from perdure.testing.contract.samples import append_all, append_of, entries, entry
from tests.promises.calls import LOOKS, Call, done
from tests.promises.kinds import FILES
from tests.promises.p01_power_loss import states
from tests.promises.tree import Tree
from tests.promises.watched_files import WatchedFiles

pytestmark = pytest.mark.durability

MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory, where a sync costs nothing.


@pytest.fixture
def folder() -> Iterator[Path]:
    parent = MEMORY if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="perdure-", dir=parent) as name:
        yield Path(name)


class Lane:
    """One stream: what was sent, where appends ended, and what was acknowledged."""

    def __init__(self) -> None:
        self.sent: dict[int, set[tuple[bytes, bytes | None]]] = defaultdict(set)
        self.ends = {0}
        self.acked = 0
        self.dropping = 0
        self.dropped = 0

    def judge(self, found: Sequence[Entry]) -> str:
        """Say what is wrong with the entries that were found."""
        positions = [one.position for one in found]
        last = found[-1].last if found else 0
        if last < self.acked:
            return f"lost: {self.acked} acknowledged, {last} there"
        if last not in self.ends:
            return f"not all or nothing: it ends at {last}"
        if any(one.last + 1 != after.position for one, after in pairwise(found)):
            return f"holes: {positions}"
        if positions and not self.dropped <= positions[0] <= max(self.dropping, min(self.sent)):
            return f"begins at {positions[0]}, dropped {self.dropped} to {self.dropping}"
        strangers = [one.position for one in found if (one[1], one[2]) not in self.sent[one[0]]]
        return f"phantoms: {strangers}" if strangers else ""


Lanes = dict[str, Lane]


class Witnessed(FilesBackend):
    """Notes what is sent, and what was acknowledged as soon as it was."""

    def __init__(self, path: Path, lanes: Lanes, disk: Disk) -> None:
        self._lanes = lanes
        super().__init__(path, disk=disk, timeout=60)

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        for append in appends:
            lane = self._lanes[append.stream]
            for one in append.entries:
                lane.sent[one.position].add((one.header, one.body))
            lane.ends.add(append.entries[-1].last)
        outcomes = super().append(appends)
        for append, outcome in zip(appends, outcomes, strict=True):
            if outcome.status == "stored":
                lane = self._lanes[append.stream]
                lane.acked = max(lane.acked, append.entries[-1].last)
        return outcomes

    def drop(self, stream: str, *, before: int) -> None:
        lane = self._lanes[stream]
        lane.dropping = max(lane.dropping, before)
        super().drop(stream, before=before)
        lane.dropped = max(lane.dropped, before)


def again(work: Callable[[], Any]) -> Any:
    """Do something, and once more if the store did not answer."""
    try:
        return work()
    except UnavailableError:
        return work()


def play(open_backend: Callable[[], FilesBackend]) -> None:
    """Use a store in every way that writes: new sessions, turns, deletions, many streams."""
    backend = again(open_backend)
    store = perdure.open(backend)
    main = store.session("main")
    with main.turn("Question?") as turn:
        turn.append({"role": "assistant", "content": "Answer " + "and so on " * 90})
        main.set("plan", {"steps": ["one", "two"]})
    other = store.session("../other")
    other.append({"role": "user", "content": "Forget this."}, {"role": "user", "content": "And."})
    again(lambda: backend.append([append_of(f"raw {n}", 1, 2, "new") for n in range(3)]))
    again(lambda: backend.append([append_of(f"raw {n}", 3, 5) for n in range(4)]))
    main.append({"role": "user", "content": "More. " * 400}, {"role": "user", "content": "Most."})
    with contextlib.suppress(NotFoundError):  # What is left of a deletion is finished, and said.
        again(lambda: store.delete("../other"))
    store.session("../other").append({"role": "user", "content": "Begun again."})
    binary = append_of("raw 1", 6, 6)._replace(entries=[Entry(6, b"\xff\0", b"binary \0\n" * 60)])
    again(lambda: backend.append([binary]))
    again(lambda: backend.drop("raw 0", before=3))
    again(lambda: backend.append([append_of("raw 0", 6, 6, "label"), append_of("raw 2", 6, 6)]))
    main.append({"role": "user", "content": "Last."})


def judge(folder: Path, lanes: Lanes, *, go_on: bool) -> str:
    """Open a store with plain perdure and say what is wrong with it."""
    backend = FilesBackend(folder / "store")
    store = perdure.open(backend)
    heads = {head.stream: head.position for head in backend.streams()}
    for name, lane in lanes.items():
        found = list(backend.read(name))
        wrong = lane.judge(found)
        if not wrong and heads.get(name, 0) != (found[-1].last if found else 0):
            wrong = f"it is listed at {heads.get(name)}"
        if wrong:
            return f"{name}: {wrong}"
        if found and not name.startswith("raw"):
            store.records(name)
            session = store.session(name)
            session.verify()
            if go_on:
                session.append({"role": "user", "content": "I go on."})
                assert session.verify()
    return ""


class Recorded(WatchedFiles):
    """The real disk below a directory, and what a power loss would leave of it.

    `before` sees each call that changes something and may raise; afterwards `after` is told.
    """

    def __init__(self, directory: Path, short: int = 0) -> None:
        super().__init__(directory, self._pass)
        self.tree = Tree()
        self.before: Callable[[str], None] = lambda _: None
        self.after: Callable[[], None] = lambda: None
        self._short = short

    def write_some(self, fd: int, data: memoryview, at: int) -> int:
        return super().write_some(fd, data[: self._short] if self._short else data, at)

    def _pass(self, call: Call) -> Any:
        if call.op in LOOKS:
            return call.do(call.data)
        try:
            self.before(call.op)
        except OSError:
            if call.op.startswith("sync"):
                self.tree.apply(done(call, op=f"failed_{call.op}"))
            raise
        answer = call.do(call.data)
        self.tree.apply(done(call))
        self.after()
        return answer


def recorded(folder: Path, short: int = 0) -> tuple[Recorded, Lanes]:
    """Return a disk, and lanes to be filled."""
    return Recorded(folder, short), defaultdict(Lane)


def power_losses(folder: Path, seed: int, *, share: float, short: int = 0) -> tuple[int, list[str]]:
    """Play on a watched disk; judge what a power loss may leave after each call."""
    work, crashed = folder / "work", folder / "crashed"
    work.mkdir()
    crashed.mkdir()
    disk, lanes = recorded(work, short)
    draw = random.Random(seed)
    tried, wrong, seen = 0, [], set()

    def lose_power() -> None:
        nonlocal tried
        for number, (_, state) in enumerate(states(disk.tree, draw)):
            key = hash((state.key, tuple(lane.acked for lane in lanes.values())))
            if key in seen or draw.random() > share:
                continue
            seen.add(key)
            tried += 1
            FILES.lay_out(crashed, state)
            try:
                found = judge(crashed, lanes, go_on=draw.random() < 0.2)
            except PerdureError as error:
                found = repr(error)
            if found:
                wrong.append(f"state {number} after call {len(seen)}: {found}")

    disk.after = lose_power
    play(lambda: Witnessed(work / "store", lanes, disk))
    return tried, wrong


@pytest.mark.parametrize("seed", range(2))
def test_a_power_loss_at_any_call_loses_nothing_that_was_acknowledged(
    folder: Path, seed: int
) -> None:
    tried, wrong = power_losses(folder, seed, share=0.1, short=(0, 300)[seed])
    assert wrong == []
    assert tried > 50


@pytest.mark.parametrize("left_out", ["sync", "sync_directory"])
def test_what_is_not_synced_is_seen_to_be_lost(
    folder: Path, monkeypatch: pytest.MonkeyPatch, left_out: str
) -> None:
    monkeypatch.setattr(WatchedFiles, left_out, lambda *_: None)
    _, wrong = power_losses(folder, 1, share=0.1)
    assert wrong


# Errors.


class Stumbling:
    """Lets a call fail, once."""

    def __init__(self, at: int, error: int, then: int = 0) -> None:
        self.calls = 0
        self._at = at
        self._error = error
        self._then = then

    def __call__(self, _: str) -> None:
        self.calls += 1
        if self._at <= self.calls <= self._at + self._then:
            raise OSError(self._error, os.strerror(self._error))


def stumble(folder: Path, at: int, error: int, then: int = 0) -> tuple[int, str]:
    """Play with a failing call; judge what is there, and what a power loss then leaves."""
    shutil.rmtree(folder / "work", ignore_errors=True)
    (folder / "work").mkdir()
    disk, lanes = recorded(folder / "work")
    disk.before = calls = Stumbling(at, error, then)
    play(lambda: Witnessed(folder / "work" / "store", lanes, disk))
    for where in ("work", "crashed"):
        if where == "crashed":
            (folder / where).mkdir(exist_ok=True)
            FILES.lay_out(folder / where, disk.tree.drop())
        wrong = judge(folder / where, lanes, go_on=False)
        if wrong:
            return calls.calls, f"{errno.errorcode[error]} at {at}, {where}: {wrong}"
    return calls.calls, ""


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR])
def test_a_call_that_fails_costs_nothing_that_was_acknowledged(folder: Path, error: int) -> None:
    total, _ = stumble(folder, 0, error)
    assert total > 100
    draw = random.Random(error)
    some = sorted(draw.sample(range(1, total + 1), 15))
    assert [wrong for at in some if (wrong := stumble(folder, at, error)[1])] == []


class Failing(Disk):
    """Fails in one kind of call for as long as it is told to."""

    def __init__(self) -> None:
        self.broken: dict[str, int] = {}

    def _may_fail(self, what: str) -> None:
        if what in self.broken:
            raise OSError(self.broken[what], os.strerror(self.broken[what]))

    def write_some(self, fd: int, data: memoryview, at: int) -> int:
        self._may_fail("write")
        if "full" in self.broken:
            if len(data) < 20:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write_some(fd, data[: len(data) // 2], at)
        return super().write_some(fd, data, at)

    def sync(self, fd: int) -> None:
        self._may_fail("sync")
        super().sync(fd)

    def truncate(self, fd: int, size: int) -> None:
        self._may_fail("truncate")
        super().truncate(fd, size)

    def open(self, path: str, flags: int = os.O_RDONLY) -> FileIO:
        if flags & (os.O_RDWR | os.O_CREAT):
            self._may_fail("open")
        return super().open(path, flags)


@pytest.mark.parametrize(
    "broken",
    [
        {"write": errno.EIO},
        {"full": errno.ENOSPC},
        {"full": errno.ENOSPC, "truncate": errno.EIO},
        {"sync": errno.EIO},
        {"sync": errno.ENOSPC, "truncate": errno.EIO},
        {"open": errno.EMFILE},
    ],
    ids=str,
)
def test_what_was_there_stays_readable_and_writing_works_again_later(
    folder: Path, broken: dict[str, int]
) -> None:
    disk = Failing()
    backend = FilesBackend(folder / "store", disk=disk)
    append_all(backend, append_of("s", 1, 3, "old"), append_of("t", 1, 1))
    disk.broken = broken
    for _ in range(3):
        with pytest.raises(UnavailableError):
            backend.append(
                [append_of("s", 4, 5, "new"), append_of("t", 2, 2), append_of("u", 1, 1)]
            )
        if "truncate" not in broken:
            assert list(backend.read("s")) == entries(1, 3)
            assert [head.stream for head in backend.streams(labels=["old"])] == ["s"]
    disk.broken = {}
    assert append_all(backend, append_of("s", 4, 4, mark="other")) in (["stored"], ["conflict"])
    later = FilesBackend(folder / "store")
    assert list(later.read("s"))[:3] == entries(1, 3)
    assert append_all(later, append_of("t", 2, 2), append_of("u", 1, 1)) == ["stored", "stored"]


def test_after_a_failed_sync_the_stream_goes_on_in_a_new_file(folder: Path) -> None:
    disk = Failing()
    backend = FilesBackend(folder / "store", disk=disk)
    append_all(backend, append_of("s", 1, 3))
    (file,) = folder.rglob("*.jsonl")
    before = file.stat().st_ino
    assert append_all(backend, append_of("s", 4, 4)) == ["stored"]
    assert file.stat().st_ino == before
    disk.broken = {"sync": errno.EIO}
    with pytest.raises(UnavailableError, match="EIO"):
        backend.append([append_of("s", 5, 5)])
    disk.broken = {}
    assert list(backend.read("s")) == entries(1, 4)
    assert append_all(backend, append_of("s", 5, 5)) == ["stored"]
    assert file.stat().st_ino != before
    assert list(backend.read("s")) == entries(1, 5)


def fail(*calls: str) -> Callable[[str], None]:
    """Let the next calls of these kinds fail, each once, in this order."""
    left = list(calls)

    def before(call: str) -> None:
        if left and left[0] == call:
            left.pop(0)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    return before


def after_power_loss(disk: Recorded, folder: Path) -> FilesBackend:
    (folder / "crashed").mkdir()
    FILES.lay_out(folder / "crashed", disk.tree.drop())
    return FilesBackend(folder / "crashed" / "store")


def test_what_only_memory_holds_after_a_failed_sync_is_written_again(folder: Path) -> None:
    """The batch could not even be taken away: whoever finds it must not trust a second sync."""
    (folder / "work").mkdir()
    disk, _ = recorded(folder / "work")
    backend = FilesBackend(folder / "work" / "store", disk=disk)
    append_all(backend, append_of("s", 1, 3))
    disk.before = fail("sync", "truncate")
    with pytest.raises(UnavailableError):
        backend.append([append_of("s", 4, 5)])
    other = FilesBackend(folder / "work" / "store", disk=disk)
    assert list(other.read("s")) == entries(1, 5)
    assert append_all(other, append_of("s", 4, 5)) == ["stored"]
    assert list(after_power_loss(disk, folder).read("s")) == entries(1, 5)


def test_what_was_set_aside_survives_a_power_loss(folder: Path) -> None:
    (folder / "work").mkdir()
    disk, _ = recorded(folder / "work")
    backend = FilesBackend(folder / "work" / "store", disk=disk)
    append_all(backend, append_of("s", 1, 1))
    (file,) = folder.rglob("*.jsonl")
    with disk.open(str(file), os.O_RDWR) as opened:
        disk.write(opened.fileno(), b"torn", file.stat().st_size)
    assert append_all(backend, append_of("s", 2, 2)) == ["stored"]
    assert list(after_power_loss(disk, folder).read("s")) == entries(1, 2)
    (aside,) = (folder / "crashed").rglob("*.torn-1")
    assert aside.read_bytes() == b"torn"


class Counting(Disk):
    """Counts the bytes that are read."""

    count = 0

    def read(self, fd: int, size: int, at: int) -> bytes:
        data = super().read(fd, size, at)
        self.count += len(data)
        return data


@pytest.mark.skipif(not hasattr(os, "SEEK_DATA"), reason="this system does not know holes")
@pytest.mark.parametrize("behind", [b"", b"torn"])
def test_a_hole_at_the_end_is_neither_read_nor_filled(folder: Path, behind: bytes) -> None:
    append_all(FilesBackend(folder / "store"), append_of("s", 1, 1))
    (file,) = folder.rglob("*.jsonl")
    end, hole = file.stat().st_size, 2**33
    os.truncate(file, end + hole)
    with file.open("ab") as opened:
        opened.write(behind)
    disk = Counting()
    backend = FilesBackend(folder / "store", disk=disk)
    assert list(backend.read("s")) == entries(1, 1)
    assert append_all(backend, append_of("s", 2, 2)) == ["stored"]
    assert list(backend.read("s")) == entries(1, 2)
    (aside,) = folder.rglob("*.torn-1")
    assert aside.stat().st_size == hole + len(behind)
    assert aside.stat().st_blocks * 512 < 2**20
    with aside.open("rb") as opened:
        opened.seek(hole)
        assert opened.read() == behind
    assert disk.count < 2**20


def test_torn_bytes_around_a_hole_are_set_aside_as_they_are(folder: Path) -> None:
    append_all(FilesBackend(folder / "store"), append_of("s", 1, 1))
    (file,) = folder.rglob("*.jsonl")
    end = file.stat().st_size
    for at in (0, 300_000, 300_100, 900_000):
        with file.open("rb+") as opened:
            opened.seek(end + at)
            opened.write(b"torn" * 1000)
    os.truncate(file, end + 1_000_000)
    torn = file.read_bytes()[end:]
    assert append_all(FilesBackend(folder / "store"), append_of("s", 2, 2)) == ["stored"]
    (aside,) = folder.rglob("*.torn-1")
    assert aside.read_bytes() == torn


@pytest.mark.parametrize(
    "calls",
    [
        ("sync_directory", "remove"),
        ("sync_directory",),
        ("make",),
        ("rename",),
        ("open",),
    ],
    ids="-".join,
)
def test_a_folder_whose_name_may_be_lost_is_made_anew(folder: Path, calls: tuple[str, ...]) -> None:
    (folder / "work").mkdir()
    disk, _ = recorded(folder / "work")
    backend = FilesBackend(folder / "work" / "store", disk=disk)
    append_all(backend, append_of("first", 1, 1))
    disk.before = fail(*calls)
    with pytest.raises(UnavailableError):
        backend.append([append_of("s", 1, 1)])
    assert append_all(backend, append_of("s", 1, 1)) == ["stored"]
    crashed = after_power_loss(disk, folder)
    assert [head.stream for head in crashed.streams()] == ["first", "s"]


# Death.


class Mortal(Disk):
    """Ends the process at a call."""

    def __init__(self, at: int) -> None:
        self._left = at

    def _live(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def write_some(self, fd: int, data: memoryview, at: int) -> int:
        if self._left == 1:
            data = data[: len(data) // 2]
        done = super().write_some(fd, data, at)
        self._live()
        return done

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._live()

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self._live()

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        self._live()


def _child(path: Path, at: int, acks: int) -> None:
    try:
        backend = FilesBackend(path, disk=Mortal(at))
        for round_ in range(3):
            names = ["a", "b"] if round_ else ["a"]
            first = 1 + 2 * round_
            append_all(backend, *(append_of(name, first, first + 1) for name in names[:1]))
            os.write(acks, b"a")
            append_all(backend, *(append_of(name, round_ + 1, round_ + 1) for name in ("b", "c")))
            os.write(acks, b"b")
        backend.drop("a", before=4)
    finally:
        os._exit(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_killed_at_any_call_leaves_a_store_that_goes_on(folder: Path) -> None:
    killed = 0
    for at in range(1, 200):
        path = folder / str(at)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _child(path, at, writing)
        os.close(writing)
        _, code = os.waitpid(child, 0)
        acks = os.read(reading, 99)
        os.close(reading)
        backend = FilesBackend(path, timeout=30)
        a, b = list(backend.read("a")), list(backend.read("b"))
        assert len(a) % 2 == 0 or a[0].position == 4
        assert (a[-1].position if a else 0) in (2 * acks.count(b"a"), 2 * acks.count(b"a") + 2)
        assert len(b) in (acks.count(b"b"), acks.count(b"b") + 1)
        following = a[-1].position + 1 if a else 1
        assert append_all(backend, append_of("a", following, following)) == ["stored"]
        assert [head.stream for head in backend.streams()][:1] == ["a"]
        if code == 0:
            break
        killed += 1
    assert killed > 60
    assert at == killed + 1, "the last child lived"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_a_fork_goes_on_with_the_same_handle(folder: Path) -> None:
    backend = FilesBackend(folder / "store")
    append_all(backend, append_of("s", 1, 1))
    list(backend.streams())
    child = os.fork()
    if child == 0:
        done = append_all(backend, append_of("s", 2, 2)) == ["stored"]
        os._exit(0 if done and [head.position for head in backend.streams()] == [2] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert append_all(backend, append_of("s", 3, 3)) == ["stored"]
    assert list(backend.read("s")) == entries(1, 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_does_not_keep_the_lock_of_a_parent_that_was_killed(folder: Path) -> None:
    """The parent forks in the middle of an append and dies; its child sleeps on."""
    reading, writing = os.pipe()

    class Forking(Disk):
        def sync(self, fd: int) -> None:
            if os.fork() == 0:
                os.write(writing, str(os.getpid()).encode())
                signal.pause()
            os.kill(os.getpid(), signal.SIGKILL)

    backend = FilesBackend(folder / "store")
    append_all(backend, append_of("s", 1, 1))
    parent = os.fork()
    if parent == 0:
        backend = FilesBackend(folder / "store", disk=Forking())
        backend.append([append_of("s", 2, 2)])
    os.waitpid(parent, 0)
    sleeper = int(os.read(reading, 99))
    try:
        later = FilesBackend(folder / "store", timeout=30)
        assert append_all(later, append_of("s", 2, 2)) == ["stored"]
        assert list(later.read("s")) == [entry(1), entry(2)]
    finally:
        os.kill(sleeper, signal.SIGKILL)
        os.close(reading)
        os.close(writing)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_does_not_keep_the_lock_of_a_file_that_was_being_closed(folder: Path) -> None:
    """Python marks a file as closed, and then closes it; a thread may fork in between."""
    path = folder / "file"
    locks = LockedFiles(Disk())
    locked_file = locks.create(str(path))
    held = os.dup(locked_file.fd)
    locked_file.file.close()
    os.dup2(held, locked_file.fd)
    os.close(held)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(locked_file.fd)
    others = LockedFiles(Disk())
    try:
        assert others.try_lock(str(path), os.O_RDWR, timeout=20) is not None
    finally:
        others.close()
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)
