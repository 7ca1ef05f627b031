"""What every store decides alike: what is legal, stored and listed. Pure.

A store that uses these can not disagree with the others about a conflict.
"""

from collections.abc import Callable, Collection, Sequence

from perdure.backend import (
    CONFLICT,
    DELETED,
    LABEL_BYTES_MAX,
    LABELS_MAX,
    STORED,
    Append,
    Entry,
    Head,
    Outcome,
)
from perdure.errors import UsageError

POSITION_MAX = 2**63 - 2  # A signed 64-bit column holds it, and one more as an open end.


def check(appends: Sequence[Append]) -> None:
    """Raise UsageError unless each append could be stored by itself."""
    seen: set[str] = set()
    for append in appends:
        stream = append.stream
        if stream in seen:
            raise UsageError(f"stream {stream!r} occurs twice in one call")
        if len(appends) > 1:
            seen.add(stream)
        check_name(stream)
        _check_entries(append)
        if append.labels:
            _check_labels(append)


def check_name(stream: str) -> bytes:
    """Return the name in UTF-8; raise UsageError if it is empty or has none."""
    if not stream:
        raise UsageError("a stream needs a name")
    try:
        return stream.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"stream {stream!r} is not encodable as UTF-8") from error


def _check_entries(append: Append) -> None:
    entries = append.entries
    if not entries:
        raise UsageError(f"an append to {append.stream!r} has no entries")
    expected = entries[0].position
    if not 1 <= expected <= POSITION_MAX - len(entries):
        raise UsageError(f"position {expected} of {append.stream!r} is out of range")
    for position, _, body in entries:
        if position != expected:
            raise UsageError(
                f"an append to {append.stream!r} has position {position} "
                f"where {expected} comes next"
            )
        if body is None:
            raise UsageError(f"entry {expected} of {append.stream!r} has no body")
        expected += 1


def _check_labels(append: Append) -> None:
    if len(append.labels) > LABELS_MAX:
        raise UsageError(f"{append.stream!r} has more than {LABELS_MAX} labels")
    for label in append.labels:
        try:
            size = len(label.encode())
        except UnicodeEncodeError as error:
            raise UsageError(f"label {label!r} is not encodable as UTF-8") from error
        if not 1 <= size <= LABEL_BYTES_MAX:
            raise UsageError(f"label {label!r} has not 1 to {LABEL_BYTES_MAX} bytes of UTF-8")


def decide(
    append: Append,
    head: int | None,
    standing: Callable[[int, int], Sequence[bytes]],
) -> tuple[Outcome, Sequence[Entry]]:
    """Return the outcome of an append and which of its entries are to be written.

    `head` is the last position of the stream, None if it has no entries. `standing(first, last)`
    returns the headers at those positions in order, without the dropped ones; it is called only
    when the entries overlap what is there.
    """
    entries = append.entries
    first = entries[0].position
    if append.begins and head is not None and first > head:
        return CONFLICT, ()
    if head is None and first > 1 and not append.begins:
        return Outcome("refused", f"position {first} would leave a gap: there is nothing"), ()
    if head is None or first == head + 1:
        return STORED, entries
    if first > head + 1:
        return Outcome("refused", f"position {first} would leave a gap after {head}"), ()
    known = entries[: head - first + 1]
    if list(standing(first, known[-1].position)) != [entry.header for entry in known]:
        return CONFLICT, ()
    return STORED, entries[len(known) :]


class Choice:
    """Which heads a listing has: by the beginning of their names, and by their labels."""

    def __init__(self, prefix: str, labels: Collection[str], without: Collection[str]) -> None:
        self.prefix = prefix
        self.labels = frozenset(labels)
        self.label = min(self.labels, default=None)
        """The one to look streams up by, where there is an index of labels."""
        self.without = frozenset(without)
        self.is_none = not self.labels.isdisjoint(self.without)
        """Whether no head can be meant."""
        self.lives = DELETED in self.without
        """Whether an index without the deleted ones holds all that are meant."""
        self.is_narrow = bool(prefix or labels)

    def has(self, head: Head) -> bool:
        """Whether a head is meant."""
        return (
            self.labels <= head.labels
            and self.without.isdisjoint(head.labels)
            and head.stream.startswith(self.prefix)
        )
