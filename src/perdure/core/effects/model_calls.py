"""Model calls made by an adapter, recorded in appends that the turn makes anyway.

The intent is stored with the turn's next append. The outcome is stored with the reply and only says
how many of the messages before it are the answer. So a model call costs no append of its own. Pure:
this module adds records to batches and does no I/O.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from perdure.core.effects import plans, results
from perdure.core.effects.calls import CallOutcome, CallRequest, ResultMessage, ToolSpec
from perdure.core.plans import Plan, RecordBatch, T, TurnOwnership
from perdure.core.replica import Replica
from perdure.core.state.effects import INTENDED
from perdure.journal.requests import Steps


class RecordedAnswer(NamedTuple):
    """A recorded model answer, for replay: its messages, or its error and reason."""

    messages: list[dict[str, Any]]
    meta: dict[str, Any]
    error: str = ""
    reason: str = ""


class CallReplayer(Protocol):
    """Serves calls from the record while a session is replayed."""

    def serve(self, spec: ToolSpec, call: CallRequest, reply: ResultMessage | None) -> Any:
        """Return the recorded result of a call, or raise its recorded error."""

    def serve_model(self, call: CallRequest) -> RecordedAnswer:
        """Return the recorded answer to a model call."""


class PendingModelCall:
    """A model call until its reply is stored. Created by `turn.begin_model_call`."""

    def __init__(
        self,
        replica: Replica,
        call: CallRequest,
        waiting: list["PendingModelCall"],
        since: float,
        replay: CallReplayer | None = None,
    ) -> None:
        self.call = call
        self.started = since
        """When the call started, by the caller's clock."""
        self.effect = replica.new_id()
        self._replay = replay
        self.failure: CallOutcome | None = None
        self._waiting = waiting
        waiting.append(self)
        self._replica = replica

    def recorded(self) -> RecordedAnswer | None:
        """Return the recorded answer if the session is replayed: the model must not be called."""
        return None if self._replay is None else self._replay.serve_model(self.call)

    def failed(self, error: BaseException, duration: float = 0.0) -> None:
        """Record with the turn's next append that the model did not answer, and why."""
        self.withdraw()
        self.failure = results.failure_outcome(error, duration, "model")
        self._waiting.append(self)

    def withdraw(self) -> None:
        """Record nothing: the answer was already available. The call still counts as made."""
        self._replica.require_live("model call")
        if self in self._waiting:
            self._waiting.remove(self)

    def add_intent(self, batch: RecordBatch, turn: TurnOwnership) -> None:
        """Add the intent to a batch, unless it is already stored."""
        prior = batch.state.effects.by_identity.get(self.call.identity)
        if prior is None or prior.effect != self.effect:
            key, retry_of = (prior.key, prior.intent) if prior else ("", 0)
            intent = plans.intent_record(self.call, turn, key, retry_of=retry_of)
            batch.add_content(self.effect, intent)

    def add_outcome(self, batch: RecordBatch, turn: TurnOwnership, outcome: CallOutcome) -> None:
        """Add the outcome to a batch, after the intent if that is not stored yet."""
        self.add_intent(batch, turn)
        if batch.state.effects.by_identity[self.call.identity].state == INTENDED:
            plans.add_outcome(self._replica, batch, self.call.identity, outcome)

    def answered_by(self, plan: Plan[T], turn: TurnOwnership, duration: float) -> Plan[T]:
        """Return a plan that also records that the plan's messages are the answer."""

        def make(batch: RecordBatch) -> Steps[T]:
            start = len(batch.pending)
            result = yield from plan.execute(batch)
            count = len(batch.pending) - start
            if count:
                outcome = CallOutcome("succeeded", duration=duration, message_count=count)
                self.add_outcome(batch, turn, outcome)
            return result

        return msgspec.structs.replace(plan, make=make)


def with_model_calls(
    plan: Plan[T], turn: TurnOwnership, calls: Sequence[PendingModelCall]
) -> Plan[T]:
    """Return a plan that also records pending model calls: new intents, and failures.

    Failures are added before the plan's own records, because the plan may end the turn.
    """

    def make(batch: RecordBatch) -> Steps[T]:
        for call in calls:
            if call.failure is not None and turn.turn in batch.state.turns:
                call.add_outcome(batch, turn, call.failure)
        result = yield from plan.execute(batch)
        for call in calls:
            if call.failure is None and turn.turn in batch.state.turns:
                call.add_intent(batch, turn)
        return result

    return msgspec.structs.replace(plan, make=make)
