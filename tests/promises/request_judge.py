"""Whether a request that was disturbed and tried again did what it had to, and no more."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import perdure
from perdure.backends.protocol import Backend
from perdure.testing import violations
from tests.promises import requests
from tests.promises.requests import (
    ANY,
    CANCEL,
    CTRL_C,
    DISTURBANCES,
    KILL,
    SESSION,
    TOOL,
    Disturbance,
    Form,
    Report,
    Scenario,
    World,
)

LIVED = ("succeeded", "reconciled")


class Reference(NamedTuple):
    """A run that nothing disturbs: its answer, its messages, and the points that it passes."""

    answer: str
    messages: list[Any]
    points: Sequence[str]


_references: dict[str, Reference] = {}  # By form and scenario: the same on every kind of store.


class Table:
    """The rows of one form and scenario, on a store that a directory has room for."""

    def __init__(
        self,
        form: Form,
        scenario: Scenario,
        directory: Path,
        open_backend: Callable[[], Backend],
        clear: Callable[[], object],
    ) -> None:
        self._form = form
        self._scenario = scenario
        self._directory = directory
        self._open = open_backend
        self._clear = clear
        key = str(self)
        if key not in _references:
            _references[key] = self._undisturbed()
        self.reference = _references[key]

    def __str__(self) -> str:
        return f"{self._form}, {self._scenario}"

    def _run(self, disturbance: Disturbance | None = None) -> Report:
        world = World(self._directory, self._scenario, disturbance)
        return requests.run(self._form, self._open, world)

    def _undisturbed(self) -> Reference:
        self._start()
        report = self._run()
        if report.answer is None:
            raise RuntimeError(f"{self}: {report.raised or 'it has no answer'}")
        with perdure.open(self._open()) as store:
            return Reference(report.answer, _messages(store.session(SESSION)), report.points)

    def _start(self) -> None:
        self._clear()
        for name in ("ledger", "happened"):
            (self._directory / name).unlink(missing_ok=True)

    def disturbances(self) -> Iterator[Disturbance]:
        """Yield everything that can happen, at every point where it can."""
        for kind, where in DISTURBANCES.items():
            if kind == CANCEL and not self._form.is_async:
                continue
            passed: Counter[str] = Counter()
            for what in self.reference.points:
                passed[what] += 1
                if what.startswith(where):
                    yield Disturbance(kind, passed[what], what)

    def any_point(self, draw: random.Random) -> Disturbance:
        """Return something that can happen anywhere, at a point of a later run: it has no name."""
        kinds = [KILL, CTRL_C, CANCEL] if self._form.is_async else [KILL, CTRL_C]
        at = draw.randint(1, len(self.reference.points))
        return Disturbance(draw.choice(kinds), at, ANY)

    def failure(self, disturbance: Disturbance, again: Disturbance | None = None) -> str:
        """Disturb the request, and perhaps its second run; return what is wrong at the end."""
        self._start()
        first = self._run(disturbance)
        if first.killed and disturbance.kind != KILL:
            return "it hangs"
        if again is not None and self._run(again).killed and again.kind != KILL:
            return "it hangs when it is tried again"
        second = self._run()
        if second.answer is None:
            return f"it does not end: {second.raised or 'no answer'}"
        before = self._end()
        third = self._run()
        if third.answer != second.answer:
            return f"the third run answers {third.answer!r} {third.raised}, not {second.answer!r}"
        done = [point for point in third.points if point.startswith(("model", "tool", "commit"))]
        if done or self._end() != before:
            return f"the third run did something: {done}"
        with perdure.open(self._open()) as store:
            return self._judge(store.session(SESSION), second.answer)

    def _end(self) -> int:
        with perdure.open(self._open()) as store:
            return store.session(SESSION).position

    def _judge(self, session: perdure.Session, answer: str) -> str:
        session.verify()
        invalid = violations("openai.chat", session.messages(format="openai.chat"))
        if invalid or session.interrupted:
            return f"{invalid or 'a turn is open'}"
        states = {
            effect.tool: effect.state
            for effect in session.effects.list(kind="tool")
            if effect.state != "repeated"
        }
        world = World(self._directory, self._scenario)
        counts = Counter(line.tool for line in world.effects())
        for tool in ("charge", "mail"):
            inside = {kind for kind, what in world.happened() if what.startswith(f"tool {tool}")}
            wrong = self._wrong(states.get(tool, "not called"), counts[tool], inside)
            if wrong:
                return f"{tool}: {wrong}"
        if {*states.values()} <= {*LIVED}:
            if answer != self.reference.answer:
                return f"the answer is {answer!r}, undisturbed {self.reference.answer!r}"
            if _messages(session) != self.reference.messages:
                return f"the messages are {_messages(session)}"
        return ""

    def _wrong(self, state: str, count: int, inside: set[str]) -> str:
        """Return what is wrong with a tool's state, given how often it took effect.

        `inside` are the kinds of what happened inside of it.
        """
        if count > 1:
            return f"it took effect {count} times"
        broke = TOOL in inside
        if self._scenario.policy == "idempotent":
            return "" if (state in LIVED and count == 1) or broke else f"{state}, {count} effects"
        if state in LIVED and count != 1:
            return f"it is recorded as {state}, and did not take effect"
        if count == 0 and state != "unknown" and not broke:
            return f"it did not take effect, and is recorded as {state}"
        if KILL in inside and state != "unknown":
            return f"its process died in it, and it is recorded as {state}"
        if state not in (*LIVED, "unknown") and not broke:
            return f"it is recorded as {state}"
        return ""


def _messages(session: perdure.Session) -> list[Any]:
    """Return the messages as a model gets them: the results of parallel calls in one order."""
    return [*session.messages(format="openai.chat")]
