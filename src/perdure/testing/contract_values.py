"""Small values for the contracts: entries whose bytes tell where they belong."""

import base64
import hashlib
from collections.abc import Callable, Iterable

from perdure.backend import Append, Backend, Entry

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
