"""Small values for the contracts: entries whose bytes tell where they belong."""

import base64
import hashlib
from collections.abc import Callable, Iterable

from perdure.backends.protocol import Append, Backend, Entry

OpenBackend = Callable[[], Backend]


# Names that were chosen to hurt: paths, devices, patterns, quotes, invisible and wide characters.
HOSTILE_NAMES = [
    "../../etc/passwd",
    "CON",
    "a b",
    " ",
    ".",
    'it\'s "quoted"; drop table entry --',
    "100%",
    "under_score",
    "*?[a-z]",
    "back\\slash",
    "🦉 and é and e\u0301",
    "\uffff",
    "\U0010ffff",
    "x" * 512,
    "🦉" * 128,
]


# Texts that only a store that compares code points tells apart: by case, by spaces at their end,
# by how a letter is composed, and by what patterns, lists and paths mean to others.
ALIKE = [
    *("a", "A", "a ", " a", "a/", "a.", "á", "a\u0301", "ä", "aa", "aA", "AA"),
    *("a%", "a%a", "a_", "a_a", "a*", "a*a", "a?", "a?a", "a[a]", "a[", "a\\", "a\\a", "a\\%"),
    *("a,a", 'a"a', "ss", "ß", "i", "I", "ı", "İ", "ﬁ", "fi", "k", "\u212a"),
    *("1", "01", "1.0", "\uff11"),
]


# Bytes that come back changed from a store that takes them for a text, a line or a document.
HOSTILE_BYTES = [
    *(b"", b" ", b"\n", b"\0", b"a\0b", b"a\0", b"\xff\xfe\x00", bytes(range(256))),
    *("🦉 é e\u0301".encode(), b"\xef\xbb\xbfx", b"\xed\xa0\x80"),
    *(b" \t\r\n both ends \t\r\n ", b"one\ntwo\n", b"one\r\ntwo\r", b"\x1a", b"\\n \\", b"'\""),
    *(
        b'{"b": 1.0,\t"a":[ ],"a":1e400 }',
        b'"\\u00e9\\ud83e\\udd89\\ud800\\u0000"',
        b"null",
        b"0123",
    ),
]


def entry(position: int, mark: str = "", body: bytes | None = None) -> Entry:
    """Return an entry whose header and body differ from those of any other position or mark."""
    header = b'{"position":%d,"mark":"%s"}' % (position, mark.encode())
    return Entry(
        position, header, b'["%s",%d]' % (mark.encode(), position) if body is None else body
    )


def entries(first: int, last: int, mark: str = "") -> list[Entry]:
    """Return the entries from one position to another, both included."""
    return [entry(position, mark) for position in range(first, last + 1)]


def appended(stream: str, first: int, last: int, *labels: str, mark: str = "") -> Append:
    """Return an append of `entries(first, last, mark)`."""
    return Append(stream, entries(first, last, mark), frozenset(labels))


def begun(stream: str, first: int, last: int, *labels: str) -> Append:
    """Return an append that begins its stream where it likes, as that of a branch does."""
    return appended(stream, first, last, *labels)._replace(begins=True)


def status(backend: Backend, *appends: Append) -> list[str]:
    """Append and return only the words of the outcomes."""
    return [outcome.status for outcome in backend.append(appends)]


def positions(found: Iterable[Entry]) -> list[int]:
    """Return the positions of entries, in the order in which they came."""
    return [one.position for one in found]


def names(backend: Backend, *, prefix: str = "", after: str = "") -> list[str]:
    """Return the names that a listing gives."""
    return [head.stream for head in backend.streams(prefix=prefix, after=after)]


def digest(one: Entry) -> str:
    """Return what a head says about its last entry."""
    return base64.b64encode(hashlib.sha256(one.header).digest()).decode()
