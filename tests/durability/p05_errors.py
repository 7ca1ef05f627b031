"""P5: any I/O call fails in any way; the error is told, nothing is half written, and life goes on.

An agent talks to a store whose disk spoils one call, once or until somebody has noticed. Every
failure must be an UnavailableError; called again with the same ids, everything must be stored once.
All calls are recorded, so that the power can fail in hindsight: at each moment that matters, what
was acknowledged must have been on disk. After a failed sync the disk forgets what it was to sync
and claims success from then on, as kernels do.
"""

import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path

import perdure
from perdure.backends.sqlite import SqliteBackend
from tests.durability import limits, p01_power_loss, places, straced
from tests.durability.agent import Agent
from tests.durability.children import ledger_of
from tests.durability.disk import Disk, Done
from tests.durability.ledger import Event, Ledger, Witness
from tests.durability.promise import Promise, Trial, in_time
from tests.durability.spoiler import ERRORS, Fault, Spoiler
from tests.durability.vfs import tune, watching

LONG_RUN = 60.0  # Seconds; shorter runs are samples, for which strace is too slow.
CHECKPOINT_PAGES = 12  # Instead of 1000: the short talk shall see the log written back.
MARKS_MAX = 4  # Moments of one trial at which the power fails; each costs two openings.
STRACED_ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EINTR")

Log = list[Done | Event | str]


def talk(directory: Path, spoiler: Spoiler, log: Log) -> str:
    """Let an agent talk to a store in the presence of a fault; return what went wrong."""
    path = directory / "store.db"

    def report(event: Event) -> None:
        log.append(event)
        if spoiler.struck and event.what == "stored":
            log.append("acknowledged")

    with watching(spoiler) as vfs:

        def open_store() -> perdure.Store:
            backend = SqliteBackend(path, vfs=vfs.name, patience=0.05)
            tune(backend, wal_autocheckpoint=CHECKPOINT_PAGES)
            return perdure.open(Witness(backend, report))

        def raised() -> None:
            log.append("raised")
            spoiler.relent()

        failure = Agent(open_store, raised).run()
    log.append("closed")
    return failure


def try_fault(
    directory: Path, fault: Fault, draw: random.Random, spoiler: type[Spoiler] = Spoiler
) -> Trial:
    """Make one call fail, and check everything that may be found afterwards."""
    limits.clear(directory)
    log: Log = []
    failure = talk(directory, spoiler(fault, log.append), log)
    failure = failure or _judge_now(directory / "store.db", log)
    return Trial(str(fault), failure or _judge_marks(directory, log, draw))


def _judge_now(path: Path, log: Log) -> str:
    ledger = Ledger()
    for event in log:
        if isinstance(event, Event):
            ledger.note(event)
    with perdure.open(path) as store:
        return ledger.judge(store) or Agent.judge(store)


def _judge_marks(directory: Path, log: Log, draw: random.Random) -> str:
    """Fail the power in hindsight: when an error was raised, and after what was stored then."""
    disk, ledger = Disk(), Ledger()
    marks = 0
    for event in log:
        if isinstance(event, Done):
            disk.apply(event)
        elif isinstance(event, Event):
            ledger.note(event)
        elif marks < MARKS_MAX or event == "closed":
            marks += 1
            for how, crash in (("drop", disk.drop()), ("keep", disk.keep())):
                failure = p01_power_loss.judge(directory, crash, ledger, draw)
                if failure:
                    return f"power loss ({how}) at mark {marks} ({event}): {failure}"
    return ""


def faults(directory: Path) -> list[Fault]:
    """Return every call of a talk without faults, with every error, once and lasting."""
    limits.clear(directory)
    log: Log = []
    spoiler = Spoiler(Fault(0, "", "EIO"), log.append)
    failure = talk(directory, spoiler, log)
    assert not failure, failure
    return [
        Fault(number, op, error, lasting=lasting)
        for number, op in enumerate(spoiler.seen, 1)
        for error in ERRORS[op]
        for lasting in (False, True)
    ]


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    draw = random.Random(seed)
    with places.fast_directory() as directory:
        yield from limits.trials(directory)
        kinds = [*[_in_process(directory, draw)] * 2]
        if deadline - time.monotonic() > LONG_RUN and straced.WORKS:
            kinds.append(_straced(directory, draw))
        for kind in itertools.cycle(kinds):
            if not in_time(deadline):
                return
            yield next(kind)


def _in_process(directory: Path, draw: random.Random) -> Iterator[Trial]:
    every = faults(directory)
    while True:
        for fault in draw.sample(every, len(every)):
            yield try_fault(directory, fault, draw)


def _straced(directory: Path, draw: random.Random) -> Iterator[Trial]:
    path = directory / "store.db"
    limits.clear(directory)
    counts = straced.counts(path, 20)
    every = [
        (name, number, error)
        for name, count in counts.items()
        for number in range(1, count + 1)
        for error in STRACED_ERRORS
    ]
    while True:
        for name, number, error in draw.sample(every, len(every)):
            limits.clear(directory)
            end = straced.run(path, 20, f"{name}:error={error}:when={number}")
            failure = limits.judge(path, ledger_of(end.said))
            if end.code and "perdure.errors.UnavailableError" not in end.last_words:
                failure = f"it ended with {end.code}: {end.last_words}"
            yield Trial(f"{error} from {name} {number}", failure)


PROMISE = Promise("P5", "I/O errors are told, and nothing is half written", 6_000, trials)
