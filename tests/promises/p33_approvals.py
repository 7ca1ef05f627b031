"""P33: what was approved runs, exactly that, once; nothing else does, wherever a process dies.

An agent asks and does not wait, a person decides, the agent comes back: each in a process of its
own, killed before or after an append, at any I/O call that changes the store, and at every step of
what a tool does outside. Whoever comes next goes on. A ledger outside counts what really happened.
"""

import json
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import perdure
from perdure.backends.digests import digest_of
from perdure.core.state.approvals import binding_digest
from perdure.errors import ApprovalDeniedError, ApprovalPendingError, UnknownOutcomeError
from perdure.journal.codec import encode_tree
from perdure.journal.records import ApprovalDecided, ApprovalRequested, EffectIntent, Record
from tests.promises import children, errand_runs, places, world
from tests.promises.kinds import KINDS, Kind
from tests.promises.promise import Promise, Trial, in_time
from tests.promises.world import Boundary, Death, Line, Reaper, World

SESSION = "approvals"
DIRECT, ISSUED = (1, 20, 30), (40, 2, 50)
APPROVED, DENIED, FREE = {20, 40}, {30, 50}, {1, 2}
AGAIN = 0.4  # How often the next process is killed too.
PROCESSES_MAX = 16

MESSAGE = {
    "role": "assistant",
    "tool_calls": [
        {
            "id": f"call-{amount}",
            "type": "function",
            "function": {"name": "pay", "arguments": json.dumps({"amount": amount})},
        }
        for amount in ISSUED
    ],
}


def needs(arguments: dict[str, Any]) -> bool:
    return bool(arguments["amount"] > 10)


def agent(session: perdure.Session, outside: World) -> None:
    """Make the calls, or those that are left; leave the turn open while some wait."""

    def pay(amount: int) -> dict[str, int]:
        outside.happen(f"pay-{amount}")
        return {"paid": amount}

    tool = session.tool(pay, version="1", approval=needs, approval_wait=0)
    with session.turn("Pay.", id="turn-1") as turn:
        if turn.ended:
            return
        pending = False
        for amount in DIRECT:
            try:
                tool(amount)
            except ApprovalPendingError:
                pending = True
            except (ApprovalDeniedError, UnknownOutcomeError):
                continue
        turn.append(MESSAGE, id="calls")
        try:
            session.run_tool_calls(None, [tool], parallel=2)
        except ApprovalPendingError:
            pending = True
        if pending:
            turn.suspend()


def person(session: perdure.Session, _: World) -> None:
    """Decide about whatever waits."""
    for one in session.approvals.pending():
        right = one.arguments["amount"] in APPROVED
        decide = session.approvals.approve if right else session.approvals.deny
        decide(one.id, by="ada", reason="seen", digest=one.digest)


ROLES: tuple[Callable[[perdure.Session, World], None], ...] = (agent, person)


def run(
    kind: Kind, directory: Path, number: int, death: Death | None, *, counting: bool = False
) -> tuple[int, list[Death]]:
    """Let the nth process do its part, and die somewhere; return how it ended, and its points."""
    reaper = Reaper(death)
    watched = counting or (death is not None and death.of == "io")

    def work(pipe: int) -> None:
        outside = World(errand_runs.ledger(directory), reaper)
        with (
            errand_runs._opener(kind, directory, reaper, watched=watched) as opener,
            perdure.open(Boundary(opener(), reaper)) as store,
        ):
            ROLES[number % 2](store.session(SESSION), outside)
        outside.close()
        errand_runs.reporting(pipe)({"deaths": reaper.deaths()})

    end = children.collect(*children.fork(work))
    return end.code, errand_runs.told(end.said).deaths


class Place(NamedTuple):
    """A point of the nth process to die at."""

    process: int
    death: Death

    def __str__(self) -> str:
        return f"{ROLES[self.process % 2].__name__} {self.process // 2 + 1} {self.death}"


def points(kind: Kind, directory: Path) -> list[Place]:
    """Return every point of a history in which nobody dies."""
    errand_runs.clear(kind, directory)
    found = []
    for number in range(3):
        code, deaths = run(kind, directory, number, None, counting=True)
        assert not code, f"process {number} ended with {code}"
        found += [Place(number, death) for death in deaths]
    return found


def trial(kind: Kind, directory: Path, deaths: list[Place]) -> str:
    """Go through a history with some deaths in it; return what went wrong."""
    errand_runs.clear(kind, directory)
    left = {place.process: place.death for place in deaths}
    number, idle = 0, 0
    while idle < 2:  # Once nobody is killed any more: the agent, the person, the agent.
        if number > PROCESSES_MAX:
            return "it does not come to an end"
        death = left.pop(number, None)
        code, _ = run(kind, directory, number, death)
        if code not in (0, -signal.SIGKILL):
            return f"process {number} ended with {code}"
        done = not left and number % 2 == 0 and code == 0 and _is_over(kind, directory)
        idle = 2 if done else 0
        number += 1
    with perdure.open(kind.address(directory)) as store:
        session = store.session(SESSION)
        session.verify()
        return judge([*session.records()], world.read(errand_runs.ledger(directory)))


def _is_over(kind: Kind, directory: Path) -> bool:
    with perdure.open(kind.address(directory)) as store:
        return not store.session(SESSION).interrupted


def judge(records: list[Record], lines: list[Line]) -> str:
    """Return what is wrong with a history, read without the help of the code that made it."""
    asked = {one.id: one.content for one in records if isinstance(one.content, ApprovalRequested)}
    decided: dict[str, ApprovalDecided] = {}
    intents: dict[str, EffectIntent] = {}
    for record in records:
        content = record.content
        if isinstance(content, ApprovalDecided):
            if content.approval in decided:
                return f"two decisions about {content.approval}"
            decided[content.approval] = content
        elif isinstance(content, EffectIntent):
            intents[record.id] = content
            if problem := _allowed(content, asked, decided):
                return problem
    uses = Counter(one.approval for one in intents.values() if one.approval)
    if twice := [approval for approval, count in uses.items() if count > 1]:
        return f"used twice: {twice}"
    return _happened(intents, lines) or _asked_once(asked)


def _allowed(
    intent: EffectIntent, asked: dict[str, ApprovalRequested], decided: dict[str, ApprovalDecided]
) -> str:
    """Say what is wrong with an intent, in view of what stood before it."""
    amount = intent.arguments["amount"]
    if amount in FREE:
        return f"an approval for {amount}, which needs none" if intent.approval else ""
    if intent.approval not in asked or intent.approval not in decided:
        return f"{amount} was begun without an approval"
    request, decision = asked[intent.approval], decided[intent.approval]
    bound = binding_digest(intent.tool, intent.version, digest_of(encode_tree(intent.arguments)))
    if decision.decision != "approved" or decision.call_digest != bound:
        return f"{amount} was begun under {decision}"
    if (request.identity, request.arguments) != (intent.identity, intent.arguments):
        return f"{amount} was begun under the approval of {request}"
    return "" if amount in APPROVED else f"{amount} was approved by nobody"


def _happened(intents: dict[str, EffectIntent], lines: list[Line]) -> str:
    times = Counter(line.effect for line in lines)
    for line in lines:
        intent = intents.get(line.effect)
        if intent is None:
            return f"{line} happened without an intent"
        if line.errand != f"pay-{intent.arguments['amount']}":
            return f"{line} is not what was begun"
    if twice := [effect for effect, count in times.items() if count > 1]:
        return f"happened twice: {twice}"
    amounts = Counter(line.errand for line in lines)
    if more := [errand for errand, count in amounts.items() if count > 1]:
        return f"happened again: {more}"
    return ""


def _asked_once(asked: dict[str, ApprovalRequested]) -> str:
    calls = Counter(content.identity for content in asked.values())
    twice = [identity for identity, count in calls.items() if count > 1]
    if twice or len(calls) != len(APPROVED | DENIED):
        return f"asked {calls}"
    return ""


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    draw = random.Random(seed)
    with places.fast_directory() as directory:
        every = points(kind, directory)
        while True:
            for first in draw.sample(every, len(every)):
                if not in_time(deadline):
                    return
                deaths = [first]
                while draw.random() < AGAIN:
                    later = draw.choice(every)
                    deaths.append(later._replace(process=deaths[-1].process + draw.choice((1, 2))))
                what = f"killed {', then '.join(map(str, deaths))}"
                yield Trial(what, trial(kind, directory, deaths))


SAYS = "an approval executes exactly what was approved, once"
PROMISES = [Promise("P33", SAYS, 2_000, partial(trials, kind), kind.name) for kind in KINDS]
