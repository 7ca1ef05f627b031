"""A model that an adapter asks: recorded with the appends that are made anyway. Pure.

The intent leaves with the next append of the turn, the outcome with the reply itself, of which it
only says that it stands in the messages before it. So asking costs no append of its own.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from perdure.effects import effecting, tools
from perdure.effects.deeds import INTENDED
from perdure.effects.effecting import Called, Outcome
from perdure.effects.tools import Spec, Telling
from perdure.plans import Batch, Made, Plan
from perdure.replica import Replica
from perdure.saying import Ownership


class Recorded(NamedTuple):
    """What the record has of an answer, where it is replayed: messages, or how it failed."""

    messages: list[dict[str, Any]]
    meta: dict[str, Any]
    error: str = ""
    reason: str = ""


class Replaying(Protocol):
    """What serves calls from the record, where a session is replayed."""

    def serve(self, spec: Spec, call: Called, tell: Telling | None) -> Any:
        """Return what a call returned, or raise what it raised."""

    def asked(self, call: Called) -> Recorded:
        """Return what a model had answered."""


class Asked:
    """A call of a model, from before it is made until its reply is stored. Made by `turn.ask`."""

    def __init__(
        self,
        replica: Replica,
        call: Called,
        waiting: list["Asked"],
        since: float,
        replay: Replaying | None = None,
    ) -> None:
        self.call = call
        self.since = since
        """When it was asked, by the clock of whoever asked."""
        self.effect = replica.settings.new_id()
        self._replay = replay
        self.failure: Outcome | None = None
        self._waiting = waiting
        waiting.append(self)
        self._replica = replica

    def recorded(self) -> Recorded | None:
        """Return the answer where the session is replayed: nobody is to be asked then."""
        return None if self._replay is None else self._replay.asked(self.call)

    def failed(self, error: BaseException, duration: float = 0.0) -> None:
        """Have the turn's next append say that there was no answer, and why."""
        self.failure = tools.failure(error, duration, "model")
        self.withdraw()
        self._waiting.append(self)

    def withdraw(self) -> None:
        """Have nothing recorded: the answer was at hand. The call counts as made all the same."""
        if self in self._waiting:
            self._waiting.remove(self)

    def intend(self, batch: Batch, turn: Ownership) -> None:
        """Add the intent, unless it stands there."""
        deed = batch.fold.deeds.by_identity.get(self.call.identity)
        if deed is None or deed.effect != self.effect:
            intent = effecting.intent(self.call, turn, "", retries=deed.intent if deed else 0)
            batch.add_content(self.effect, intent)

    def settle(self, batch: Batch, turn: Ownership, outcome: Outcome) -> None:
        """Add the outcome, after the intent where that has not left yet."""
        self.intend(batch, turn)
        if batch.fold.deeds.by_identity[self.call.identity].state == INTENDED:
            effecting.settle_in(self._replica, batch, self.call.identity, outcome)

    def answering(self, plan: Plan, turn: Ownership, duration: float) -> Plan:
        """Return a plan that also says that its messages are the answer."""

        def make(batch: Batch) -> Made:
            before = len(batch.drafts)
            answer = yield from plan.made(batch)
            said = len(batch.drafts) - before
            if said:
                self.settle(batch, turn, Outcome("succeeded", duration=duration, said=said))
            return answer

        return Plan(plan.kind, plan.subject, make)


def riding(plan: Plan, turn: Ownership, asked: Sequence[Asked]) -> Plan:
    """Return a plan that also says what a model is about to be asked, or that it failed to answer.

    A failure is told before, because the plan may end the turn.
    """

    def make(batch: Batch) -> Made:
        for one in asked:
            if one.failure is not None and turn.turn in batch.fold.turns:
                one.settle(batch, turn, one.failure)
        answer = yield from plan.made(batch)
        for one in asked:
            if one.failure is None and turn.turn in batch.fold.turns:
                one.intend(batch, turn)
        return answer

    return Plan(plan.kind, plan.subject, make)
