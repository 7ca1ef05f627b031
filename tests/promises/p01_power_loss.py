"""P1 and P4: the power fails at any I/O call of 200 turns; nothing acknowledged is lost.

The script runs once, on a file system that records each call and the moment of each
acknowledgement. Then every disk that a crash could leave after each call is built and opened. A
pass looks at every 61st call, so that even a short sample sees all parts of the script; 61 passes
look at all of them, and later ones draw other tears.

Sometimes only the process dies first, another one reads what it left, and then the power fails:
what was read must still be there.

Each run on files begins with a control: the way that tutorials show must be seen to lose.
"""

import copy
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import perdure
from tests.promises import p01_tutorial, places, script
from tests.promises.calls import Done, recording_in
from tests.promises.disk import Crash, Disk
from tests.promises.kinds import FILES, KINDS, Kind
from tests.promises.ledger import Event, Ledger, Witness
from tests.promises.promise import Promise, Trial, in_time

TURNS = 200
STRIDE = 61  # A prime: calls come in patterns, and a pass should not fall in step with them.
SUCCEEDED = 0.05  # After so many states, another process takes over before the power fails.
TEARS = 4  # Random states per call and pass.
CHECKPOINT_PAGES = 100  # Instead of 1000, so that the log is written back and begun anew often.

Recording = list[Done | Event]


def record(
    kind: Kind, directory: Path, turns: int = TURNS, witness: type[Witness] = Witness
) -> Recording:
    """Play the script and return all I/O calls, sends and acknowledgements in their order."""
    log: Recording = []
    with kind.watched(
        directory, recording_in(log.append), checkpoint=CHECKPOINT_PAGES
    ) as open_backend:
        script.play(lambda: perdure.open(witness(open_backend(), log.append)), turns)
    return log


def moments(
    kind: Kind, recording: Recording, draw: random.Random
) -> Iterator[tuple[int, Disk, Ledger]]:
    """Yield, without end, moments of the recording: what is on disk, and what was acknowledged."""
    offsets = draw.sample(range(STRIDE), STRIDE)
    while True:
        for offset in offsets:
            disk, ledger = kind.disk(), Ledger()
            for number, event in enumerate(recording):
                _advance(disk, ledger, event)
                if number % STRIDE == offset:
                    yield number, disk, ledger


def crashes(kind: Kind, recording: Recording, seed: int) -> Iterator[tuple[str, Crash, Ledger]]:
    """Yield, without end, states with what the ledger says at their moment; each state once."""
    draw = random.Random(seed)
    seen: set[object] = set()
    for number, disk, ledger in moments(kind, recording, draw):
        for how, crash in states(disk, draw):
            key = hash((ledger.acks, crash.key))
            if key not in seen:
                seen.add(key)
                yield f"call {number}, {how}", crash, ledger


def _advance(disk: Disk, ledger: Ledger, event: Done | Event) -> None:
    if isinstance(event, Done):
        disk.apply(event)
    else:
        ledger.note(event)


def states(disk: Disk, draw: random.Random) -> Iterator[tuple[str, Crash]]:
    """Yield the plainest states that a crash could leave now, and some random ones."""
    yield "all unsynced dropped", disk.drop()
    if not disk.settled:
        yield "all kept", disk.keep()
        yield "only names kept", disk.names_only()
        yield "no names kept", disk.files_only()
        for _ in range(TEARS):
            yield "torn", disk.torn(draw)


def judge(kind: Kind, directory: Path, crash: Crash, ledger: Ledger, draw: random.Random) -> str:
    """Put a state on disk, open it with plain perdure, and say what is wrong."""
    kind.lay_out(directory, crash)
    try:
        store = perdure.open(kind.address(directory))
    except perdure.PerdureError as error:
        return f"it does not open: {type(error).__name__}: {error}"
    try:
        return ledger.judge(store, draw)
    finally:
        store.close()


def succeed(kind: Kind, directory: Path, disk: Disk, *, sync_failed: bool = False) -> str:
    """Kill the process but not the kernel: what its successor reads must survive a power failure.

    The successor finds what was written and not synced, and can not tell it from the rest. If the
    last sync failed as well, the kernel will not say so again, nor write those pages by itself.
    """
    kind.lay_out(directory, disk.keep())
    log: Recording = []
    with (
        kind.watched(directory, recording_in(log.append)) as open_backend,
        perdure.open(open_backend()) as store,
    ):
        read = {head.id: head for head in store.sessions(deleted=True)}
        calls = len(log)  # Closing the store comes after the power has failed.
    after = copy.deepcopy(disk)
    if sync_failed:
        after.fail_syncs()
    for call in log[:calls]:
        _advance(after, Ledger(), call)
    kind.lay_out(directory, after.drop())
    try:
        with perdure.open(kind.address(directory)) as store:
            left = {head.id: head for head in store.sessions(deleted=True)}
    except perdure.PerdureError as error:
        return f"after a successor read it: {type(error).__name__}: {error}"
    lost = sorted(stream for stream, head in read.items() if left.get(stream) != head)
    return f"a successor read what was not on disk: {lost}" if lost else ""


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    with places.fast_directory() as directory:
        if kind is FILES:
            yield Trial("the tutorials' way", p01_tutorial.is_safe(directory, seed))
        recording = record(kind, directory)
        draw = random.Random(seed)
        succeeding = moments(kind, recording, random.Random(seed))
        for what, crash, ledger in crashes(kind, recording, seed):
            if not in_time(deadline):
                return
            yield Trial(what, judge(kind, directory, crash, ledger, draw))
            if draw.random() < SUCCEEDED:
                number, disk, _ = next(succeeding)
                failed = draw.random() < 0.5 and disk.may_forget
                found = succeed(kind, directory, disk, sync_failed=failed)
                yield Trial(f"call {number}, a successor, sync failed: {failed}", found)


SAYS = "an append that returned is on stable storage"
PROMISES = [Promise("P1", SAYS, 50_000, partial(trials, kind), kind.name) for kind in KINDS]
