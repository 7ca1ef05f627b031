"""P29: forks, threads, cancelled tasks and interrupts lose nothing, repeat nothing, hang nothing.

Every writer says each thing under an id of its own until it is acknowledged, as an application
would after a lost answer. Afterwards all that was acknowledged must be there once, whatever was not
at most once, and every session must verify. A watchdog ends a trial that hangs.
"""

import asyncio
import collections
import faulthandler
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import perdure
from perdure.backends.protocol import Append, Backend, Outcome
from perdure.errors import ConflictError, PerdureError, UnavailableError
from perdure.testing import faults
from tests.promises import p29_fork, p29_tasks, places
from tests.promises.kinds import KINDS, Kind
from tests.promises.promise import Promise, Trial, in_time

ROOT = Path(__file__).parents[2]
WATCHDOG = 250.0  # Seconds: no trial takes a tenth of it, even on a busy machine.
THREADS = 32
SHARED = "shared"

Said = tuple[str, str]
"""A session and what was said in it."""


def say(session: perdure.Session, text: str) -> None:
    """Append a text once, however often it takes.

    A session with one writer never conflicts, not even with a write of its own that was in doubt.
    """
    others = ConflictError if session.id == SHARED else UnavailableError
    while True:
        try:
            session.append({"role": "user", "content": text}, id=text)
        except (others, UnavailableError):
            continue
        return


def missing_or_repeated(address: str, acked: Sequence[Said]) -> list[str]:
    """Return what is wrong with a store in which these texts were acknowledged."""
    wrong = []
    wanted = collections.defaultdict(set)
    for name, text in acked:
        wanted[name].add(text)
    with perdure.open(address) as store:
        for name in {head.id for head in store.sessions()} | set(wanted):
            session = store.session(name)
            session.verify()
            texts = [message["content"] for message in session.messages()]
            if lost := wanted[name] - set(texts):
                wrong.append(f"{name}: lost {sorted(lost)[:5]}")
            if len(texts) != len(set(texts)):
                wrong.append(f"{name}: repeated")
            say(session, "still usable")
    return wrong


def in_threads(work: Sequence[Callable[[], None]]) -> list[str]:
    """Run all at once; return what was raised, and a word if they do not come to an end."""
    raised: list[str] = []

    def guarded(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as error:  # noqa: BLE001 - a thread's error would be lost
            raised.append(repr(error))

    threads = [threading.Thread(target=guarded, args=(one,), daemon=True) for one in work]
    deadline = time.monotonic() + WATCHDOG
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    if any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback(all_threads=True)
        raised.append("deadlock: see the stacks above")
    return raised


def thread_trial(seed: int, kind: Kind, directory: Path) -> Trial:
    """Threads on one store, each with a session of its own and all with one between them."""
    draw = random.Random(seed)
    acked: list[Said] = []
    address = kind.address(directory)
    with perdure.open(address) as store:
        shared = store.session(SHARED)

        def work(number: int, appends: int) -> None:
            own = store.session(f"own-{number}")
            for count in range(appends):
                text = f"{number}-{count}"
                for session in (own, shared):
                    say(session, text)
                    acked.append((session.id, text))
                own.set("count", count)
                assert own.get("count") == count, "a thread reads its own writes"
                assert len(own.messages(last=1)) == 1, "and its last message"

        counts = [draw.randint(1, 3) for _ in range(THREADS)]
        wrong = in_threads([partial(work, *job) for job in enumerate(counts)])
    return Trial(
        f"{THREADS} threads, seed {seed}", "; ".join(wrong or missing_or_repeated(address, acked))
    )


class Interrupted(faults.BackendWrapper):
    """Raises what ctrl-C or sys.exit would, from the nth append, before or after it was stored."""

    def __init__(
        self, backend: Backend, *, nth: int, error: type[BaseException], stored: bool
    ) -> None:
        super().__init__(backend)
        self._nth = nth
        self._error = error
        self._stored = stored
        self.calls = 0

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """As the backend's, but once."""
        self.calls += 1
        time.sleep(0.001)  # Long enough for others to queue behind this one.
        if self.calls != self._nth:
            return self.backend.append(appends)
        if self._stored:
            self.backend.append(appends)
        raise self._error


def interrupt_trial(seed: int, kind: Kind, directory: Path) -> Trial:
    """The thread that commits for others is interrupted; the others learn it by a typed error."""
    draw = random.Random(seed)
    error = draw.choice((KeyboardInterrupt, SystemExit))
    nth, stored = draw.randint(1, 12), draw.random() < 0.5
    backend = Interrupted(kind.opener(directory)(), nth=nth, error=error, stored=stored)
    acked: list[Said] = []
    interrupts: list[str] = []
    store = perdure.open(backend)
    shared = store.session(SHARED)

    def work(number: int) -> None:
        own = store.session(f"own-{number}")
        for count in range(3):
            for session in (own, shared):
                text = f"{number}-{count}"
                try:
                    say(session, text)
                except error:
                    interrupts.append(text)
                    say(session, text)
                acked.append((session.id, text))

    wrong = in_threads([partial(work, number) for number in range(8)])
    extra = 8
    while backend.calls < nth and not wrong:  # They may have shared their commits.
        wrong += in_threads([partial(work, extra)])
        extra += 1
    store.close()
    if len(interrupts) != 1:
        wrong.append(f"{len(interrupts)} threads were interrupted")
    wrong += missing_or_repeated(kind.address(directory), acked)
    return Trial(f"{error.__name__} at append {backend._nth}, seed {seed}", "; ".join(wrong))


def task_trial(seed: int, kind: Kind, directory: Path) -> Trial:
    """Tasks on one loop, cancelled at an await that is drawn."""
    address = kind.address(directory)
    faulthandler.dump_traceback_later(WATCHDOG, exit=False)
    try:
        acked = asyncio.run(asyncio.wait_for(p29_tasks.use(address, seed), WATCHDOG))
        wrong = missing_or_repeated(address, acked)
    except TimeoutError:
        wrong = ["deadlock: see the stacks above"]
    except PerdureError as error:
        wrong = [f"raised {error!r}"]
    finally:
        faulthandler.cancel_dump_traceback_later()
    return Trial(f"{p29_tasks.TASKS} tasks, seed {seed}", "; ".join(wrong))


def fork_trial(seed: int, kind: Kind, directory: Path) -> Trial:
    """A process of its own forks, idle or with threads inside appends; all go on."""
    address = kind.address(directory)
    scenario = p29_fork.SCENARIOS[seed % len(p29_fork.SCENARIOS)]
    paths = os.pathsep.join(map(str, (ROOT, Path(perdure.__file__).parents[1])))
    # A warning about forking with threads is what Python 3.12 gives; here it is the very point.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-m", p29_fork.__name__]
    done = subprocess.run(
        [*command, scenario, address, str(directory), str(seed)],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )  # Its own watchdog ends it.
    wrong = [f"exit {done.returncode}: {done.stderr[-3000:]}"] if done.returncode else []
    acked = [
        (name, text)
        for file in directory.glob("acked-*")
        for name, text in (line.split("\t") for line in file.read_text().splitlines())
    ]
    if len(acked) < p29_fork.LEAST:
        wrong.append(f"only {len(acked)} acknowledged")
    return Trial(
        f"fork {scenario}, seed {seed}", "; ".join(wrong or missing_or_repeated(address, acked))
    )


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    """Yield trials of each sort in turn."""
    number = seed * 1_000_000
    while in_time(deadline):
        for attempt in (thread_trial, task_trial, interrupt_trial, fork_trial):
            with places.fast_directory() as directory:
                yield attempt(number, kind, directory)
        number += 1


SAYS = "Fork- and thread- and async-safe"
PROMISES = [Promise("P29", SAYS, 1_000, partial(trials, kind), kind.name) for kind in KINDS]
