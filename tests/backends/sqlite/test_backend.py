"""SqliteBackend keeps the contract; here is what is special to one file of one machine."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from perdure.backends.digests import digest_of
from perdure.backends.protocol import STORED, Append, Backend, Entry
from perdure.backends.sqlite import backend as backend_module
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.errors import UnavailableError
from perdure.testing import BackendContract
from perdure.testing.contract.samples import append_all, append_of, entries, entry, positions


class TestSqlite(BackendContract):
    @pytest.fixture
    def open_backend(self, tmp_path: Path) -> Callable[[], Backend]:
        return lambda: SqliteBackend(tmp_path / "store.db")


class TestCompressedSqlite(BackendContract):
    @pytest.fixture
    def open_backend(self, tmp_path: Path) -> Callable[[], Backend]:
        return lambda: SqliteBackend(tmp_path / "store.db", compress="zstd")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def backend(path: Path) -> Iterator[SqliteBackend]:
    backend = SqliteBackend(path, timeout=0.3)
    yield backend
    backend.close()


WRITER_ONLY = {"fullfsync", "checkpoint_fullfsync", "secure_delete", "journal_size_limit"}


def files(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()]


def writer(backend: SqliteBackend) -> apsw.Connection:
    backend._connections.write("", lambda _: None)
    connection = backend._connections._writer
    assert connection is not None
    return connection


def test_it_says_what_it_is_and_what_survives(backend: SqliteBackend, path: Path) -> None:
    assert backend.name == f"sqlite:{path}"
    assert backend.guarantees.survives == "power loss"
    assert backend.guarantees.shared_by == "one machine"


@pytest.mark.parametrize(
    ("pragma", "value"),
    [
        ("journal_mode", "wal"),
        ("synchronous", 2),
        ("fullfsync", 1),
        ("checkpoint_fullfsync", 1),
        ("secure_delete", 1),
        ("page_size", 4096),
        ("application_id", 0x70726475),
        ("user_version", 1),
        ("trusted_schema", 0),
        ("journal_size_limit", 64 * 2**20),
    ],
)
def test_connections_are_set_up_for_durability(
    backend: SqliteBackend, pragma: str, value: object
) -> None:
    assert writer(backend).pragma(pragma) == value
    if pragma not in WRITER_ONLY:
        assert backend._connections.read(lambda reader: reader.pragma(pragma)) == value


def test_a_closed_store_is_a_single_file(path: Path) -> None:
    backend = SqliteBackend(path)
    append_all(backend, append_of("s", 1, 3))
    assert list(backend.read("s")) == entries(1, 3)
    assert len(files(path.parent)) == 3
    backend.close()
    assert files(path.parent) == [path.name]


def test_a_shell_shows_headers_and_plain_bodies_as_text(backend: SqliteBackend) -> None:
    append_all(backend, append_of("s", 1, 1))
    sealed = entry(2, body=b"\xff\x00")
    backend.append([append_of("s", 2, 2)._replace(entries=[sealed])])
    rows = writer(backend).execute("select header, body from entry order by rowid").fetchall()
    assert rows[0] == (entry(1).header.decode(), entry(1).body.decode())  # type: ignore[union-attr]
    assert rows[1] == (sealed.header.decode(), b"\0" + (sealed.body or b""))
    backend.append([append_of("s", 3, 3)._replace(entries=[entry(3, body=b"cut\0short")])])
    kind = writer(backend).execute("select typeof(body) from entry where position = 3").get
    assert kind == "blob", "a shell would show a text only up to its NUL"


def test_what_goes_on_comes_back_as_it_was_text_or_not(backend: SqliteBackend) -> None:
    """An append of its own, and entries of which one ends in the middle of a character."""
    bodies = [b"Euro \xe2\x82", b"\xac more", "Grüße".encode(), b"nul\0", b"\xff", b"", b"plain"]
    backend.append([Append("s", [Entry(1, b"h1", b"first")])])
    stored = [Entry(2 + at, b"h%d" % (2 + at), body) for at, body in enumerate(bodies)]
    for given in [stored[:2], *([one] for one in stored[2:])]:
        previous = digest_of(b"h%d" % (given[0].position - 1))
        assert backend.append([Append("s", given, previous=previous)]) == [STORED]
    assert [*backend.read("s", after=1)] == stored
    kinds = writer(backend).execute("select typeof(body) from entry order by position").fetchall()
    text = {b"first", "Grüße".encode(), b"", b"plain"}
    assert [kind == "text" for (kind,) in kinds] == [b in text for b in [b"first", *bodies]]


def test_dropped_bytes_are_not_in_the_file_any_more(path: Path) -> None:
    backend = SqliteBackend(path)
    canary = b"canary that sings"
    secret = [entry(1, body=canary * 2000), entry(2, body=b"[" + canary + b"]"), entry(3)]
    backend.append([append_of("s", 1, 3)._replace(entries=secret)])
    backend.close()
    assert canary in path.read_bytes()
    backend = SqliteBackend(path)
    backend.drop("s", before=3)
    backend.close()
    assert canary not in path.read_bytes()


def test_the_log_does_not_grow_for_ever(backend: SqliteBackend, path: Path) -> None:
    body = b"x" * 200_000
    for position in range(1, 151):
        given = append_of("s", position, position)
        backend.append([given._replace(entries=[entry(position, body=body)])])
    assert path.stat().st_size > 20_000_000
    assert Path(f"{path}-wal").stat().st_size < 20_000_000


def test_a_paused_reader_holds_no_snapshot(backend: SqliteBackend) -> None:
    append_all(backend, append_of("s", 1, 600))
    reader = backend.read("s")
    next(reader)
    # TRUNCATE needs that nobody reads from the log.
    writer(backend).wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    assert positions(reader) == list(range(2, 601))


def test_a_lock_that_is_held_too_long_is_unavailable_and_then_available(
    backend: SqliteBackend, path: Path
) -> None:
    append_all(backend, append_of("s", 1, 1))
    other = apsw.Connection(str(path))
    other.execute("begin immediate")
    with pytest.raises(UnavailableError, match="holds the lock"):
        backend.append([append_of("s", 2, 2)])
    assert list(backend.read("s")) == entries(1, 1), "readers do not wait for writers"
    other.execute("rollback")
    other.close()
    assert append_all(backend, append_of("s", 2, 2)) == ["stored"]


def test_a_lock_that_is_let_go_in_time_is_waited_for(path: Path) -> None:
    backend = SqliteBackend(path)
    other = apsw.Connection(str(path))
    other.execute("begin immediate")
    timer = threading.Timer(0.3, other.execute, ("rollback",))
    timer.start()
    assert append_all(backend, append_of("s", 1, 1)) == ["stored"]
    timer.join()
    other.close()
    backend.close()


def test_an_interrupt_while_waiting_leaves_no_transaction(
    backend: SqliteBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = apsw.Connection(str(path))
    other.execute("begin immediate")

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            backend.append([append_of("s", 1, 1)])
    other.close()
    assert not writer(backend).in_transaction
    assert append_all(backend, append_of("s", 1, 1)) == ["stored"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_exception_in_the_middle_of_a_call_stores_nothing_of_it(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    real = backend_module._relabel

    def broken(db: apsw.Connection, stream: str, *labels: frozenset[str]) -> None:
        if stream == "b":
            raise error
        real(db, stream, *labels)

    with monkeypatch.context() as patch:
        patch.setattr(backend_module, "_relabel", broken)
        with pytest.raises(error):
            backend.append([append_of("a", 1, 1), append_of("b", 1, 1), append_of("c", 1, 1)])
    assert list(backend.streams()) == []
    assert not writer(backend).in_transaction
    assert append_all(backend, append_of("a", 1, 1), append_of("b", 1, 1)) == ["stored", "stored"]


def test_32_threads_share_one_handle(backend: SqliteBackend, path: Path) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for position in range(1, 6):
                assert append_all(backend, append_of(str(number), position, position)) == ["stored"]
                assert len(list(backend.read(str(number)))) == position
        except BaseException as error:  # noqa: BLE001 - shown below.
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [head.position for head in backend.streams()] == [5] * 32
    backend.close()
    assert files(path.parent) == [path.name], "every thread's connection was closed"


def test_a_symbolic_link_leads_to_the_same_store(path: Path, tmp_path: Path) -> None:
    backend = SqliteBackend(path)
    append_all(backend, append_of("s", 1, 1))
    link = tmp_path / "link.db"
    link.symlink_to(path)
    linked = SqliteBackend(link)
    assert append_all(linked, append_of("s", 2, 2)) == ["stored"]
    assert list(backend.read("s")) == entries(1, 2)
    backend.close()
    linked.close()


def test_a_store_named_memory_is_a_file_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backend = SqliteBackend(":memory:")
    append_all(backend, append_of("s", 1, 1))
    monkeypatch.chdir("/")
    assert list(backend.read("s")) == entries(1, 1), "a change of directory changes nothing"
    backend.close()
    assert files(tmp_path) == [":memory:"]
