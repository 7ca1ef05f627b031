"""Follow a record while its agent runs again: serve its calls, compare its writes. Pure.

The agent's view is the recorded state, advanced as far as the agent has come. Each write must be
the next record. Calls are matched by identity, and parallel calls may come in any order. Records
that perdure itself or other processes wrote are skipped.
"""

from collections.abc import Collection, Sequence
from typing import Any, NoReturn, TypeVar

from perdure.core.effects.calls import CallRequest
from perdure.core.plans import Plan, RecordBatch
from perdure.core.replay import guard
from perdure.core.replay.divergence import (
    Divergence,
    compared_fields,
    describe_record,
    first_difference,
    is_identical,
)
from perdure.core.replay.record import (
    SKIPPED_KINDS,
    RecordedCall,
    RecordedStep,
    calls_by_identity,
    to_intent,
    written_by_perdure,
)
from perdure.core.replica import Replica, StateView
from perdure.core.state.session_state import SessionState
from perdure.core.turns import TurnStart
from perdure.core.values import apply_version
from perdure.journal import codec
from perdure.journal.chain import EMPTY_CHAIN, PendingRecord
from perdure.journal.ids import GENERATED_PREFIX
from perdure.journal.large import canonical_tree
from perdure.journal.records import (
    Content,
    EffectIntent,
    EffectOutcome,
    Message,
    MessageChunk,
    TurnAbandoned,
    TurnBegun,
    TurnContinued,
    Value,
)
from perdure.journal.requests import Commit, CommitTogether, Drop, Steps

T = TypeVar("T")


class ReplayStopped(BaseException):
    """The replay is over: it diverged, or the record ends.

    A BaseException, so that an agent's `except Exception` does not catch it.
    """


class ReplayCursor:
    """The record of a session, and the point that a run of its agent has reached."""

    def __init__(
        self,
        replica: Replica,
        steps: Sequence[RecordedStep],
        start: int,
        end: int,
        ignore: Collection[str],
        base: SessionState | None = None,
    ) -> None:
        self.name = replica.name
        self.divergence: Divergence | None = None
        self.stop_reason = ""
        """Why the replay stopped before the agent ended, if the agent is not at fault."""
        self.start = start
        self.compared = 0
        self.served: list[str] = []
        self.outputs: list[dict[str, Any]] = []
        self._replica = replica
        self._past = replica.history
        self._steps = [step for step in steps if step.position <= end]
        self._is_cut = len(self._steps) < len(steps)
        self._calls = calls_by_identity(self._steps)
        self._call_at = {index: call for call in self._calls.values() for index in call.indexes}
        self._ignore = frozenset(ignore)
        self._undone = {
            step.content.ended for step in self._steps if isinstance(step.content, TurnContinued)
        }
        """The positions of failures of turns that were continued: the replayed run has none."""
        self._consumed: set[int] = set()
        self._optional: set[int] = set()
        """Steps written while a call ran: by the tool, which does not run now, or in parallel."""
        self._documents: dict[str, bytes] = {}
        self._lanes: dict[str, object] = {}
        """The thread or task in which each turn was entered: calls from others are parallel."""
        self._state = SessionState() if base is None else base
        self._last: bytes | None = None
        self._next_index = 0
        for step in self._steps:
            if step.position <= start:
                self._apply(step, owner=True)
        self._start = self._next_index
        self._publish()

    @property
    def position(self) -> int:
        """The position in the record that the agent has reached."""
        return self._steps[self._next_index - 1].position if self._next_index else 0

    def next_turn(self) -> str | None:
        """Return the id of the next recorded turn, or None if its caller chose the id."""
        for step in self._steps[self._next_index :]:
            if step.kind == TurnBegun.kind and step.number not in self._consumed:
                return step.id if step.id.startswith(GENERATED_PREFIX) else None
        return None

    # Writes.

    def match(self, plan: Plan[T], batch: RecordBatch, result: T, lane: object) -> T:
        """Compare the records of a plan with the record, and return the recorded result."""
        self.require_running()
        if plan.kind in ("turn.begin", "turn.continue"):
            self._lanes[plan.subject] = lane
        recorded_at: dict[int, int] = {}
        for number, draft in enumerate(batch.pending):
            if not written_by_perdure(draft.content):
                recorded_at[batch.tip.position + 1 + number] = self._match(draft, batch)
        self._publish()
        if plan.kind == "value" or not recorded_at:
            return result
        # A position in the batch becomes the position of the same record in the recording.
        if type(result) is int:
            return recorded_at.get(result, self.position)  # type: ignore[call-overload, no-any-return] # T is int
        if isinstance(result, range):
            stored = [recorded_at.get(position, self.position) for position in result]
            return range(stored[0], stored[-1] + 1)  # type: ignore[return-value] # T is range
        if isinstance(result, TurnStart):
            position = recorded_at.get(result.position, self.position)
            return result._replace(position=position)
        return result

    def _match(self, draft: PendingRecord, batch: RecordBatch) -> int:
        """Consume the step that a draft equals, and return its position."""
        content = draft.content
        if isinstance(content, TurnContinued) or content.kind.startswith("lease."):
            self._state = self._state.draft()
            self._state.apply(self.position, draft.id, content, draft.payload)
            return self.position
        if isinstance(content, EffectIntent):
            return self._match_intent(content)
        if isinstance(content, EffectOutcome):
            return self._match_outcome(content)
        # Pieces depend on timing.
        if content.kind in self._ignore or isinstance(content, MessageChunk):
            return self.position
        step = self._next()
        optional = [self._steps[index] for index in sorted(self._optional)]
        for candidate in [step, *optional] if step else optional:
            if self._compare(candidate, draft, batch) is None:
                self._consume([candidate.number])
                self.compared += 1
                return candidate.position
        at = self._compare(step, draft, batch) if step else None
        return self._diverge(content, step, at)

    def _compare(
        self, step: RecordedStep, draft: PendingRecord, batch: RecordBatch
    ) -> tuple[str, Any, Any] | None:
        """Return how a draft differs from a step; None if they are equal."""
        content = draft.content
        if step.kind != content.kind:
            return "", describe_record(step.content), describe_record(content)
        if not draft.id.startswith(GENERATED_PREFIX) and draft.id != step.id:
            return "id", step.id, draft.id
        recorded, given = compared_fields(step.content), compared_fields(content)
        if isinstance(content, Value) and isinstance(step.content, Value):
            # Values are stored as deltas, which may differ for the same document.
            document = canonical_tree(self._document(step))
            recorded = {**_value_fields(step.content), "data": document}
            data = batch.values.get(content.key)
            tree = None if data is None else canonical_tree(codec.decode_tree(data))
            given = {**_value_fields(content), "data": tree}
        return None if is_identical(recorded, given) else first_difference(recorded, given)

    def _document(self, step: RecordedStep) -> Any:
        content = step.content
        assert isinstance(content, Value)  # noqa: S101 - checked by the caller
        if content.form == "deleted":
            return None
        base = self._documents.get(content.key, b"")
        return codec.decode_tree(apply_version(self.name, step.position, base, content))

    # Calls.

    def take_call(self, call: CallRequest, lane: object) -> RecordedCall:
        """Consume the recorded call, which must be the next one or a parallel one."""
        self.require_running()
        recorded = self._find(call.identity, to_intent(call), lane=lane)
        self._require_outcome(recorded)
        begun = recorded.last_begun
        if begun >= self._start:
            self._optional |= {
                step.number
                for step in self._steps[begun : recorded.last]
                if step.number not in self._call_at
                and not (self._is_skipped(step) or step.kind.startswith("turn."))
            }
        self._consume(self._with_nested(recorded))
        self.served.append(call.tool)
        self._publish()
        return recorded

    def take_model_call(self, call: CallRequest) -> tuple[RecordedCall, list[Message]]:
        """Return the recorded answer to an adapter's model call: its messages.

        Nothing is consumed: the adapter's own writes follow, in order.
        """
        self.require_running()
        recorded = self._find(call.identity, to_intent(call), ordered=False)
        outcome = self._require_outcome(recorded)
        self.served.append(call.tool)
        if not outcome.message_count:
            return recorded, []
        earlier = [step.content for step in self._steps[: recorded.last]]
        messages = [content for content in earlier if isinstance(content, Message)]
        return recorded, messages[-outcome.message_count :]

    def _require_outcome(self, call: RecordedCall) -> EffectOutcome:
        if call.outcome is None:
            self.stop(f"the record ends while {call.intent.tool!r} was in flight")
        return call.outcome

    def message(self, number: int) -> tuple[int, dict[str, Any]]:
        """Return the position and the message of a step."""
        step = self._steps[number]
        assert isinstance(step.content, Message)  # noqa: S101 - checked by `record.calls_by_identity`
        message = self._replica.settings.codec.unpack(step.content.message, stream=self.name)
        return step.position, message

    def position_of(self, call: RecordedCall) -> int:
        """Return the position of a call's outcome."""
        return self._steps[call.last].position

    def precedes_start(self, call: RecordedCall) -> bool:
        """Whether a call ended before the replay began: it is served as after a takeover."""
        return call.last < self._start

    def _find(
        self, identity: str, given: EffectIntent, *, lane: object = None, ordered: bool = True
    ) -> RecordedCall:
        """Return the recorded call, or diverge if it differs or is not the next one."""
        recorded = self._calls.get(identity)
        step = self._next()
        if recorded is None:
            self._diverge(given, self._closest(given, step))
        # The policy and the parent are not recorded in a request for approval.
        blank = {"policy": "", "parent": ""} if recorded.refused else {}
        fields = {**compared_fields(given), **blank}
        attempts = [{**compared_fields(content), **blank} for _, content in recorded.attempts]
        if not any(is_identical(attempt, fields) for attempt in attempts):
            self._diverge(given, self._steps[recorded.attempts[-1][0]])
        parallel = lane is not None and self._lanes.get(recorded.intent.turn, lane) != lane
        for step in self._steps[self._next_index : recorded.begun] if ordered else ():
            other = self._call_at.get(step.number)
            if other is not None and (parallel or other.group == recorded.group):
                continue
            if step.number not in self._consumed and not self._is_skipped(step):
                self._diverge(given, step)
        return recorded

    def _closest(self, given: EffectIntent, step: RecordedStep | None) -> RecordedStep | None:
        """Return the recorded call that most likely corresponds to one that is not recorded."""
        if step is not None and not isinstance(step.content, EffectIntent):
            return step
        group = self._call_at[step.number].group if step else 0
        for other in self._steps[self._next_index :]:
            content = other.content
            if (
                isinstance(content, EffectIntent)
                and other.number not in self._consumed
                and self._call_at[other.number].group == group
                and content.tool == given.tool
            ):
                return other
        return step

    def _with_nested(self, call: RecordedCall) -> list[int]:
        """Return the steps of a call and of all calls made within it."""
        indexes = [*call.indexes]
        for other in self._calls.values():
            if other.intent.parent == call.identity:
                indexes += self._with_nested(other)
        return indexes

    def _match_intent(self, content: EffectIntent) -> int:
        recorded = self._find(content.identity, content)
        self._consume([index for index, _ in recorded.attempts])
        self.compared += 1
        return self._steps[recorded.attempts[-1][0]].position

    def _match_outcome(self, content: EffectOutcome) -> int:
        call = self._calls[content.identity]
        outcome = self._require_outcome(call)
        names = ("state", "error", "reason", "message_count", "result", "unstored")
        recorded = {name: getattr(outcome, name) for name in names}
        given = {name: getattr(content, name) for name in names}
        index = call.last
        if not is_identical(recorded, given):
            self._diverge(content, self._steps[index], first_difference(recorded, given))
        self._consume([number for number, _ in call.outcomes])
        self.compared += 1
        return self._steps[index].position

    # Advancing.

    def require_running(self) -> None:
        """Raise ReplayStopped once the replay is over."""
        if self.divergence is not None or self.stop_reason:
            raise ReplayStopped

    def finish(self) -> None:
        """Diverge if the agent has ended before the record."""
        if self.divergence is not None or self.stop_reason:
            return
        step = self._next()
        if step is not None:
            what = "the agent ended here, and the record continues"
            values = describe_record(step.content), describe_record(None)
            self.divergence = Divergence(step.position, what, "", *values)

    def diverge_at(self, position: int, what: str, recorded: Any, given: Any) -> NoReturn:
        """Stop with the first difference between two trees."""
        at = first_difference(recorded, given) or ("", recorded, given)
        self._stop_diverged(position, what, at)

    def _stop_diverged(self, position: int, what: str, at: tuple[str, Any, Any]) -> NoReturn:
        if self.divergence is None:
            self.divergence = Divergence(position, what, *at)
        raise ReplayStopped

    def _next(self) -> RecordedStep | None:
        self._advance()
        return self._steps[self._next_index] if self._next_index < len(self._steps) else None

    def _consume(self, indexes: Sequence[int]) -> None:
        self._consumed |= {*indexes}
        self._optional -= {*indexes}
        self._advance()

    def _advance(self) -> None:
        """Apply all steps up to the next one that the agent has to write."""
        while self._next_index < len(self._steps):
            step = self._steps[self._next_index]
            if step.number not in self._consumed and not self._is_skipped(step):
                return
            self._apply(step)
            if isinstance(step.content, TurnContinued):
                self._skip_repeated(step.content.turn)

    def _is_skipped(self, step: RecordedStep) -> bool:
        """Whether a record is not the agent's own, or the agent does not have to write it again."""
        kind = step.kind
        return (
            kind in SKIPPED_KINDS
            or kind in self._ignore
            or kind.startswith(("approval", "lease."))
            or step.number in self._optional
            or step.position in self._undone
            or written_by_perdure(step.content)
        )

    def _apply(self, step: RecordedStep, *, owner: bool = False) -> None:
        """Apply a step to the state. `owner` is for steps before the start of the replay."""
        self._state = self._state.draft()
        content = step.content
        ownership = isinstance(content, TurnContinued) or content.kind.startswith("lease.")
        ownership = ownership or step.position in self._undone
        # The replayed run is never interrupted: it takes over nothing, and keeps its own turns.
        if owner or not ownership:
            self._state.apply(step.position, step.id, content, step.payload)
        if isinstance(content, Message):
            self._last = step.payload
            if not owner:
                self.outputs.append(content.message)
        elif isinstance(content, Value):
            document = self._documents.get(content.key, b"")
            if content.form != "deleted":
                document = apply_version(self.name, step.position, document, content)
            self._documents[content.key] = document
        self._next_index += 1

    def _skip_repeated(self, turn: str) -> None:
        """Skip messages that were appended again when a turn was taken over and its code reran."""
        earlier = self._steps[self._start : self._next_index]
        messages = [compared_fields(step.content) for step in earlier if step.is_message_of(turn)]
        for step in self._steps[self._next_index :]:
            if self._is_skipped(step):
                continue
            if step.number in self._call_at or not step.is_message_of(turn):
                return
            fields = compared_fields(step.content)
            if not any(is_identical(fields, message) for message in messages):
                return
            self._consumed.add(step.number)

    def _publish(self) -> None:
        """Set the replica's view to the current state."""
        tip = self._steps[self._next_index - 1].tip if self._next_index else EMPTY_CHAIN
        self._replica.view = StateView(self._state, self._past.until(tip), self._last)

    # Stopping.

    def _diverge(
        self, given: Content, step: RecordedStep | None, at: tuple[str, Any, Any] | None = None
    ) -> NoReturn:
        """Stop: the agent is at fault unless the record ends here for a reason of its own."""
        turn = getattr(given, "turn", "")
        if isinstance(given, EffectIntent):
            turn = turn or next(reversed(self._state.turns), "")
        reason = self._end_reason(turn, step)
        if reason:
            self.stop(reason)
        if step is None:
            what = "the record ends here, and the agent continues"
            self._stop_diverged(0, what, ("", describe_record(None), describe_record(given)))
        if at is None and step.kind == given.kind:
            at = first_difference(compared_fields(step.content), compared_fields(given))
        what = f"{given.kind} differs from the recorded one"
        if at is None or not at[0]:
            at = "", describe_record(step.content), describe_record(given)
            what = "the agent did something other than recorded"
        self._stop_diverged(step.position, what, at)

    def _end_reason(self, turn: str, step: RecordedStep | None) -> str:
        """Return why the record has no more of a turn, if the agent is not at fault, or ""."""
        if turn not in self._state.turns:
            return "the end of the replayed part" if step is None and self._is_cut else ""
        if step is None:
            return f"the turn {turn} is open at the end of the record"
        if isinstance(step.content, TurnAbandoned) and step.content.turn == turn:
            return f"the turn {turn} was abandoned at position {step.position}"
        rest = [other.content for other in self._steps[step.number :]]
        own = [content for content in rest if getattr(content, "turn", "") == turn]
        if isinstance(step.content, TurnBegun) and all(map(written_by_perdure, own)):
            hint = f"replay the rest with start={self.position}"
            return f"the turn {turn} was interrupted and never resumed: {hint}"
        return ""

    def stop(self, reason: str) -> NoReturn:
        """Stop where the record does not contain what would come next."""
        if not self.stop_reason and self.divergence is None:
            self.stop_reason = reason
        raise ReplayStopped


def _value_fields(content: Value) -> dict[str, Any]:
    return {"key": content.key, "version": content.version, "deleted": content.form == "deleted"}


def require_read_only(steps: Steps[T]) -> Steps[T]:
    """Pass on requests that read; raise ReplayBlockedError for one that would write.

    The guard is suspended only while the store reads. An application's token counter, which the
    steps may call, stays guarded.
    """
    answer: Any = None
    resume: Any = steps.send
    while True:
        try:
            request = resume(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        if isinstance(request, Commit | CommitTogether | Drop):
            guard.refuse("a write to the store")
        try:
            with guard.suspended():
                reply = yield request
            resume, answer = steps.send, reply
        except Exception as error:  # noqa: BLE001 - thrown to where it belongs
            resume, answer = steps.throw, error
