"""P33: approvals that are for something else, decided twice, used twice, or over.

Any byte of a tool's name, its version, its arguments or the digest is changed after an approval was
given; many processes decide, and make the call, at the same time; clocks jump while one is asked
for, given and used.
"""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.core.plans import Plan, RecordBatch
from perdure.errors import ApprovalError, ApprovalPendingError, PerdureError
from perdure.journal.records import ApprovalDecided, ApprovalRequested, Content
from tests.promises import children, places
from tests.promises.kinds import KINDS, Kind
from tests.promises.promise import Promise, Trial, in_time

PROCESSES = 8
CHARACTERS = "abcxyzABC019 _-./é\u202e"
WORDS = ("pay", "1", "bob")
UNASKED = Trial("a call that needs an approval", "it ran, and nobody was asked")


class Agent:
    """A session in memory with one call, which may be made again, a little differently."""

    def __init__(self, clock: Callable[[], float] = lambda: 1_800_000_000.0) -> None:
        self.ran: list[Any] = []
        self._backend, self._clock = MemoryBackend(), clock

    def session(self) -> perdure.Session:
        return perdure.open(self._backend, clock=self._clock).session("s")

    def call(self, name: str, version: str, to: str, *, key: str = "", **options: Any) -> str:
        """Make the call; return what came of it: an approval's id if it waits."""
        session = self.session()
        tool = session.tool(
            lambda to: self.ran.append((name, version, to)),
            name=name,
            version=version,
            approval=True,
            approval_wait=0,
            **options,
        )
        try:
            with session.turn("Pay.", id="turn-1") as turn:
                try:
                    (tool.keyed(key) if key else tool)(to)
                except PerdureError as error:
                    turn.suspend()
                    return getattr(error, "approval", type(error).__name__)
        except PerdureError as error:
            return type(error).__name__
        return "ran"


def mutated(draw: random.Random, text: str) -> str:
    """Return a text that differs in one character: changed, added or gone."""
    at = draw.randrange(len(text) + 1)
    way = draw.choice(("change", "add", "remove"))
    if way == "add" or at == len(text):
        found = text[:at] + draw.choice(CHARACTERS) + text[at:]
    elif way == "remove" and len(text) > 1:
        found = text[:at] + text[at + 1 :]
    else:
        found = text[:at] + draw.choice(CHARACTERS) + text[at + 1 :]
    return found if found != text else mutated(draw, text)


def changed_call(draw: random.Random) -> Trial:
    """Change a byte of what was approved before the call is made."""
    agent, key = Agent(), draw.choice(("", "invoice-7"))
    approval = agent.call(*WORDS, key=key)
    if agent.ran:
        return UNASKED
    agent.session().approvals.approve(approval, by="ada")
    words = [*WORDS]
    at = draw.randrange(3)
    words[at] = mutated(draw, words[at])
    got = agent.call(*words, key=key)
    what = f"{words} for {WORDS}, key {key!r}"
    if agent.ran:
        return Trial(what, f"it ran: {agent.ran}")
    if got in (approval, "ran"):
        return Trial(what, f"it was taken for the approved one: {got}")
    return Trial(what)


def forged_record(draw: random.Random) -> Trial:
    """Append a decision, or a request, in which a byte is not what it should be."""
    agent = Agent()
    approval = agent.call(*WORDS)
    if agent.ran:
        return UNASKED
    session = agent.session()
    (one,) = session.approvals.pending()
    if draw.random() < 0.5:
        forgery = ApprovalDecided(
            approval=approval, call_digest=one.digest, by="eve", decision="approved"
        )
        field = draw.choice(("approval", "call_digest"))
        change = {field: mutated(draw, getattr(forgery, field))}
        _append(session, msgspec.structs.replace(forgery, **change))
        what = f"a decision with another {field}"
    else:
        record = next(r for r in session.records() if isinstance(r.content, ApprovalRequested))
        assert isinstance(record.content, ApprovalRequested)
        shown = {"to": mutated(draw, WORDS[2])}
        forged = msgspec.structs.replace(record.content, arguments=shown)
        _append(session, forged)
        what = f"a request that shows {shown}"
        asked = [r.id for r in session.records() if isinstance(r.content, ApprovalRequested)][-1]
        try:
            session.approvals.approve(asked, by="ada")
        except PerdureError:
            pass
        else:
            return Trial(what, "somebody approved what is not shown")
    got = agent.call(*WORDS)
    return Trial(what, f"it ran: {got}" if agent.ran else "")


def _append(session: perdure.Session, content: Content) -> None:
    def make(batch: RecordBatch) -> int:
        return batch.add_content(session._replica.settings.new_id(), content)

    session._handle.write(Plan("note", "", make))


def jumping_clock(draw: random.Random) -> Trial:
    """Ask, decide and use while the clock jumps; what was recorded as over stays over."""
    now = [1_800_000_000.0]
    agent = Agent(lambda: now[0])
    ttl = draw.uniform(1.0, 1e6)
    approval = agent.call(*WORDS, approval_ttl=ttl)
    if agent.ran:
        return UNASKED
    end, over, given, log = now[0] + ttl, False, False, [f"ttl {ttl:.0f}"]
    for _ in range(draw.randint(1, 8)):
        now[0] += draw.choice((0.0, ttl / 3, -ttl / 2, ttl, 3e8, -3e8))
        before = len(agent.ran)
        if draw.random() < 0.5:
            try:
                agent.session().approvals.approve(approval, by="ada")
                log.append(f"approved at {now[0] - end:.0f}")
                if over or now[0] >= end:
                    return Trial(", ".join(log), "approved after its end")
                given = True
            except PerdureError:
                over = over or (now[0] >= end and not given)
        else:
            agent.call(*WORDS, approval_ttl=ttl)
            log.append(f"called at {now[0] - end:.0f}")
            over = over or (now[0] >= end and not before)
        if len(agent.ran) > before and (before or over or not given):
            return Trial(", ".join(log), f"it ran: given {given}, over {over}, before {before}")
    return Trial(", ".join(log))


def raced(kind: Kind, directory: Path, draw: random.Random) -> Trial:
    """Have many processes decide at once, then many make the call at once."""
    kind.clear(directory)
    ledger = directory / "ledger"
    ledger.unlink(missing_ok=True)
    address, seed = kind.address(directory), draw.random()

    def session(store: perdure.Store) -> perdure.Session:
        return store.session("s")

    def pay(to: str) -> None:
        with ledger.open("a") as file:
            file.write(f"{to} {os.getpid()}\n")

    def make(name: str) -> bool:
        with perdure.open(address) as store:
            found = session(store)
            tool = found.tool(pay, approval=True, approval_wait=0)
            with found.turn("Pay.", id="turn-1") as turn:
                if turn.ended:
                    return False
                try:
                    tool.keyed("once")(name)
                except ApprovalPendingError:
                    turn.suspend()
                    raise
            return True

    try:
        make("bob")
    except ApprovalPendingError as error:
        approval = error.approval

    def decide(number: int) -> None:
        with perdure.open(address) as store:
            decider = session(store).approvals
            chosen = decider.approve if (number + int(seed * 10)) % 2 else decider.deny
            chosen(approval, by=f"person {number}")

    won = _at_once(decide)
    with perdure.open(address) as store:
        (one,) = session(store).approvals.list()
        made = [r for r in session(store).records() if r.kind == "approval.decided"]
    what = f"{one.state} by {one.by}"
    if len(won) != 1 or len(made) != 1 or one.by != f"person {won[0]}":
        return Trial(what, f"decided by {won}, recorded {len(made)}")
    _at_once(lambda _: make("bob"))
    happened = ledger.read_text().splitlines() if ledger.exists() else []
    with perdure.open(address) as store:
        session(store).verify()
        intents = [r for r in session(store).records() if r.kind == "effect.intent"]
    if len(happened) > (one.state == "approved") or len(intents) > (one.state == "approved"):
        return Trial(what, f"happened {len(happened)} times, begun {len(intents)} times")
    return Trial(what)


def _at_once(work: Callable[[int], object]) -> list[int]:
    """Do something in many processes; return which of them did not meet an error of perdure's."""
    reader, writer = os.pipe()

    def child(number: int, _: int) -> None:
        os.close(writer)
        os.read(reader, 1)  # Until all are there.
        try:
            work(number)
        except (ApprovalError, PerdureError):
            os._exit(3)

    started = [
        children.fork(lambda pipe, number=number: child(number, pipe))  # type: ignore[misc]
        for number in range(PROCESSES)
    ]
    os.close(reader)
    os.close(writer)
    ends = [children.collect(*one).code for one in started]
    assert {*ends} <= {0, 3}, f"children ended with {ends}"
    return [number for number, code in enumerate(ends) if code == 0]


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    draw = random.Random(seed)
    with places.fast_directory() as directory:
        while in_time(deadline):
            for kind in KINDS:
                yield raced(kind, directory, draw)
            for _ in range(50):
                for way in WAYS:
                    if not in_time(deadline):
                        return
                    yield way(draw)


WAYS = (changed_call, forged_record, jumping_clock)
SAYS = "no approval is good for anything else, or twice, or after its end"
PROMISE = Promise("P33", SAYS, 20_000, trials, "forged")
