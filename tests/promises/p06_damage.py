"""P6 and P7: damage is never returned as data, and what is not damaged can still be read.

Every answer to every question (`p06_store.read_all`) must be the one that the good store gives, or
a typed error. The exceptions lie in the nature of things, and only an anchor outside of the store
can show them: a file of no bytes is a new store, and a write-ahead log that ends early, or whose
last commit is damaged, looks like one that a crash cut off. The state before that must then be
whole: every answer is the one it gave at that time.
"""

import contextlib
import math
import random
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from perdure.backends.digests import digest_of
from perdure.errors import PerdureError
from perdure.journal.records import Record
from tests.promises import p06_store as stores
from tests.promises.p06_mutations import Bytes, Mutation, Place, Row, row_mutations, rows
from tests.promises.promise import Promise, Trial, in_time

EMPTIED = "cut file at 0"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a fast place, not a name that others can guess


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory in memory where there is one: a hundred thousand files are written to it."""
    fast = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="perdure-p06-", dir=fast) as name:
        yield Path(name)


class Clean:
    """Trials on a store that was closed well: one file."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "store.db"
        good = directory / "good.db"
        stores.build(good)
        self.content = good.read_bytes()
        self.names = stores.names(good)
        self.answers = stores.read_all(good, self.names)
        self.entries = rows(good)
        self.rest = Rest(self.answers, self.entries)
        self.bytes = Bytes(self.content, entries=self.entries)

    def row_mutations(self) -> list[Mutation]:
        return row_mutations(self.content, self.entries)

    def trial(self, mutation: Mutation) -> Trial:
        """Damage the file and judge every answer; where known, judge what is left as well."""
        for file in self.path.parent.glob("store.db*"):
            file.unlink()
        mutation.apply(self.path)
        answers = stores.read_all(self.path, self.names)
        faults_found = stores.faults(answers, self.answers)
        if mutation.what == EMPTIED:
            faults_found = []  # A file of no bytes is a new store.
        else:
            if mutation.damages and stores.silent(answers):
                faults_found.append("nothing was raised")
            faults_found += self.rest.faults(answers, mutation.damages)
        return Trial(mutation.what, "; ".join(faults_found))


class Rest:
    """P7: what `store.records(on_damage=)` still gives of each session, and what it says."""

    def __init__(self, good: stores.Answers, entries: Sequence[Row]) -> None:
        ending = f": {stores.SALVAGED}"
        self._records: dict[str, list[Record]] = {
            question.removesuffix(ending): answer.records
            for question, answer in good.items()
            if question.endswith(ending)
        }
        known = {record.digest: record for all_ in self._records.values() for record in all_}
        self._placed = {row.place: known[_digest(row.header)].digest for row in entries}

    def faults(self, answers: stores.Answers, damages: frozenset[Place] | None) -> list[str]:
        """Return what was wrong, lost or named wrongly in any session."""
        if "open" in answers:
            return ["it does not open, though only entries are damaged"] if damages else []
        damaged = {self._placed[place] for place in damages or ()}
        found: list[str] = []
        for name, records in self._records.items():
            answer = answers[f"{name}: {stores.SALVAGED}"]
            bad = [one for one in records if one.digest in damaged] if damages else None
            fault = _salvage_fault(answer, records, bad)
            found += [f"{name}: on_damage {fault}"] if fault else []
        return found


def _salvage_fault(answer: stores.Answer, good: list[Record], bad: list[Record] | None) -> str:
    """Judge what was salvaged of one session. Without `bad`, what is damaged is not known."""
    start = max((one.position for one in good if one.kind == "branched"), default=0)
    own = [one for one in good if one.position >= start]
    if not isinstance(answer, stores.Salvaged):
        return f"raised {answer!r}" if bad is not None and any(o not in bad for o in own) else ""
    if [one for one in good if one in answer.records] != answer.records:
        return "gave what was never written"
    lost = {one.position for one in good if one not in answer.records}
    named = [error.position for error in answer.reported]
    if lost and not named:
        return f"lost {lost} without a word"
    if bad is None:
        return ""
    # Where a branch begins, it says where its past is: that is then left to its parent.
    cut = start in _positions(bad)
    if {one for one in lost if one > start or not cut} - {*_positions(bad)}:
        return f"lost {lost}, {_positions(bad)} damaged"
    right = start in named if cut else {*named[:1]} <= {*_positions(bad)}
    return "" if right else f"named {named}, {_positions(bad)} damaged"


def _positions(records: Sequence[Record]) -> list[int]:
    return [record.position for record in records]


def _digest(header: str) -> str:
    return digest_of(header.encode())


class Killed:
    """Trials on a store that a killed process left: a file, its log, and the log's index."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "killed"
        self.directory.mkdir()
        count = stores.build_killed(self.directory)
        copies = [stores.acked(self.directory, number) for number in range(count)]
        self.files = {
            file.name.removeprefix("store.db"): file.read_bytes()
            for file in copies[-1].parent.iterdir()
        }
        self.path = self.directory / "again" / "store.db"
        self.path.parent.mkdir()
        self._restore()
        self.names = stores.names(self.path)
        self.states = [stores.read_all(copy, self.names) for copy in copies]
        self.wal = Bytes(self.files["-wal"], "-wal")
        self.log = Log(self.files["-wal"])
        if len(self.log.ends) != len(self.states) - 1:
            raise RuntimeError(f"{len(self.log.ends)} commits for {len(self.states)} states")
        self.shm = Bytes(self.files["-shm"], "-shm")

    def _restore(self) -> None:
        for suffix, content in self.files.items():
            (self.path.parent / ("store.db" + suffix)).write_bytes(content)

    def answers(self, mutation: Mutation | None = None) -> stores.Answers:
        """Read the store as it was left, or with damage."""
        self._restore()
        if mutation is not None:
            mutation.apply(self.path)
        return stores.read_all(self.path, self.names)

    def wal_trial(self, mutation: Mutation) -> Trial:
        """The last state, one that a crash could have left, as a whole, or a typed error."""
        answers = self.answers(mutation)
        _, _, at = mutation.what.rpartition(" at ")
        right = self.log.right_states(int(at), cut=mutation.what.startswith("cut"))
        faults_found = [_state_faults(answers, self.states[number]) for number in right]
        best = min(faults_found, key=len)
        return Trial(mutation.what, "; ".join(best))

    def shm_trial(self, mutation: Mutation) -> Trial:
        """The index is made anew from the log: the last state, and no error."""
        answers = self.answers(mutation)
        differs = [
            question for question in answers if not _same(answers, self.states[-1], question)
        ]
        return Trial(mutation.what, "; ".join(differs))


class Log:
    """Where the commits of a write-ahead log end, and what damage may make of them."""

    HEADER, FRAME, PAGE = 32, 24, 4096

    def __init__(self, content: bytes) -> None:
        starts = range(self.HEADER, len(content), self.FRAME + self.PAGE)
        self._ending = [at for at in starts if content[at + 4 : at + 8] != bytes(4)]
        """Offsets of the frames that end a commit."""
        self.ends = [at + self.FRAME + self.PAGE for at in self._ending]

    def right_states(self, at: int, *, cut: bool) -> list[int]:
        """Return the numbers of the states that may be found after damage at an offset."""
        last = len(self.ends)
        before = sum(end <= at for end in self.ends)
        if cut:
            return [before]
        if at < self.HEADER:
            return [last]
        in_header = any(start <= at < start + self.FRAME for start in self._ending)
        # What ends the commit before the last one: with its header, that it was ended is lost.
        lost = before == last - 1 or (before == last - 2 and in_header)
        return [last, before] if lost else [last]


def _state_faults(answers: stores.Answers, state: stores.Answers) -> list[str]:
    """As `stores.faults`; a session that did not exist yet is not found again."""
    before = {key: value for key, value in answers.items() if not _same(answers, state, key)}
    return stores.faults(before, state)


def _same(one: stores.Answers, two: stores.Answers, question: str) -> bool:
    """Equal answers; errors are equal when they say the same."""
    first, second = one.get(question), two.get(question)
    if isinstance(first, PerdureError) or isinstance(second, PerdureError):
        return repr(first) == repr(second)
    return bool(first == second)


def plain_is_silent(content: bytes, at: int, path: Path) -> bool:
    """Whether plain SQLite returns wrong rows without an error when one bit is flipped."""
    good, bad = path.with_name("plain-good.db"), path.with_name("plain-bad.db")
    good.write_bytes(content)
    bad.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    try:
        return _plain(bad) != _plain(good)
    except (sqlite3.Error, UnicodeDecodeError):
        return False


def _plain(path: Path) -> list[Any]:
    with contextlib.closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as db:
        entries = db.execute("select stream, position, header, body from entry").fetchall()
        return entries + db.execute("select name, position, labels from head").fetchall()


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    """Yield trials of all kinds, in an order that is drawn, each at most once."""
    with scratch() as directory:
        clean, killed = Clean(directory), Killed(directory)
        kinds: list[tuple[Sequence[Mutation] | Bytes, Callable[[Mutation], Trial]]] = [
            (clean.bytes, clean.trial),
            (clean.row_mutations(), clean.trial),
            (killed.wal, killed.wal_trial),
            (killed.shm, killed.shm_trial),
        ]
        for number in scattered(sum(len(mutations) for mutations, _ in kinds), seed):
            if not in_time(deadline):
                return
            for mutations, judged in kinds:
                if number < len(mutations):
                    yield judged(mutations[number])
                    break
                number -= len(mutations)  # noqa: PLW2901 - its number among the next kind


def scattered(total: int, seed: int) -> Iterator[int]:
    """Yield every number below a total once, neighbours far apart, without a list of them all."""
    draw = random.Random(seed)
    step = draw.randrange(total // 3, total)
    while math.gcd(step, total) != 1:
        step += 1
    start = draw.randrange(total)
    return ((start + number * step) % total for number in range(total))


SAYS = "Damage is never returned as data; the rest can be read"
PROMISE = Promise("P6", SAYS, 130_000, trials, "sqlite")
