"""Append to many streams of a SQLite store with one statement, while Python prepares the next ones.

Each call of the driver releases the GIL and waits to get it back, which takes long while another
thread computes. So the common case is one call: all rows are passed as one blob with a list of
their offsets, and a temporary trigger compares the heads, writes the rows, moves heads and labels,
and commits. It applies to text entries of streams that this process wrote to before. Everything
else, and any mismatch that the trigger finds, takes the general path in `backend`.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import apsw
import msgspec

from perdure.backends.digests import digest_of
from perdure.backends.protocol import Append

BATCH_MIN = 4  # appends; fewer are stored faster one by one

BATCH_BYTES_MAX = 8 * 2**20  # bytes; the rows are copied once more on this path

LABEL_CACHE_MAX = 65_536  # streams whose labels are cached; bounds the memory


PREPARE = """
pragma temp_store = memory;
create temp view if not exists arriving as select '' as heads, '' as spans, x'' as data;
create temp trigger if not exists arrival instead of insert on arriving begin
    select raise(abort, 'not as it was') where json_array_length(new.heads) <> (
        select count(*) from json_each(new.heads) as new_head
        join head on head.id = new_head.value->>0
        where head.name = new_head.value->>1 and head.position = new_head.value->>2
        and head.labels = new_head.value->>3 and head.digest = new_head.value->>7
    );
    insert into entry (stream, position, first, header, body)
        select value->>0, value->>1, value->>6,
            cast(substr(new.data, value->>2, value->>3) as text),
            cast(substr(new.data, value->>4, value->>5) as text)
        from json_each(new.spans);
    update head
        set position = new_head.value->>4, digest = new_head.value->>5,
            snapshot = new_head.value->>8
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

INSERT_BATCH = "insert into arriving (heads, spans, data) values (?, ?, ?)"


class BatchRows(NamedTuple):
    """Appends as parameters of the statement."""

    heads: str
    spans: str
    data: bytes


class LabelCache:
    """Caches the labels of streams that this process wrote, as the text in the table."""

    def __init__(self) -> None:
        self.cached: dict[int, str] = {}

    def remember(self, written: Iterable[tuple[int, str]]) -> None:
        """Cache the labels of streams, by key, after they were written."""
        if len(self.cached) > LABEL_CACHE_MAX:
            self.cached.clear()
        self.cached.update(written)

    def load(self, appends: Sequence[tuple[int, str, Append]]) -> BatchRows | None:
        """Return the appends as parameters, or None if one needs the general path."""
        cached = self.cached
        heads: list[tuple[int, str, int, str, int, str, str, str, int]] = []
        spans: list[tuple[int, int, int, int, int, int, int]] = []
        chunks: list[bytes] = []
        offset = 1  # SQL's substr() counts from 1.
        for key, labels, append in appends:
            stream, entries, _, previous, snapshot = append
            old_labels = cached.get(key)
            if not previous or old_labels is None:
                return None
            end = old_head = entries[0].position - 1
            for first, header, given, records in entries:
                body = given or b""
                middle = offset + len(header)
                end += records
                spans.append((key, end, offset, len(header), middle, len(body), first))
                chunks += (header, body)
                offset = middle + len(body)
            digest = digest_of(entries[-1].header)
            head = (key, stream, old_head, old_labels, end, digest, labels, previous, snapshot)
            heads.append(head)
        if offset > BATCH_BYTES_MAX:
            return None
        data = b"".join(chunks)
        # Most are ASCII: one look at all of them takes a fraction of the time that two each take.
        is_plain = data.isascii() and b"\0" not in data
        if not is_plain and not all(map(is_text, chunks)):
            return None
        return BatchRows(_json(heads), _json(spans), data)


def prepare_batches(db: apsw.Connection) -> None:
    """Prepare a connection for `store_batch`, in its temporary schema: the file is not changed."""
    db.execute(PREPARE).fetchall()


def store_batch(load: BatchRows, db: apsw.Connection) -> bool:
    """Store appends durably; return False, with nothing changed, if a head has moved."""
    try:
        db.execute(INSERT_BATCH, load)
    except apsw.ConstraintError:
        return False
    return True


def is_text(data: bytes) -> bool:
    """Return whether the bytes survive as SQL text. SQLite's text functions stop at a NUL."""
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
