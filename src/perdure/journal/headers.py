"""What a header says, without checking its entry: for listings, for salvage, for pages. Pure."""

from datetime import datetime

import msgspec

from perdure.backends.digests import digest_of
from perdure.backends.protocol import Head
from perdure.journal.chain import decode_header, is_only_parts


def session_of(header: bytes) -> str | None:
    """Return the session that a header names: the first one of a stream does; None if it does not.

    For salvage: nothing is verified.
    """
    try:
        return decode_header(header).session
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError):
        return None


def stream_of(head: Head) -> str:
    """Return the id of a listed stream; "" if it cannot be read."""
    try:
        return decode_header(head.header).stream
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def time_of(head: Head) -> datetime | None:
    """Return when the last entry of a listed stream was written; None if it cannot be read.

    None and no error: a listing does not end at a damaged entry. Opening the session reports it,
    because it reads that entry; where only an index is damaged, reading its messages does.
    """
    if digest_of(head.header) != head.digest:
        return None
    try:
        return datetime.fromisoformat(decode_header(head.header).time)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return None


def has_only_parts(header: bytes) -> bool:
    """Whether an entry has nothing but parts of large bodies, by its header, which is not checked.

    Readers of pages do not read the bodies of such entries.
    """
    try:
        return is_only_parts(decode_header(header))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
