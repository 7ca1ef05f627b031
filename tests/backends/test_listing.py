"""A listing is what a simple definition says, however a store finds it, and reads only its page.

The definition is the memory backend, which looks at every head.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.backends.files.backend import FilesBackend
from perdure.backends.memory import MemoryBackend
from perdure.backends.postgres import listing
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.protocol import DELETED, RECENT, Append, Backend, require_recent
from perdure.backends.sqlite import recent as recent_module
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.testing.contract.samples import append_all, append_of

LABELS: list[list[str]] = [[], [], ["x"], ["x", "y"], ["y"], [DELETED], [DELETED], [DELETED, "x"]]
PREFIXES = ["", "a", "b/", "b/1", "c", "é", "\U0010ffff"]
NAMES = [f"{start}{number}" for start in ("a", "b/", "é", "\U0010ffff") for number in range(12)]


def write(draw: random.Random, stores: list[Backend], lengths: dict[str, int]) -> None:
    """Do the same to all stores: append with other labels, drop, or remove."""
    name = draw.choice(NAMES)
    if name in lengths and draw.random() < 0.1:
        for store in stores:
            (head,) = (one for one in store.streams(prefix=name) if one.stream == name)
            assert store.remove(name, digest=head.digest)  # type: ignore[attr-defined]
        del lengths[name]
        return
    first = lengths.get(name, 0) + 1
    lengths[name] = first + draw.choice([0, 0, 3])
    labels = draw.choice(LABELS)
    for store in stores:
        assert append_all(store, append_of(name, first, lengths[name], *labels)) == ["stored"]
        if lengths[name] % 3 == 0:
            store.drop(name, before=lengths[name])


def choices(draw: random.Random) -> Iterator[dict[str, Any]]:
    """Ways to choose streams."""
    for prefix in PREFIXES:
        for labels in ([], ["x"], ["x", "y"], [DELETED]):
            for without in ([], [DELETED], ["x"], ["y", DELETED]):
                limit = draw.choice([None, None, 0, 1, 5])
                yield {"prefix": prefix, "labels": labels, "without": without, "limit": limit}


def compare(store: Backend, model: Backend, draw: random.Random) -> None:
    for chosen in choices(draw):
        after = draw.choice(["", "", *NAMES])
        found = list(store.streams(after=after, headers=True, **chosen))
        assert found == list(model.streams(after=after, headers=True, **chosen)), (after, chosen)
        if RECENT in store.capabilities:
            recent = list(require_recent(store).recent(**chosen))
            assert recent == list(require_recent(model).recent(**chosen)), chosen


@pytest.fixture(params=["sqlite", "files", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    if request.param == "postgres":
        backend: Backend = PostgresBackend(request.getfixturevalue("postgres_store"))
    else:
        kinds = {"sqlite": SqliteBackend, "files": FilesBackend}
        backend = kinds[request.param](tmp_path / "store")
    with closing(backend):
        yield backend


@pytest.mark.parametrize("few", [0, 3, 1000])
def test_every_listing_is_that_of_the_definition(
    store: Backend, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a few are sorted, where all are walked through, and where one becomes the other."""
    monkeypatch.setattr(recent_module, "SORT_MAX", few)
    monkeypatch.setattr(listing, "SORT_FEW_MAX", few)
    monkeypatch.setattr(listing, "SORT_MANY_MAX", 2 * few)
    for module, size in ((recent_module, 4), (listing, 4)):
        monkeypatch.setattr(module, "PAGE_ROWS", size)
        monkeypatch.setattr(module, "FIRST_ROWS", size)
    monkeypatch.setattr(recent_module, "PAGE_HEADS", 3)
    model = MemoryBackend()
    draw = random.Random(few)
    lengths: dict[str, int] = {}
    for _ in range(4):
        for _ in range(40):
            write(draw, [store, model], lengths)
        compare(store, model, draw)


# What a page touches, of SQLite. What Postgres touches is in test_postgres_plans.py.


def deleted(prefix: str, count: int) -> list[Append]:
    return [append_of(f"{prefix}{number:05}", 1, 1, DELETED) for number in range(count)]


def live(prefix: str, count: int, *labels: str) -> list[Append]:
    return [append_of(f"{prefix}{number:05}", 1, 1, *labels) for number in range(count)]


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SqliteBackend]:
    with closing(SqliteBackend(tmp_path / "store.db")) as backend:
        yield backend


def touched(backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch, **chosen: Any) -> int:
    """Return how many pages of the file the first 50 of a listing take, from the cache or not."""
    pages = 0
    read = backend._connections.read

    def counted(work: Callable[[apsw.Connection], Any]) -> Any:
        def count(db: apsw.Connection) -> Any:
            nonlocal pages
            before = _looked_at(db)
            found = work(db)
            pages += _looked_at(db) - before
            return found

        return read(count)

    by_change = chosen.pop("recent", False)
    with monkeypatch.context() as patched:
        patched.setattr(backend._connections, "read", counted)
        found = backend.recent(**chosen) if by_change else backend.streams(**chosen, limit=64)
        assert len(list(islice(found, 50))) == (0 if chosen.get("prefix") == "gone-" else 50)
    return pages


def _looked_at(db: apsw.Connection) -> int:
    kinds = (apsw.SQLITE_DBSTATUS_CACHE_HIT, apsw.SQLITE_DBSTATUS_CACHE_MISS)
    return sum(db.status(kind)[0] for kind in kinds)


LISTINGS: dict[str, dict[str, Any]] = {
    "by name, deleted ones first": {"without": [DELETED]},
    "by name, all of them deleted": {"without": [DELETED], "prefix": "gone-"},
    "by change, all of them deleted": {"without": [DELETED], "prefix": "gone-", "recent": True},
    "by change and label, all are old": {"labels": ["vip"], "recent": True, "without": [DELETED]},
    "by change and prefix, all are old": {"prefix": "old-", "recent": True, "without": [DELETED]},
}


def test_a_page_takes_no_longer_however_many_others_there_are(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.append(live("old-", 400, "vip"))
    found: dict[str, list[int]] = {}
    for number in range(3):
        backend.append(deleted(f"gone-{number}", 2000) + live(f"user-{number}", 2000))
        for what, chosen in LISTINGS.items():
            pages = touched(backend, monkeypatch, **chosen)
            found.setdefault(what, []).append(pages)
    for what, (first, _, last) in found.items():
        assert last < 1.3 * first + 10, (what, found)
        assert last < 4000, (what, found)  # Sorting 400 takes some of each.


def test_those_that_are_many_and_old_are_sorted_in_the_end(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_module, "SORT_MAX", 100)
    backend.append(live("old-", 300, "vip"))
    backend.append(live("user-", 6000))
    few = touched(backend, monkeypatch, labels=["vip"], recent=True)
    backend.append(live("user-more-", 6000))
    assert touched(backend, monkeypatch, labels=["vip"], recent=True) < 1.3 * few + 10
    found = [head.stream for head in backend.recent(labels=["vip"])]
    assert sorted(found) == [one.stream for one in live("old-", 300)]


def test_so_are_live_ones_below_many_that_were_deleted_last(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_module, "SORT_MAX", 100)
    backend.append(live("user-", 300))
    backend.append(deleted("gone-a", 5000))
    few = touched(backend, monkeypatch, without=[DELETED], recent=True)
    backend.append(deleted("gone-b", 15_000))
    assert touched(backend, monkeypatch, without=[DELETED], recent=True) < 2 * few
    assert len(list(backend.recent(without=[DELETED]))) == 300
    assert len(list(backend.recent())) == 20_300
