"""P6 and P7 for a directory of files: every byte of every file, lines and files moved and lost.

Lists of names may be damaged without a word: they are made anew from the files that they name. The
same holds for one of the two marks of a file, and for the lock, which is empty. Everything else is
told, and costs no more than the entries that it lies in; what is cut off, all entries behind it.
"""

import bisect
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from perdure.backends.files.format import MARK_OFFSETS, MARK_SIZE, parse_batch
from tests.promises import p06_store as stores
from tests.promises import places
from tests.promises.kinds import FILES
from tests.promises.p06_damage import SAYS, Rest, scattered
from tests.promises.p06_mutations import Place, Row
from tests.promises.promise import Promise, Trial, in_time

HARMLESS = ("names", "perdure-store.lock")

Contents = dict[str, bytes]


class Mutation(NamedTuple):
    """Some files are replaced, or gone. `damages` are the entries that it damages, if known.

    `told` says whether somebody has to be told.
    """

    what: str
    files: dict[str, bytes | None]
    damages: frozenset[Place] | None = None
    told: bool = True
    whole: bool = False
    """Whether everything can still be read by choice."""


class Line(NamedTuple):
    """A line of a stream's file, and the entries that are lost with it."""

    at: int
    text: bytes
    places: frozenset[Place]


class Directory:
    """Trials on a store that nobody uses."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "store"
        self.address = FILES.address(directory)
        FILES.clear(directory)
        stores.build(self.address)
        self.names = stores.names(self.address)
        self.content = self._found()
        self.answers = stores.read_all(self.address, self.names)
        numbers = {name: number for number, name in enumerate(sorted(self.content))}
        self.lines = {
            name: list(_lines(content, Path(name).stem, numbers[name]))
            for name, content in self.content.items()
            if name.endswith(".jsonl")
        }
        self._rows = [row for lines in self.lines.values() for row in _rows(lines)]
        self.rest = Rest(self.answers, self._rows)

    def _found(self) -> Contents:
        files = (one for one in self.root.rglob("*") if one.is_file())
        return {one.relative_to(self.root).as_posix(): one.read_bytes() for one in files}

    def _restore(self) -> None:
        found = self._found()
        for name in found.keys() - self.content.keys():
            (self.root / name).unlink()
        for name, content in self.content.items():
            if found.get(name) != content:
                (self.root / name).write_bytes(content)

    def trial(self, mutation: Mutation) -> Trial:
        """Damage the files and judge every answer; where known, judge what is left as well."""
        self._restore()
        for name, content in mutation.files.items():
            if content is None:
                (self.root / name).unlink()
            else:
                (self.root / name).write_bytes(content)
        answers = stores.read_all(self.address, self.names)
        found = stores.faults(answers, self.answers)
        if mutation.told and stores.silent(answers):
            found.append("nothing was raised")
        if mutation.whole:
            found += [f"{name}: not all was salvaged" for name in self._not_whole(answers)]
        return Trial(mutation.what, "; ".join(found + self.rest.faults(answers, mutation.damages)))

    def _not_whole(self, answers: stores.Answers) -> Iterator[str]:
        for name in self.names:
            question = f"{name}: {stores.SALVAGED}"
            found, good = answers.get(question), self.answers[question]
            if not isinstance(found, stores.Salvaged) or found.records != good.records:
                yield name

    def mutations(self) -> "list[Mutations]":
        files = [Bytes(name, content, self.lines.get(name, [])) for name, content in self.sized]
        return [*files, list(_moves(self.lines, self.content)), list(_losses(self.content))]

    @property
    def sized(self) -> list[tuple[str, bytes]]:
        return [(name, content) for name, content in sorted(self.content.items()) if content]


def _lines(content: bytes, stem: str, number: int) -> Iterator[Line]:
    at, left = 0, list[int]()
    for text in content.splitlines(keepends=True):
        batch = parse_batch(stem, at, text)
        if batch is not None:
            left = [after - 1 for after in batch.positions[1:]]
            yield Line(at, text, frozenset((number, one) for one in left))
        else:
            yield Line(at, text, frozenset((number, one) for one in left[:1]))
            left = left[1:]
        at += len(text)


def _rows(lines: list[Line]) -> Iterator[Row]:
    for line in lines:
        if b"\t" in line.text:
            ((stream, position),) = line.places
            header, body = line.text.decode().rstrip("\n").split("\t", 1)
            first = position - len(json.loads(header)[8]) + 1
            yield Row(line.at, stream, position, first, header, body)


class Bytes:
    """Mutations of single bytes of one file, by number: each byte three times."""

    kinds = ("flip", "zero", "cut")

    def __init__(self, name: str, content: bytes, lines: list[Line]) -> None:
        self._name = name
        self._content = content
        self._lines = lines
        self._starts = [line.at for line in lines]

    def __len__(self) -> int:
        return len(self.kinds) * len(self._content)

    def __getitem__(self, number: int) -> Mutation:
        at, kind = divmod(number, len(self.kinds))
        changed = bytearray(self._content)
        if self.kinds[kind] == "flip":
            changed[at] ^= 1
        elif self.kinds[kind] == "zero":
            changed[at] = 0
        else:
            del changed[at:]
        what = f"{self.kinds[kind]} {self._name} at {at}"
        cut = self.kinds[kind] == "cut"
        damages = self._damages(at, cut=cut)
        whole = bool(self._lines) and at < len(self._lines[0].text) - 1 and not cut
        told = Path(self._name).name not in HARMLESS and not (whole and _in_mark(at))
        return Mutation(what, {self._name: bytes(changed)}, damages, told, whole)

    def _damages(self, at: int, *, cut: bool) -> frozenset[Place] | None:
        """Return the entries that are lost; None where the first line goes, which is no entry's."""
        number = bisect.bisect_right(self._starts, at) - 1
        lost = self._lines[number:] if cut else self._lines[number : number + 1]
        return frozenset(place for line in lost for place in line.places) if number > 0 else None


def _in_mark(at: int) -> bool:
    return any(mark <= at < mark + MARK_SIZE for mark in MARK_OFFSETS)


Mutations = Bytes | list[Mutation]


def _moves(lines: dict[str, list[Line]], content: Contents) -> Iterator[Mutation]:
    """Every pair of entries' lines exchanged, copied over each other, and every line lost."""
    for name, found in lines.items():
        entries = [number for number, line in enumerate(found) if b"\t" in line.text]
        texts = [line.text for line in found]
        for one, two in itertools.combinations(entries, 2):
            swapped = _with(texts, {one: texts[two], two: texts[one]})
            yield Mutation(f"exchange lines {one} and {two} of {name}", {name: swapped})
        for one, two in itertools.permutations(entries, 2):
            copied = _with(texts, {two: texts[one]})
            yield Mutation(f"copy line {one} over {two} of {name}", {name: copied})
        for number in range(len(texts)):
            for what, line in (("lose", b""), ("repeat", texts[number] * 2), ("empty", b"\n")):
                # After the last line, it is a tail that was never synced: nothing is lost with it.
                told = what != "repeat" or number + 1 < len(texts)
                changed: dict[str, bytes | None] = {name: _with(texts, {number: line})}
                yield Mutation(f"{what} line {number} of {name}", changed, told=told)
    for this, that in itertools.permutations(lines, 2):
        yield Mutation(f"exchange {this} and {that}", {this: content[that], that: content[this]})
        yield Mutation(f"copy {this} over {that}", {that: content[this]})
        both = content[this] + content[that]
        yield Mutation(f"add {that} to {this}", {this: both}, told=False)


def _with(texts: list[bytes], changed: dict[int, bytes]) -> bytes:
    return b"".join(changed.get(number, text) for number, text in enumerate(texts))


def _losses(content: Contents) -> Iterator[Mutation]:
    for name in content:
        harmless = Path(name).name in HARMLESS
        yield Mutation(f"lose {name}", {name: None}, told=not harmless)
        yield Mutation(f"empty {name}", {name: b""}, told=not harmless)


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    """Yield trials of all sorts, in an order that is drawn, each at most once."""
    with places.fast_directory() as directory:
        damaged = Directory(directory)
        sorts = damaged.mutations()
        for number in scattered(sum(map(len, sorts)), seed):
            if not in_time(deadline):
                return
            yield damaged.trial(_numbered(sorts, number))


def _numbered(sorts: list[Mutations], number: int) -> Mutation:
    for mutations in sorts:
        if number < len(mutations):
            return mutations[number]
        number -= len(mutations)
    raise IndexError(number)


PROMISE = Promise("P6", SAYS, 130_000, trials, "files")
