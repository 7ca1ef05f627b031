"""Sample values and helpers of the contract suite: entries, appends and hostile texts."""

import base64
import hashlib
import multiprocessing
import warnings
from collections.abc import Callable, Iterable
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from perdure.backends.protocol import Append, AsyncBackend, Backend, Entry

OpenBackend = Callable[[], Backend]


# Names that break naive stores: paths, devices, patterns, quotes, invisible and wide characters.
HOSTILE_NAMES = [
    *("../../etc/passwd", "CON", "a b", " ", ".", 'it\'s "quoted"; drop table entry --', "100%"),
    *("under_score", "*?[a-z]", "back\\slash", "🦉 and é and e\u0301", "\uffff", "\U0010ffff"),
    *("x" * 512, "🦉" * 128),
]


# Distinct texts that are equal unless compared by code points: they differ in case, in surrounding
# spaces, in how a letter is composed, or are special in patterns, lists or paths.
SIMILAR_TEXTS = [
    *("a", "A", "a ", " a", "a/", "a.", "á", "a\u0301", "ä", "aa", "aA", "AA"),
    *("a%", "a%a", "a_", "a_a", "a*", "a*a", "a?", "a?a", "a[a]", "a[", "a\\", "a\\a", "a\\%"),
    *("a,a", 'a"a', "ss", "ß", "i", "I", "ı", "İ", "ﬁ", "fi", "k", "\u212a"),
    *("1", "01", "1.0", "\uff11"),
]


# Bytes that a store corrupts if it treats them as text, as lines or as JSON.
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
    """Return an entry whose header and body are unique to its position and mark."""
    header = b'{"position":%d,"mark":"%s"}' % (position, mark.encode())
    default = b'["%s",%d]' % (mark.encode(), position)
    return Entry(position, header, default if body is None else body)


def entries(first: int, last: int, mark: str = "") -> list[Entry]:
    """Return the entries from one position to another, inclusive."""
    return [entry(position, mark) for position in range(first, last + 1)]


def append_of(stream: str, first: int, last: int, *labels: str, mark: str = "") -> Append:
    """Return an append of `entries(first, last, mark)` that links to `entry(first - 1)`."""
    previous = digest(entry(first - 1)) if first > 1 else ""
    return Append(stream, entries(first, last, mark), frozenset(labels), previous)


def start_of(stream: str, first: int, last: int, *labels: str) -> Append:
    """Return an append that begins its stream at any position, as a branch does."""
    return append_of(stream, first, last, *labels)._replace(previous="")


def append_to(backend: Backend, stream: str, position: int, mark: str) -> Append:
    """Return an append of `entry(position, mark)` that links to the stored entry before it."""
    before = backend.read(stream, after=position - 2, limit=1) if position > 1 else ()
    previous = [digest(stored) for stored in before] or [""]
    return Append(stream, [entry(position, mark)], previous=previous[0])


def append_all(backend: Backend, *appends: Append) -> list[str]:
    """Append, and return the status of each outcome."""
    return [outcome.status for outcome in backend.append(appends)]


def positions(stored: Iterable[Entry]) -> list[int]:
    """Return the positions of entries, in the given order."""
    return [entry.position for entry in stored]


def start_forked(work: Callable[..., None], *args: Any) -> BaseProcess:
    """Start a forked process: the function that opens the store may not be picklable."""
    process = multiprocessing.get_context("fork").Process(target=work, args=args)
    with warnings.catch_warnings():
        # About forking with threads: the children only open a store.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return process


def names(backend: Backend, **filters: Any) -> list[str]:
    """Return the names of the listed streams."""
    return [head.stream for head in backend.streams(**filters)]


def skip_unless_declared(backend: Backend | AsyncBackend, capability: str) -> None:
    """Skip the test if the store does not declare a capability."""
    if capability not in backend.capabilities:
        pytest.skip(f"this store does not declare the capability `{capability}`")


def digest(last: Entry) -> str:
    """Return the digest that a head holds of its last entry."""
    return base64.b64encode(hashlib.sha256(last.header).digest()).decode()
