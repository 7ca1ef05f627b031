"""P26, of ids: any text is a session's id; none makes a file elsewhere, or is taken for another.

Ids are put together from what means something to file systems, shells, SQL, JSON and people. Each
session says its own id; afterwards all of them must be listed, each must say what it said, and
outside of the store nothing may have appeared. Control characters are refused by sessions, but not
by stores, which are tried with them as well.
"""

import random
import re
import unicodedata
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import perdure
from perdure.errors import UsageError
from perdure.testing.contract.samples import append_of, entries
from tests.promises import places
from tests.promises.kinds import FILES, KINDS, Kind
from tests.promises.promise import Promise, Trial, in_time

BLOCK = 100  # Ids between two looks around, at first.
LONGEST = 512  # Bytes of an id.
PARTS = (
    *("../", "..", "./", "/", "//", "\\", "..\\", "~", "~root/", "/etc/passwd", "/dev/null", "."),
    *("CON", "nul", "AUX", "COM1", "C:", "a:b", "$MFT", "desktop.ini", "names", "perdure-store"),
    *("%00", "%2e%2e%2f", "%s", "{}", "$HOME", "`id`", "; rm -rf .", "|", "&", "*", "?", "[a]"),
    *(
        "'",
        '"',
        "''; drop table entry; --",
        "_",
        "%",
        '{"perdure":[',
        "\t",
        "\n",
        "\r\n",
        "\0",
        "\x7f",
    ),
    *(
        "é",
        "e\u0301",
        "ß",
        "ﬁ",
        "İ",
        "\u202e",
        "\u200b",
        "\ufeff",
        "\u2028",
        "🦉",
        "👩‍💻",
        "\U0010ffff",
    ),
    *("a", "A", "b", "0", " ", "  ", "-", "--help", ".jsonl", ".torn-1", ".tmp", "x" * 300),
)
FILE = re.compile(r"[0-9a-f]{2}|[0-9a-f]{2}/(names|[0-9a-f]{64}\.jsonl)|perdure-store(\.lock)?")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
FORMS: tuple[Literal["NFC", "NFD", "NFKC"], ...] = ("NFC", "NFD", "NFKC")
REFUSED = ("", "x" * (LONGEST + 1), "\ud800", "a\udfff")


def ids(draw: random.Random) -> Iterator[str]:
    """Yield ids without end, and now and then the same text in another form."""
    yield from PARTS
    while True:
        text = "".join(draw.choices(PARTS, k=draw.randint(1, 8)))
        yield text
        if draw.random() < 0.3:
            yield unicodedata.normalize(draw.choice(FORMS), text)
            yield draw.choice((str.upper, str.lower, str.strip, str.swapcase))(text)


def fitting(text: str) -> str:
    """Cut an id to the longest that is allowed."""
    return text.encode()[:LONGEST].decode(errors="ignore")


class Look:
    """What lies around a store, and in it."""

    def __init__(self, kind: Kind, directory: Path) -> None:
        self._kind = kind
        self._around = (directory, Path.cwd())
        self._store = directory / "here" / "store"
        self._before = self._outside()

    def _outside(self) -> set[Path]:
        directory, cwd = self._around
        found = {*directory.rglob("*"), *cwd.iterdir()}
        return {one for one in found if not one.is_relative_to(self._store.parent)}

    def strange(self) -> str:
        """Say what does not belong where it is."""
        if new := self._outside() - self._before:
            return f"outside: {sorted(map(str, new))[:3]}"
        inside = [one.relative_to(self._store.parent) for one in self._store.parent.rglob("*")]
        if self._kind is not FILES:
            names = {str(one) for one in inside}
            return "" if names <= {"store.db", "store.db-wal", "store.db-shm"} else f"{names}"
        names = {one.relative_to("store").as_posix() for one in inside if str(one) != "store"}
        wrong = [name for name in names if not FILE.fullmatch(name)]
        return f"inside: {sorted(wrong)[:3]}" if wrong else ""


def block(store: perdure.Store, some: list[str], known: set[str]) -> Iterator[tuple[str, str]]:
    """Say each id in its own session; yield what was wrong with each."""
    for text in some:
        if CONTROL.search(text):
            if wrong := refused(store, text):
                yield text, wrong
            store._backend.append([append_of(text, 1, 1)])
        else:
            store.session(text).append({"role": "user", "content": text})
    known.update(some)
    listed = [head.stream for head in store._backend.streams()]
    missing = known.difference(listed)
    if listed != sorted(known) and not missing:
        missing = set(some)
    for text in some:
        wrong = "it is not listed, or out of order" if text in missing else ""
        yield text, wrong or _says(store, text)


def _says(store: perdure.Store, text: str) -> str:
    if CONTROL.search(text):
        return "" if list(store._backend.read(text)) == entries(1, 1) else "it reads otherwise"
    said = [message["content"] for message in store.resume(text).messages()]
    return "" if said == [text] else f"it says {said}"


def refused(store: perdure.Store, text: str) -> str:
    try:
        store.session(text).append({"role": "user", "content": "x"})
    except UsageError:
        return ""
    return "it was taken"


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    with places.fast_directory() as directory:
        (directory / "here").mkdir()
        look = Look(kind, directory)
        known: set[str] = set()
        drawn = ids(random.Random(seed))
        with perdure.open(kind.address(directory / "here")) as store:
            for text in REFUSED:
                yield Trial(repr(text), refused(store, text))
            while in_time(deadline):
                some: dict[str, None] = {}
                while len(some) < BLOCK + len(known) // 3:  # All are listed after each block.
                    text = fitting(next(drawn))
                    if text and text not in known:
                        some[text] = None
                found = list(block(store, list(some), known))
                strange = look.strange()
                for text, wrong in found:
                    yield Trial(repr(text), wrong or strange)


SAYS = "an id can be any text, and makes no file outside"
PROMISES = [Promise("P26", SAYS, 10_000, partial(trials, kind), kind.name) for kind in KINDS]
