"""What is left of a damaged SQLite file is read from its pages, whatever points to them."""

import random
from pathlib import Path

import apsw
import pytest

import perdure
from perdure.backends.protocol import Append, Entry
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.backends.sqlite.reading import stream_key
from perdure.backends.sqlite.salvage import Journal, Recovered, rebuild_store
from perdure.errors import DamagedError
from perdure.journal import headers
from perdure.testing.contract.samples import HOSTILE_BYTES, append_all, append_of, entries
from tests.backends.sqlite.test_log_check import commits, flipped, leave, log_of

ANY = Journal(lambda _: None, lambda *_: True)


def rebuilt(path: Path, journal: Journal = ANY) -> tuple[SqliteBackend, Recovered]:
    target = path.with_name("rebuilt.db")
    recovered = rebuild_store(str(path), str(target), journal)
    return SqliteBackend(target), recovered


def stored(backend: SqliteBackend) -> dict[str, tuple[object, list[Entry]]]:
    return {head.stream: (head, list(backend.read(head.stream))) for head in backend.streams()}


def fill(path: Path) -> dict[str, tuple[object, list[Entry]]]:
    """Rows of all lengths: in one page, with one overflow page, with many."""
    backend = SqliteBackend(path)
    append_all(backend, *(append_of(f"s{number}", 1, 5, "l") for number in range(300)))
    long = [Entry(n, b"h" * n, bytes([65 + n % 26]) * (n * n * 7)) for n in range(1, 120)]
    backend.append([Append("long", long, frozenset({"a", "b"}))])
    hostile = [Entry(n, text, text) for n, text in enumerate(HOSTILE_BYTES, 1)]
    backend.append([Append("é hostile", hostile)])
    backend.drop("s7", before=4)
    found = stored(backend)
    backend.close()
    return found


def test_an_intact_store_is_rebuilt_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    good = fill(path)
    backend, recovered = rebuilt(path)
    assert stored(backend) == good
    assert list(backend.check(deep=True)) == []
    assert (recovered.heads, recovered.unnamed) == (len(good), 0)
    assert recovered.entries == sum(len(found) for _, found in good.values())
    backend.close()


@pytest.mark.parametrize("share", [0.9, 0.5, 0.2])
def test_a_file_that_was_cut_off_gives_the_rows_of_its_pages(tmp_path: Path, share: float) -> None:
    path = tmp_path / "store.db"
    good = fill(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(DamagedError):
        SqliteBackend(path)
    backend, recovered = rebuilt(path)
    backend.close()
    every = {
        (stream_key(name), entry.last, entry.position, entry.header, entry.body)
        for name, (_, found) in good.items()
        for entry in found
    }
    left = rows(tmp_path / "rebuilt.db")
    assert len(left - every) <= 1, "only the entry that was cut through is not as it was written"
    assert recovered.entries == len(left)
    # Nearly all short ones are in the first pages, the long ones need theirs.
    assert len(left) > 1500


def rows(path: Path) -> set[tuple[object, ...]]:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    sql = "select stream, position, first, cast(header as blob), cast(body as blob) from entry"
    found = {*db.execute(sql).fetchall()}
    db.close()
    return found


@pytest.mark.parametrize("table", ["head", "entry", "head_name", "entry_place", "sqlite_schema"])
def test_a_root_that_was_lost_takes_nothing_along(tmp_path: Path, table: str) -> None:
    path = tmp_path / "store.db"
    good = fill(path)
    db = apsw.Connection(str(path))
    page = (
        1
        if table == "sqlite_schema"
        else db.execute("select rootpage from sqlite_schema where name = ?", (table,)).get
    )
    db.close()
    content = path.read_bytes()
    start = (page - 1) * 4096
    path.write_bytes(content[:start] + bytes(4096) + content[start + 4096 :])
    backend, _ = rebuilt(path)
    assert stored(backend) == good
    backend.close()


def test_heads_that_were_lost_are_made_from_the_entries(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    with perdure.open(path) as store:
        for name in ("a", "b"):
            for number in range(3):
                store.session(name).note(number)
    db = apsw.Connection(str(path))
    db.execute("delete from head")
    db.execute("delete from entry where position = 1 and stream = (select max(stream) from entry)")
    db.close()
    journal = Journal(headers.session_of, lambda *_: True)
    backend, recovered = rebuilt(path, journal)
    names = [head.stream for head in backend.streams()]
    assert recovered.unnamed == 1
    assert len(names) == 2
    assert [name for name in names if not name.startswith("unnamed ")] in (["a"], ["b"])
    backend.close()


@pytest.mark.parametrize("first", [True, False])
def test_the_right_version_of_an_entry_is_kept(tmp_path: Path, *, first: bool) -> None:
    """The same row on two pages, one of them damaged: as behind a damaged frame of a log."""
    path = tmp_path / "store.db"
    good = fill(path)
    content = path.read_bytes()
    pages = [content[at : at + 4096] for at in range(0, len(content), 4096)]
    number = next(n for n, page in enumerate(pages) if page[0] == 13 and b'"position":' in page)
    damaged = pages[number].replace(b'"position":', b'"positiom":')
    spare = pages[number] if first else damaged
    pages[number] = damaged if first else pages[number]
    path.write_bytes(b"".join(pages) + spare)
    right = {(entry.header, entry.body) for _, found in good.values() for entry in found}
    backend, _ = rebuilt(
        path, Journal(lambda _: None, lambda entry: (entry.header, entry.body) in right)
    )
    assert stored(backend) == good
    backend.close()


def test_commits_behind_a_damaged_frame_are_read(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    leave(path, *((number, number) for number in range(1, 9)))
    log = log_of(path)
    content = log.read_bytes()
    draw = random.Random(3)
    for _ in range(30):
        at = draw.randrange(32, commits(content)[-3])
        log.write_bytes(flipped(content, at))
        backend, _ = rebuilt(path)
        (found,) = [list(backend.read(head.stream)) for head in backend.streams()]
        backend.close()
        (tmp_path / "rebuilt.db").unlink()
        assert [entry.position for entry in found] == list(range(1, 9)), at
        assert len([entry for entry in found if entry not in entries(1, 8)]) <= 1


def test_what_a_torn_commit_left_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    leave(path, (1, 1), (2, 2))
    log = log_of(path)
    end = log.stat().st_size
    leave(path, (3, 400))
    torn = log.read_bytes()
    log.write_bytes(torn[:end] + bytes(4120) + torn[end + 4120 :])
    backend, _ = rebuilt(path)
    assert list(backend.read("s")) == entries(1, 2)
    backend.close()


def test_noise_is_no_row(tmp_path: Path) -> None:
    draw = random.Random(1)
    for number in range(30):
        path = tmp_path / f"noise-{number}.db"
        page = b"\x0d" + draw.randbytes(2) + b"\0\x40" + draw.randbytes(4091)
        path.write_bytes((bytes(4096) + page * 3)[: draw.randrange(5000, 16000)])
        target = tmp_path / f"rebuilt-{number}.db"
        assert rebuild_store(str(path), str(target), ANY).entries <= 10
