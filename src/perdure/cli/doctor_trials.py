"""What `perdure doctor` tries on a store: each trial writes to the scratch session only.

A trial returns what it found. What a store answers wrongly makes it unusable: sessions rest on it.
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

SLOW = 0.05  # Seconds; a turn has a few appends, and people notice more than that.
SUSPECT = 0.00005  # Seconds; what syncs faster has a cache that survives, or does not sync.
TOGETHER = 32  # Sessions in one commit.
WRITERS, EACH = 4, 5
WATCHES = 5
WATCH_PATIENCE = 5.0
UNTOLD = 0.5  # Seconds; who is told of a record sees it sooner.

Trial = Callable[[Scratch, int], Finding]


def trials(scratch: Scratch, appends: int) -> Iterator[Finding]:
    """Try everything, one after the other; the first that is unusable is the last."""
    for name, trial in TRIALS.items():
        try:
            found = trial(scratch, appends)
        except PerdureError as error:
            yield unusable(name, error, scratch.backend.name)
            return
        yield found._replace(name=name)
        if found.verdict == "unusable":
            return


def _latency(scratch: Scratch, appends: int) -> Finding:
    durations = []
    for _ in range(appends):
        append = scratch.append()
        start = time.perf_counter()
        (outcome,) = scratch.backend.append([append])
        durations.append(time.perf_counter() - start)
        if outcome.status != "stored":
            return _wrong("an append that comes next", "stored", outcome.status)
        scratch.stored(append)
    durations.sort()
    middle = median(durations)
    p99 = durations[min(len(durations) * 99 // 100, len(durations) - 1)]
    text = f"{milliseconds(middle)} median, {milliseconds(p99)} p99 of {appends}"
    figures = {"median": middle, "p99": p99, "longest": durations[-1], "appends": appends}
    verdict: Verdict = "sound"
    advice = ""
    if middle > SLOW:
        verdict = "weak"
        advice = "an answer waits for each append: use a faster disk, or a server that is nearer"
    elif middle < SUSPECT and guarantees_of(scratch.backend).survives == "power loss":
        verdict = "note"
        advice = (
            "that is faster than a disk syncs, unless its cache survives the loss of power: "
            "make sure that it does, nobody can see that from here"
        )
    return Finding("", verdict, text, advice, figures)


def _together(scratch: Scratch, _: int) -> Finding:
    names = [scratch.stream() for _ in range(TOGETHER)]
    batch = [Append(name, [scratch.entry(EMPTY, name)], LABELS, begins=True) for name in names]
    start = time.perf_counter()
    outcomes = scratch.backend.append(batch)
    took = time.perf_counter() - start
    if {outcome.status for outcome in outcomes} != {"stored"}:
        return _wrong("new sessions in one call", "stored", "something else")
    each = milliseconds(took / TOGETHER)
    text = f"{TOGETHER} sessions in one commit: {milliseconds(took)}, {each} each"
    return Finding("", "sound", text, data={"sessions": TOGETHER, "seconds": took})


def _conflict(scratch: Scratch, _: int) -> Finding:
    before = Tip(scratch.tip.position - 1, "A" * 43 + "=")
    other = Append(scratch.name, [scratch.entry(before)], LABELS)
    gap = Append(scratch.name, [scratch.entry(Tip(scratch.tip.position + 1, ""))], LABELS)
    for append, wanted, what in (
        (other, "conflict", "another entry at a position that is taken"),
        (gap, "refused", "an entry that would leave a gap"),
        (other._replace(begins=True), "conflict", "the beginning of a session that is there"),
    ):
        (outcome,) = scratch.backend.append([append])
        if outcome.status != wanted:
            return _wrong(what, wanted, outcome.status)
    return Finding("", "sound", "a second writer is refused, and so is a gap")


def _resend(scratch: Scratch, _: int) -> Finding:
    append = scratch.append()
    for _time in range(3):
        (outcome,) = scratch.backend.append([append])
        if outcome.status != "stored":
            return _wrong("the same append again", "stored", outcome.status)
    scratch.stored(append)
    found = [entry for entry in scratch.backend.read(scratch.name) if entry in append.entries]
    if len(found) != 1:
        return _wrong("the same append again", "one entry", f"{len(found)} entries")
    return Finding("", "sound", "sent three times, stored once")


def _another_handle(scratch: Scratch, _: int) -> Finding:
    if guarantees_of(scratch.backend).survives == "nothing":
        return Finding("", "note", "not tried: nothing survives a second opening")
    found = [*scratch.other().read(scratch.name)]
    if len(found) != scratch.tip.position or digest(found[-1]) != scratch.tip.digest:
        return _wrong("the same session, opened again", f"{scratch.tip.position} entries", "others")
    return Finding("", "sound", f"opened again, it holds the same {len(found)} entries")


def _writers(scratch: Scratch, _: int) -> Finding:
    """Let several handles append to the same session: each position must have one winner."""
    won: list[int] = []
    trouble: list[str] = []
    handles = [scratch.other() for _ in range(WRITERS)]
    work = [
        threading.Thread(target=_write, args=(scratch, handle, won, trouble)) for handle in handles
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    if trouble:
        return Finding("", "unusable", trouble[0], "several writers can not share this store")
    found = [*scratch.backend.read(scratch.name)]
    scratch.tip = Tip(found[-1].position, digest(found[-1]))
    added = sorted(won)
    if [entry.position for entry in found][-len(added) :] != added or len({*added}) != len(added):
        return _wrong(f"{WRITERS} writers", "one winner for each position", f"{added}")
    text = f"{WRITERS} writers, {len(added)} appends, one winner for each position"
    return Finding("", "sound", text, data={"writers": WRITERS, "appends": len(added)})


def _write(scratch: Scratch, handle: Backend, won: list[int], trouble: list[str]) -> None:
    try:
        for _ in range(EACH):
            status, position = _next(scratch, handle)
            while status == "conflict":
                status, position = _next(scratch, handle)
            if status != "stored":
                trouble.append(f"an append that comes next was {status}")
                return
            won.append(position)
    except PerdureError as error:
        trouble.append(str(error))


def _next(scratch: Scratch, handle: Backend) -> tuple[str, int]:
    (last, *_) = handle.read(scratch.name, limit=1, reverse=True)
    append = Append(scratch.name, [scratch.entry(Tip(last.position, digest(last)))], LABELS)
    return handle.append([append])[0].status, last.position + 1


def _watch(scratch: Scratch, _: int) -> Finding:
    if WATCH not in scratch.backend.capabilities:
        return Finding("", "note", "this store can not tell: sessions look now and then")
    waiter, writer = knowing_watch(scratch.backend), scratch.other()
    durations: list[float] = []
    for _number in range(WATCHES):
        seen: list[float | PerdureError] = []
        thread = threading.Thread(target=_wait, args=(waiter, scratch.name, scratch.tip, seen))
        thread.start()
        time.sleep(0.02)  # So that it waits, and does not find the record there already.
        append = scratch.append()
        (outcome,) = writer.append([append])
        start = time.perf_counter()
        thread.join()
        if outcome.status != "stored" or not seen:
            return Finding("", "weak", "a record was not told of", "sessions must look for it")
        if isinstance(seen[0], PerdureError):
            raise seen[0]
        scratch.stored(append)
        durations.append(max(seen[0] - start, 0.0))
    middle = median(durations)
    text = f"another handle's record is seen after {milliseconds(middle)} (median)"
    if middle < UNTOLD:
        return Finding("", "sound", text, data={"median": middle})
    advice = (
        "nobody is told, so sessions look now and then: a server that has no LISTEN, "
        "or a transaction pooler, does that; nothing else depends on it"
    )
    return Finding("", "note", text, advice, {"median": middle})


def _wait(waiter: Watch, name: str, tip: Tip, seen: list[float | PerdureError]) -> None:
    """Wait until a stream goes on; leave the time, or why that could not be found out."""
    try:
        if waiter.watch(name, after=tip.position, timeout=WATCH_PATIENCE):
            seen.append(time.perf_counter())
    except PerdureError as error:
        seen.append(error)


def _wrong(what: str, wanted: str, found: str) -> Finding:
    text = f"{what}: expected {wanted}, and it was {found}"
    return Finding("", "unusable", text, "this store loses or doubles records: do not use it")


TRIALS: dict[str, Trial] = {
    "durable append": _latency,
    "many sessions": _together,
    "two writers": _conflict,
    "a lost answer": _resend,
    "opened again": _another_handle,
    "many writers": _writers,
    "waiting": _watch,
}
