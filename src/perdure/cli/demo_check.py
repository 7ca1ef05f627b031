"""What the demo concludes: the acknowledged, compared word for word with the recovered."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import perdure
from perdure.cli.demo_child import SCRIPT, describe
from perdure.cli.demo_run import Fact, Life


class Comparison(NamedTuple):
    """What was acknowledged and is not there as it was, what is there twice, what is there more."""

    lost: tuple[Fact, ...]
    doubled: tuple[str, ...]
    unacknowledged: tuple[Fact, ...]


class Verdict(NamedTuple):
    """The end of the demo: what there is, what was checked, and every reason not to be content."""

    acknowledged: int
    unanswered: int = 0
    lost: int = 0
    doubled: int = 0
    messages: int = 0
    plan: Any = None
    verified: perdure.Verified | None = None
    problems: tuple[str, ...] = ()


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
    comparison = comparison._replace(lost=tuple({*comparison.lost, *missed(lives)}))
    problems = [*_misses(comparison), *_mishaps(lives)]
    if said != _expected():
        problems.append("the conversation is not the one of the script")
    if session.interrupted:
        problems.append("a turn is still open")
    return Verdict(
        len(told),
        len(comparison.unacknowledged),
        len(comparison.lost),
        len(comparison.doubled),
        len(said),
        session.get("plan"),
        session.verify(),
        tuple(problems),
    )


def _expected() -> list[str]:
    said: list[str] = []
    for scene in SCRIPT:
        said += [f"user: {scene.prompt}", *(f"assistant: {part}" for part in scene.parts)]
    return said


def _misses(comparison: Comparison) -> Iterator[str]:
    for fact in comparison.lost:
        yield f"acknowledged, but not recovered: {fact.position} {fact.text}"
    for text in comparison.doubled:
        yield f"there more than once: {text}"


def _mishaps(lives: Sequence[Life]) -> Iterator[str]:
    """Say what went wrong between a kill and the process after it."""
    for before, after in pairwise(lives):
        if before.killed_in not in after.found.interrupted:
            yield f"process {before.pid} was not killed in the middle of a turn"


def missed(lives: Sequence[Life]) -> list[Fact]:
    """Return what had been acknowledged when a process began, and was not found by it."""
    told: list[Fact] = []
    lost: dict[Fact, None] = {}
    for before, after in pairwise(lives):
        told += before.acknowledged
        lost.update(dict.fromkeys(compare(told, after.found.facts).lost))
    return [*lost]
