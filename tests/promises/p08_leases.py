"""P8 with leases: workers take turns at a session, sleep longer than their lease lasts, and die.

Every message says under which lease it was written. So a message that a worker stored after it had
been taken over from shows in the final history; and so does one that somebody stored without a
lease while another held it. That a holder stops believing in time shows in the logs: they say when
a lease was believed in, by the one clock that all processes of a machine share.
"""

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import perdure
from perdure.core.replica import Replica
from perdure.errors import ConflictError, FencedError, LeaseHeldError, UnavailableError
from perdure.journal.records import Record
from perdure.sync.lease import Lease
from tests.promises.kinds import KINDS, Kind
from tests.promises.p08_histories import APPENDS, SESSION, History, Place
from tests.promises.p08_processes import Done, Log
from tests.promises.places import fast_directory
from tests.promises.promise import Promise, Trial, in_time

TTL = 0.25  # Seconds: a worker that is stopped for longer has lost its lease.
LONGEST_PAUSE = 3 * TTL
OUTCOMES: dict[type[BaseException], str] = {
    ConflictError: "conflict",
    FencedError: "fenced",
    LeaseHeldError: "held",
    UnavailableError: "unknown",
}


def logged(log: Log, act: Callable[[], int], **facts: object) -> int | str:
    """Do something, log what came of it, and return that."""
    log.write(**facts)
    outcome: int | str
    try:
        outcome = act()
    except (ConflictError, FencedError, LeaseHeldError, UnavailableError) as error:
        outcome = OUTCOMES[type(error)]
    log.write(outcome=outcome)
    return outcome


class Worker:
    """One process: it works under leases, and now and then as one that has never heard of them."""

    def __init__(self, address: str, log: Log, name: str, seed: int) -> None:
        self._draw = random.Random(f"{seed} {name}")
        self._session = perdure.open(address).session(SESSION)
        self._log = log
        self._name = name
        self._number = 0
        self.stored = 0

    def work(self) -> None:
        """Do one thing."""
        if self._draw.random() < 0.15:
            self._say(0, self._session.append)
            return
        force = self._draw.random() < 0.05
        lease = self._session.lease(ttl=TTL, timeout=True, owner=self._name, force=force)

        def take() -> int:
            lease.__enter__()
            return lease.epoch

        if not isinstance(logged(self._log, take, what="lease", force=force), int):
            return
        with contextlib.suppress(FencedError), contextlib.ExitStack() as stack:
            stack.push(lease)
            self._hold(lease)

    def _hold(self, lease: Lease) -> None:
        for turn in self._session.interrupted:  # Whoever left them does not hold the session.
            with turn:
                self._say(lease.epoch, turn.append)
        for _ in range(self._draw.randint(1, 8)):
            self._believe(lease)
            if self._draw.random() < 0.25:
                with self._session.turn() as turn:
                    self._say(lease.epoch, turn.append)
                    self._say(lease.epoch, turn.append)
            else:
                self._say(lease.epoch, self._session.append)
            if self._draw.random() < 0.2:
                logged(self._log, lambda: self._session.note({"by": self._name}), what="note")
            if self._draw.random() < 0.3:
                time.sleep(self._draw.random() * TTL)

    def _believe(self, lease: Lease) -> None:
        """Log that the lease is held, at a time from before it was asked."""
        now = time.monotonic_ns()
        if lease.held:
            self._log.write(what="belief", at=now, epoch=lease.epoch)
            self._log.write(outcome=lease.epoch)

    def _say(self, epoch: int, append: Callable[[Any], int]) -> None:
        self._number += 1
        message = {
            "role": "user",
            "content": "",
            "id": f"{self._name}-{self._number}",
            "saw": len(self._session),
            "epoch": epoch,
            "by": self._name,
        }
        outcome = logged(
            self._log, lambda: append(message), what="append", id=message["id"], epoch=epoch
        )
        self.stored += isinstance(outcome, int)
        if epoch and outcome == "fenced":
            raise FencedError(SESSION, epoch, 0, "", "as the append said")


def work(address: str, log: Log, name: str, quota: int, seed: int) -> None:
    """Work until so many messages were acknowledged."""
    worker = Worker(address, log, name, seed)
    while worker.stored < quota:
        worker.work()


class LeaseHistory(History):
    """A history in which workers hold the session one after the other."""

    works = staticmethod(work)
    longest_pause = LONGEST_PAUSE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.counts: Counter[str] = Counter()

    def blind(self) -> None:
        """Break perdure: nobody is fenced, and nobody is kept from writing."""
        Replica._enforce_lease = _nobody_is_barred  # type: ignore[assignment,method-assign]
        super().blind()

    def _also(self, done: list[Done], records: list[Record]) -> Iterator[str]:
        self.counts.update(f"{one.what} {one.outcome}" for one in done if one.what == "append")
        self.counts.update(happened(records))
        yield from held_by_one(records)
        yield from believed(done, records)
        for one in done:
            if one.what == "append" and one.facts["epoch"] and one.outcome in ("conflict", "held"):
                yield f"{one.facts['id']} was written under a lease, and ended as {one.outcome}"
            if one.what == "note" and one.outcome in ("conflict", "held", "fenced"):
                yield f"a note of {one.who} ended as {one.outcome}"


def _nobody_is_barred(*_: object, **__: object) -> Iterator[None]:
    yield from ()


def happened(records: list[Record]) -> Iterator[str]:
    """Yield a word for each lease that was released, taken by force, or taken over."""
    held = False
    for record in records:
        content: Any = record.content
        if record.kind == "lease.taken" and held:
            yield "forced" if content.forced else "taken over"
        if record.kind == "lease.released":
            yield "released"
        held = record.kind == "lease.taken" or (held and record.kind != "lease.released")


def held_by_one(records: list[Record]) -> Iterator[str]:
    """Yield the messages that somebody wrote while another one held the session."""
    epoch, held, who = 0, False, ""
    for record in records:
        content: Any = record.content
        if record.kind == "lease.taken":
            if content.epoch != epoch + 1:
                yield f"epoch {content.epoch} at {record.position} came after {epoch}"
            epoch, held, who = content.epoch, True, content.holder
        elif record.kind in ("lease.renewed", "lease.released"):
            if not held or content.epoch != epoch:
                yield f"a {record.kind} of {content.epoch} at {record.position}, in epoch {epoch}"
            held = held and record.kind == "lease.renewed"
        elif record.kind == "message":
            said = content.message
            if said["epoch"] and not (held and (said["epoch"], said["by"]) == (epoch, who)):
                yield f"stale commit: {said['id']} of epoch {said['epoch']} stands in {epoch}"
            if not said["epoch"] and held:
                yield f"{said['id']} was written without a lease while {who} held epoch {epoch}"


def believed(done: list[Done], records: list[Record]) -> Iterator[str]:
    """Yield who believed in a lease that another one had taken over already, and not by force."""
    forced = {
        record.content.epoch  # type: ignore[attr-defined]
        for record in records
        if record.kind == "lease.taken" and record.content.forced  # type: ignore[attr-defined]
    }
    taken = {one.outcome: one.end for one in done if one.what == "lease"}
    for one in done:
        if one.what == "belief" and one.facts["epoch"] + 1 not in forced:
            end = taken.get(one.facts["epoch"] + 1)
            if end is not None and one.facts["at"] > end:
                yield f"{one.who} believed in epoch {one.facts['epoch']} after it was taken over"


def history(
    seed: int, kind: Place, *, appends: int = APPENDS, blind: bool = False
) -> tuple[Trial, Counter[str]]:
    """Make one history, judge it, and count what happened."""
    with fast_directory() as folder:
        made = LeaseHistory(seed, kind, folder, appends=appends, blind=blind)
        wrong = made.run()
    what = f"seed {seed}: {made.writers} workers, {made.readers} readers, {appends} appends"
    return Trial(what, "; ".join(wrong[:5])), made.counts


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    number = seed * 1_000_000
    while in_time(deadline):
        number += 1
        yield history(number, kind, appends=APPENDS // 4)[0]


SAYS = "one holder at a time, whoever slept longer than its lease is fenced: no stale commit"
PROMISES = [Promise("P8-leases", SAYS, 200, partial(trials, kind), kind.name) for kind in KINDS]
