"""A listing is what a simple definition says, however a store finds it, and reads only its page.

The definition looks at every head.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.backends.fields import FieldOrder
from perdure.backends.files.backend import FilesBackend
from perdure.backends.memory import MemoryBackend
from perdure.backends.postgres import listing
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.protocol import (
    DELETED,
    ORDER,
    RECENT,
    Append,
    Backend,
    Head,
    require_order,
    require_recent,
)
from perdure.backends.redis import listing as redis_listing
from perdure.backends.redis.backend import RedisBackend
from perdure.backends.sqlite import ordered as ordered_module
from perdure.backends.sqlite import recent as recent_module
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.testing.contract.samples import append_all, append_of, digest

LABELS: list[list[str]] = [
    *([], [], ["x"], ["x", "y"], ["y"], [DELETED], [DELETED], [DELETED, "x"]),
    *(["n\t1"], ["n\t2", "x"], ["n\t2"], ["n\té", "m\t1", "y"], ["n\t2", "m\t2", "x", "y"]),
]
ORDERS = [
    *(FieldOrder("n"), FieldOrder("n", reverse=True), FieldOrder("m"), FieldOrder("o")),
    *(FieldOrder("n", "1", "3"), FieldOrder("n", "2", reverse=True)),
    *(FieldOrder("n", after=("2", "b/1")), FieldOrder("n", reverse=True, after=("2", "b/1"))),
]
PREFIXES = ["", "a", "b/", "b/1", "c", "é", "\U0010ffff"]
NAMES = [f"{start}{number}" for start in ("a", "b/", "é", "\U0010ffff") for number in range(12)]


class Definition:
    """The heads of a store, the last appended at the end, and what a listing of them is."""

    def __init__(self) -> None:
        self.heads: dict[str, Head] = {}

    def write(self, append: Append) -> None:
        self.heads.pop(append.stream, None)
        last = append.entries[-1]
        head = Head(append.stream, last.position, digest(last), append.labels, last.header)
        self.heads[append.stream] = head

    def listed(self, heads: Iterable[Head], **chosen: Any) -> list[Head]:
        found = [
            head._replace(header=head.header if chosen.get("headers") else b"")
            for head in heads
            if head.stream.startswith(chosen["prefix"])
            and head.stream > chosen.get("after", "")
            and head.labels.issuperset(chosen["labels"])
            and head.labels.isdisjoint(chosen["without"])
        ]
        return found[: chosen["limit"]]

    def streams(self, **chosen: Any) -> list[Head]:
        return self.listed((self.heads[name] for name in sorted(self.heads)), **chosen)

    def recent(self, **chosen: Any) -> list[Head]:
        return self.listed(reversed(self.heads.values()), **chosen)

    def ordered(self, order: FieldOrder, **chosen: Any) -> list[Head]:
        places = {
            (label.removeprefix(f"{order.field}\t"), name): head
            for name, head in self.heads.items()
            for label in head.labels
            if label.startswith(f"{order.field}\t")
        }
        kept = [
            place
            for place in sorted(places, reverse=order.reverse)
            if order.low <= place[0] and (not order.high or place[0] < order.high)
        ]
        if order.after is not None and order.reverse:
            kept = [place for place in kept if place < order.after]
        elif order.after is not None:
            kept = [place for place in kept if place > order.after]
        return self.listed([places[place] for place in kept], **chosen)


def write(
    draw: random.Random, store: Backend, definition: Definition, lengths: dict[str, int]
) -> None:
    """Append with other labels, drop, or remove."""
    name = draw.choice(NAMES)
    if name in lengths and draw.random() < 0.1:
        head = definition.heads.pop(name)
        assert store.remove(name, digest=head.digest)  # type: ignore[attr-defined]
        del lengths[name]
        return
    first = lengths.get(name, 0) + 1
    lengths[name] = first + draw.choice([0, 0, 3])
    append = append_of(name, first, lengths[name], *draw.choice(LABELS))
    assert append_all(store, append) == ["stored"]
    definition.write(append)
    if lengths[name] % 3 == 0:
        store.drop(name, before=lengths[name])


def choices(draw: random.Random) -> Iterator[dict[str, Any]]:
    """Ways to choose streams."""
    for prefix in PREFIXES:
        for labels in ([], ["x"], ["x", "y"], [DELETED], ["n\t2"], ["n\t2", "x"]):
            for without in ([], [DELETED], ["x"], ["y", DELETED]):
                limit = draw.choice([None, None, 0, 1, 5])
                yield {"prefix": prefix, "labels": labels, "without": without, "limit": limit}


def compare(store: Backend, definition: Definition, draw: random.Random) -> None:
    for chosen in choices(draw):
        after = draw.choice(["", "", *NAMES])
        found = list(store.streams(after=after, headers=True, **chosen))
        expected = definition.streams(after=after, headers=True, **chosen)
        assert found == expected, (after, chosen)
        if RECENT in store.capabilities:
            found = list(require_recent(store).recent(**chosen))
            assert found == definition.recent(**chosen), chosen
        if ORDER in store.capabilities:
            order = draw.choice(ORDERS)
            found = list(require_order(store).ordered(order, headers=True, **chosen))
            assert found == definition.ordered(order, headers=True, **chosen), (order, chosen)


@pytest.fixture(params=["sqlite", "files", "memory", "postgres", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    if request.param == "postgres":
        backend: Backend = PostgresBackend(request.getfixturevalue("postgres_store"))
    elif request.param == "redis":
        backend = RedisBackend(request.getfixturevalue("redis_store"))
    elif request.param == "memory":
        backend = MemoryBackend()
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
    monkeypatch.setattr(ordered_module, "SORT_MAX", few)
    for module in (listing, redis_listing):
        monkeypatch.setattr(module, "SORT_FEW_MAX", few)
        monkeypatch.setattr(module, "SORT_MANY_MAX", 2 * few)
    sizes = ((recent_module, 4), (ordered_module, 4), (listing, 4), (redis_listing, 4))
    for module, size in sizes:
        monkeypatch.setattr(module, "PAGE_ROWS", size)
        monkeypatch.setattr(module, "FIRST_ROWS", size)
    monkeypatch.setattr(recent_module, "PAGE_HEADS", 3)
    definition = Definition()
    draw = random.Random(few)
    lengths: dict[str, int] = {}
    for _ in range(4):
        for _ in range(40):
            write(draw, store, definition, lengths)
        compare(store, definition, draw)


# What a page touches, of SQLite. What Postgres touches is in test_postgres_plans.py.


def deleted(prefix: str, count: int) -> list[Append]:
    return [append_of(f"{prefix}{number:05}", 1, 1, DELETED) for number in range(count)]


def live(prefix: str, count: int, *labels: str) -> list[Append]:
    return [
        append_of(f"{prefix}{number:05}", 1, 1, "common", f"n\t{number:05}", *labels)
        for number in range(count)
    ]


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

    by_change, order = chosen.pop("recent", False), chosen.pop("order", None)
    with monkeypatch.context() as patched:
        patched.setattr(backend._connections, "read", counted)
        if order is not None:
            found = backend.ordered(order, **chosen)
        else:
            found = backend.recent(**chosen) if by_change else backend.streams(**chosen, limit=64)
        assert len(list(islice(found, 50))) == (0 if chosen.get("prefix") == "gone-" else 50)
    return pages


def _looked_at(db: apsw.Connection) -> int:
    kinds = (apsw.SQLITE_DBSTATUS_CACHE_HIT, apsw.SQLITE_DBSTATUS_CACHE_MISS)
    return sum(db.status(kind)[0] for kind in kinds)


LISTINGS: dict[str, dict[str, Any]] = {
    "by value": {"order": FieldOrder("n"), "without": [DELETED]},
    "by value, downwards": {"order": FieldOrder("n", high="00300", reverse=True)},
    "by value and label": {"order": FieldOrder("n"), "labels": ["vip"]},
    "by two labels, one of them rare": {"labels": ["common", "vip"]},
    "by two labels and change": {"labels": ["common", "vip"], "recent": True},
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
    backend.append(live("user-", 10_000))  # The tables' trees get no deeper from here on.
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
