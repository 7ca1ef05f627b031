"""P6 for whole stores: no check overlooks damage, and no copy of a damaged store is complete.

A store is damaged once, anywhere. `store.verify()` may call it intact only if every session reads
as before and every list (by id, by label, by last change, pending approvals) is as before.
`perdure.copy` may call itself complete only if the copy is the good store, byte for byte. A list
that is wrong without an error is allowed only if `verify` finds the store damaged.

What is left out cannot be found by looking at the store alone: a session of which nothing is left,
an older copy of everything, the time of the last change of a session (a column in Postgres, the
row number of its last entry in SQLite).
"""

import contextlib
import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import apsw
import psycopg
from psycopg import sql

import perdure
from perdure.backends.addresses import open_backend
from perdure.backends.memory import MemoryBackend
from perdure.backends.postgres.address import parse_address
from perdure.backends.protocol import RECENT, Backend, Entry, Head
from perdure.errors import PerdureError, UnsupportedError
from tests.backends.postgres.server_keeper import running
from tests.promises import places
from tests.promises.promise import Promise, Trial, in_time

PAGE = 4096
LABEL = "tag"
NAME = "claim {:02} " + "x" * 230  # Long, so that each index of a SQLite file has several pages.
SESSIONS = 30
FEW = 12  # In files and in Postgres, where each session costs several calls in every trial.

Contents = dict[str, tuple[Head, list[Entry]]]


class Good(NamedTuple):
    """What an undamaged store holds and lists."""

    contents: Contents
    lists: dict[str, Any]


def build(address: str, sessions: int = SESSIONS) -> None:
    """Write a store with something in every list."""
    with perdure.open(address) as store:
        for number in range(sessions):
            session = store.session(NAME.format(number))
            session.append({"role": "user", "content": f"{number} " + "word " * (number * 3)})
            if number % 3 == 0:
                session.label(LABEL)
            if number % 7 == 0:
                session.set("plan", {"step": number, "why": "because " * 200})
            if number % 10 == 0:
                session.branch(f"branch {number}").append({"role": "user", "content": "what if"})
            if number % 8 == 5:
                _ask(session)
        for number in (4, 9):
            store.delete(NAME.format(number))


def _ask(session: perdure.Session) -> None:
    """Leave a call that waits for an approval."""

    def charge(amount: int) -> int:
        return amount

    tool = session.tool(charge, approval=True, approval_wait=0)
    with contextlib.suppress(perdure.ApprovalPendingError), session.turn("pay"):
        tool(5)


def contents(backend: Backend) -> Contents:
    return {head.stream: (head, list(backend.read(head.stream))) for head in backend.streams()}


def lists(store: perdure.Store, backend: Backend) -> dict[str, Callable[[], Any]]:
    """Everything that lists sessions."""
    found: dict[str, Callable[[], Any]] = {
        "sessions": lambda: list(store.sessions()),
        "deleted too": lambda: list(store.sessions(deleted=True)),
        "by prefix": lambda: list(store.sessions(prefix="claim 1")),
        "labelled": lambda: list(store.sessions(labels=[LABEL])),
        "approvals": lambda: [(one.session, one.id) for one in store.approvals()],
    }
    if RECENT in backend.capabilities:
        found["recent"] = lambda: list(store.sessions(recent=True))
        found["recent by label"] = lambda: list(store.sessions(labels=[LABEL], recent=True))
    return found


def read_good(address: str) -> Good:
    backend = open_backend(address)
    with perdure.open(backend) as store:
        known = {name: ask() for name, ask in lists(store, backend).items()}
        return Good(contents(backend), known)


def judge(address: str, good: Good, *, final: bool) -> str:
    """Open a damaged store and say what is wrong with what it says of itself."""
    try:
        backend = open_backend(address)
    except PerdureError:
        return ""  # It is not even opened.
    try:
        return "; ".join(_faults(backend, good, final=final))
    finally:
        with contextlib.suppress(PerdureError):
            backend.close()


def _faults(backend: Backend, good: Good, *, final: bool) -> Iterator[str]:
    store = perdure.open(backend)
    try:
        is_ok = store.verify().ok
    except PerdureError:
        is_ok = False
    wrong = [name for name, ask in lists(store, backend).items() if not _is_right(name, ask, good)]
    if is_ok and wrong:
        yield f"verify says that it is intact, but these lists are wrong: {wrong}"
    if is_ok and not _holds(backend, good):
        yield "verify says that it is intact, but it does not hold what was written"
    target = MemoryBackend()
    try:
        copied = perdure.copy(backend, target, final=final)
    except UnsupportedError:
        raise
    except PerdureError:
        return
    if copied.complete and contents(target) != good.contents:
        yield "a copy says that it is complete, but it is another store"


def _is_right(name: str, ask: Callable[[], Any], good: Good) -> bool:
    """Whether a list is as before, or an error. Any other exception is the finding."""
    try:
        return bool(ask() == good.lists[name])
    except PerdureError:
        return True


def _holds(backend: Backend, good: Good) -> bool:
    try:
        return all(
            list(backend.read(name)) == entries for name, (_, entries) in good.contents.items()
        )
    except PerdureError:
        return False


class Damaged(Protocol):
    """A store that can be damaged again and again."""

    address: str
    good: Good

    def damage(self, draw: random.Random) -> str:
        """Restore the store, damage it, and return how."""
        ...


class DamagedSqlite:
    """A SQLite file: bytes, pages and rows."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "store.db"
        self.address = str(self._path)
        build(self.address)
        self._older = self._path.read_bytes()
        with perdure.open(self.address) as store:  # Some pages are written once more.
            store.session("late").append({"role": "user", "content": "late"})
            store.session(NAME.format(1)).label(LABEL)
        self._content = self._path.read_bytes()
        self.good = read_good(self.address)
        count = range(len(self._older) // PAGE)
        self._rewritten = [n for n in count if self._page(n) != self._page(n, self._older)]

    def _page(self, number: int, content: bytes | None = None) -> bytes:
        return (content or self._content)[number * PAGE : (number + 1) * PAGE]

    def damage(self, draw: random.Random) -> str:
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        kind = draw.choice([self._bytes, self._lost, self._pages, self._pages, self._rows])
        content = bytearray(self._content)
        what = kind(content, draw)
        if kind != self._rows:
            self._path.write_bytes(content)
        return what

    def _bytes(self, content: bytearray, draw: random.Random) -> str:
        at, size = draw.randrange(len(content)), draw.choice([1, 1, 8, 512])
        how = draw.choice(["flip", "zero", "noise"])
        for place in range(at, min(at + size, len(content))):
            flipped, noise = content[place] ^ (1 << draw.randrange(8)), draw.randrange(256)
            content[place] = {"flip": flipped, "zero": 0, "noise": noise}[how]
        return f"{how} {size} bytes at {at}"

    def _lost(self, content: bytearray, draw: random.Random) -> str:
        size = draw.choice([1, 7, 100, 4095, PAGE, 3 * PAGE])
        if draw.random() < 0.5:
            del content[-size:]
            return f"lose the last {size} bytes"
        at = draw.randrange(100, len(content))
        del content[at : at + size]
        return f"lose {size} bytes at {at}"

    def _pages(self, content: bytearray, draw: random.Random) -> str:
        one, two = draw.sample(range(len(content) // PAGE), 2)
        how = draw.choice(["copy", "swap", "zero", "empty", "old"])
        first, second = self._page(one), self._page(two)
        if how == "copy":
            self._put(content, one, second)
        elif how == "swap":
            self._put(content, one, second)
            self._put(content, two, first)
        elif how == "zero":
            self._put(content, one, bytes(PAGE))
        elif how == "empty":  # No rows, of the same type: SQLite finds nothing wrong with it.
            start = 100 if one == 0 else 0
            page = first[: start + 3] + b"\0\0\x10\0\0"
            self._put(content, one, page + first[12:12] + bytes(PAGE - len(page)))
        else:  # A write that the disk lost.
            one = draw.choice(self._rewritten)
            self._put(content, one, self._page(one, self._older))
        return f"{how} page {one + 1} ({two + 1})"

    @staticmethod
    def _put(content: bytearray, number: int, page: bytes) -> None:
        content[number * PAGE : (number + 1) * PAGE] = page

    def _rows(self, content: bytearray, draw: random.Random) -> str:
        self._path.write_bytes(content)
        with contextlib.closing(apsw.Connection(self.address)) as db:
            statement = draw.choice(ROWS)
            table = statement.split()[2] if statement.startswith("delete") else statement.split()[1]
            key = "(label, name)" if table == "label" else "rowid"
            rows: list[Any] = db.execute(f"select {key.strip('()')} from {table}").fetchall()  # noqa: S608
            row = draw.choice(rows)
            place = "(?, ?)" if table == "label" else "?"
            newest = "select max(position) from entry as e where e.stream = entry.stream"
            only = f" and position < ({newest})" if "rowid =" in statement else ""
            db.execute(f"{statement} where {key} = {place}{only}", row)
        return f"{statement}: {row}"


ROWS = (
    "delete from head",
    "delete from label",
    "delete from entry",
    "update head set name = name || ' '",
    "update head set labels = '[]'",
    "update head set labels = '[\"tag\"]'",
    "update head set labels = '[\"deleted\"]'",
    "update head set position = position - 1",
    "update head set id = id + 1",
    "update label set label = 'other'",
    "update label set name = name || ' '",
    "update entry set position = position + 1000",
    "update entry set stream = stream + 1",
    "update entry set rowid = rowid + 100000",
    "update entry set body = ''",
)


class DamagedFiles:
    """A directory of files: bytes, lines and files."""

    def __init__(self, directory: Path) -> None:
        self._root = directory / "state"
        self.address = f"files:{self._root}"
        build(self.address, sessions=FEW)
        self.good = read_good(self.address)
        self._kept = directory / "kept"
        shutil.copytree(self._root, self._kept)
        self._files = sorted(
            path.relative_to(self._kept) for path in self._kept.rglob("*") if path.is_file()
        )
        self._streams = [path for path in self._files if path.suffix == ".jsonl"]
        self._touched: set[Path] = set()

    def damage(self, draw: random.Random) -> str:
        self._restore()
        how = draw.choice(["flip", "zero", "cut", "lose", "swap", "copy", "line", "name"])
        one, two = draw.sample(self._streams, 2)
        if how in {"flip", "zero", "cut"}:
            one = draw.choice([path for path in self._files if self._size(path)])
        elif how == "name":
            one = draw.choice([path for path in self._files if path.name == "names"])
        content, other = (self._kept / one).read_bytes(), (self._kept / two).read_bytes()
        at = draw.randrange(len(content))
        lines = content.splitlines(keepends=True)
        changed: bytes | None = {
            "flip": content[:at]
            + bytes([content[at] ^ (1 << draw.randrange(8))])
            + content[at + 1 :],
            "zero": content[:at] + b"\0" + content[at + 1 :],
            "cut": content[:at],
            "lose": None,
            "swap": other,
            "copy": other,
            "line": b"".join(lines[:-1]),
            "name": None,
        }[how]
        self._write(one, changed)
        if how == "swap":
            self._write(two, content)
        return f"{how} {one} at {at} ({two})"

    def _size(self, path: Path) -> int:
        return (self._kept / path).stat().st_size

    def _write(self, path: Path, content: bytes | None) -> None:
        self._touched.add(path)
        if content is None:
            (self._root / path).unlink()
        else:
            (self._root / path).write_bytes(content)

    def _restore(self) -> None:
        present = {path.relative_to(self._root) for path in self._root.rglob("*") if path.is_file()}
        for path in present - {*self._files}:
            (self._root / path).unlink()
        for path in self._files:
            kept = (self._kept / path).read_bytes()
            if path not in present or (self._root / path).read_bytes() != kept:
                (self._root / path).write_bytes(kept)


class DamagedPostgres:
    """The tables of a Postgres store: rows."""

    def __init__(self, url: str) -> None:
        self.address = f"{url}?schema=verdicts&tenant=t&connections=2"
        build(self.address, sessions=FEW)
        self.good = read_good(self.address)
        self._schema = parse_address(self.address).schema
        self._db = psycopg.connect(url, autocommit=True)
        self._run("set search_path = {}", sql.Identifier(self._schema))
        for table in self._tables:
            self._run("create table {} as select * from {}", *_both(table))

    _tables = ("head", "entry", "label")

    def _run(self, text: str, *parts: sql.Composable) -> None:
        self._db.execute(sql.SQL(text).format(*parts))

    def damage(self, draw: random.Random) -> str:
        for table in self._tables:
            kept, name = _both(table)
            self._run("delete from {}", name)
            self._run("insert into {} select * from {}", name, kept)
        statement = draw.choice(POSTGRES_ROWS)
        words = statement.split()
        table = words[2] if words[0] == "delete" else words[1]
        offset = draw.randrange(20)
        chosen = "ctid = (select ctid from {} order by md5(({}.*)::text) limit 1 offset {})"
        name = sql.Identifier(table)
        self._run(f"{statement} where {chosen}", name, name, sql.Literal(offset))
        return f"{statement}, row {offset}"

    def close(self) -> None:
        self._db.close()


def _both(table: str) -> tuple[sql.Identifier, sql.Identifier]:
    return sql.Identifier(f"kept_{table}"), sql.Identifier(table)


POSTGRES_ROWS = (
    "delete from head",
    "delete from label",
    "delete from entry",
    "update head set name = name || ' '",
    "update head set stream = stream || 'x'",
    "update head set labels = '[]'",
    "update head set labels = '[\"tag\"]'",
    "update head set labels = '[\"deleted\"]'",
    "update head set labels = 'x'",
    "update head set position = position - 1",
    "update head set digest = ''",
    "update label set label = 'other'",
    "update label set name = name || ' '",
    "update label set present = not present",
    "update entry set position = position + 1000",
    "update entry set stream = stream || 'x'",
    "update entry set body = ''",
)


def _try(damaged: Damaged, seed: int, deadline: float) -> Iterator[Trial]:
    for number in itertools.count(seed * 1_000_000):
        if not in_time(deadline):
            return
        draw = random.Random(number)
        what = damaged.damage(draw)
        yield Trial(
            f"{number}: {what}", judge(damaged.address, damaged.good, final=number % 2 == 0)
        )


def sqlite_trials(seed: int, deadline: float) -> Iterator[Trial]:
    with places.fast_directory() as directory:
        yield from _try(DamagedSqlite(directory), seed, deadline)


def files_trials(seed: int, deadline: float) -> Iterator[Trial]:
    with places.fast_directory() as directory:
        yield from _try(DamagedFiles(directory), seed, deadline)


def postgres_trials(seed: int, deadline: float) -> Iterator[Trial]:
    with running() as server:
        damaged = DamagedPostgres(server.url)
        try:
            yield from _try(damaged, seed, deadline)
        finally:
            damaged.close()


SAYS = "No check of a whole store overlooks damage, and no copy of a damaged one is complete"
PROMISES = [
    Promise("P6", SAYS, 5_000, sqlite_trials, "verdicts-sqlite"),
    Promise("P6", SAYS, 5_000, files_trials, "verdicts-files"),
    Promise("P6", SAYS, 5_000, postgres_trials, "verdicts-postgres"),
]
