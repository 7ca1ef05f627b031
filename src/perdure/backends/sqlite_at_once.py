"""Appends to a SQLite store in one statement, while Python goes on with the next ones.

Each call of the driver gives the interpreter away and waits until it gets it back, which takes
long while another thread computes. So the usual case is one call: all rows go over as one blob with
a list of their places, and a temporary trigger compares the heads, writes the rows, moves the heads
and labels, and commits. Usual are streams that this process wrote to before and text. Whatever
else comes, and whatever turns out not to be as it was, goes the general way.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import apsw
import msgspec

from perdure.backend import Append, digest_of

LEAST = 4  # Fewer appends are stored sooner one by one.
BYTES_MAX = 8 * 2**20  # The rows are copied once more on the way.
STREAMS_MAX = 65_536  # Of so many streams the labels are remembered.

PREPARE = """
pragma temp_store = memory;
create temp view if not exists arriving as select '' as heads, '' as places, x'' as data;
create temp trigger if not exists arrival instead of insert on arriving begin
    select raise(abort, 'not as it was') where json_array_length(new.heads) <> (
        select count(*) from json_each(new.heads) as new_head
        join head on head.id = new_head.value->>0
        where head.name = new_head.value->>1 and head.position = new_head.value->>2
        and head.labels = new_head.value->>3 and typeof(head.digest) = 'text'
    );
    insert into entry (stream, position, header, body)
        select value->>0, value->>1,
            cast(substr(new.data, value->>2, value->>3) as text),
            cast(substr(new.data, value->>4, value->>5) as text)
        from json_each(new.places);
    update head
        set position = new_head.value->>4, digest = new_head.value->>5
        from json_each(new.heads) as new_head where head.id = new_head.value->>0;
    update head set labels = new_head.value->>6
        from json_each(new.heads) as new_head
        where head.id = new_head.value->>0 and new_head.value->>3 <> new_head.value->>6;
    delete from label where (label, name) in (
        select old.value, new_head.value->>1
        from json_each(new.heads) as new_head, json_each(new_head.value->>3) as old
        where new_head.value->>3 <> new_head.value->>6
    );
    insert into label (label, name, stream)
        select kept.value, new_head.value->>1, new_head.value->>0
        from json_each(new.heads) as new_head, json_each(new_head.value->>6) as kept
        where new_head.value->>3 <> new_head.value->>6;
end;
"""
ARRIVE = "insert into arriving (heads, places, data) values (?, ?, ?)"


class Load(NamedTuple):
    """Appends as the statement takes them."""

    heads: str
    places: str
    data: bytes


class Labels:
    """The labels of streams as this process left them, in the text that the table holds."""

    def __init__(self) -> None:
        self.known: dict[int, str] = {}

    def remember(self, left: Iterable[tuple[int, str]]) -> None:
        if len(self.known) > STREAMS_MAX:
            self.known.clear()
        self.known.update(left)

    def load(self, appends: Sequence[tuple[int, str, Append]]) -> Load | None:
        """Return appends, with the keys and labels of their streams, or None if one is unusual."""
        known = self.known
        heads: list[tuple[int, str, int, str, int, str, str]] = []
        places: list[tuple[int, int, int, int, int, int]] = []
        pieces: list[bytes] = []
        offset = 1
        for place, labels, append in appends:
            entries = append.entries
            labels_before = known.get(place)
            if append.begins or labels_before is None:
                return None
            for position, header, body in entries:
                if not (is_text(header) and body is not None and is_text(body)):
                    return None
                middle = offset + len(header)
                places.append((place, position, offset, len(header), middle, len(body)))
                pieces += (header, body)
                offset = middle + len(body)
            last, before = entries[-1], entries[0].position - 1
            digest = digest_of(last.header)
            heads.append(
                (place, append.stream, before, labels_before, last.position, digest, labels)
            )
        if offset > BYTES_MAX:
            return None
        return Load(_json(heads), _json(places), b"".join(pieces))


def prepare(db: apsw.Connection) -> None:
    """Make a connection ready for `store`. Nothing of that is in the file."""
    db.execute(PREPARE).fetchall()


def store(load: Load, db: apsw.Connection) -> bool:
    """Store appends, durably; False if a head is not where it was, and then nothing was changed."""
    try:
        db.execute(ARRIVE, load)
    except apsw.ConstraintError:
        return False
    return True


def is_text(data: bytes) -> bool:
    """Say whether the same bytes come back from a text. SQLite's functions end one at a NUL."""
    if b"\0" in data:
        return False
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _json(rows: object) -> str:
    return msgspec.json.encode(rows).decode()
