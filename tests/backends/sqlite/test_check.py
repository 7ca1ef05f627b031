"""A SQLite store compares itself with its lists: rows and pages that are missing are found."""

import contextlib
import functools
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import apsw
import pytest

from perdure.backends.sqlite import check
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.errors import DamagedError
from perdure.testing.contract.samples import append_all, append_of, names

NAMES = [f"claim-{number:03}" for number in range(400)]


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "store.db"
    backend = SqliteBackend(path)
    appends = [append_of(name, 1, 3, *(["vip"] if name.endswith("7") else [])) for name in NAMES]
    append_all(backend, *appends)
    backend.close()
    return path.read_bytes()


@pytest.fixture
def path(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "store.db"
    path.write_bytes(content)
    return path


def alter(path: Path, sql: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(sql)
    connection.close()


def problems(path: Path, *, deep: bool = False) -> list[DamagedError]:
    backend = SqliteBackend(path)
    try:
        return list(backend.check(deep=deep))
    finally:
        backend.close()


def test_a_good_store_has_none(path: Path) -> None:
    assert problems(path) == problems(path, deep=True) == []


ROWS = {
    "a head": ("delete from head where name = 'claim-100'", "a stream that has no head"),
    "a label": ("delete from label where name = 'claim-107'", "not listed under its label 'vip'"),
    "a label too many": (
        "insert into label select 'vip', name, id from head where name = 'claim-100'",
        "listed under 'vip', which it does not have",
    ),
    "a label of nobody": (
        "insert into label values ('vip', 'nobody', -8207422230394222223)",
        "listed under a label with another key",
    ),
    "a name": ("update head set name = 'claim-xxx' where name = 'claim-100'", "does not match"),
    "labels": ("update head set labels = 'x' where name = 'claim-100'", "labels of its head"),
    "a position": ("update head set position = 'x' where name = 'claim-100'", "wrong type"),
}


@pytest.mark.parametrize("what", ROWS)
def test_rows_that_were_lost_or_altered_are_found(path: Path, what: str) -> None:
    sql, reason = ROWS[what]
    alter(path, sql)
    found = problems(path)
    assert any(reason in problem.reason for problem in found), found
    assert all(isinstance(problem, DamagedError) for problem in found)


def root(path: Path, name: str) -> int:
    connection = apsw.Connection(str(path))
    page = connection.execute("select rootpage from sqlite_schema where name = ?", (name,)).get
    connection.close()
    return int(page)


EMPTY_INDEX = b"\x0a\0\0\0\0\x10\0\0".ljust(4096, b"\0")


def overwrite(path: Path, page: int, data: bytes) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: (page - 1) * 4096] + data + content[page * 4096 :])


@pytest.mark.parametrize("index", ["head_name", "head_live", "entry_place", "label"])
def test_an_index_whose_rows_are_gone_is_found(path: Path, index: str) -> None:
    """An empty page in the place of its root: SQLite gives no error, and the list is empty."""
    overwrite(path, root(path, index), EMPTY_INDEX)
    assert problems(path, deep=True)
    if index != "entry_place":  # Every entry is missing then, which reading any stream tells.
        assert problems(path)


def test_such_an_index_lists_nothing_and_says_nothing(path: Path) -> None:
    """The reason for it: the list alone cannot tell."""
    overwrite(path, root(path, "head_name"), EMPTY_INDEX)
    backend = SqliteBackend(path)
    assert names(backend) == []
    backend.close()


def test_a_page_of_an_index_that_is_old_is_found(path: Path) -> None:
    """As after a write that the disk lost: the newest sessions are in no list."""
    before = path.read_bytes()
    backend = SqliteBackend(path)
    append_all(backend, append_of("claim-0005", 1, 1))
    backend.close()
    after = path.read_bytes()
    leaves = [
        page
        for page in range(1, len(before) // 4096 + 1)
        if before[(page - 1) * 4096 : page * 4096] != after[(page - 1) * 4096 : page * 4096]
    ]
    found = 0
    for page in leaves:
        path.write_bytes(after)
        overwrite(path, page, before[(page - 1) * 4096 : page * 4096])
        backend = SqliteBackend(path)
        try:
            lists_it = "claim-0005" in names(backend) and "claim-0005" in names(
                backend, without=["deleted"]
            )
        except DamagedError:
            lists_it = False
        finally:
            backend.close()
        if not lists_it:
            found += 1
            assert problems(path), page
    assert found >= 2


@pytest.mark.parametrize("lost", [1, 100, 4095])
def test_a_file_that_lost_its_last_bytes_is_not_opened(path: Path, lost: int) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-lost])
    with pytest.raises(DamagedError, match="ends within a page"):
        SqliteBackend(path)
    assert path.read_bytes() == content[:-lost]
    path.write_bytes(content)
    assert problems(path) == []


def test_a_page_that_an_interrupted_checkpoint_left_is_no_damage(path: Path) -> None:
    """The log has that page: the twin of the one before."""
    connection = apsw.Connection(str(path))
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.pragma("wal_autocheckpoint", 0)
    connection.execute("vacuum")  # It writes all pages, to the log.
    connection.close()
    path.write_bytes(path.read_bytes()[:-100])
    assert problems(path, deep=True) == []


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_ctrl_c_interrupts_a_deep_check(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite is in one call for all of it: without a look now and then, signals would wait."""
    monkeypatch.setattr(check, "INTERRUPT_STEPS", 10)
    db = apsw.Connection(str(path))

    def interrupt(_: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_name == "<lambda>":  # Within that one call.
            raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        with pytest.raises(KeyboardInterrupt):
            _check_for_ever(db)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert check._integrity(db) == []
    db.close()


def _check_for_ever(db: apsw.Connection) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        check._integrity(db)


@pytest.mark.parametrize("table", ["entry", "entry_place", "head_name", "head_live"])
def test_a_page_over_another_does_not_make_a_listing_endless(path: Path, table: str) -> None:
    """The root over one of its leaves, which then leads to all leaves again, and so on."""
    db = apsw.Connection(str(path))
    sql = "select pageno from dbstat where name = ? and pagetype = 'leaf' order by path"
    leaves = [page for (page,) in db.execute(sql, (table,))]
    db.close()
    content = path.read_bytes()
    assert len(leaves) > 1
    for over, page in itertools.product(leaves, [root(path, table), leaves[0], leaves[-1]]):
        path.write_bytes(content)
        overwrite(path, over, content[(page - 1) * 4096 : page * 4096])
        assert ends(lambda: _list_everything(path)), (page, over)


def _list_everything(path: Path) -> None:
    backend = SqliteBackend(path)
    asks: list[Callable[[], Iterator[object]]] = [
        backend.streams,
        lambda: backend.streams(without=["deleted"]),
        backend.recent,
        lambda: backend.check(deep=True),
        *(functools.partial(backend.read, name) for name in NAMES[-3:]),
        *(functools.partial(backend.read, name, reverse=True) for name in NAMES[-3:]),
    ]
    for ask in asks:
        with contextlib.suppress(DamagedError):
            for _ in ask():
                pass
    backend.close()


def ends(work: Callable[[], None]) -> bool:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()
