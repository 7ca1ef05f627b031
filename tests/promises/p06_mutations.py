"""What is done to a store of P6: bytes flipped, zeroed and cut off, rows moved, altered and lost.

A mutation is named, so that a failure can be repeated, and makes the damaged file from the good
one. Where it is known which entries it damages, it says so: P7 is judged by that.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import apsw


class Row(NamedTuple):
    """A row of the table `entry`."""

    rowid: int
    stream: int
    position: int
    first: int
    header: str
    body: str

    @property
    def place(self) -> "Place":
        return self.stream, self.position


Place = tuple[int, int]


class Mutation(NamedTuple):
    """`apply` writes the damaged file. `damages` are the entries that it damages, if known."""

    what: str
    apply: Callable[[Path], None]
    damages: frozenset[Place] | None = None


def rows(path: Path) -> list[Row]:
    """The entries of a store, as any program would read them."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        found = connection.execute("select rowid, stream, position, first, header, body from entry")
        return [Row(*row) for row in found]
    finally:
        connection.close(True)  # noqa: FBT003 - apsw takes it by position


class Bytes:
    """Mutations of single bytes of one file, by number: each byte three times."""

    kinds = ("flip", "zero", "cut")

    def __init__(self, content: bytes, suffix: str = "", entries: list[Row] | None = None) -> None:
        self._content = content
        self._suffix = suffix
        self._owners = dict(_owners(content, entries or []))

    def __len__(self) -> int:
        return len(self.kinds) * len(self._content)

    def __getitem__(self, number: int) -> Mutation:
        at, kind = divmod(number, len(self.kinds))
        name = self.kinds[kind]
        owner = self._owners.get(at)
        damages = frozenset([owner]) if owner is not None and name != "cut" else None
        return Mutation(f"{name} {self._suffix or 'file'} at {at}", self._apply(name, at), damages)

    def _apply(self, name: str, at: int) -> Callable[[Path], None]:
        def apply(path: Path) -> None:
            content = bytearray(self._content)
            if name == "flip":
                content[at] ^= 1
            elif name == "zero":
                content[at] = 0
            else:
                del content[at:]
            path.with_name(path.name + self._suffix).write_bytes(content)

        return apply


def _owners(content: bytes, entries: list[Row]) -> Iterator[tuple[int, Place]]:
    """Say which bytes of a file are the header or the body of which entry."""
    for row in entries:
        for text in (row.header.encode(), row.body.encode()):
            start = content.find(text)
            if start >= 0 and content.find(text, start + 1) < 0:
                yield from ((at, row.place) for at in range(start, start + len(text)))


def row_mutations(content: bytes, entries: list[Row]) -> list[Mutation]:
    """Every pair of rows exchanged and copied, every row lost, heads and labels altered."""
    found = [*_pairs(entries), *_copies(entries), *_losses(entries), *_heads(entries), *_labels()]
    return [Mutation(what, _executed(content, sql), damages) for what, sql, damages in found]


Sql = list[tuple[str, tuple[object, ...]]]
Planned = tuple[str, Sql, frozenset[Place] | None]


def _executed(content: bytes, sql: Sql) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        path.write_bytes(content)
        connection = apsw.Connection(str(path))
        try:
            for statement, values in sql:
                connection.execute(statement, values)
        finally:
            connection.close()

    return apply


SET = "update entry set {} = ? where rowid = ?"
PLACE = "update entry set stream = ?, position = ?, first = ? where rowid = ?"


def _pairs(entries: list[Row]) -> Iterator[Planned]:
    for one, two in itertools.combinations(entries, 2):
        damages = frozenset([one.place, two.place])
        headers: Sql = [(SET.format("header"), (two.header, one.rowid))]
        headers += [(SET.format("header"), (one.header, two.rowid))]
        bodies: Sql = [(SET.format("body"), (two.body, one.rowid))]
        bodies += [(SET.format("body"), (one.body, two.rowid))]
        places: Sql = [
            (PLACE, (0, 0, 0, one.rowid)),
            (PLACE, (*one.place, one.first, two.rowid)),
            (PLACE, (*two.place, two.first, one.rowid)),
        ]
        pair = f"{_name(one)} and {_name(two)}"
        yield f"exchange the headers of {pair}", headers, damages
        yield f"exchange the bodies of {pair}", bodies, damages
        yield f"exchange the places of {pair}", places, damages


def _copies(entries: list[Row]) -> Iterator[Planned]:
    for one, two in itertools.permutations(entries, 2):
        copy: Sql = [
            (SET.format("header"), (one.header, two.rowid)),
            (SET.format("body"), (one.body, two.rowid)),
        ]
        yield f"copy {_name(one)} over {_name(two)}", copy, frozenset([two.place])


def _losses(entries: list[Row]) -> Iterator[Planned]:
    last = {row.stream: row.position for row in entries}
    for row in entries:
        gone = frozenset([row.place])
        yield f"delete {_name(row)}", [("delete from entry where rowid = ?", (row.rowid,))], gone
        for column in ("header", "body"):
            for value in ("", b"\0", 5):
                sql: Sql = [(SET.format(column), (value, row.rowid))]
                yield f"set the {column} of {_name(row)} to {value!r}", sql, gone
        more = "insert into entry (stream, position, first, header, body) values (?, ?, ?, ?, ?)"
        end = last[row.stream] + 1
        place = (row.stream, end + row.position - row.first, end)
        yield f"append {_name(row)} again", [(more, (*place, row.header, row.body))], None


def _heads(entries: list[Row]) -> Iterator[Planned]:
    for stream in sorted({row.stream for row in entries}):
        for change in (
            "position = position + 1",
            "position = position - 1",
            "position = 1",
            "position = 0",
            "position = 'x'",
            "digest = '' || digest || '0'",
            "digest = ''",
            "digest = (select digest from head as h where h.id != head.id)",
            "name = name || ' '",
            "name = (select name from head as h where h.id != head.id)",
            "labels = '[]'",
            "labels = '[\"other\"]'",
            'labels = \'["tag","red","other"]\'',
            "labels = 'x'",
            "id = 7",
        ):
            sql: Sql = [(f"update head set {change} where id = ?", (stream,))]  # noqa: S608
            yield f"head {stream}: {change}", sql, None
        yield f"delete head {stream}", [("delete from head where id = ?", (stream,))], None


def _labels() -> Iterator[Planned]:
    for change in (
        "update label set label = 'other' where rownum = ?",
        "update label set name = name || ' ' where rownum = ?",
        "update label set stream = stream + 1 where rownum = ?",
        "delete from label where rownum = ?",
        "insert into label select 'tag', name, id from head where name = 'gamma' and ? >= 0",
        "insert into label select 'red', name, id from head where name = 'gamma' and ? >= 0",
    ):
        key = "(label, name) = (select label, name from label order by 1, 2 limit 1 offset ?)"
        for number in range(4):
            sql: Sql = [(change.replace("rownum = ?", key), (number,))]
            yield f"label {number}: {change}", sql, None


def _name(row: Row) -> str:
    return f"{row.stream % 1000}/{row.position}"
