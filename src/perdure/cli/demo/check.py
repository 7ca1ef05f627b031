"""The verdict of the demo: acknowledged records compared exactly with recovered ones."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import perdure
from perdure.cli.demo.assistant import SCRIPT, describe_record
from perdure.cli.demo.run import ProcessRun, RecordFact


class RecordComparison(NamedTuple):
    """Acknowledged records that are missing or changed, duplicates, and unacknowledged records."""

    lost: tuple[RecordFact, ...]
    doubled: tuple[str, ...]
    unacknowledged: tuple[RecordFact, ...]


class DemoVerdict(NamedTuple):
    """The result of the demo: counts, the verified chain, and every problem found."""

    acknowledged: int
    unanswered: int = 0
    lost: int = 0
    doubled: int = 0
    messages: int = 0
    plan: Any = None
    verified: perdure.VerifyResult | None = None
    problems: tuple[str, ...] = ()


def compare_records(
    acknowledged: Iterable[RecordFact], recovered: Sequence[RecordFact]
) -> RecordComparison:
    """Compare acknowledged records with recovered ones."""
    expected = dict.fromkeys(acknowledged)
    present = set(recovered)
    texts = [fact.text for fact in recovered if fact.kind != "turn.continued"]
    return RecordComparison(
        lost=tuple(fact for fact in expected if fact not in present),
        doubled=tuple(text for text, count in Counter(texts).items() if count > 1),
        unacknowledged=tuple(fact for fact in recovered if fact not in expected),
    )


def check_store(path: str, session_id: str, runs: Sequence[ProcessRun]) -> DemoVerdict:
    """Open the store in this process and check it against everything acknowledged."""
    acknowledged = list(dict.fromkeys(fact for run in runs for fact in run.acknowledged))
    try:
        with perdure.open(path) as store, store.resume(session_id) as session:
            return _check_session(session, acknowledged, runs)
    except (perdure.DamagedError, perdure.NotFoundError) as error:
        return DemoVerdict(len(acknowledged), problems=(str(error),))


def _check_session(
    session: perdure.Session, acknowledged: Sequence[RecordFact], runs: Sequence[ProcessRun]
) -> DemoVerdict:
    facts = [
        RecordFact(record.position, record.kind, describe_record(record))
        for record in session.records()
    ]
    conversation = [f"{message['role']}: {message['content']}" for message in session.messages()]
    comparison = compare_records(acknowledged, facts)
    comparison = comparison._replace(lost=tuple({*comparison.lost, *unrecovered(runs)}))
    problems = [*_comparison_problems(comparison), *_kill_problems(runs)]
    if conversation != _expected_conversation():
        problems.append("the conversation differs from the script")
    if session.interrupted:
        problems.append("a turn is still open")
    return DemoVerdict(
        len(acknowledged),
        len(comparison.unacknowledged),
        len(comparison.lost),
        len(comparison.doubled),
        len(conversation),
        session.get("plan"),
        session.verify(),
        tuple(problems),
    )


def _expected_conversation() -> list[str]:
    lines: list[str] = []
    for scene in SCRIPT:
        lines += [f"user: {scene.prompt}", *(f"assistant: {part}" for part in scene.parts)]
    return lines


def _comparison_problems(comparison: RecordComparison) -> Iterator[str]:
    for fact in comparison.lost:
        yield f"acknowledged, but not recovered: {fact.position} {fact.text}"
    for text in comparison.doubled:
        yield f"stored more than once: {text}"


def _kill_problems(runs: Sequence[ProcessRun]) -> Iterator[str]:
    """Yield the kills that did not interrupt a turn."""
    for killed, following in pairwise(runs):
        if killed.killed_in not in following.found.interrupted:
            yield f"process {killed.pid} was not killed in the middle of a turn"


def unrecovered(runs: Sequence[ProcessRun]) -> list[RecordFact]:
    """Return records acknowledged before a process started that this process did not find."""
    acknowledged: list[RecordFact] = []
    lost: dict[RecordFact, None] = {}
    for killed, following in pairwise(runs):
        acknowledged += killed.acknowledged
        lost.update(dict.fromkeys(compare_records(acknowledged, following.found.facts).lost))
    return [*lost]
