"""A program for P29 whose timer raises inside a store, thousands of times.

It is called as `p29_storm address mode seed interrupts`; `mode` is one of `MODES`.

A real timer (SIGALRM) calls a handler that raises at random moments, but only while code of perdure
is running: there it may be anywhere, in a driver or the standard library too.

- `sync`: in blocking code.
- `loop`: in one event loop, which nothing ends; so every call must end in it. The loop's own code
  is spared, because asyncio loses callbacks when it is interrupted there.
- `loops`: in event loops of `asyncio.run`, which Ctrl-C or an exit ends now and then.
- `dead`: anywhere in an event loop, which is then closed as it is, with its tasks in the middle of
  their work. The store is used in the next one.

When all interrupts have come, the program says so on its standard output and keeps its store open.
Who judges it then looks at the store from another process, writes a line to this one, and reads its
report: what was acknowledged, how many interrupts came where, and which descriptors are left. An
action that hangs ends the program with the stacks of its tasks and threads.
"""

import asyncio
import collections
import contextlib
import faulthandler
import gc
import inspect
import json
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import perdure
from perdure.errors import ConflictError, FencedError, LeaseHeldError, UnavailableError

PATIENCE = 20.0  # Seconds that one action may take; without interrupts it takes milliseconds.
SHORTEST, LONGEST = 0.00005, 0.005  # Seconds between two interrupts.
SESSIONS = 3
SHARED = "shared"
LEASED = "leased"
OVER = "over"
CALLERS = ("append", "fresh", "listed")  # Coroutines here that await perdure.
HERE = str(Path(perdure.__file__).parent)
LOOP = str(Path(asyncio.__file__).parent)
MODES = ("sync", "loop", "loops", "dead")
TASKS = 6


class TimeLimit(Exception):  # noqa: N818 - as Celery's SoftTimeLimitExceeded
    """What a task queue's time limit raises."""


class Stop(BaseException):
    """What a test runner's timeout raises."""


class ControlC(KeyboardInterrupt):
    """Ctrl-C."""


class Exit(SystemExit):
    """What a handler that calls sys.exit raises."""


INTERRUPTS = (TimeLimit, Stop, ControlC, Exit)
EXPECTED = (*INTERRUPTS, ConflictError, UnavailableError)


class Storm:
    """Raises from a timer while code of perdure is running."""

    def __init__(self, seed: int, most: int, mode: str) -> None:
        self._draw = random.Random(seed)
        self._most = most
        self._mode = mode
        # The share of interrupts that end an event loop.
        self._ending = {"sync": 0.5, "loop": 0.0, "loops": 0.02, "dead": 1.0}[mode]
        self.places: collections.Counter[str] = collections.Counter()
        self.count = 0
        self.sigint = False
        """Whether to send SIGINT, for whoever handles that, instead of raising."""

    @property
    def is_over(self) -> bool:
        return self.count >= self._most

    def begin(self) -> None:
        signal.signal(signal.SIGALRM, self._strike)
        self._set()

    def end(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)

    def _set(self) -> None:
        seconds = SHORTEST * (LONGEST / SHORTEST) ** self._draw.random()
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def _strike(self, _: int, frame: FrameType | None) -> None:
        place = None if self.is_over else self._place(frame)
        self._set()
        ends = self._draw.random() < self._ending
        if place is None or (place == "select" and not ends):
            return
        self.count += 1
        self.places[place] += 1
        if self.sigint:
            signal.raise_signal(signal.SIGINT)
        else:
            raise self._draw.choice((ControlC, Exit) if ends else (TimeLimit, Stop))

    def _place(self, frame: FrameType | None) -> str | None:
        """Return the innermost module of perdure that is running, or what else to interrupt."""
        assert frame is not None
        code = frame.f_code
        in_loop = asyncio._get_running_loop() is not None
        if self._mode == "dead":
            return (module_of(frame) or Path(code.co_filename).stem) if in_loop else None
        if in_loop:
            if code.co_filename.startswith(LOOP):
                return None
            if code.co_filename.endswith("selectors.py"):
                return code.co_name if code.co_name == "select" else None
            if code.co_name in CALLERS and code.co_filename == __file__:
                return "caller"
        return module_of(frame)


def module_of(frame: FrameType | None) -> str | None:
    """Return the innermost module of perdure that is running, None if there is none."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(HERE):
            return name[len(HERE) + 1 : -3]
        frame = frame.f_back
    return None


class Work(ABC):
    """Draws actions, repeats what was interrupted, and keeps account."""

    def __init__(self, address: str, seed: int, storm: Storm) -> None:
        self.address = address
        self.draw = random.Random(seed)
        self.storm = storm
        self.acked: list[tuple[str, str]] = []
        self.wrong: list[str] = []
        self.kept: list[BaseException] = []
        """Exceptions that somebody keeps: their tracebacks keep what the frames held."""
        self._number = 0

    @abstractmethod
    def run(self) -> None:
        """Work until the storm is over."""

    @abstractmethod
    def finish(self) -> None:
        """Use everything once more, and close it."""

    def text(self) -> str:
        self._number += 1
        return f"{os.getpid()}-{self._number}"

    def interrupted(self, error: BaseException) -> None:
        """Note an error, which an interrupt must have caused, or another writer."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, EXPECTED):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            self.wrong.append("".join(traceback.format_exception(error)[-3000:]))
        self.kept = [*self.kept[-2:], error]

    def watched(self) -> None:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)


class SyncWork(Work):
    """Blocking sessions, in the main thread and in one more."""

    def run(self) -> None:
        self.store = perdure.open(self.address)
        self.sessions = [self.store.session(f"s{number}") for number in range(SESSIONS)]
        self.shared = self.store.session(SHARED)
        actions = [*self.actions()]
        for action in actions:  # Once in peace: imports are done, streams exist.
            action()
        ended = False

        def beside() -> None:
            own = self.store.session("beside")
            while not ended:
                self.say(own)
                self.say(self.shared)
                time.sleep(0.001)

        helper = threading.Thread(target=beside, daemon=True)
        helper.start()
        self.storm.begin()
        while not self.storm.is_over:
            self.watched()
            action = self.draw.choice(actions)
            try:
                action()
            except BaseException as error:  # noqa: BLE001 - that is what it is about
                self.interrupted(error)
                try:  # As many do: at once, while the error is being handled.
                    self.say(self.draw.choice(self.sessions))
                except BaseException as again:  # noqa: BLE001
                    self.interrupted(again)
        self.storm.end()
        self.watched()
        ended = True
        helper.join(PATIENCE)
        if helper.is_alive():
            self.wrong.append("the other thread hangs")
            faulthandler.dump_traceback()

    def one(self) -> perdure.Session:
        return self.draw.choice(self.sessions)

    def say(self, session: perdure.Session) -> None:
        text = self.text()
        while True:
            try:
                session.append({"role": "user", "content": text}, id=text)
                break
            except (ConflictError, UnavailableError):
                continue
        self.acked.append((session.id, text))

    def actions(self) -> Iterator[Callable[[], object]]:
        one = self.one
        for _ in range(8):
            yield lambda: self.say(one())
        yield lambda: self.say(self.shared)
        yield lambda: self.say(self.store.session(one().id))
        yield lambda: self.say(self.store.session(f"new {self.text()}"))
        yield lambda: one().messages(last=3)
        yield lambda: self.store.session(one().id).verify()
        yield lambda: [*self.store.sessions()]
        yield lambda: [*one().records(after=max(one().position - 5, 0))]
        yield lambda: [*self.shared.watch(after=self.shared.position, timeout=0.003)]
        yield lambda: self.values(one())
        yield self.lease
        yield self.turn
        yield self.open_again

    def open_again(self) -> None:
        store = perdure.open(self.address)
        self.say(store.session(self.one().id))
        if self.draw.random() < 0.5:  # Else nobody closes it.
            store.close()

    def values(self, session: perdure.Session) -> None:
        value = self.text()
        session.set("value", value)
        session.get("value")

    def lease(self) -> None:
        with contextlib.suppress(LeaseHeldError, FencedError, ConflictError):
            session = self.store.session(LEASED)
            try:
                with session.lease(ttl=1.0, timeout=0.0):
                    session.note("It is mine.")
            finally:
                session.close()

    def turn(self) -> None:
        with contextlib.suppress(ConflictError):
            session = self.store.session("turning")
            with session.turn({"role": "user", "content": self.text()}) as turn:
                turn.append({"role": "assistant", "content": self.text()})

    def finish(self) -> None:
        for session in (*self.sessions, self.shared):
            self.say(session)
            session.verify()
        self.say(self.store.session(f"new {self.text()}"))
        self.store.close()
        del self.store, self.sessions, self.shared


class AsyncWork(Work):
    """Sessions in event loops, one loop after the other, as each is interrupted."""

    store: perdure.AsyncStore | None = None

    def __init__(self, address: str, seed: int, storm: Storm, mode: str) -> None:
        super().__init__(address, seed, storm)
        self.mode = mode

    def run(self) -> None:
        threading.Thread(target=self.print_tasks, daemon=True).start()
        asyncio.run(self.peace())
        self.storm.begin()
        while not self.storm.is_over:
            self.watched()
            if self.draw.random() < 0.1:
                self.store = None  # As if nobody had closed it.
            self.storm.sigint = self.mode == "loops" and self.draw.random() < 0.2
            try:
                if self.mode == "dead":
                    self.run_and_close()
                else:
                    asyncio.run(self.rounds())
            except BaseException as error:  # noqa: BLE001 - that is what it is about
                if not (self.storm.sigint and isinstance(error, KeyboardInterrupt)):
                    self.interrupted(error)
        self.storm.end()
        self.watched()

    def watched(self) -> None:
        super().watched()
        self.seen = time.monotonic()

    def print_tasks(self) -> None:
        """Print where each task waits, shortly before the program is ended because it hangs."""
        self.seen = time.monotonic()
        while time.monotonic() < self.seen + PATIENCE - 3:
            time.sleep(0.5)
        for task in [each for each in gc.get_objects() if isinstance(each, asyncio.Task)]:
            if not task.done():
                print(task.get_name(), *waits_of(task.get_coro()), sep=" / ", file=sys.stderr)

    def run_and_close(self) -> None:
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self.rounds())
        finally:
            loop.close()

    def opened(self) -> perdure.AsyncStore:
        if self.store is None:
            self.store = perdure.open_async(self.address)
        return self.store

    async def peace(self) -> None:
        for action in self.actions(await self.handles()):
            await action()

    async def handles(self) -> list[perdure.AsyncSession]:
        store = self.opened()
        return [await store.session(name) for name in (SHARED, *(f"s{n}" for n in range(SESSIONS)))]

    async def rounds(self) -> None:
        while True:
            try:
                actions = [*self.actions(await self.handles())]
                break
            except (ConflictError, UnavailableError, TimeLimit, Stop) as error:
                self.interrupted(error)

        async def go() -> None:
            while not self.storm.is_over:
                self.watched()
                try:
                    await self.draw.choice(actions)()
                except (ConflictError, UnavailableError):
                    continue
                except (TimeLimit, Stop) as error:  # Asyncio lets a task catch these.
                    self.interrupted(error)

        await asyncio.gather(*(go() for _ in range(TASKS)))

    async def say(self, session: perdure.AsyncSession) -> None:
        text = self.text()
        while True:
            try:
                await append(session, text)
                break
            except (ConflictError, UnavailableError):
                continue
        self.acked.append((session.id, text))

    def actions(self, sessions: list[perdure.AsyncSession]) -> Iterator[Callable[[], Any]]:
        store = self.opened()

        def one() -> perdure.AsyncSession:
            return self.draw.choice(sessions)

        async def fresh(name: str) -> None:
            await self.say(await store.session(name))

        async def together() -> None:
            await asyncio.gather(*map(self.say, sessions))

        for _ in range(8):
            yield lambda: self.say(one())
        yield together
        yield lambda: fresh(SHARED)
        yield lambda: fresh(f"new {self.text()}")
        yield lambda: one().messages(last=3)
        yield lambda: one().verify()
        yield lambda: listed(store.sessions())
        yield lambda: listed(one().watch(after=one().position, timeout=0.003))
        yield lambda: one().set("value", self.text())
        yield self.lease
        yield self.turn

    async def lease(self) -> None:
        with contextlib.suppress(LeaseHeldError, FencedError, ConflictError):
            session = await self.opened().session(LEASED)
            try:
                async with session.lease(ttl=1.0, timeout=0.0):
                    await session.note("It is mine.")
            finally:
                await session.close()

    async def turn(self) -> None:
        with contextlib.suppress(ConflictError):
            session = await self.opened().session("turning")
            async with session.turn({"role": "user", "content": self.text()}) as turn:
                await turn.append({"role": "assistant", "content": self.text()})

    def finish(self) -> None:
        asyncio.run(self._finish())
        self.store = None

    async def _finish(self) -> None:
        for session in await self.handles():
            await self.say(session)
            await session.verify()
        await self.opened().close()


def waits_of(coroutine: Any) -> Iterator[str]:
    """Yield where a coroutine waits, and what it waits for."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        yield f"{frame.f_code.co_qualname}:{frame.f_lineno}" if frame else repr(coroutine)
        inner = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
        if type(inner).__name__ == "async_generator_asend":
            inner = next(filter(inspect.isasyncgen, gc.get_referents(inner)), None)
        coroutine = inner


async def append(session: perdure.AsyncSession, text: str) -> None:
    await session.append({"role": "user", "content": text}, id=text)


async def listed(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


def descriptors() -> list[str]:
    """Return what this process has open."""
    gc.collect()
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(link.readlink()))
    return sorted(found)


def holders() -> Iterator[str]:
    """Yield what refers to connections of a driver."""
    for each in gc.get_objects():
        if type(each).__name__ in ("AsyncConnection", "Connection", "PGconn", "PGcancelConn"):
            kinds = [repr(other)[:200] for other in gc.get_referrers(each)]
            yield f"{each!r} is held by {kinds}"


def main() -> None:
    address, mode, seed, most = sys.argv[1:]
    faulthandler.enable()
    if address.startswith("postgres"):
        from perdure.backends.postgres import notify

        notify.IDLE_TIMEOUT = 0.5  # Of a store that nobody closes. The end is waited for below.
    for name in ("perdure", "asyncio", "psycopg"):  # Much is worth a word here.
        logging.getLogger(name).addHandler(logging.NullHandler())
        logging.getLogger(name).propagate = False
    before = descriptors()
    storm = Storm(int(seed), int(most), mode)
    work: Work = (
        SyncWork(address, int(seed), storm)
        if mode == "sync"
        else AsyncWork(address, int(seed), storm, mode)
    )
    work.run()
    print(OVER, flush=True)
    faulthandler.cancel_dump_traceback_later()
    sys.stdin.readline()
    work.watched()
    work.finish()
    work.kept = []
    while any(thread.is_alive() for thread in threading.enumerate() if "perdure" in thread.name):
        gc.collect()
        time.sleep(0.01)  # They end by themselves, soon.
    faulthandler.cancel_dump_traceback_later()
    left = [*(collections.Counter(descriptors()) - collections.Counter(before)).elements()]
    if any(each.startswith("socket") for each in left):
        left += holders()
    print(
        json.dumps(
            {
                "acked": work.acked,
                "wrong": work.wrong,
                "count": storm.count,
                "places": storm.places,
                "left": left,
                "threads": sorted(t.name for t in threading.enumerate() if t.is_alive()),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
