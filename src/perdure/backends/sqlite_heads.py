"""The heads of a SQLite store: found by key or listed, and checked against what is stored twice."""

import functools
import hashlib
from typing import Any

import apsw
import msgspec

from perdure.backend import Head
from perdure.backends.rules import Choice, check_name
from perdure.backends.sqlite_schema import DELETED
from perdure.errors import DamagedError

HEAD = "select name, position, digest, labels from head where id = ?"
ORPHAN = "select position from entry where stream = ? limit 1"
BY_ID = "select name, id, name, position, digest, labels from head where id = ?"
# The name comes from the index, the rest from the row that it leads to.
# Whether the index without the deleted ones lacks it says the last column.
BY_NAME = (
    "select i.name, i.id, h.name, h.position, h.digest, h.labels,"  # noqa: S608 - constants
    f" h.labels <> {DELETED} and not exists"
    f" (select 1 from head as l where l.name = i.name and l.labels <> {DELETED} and +l.id = i.id)"
    " from head as i indexed by head_name left join head as h on h.id = i.id"
    " where i.name >= ? order by i.name limit ?"
)
# Of the index without the deleted ones, in files that have it.
BY_NAME_LIVE = (
    "select i.name, i.id, h.name, h.position, h.digest, h.labels"  # noqa: S608 - constants
    " from head as i left join head as h on h.id = i.id"
    f" where i.name >= ? and i.labels <> {DELETED} order by i.name limit ?"
)
BY_LABEL = (
    "select l.name, l.stream, h.name, h.position, h.digest, h.labels"
    " from label as l left join head as h on h.id = l.stream"
    " where l.name >= ? and l.label = ? order by l.name limit ?"
)
IS_LABELLED = "select 1 from label where label = ? and name = ?"

UNBORNE = "it is listed under a label that its head does not bear"


@functools.lru_cache(maxsize=4096)
def place_of(stream: str) -> int:
    """Return the key of a stream: what is looked up is a number, what is found must be the name."""
    return int.from_bytes(hashlib.sha256(check_name(stream)).digest()[:8], "big", signed=True)


def head_of(db: apsw.Connection, stream: str, place: int) -> Head | None:
    """Return the head of a stream, None if there is no such stream."""
    row = db.execute(HEAD, (place,)).fetchone()
    if row is not None:
        return checked(stream, row)
    orphan = db.execute(ORPHAN, (place,)).fetchone()
    if orphan is not None:
        raise DamagedError(stream, 0, "it has entries and no head")
    return None


def checked(stream: str, row: tuple[Any, ...]) -> Head:
    """Return the head that a row holds, if it is that of the stream."""
    name, position, digest, labels = row
    if name != stream:
        raise DamagedError(stream, 0, "its head bears another name")
    if not (isinstance(position, int) and isinstance(digest, str) and position > 0):
        raise DamagedError(stream, 0, "its head has a column of the wrong type")
    try:
        known = msgspec.json.decode(labels, type=frozenset[str]) if labels != "[]" else frozenset()
    except (msgspec.MsgspecError, TypeError, UnicodeError) as error:
        raise DamagedError(stream, 0, "the labels of its head can not be read") from error
    return Head(stream, position, digest, known)


def listed(row: tuple[Any, ...], label: str | None) -> Head:
    """Return the head of a listed row: its name and key by the index, then the row itself."""
    name, place, *rest = row
    if not isinstance(name, str) or place_of(name) != place:
        raise DamagedError(str(name), 0, "its name does not belong to its key")
    head = checked(name, tuple(rest[:4]))
    if any(rest[4:]):
        raise DamagedError(name, 0, "the index of sessions that are not deleted lacks it")
    if label is not None and label not in head.labels:
        raise DamagedError(name, 0, UNBORNE)
    return head


def by_name(db: apsw.Connection, choice: Choice, start: str, size: int) -> list[tuple[Any, ...]]:
    """Return rows for `listed`, of streams from a name on; some of them may not be meant."""
    if choice.label is not None:
        return db.execute(BY_LABEL, (start, choice.label, size)).fetchall()
    return db.execute(BY_NAME_LIVE if choice.lives else BY_NAME, (start, size)).fetchall()


def by_id(db: apsw.Connection, place: int) -> Head | None:
    """Return the head with a key, None if it was removed: then it has no entries either."""
    row = db.execute(BY_ID, (place,)).fetchone()
    if row is not None:
        return listed(row, None)
    if db.execute(ORPHAN, (place,)).fetchone() is not None:
        raise DamagedError(f"the stream with the key {place}", 0, "it has entries and no head")
    return None


def require_label(db: apsw.Connection, head: Head | None, label: str | None) -> None:
    """Raise DamagedError if a head is listed under a label that it does not bear."""
    if head is None or label is None or label in head.labels:
        return
    if db.execute(IS_LABELLED, (label, head.stream)).get:
        raise DamagedError(head.stream, 0, UNBORNE)
