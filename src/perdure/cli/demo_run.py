"""What the demo does: starts the assistant, kills it, starts it again, and compares. Shows nothing.

What counts as acknowledged is what came through the pipe before the kill; what counts as recovered
is what the next process says it read from the store. Both are compared word for word.
"""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Self

import perdure
from perdure.cli.demo_child import SCRIPT, THINKING, describe


class Fact(NamedTuple):
    """A record: as it was acknowledged, or as it was read."""

    position: int
    kind: str
    text: str


class Found(NamedTuple):
    """What a new process saw before it did anything, and how long seeing it took."""

    seconds: float
    facts: tuple[Fact, ...]
    interrupted: tuple[str, ...]
    plan: Any


class Moment(NamedTuple):
    """When to kill: in this turn, after so many parts, and then some seconds later."""

    turn: str
    parts: int
    delay: float


class Life(NamedTuple):
    """One process from its start to its end."""

    pid: int
    found: Found
    acknowledged: tuple[Fact, ...]
    again: int
    returncode: int
    killed_in: str


class Comparison(NamedTuple):
    """What was acknowledged and is not there as it was, what is there twice, what is there more."""

    lost: tuple[Fact, ...]
    doubled: tuple[str, ...]
    unacknowledged: tuple[Fact, ...]


class Verdict(NamedTuple):
    """The end of the demo: what there is, what was checked, and every reason not to be content."""

    acknowledged: int
    lost: int = 0
    doubled: int = 0
    messages: int = 0
    plan: Any = None
    verified: perdure.Verified | None = None
    problems: tuple[str, ...] = ()


class AssistantError(Exception):
    """The assistant's process could not do its work; the text says why."""


def moments(kills: int, seed: int) -> list[Moment]:
    """Choose when to kill: at random within the two turns, so that each run gets on a little."""
    draw = random.Random(seed)  # noqa: S311 - it must repeat, not be secret.
    chosen = []
    shares = ((kills + 1) // 2, kills // 2)
    for scene, share in zip(SCRIPT, shares, strict=True):
        most = max((len(scene.parts) - 1) // share, 1) if share else 0
        for _ in range(share):
            delay = draw.uniform(0, 1.5 * THINKING)
            chosen.append(Moment(scene.turn, draw.randint(1, most), delay))
    return chosen


class _Assistant:
    """The assistant's process, seen from outside. Leaving `with` leaves no process behind."""

    def __init__(self, path: str, session: str) -> None:
        # -P: a file in the current directory must not stand in for a module.
        command = [sys.executable, "-P", "-m", "perdure.cli.demo_child", path, session]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)  # noqa: S603 - our own module.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield what the process says until it ends; what a kill cut short was not said."""
        for line in self.process.stdout or ():
            if line.endswith(b"\n"):
                yield json.loads(line)

    def go_on(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        """Wait until it has ended; return its exit code and the last line of its errors."""
        errors = self.process.communicate()[1].decode(errors="replace").strip()
        return self.process.returncode, errors.splitlines()[-1] if errors else "it said nothing"

    def kill_after(self, delay: float) -> None:
        time.sleep(delay)
        self.process.kill()


def live(
    path: str, session: str, moment: Moment | None, on_found: Callable[[int, Found], object]
) -> Life:
    """Run the assistant until it is killed at the given moment, or to the end of the script."""
    found: Found | None = None
    facts: list[Fact] = []
    again = parts = 0
    turn = killed_in = ""
    with _Assistant(path, session) as assistant:
        for event in assistant.events():
            match event:
                case {"event": "found"}:
                    found = _found(event)
                    on_found(assistant.process.pid, found)
                case {"event": "stored", "record": record}:
                    facts.append(Fact(*record))
                    again += event["again"]
                    turn, parts = _progress(facts[-1], turn, parts)
                case {"event": "trouble", "reason": reason}:
                    raise AssistantError(reason)
            is_waiting = event["event"] == "wait"
            if moment and not killed_in and moment.turn == turn:
                if parts >= moment.parts or is_waiting:
                    killed_in = turn
                    assistant.kill_after(moment.delay)
            elif is_waiting and not killed_in:
                assistant.go_on()
        code, errors = assistant.end()
    if found is None or (code and not killed_in):
        raise AssistantError(f"the assistant's process ended with {code}: {errors}")
    return Life(assistant.process.pid, found, tuple(facts), again, code, killed_in)


def _progress(fact: Fact, turn: str, parts: int) -> tuple[str, int]:
    """Return the turn that the process is in, and how many parts of it this process has done."""
    if fact.kind in {"turn.begun", "turn.continued"}:
        return fact.text.split("'")[1], 0
    return turn, parts + (fact.kind == "value")


def _found(event: dict[str, Any]) -> Found:
    facts = tuple(Fact(*record) for record in event["records"])
    return Found(event["seconds"], facts, tuple(event["interrupted"]), event["plan"])


def compare(acknowledged: Iterable[Fact], recovered: Sequence[Fact]) -> Comparison:
    """Say what of the acknowledged was not recovered as it was, and what was recovered twice."""
    told = dict.fromkeys(acknowledged)
    there = set(recovered)
    once = [fact.text for fact in recovered if fact.kind != "turn.continued"]
    return Comparison(
        lost=tuple(fact for fact in told if fact not in there),
        doubled=tuple(text for text, count in Counter(once).items() if count > 1),
        unacknowledged=tuple(fact for fact in recovered if fact not in told),
    )


def judge(path: str, session_id: str, lives: Sequence[Life]) -> Verdict:
    """Open what is left, in this process, and check it against everything that was said."""
    told = list(dict.fromkeys(fact for life in lives for fact in life.acknowledged))
    try:
        with perdure.open(path) as store, store.resume(session_id) as session:
            return _judge(session, told, lives)
    except (perdure.DamagedError, perdure.NotFoundError) as error:
        return Verdict(len(told), problems=(str(error),))


def _judge(session: perdure.Session, told: Sequence[Fact], lives: Sequence[Life]) -> Verdict:
    facts = [Fact(found.position, found.kind, describe(found)) for found in session.records()]
    said = [f"{message['role']}: {message['content']}" for message in session.messages()]
    comparison = compare(told, facts)
    problems = [*_misses(comparison), *_mishaps(lives)]
    if said != _expected():
        problems.append("the conversation is not the one of the script")
    if session.interrupted:
        problems.append("a turn is still open")
    return Verdict(
        len(told),
        len(comparison.lost),
        len(comparison.doubled),
        len(said),
        session.get("plan"),
        session.verify(),
        tuple(problems),
    )


def _expected() -> list[str]:
    said = []
    for scene in SCRIPT:
        said += [f"user: {scene.prompt}", *(f"assistant: {part}" for part in scene.parts)]
    return said


def _misses(comparison: Comparison) -> Iterator[str]:
    for fact in comparison.lost:
        yield f"acknowledged, but not there: {fact.position} {fact.text}"
    for text in comparison.doubled:
        yield f"there more than once: {text}"


def _mishaps(lives: Sequence[Life]) -> Iterator[str]:
    """Say what went wrong between a kill and the process after it."""
    told: list[Fact] = []
    for before, after in pairwise(lives):
        told += before.acknowledged
        for fact in compare(told, after.found.facts).lost:
            yield f"acknowledged, but not recovered by process {after.pid}: {fact.text}"
        if before.killed_in not in after.found.interrupted:
            yield f"process {before.pid} was not killed in the middle of a turn"
