"""How SQLite tells recency: exactly, and without reading through what is long."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from perdure.backends.sqlite import recent
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.errors import DamagedError
from perdure.testing.contract.samples import append_all, append_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def backend(path: Path) -> Iterator[SqliteBackend]:
    backend = SqliteBackend(path)
    yield backend
    backend.close()


def newest(backend: SqliteBackend, **chosen: str) -> list[str]:
    return [head.stream for head in backend.recent(**chosen)]  # type: ignore[arg-type]


def pages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the pages of rows that are read."""
    counted: list[int] = []
    page = recent.RowScan.page

    def watched(self: recent.RowScan, db: apsw.Connection) -> tuple[list[int], int]:
        counted.append(1)
        return page(self, db)

    monkeypatch.setattr(recent.RowScan, "page", watched)
    return counted


def test_long_runs_of_few_streams_are_skipped(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_all(backend, append_of("old", 1, 1))
    for first in range(1, 20_000, 1000):
        append_all(backend, append_of("one", first, first + 999))
        append_all(backend, append_of("two", first, first + 999))
    counted = pages(monkeypatch)
    assert newest(backend) == ["two", "one", "old"]
    assert len(counted) < 20  # Of 157 pages.


@pytest.mark.parametrize("seed", range(5))
def test_the_order_is_that_of_the_highest_rowids(
    backend: SqliteBackend, path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "PAGE_ROWS", 8)
    draw = random.Random(seed)
    lengths: dict[str, int] = {}
    for _ in range(200):
        name = f"{int(draw.expovariate(0.2))}"
        first = lengths.get(name, 0) + 1
        lengths[name] = first + draw.choice([0, 1, 5, 60])
        append_all(backend, append_of(name, first, lengths[name]))
        if draw.random() < 0.2:
            backend.drop(name, before=draw.randint(first, lengths[name]))
    db = apsw.Connection(str(path))
    sql = "select name from head join entry on stream = id group by name order by max(rowid) desc"
    expected = [row[0] for row in db.execute(sql)]
    db.close()
    assert newest(backend) == expected
    assert newest(backend, prefix="1") == [name for name in expected if name.startswith("1")]
    monkeypatch.setattr(recent, "SORT_MAX", 0)
    assert newest(backend, prefix="1") == [name for name in expected if name.startswith("1")]


def test_a_stream_that_is_appended_to_meanwhile_comes_once(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "PAGE_ROWS", 2)
    for name in "abcdef":
        append_all(backend, append_of(name, 1, 1))
    found = backend.recent()
    seen = [next(found).stream]
    append_all(backend, append_of("a", 2, 3), append_of("new", 1, 1))
    seen += [head.stream for head in found]
    assert seen == ["f", "e", "d", "c", "b", "a"]
    assert newest(backend)[:2] in (["a", "new"], ["new", "a"])


def test_entries_without_a_head_are_damage(backend: SqliteBackend, path: Path) -> None:
    append_all(backend, append_of("a", 1, 1))
    append_all(backend, append_of("b", 1, 1))
    db = apsw.Connection(str(path))
    db.execute("delete from head where name = 'a'")
    db.close()
    found = backend.recent()
    with pytest.raises(DamagedError, match="it has entries and no head"):
        list(found)


def test_an_index_that_forgot_a_stream_is_survived(backend: SqliteBackend, path: Path) -> None:
    append_all(backend, append_of("a", 1, 1))
    db = apsw.Connection(str(path))
    assert recent._position_at(db, 4711, 1) == 0
    db.close()


@pytest.mark.slow
def test_the_first_of_many_come_at_once(backend: SqliteBackend) -> None:
    for first in range(0, 20_000, 2000):
        backend.append([append_of(f"{first + n:06}", 1, 1) for n in range(2000)])
    for first in range(1, 50_000, 5000):
        append_all(backend, append_of("busy", first, first + 4999))
    spent = []
    for _ in range(5):  # A machine that is busy does not pause each time.
        begun = time.monotonic()
        found = [head.stream for head in backend.recent(limit=3)]
        spent.append(time.monotonic() - begun)
        assert found[0] == "busy"
    assert min(spent) < 0.5
