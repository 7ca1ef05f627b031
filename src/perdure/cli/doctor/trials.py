"""The trials of `perdure doctor`. Each writes only to the scratch session and returns a finding.

A wrong answer makes a store unusable: sessions depend on every one of these guarantees.
"""

import threading
import time
from collections.abc import Callable, Iterator
from statistics import median

from perdure.backends.guarantees import guarantees_of
from perdure.backends.protocol import WATCH, Append, Backend, WatchCapability, require_watch
from perdure.cli.doctor.findings import StoreFinding, StoreVerdict, human_duration, unusable_finding
from perdure.cli.doctor.scratch import LABELS, ScratchSession
from perdure.errors import PerdureError
from perdure.journal.chain import EMPTY_CHAIN, ChainTip, entry_digest

SLOW_APPEND = 0.05  # Seconds; a turn has a few appends, and users notice longer ones.

SUSPICIOUS_APPEND = 0.00005  # Seconds; a faster disk has a cache that survives, or does not sync.

BATCH_SESSIONS = 32  # Sessions in one commit.

WRITERS, APPENDS_EACH = 4, 5  # Concurrent handles, and appends by each.

WATCHES = 5  # Records to wait for.

WATCH_TIMEOUT = 5.0  # Seconds until a watch counts as failed.

POLLING_DELAY = 0.5  # Seconds; a notified watcher wakes sooner, so a slower one was polling.


Trial = Callable[[ScratchSession, int], StoreFinding]


def run_trials(scratch: ScratchSession, appends: int) -> Iterator[StoreFinding]:
    """Run the trials in order; stop after the first unusable finding."""
    for name, trial in TRIALS.items():
        try:
            finding = trial(scratch, appends)
        except PerdureError as error:
            yield unusable_finding(name, error, scratch.backend.name)
            return
        yield finding._replace(name=name)
        if finding.verdict == "unusable":
            return


def _try_latency(scratch: ScratchSession, appends: int) -> StoreFinding:
    durations = []
    for _ in range(appends):
        append = scratch.append()
        start = time.perf_counter()
        (outcome,) = scratch.backend.append([append])
        durations.append(time.perf_counter() - start)
        if outcome.status != "stored":
            return _wrong_answer("an append at the next position", "stored", outcome.status)
        scratch.advance(append)
    durations.sort()
    middle = median(durations)
    p99 = durations[min(len(durations) * 99 // 100, len(durations) - 1)]
    text = f"{human_duration(middle)} median, {human_duration(p99)} p99 of {appends}"
    figures = {"median": middle, "p99": p99, "longest": durations[-1], "appends": appends}
    verdict: StoreVerdict = "sound"
    advice = ""
    if middle > SLOW_APPEND:
        verdict = "weak"
        advice = "every answer waits for its appends: use a faster disk, or a server that is nearer"
    elif middle < SUSPICIOUS_APPEND and guarantees_of(scratch.backend).survives == "power loss":
        verdict = "note"
        advice = (
            "that is faster than a disk syncs, unless its cache survives power loss: "
            "make sure that it does, perdure cannot check it"
        )
    return StoreFinding("", verdict, text, advice, figures)


def _try_batch(scratch: ScratchSession, _: int) -> StoreFinding:
    names = [scratch.new_stream() for _ in range(BATCH_SESSIONS)]
    batch = [Append(name, [scratch.entry(EMPTY_CHAIN, name)], LABELS) for name in names]
    start = time.perf_counter()
    outcomes = scratch.backend.append(batch)
    duration = time.perf_counter() - start
    if {outcome.status for outcome in outcomes} != {"stored"}:
        return _wrong_answer("new sessions in one call", "stored", "something else")
    each = human_duration(duration / BATCH_SESSIONS)
    text = f"{BATCH_SESSIONS} sessions in one commit: {human_duration(duration)}, {each} each"
    return StoreFinding("", "sound", text, data={"sessions": BATCH_SESSIONS, "seconds": duration})


def _try_conflict(scratch: ScratchSession, _: int) -> StoreFinding:
    append = scratch.append()  # Two entries at least: one to conflict with, and one before it.
    scratch.backend.append([append])
    scratch.advance(append)
    last, other = scratch.tip.position, "A" * 43 + "="

    def append_after(position: int, previous: str) -> Append:
        return Append(scratch.name, [scratch.entry(ChainTip(position, other))], LABELS, previous)

    for append, expected, what in (
        (append_after(last - 1, other), "conflict", "another entry at an occupied position"),
        (append_after(last, other), "conflict", "an entry that continues another history"),
        (append_after(last + 1, other), "refused", "an entry that would leave a gap"),
        (append_after(last - 1, ""), "conflict", "creating a session that exists"),
    ):
        (outcome,) = scratch.backend.append([append])
        if outcome.status != expected:
            return _wrong_answer(what, expected, outcome.status)
    return StoreFinding("", "sound", "a second writer is refused, and so is a gap")


def _try_resend(scratch: ScratchSession, _: int) -> StoreFinding:
    append = scratch.append()
    for _time in range(3):
        (outcome,) = scratch.backend.append([append])
        if outcome.status != "stored":
            return _wrong_answer("the same append again", "stored", outcome.status)
    scratch.advance(append)
    copies = [entry for entry in scratch.backend.read(scratch.name) if entry in append.entries]
    if len(copies) != 1:
        return _wrong_answer("the same append again", "one entry", f"{len(copies)} entries")
    return StoreFinding("", "sound", "sent three times, stored once")


def _try_reopen(scratch: ScratchSession, _: int) -> StoreFinding:
    if guarantees_of(scratch.backend).survives == "nothing":
        return StoreFinding("", "note", "skipped: nothing survives reopening")
    entries = [*scratch.open_handle().read(scratch.name)]
    if len(entries) != scratch.tip.position or entry_digest(entries[-1]) != scratch.tip.digest:
        return _wrong_answer(
            "the same session, opened again", f"{scratch.tip.position} entries", "different"
        )
    return StoreFinding("", "sound", f"reopened, it has the same {len(entries)} entries")


def _try_writers(scratch: ScratchSession, _: int) -> StoreFinding:
    """Append to one session from several handles: each position must have one winner."""
    positions: list[int] = []
    problems: list[str] = []
    handles = [scratch.open_handle() for _ in range(WRITERS)]
    threads = [
        threading.Thread(target=_write_concurrently, args=(scratch, handle, positions, problems))
        for handle in handles
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        return StoreFinding("", "unusable", problems[0], "several writers cannot share this store")
    entries = [*scratch.backend.read(scratch.name)]
    scratch.tip = ChainTip(entries[-1].position, entry_digest(entries[-1]))
    added = sorted(positions)
    if [entry.position for entry in entries][-len(added) :] != added or len({*added}) != len(added):
        return _wrong_answer(f"{WRITERS} writers", "one winner for each position", f"{added}")
    text = f"{WRITERS} writers, {len(added)} appends, one winner for each position"
    return StoreFinding("", "sound", text, data={"writers": WRITERS, "appends": len(added)})


def _write_concurrently(
    scratch: ScratchSession, handle: Backend, positions: list[int], problems: list[str]
) -> None:
    try:
        for _ in range(APPENDS_EACH):
            status, position = _append_next(scratch, handle)
            while status == "conflict":
                status, position = _append_next(scratch, handle)
            if status != "stored":
                problems.append(f"an append at the next position was {status}")
                return
            positions.append(position)
    except PerdureError as error:
        problems.append(str(error))


def _append_next(scratch: ScratchSession, handle: Backend) -> tuple[str, int]:
    (last, *_) = handle.read(scratch.name, limit=1, reverse=True)
    tip = ChainTip(last.position, entry_digest(last))
    append = Append(scratch.name, [scratch.entry(tip)], LABELS, entry_digest(last))
    return handle.append([append])[0].status, last.position + 1


def _try_watch(scratch: ScratchSession, _: int) -> StoreFinding:
    if WATCH not in scratch.backend.capabilities:
        return StoreFinding("", "note", "not supported by this store: sessions poll")
    waiter, writer = require_watch(scratch.backend), scratch.open_handle()
    durations: list[float] = []
    for _number in range(WATCHES):
        seen: list[float | PerdureError] = []
        thread = threading.Thread(
            target=_wait_for_record, args=(waiter, scratch.name, scratch.tip, seen)
        )
        thread.start()
        time.sleep(0.02)  # Lets the watcher start waiting before the record is written.
        append = scratch.append()
        (outcome,) = writer.append([append])
        start = time.perf_counter()
        thread.join()
        if outcome.status != "stored" or not seen:
            return StoreFinding(
                "", "weak", "a watcher was not notified of a record", "sessions must poll for it"
            )
        if isinstance(seen[0], PerdureError):
            raise seen[0]
        scratch.advance(append)
        durations.append(max(seen[0] - start, 0.0))
    middle = median(durations)
    text = f"another handle's record is seen after {human_duration(middle)} (median)"
    if middle < POLLING_DELAY:
        return StoreFinding("", "sound", text, data={"median": middle})
    advice = (
        "notifications do not arrive, so sessions poll: a server without LISTEN, "
        "or a transaction pooler, causes that; nothing else depends on it"
    )
    return StoreFinding("", "note", text, advice, {"median": middle})


def _wait_for_record(
    waiter: WatchCapability, name: str, tip: ChainTip, seen: list[float | PerdureError]
) -> None:
    """Wait until a stream grows; append the time, or the error, to `seen`."""
    try:
        if waiter.watch(name, after=tip.position, timeout=WATCH_TIMEOUT):
            seen.append(time.perf_counter())
    except PerdureError as error:
        seen.append(error)


def _wrong_answer(what: str, expected: str, actual: str) -> StoreFinding:
    text = f"{what}: expected {expected}, got {actual}"
    return StoreFinding(
        "", "unusable", text, "this store loses or duplicates records: do not use it"
    )


TRIALS: dict[str, Trial] = {
    "durable append": _try_latency,
    "many sessions": _try_batch,
    "two writers": _try_conflict,
    "a lost answer": _try_resend,
    "opened again": _try_reopen,
    "many writers": _try_writers,
    "waiting": _try_watch,
}
