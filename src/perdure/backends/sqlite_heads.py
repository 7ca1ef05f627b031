"""The heads of a SQLite store: found by key or listed, and checked against what is stored twice."""

import functools
import hashlib
from typing import Any

import apsw
import msgspec

from perdure.backend import Head
from perdure.backends.rules import check_name
from perdure.errors import DamagedError

HEAD = "select name, position, digest, labels from head where id = ?"
ORPHAN = "select position from entry where stream = ? limit 1"
BY_ID = "select name, id, name, position, digest, labels from head where id = ?"


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
    head = checked(name, tuple(rest))
    if label is not None and label not in head.labels:
        raise DamagedError(name, 0, "it is listed under a label that its head does not bear")
    return head


def by_id(db: apsw.Connection, places: list[int]) -> list[Head]:
    """Return the heads of streams by their keys."""
    heads = []
    for place in places:
        row = db.execute(BY_ID, (place,)).fetchone()
        if row is None:
            raise DamagedError(f"the stream with the key {place}", 0, "it has entries and no head")
        heads.append(listed(row, None))
    return heads
