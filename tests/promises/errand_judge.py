"""What must be true of errands, whenever and however often their process died.

The record, as an independent reader finds it, is compared with what really happened outside, and
with what each process found before it went on.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import perdure
from perdure.core.effects.calls import DidNotHappen, Happened
from perdure.core.state.effects import key_of
from perdure.formats.tool_calls import INTERRUPTED_NOTICE
from perdure.journal.records import EffectIntent, EffectOutcome
from perdure.testing import violations
from tests.promises.errand_runs import Found
from tests.promises.errands import ASKED, ERRANDS, INNER, ISSUED, Scenario, result
from tests.promises.world import Line

FORMATS = ("openai.chat", "openai.responses", "anthropic", "gemini")
OPEN = "intended"


class Deed(NamedTuple):
    """A call as the record has it: every attempt, and every outcome, with their positions."""

    identity: str
    attempts: list[tuple[int, str, EffectIntent]]
    outcomes: list[tuple[int, EffectOutcome]]

    @property
    def policy(self) -> str:
        return self.attempts[0][2].policy

    @property
    def errand(self) -> str:
        return errand_of(self.attempts[0][2])

    @property
    def state(self) -> str:
        return self.outcomes[-1][1].state if self.outcomes else OPEN


def errand_of(intent: EffectIntent) -> str:
    """Return which errand a call was to run; what a model was asked is not in the record."""
    return ASKED if intent.call_type == "model" else str(intent.arguments["errand"])


def deeds(session: perdure.Session) -> dict[str, Deed]:
    """Read the record and sort its effects by call."""
    found: dict[str, Deed] = {}
    for record in session.records():
        content = record.content
        if isinstance(content, EffectIntent):
            deed = found.setdefault(content.identity, Deed(content.identity, [], []))
            deed.attempts.append((record.position, record.id, content))
        elif isinstance(content, EffectOutcome):
            found[content.identity].outcomes.append((record.position, content))
    return found


class Judge:
    """Compares. `whole` says that the errands were run to their end and not given up."""

    def __init__(
        self,
        session: perdure.Session,
        scenario: Scenario,
        lines: Sequence[Line],
        found: Sequence[Found],
        *,
        whole: bool = True,
    ) -> None:
        self._session = session
        self._scenario = scenario
        self._lines = lines
        self._found = found
        self._whole = whole
        self._deeds = deeds(session)
        self._of = {
            id: identity for identity, deed in self._deeds.items() for _, id, _ in deed.attempts
        }
        counts: dict[str, int] = defaultdict(int)
        for line in lines:
            counts[self._of.get(line.effect, "")] += 1
        self._counts = counts

    def failure(self) -> str:
        """Return the first thing that is wrong, or nothing."""
        checks = (
            self._audited,
            self._not_run_again,
            self._calls,
            self._complete,
            self._model_is_told,
            self._person_is_told,
            self._sound,
        )
        return next((failure for check in checks for failure in check()), "")

    def _audited(self) -> Iterator[str]:
        """Nothing happened without an intent, nor twice for one. A read-only call may."""
        attempts = {
            id: (errand_of(intent), key_of(id, intent))
            for deed in self._deeds.values()
            for _, id, intent in deed.attempts
        }
        for line in self._lines:
            if line.effect not in attempts and not self._scenario.is_read_only(line.tool):
                yield f"{line.errand} happened without an intent"
            elif attempts.get(line.effect, line[:2]) != (line.errand, line.key):
                yield f"{line} is not what was intended: {attempts[line.effect]}"
        for effect, count in Counter(line.effect for line in self._lines).items():
            if count > 1:
                yield f"{effect} happened {count} times for one intent"
        keys = Counter({key_of(*deed.attempts[0][1:]) for deed in self._deeds.values()})
        if len(keys) < len(self._deeds):
            yield "two calls have the same key"

    def _not_run_again(self) -> Iterator[str]:
        """What a process found recorded, none after it ran again."""
        for number, (states, lines) in enumerate(self._found):
            before = Counter(self._of.get(line.effect, "") for line in lines)
            for identity, state in states.items():
                if state != OPEN and self._counts[identity] > before[identity]:
                    yield f"{identity} was {state} when process {number} began, and ran again"

    def _calls(self) -> Iterator[str]:
        left = {
            identity
            for states, _ in self._found
            for identity, state in states.items()
            if state == OPEN
        }
        for deed in self._deeds.values():
            what = f"{deed.errand} ({deed.policy}, {deed.identity})"
            if len(deed.outcomes) != 1:
                yield f"{what} has {len(deed.outcomes)} outcomes: {deed.outcomes}"
            elif any(position > deed.outcomes[0][0] for position, _, _ in deed.attempts):
                yield f"{what} was tried again after its outcome"
            if len({key_of(id, intent) for _, id, intent in deed.attempts}) > 1:
                yield f"{what} was tried with different keys"
            happened = self._counts[deed.identity]
            for wrong in self._call(deed, happened, left=deed.identity in left):
                yield f"{what} {wrong}: {deed.state}, happened {happened} times"

    def _call(self, deed: Deed, happened: int, *, left: bool) -> Iterator[str]:
        if happened > len(deed.attempts):
            yield "happened more often than it was tried"
        if deed.state == "succeeded" and not happened:
            yield "did not happen and is told to have"
        # A model that was not heard has changed nothing, and is not unknown but failed.
        given_up = "failed" if deed.errand == ASKED else "unknown"
        if not self._whole and deed.state == given_up:
            return
        if deed.policy == "unsafe":
            if happened > 1 or len(deed.attempts) > 1:
                yield "was repeated"
            if left != (deed.state == "unknown"):
                yield f"was left without an outcome: {left}"
        elif deed.policy == "reconcile":
            if happened != 1 or deed.state not in ("succeeded", "reconciled"):
                yield "was not reconciled"
        elif deed.state != "succeeded":
            yield "was not completed"

    def _complete(self) -> Iterator[str]:
        """No call is forgotten."""
        if not self._whole:
            return
        wanted = Counter(ERRANDS)
        unknown = {deed.errand for deed in self._deeds.values() if deed.state == "unknown"}
        found = Counter(deed.errand for deed in self._deeds.values())
        if "nested" not in unknown:
            wanted.update(INNER)
        missing = wanted - found
        surplus = found - wanted - Counter(INNER)
        if missing or surplus:
            yield f"missing {dict(missing)}, too many {dict(surplus)}"

    def _model_is_told(self) -> Iterator[str]:
        messages = self._session.messages()
        if not any("tool_calls" in one for one in messages):
            if self._whole:
                yield "the model's message is lost"
            return
        told = defaultdict(list)
        for one in messages:
            if one["role"] == "tool":
                told[one["tool_call_id"]].append(one["content"])
        by_errand = {deed.errand: deed for deed in self._deeds.values()}
        for number in range(ISSUED):
            texts, errand = told[f"c{number}"], f"issued-{number}"
            state = by_errand[errand].state if errand in by_errand else "unknown"
            wanted = INTERRUPTED_NOTICE if state == "unknown" else f'{{"done":"{errand}",'
            if len(texts) != 1 or not texts[0].startswith(wanted):
                yield f"{errand} is {state} and the model is told {texts}"
        if not self._whole:
            return
        said = "".join(str(one["content"]) for one in messages if one["role"] == "assistant")
        own = {"direct", "keyed", "nested", "later"}
        times = Counter(deed.errand for deed in self._deeds.values() if deed.state == "unknown")
        wanted_times = sum(times[errand] for errand in own) + times["keyed"]
        if said.count("UnknownOutcomeError") != wanted_times:
            yield f"{wanted_times} calls of the agent's own are unknown, it says {said}"

    def _person_is_told(self) -> Iterator[str]:
        unknown = {deed.attempts[-1][1] for deed in self._deeds.values() if deed.state == "unknown"}
        listed = {one.id for one in self._session.effects.unknown()}
        if listed != unknown:
            yield f"a person is told of {listed} and not of {unknown}"
        if bool(unknown) != ("unknown-effect" in self._session.labels):
            yield f"{len(unknown)} are unknown, and the labels are {set(self._session.labels)}"

    def _sound(self) -> Iterator[str]:
        for one in self._session.effects.list(kind="tool"):
            errand = one.arguments["errand"]
            if one.state in ("succeeded", "reconciled") and one.result != result(errand):
                yield f"{errand} returned something else: {one.result}"
        if self._session.interrupted:
            yield f"{self._session.interrupted} did not end"
        for format in FORMATS:
            found = self._session.messages(format=format)
            system = found.system if format in ("anthropic", "gemini") else None
            if found.interrupted_calls:
                yield f"calls {found.interrupted_calls} stayed open"
            for wrong in violations(format, found, system=system):
                yield f"{format} would not accept: {wrong}"
        self._session.verify()

    def reconcile(self) -> str:
        """Find out about what is unknown, as a person would; return what is wrong then."""
        for one in self._session.effects.unknown():
            done = self._counts[one.identity] > 0
            self._session.effects.reconcile(one.id, Happened("it was") if done else DidNotHappen())
        if self._session.effects.unknown() or self._session.labels:
            return f"something stayed unknown: {self._session.labels}"
        states = Counter(deed.state for deed in deeds(self._session).values())
        if states["unknown"] or states[OPEN]:
            return f"the record says {states}"
        self._session.verify()
        return ""
