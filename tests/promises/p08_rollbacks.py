"""P8 with stores that are put back: live handles meet another history than the one they read.

Two handles write a random history. Then the store is put back to an earlier copy, as a restore or a
failover does, another worker appends a few records or deletes the session, and the two go on
without knowing. Whether a handle's newest record is still stored is looked up in the store itself:
where it is not, every call that asks the store must be refused and change nothing. In the end the
handles accept what there is, write again, and the session verifies for everybody.
"""

import asyncio
import contextlib
import itertools
import random
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apsw

import perdure
from perdure.backends.digests import digest_of
from perdure.backends.files.backend import FilesBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import Append, Backend, Entry, Outcome
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.errors import (
    ConflictError,
    DamagedError,
    HistoryReplacedError,
    NotFoundError,
    PerdureError,
    UnavailableError,
)
from perdure.testing.faults import BackendWrapper
from tests.backends.postgres.server_keeper import running
from tests.promises.places import fast_directory
from tests.promises.promise import Promise, Trial, in_time

SESSION, OTHER = "shared", "bystander"

LONG = {"text": "long enough for a delta " * 20, "steps": [1, 2, 3]}


class Place(ABC):
    """A store that can be copied, and put back to a copy under those who have it open."""

    name: str

    @abstractmethod
    def open(self) -> Backend: ...

    @abstractmethod
    def copy(self) -> object: ...

    @abstractmethod
    def put_back(self, copied: Any) -> None: ...

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release what it holds."""


class SqlitePlace(Place):
    """The whole file, with the program that users restore it with while it is open."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._file = folder / "store.db"
        self._copies = (folder / f"copy{number}.db" for number in itertools.count())

    def open(self) -> Backend:
        return SqliteBackend(self._file)

    def copy(self) -> Path:
        target = next(self._copies)
        _back_up(self._file, target)
        return target

    def put_back(self, copied: Path) -> None:
        _back_up(copied, self._file)


def _back_up(source: Path, target: Path) -> None:
    """As `.backup` and `.restore` of the `sqlite3` shell do."""
    old, new = apsw.Connection(str(source)), apsw.Connection(str(target))
    with contextlib.closing(old), contextlib.closing(new), new.backup("main", old, "main") as work:
        work.step()


class FilesPlace(Place):
    """The whole directory, or the file of one session alone."""

    name = "files"

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "store"
        self._copies = (folder / f"copy{number}" for number in itertools.count())
        self._draw = random.Random(str(next(self._copies)))

    def open(self) -> Backend:
        return FilesBackend(self._folder)

    def copy(self) -> Path:
        target = next(self._copies)
        shutil.copytree(self._folder, target)
        return target

    def put_back(self, copied: Path) -> None:
        files = [*copied.glob("*/*.jsonl")]
        if len(files) == len([*self._folder.glob("*/*.jsonl")]) and self._draw.random() < 0.5:
            for file in files:
                if SESSION.encode() in file.read_bytes()[:4096]:
                    shutil.copy(file, self._folder / file.relative_to(copied))
            return
        shutil.rmtree(self._folder)
        shutil.copytree(copied, self._folder)


class PostgresPlace(Place):
    """The rows of one session, in one transaction."""

    name = "postgres"
    _numbers = itertools.count(1)

    def __init__(self, url: str) -> None:
        import psycopg

        self._tenant = f"rollback{next(self._numbers)}"
        self._address = f"{url}?tenant={self._tenant}&connections=2"
        self._database = psycopg.connect(url)

    def open(self) -> Backend:
        from perdure.backends.postgres.backend import PostgresBackend

        return PostgresBackend(self._address)

    def copy(self) -> dict[str, list[Any]]:
        with self._database.transaction():
            return {
                table: self._database.execute(
                    f"select * from perdure.{table} where tenant = %s",  # noqa: S608
                    (self._tenant,),
                ).fetchall()
                for table in ("head", "entry", "label")
            }

    def put_back(self, copied: dict[str, list[Any]]) -> None:
        with self._database.transaction():
            for table, rows in copied.items():
                gone = f"delete from perdure.{table} where tenant = %s"  # noqa: S608
                self._database.execute(gone, (self._tenant,))
                for row in rows:
                    values = ", ".join(["%s"] * len(row))
                    text = f"insert into perdure.{table} values ({values})"  # noqa: S608
                    self._database.execute(text, row)

    def close(self) -> None:
        self._database.close()


class Worker(BackendWrapper):
    """A store as one worker has it: it may lose an answer, and a blind one compares nothing."""

    def __init__(self, backend: Backend, *, blind: bool) -> None:
        super().__init__(backend)
        self.losing = False
        self._blind = blind

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        if self._blind:
            appends = [self._as_it_was(append) for append in appends]
        outcomes = super().append(appends)
        if self.losing:
            raise UnavailableError(self.name, "the answer was lost")
        return outcomes

    def _as_it_was(self, append: Append) -> Append:
        """Link to whatever is there, as if only positions counted."""
        at = append.entries[0].position - 1
        before = [*self.backend.read(append.stream, after=at - 1, limit=1)] if at else []
        same = bool(before) and before[0].position == at
        return append._replace(previous=digest_of(before[0].header)) if same else append


class Live:
    """A live handle, blocking or in an event loop: the same calls by the same names."""

    def __init__(self, place: Place, *, blind: bool, is_async: bool) -> None:
        self.worker = Worker(place.open(), blind=blind)
        self._loop = asyncio.new_event_loop() if is_async else None
        self._store: Any
        if self._loop is None:
            self._store = perdure.open(self.worker)
        else:
            self._store = perdure.open_async(ThreadedBackend(self.worker))
        self.session = self.wait(self._store.session(SESSION))

    def wait(self, result: Any) -> Any:
        if self._loop is not None and asyncio.iscoroutine(result):
            return self._loop.run_until_complete(result)
        return result

    def call(self, name: str, *args: object, **options: object) -> Any:
        return self.wait(getattr(self.session, name)(*args, **options))

    @property
    def tip(self) -> tuple[int, str | None]:
        tip = self.session._replica.tip
        return tip.position, tip.digest

    def close(self) -> None:
        with contextlib.suppress(DamagedError):
            self.wait(self._store.close())
        if self._loop is not None:
            self._loop.close()


CALLS: dict[str, Callable[[Any, str], Any]] = {
    "append": lambda session, text: session.append({"role": "user", "content": text}),
    "set": lambda session, text: session.set("plan", {**LONG, "by": text}),
    "note": lambda session, text: session.note(text),
    "label": lambda session, text: session.label(text.replace(" ", "-"), remove=("label",)),
    "refresh": lambda session, _: session.refresh(),
    "messages": lambda session, _: session.messages(),
    "window": lambda session, _: session.messages(max_tokens=500, format="openai.chat"),
    "earlier": lambda session, _: session.values.history("plan"),
    "verify": lambda session, _: session.verify(),
}
WRITES = ("append", "append", "append", "set", "set", "note", "label")
READS = ("refresh", "messages", "window", "earlier", "verify")


class Rollback:
    """One trial."""

    def __init__(self, seed: int, place: Place, *, blind: bool) -> None:
        self._draw = random.Random(seed)
        self._place = place
        self._observer = place.open()
        self._store = perdure.open(self._observer)
        self._blind = blind
        self._texts = itertools.count(1)
        self._wrong: list[str] = []
        self._acknowledged: list[str] = []
        self._doubtful: set[str] = set()
        self.what = ""
        self.counts: dict[str, int] = {}

    def run(self) -> list[str]:
        draw = self._draw
        copies = [self._place.copy()]
        handles = [
            Live(self._place, blind=self._blind, is_async=draw.random() < 0.3) for _ in range(2)
        ]
        try:
            copies += self._write_history(handles)
            copied = draw.choice(copies[:-1] if len(copies) > 1 else copies)
            if draw.random() < 0.3:
                self._lose_an_answer(handles[0])
            self._place.put_back(copied)
            self._acknowledged.clear()  # What was written since the copy is gone.
            more = self._continue_otherwise(max(handle.tip[0] for handle in handles))
            self.what = f"{len(copies)} copies, {more} by another worker"
            for handle in handles:
                self._go_on(handle)
            for handle in handles:
                self._accept(handle)
        finally:
            for handle in handles:
                handle.close()
        self._judge()
        self._store.close()
        self._place.close()
        return self._wrong

    def _write_history(self, handles: list[Live]) -> list[object]:
        copies = []
        for _ in range(self._draw.randint(1, 12)):
            self._write(self._draw.choice(handles))
            if self._draw.random() < 0.5:
                copies.append(self._place.copy())
        if self._draw.random() < 0.3:
            self._store.session(OTHER).append({"role": "user", "content": "untouched"})
        return copies

    def _write(self, handle: Live, what: str = "") -> None:
        what = what or self._draw.choice(WRITES)
        with contextlib.suppress(ConflictError):
            self._do(handle, what)

    def _do(self, handle: Live, what: str) -> None:
        """Carry out one call; note what it acknowledged."""
        text = f"{what} {next(self._texts)}"
        try:
            handle.wait(CALLS[what](handle.session, text))
        except UnavailableError:
            self._doubtful.add(text)
            raise
        if what == "append":
            self._acknowledged.append(text)

    def _lose_an_answer(self, handle: Live) -> None:
        handle.worker.losing = True
        with contextlib.suppress(UnavailableError, ConflictError):
            self._do(handle, "append")
        handle.worker.losing = False

    def _continue_otherwise(self, longest: int) -> str:
        """Another worker appends: nothing, a little, up to the same length, or more."""
        session = self._store.session(SESSION)
        missing = longest - session.position
        number = self._draw.choice([0, 0, 1, missing, missing, missing + 1, missing + 3])
        for _ in range(max(number, 0)):
            text = f"theirs {next(self._texts)}"
            if self._draw.random() < 0.3:
                session.set("plan", {**LONG, "by": text})
            else:
                session.append({"role": "user", "content": text})
                self._acknowledged.append(text)
        if session.position and self._draw.random() < 0.1:
            self._store.delete(SESSION)
            self._acknowledged.clear()
            return f"{number} and a deletion"
        return str(number)

    def _stored(self) -> list[Entry]:
        return [*self._observer.read(SESSION)]

    def _go_on(self, handle: Live) -> None:
        for _ in range(self._draw.randint(1, 3)):
            what = self._draw.choice((*WRITES, *READS))
            before, (position, digest) = self._stored(), handle.tip
            tips = {(entry.last, digest_of(entry.header)) for entry in before}
            is_there = not position or (position, digest) in tips
            # Without messages nothing is read; unseen records are a conflict by themselves.
            silent = what == "messages" and not len(handle.session)
            excused = what == "earlier" or bool(handle.session._replica.unseen.contents)
            excused = excused or bool(before and b'"deleted"' in before[0].header)
            outcome = self._outcome(handle, what)
            expected = {"done", "told"} if is_there else {"refused"}
            expected |= {"done"} if silent else set()
            expected |= {"told"} if excused else set()
            self.counts[outcome] = self.counts.get(outcome, 0) + 1
            if outcome not in expected:
                there = "is there" if is_there else "is not there"
                self._wrong.append(f"{what}: {outcome}, and {position} {there}")
            if not is_there and self._stored() != before:
                self._wrong.append(f"{what} changed the store, though {position} is not there")

    def _outcome(self, handle: Live, what: str) -> str:
        try:
            self._do(handle, what)
        except HistoryReplacedError:
            return "refused"
        except (ConflictError, NotFoundError):
            return "told"
        except PerdureError as error:
            return f"{type(error).__name__}: {error}"
        return "done"

    def _accept(self, handle: Live) -> None:
        try:
            handle.call("refresh", accept_rollback=True)
            session = self._store.session(SESSION)
            if session.messages() != handle.call("messages"):
                self._wrong.append("the accepted messages are not those of the store")
            if session.get("plan") != handle.call("get", "plan"):
                self._wrong.append("the accepted value is not that of the store")
            for what in ("append", "set"):
                self._do(handle, what)
        except NotFoundError:
            return  # Another worker has deleted it.
        except PerdureError as error:
            self._wrong.append(f"accepting raised {type(error).__name__}: {error}")

    def _judge(self) -> None:
        try:
            for info in self._store.sessions():
                self._store.session(info.id).verify()
            session = self._store.session(SESSION)
            texts = [message["content"] for message in session.messages()]
            plan = session.get("plan")
        except PerdureError as error:
            self._wrong.append(f"in the end: {type(error).__name__}: {error}")
            return
        for text in self._acknowledged:
            if texts.count(text) != 1:
                self._wrong.append(
                    f"{text!r} was acknowledged and is there {texts.count(text)} times"
                )
        for text in self._doubtful:
            if texts.count(text) > 1:
                self._wrong.append(f"{text!r} is there {texts.count(text)} times")
        if plan is not None and set(plan) != {*LONG, "by"}:
            self._wrong.append("the value is a mixture")


def rollback(seed: int, place: Place, *, blind: bool = False) -> tuple[Trial, dict[str, int]]:
    """Put a store back under live handles, and judge what they do."""
    made = Rollback(seed, place, blind=blind)
    wrong = made.run()
    return Trial(f"seed {seed}: {made.what}", "; ".join(wrong[:5])), made.counts


PLACES: dict[str, Callable[[Path], Place]] = {"sqlite": SqlitePlace, "files": FilesPlace}


def in_folder(name: str, seed: int, *, blind: bool = False) -> tuple[Trial, dict[str, int]]:
    with fast_directory() as folder:
        return rollback(seed, PLACES[name](folder), blind=blind)


def trials(name: str, seed: int, deadline: float) -> Iterator[Trial]:
    for number in itertools.count(seed * 1_000_000):
        if not in_time(deadline):
            return
        yield in_folder(name, number)[0]


def trials_on_postgres(seed: int, deadline: float) -> Iterator[Trial]:
    with running() as server:
        for number in itertools.count(seed * 1_000_000):
            if not in_time(deadline):
                return
            yield rollback(number, PostgresPlace(server.url))[0]


SAYS = "nothing is acknowledged on a history that was replaced, and everybody can go on"
PROMISES = [
    *(Promise("P8-rollbacks", SAYS, 1_000, partial(trials, name), name) for name in PLACES),
    Promise("P8-rollbacks", SAYS, 1_000, trials_on_postgres, "postgres"),
]
