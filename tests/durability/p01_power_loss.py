"""P1 and P4: the power fails at any I/O call of 200 turns; nothing acknowledged is lost.

The script runs once, on a file system that records each call and the moment of each
acknowledgement. Then every disk that a crash could leave after each call is built and opened. A
pass looks at every 61st call, so that even a short sample sees all parts of the script; 61 passes
look at all of them, and later ones draw other tears.

Sometimes only the process dies first, another one reads what it left, and then the power fails:
what was read must still be there.
"""

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import perdure
from perdure.backends.sqlite import SqliteBackend
from tests.durability import places, script
from tests.durability.disk import Crash, Disk, Done
from tests.durability.ledger import Event, Ledger, Witness
from tests.durability.promise import Promise, Trial, in_time
from tests.durability.vfs import Call, Watcher, tune, watching

TURNS = 200
STRIDE = 61  # A prime: calls come in patterns, and a pass should not fall in step with them.
SUCCEEDED = 0.05  # After so many states, another process takes over before the power fails.
TEARS = 4  # Random states per call and pass.
CHECKPOINT_PAGES = 100  # Instead of 1000, so that the log is written back and begun anew often.

Recording = list[Done | Event]


def recording_in(log: Recording) -> Watcher:
    """Return a watcher that writes every call that changes something into the log."""

    def watch(call: Call) -> Any:
        answer = call.do(call.data)
        if call.op != "read":
            name = Path(call.path).name
            log.append(Done(call.op, name, call.handle, call.at, call.data))
        return answer

    return watch


def record(
    directory: Path, turns: int = TURNS, witness: type[Witness] = Witness, **pragmas: object
) -> Recording:
    """Play the script and return all I/O calls, sends and acknowledgements in their order."""
    log: Recording = []
    with watching(recording_in(log)) as vfs:

        def open_store() -> perdure.Store:
            backend = SqliteBackend(directory / "store.db", vfs=vfs.name)
            tune(backend, wal_autocheckpoint=CHECKPOINT_PAGES, **pragmas)
            return perdure.open(witness(backend, log.append))

        script.play(open_store, turns)
    return log


def moments(recording: Recording, draw: random.Random) -> Iterator[tuple[int, Disk, Ledger]]:
    """Yield, without end, moments of the recording: what is on disk, and what was acknowledged."""
    offsets = draw.sample(range(STRIDE), STRIDE)
    while True:
        for offset in offsets:
            disk, ledger = Disk(), Ledger()
            for number, event in enumerate(recording):
                _advance(disk, ledger, event)
                if number % STRIDE == offset:
                    yield number, disk, ledger


def crashes(recording: Recording, seed: int) -> Iterator[tuple[str, Crash, Ledger]]:
    """Yield, without end, states with what the ledger says at their moment; each state once."""
    draw = random.Random(seed)
    seen: set[object] = set()
    for number, disk, ledger in moments(recording, draw):
        for how, crash in _states(disk, draw):
            key = hash((ledger.acks, crash.key))
            if key not in seen:
                seen.add(key)
                yield f"call {number}, {how}", crash, ledger


def _advance(disk: Disk, ledger: Ledger, event: Done | Event) -> None:
    if isinstance(event, Done):
        disk.apply(event)
    else:
        ledger.note(event)


def _states(disk: Disk, draw: random.Random) -> Iterator[tuple[str, Crash]]:
    yield "all unsynced dropped", disk.drop()
    if not disk.settled:
        yield "all kept", disk.keep()
        yield "only names kept", disk.names_only()
        yield "no names kept", disk.files_only()
        for _ in range(TEARS):
            yield "torn", disk.torn(draw)


def judge(directory: Path, crash: Crash, ledger: Ledger, draw: random.Random) -> str:
    """Put a state on disk, open it with plain perdure, and say what is wrong."""
    lay_out(directory, crash)
    try:
        store = perdure.open(directory / "store.db")
    except perdure.PerdureError as error:
        return f"it does not open: {type(error).__name__}: {error}"
    try:
        return ledger.judge(store, draw)
    finally:
        store.close()


def lay_out(directory: Path, crash: Crash) -> None:
    """Put a state on disk. Shared memory does not survive."""
    for name in ("store.db", "store.db-wal", "store.db-shm", "store.db-journal"):
        path = directory / name
        if name in crash.files:
            path.write_bytes(crash.files[name])
        else:
            path.unlink(missing_ok=True)


def succeed(directory: Path, disk: Disk, *, sync_failed: bool = False) -> str:
    """Kill the process but not the kernel: what its successor reads must survive a power failure.

    The successor finds what was written and not synced, and can not tell it from the rest. If the
    last sync failed as well, the kernel will not say so again, nor write those pages by itself.
    """
    lay_out(directory, disk.keep())
    log: Recording = []
    with (
        watching(recording_in(log)) as vfs,
        perdure.open(SqliteBackend(directory / "store.db", vfs=vfs.name)) as store,
    ):
        read = {head.stream: head for head in store.sessions(deleted=True)}
        calls = len(log)  # Closing the store comes after the power has failed.
    after = copy.deepcopy(disk)
    if sync_failed:
        after.fail_syncs()
    for call in log[:calls]:
        _advance(after, Ledger(), call)
    lay_out(directory, after.drop())
    with perdure.open(directory / "store.db") as store:
        left = {head.stream: head for head in store.sessions(deleted=True)}
    lost = sorted(stream for stream, head in read.items() if left.get(stream) != head)
    return f"a successor read what was not on disk: {lost}" if lost else ""


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    with places.fast_directory() as directory:
        recording = record(directory)
        draw = random.Random(seed)
        succeeding = moments(recording, random.Random(seed))
        for what, crash, ledger in crashes(recording, seed):
            if not in_time(deadline):
                return
            yield Trial(what, judge(directory, crash, ledger, draw))
            if draw.random() < SUCCEEDED:
                number, disk, _ = next(succeeding)
                failed = draw.random() < 0.5 and disk.log_only
                found = succeed(directory, disk, sync_failed=failed)
                yield Trial(f"call {number}, a successor, sync failed: {failed}", found)


PROMISE = Promise("P1", "an append that returned is on stable storage", 50_000, trials)
