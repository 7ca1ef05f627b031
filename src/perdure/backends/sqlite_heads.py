"""Read the heads of a SQLite store, by key or as a listing, and check them for damage.

Names, keys or filters come in; verified heads go out. A name is compared with its key, and a row
with the index that led to it. Nothing is written.
"""

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
# The name comes from the index, the other columns from the row that it points to, so that a
# mismatch shows. The last column is true if the index of live streams lacks the row.
BY_NAME = (
    "select i.name, i.id, h.name, h.position, h.digest, h.labels,"  # noqa: S608 - constants
    f" h.labels <> {DELETED} and not exists"
    f" (select 1 from head as l where l.name = i.name and l.labels <> {DELETED} and +l.id = i.id)"
    " from head as i indexed by head_name left join head as h on h.id = i.id"
    " where i.name >= ? order by i.name limit ?"
)
# Uses the index of live streams, which excludes deleted ones, in files that have it.
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

UNBORNE = "it is listed under a label that its head does not have"


@functools.lru_cache(maxsize=4096)
def place_of(stream: str) -> int:
    """Return the integer key of a stream. The row found by it must have the stream's name."""
    return int.from_bytes(hashlib.sha256(check_name(stream)).digest()[:8], "big", signed=True)


def head_of(db: apsw.Connection, stream: str, key: int) -> Head | None:
    """Return the head of a stream, None if there is no such stream."""
    row = db.execute(HEAD, (key,)).fetchone()
    if row is not None:
        return checked(stream, row)
    orphan = db.execute(ORPHAN, (key,)).fetchone()
    if orphan is not None:
        raise DamagedError(stream, 0, "it has entries and no head")
    return None


def checked(stream: str, row: tuple[Any, ...]) -> Head:
    """Return the head in a row; raise DamagedError if it is not a valid head of the stream."""
    name, position, digest, labels = row
    if name != stream:
        raise DamagedError(stream, 0, "its head has another name")
    if not (isinstance(position, int) and isinstance(digest, str) and position > 0):
        raise DamagedError(stream, 0, "its head has a column of the wrong type")
    try:
        # "[]" is by far the most common value: skip the decoder.
        parsed = msgspec.json.decode(labels, type=frozenset[str]) if labels != "[]" else frozenset()
    except (msgspec.MsgspecError, TypeError, UnicodeError) as error:
        raise DamagedError(stream, 0, "the labels of its head cannot be read") from error
    return Head(stream, position, digest, parsed)


def listed(row: tuple[Any, ...], label: str | None) -> Head:
    """Return the head of a listed row: name and key from the index, then the row's columns."""
    name, key, *rest = row
    if not isinstance(name, str) or place_of(name) != key:
        raise DamagedError(str(name), 0, "its name does not match its key")
    head = checked(name, tuple(rest[:4]))
    if any(rest[4:]):  # Only rows of BY_NAME have this column.
        raise DamagedError(name, 0, "the index of live sessions lacks it")
    if label is not None and label not in head.labels:
        raise DamagedError(name, 0, UNBORNE)
    return head


def by_name(db: apsw.Connection, choice: Choice, start: str, size: int) -> list[tuple[Any, ...]]:
    """Return rows for `listed`, from a name on; the caller filters out those that do not match."""
    if choice.label is not None:
        return db.execute(BY_LABEL, (start, choice.label, size)).fetchall()
    return db.execute(BY_NAME_LIVE if choice.lives else BY_NAME, (start, size)).fetchall()


def by_id(db: apsw.Connection, key: int) -> Head | None:
    """Return the head with a key, None if the stream was removed and has no entries either."""
    row = db.execute(BY_ID, (key,)).fetchone()
    if row is not None:
        return listed(row, None)
    if db.execute(ORPHAN, (key,)).fetchone() is not None:
        raise DamagedError(f"the stream with key {key}", 0, "it has entries and no head")
    return None


def require_label(db: apsw.Connection, head: Head | None, label: str | None) -> None:
    """Raise DamagedError if a head is listed under a label that it does not have."""
    if head is None or label is None or label in head.labels:
        return
    if db.execute(IS_LABELLED, (label, head.stream)).get:
        raise DamagedError(head.stream, 0, UNBORNE)
