"""P3, sizes: 100,000 messages compacted to the last 1,000, and how long other writers wait.

    python -m tests.promises.p03_compact_sizes sqlite [DIRECTORY]

A trial writes a long session and compacts it, while another process appends to another session. The
store must then be at most 1.3 times as large as one that was written with the kept messages alone.
If each message has an id of the caller, the ids are kept, and the store is larger: by 33 bytes for
each, in base64. On Postgres the rows must be gone; its vacuum frees their space.
"""

import shutil
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import perdure
from tests.backends.postgres.server_keeper import running
from tests.promises import places
from tests.promises.children import collect, fork
from tests.promises.kinds import KINDS, MODES, Kind
from tests.promises.promise import Promise, Trial
from tests.support import contents, said

MESSAGES = 100_000
KEPT = 1_000
ID_BYTES = 50.0  # For each dropped id: 33 bytes in base64, and what they lie in.
RATIO = 1.3


class Sizes(NamedTuple):
    """What was measured of one compaction."""

    long: int
    compacted: int
    new: int
    seconds: float
    wait: float
    """The longest append of another process meanwhile, in seconds."""
    usual: float
    """The longest of as many seconds before."""

    @property
    def ratio(self) -> float:
        return self.compacted / self.new

    def __str__(self) -> str:
        sizes = f"{self.long:,} → {self.compacted:,} bytes, new {self.new:,}: {self.ratio:.2f}"
        waits = f"longest append {self.wait * 1000:.0f} ms, before {self.usual * 1000:.0f} ms"
        return f"{sizes}; {self.seconds:.1f} s; {waits}"


def size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def write(store: perdure.Store, first: int, last: int, *, ids: bool) -> perdure.Session:
    """Append messages one by one, each of about 100 bytes."""
    session = store.session("long")
    for number in range(first, last):
        text = f"{number:06} " + "x" * 93
        session.append(said(text), id=f"message {number}" if ids else None)
    return session


class Neighbor:
    """Another process, which appends to another session of the store and times each append."""

    def __init__(self, address: str, stop: Path) -> None:
        self._stop = stop
        self.child, self._reader = fork(lambda pipe: self._append(address, pipe))

    def _append(self, address: str, pipe: int) -> None:
        session = perdure.open(address).session("neighbor")
        with open(pipe, "w") as out:
            while not self._stop.exists():
                begin = time.monotonic()
                session.append(said("hello"))
                out.write(f"{begin} {time.monotonic() - begin}\n")
                time.sleep(0.002)

    def waits(self) -> list[tuple[float, float]]:
        """Let it end; return when each append began, and how long it took."""
        self._stop.touch()
        end = collect(self.child, self._reader)
        assert end.code == 0, end
        return [(float(a), float(b)) for a, b in map(str.split, end.said.decode().splitlines())]


def measure(
    kind: Kind, folder: Path, *, ids: bool, messages: int, kept: int, disk: Path | None = None
) -> Sizes:
    """Write, compact and compare; raise AssertionError if messages are not there.

    The session is written in a folder in memory, and compacted there, or on a disk.
    """
    long, new = folder / "long", folder / "new"
    for each in (long, new):
        each.mkdir()
    with perdure.open(kind.address(new)) as store:
        write(store, messages - kept, messages, ids=ids)
        store.session("neighbor").append(said("hello"))
    with perdure.open(kind.address(long)) as store:
        write(store, 0, messages, ids=ids)
    if disk is not None:
        long = shutil.copytree(long, disk / f"{kind.name}-{ids}")
    before = size(long)
    neighbor = Neighbor(kind.address(long), folder / "stop")
    time.sleep(2)
    with perdure.open(kind.address(long)) as store:
        session = store.session("long")
        begin = time.monotonic()
        session.compact(keep=kept)
        end = time.monotonic()
        waits = neighbor.waits()
        assert contents(session) == [
            f"{n:06} " + "x" * 93 for n in range(messages - kept, messages)
        ]
        session.verify()
        store.delete("neighbor")
    during = [took for at, took in waits if begin <= at + took and at <= end]
    usual = [took for at, took in waits if at + took < begin]
    return Sizes(before, size(long), size(new), end - begin, max(during), max(usual))


def wrong(sizes: Sizes, *, ids: bool, dropped: int) -> str:
    """Say whether a store is larger than it may be."""
    allowed = RATIO * sizes.new + (ID_BYTES * dropped if ids else 0)
    return "" if sizes.compacted <= allowed else f"too large: {sizes}"


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    del seed, deadline  # Both trials are always made: a shorter session would prove less.
    for ids in (False, True):
        with places.fast_directory() as folder:
            sizes = measure(kind, folder, ids=ids, messages=MESSAGES, kept=KEPT)
        print(f"\n{kind.name}, {'with' if ids else 'without'} ids: {sizes}")
        yield Trial(f"{kind}, ids {ids}", wrong(sizes, ids=ids, dropped=MESSAGES - KEPT))


def postgres_trials(seed: int, deadline: float) -> Iterator[Trial]:
    del seed, deadline
    with running("fsync=off") as server, perdure.open(f"{server.url}?accept=fsync-off") as store:
        session = store.session("long")
        for start in range(0, MESSAGES, 10):  # The rows count here, and not the bytes.
            session.append(*(said(f"{number}") for number in range(start, start + 10)))
        session.compact(keep=KEPT)
        rows = sum(1 for _ in store._backend.read("long"))
        gone = contents(session) == [f"{number}" for number in range(MESSAGES - KEPT, MESSAGES)]
        few = rows <= RATIO * KEPT and gone
        yield Trial("postgres", "" if few else f"{rows} rows are left, messages: {gone}")


SAYS = f"compacted to {KEPT:,} of {MESSAGES:,} messages, a store is at most {RATIO} × a new one"
PROMISES = [
    Promise("P3", SAYS, 2, partial(trials, kind), f"{kind.name}-compact-size") for kind in KINDS
]
PROMISES += [Promise("P3", SAYS, 1, postgres_trials, "postgres-compact-size")]


def main(kind: str, directory: str = "") -> None:
    """Measure once without ids and once with, in memory or in a directory on a disk."""
    for ids in (False, True):
        disk = Path(directory) if directory else None
        with places.fast_directory() as folder:
            sizes = measure(MODES[kind], folder, ids=ids, messages=MESSAGES, kept=KEPT, disk=disk)
        print(f"{kind}, {'with' if ids else 'without'} ids: {sizes}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
