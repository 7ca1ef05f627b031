"""P8 and P9: processes that share a session write one history, and readers see it grow.

Every message says how many its writer had seen. So a message that was stored by somebody who had
not seen the one before it shows in the final history, whatever anybody was told.
"""

import hashlib
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import perdure
from perdure.core.plans import Plan
from perdure.errors import ConflictError, UnavailableError
from perdure.journal.records import Record
from perdure.sync.session import Session
from tests.promises.kinds import KINDS, Kind
from tests.promises.p08_checker import Stored, faults
from tests.promises.p08_processes import PATIENCE, Crew, Done, Log, operations
from tests.promises.places import fast_directory
from tests.promises.promise import Promise, Trial, in_time

SESSION = "shared"
APPENDS = 1_000
SHARED_KEY = "everybody's"


def acknowledged(log: Log, act: Callable[[], int], **facts: object) -> bool:
    """Do something and log what came of it."""
    log.write(**facts)
    try:
        outcome: int | str = act()
    except ConflictError:
        outcome = "conflict"
    except UnavailableError:
        outcome = "unknown"
    log.write(outcome=outcome)
    return isinstance(outcome, int)


def write(address: str, log: Log, name: str, quota: int, seed: int) -> None:
    """Append until so many were acknowledged, and do other things in between."""
    draw = random.Random(f"{seed} {name}")
    session = perdure.open(address).session(SESSION)
    number = stored = 0
    while stored < quota:
        number += 1
        stored += append(session, log, f"{name}-{number}")
        if draw.random() < 0.2:
            aside(session, log, name, draw)


def append(session: Session, log: Log, own: str) -> bool:
    message = {"role": "user", "content": "", "id": own, "saw": len(session)}
    return acknowledged(log, lambda: session.append(message), what="append", id=own)


def aside(session: Session, log: Log, name: str, draw: random.Random) -> None:
    """What commutes with messages, and with itself: only the shared value may conflict."""
    act: Callable[[], int]
    what = draw.choice(["note", "label", "own value", "shared value"])
    if what == "note":
        act = lambda: session.note({"by": name})  # noqa: E731 - one of four of a kind
    elif what == "label":
        act = partial(label, session, f"of {name[0]}")
    elif what == "own value":
        act = lambda: session.set(name, {"by": name})  # noqa: E731
    else:
        try:
            saw = session.values.version(SHARED_KEY)
        except perdure.NotFoundError:
            saw = 0
        act = lambda: session.set(SHARED_KEY, {"saw": saw})  # noqa: E731
    acknowledged(log, act, what=what)


def label(session: Session, text: str) -> int:
    session.label(text)
    return session.position


def read(address: str, log: Log, name: str, seed: int) -> None:
    """Read until killed, now with a handle that is refreshed, now with a new one."""
    draw = random.Random(f"{seed} {name}")
    store = perdure.open(address)
    session = store.session(SESSION)
    while True:
        log.write(what="read")
        if draw.random() < 0.5:
            session.refresh()
        else:
            session = store.session(SESSION)
        said = session.messages()
        digest = hashlib.sha256(b"".join(one["id"].encode() + b"\n" for one in said)).hexdigest()
        log.write(outcome=len(said), digest=digest[:16] if said else "")
        time.sleep(draw.random() * 0.02)


def ignore_conflicts() -> None:
    """Break perdure in this process: whoever was second goes on as if nothing had been said."""
    Plan.invalidated_by = lambda *_: False  # type: ignore[method-assign]


class Place(Protocol):
    """Says where a store lies: a kind does, for a folder."""

    def address(self, directory: Path, /) -> str: ...


class History:
    """One history: processes, trouble, and in the end the judgement."""

    patience = PATIENCE

    works: Callable[..., None] = staticmethod(write)
    longest_pause = 0.03

    def __init__(
        self, seed: int, kind: Place, folder: Path, *, appends: int, blind: bool = False
    ) -> None:
        self._draw = random.Random(seed)
        self._seed = seed
        self._address = kind.address(folder)
        self._blind = blind
        self.writers = self._draw.randint(2, 6)
        self.readers = self._draw.randint(0, 8 - self.writers) or 1
        self._quota = max(appends // self.writers, 1)
        self._crew = Crew(folder, self._draw, self.patience)
        self._born = 0

    def blind(self) -> None:
        """Break perdure in this process, so that something must be wrong."""
        ignore_conflicts()

    def run(self) -> list[str]:
        """Return everything that was wrong."""
        perdure.open(self._address).close()
        try:
            for _ in range(self.writers):
                self._add_writer(self._quota)
            for number in range(self.readers):
                self._start(f"r{number}", partial(read, self._address, seed=self._seed))
            self._disturb()
        finally:
            self._crew.end()
        return [*self._crew.failures, *self._judge()]

    def _add_writer(self, quota: int) -> None:
        self._born += 1
        work = partial(self.works, self._address, quota=quota, seed=self._seed)
        self._start(f"w{self._born}", work)

    def _start(self, name: str, work: Callable[..., None]) -> None:
        def begin(log: Log) -> None:
            if self._blind:
                self.blind()
            work(log=log, name=name)

        self._crew.start(name, begin)

    def _disturb(self) -> None:
        """Pause and kill until the writers are done; a killed one is replaced."""
        deadline = time.monotonic() + self.patience
        while any(name.startswith("w") for name in self._crew.running.values()):
            time.sleep(self._draw.random() * 0.02)
            self._crew.reap()
            if self._draw.random() < 0.2:
                self._crew.pause(most=self.longest_pause)
            if self._draw.random() < 0.03 and self._crew.running:
                self._replace(self._crew.kill())
            if time.monotonic() > deadline:
                self._crew.failures.append(f"not done after {self.patience} s")
                return

    def _replace(self, name: str) -> None:
        if name.startswith("r"):
            self._start(f"{name}'", partial(read, self._address, seed=self._seed))
            return
        done = sum(
            isinstance(one.outcome, int)
            for one in operations(self._crew.folder)
            if one.who == name and one.what == "append"
        )
        if done < self._quota:
            self._add_writer(self._quota - done)

    def _judge(self) -> Iterator[str]:
        with perdure.open(self._address) as store:
            session = store.session(SESSION)
            session.verify()
            records = list(session.records())
        positions = [record.position for record in records]
        if positions != list(range(1, len(positions) + 1)):
            yield "the positions have gaps"
        final = [
            Stored(record.position, record.content.message["id"], record.content.message["saw"])  # type: ignore[attr-defined]
            for record in records
            if record.kind == "message"
        ]
        done = list(operations(self._crew.folder))
        yield from faults(done, final)
        yield from self._also(done, records)
        versions = [
            (record.content.version, record.content.data["saw"])  # type: ignore[attr-defined]
            for record in records
            if record.kind == "value" and record.content.subject == SHARED_KEY
        ]
        for version, saw in versions:
            if saw != version - 1:
                yield f"version {version} of a value was made in view of {saw}"

    def _also(self, done: list[Done], records: list[Record]) -> Iterator[str]:
        """What else can be wrong, of this kind of history."""
        yield from commuting(done)


def commuting(done: list[Done]) -> Iterator[str]:
    """Notes, labels and values of one's own never conflict."""
    for one in done:
        if one.outcome == "conflict" and one.what not in ("append", "shared value"):
            yield f"a {one.what} of {one.who} conflicted"


def history(seed: int, kind: Kind, *, appends: int = APPENDS, blind: bool = False) -> Trial:
    """Make one history and judge it."""
    with fast_directory() as folder:
        made = History(seed, kind, folder, appends=appends, blind=blind)
        wrong = made.run()
    what = f"seed {seed}: {made.writers} writers, {made.readers} readers, {appends} appends"
    return Trial(what, "; ".join(wrong[:5]))


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    number = seed * 1_000_000
    while in_time(deadline):
        number += 1
        yield history(number, kind)


SAYS = "at most one successor of each version, stale writers rejected, reads linearisable (P9)"
PROMISES = [Promise("P8", SAYS, 200, partial(trials, kind), kind.name) for kind in KINDS]
