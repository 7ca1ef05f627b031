"""Opening, resuming, a window of 50 messages: as cheap after a million records as after 1,000."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import perdure
from benchmarks.counting import CountingBackend
from benchmarks.report import Line, Part, Progress, table
from benchmarks.workload import Message, turns
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.core.state.session_state import SNAPSHOT_EVERY

BATCH = 500  # Messages in one append while a long history is made.
SAID_EVERY = 20 * BATCH
TAIL = 300  # The last ones come one by one, as in life, so that the end of both sizes is alike.
WINDOW = 50
TIMES_MAX = 2.0
SESSION = "session-00000"


class Count(NamedTuple):
    """What was read from the store to answer."""

    entries: int
    bytes: int
    heads: int


class Reads(NamedTuple):
    """What opening, resuming and reading a window took."""

    opening: Count
    resuming: Count
    window: Count


def build(path: Path, records: int, say: Callable[[str], object] = len) -> None:
    """Fill a session with so many messages, most of them in long appends."""
    said: list[Message] = [message for turn in turns(400) for message in turn]
    with perdure.open(path) as store:
        session = store.session(SESSION)
        done = 0
        while done < records - TAIL:
            size = min(BATCH, records - TAIL - done)
            session.append(*(_short(said, done + n) for n in range(size)))
            done += size
            if done % SAID_EVERY == 0:
                say(f"{done:,} records")
        for number in range(done, records):
            session.append(_short(said, number))


def _short(said: list[Message], number: int) -> Message:
    """A message of at most 120 characters: a million long ones would only fill the disk."""
    message = said[number % len(said)]
    role = "user" if message["role"] == "user" else "assistant"
    return {"role": role, "content": (message["content"] or "")[:120]}


def count(path: Path) -> Reads:
    """Count what is read, in a store that was just opened."""
    return Reads(
        _counted(path, lambda store: store.session(SESSION)),
        _counted(path, lambda store: store.resume(SESSION)),
        _counted(path, lambda store: store.session(SESSION), _window),
    )


def _window(session: perdure.Session) -> object:
    found = session.messages(last=WINDOW)
    assert len(found) == WINDOW
    return found


def _counted(
    path: Path,
    enter: Callable[[perdure.Store], perdure.Session],
    then: Callable[[perdure.Session], object] | None = None,
) -> Count:
    """Count what `enter` reads, or if given only what `then` reads after it."""
    backend = CountingBackend(SqliteBackend(path))
    with perdure.open(backend) as store:
        session = enter(store)
        before = Count(0, 0, 0)
        if then is not None:
            before = Count(backend.entries, backend.bytes, backend.heads)
            then(session)
        return Count(
            backend.entries - before.entries,
            backend.bytes - before.bytes,
            backend.heads - before.heads,
        )


def differs(short: Count, long: Count) -> str:
    """Say how two counts differ by more than one fold snapshot interval, or nothing."""
    if abs(long.entries - short.entries) > SNAPSHOT_EVERY:
        return f"{long.entries} entries instead of {short.entries}"
    each = short.bytes / max(short.entries, 1)
    if abs(long.bytes - short.bytes) > SNAPSHOT_EVERY * each:
        return f"{long.bytes} bytes instead of {short.bytes}"
    if long.heads != short.heads:
        return f"{long.heads} heads instead of {short.heads}"
    return ""


def _time(path: Path) -> dict[str, float]:
    start = time.perf_counter()
    store = perdure.open(path)
    opened = time.perf_counter()
    session = store.session(SESSION)
    made = time.perf_counter()
    store.resume(SESSION)
    resumed = time.perf_counter()
    _window(session)
    read = time.perf_counter()
    store.close()
    return {
        "opening": made - start,
        "resuming": resumed - made,
        "window": read - resumed,
        "store alone": opened - start,
    }


def measure(folder: Path, *, long: int, repeats: int) -> Part:
    """Compare a session of 1,000 records with a long one."""
    sizes = {1_000: "1,000 records", long: f"{long:,} records"}
    batches = sum(1 + (size - TAIL) // SAID_EVERY for size in sizes)
    progress = Progress("reading", batches + repeats)
    part = Part("reading")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        paths = {size: Path(place) / f"{size}.db" for size in sizes}
        for size, path in paths.items():
            build(path, size, progress.step)
            progress.step(f"{sizes[size]} made")
        counts = {size: count(path) for size, path in paths.items()}
        times: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
        for number in range(repeats):
            for size in sizes if number % 2 else reversed(sizes):
                times[size].append(_time(paths[size]))
            progress.step("opened and read")
    rows = []
    for what in Reads._fields:
        short, far = getattr(counts[1_000], what), getattr(counts[long], what)
        quick, slow = (statistics.median(one[what] for one in times[size]) for size in sizes)
        for size, found, seconds in ((1_000, short, quick), (long, far, slow)):
            name = f"{what}, {sizes[size]}"
            rows.append([name, str(found.entries), f"{found.bytes:,}", f"{1e3 * seconds:.2f}"])
        part.data[what] = {
            "counts": {1_000: [*short], long: [*far]},
            "seconds": {1_000: quick, long: slow},
        }
        difference = differs(short, far)
        part.lines += [
            Line(
                f"{what}: entries and bytes read at {sizes[long]} and at 1,000",
                difference or f"{far.entries} and {short.entries} entries",
                "the same within one snapshot interval",
                not difference,
            ),
            Line(
                f"{what}: time at {sizes[long]} against 1,000",
                f"{slow / quick:.2f}×",
                f"at most {TIMES_MAX:.0f}×",
                slow <= TIMES_MAX * quick,
            ),
        ]
    part.tables.append(table(["reading", "entries", "bytes", "ms (median)"], rows))
    return part
