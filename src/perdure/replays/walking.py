"""Walk along a record while its agent runs again: serve what was called, compare what is written.

Pure. The view that the agent has is the recorded one, moved on as far as the agent has come. What
it writes must be what comes next in the record; calls are known by their identity, and those that
ran side by side may come in any order. What perdure itself and others wrote is passed over.
"""

from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from perdure import codec, writing
from perdure.content import Content
from perdure.effects.effecting import Called
from perdure.fold import GENERATED, Fold
from perdure.journal import EMPTY, Draft
from perdure.plans import Batch, Plan
from perdure.records import (
    EffectIntended,
    EffectSettled,
    Message,
    Piece,
    TurnAbandoned,
    TurnBegun,
    TurnContinued,
    Value,
)
from perdure.replays.diverging import Divergence, described, difference, same, tree
from perdure.replays.recorded import NOT_THE_AGENTS, Call, Step, as_intent, calls, is_own
from perdure.replica import Replica
from perdure.standing import View


class Stopped(BaseException):
    """The walk is over: a difference was found, or the record ends. Agents do not catch it."""


class Walk:
    """The record of a session, and how far along it a run of its agent is."""

    def __init__(
        self, replica: Replica, steps: Sequence[Step], start: int, end: int, ignore: Collection[str]
    ) -> None:
        self.name = replica.name
        self.divergence: Divergence | None = None
        self.ended = ""
        """Why the walk stopped before the agent did, where the record is not to blame."""
        self.start = start
        self.compared = 0
        self.served: list[str] = []
        self.outputs: list[dict[str, Any]] = []
        self._replica = replica
        self._past = replica.past
        self._steps = [step for step in steps if step.position <= end]
        self._is_cut = len(self._steps) < len(steps)
        self._calls = calls(self._steps)
        self._of = {index: call for call in self._calls.values() for index in call.indexes}
        self._ignore = frozenset(ignore)
        self._done: set[int] = set()
        self._inner: set[int] = set()
        """What was written while a call ran: by the tool, which does not run now, or beside it."""
        self._documents: dict[str, bytes] = {}
        self._lanes: dict[str, object] = {}
        """In which thread or task each turn was entered: calls from others run beside it."""
        self._fold = Fold()
        self._last: bytes | None = None
        self._at = 0
        while self._at < len(self._steps) and self._steps[self._at].position <= start:
            self._pass(self._steps[self._at], owner=True)
        self._start = self._at
        self._show()

    @property
    def position(self) -> int:
        """How far along the record the agent has come."""
        return self._steps[self._at - 1].position if self._at else 0

    def next_turn(self) -> str | None:
        """Return the id of the next turn in the record that was not given one by its caller."""
        for step in self._steps[self._at :]:
            if step.kind == TurnBegun.kind and step.number not in self._done:
                return step.id if step.id.startswith(GENERATED) else None
        return None

    # What is written.

    def take(self, plan: Plan, batch: Batch, answer: int, lane: object) -> int:
        """Compare what a plan would write with the record, and return its answer then."""
        self.require_going()
        if plan.kind in ("turn.begin", "turn.continue"):
            self._lanes[plan.subject] = lane
        places: dict[int, int] = {}
        for number, draft in enumerate(batch.drafts):
            if not is_own(draft.content):
                places[batch.tip.position + 1 + number] = self._match(draft, batch)
        self._show()
        if plan.kind == "value" or not places:
            return answer
        place = places.get(abs(answer), self.position)
        return place if answer > 0 else -place

    def _match(self, draft: Draft, batch: Batch) -> int:
        content = draft.content
        if isinstance(content, TurnContinued) or content.kind.startswith("lease."):
            self._fold = self._fold.draft()
            self._fold.apply(self.position, draft.id, content, draft.payload)
            return self.position
        if isinstance(content, EffectIntended):
            return self._intended(content)
        if isinstance(content, EffectSettled):
            return self._settled(content)
        if content.kind in self._ignore or isinstance(content, Piece):  # Pieces go by the clock.
            return self.position
        step = self._next()
        for found in ([step] if step else []) + [
            self._steps[index] for index in sorted(self._inner)
        ]:
            if self._compare(found, draft, batch) is None:
                self._consume([found.number])
                self.compared += 1
                return found.position
        at = self._compare(step, draft, batch) if step else None
        return self._depart(content, step, at)

    def _compare(self, step: Step, draft: Draft, batch: Batch) -> tuple[str, Any, Any] | None:
        """Return how a draft differs from a step; None if it is the same."""
        content = draft.content
        if step.kind != content.kind:
            return "", described(step.content), described(content)
        if not draft.id.startswith(GENERATED) and draft.id != step.id:
            return "id", step.id, draft.id
        recorded, given = tree(step.content), tree(content)
        if isinstance(content, Value) and isinstance(step.content, Value):
            recorded = {**_value(step.content), "data": self._document(step)}
            data = batch.values.get(content.key)
            given = {**_value(content), "data": None if data is None else codec.decode_tree(data)}
        return None if same(recorded, given) else difference(recorded, given)

    def _document(self, step: Step) -> Any:
        content = step.content
        assert isinstance(content, Value)  # noqa: S101 - the caller saw to it
        if content.form == "deleted":
            return None
        before = self._documents.get(content.key, b"")
        return codec.decode_tree(writing.apply_version(self.name, step.position, before, content))

    # What is called.

    def call(self, made: Called, lane: object) -> Call:
        """Return what the record has of a call, which must be the next, or one beside it."""
        self.require_going()
        given = as_intent(made)
        found = self._found(made.identity, given, lane=lane)
        if found.outcome is None:
            self.end(f"the record ends while {made.tool!r} was under way")
        begun = found.attempts[-1][0]
        if begun >= self._start:
            self._inner |= {
                step.number
                for step in self._steps[begun : found.last]
                if step.number not in self._of
                and not (self._is_passed(step) or step.kind.startswith("turn."))
            }
        self._consume(self._with_nested(found))
        self.served.append(made.tool)
        self._show()
        return found

    def asked(self, made: Called) -> tuple[Call, list[Message]]:
        """Return what the record has of an answer that an adapter asks for: its messages."""
        self.require_going()
        found = self._found(
            made.identity, as_intent(made), ordered=False
        )  # Its writes come in order.
        outcome = found.outcome
        if outcome is None:
            self.end(f"the record ends while {made.tool!r} was asked")
        self.served.append(made.tool)
        if not outcome.said:
            return found, []
        index = found.last
        said = [step.content for step in self._steps[:index] if isinstance(step.content, Message)]
        return found, said[-outcome.said :]

    def message(self, number: int) -> tuple[int, dict[str, Any]]:
        """Return the message of a step, and its position."""
        step = self._steps[number]
        assert isinstance(step.content, Message)  # noqa: S101 - `recorded.calls` saw to it
        found = self._replica.settings.codec.unpack(step.content.message, stream=self.name)
        return step.position, found

    def before(self, call: Call) -> bool:
        """Whether a call ended before the walk began: then it is served, as to who takes over."""
        return call.last < self._start

    def _found(
        self, identity: str, given: EffectIntended, *, lane: object = None, ordered: bool = True
    ) -> Call:
        found = self._calls.get(identity)
        step = self._next()
        if found is None:
            self._depart(given, self._like(given, step))
        left_out = {"policy": "", "parent": ""} if found.refused else {}
        attempts = [{**tree(content), **left_out} for _, content in found.attempts]
        if not any(same(one, {**tree(given), **left_out}) for one in attempts):
            self._depart(given, self._steps[found.attempts[-1][0]])
        beside = lane is not None and self._lanes.get(found.intent.turn, lane) != lane
        for step in self._steps[self._at : found.first] if ordered else ():
            other = self._of.get(step.number)
            if other is not None and (beside or other.group == found.group):
                continue
            if step.number not in self._done and not self._is_passed(step):
                self._depart(given, step)
        return found

    def _like(self, given: EffectIntended, step: Step | None) -> Step | None:
        """Return the recorded call that one that is not there most likely stands for."""
        if step is not None and not isinstance(step.content, EffectIntended):
            return step
        group = self._of[step.number].group if step else 0
        for other in self._steps[self._at :]:
            content = other.content
            if (
                isinstance(content, EffectIntended)
                and other.number not in self._done
                and self._of[other.number].group == group
                and content.tool == given.tool
            ):
                return other
        return step

    def _with_nested(self, call: Call) -> list[int]:
        """Return the steps of a call and of all that were made within it."""
        found = [*call.indexes]
        for other in self._calls.values():
            if other.intent.parent == call.identity:
                found += self._with_nested(other)
        return found

    def _intended(self, content: EffectIntended) -> int:
        found = self._found(content.identity, content)
        self._consume([index for index, _ in found.attempts])
        self.compared += 1
        return self._steps[found.attempts[-1][0]].position

    def _settled(self, content: EffectSettled) -> int:
        found = self._calls[content.identity]
        outcome = found.outcome
        if outcome is None:
            self.end(f"the record ends while {found.intent.tool!r} was under way")
        names = ("state", "error", "reason", "said", "result")
        recorded, given = (
            {name: getattr(one, name) for name in names} for one in (outcome, content)
        )
        index = found.last
        if not same(recorded, given):
            self._depart(content, self._steps[index], difference(recorded, given))
        self._consume([number for number, _ in found.outcomes])
        self.compared += 1
        return self._steps[index].position

    # Moving on.

    def require_going(self) -> None:
        """Raise once the walk is over."""
        if self.divergence is not None or self.ended:
            raise Stopped

    def finish(self) -> None:
        """Take in that the agent has ended: the record must have, too."""
        if self.divergence is not None or self.ended:
            return
        step = self._next()
        if step is not None:
            what = "the agent ended here, and the record goes on"
            told = described(step.content), described(None)
            self.divergence = Divergence(step.position, what, "", *told)

    def depart_from(self, position: int, what: str, recorded: Any, given: Any) -> NoReturn:
        """Stop at the first place where two trees differ."""
        self._depart_at(position, what, difference(recorded, given) or ("", recorded, given))

    def _depart_at(self, position: int, what: str, at: tuple[str, Any, Any]) -> NoReturn:
        if self.divergence is None:
            self.divergence = Divergence(position, what, *at)
        raise Stopped

    def _next(self) -> Step | None:
        self._advance()
        return self._steps[self._at] if self._at < len(self._steps) else None

    def _consume(self, indexes: Sequence[int]) -> None:
        self._done |= {*indexes}
        self._inner -= {*indexes}
        self._advance()

    def _advance(self) -> None:
        while self._at < len(self._steps):
            step = self._steps[self._at]
            if step.number not in self._done and not self._is_passed(step):
                return
            self._pass(step)
            if isinstance(step.content, TurnContinued):
                self._pass_repeated(step.content.turn)

    def _is_passed(self, step: Step) -> bool:
        """Whether a record is not one that the agent's own code wrote, or will write now."""
        kind = step.kind
        return (
            kind in NOT_THE_AGENTS
            or kind in self._ignore
            or kind.startswith(("approval", "lease."))
            or step.number in self._inner
            or is_own(step.content)
        )

    def _pass(self, step: Step, *, owner: bool = False) -> None:
        self._fold = self._fold.draft()
        content = step.content
        taken = isinstance(content, TurnContinued) or content.kind.startswith("lease.")
        if owner or not taken:  # A run that is not cut takes nothing over, and holds its own.
            self._fold.apply(step.position, step.id, content, step.payload)
        if isinstance(content, Message):
            self._last = step.payload
            if not owner:
                self.outputs.append(content.message)
        elif isinstance(content, Value):
            before = self._documents.get(content.key, b"")
            if content.form != "deleted":
                before = writing.apply_version(self.name, step.position, before, content)
            self._documents[content.key] = before
        self._at += 1

    def _pass_repeated(self, turn: str) -> None:
        """Pass over messages that whoever took a turn over said again, as its code ran again."""
        before = self._steps[self._start : self._at]
        said = [tree(step.content) for step in before if step.said_in(turn)]
        for step in self._steps[self._at :]:
            if self._is_passed(step):
                continue
            if step.number in self._of or not step.said_in(turn):
                return
            if not any(same(tree(step.content), one) for one in said):
                return
            self._done.add(step.number)

    def _show(self) -> None:
        tip = self._steps[self._at - 1].tip if self._at else EMPTY
        self._replica.view = View(self._fold, self._past.until(tip), self._last)

    # Stopping.

    def _depart(
        self,
        given: Content,
        step: Step | None,
        at: tuple[str, Any, Any] | None = None,
    ) -> NoReturn:
        turn = getattr(given, "turn", "")
        if isinstance(given, EffectIntended):
            turn = turn or next(reversed(self._fold.turns), "")
        why = self._why_ended(turn, step)
        if why:
            self.end(why)
        if step is None:
            what = "the record ends here, and the agent goes on"
            self._depart_at(0, what, ("", described(None), described(given)))
        if at is None and step.kind == given.kind:
            at = difference(tree(step.content), tree(given))
        what = f"another {given.kind} than the recorded one"
        if at is None or not at[0]:
            at = "", described(step.content), described(given)
            what = "something else than what was recorded"
        self._depart_at(step.position, what, at)

    def _why_ended(self, turn: str, step: Step | None) -> str:
        """Return why the record has no more of a turn, where that is no fault of the agent."""
        if turn not in self._fold.turns:
            return "the end of what was to be replayed" if step is None and self._is_cut else ""
        if step is None:
            return f"the turn {turn} is open at the end of the record"
        if isinstance(step.content, TurnAbandoned) and step.content.turn == turn:
            return f"the turn {turn} was given up at position {step.position}"
        rest = [other.content for other in self._steps[step.number :]]
        if isinstance(step.content, TurnBegun) and not any(
            getattr(content, "turn", "") == turn and not is_own(content) for content in rest
        ):
            go_on = f"replay what came after with start={self.position}"
            return f"the turn {turn} was interrupted and nobody went on with it: {go_on}"
        return ""

    def end(self, why: str) -> NoReturn:
        """Stop where the record can not say how it went on."""
        if not self.ended and self.divergence is None:
            self.ended = why
        raise Stopped


def _value(content: Value) -> dict[str, Any]:
    return {"key": content.key, "version": content.version, "deleted": content.form == "deleted"}
