"""P8, the hard case: a session is written to, branched, deleted and begun anew, all at once.

Positions go on counting through deletions, so the final store tells which life of the session a
position belonged to: what was acknowledged in the last life must be there, and a branch that was
acknowledged and not deleted must belong to it.
"""

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import perdure
from perdure.backends.protocol import DELETED
from perdure.errors import ConflictError, InUseError, NotFoundError
from perdure.sync.session import Session
from perdure.sync.store import Store
from tests.promises.kinds import KINDS, Kind
from tests.promises.p08_processes import Crew, Done, Log, operations
from tests.promises.places import fast_directory
from tests.promises.promise import Promise, Trial, in_time

PARENT = "parent"
SECONDS = 1.5  # Of one trial: several hundred operations.


def attempted(log: Log, act: Callable[[], Any], **facts: object) -> Any:
    """Do something that others may thwart, and log what came of it; None if they did."""
    log.write(**facts)
    try:
        outcome = act()
    except (ConflictError, InUseError, NotFoundError) as error:
        log.write(outcome=type(error).__name__)
        return None
    log.write(outcome=outcome)
    return outcome


def append(address: str, log: Log, name: str, seed: int) -> None:
    """Append to whatever the parent is now, and hold on to handles for a while."""
    draw, numbers = random.Random(f"{seed} {name}"), itertools.count(1)
    store = perdure.open(address)
    session = store.session(PARENT)
    opened_at = session.position
    while True:
        own = f"{name}-{next(numbers)}"
        message = {"role": "user", "content": "", "id": own, "saw": len(session)}
        over = DELETED in session.labels and session.position > opened_at
        done = attempted(log, partial(session.append, message), what="append", id=own)
        assert done is None or not over, f"{own} went to a life that a handle had seen end"
        if done is None and draw.random() < 0.5:
            session = reopened(store, PARENT)
            opened_at = session.position
        time.sleep(draw.random() * 0.004)


def reopened(store: Store, name: str) -> Session:
    while True:
        with contextlib.suppress(NotFoundError):
            return store.session(name)


def branch(address: str, log: Log, name: str, seed: int) -> None:
    """Branch anywhere, and now and then delete all branches, so that the parent gets free."""
    draw, numbers = random.Random(f"{seed} {name}"), itertools.count(1)
    store = perdure.open(address)
    kept: list[str] = []
    while True:
        time.sleep(draw.random() * 0.01)
        own = f"{name}-{next(numbers)}"
        with contextlib.suppress(NotFoundError):
            source = store.resume(PARENT)
            first = next(record.position for record in source.records())
            at = draw.randint(first, source.position)
            make = partial(branched, source, own, at)
            if attempted(log, make, what="branch", name=own, at=at) is not None:
                kept.append(own)
        while kept and draw.random() < 0.6:
            erase = partial(deleted, store, kept[-1])
            attempted(log, erase, what="delete branch", name=kept.pop())


def branched(source: Session, name: str, at: int) -> list[str]:
    return [message["id"] for message in source.branch(name, at=at).messages()]


def deleted(store: Store, name: str) -> str:
    store.delete(name)
    return "done"


def delete(address: str, log: Log, name: str, seed: int) -> None:
    """Delete the parent whenever that is possible, and sometimes begin it anew."""
    draw = random.Random(f"{seed} {name}")
    store = perdure.open(address)
    while True:
        time.sleep(draw.random() * 0.02)
        attempted(log, partial(deleted, store, PARENT), what="delete")
        if draw.random() < 0.5:
            begin = partial(reopened(store, PARENT).note, "begun anew")
            attempted(log, begin, what="begin anew")


CAST = {"a": append, "b": append, "c": branch, "d": delete}


class Life:
    """One trial: four processes for a while, some killed and replaced, and the judgement."""

    def __init__(self, seed: int, kind: Kind, folder: Path, seconds: float) -> None:
        self._draw = random.Random(seed)
        self._seed = seed
        self._address = kind.address(folder)
        self._seconds = seconds
        self._crew = Crew(folder, self._draw)
        self._born = itertools.count(1)
        self.counts: dict[str, int] = {}

    def run(self) -> list[str]:
        perdure.open(self._address).close()
        try:
            for role in CAST:
                self._start(role)
            self._disturb()
        finally:
            self._crew.end()
        done = list(operations(self._crew.folder))
        for one in done:
            kind = one.outcome if isinstance(one.outcome, str) else "done"
            key = f"{one.what} {kind}"
            self.counts[key] = self.counts.get(key, 0) + 1
        return [*self._crew.failures, *judge(self._address, done)]

    def _start(self, role: str) -> None:
        name = f"{role}{next(self._born)}"
        work = partial(CAST[role], self._address, name=name, seed=self._seed)
        self._crew.start(name, lambda log: work(log=log))

    def _disturb(self) -> None:
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            time.sleep(self._draw.random() * 0.02)
            for name in self._crew.reap():
                self._start(name[0])
            if self._draw.random() < 0.2:
                self._crew.pause()
            if self._draw.random() < 0.1 and self._crew.running:
                self._start(self._crew.kill()[0])


def judge(address: str | Path, done: list[Done]) -> Iterator[str]:
    with perdure.open(address) as store:
        begin = next(
            (
                record.position
                for record in store.session(PARENT).records()
                if record.kind == "deleted"
            ),
            0,
        )
        yield from _messages(store, done, begin)
        yield from _branches(store, done, begin)
        yield from _clearing(store)


def _messages(store: Store, done: list[Done], begin: int) -> Iterator[str]:
    parent = store.session(PARENT)
    parent.verify()
    there = {
        record.position: record.content.message  # type: ignore[attr-defined]
        for record in parent.records()
        if record.kind == "message"
    }
    for number, message in enumerate(there.values()):
        if message["saw"] != number:
            yield f"{message['id']} is number {number}, its writer had seen {message['saw']}"
    for one in done:
        if one.what != "append" or not isinstance(one.outcome, int):
            continue
        if one.outcome > begin and there.get(one.outcome, {}).get("id") != one.facts["id"]:
            yield f"{one.facts['id']} was acknowledged at {one.outcome}, and is not there"
    ended = [one for one in done if one.what == "delete" and one.outcome in ("done", "unknown")]
    if begin and not ended:
        yield f"something deleted the session at {begin}, and nobody says so"


def _branches(store: Store, done: list[Done], begin: int) -> Iterator[str]:
    ended = {
        one.facts["name"]: one.outcome
        for one in done
        if one.what == "delete branch" and one.outcome in ("done", "unknown")
    }
    for one in done:
        if one.what != "branch" or not isinstance(one.outcome, list):
            continue
        name, at = one.facts["name"], one.facts["at"]
        if name in ended:
            listed = {head.id for head in store.sessions(prefix=name)}
            if ended[name] == "done" and name in listed:
                yield f"{name} was deleted, and is there"
            continue
        try:
            child = store.resume(name)
            child.verify()
            said = [message["id"] for message in child.messages()]
        except perdure.PerdureError as error:
            yield f"{name} was acknowledged, and does not open: {error}"
            continue
        if said != one.outcome:
            yield f"{name} has lost something of its past"
        if at < begin:
            yield f"{name} lives, and its parent was deleted at {begin}"


def _clearing(store: Store) -> Iterator[str]:
    """Whatever a killed process left unfinished must not stand in the way."""
    for _ in range(2):  # The branches come first in a first round, then the parent is free.
        for head in list(store.sessions()):
            with contextlib.suppress(InUseError, NotFoundError):
                store.delete(head.id)
    left = [head.id for head in store.sessions()]
    if left:
        yield f"{left} can not be deleted"


def lifecycle(seed: int, kind: Kind, *, seconds: float = SECONDS) -> tuple[Trial, dict[str, int]]:
    """Let it all happen for some seconds, judge it, and count what happened."""
    with fast_directory() as folder:
        life = Life(seed, kind, folder, seconds)
        wrong = life.run()
    return Trial(f"seed {seed}: {life.counts}", "; ".join(wrong[:5])), life.counts


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    number = seed * 1_000_000
    while in_time(deadline):
        number += 1
        yield lifecycle(number, kind)[0]


SAYS = "a branch that was acknowledged keeps its past, whoever deletes, dies or begins anew"
PROMISES = [Promise("P8-lifecycles", SAYS, 200, partial(trials, kind), kind.name) for kind in KINDS]
