"""P3, openings: a session of any length is opened by reading a snapshot and a few entries.

    python -m tests.promises.full --minutes 5 --seed 1 --only P3-openings

A trial writes a session of 10³ to 10⁶ records, most of them in long appends, then turns with calls,
callers' ids and values, until a snapshot is due or almost. Opening must read at most `ENTRIES`
entries and `BYTES` bytes, and the snapshot must have at most `SNAPSHOT` bytes.
"""

import random
from collections.abc import Iterator
from typing import Any

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Backend, Entry
from perdure.testing.faults import BackendWrapper
from tests.promises.promise import Promise, Trial, in_time

ENTRIES = 64
BYTES = 40_000
SNAPSHOT = 12_000
LENGTHS = (10**3, 10**4, 10**5, 10**6)
LARGEST_APPEND = 5_000


class Counting(BackendWrapper):
    """Counts what is read."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.entries = 0
        self.bytes = 0

    def read(self, stream: str, **options: Any) -> Iterator[Entry]:
        """Read, and count."""
        for entry in super().read(stream, **options):
            self.entries += 1
            self.bytes += entry.size
            yield entry


def write_long(session: perdure.Session, records: int, draw: random.Random) -> None:
    """Write most of a long session, with callers' ids, in appends of many messages."""
    while records > 0:
        count = min(records, draw.randrange(1, LARGEST_APPEND))
        text = "x" * draw.randrange(20, 200)
        with session.batch() as batch:
            for number in range(count):
                message = {"role": "user", "content": f"{number} {text}"}
                batch.append(message, id=f"m-{session.position}-{number}")
        records -= count


def write_turn(session: perdure.Session, number: int, draw: random.Random) -> None:
    """Write a turn with a call, a message of the caller's id and a value."""
    look_up = session.tool(str.upper, name="look_up", effect="read_only")
    with session.turn(f"question {number}", id=f"turn-{number}") as turn:
        turn.append({"role": "assistant", "content": "a" * draw.randrange(1, 3_000)})
        for _ in range(draw.randrange(3)):
            look_up("w" * draw.randrange(1, 200))
    session.append({"role": "user", "content": "and"}, id=f"own-{number}")
    session.set("progress", {"turn": number})


def opening_failure(backend: Backend) -> str:
    """Open the session, and return what was too much, or ""."""
    counting = Counting(backend)
    session = perdure.open(counting).session("s")
    snapshot = session._replica.state.snapshot_size
    read = f"{counting.entries} entries, {counting.bytes} bytes, a snapshot of {snapshot} bytes"
    is_small = counting.entries <= ENTRIES and counting.bytes <= BYTES and snapshot <= SNAPSHOT
    return "" if is_small else read


def trial(seed: int, records: int, *, turns: int = 20) -> Trial:
    """Write a session, and open it after each of its last turns."""
    draw, backend = random.Random(seed), MemoryBackend()
    session = perdure.open(backend).session("s")
    write_long(session, records, draw)
    for number in range(turns):
        write_turn(session, number, draw)
        failure = opening_failure(backend)
        if failure:
            return Trial(f"seed {seed}, {session.position} records", failure)
    return Trial(f"seed {seed}, {session.position} records")


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    """Try lengths in turn."""
    while in_time(deadline):
        yield trial(seed, LENGTHS[seed % len(LENGTHS)])
        seed += 1


PROMISE = Promise(
    "P3", "opening reads a snapshot and a few entries at any length", 400, trials, "openings"
)
