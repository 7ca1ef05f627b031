"""The rules that every store shares: which appends are legal, stored or in conflict. Pure.

Appends and the current state of their streams come in, outcomes go out. A store that uses these
rules cannot disagree with other stores about a conflict or an idempotent resend.
"""

from collections.abc import Callable, Sequence

from perdure.backends.digests import digest_of
from perdure.backends.fields import FIELD_BYTES_MAX, FIELD_MARK, FIELDS_MAX
from perdure.backends.protocol import (
    CONFLICT,
    HEADER_MAX,
    LABEL_BYTES_MAX,
    LABELS_MAX,
    STORED,
    Append,
    Entry,
    Head,
    Outcome,
)
from perdure.errors import UsageError

POSITION_MAX = 2**63 - 2  # one less than a signed 64-bit column holds, so that last + 1 fits too


UNLIMITED = 2**63 - 1  # the largest signed 64-bit integer, in place of no limit


def check(appends: Sequence[Append]) -> None:
    """Raise UsageError unless every append is well-formed."""
    seen: set[str] = set()
    for append in appends:
        stream = append.stream
        if stream in seen:
            raise UsageError(f"stream {stream!r} occurs twice in one call: merge its appends")
        if len(appends) > 1:
            seen.add(stream)
        check_name(stream)
        _check_entries(append)
        if append.labels:
            _check_labels(append)


def check_name(stream: str) -> bytes:
    """Return the name in UTF-8; raise UsageError if it is empty or not encodable."""
    if not stream:
        raise UsageError("the name of a stream is empty: pass a non-empty name")
    try:
        return stream.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"stream {stream!r} is not encodable as UTF-8: rename it") from error


def _check_entries(append: Append) -> None:
    entries = append.entries
    if not entries:
        raise UsageError(f"an append to {append.stream!r} has no entries: leave it out")
    expected, total = entries[0].position, sum(entry.records for entry in entries)
    if not 1 <= expected <= POSITION_MAX - total:
        allowed = f"use 1 to {POSITION_MAX - total}"
        raise UsageError(f"position {expected} of {append.stream!r} is out of range: {allowed}")
    if expected == 1 and append.previous:
        raise UsageError(f"nothing is before entry 1 of {append.stream!r}: leave `previous` empty")
    for position, header, body, count in entries:
        if position != expected:
            raise UsageError(
                f"an append to {append.stream!r} has position {position}, expected {expected}: "
                "number its entries without gaps"
            )
        if count < 1:
            raise UsageError(f"entry {expected} of {append.stream!r} covers no position: use 1")
        if body is None:
            raise UsageError(f"entry {expected} of {append.stream!r} has no body: pass bytes")
        if len(header) > HEADER_MAX:
            reason = f"the header of entry {expected} of {append.stream!r} has {len(header)} bytes"
            raise UsageError(f"{reason}: at most {HEADER_MAX} are allowed")
        expected += count
    if not 0 <= append.snapshot < expected:
        reason = f"the snapshot of {append.stream!r} is at {append.snapshot}"
        raise UsageError(f"{reason}, not at a position up to {expected - 1}: pass 0 for none")


def _check_labels(append: Append) -> None:
    fields = [label for label in append.labels if FIELD_MARK in label]
    if len(append.labels) - len(fields) > LABELS_MAX:
        raise UsageError(f"{append.stream!r} has more than {LABELS_MAX} labels: use fewer")
    if len(fields) > FIELDS_MAX:
        raise UsageError(f"{append.stream!r} has more than {FIELDS_MAX} fields: use fewer")
    if len({label.partition(FIELD_MARK)[0] for label in fields}) < len(fields):
        raise UsageError(f"{append.stream!r} has a field twice: give it one value")
    for label in append.labels:
        try:
            size = len(label.encode())
        except UnicodeEncodeError as error:
            raise UsageError(f"label {label!r} is not encodable as UTF-8: rename it") from error
        longest = FIELD_BYTES_MAX if FIELD_MARK in label else LABEL_BYTES_MAX
        if not 1 <= size <= longest:
            raise UsageError(f"label {label!r} must have 1 to {longest} bytes of UTF-8")


def decide(
    append: Append,
    head: Head | None,
    entries_between: Callable[[int, int], Sequence[Entry]],
) -> tuple[Outcome, Sequence[Entry]]:
    """Return the outcome of an append, and which of its entries have to be written.

    `head` is the end of the stream, None if it has no entries. `entries_between(first, last)`
    returns the stored entries that cover any of those positions, in order, without dropped ones;
    bodies may be left out. It is called only if the append overlaps stored entries.
    """
    entries, previous = append.entries, append.previous
    first = entries[0].position
    if head is None:
        if not previous:
            return STORED, entries
        return Outcome("refused", f"position {first} would leave a gap: the stream is empty"), ()
    if first > head.position:
        if previous and first > head.position + 1:
            return Outcome(
                "refused", f"position {first} would leave a gap after {head.position}"
            ), ()
        # Without comparing digests, an append to a stream that was put back to an earlier state and
        # then written to by others would be stored, and no reader could follow its link.
        return (STORED, entries) if previous == head.digest else (CONFLICT, ())
    # Equal headers mean a resend after a lost reply. A dropped entry is not among those stored, so
    # that a resend of it counts as a conflict.
    overlap = [entry for entry in entries if entry.position <= head.position]
    stored = entries_between(max(first - 1, 1), overlap[-1].last)
    before = [entry for entry in stored if entry.last < first]
    same = [*map(_identity, stored[len(before) :])] == [*map(_identity, overlap)]
    if not same or any(digest_of(entry.header) != previous for entry in before):
        return CONFLICT, ()
    return STORED, entries[len(overlap) :]


def _identity(entry: Entry) -> tuple[int, int, bytes]:
    return entry.position, entry.records, entry.header
