"""Entry ⇄ row: how headers and bodies are stored in the columns of a SQLite store. Pure.

A header is text, and a body too, so that the `sqlite3` shell shows them. What is not text is a blob
that begins with a zero byte: SQLite's text functions stop at a NUL.

In a compressed store, other blobs are packed headers (`backends.packed_header`) and compressed
bodies (`backends.compression`). The stream id of packed headers is that in the first header of
their stream which is text. There always is one: the first entry of a stream is not packed.

Entries come in and columns go out, or the other way round. The SQL that reads them is here too.
"""

import re
from collections.abc import Callable, Sequence

from perdure.backends import compression, packed_header
from perdure.backends.protocol import HEADER_MAX, Entry

BYTES = b"\0"  # the first byte of a blob that holds bytes as they are

_STREAM = re.compile(rb'\[1,"plain","([A-Za-z0-9_-]{22})",')

_STREAM_END = 1 + 22  # bytes; a zero and the stream id are before a blob in HEADER


# The stream id of the stream with a key: 22 characters, null if no header has one.
STREAM_ID = (
    "(select substr(e.header, 13, 22) from entry as e where e.stream = {}"
    " and typeof(e.header) = 'text' and e.header like"
    """ '[1,"plain","______________________",%' order by e.position limit 1)"""
)

FIRST_STREAM_ID = f"select {STREAM_ID.format('?')}"

# The header of a row of `entry`, for `restore_header`. octet_length() does not load a long column;
# cast() returns the bytes of text and of blobs.
HEADER = (
    f"case when octet_length(header) <= {HEADER_MAX} then"
    " case typeof(header) when 'text' then cast(header as blob)"
    f" else cast(x'00' || coalesce({STREAM_ID.format('entry.stream')}, '') || header as blob)"
    " end end"
)

# The same for many rows: its bytes, and whether it is a blob that `restore_header` restores once
# the stream id is before it. Compiling the statement above takes 50 µs longer, in every opening.
STORED_HEADER = (
    f"case when octet_length(header) <= {HEADER_MAX} then cast(header as blob) end,"
    " typeof(header) = 'blob'"
)

# The body of a row, if it may be short enough, and whether `restore_body` restores it.
BODY = "case when octet_length(body) <= ?1 + 1 then cast(body as blob) end, typeof(body) = 'blob'"


def stream_id_of(header: bytes) -> str:
    """Return the stream id that a header names; "" if it cannot be packed."""
    match = _STREAM.match(header)
    return match[1].decode() if match else ""


Row = tuple[int, int, int, str | bytes, str | bytes]


def entry_rows(key: int, entries: Sequence[Entry]) -> list[Row]:
    """Return entries as rows: stream, last and first position, header and body."""
    rows: list[Row] = []
    for position, header, given, records in entries:
        body = given or b""
        text: Callable[[bytes], str | bytes] = text_or_blob
        if header.isascii() and body.isascii() and b"\0" not in header and b"\0" not in body:
            text = bytes.decode  # Most are ASCII, and every append comes here.
        rows.append((key, position + records - 1, position, text(header), text(body)))
    return rows


def compressed_rows(
    key: int, entries: Sequence[Entry], stream_id: str, *, begins: bool
) -> list[Row]:
    """Return entries as rows of a compressed store: `entry_rows`, where they are not longer.

    `stream_id` is the one that `STREAM_ID` selects; if it is empty, no header is packed. If they
    begin their stream, the first one has it.
    """
    rows = entry_rows(key, entries)
    for index, entry in enumerate(entries):
        _, last, first, header, body = rows[index]
        packed, given = None, entry.body or b""
        if stream_id and not (begins and index == 0):
            packed = packed_header.pack(entry.header, entry.position, stream_id)
        if len(given) >= compression.COMPRESS_MIN:
            compressed = compression.compress(given)
            body = compressed if len(compressed) < len(given) else body
        rows[index] = (key, last, first, header if packed is None else packed, body)
    return rows


def restore_header(selected: bytes, last: int) -> bytes:
    """Return a header that `HEADER` selected, given the last position of its entry.

    ValueError if it cannot be restored.
    """
    if selected[:1] != BYTES:
        return selected
    if selected[1:2] == BYTES:
        return selected[2:]  # Bytes, in a stream that has no stream id.
    stream, stored = selected[1:_STREAM_END], selected[_STREAM_END:]
    if stored[:1] == BYTES:
        return stored[1:]
    return packed_header.unpack(stored, last, stream)


def restore_body(stored: bytes, max_body: int) -> bytes | None:
    """Return a body that is stored as a blob; None if it is longer than `max_body`.

    ValueError if it cannot be restored.
    """
    if stored[:1] == BYTES:
        return stored[1:] if len(stored) - 1 <= max_body else None
    return compression.decompress(stored, max_body)


def text_or_blob(data: bytes) -> str | bytes:
    """Return text if it preserves the bytes, so that the `sqlite3` shell can show them."""
    return data.decode() if is_text(data) else BYTES + data


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
