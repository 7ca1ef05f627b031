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
from functools import partial
from pathlib import Path

import perdure
from tests.promises import limits, p01_power_loss, places, straced
from tests.promises.agent import Agent
from tests.promises.calls import Done
from tests.promises.children import ledger_of
from tests.promises.kinds import KINDS, Kind
from tests.promises.ledger import Event, Ledger, Witness
from tests.promises.promise import Promise, Trial, in_time
from tests.promises.spoiler import ERRORS, SPOILERS, Fault, Spoiler

LONG_RUN = 60.0  # Seconds; shorter runs are samples, for which strace is too slow.
PATIENCE = 0.05  # Seconds that a store waits for a lock.
CHECKPOINT_PAGES = 12  # Instead of 1000: the short talk shall see the log written back.
MARKS_MAX = 4  # Moments of one trial at which the power fails; each costs two openings.
STRACED_ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EINTR")

Log = list[Done | Event | str]


def talk(kind: Kind, directory: Path, spoiler: Spoiler, log: Log) -> str:
    """Let an agent talk to a new store in the presence of a fault; return what went wrong."""
    kind.clear(directory)

    def report(event: Event) -> None:
        log.append(event)
        if spoiler.struck and event.what == "stored":
            log.append("acknowledged")

    def raised() -> None:
        log.append("raised")
        spoiler.relent()

    with kind.watched(
        directory, spoiler, timeout=PATIENCE, checkpoint=CHECKPOINT_PAGES
    ) as open_backend:
        failure = Agent(lambda: perdure.open(Witness(open_backend(), report)), raised).run()
    log.append("closed")
    return failure


def try_fault(
    kind: Kind,
    directory: Path,
    fault: Fault,
    draw: random.Random,
    spoiler: type[Spoiler] | None = None,
) -> Trial:
    """Make one call fail, and check everything that may be found afterwards."""
    log: Log = []
    spoiling = (spoiler or SPOILERS[kind.name])(fault, log.append)
    failure = talk(kind, directory, spoiling, log)
    failure = failure or _judge_now(kind.address(directory), log)
    return Trial(str(fault), failure or _judge_marks(kind, directory, log, draw))


def _judge_now(address: str, log: Log) -> str:
    ledger = Ledger()
    for event in log:
        if isinstance(event, Event):
            ledger.note(event)
    with perdure.open(address) as store:
        return ledger.judge(store) or Agent.judge(store)


def _judge_marks(kind: Kind, directory: Path, log: Log, draw: random.Random) -> str:
    """Fail the power in hindsight: when an error was raised, and after what was stored then."""
    disk, ledger = kind.disk(), Ledger()
    marks = 0
    for event in log:
        if isinstance(event, Done):
            disk.apply(event)
        elif isinstance(event, Event):
            ledger.note(event)
        elif marks < MARKS_MAX or event == "closed":
            marks += 1
            for how, crash in (("drop", disk.drop()), ("keep", disk.keep())):
                failure = p01_power_loss.judge(kind, directory, crash, ledger, draw)
                if failure:
                    return f"power loss ({how}) at mark {marks} ({event}): {failure}"
    return ""


def faults(kind: Kind, directory: Path) -> list[Fault]:
    """Return every call of a talk without faults, with every error, once and lasting."""
    log: Log = []
    spoiler = Spoiler(Fault(0, "", "EIO"), log.append)
    failure = talk(kind, directory, spoiler, log)
    assert not failure, failure
    return [
        Fault(number, op, error, lasting=lasting)
        for number, op in enumerate(spoiler.seen, 1)
        for error in ERRORS[kind.name][op]
        # A call that a signal interrupts for ever is made again for ever.
        for lasting in ((False, True) if error != "EINTR" else (False,))
    ]


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    draw = random.Random(seed)
    with places.fast_directory() as directory:
        yield from limits.trials(kind, directory)
        ways = [*[_in_process(kind, directory, draw)] * 2]
        if deadline - time.monotonic() > LONG_RUN and straced.WORKS:
            ways.append(_straced(kind, directory, draw))
        for way in itertools.cycle(ways):
            if not in_time(deadline):
                return
            yield next(way)


def _in_process(kind: Kind, directory: Path, draw: random.Random) -> Iterator[Trial]:
    every = faults(kind, directory)
    while True:
        for fault in draw.sample(every, len(every)):
            yield try_fault(kind, directory, fault, draw)


def _straced(kind: Kind, directory: Path, draw: random.Random) -> Iterator[Trial]:
    counts = straced.counts(kind, directory, 20)
    every = [
        (name, number, error)
        for name, count in counts.items()
        for number in range(1, count + 1)
        for error in STRACED_ERRORS
    ]
    while True:
        for name, number, error in draw.sample(every, len(every)):
            kind.clear(directory)
            end = straced.run(kind, directory, 20, f"{name}:error={error}:when={number}")
            failure = limits.judge(kind.address(directory), ledger_of(end.said))
            if end.code and "perdure.errors.UnavailableError" not in end.last_words:
                failure = f"it ended with {end.code}: {end.last_words}"
            yield Trial(f"{error} from {name} {number}", failure)


SAYS = "I/O errors are told, and nothing is half written"
PROMISES = [Promise("P5", SAYS, 6_000, partial(trials, kind), kind.name) for kind in KINDS]
