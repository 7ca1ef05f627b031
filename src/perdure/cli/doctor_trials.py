"""The trials of `perdure doctor`. Each writes only to the scratch session and returns a finding.

A wrong answer makes a store unusable: sessions depend on every one of these guarantees.
"""

import threading
import time
from collections.abc import Callable, Iterator
from statistics import median

from perdure.backend import WATCH, Append, Backend, Watch, knowing_watch
from perdure.cli.doctor_findings import Finding, Verdict, milliseconds, unusable
from perdure.cli.doctor_scratch import LABELS, Scratch
from perdure.errors import PerdureError
from perdure.guarantees import guarantees_of
from perdure.journal import EMPTY, Tip, digest

SLOW = 0.05  # Seconds; a turn has a few appends, and users notice longer ones.
SUSPECT = 0.00005  # Seconds; a faster disk has a cache that survives, or does not sync.
TOGETHER = 32  # Sessions in one commit.
WRITERS, EACH = 4, 5  # Concurrent handles, and appends by each.
WATCHES = 5  # Records to wait for.
WATCH_PATIENCE = 5.0  # Seconds until a watch counts as failed.
UNTOLD = 0.5  # Seconds; a notified watcher wakes sooner, so a slower one was polling.

Trial = Callable[[Scratch, int], Finding]


def trials(scratch: Scratch, appends: int) -> Iterator[Finding]:
    """Run the trials in order; stop after the first unusable finding."""
    for name, trial in TRIALS.items():
        try:
            finding = trial(scratch, appends)
        except PerdureError as error:
            yield unusable(name, error, scratch.backend.name)
            return
        yield finding._replace(name=name)
        if finding.verdict == "unusable":
            return


def _latency(scratch: Scratch, appends: int) -> Finding:
    durations = []
    for _ in range(appends):
        append = scratch.append()
        start = time.perf_counter()
        (outcome,) = scratch.backend.append([append])
        durations.append(time.perf_counter() - start)
        if outcome.status != "stored":
            return _wrong("an append at the next position", "stored", outcome.status)
        scratch.advance(append)
    durations.sort()
    middle = median(durations)
    p99 = durations[min(len(durations) * 99 // 100, len(durations) - 1)]
    text = f"{milliseconds(middle)} median, {milliseconds(p99)} p99 of {appends}"
    figures = {"median": middle, "p99": p99, "longest": durations[-1], "appends": appends}
    verdict: Verdict = "sound"
    advice = ""
    if middle > SLOW:
        verdict = "weak"
        advice = "every answer waits for its appends: use a faster disk, or a server that is nearer"
    elif middle < SUSPECT and guarantees_of(scratch.backend).survives == "power loss":
        verdict = "note"
        advice = (
            "that is faster than a disk syncs, unless its cache survives power loss: "
            "make sure that it does, perdure cannot check it"
        )
    return Finding("", verdict, text, advice, figures)


def _together(scratch: Scratch, _: int) -> Finding:
    names = [scratch.new_stream() for _ in range(TOGETHER)]
    batch = [Append(name, [scratch.entry(EMPTY, name)], LABELS, begins=True) for name in names]
    start = time.perf_counter()
    outcomes = scratch.backend.append(batch)
    duration = time.perf_counter() - start
    if {outcome.status for outcome in outcomes} != {"stored"}:
        return _wrong("new sessions in one call", "stored", "something else")
    each = milliseconds(duration / TOGETHER)
    text = f"{TOGETHER} sessions in one commit: {milliseconds(duration)}, {each} each"
    return Finding("", "sound", text, data={"sessions": TOGETHER, "seconds": duration})


def _conflict(scratch: Scratch, _: int) -> Finding:
    stale_tip = Tip(scratch.tip.position - 1, "A" * 43 + "=")
    conflicting = Append(scratch.name, [scratch.entry(stale_tip)], LABELS)
    gap = Append(scratch.name, [scratch.entry(Tip(scratch.tip.position + 1, ""))], LABELS)
    for append, expected, what in (
        (conflicting, "conflict", "another entry at an occupied position"),
        (gap, "refused", "an entry that would leave a gap"),
        (conflicting._replace(begins=True), "conflict", "creating a session that exists"),
    ):
        (outcome,) = scratch.backend.append([append])
        if outcome.status != expected:
            return _wrong(what, expected, outcome.status)
    return Finding("", "sound", "a second writer is refused, and so is a gap")


def _resend(scratch: Scratch, _: int) -> Finding:
    append = scratch.append()
    for _time in range(3):
        (outcome,) = scratch.backend.append([append])
        if outcome.status != "stored":
            return _wrong("the same append again", "stored", outcome.status)
    scratch.advance(append)
    copies = [entry for entry in scratch.backend.read(scratch.name) if entry in append.entries]
    if len(copies) != 1:
        return _wrong("the same append again", "one entry", f"{len(copies)} entries")
    return Finding("", "sound", "sent three times, stored once")


def _another_handle(scratch: Scratch, _: int) -> Finding:
    if guarantees_of(scratch.backend).survives == "nothing":
        return Finding("", "note", "skipped: nothing survives reopening")
    entries = [*scratch.open_handle().read(scratch.name)]
    if len(entries) != scratch.tip.position or digest(entries[-1]) != scratch.tip.digest:
        return _wrong(
            "the same session, opened again", f"{scratch.tip.position} entries", "different"
        )
    return Finding("", "sound", f"reopened, it has the same {len(entries)} entries")


def _writers(scratch: Scratch, _: int) -> Finding:
    """Append to one session from several handles: each position must have one winner."""
    positions: list[int] = []
    problems: list[str] = []
    handles = [scratch.open_handle() for _ in range(WRITERS)]
    threads = [
        threading.Thread(target=_write, args=(scratch, handle, positions, problems))
        for handle in handles
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        return Finding("", "unusable", problems[0], "several writers cannot share this store")
    entries = [*scratch.backend.read(scratch.name)]
    scratch.tip = Tip(entries[-1].position, digest(entries[-1]))
    added = sorted(positions)
    if [entry.position for entry in entries][-len(added) :] != added or len({*added}) != len(added):
        return _wrong(f"{WRITERS} writers", "one winner for each position", f"{added}")
    text = f"{WRITERS} writers, {len(added)} appends, one winner for each position"
    return Finding("", "sound", text, data={"writers": WRITERS, "appends": len(added)})


def _write(scratch: Scratch, handle: Backend, positions: list[int], problems: list[str]) -> None:
    try:
        for _ in range(EACH):
            status, position = _next(scratch, handle)
            while status == "conflict":
                status, position = _next(scratch, handle)
            if status != "stored":
                problems.append(f"an append at the next position was {status}")
                return
            positions.append(position)
    except PerdureError as error:
        problems.append(str(error))


def _next(scratch: Scratch, handle: Backend) -> tuple[str, int]:
    (last, *_) = handle.read(scratch.name, limit=1, reverse=True)
    append = Append(scratch.name, [scratch.entry(Tip(last.position, digest(last)))], LABELS)
    return handle.append([append])[0].status, last.position + 1


def _watch(scratch: Scratch, _: int) -> Finding:
    if WATCH not in scratch.backend.capabilities:
        return Finding("", "note", "not supported by this store: sessions poll")
    waiter, writer = knowing_watch(scratch.backend), scratch.open_handle()
    durations: list[float] = []
    for _number in range(WATCHES):
        seen: list[float | PerdureError] = []
        thread = threading.Thread(target=_wait, args=(waiter, scratch.name, scratch.tip, seen))
        thread.start()
        time.sleep(0.02)  # Lets the watcher start waiting before the record is written.
        append = scratch.append()
        (outcome,) = writer.append([append])
        start = time.perf_counter()
        thread.join()
        if outcome.status != "stored" or not seen:
            return Finding(
                "", "weak", "a watcher was not notified of a record", "sessions must poll for it"
            )
        if isinstance(seen[0], PerdureError):
            raise seen[0]
        scratch.advance(append)
        durations.append(max(seen[0] - start, 0.0))
    middle = median(durations)
    text = f"another handle's record is seen after {milliseconds(middle)} (median)"
    if middle < UNTOLD:
        return Finding("", "sound", text, data={"median": middle})
    advice = (
        "notifications do not arrive, so sessions poll: a server without LISTEN, "
        "or a transaction pooler, causes that; nothing else depends on it"
    )
    return Finding("", "note", text, advice, {"median": middle})


def _wait(waiter: Watch, name: str, tip: Tip, seen: list[float | PerdureError]) -> None:
    """Wait until a stream grows; append the time, or the error, to `seen`."""
    try:
        if waiter.watch(name, after=tip.position, timeout=WATCH_PATIENCE):
            seen.append(time.perf_counter())
    except PerdureError as error:
        seen.append(error)


def _wrong(what: str, expected: str, actual: str) -> Finding:
    text = f"{what}: expected {expected}, got {actual}"
    return Finding("", "unusable", text, "this store loses or duplicates records: do not use it")


TRIALS: dict[str, Trial] = {
    "durable append": _latency,
    "many sessions": _together,
    "two writers": _conflict,
    "a lost answer": _resend,
    "opened again": _another_handle,
    "many writers": _writers,
    "waiting": _watch,
}
