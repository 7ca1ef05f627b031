"""The assistant of the demo: `python -m perdure.cli.demo.assistant STORE SESSION`.

It runs in its own process, which can be killed at any time and started again. It writes to standard
output, one JSON line each, the records it found and the records perdure acknowledged; before the
last part of a turn it waits for a line on standard input. It exits when its pipes are closed.
"""

import json
import os
import signal
import sys
import time
from typing import Any, NamedTuple

import perdure
from perdure.journal.records import Message, TurnBegun, TurnChange, Value

SECONDS_PER_PART = 0.04  # Seconds per part, half of them between its two writes: room for a kill.


class ScriptedTurn(NamedTuple):
    """A turn of the script: the prompt, and the answer in parts."""

    turn: str
    prompt: str
    parts: tuple[str, ...]


# The scripted model: no LLM, no network. All parts differ, so that duplicates can be detected.
SCRIPT = (
    ScriptedTurn(
        "draft",
        "Draft a claims escalation checklist.",
        (
            "1. Confirm that the policy was in force on the date of loss.",
            "2. Check the claim against the adjuster's limit of authority.",
            "3. Attach the loss report, photographs and correspondence.",
            "4. Name the reason: amount, coverage, fraud or delay.",
            "5. Notify the claims manager and record the date.",
            "6. Tell the policyholder who decides, and by when.",
        ),
    ),
    ScriptedTurn(
        "refine",
        "Refine that for high-value policies only.",
        (
            "1. Escalate every claim above the high-value threshold at once.",
            "2. Bring in the reinsurer before any payment is promised.",
            "3. Have two adjusters appraise the loss independently.",
            "4. Let counsel review coverage before the decision.",
            "5. Keep the broker informed, in writing, each week.",
        ),
    ),
)


def main(path: str, session_id: str) -> None:
    """Resume or start the session, and run the script to its end."""
    start = time.perf_counter()
    with perdure.open(path) as store, store.session(session_id) as session:
        _report_found(session, time.perf_counter() - start)
        done = session.get("plan", {"step": 0})["step"]
        first = 1
        for scene in SCRIPT:
            _run_turn(session, scene, first, done)
            first += len(scene.parts)
        _report("done")


def _run_turn(session: perdure.Session, scene: ScriptedTurn, first: int, done: int) -> None:
    """Start or resume a turn. Fixed ids of the turn and its parts make the writes idempotent."""
    position = session.position
    with session.turn(scene.prompt, id=scene.turn) as turn:
        if turn.ended:
            return
        _report_turn_start(session, scene, position, turn.branch_point + 1)
        last = first + len(scene.parts) - 1
        for step, part in enumerate(scene.parts, start=first):
            if step > done:
                _write_part(session, turn, step, part, is_last=step == last)
    _report_newest(session, "turn.completed", f"turn {scene.turn!r} completed")


def _write_part(
    session: perdure.Session, turn: perdure.Turn, step: int, part: str, *, is_last: bool
) -> None:
    time.sleep(SECONDS_PER_PART / 2)
    if is_last:
        _report("wait", turn=turn.id)
        if not sys.stdin.readline():
            raise SystemExit(3)
    previous = session.position
    position = turn.append({"role": "assistant", "content": part}, id=f"part-{step}")
    _report_stored(position, "message", f"assistant: {part}", again=position <= previous)
    time.sleep(SECONDS_PER_PART / 2)
    session.set("plan", {"step": step})
    _report_newest(session, "value", f'plan: {{"step": {step}}}')


def _report_turn_start(
    session: perdure.Session, scene: ScriptedTurn, position: int, first: int
) -> None:
    if first <= position:
        _report_newest(session, "turn.continued", f"turn {scene.turn!r} continued")
        return
    _report_stored(first, "turn.begun", f"turn {scene.turn!r} begun")
    _report_stored(first + 1, "message", f"user: {scene.prompt}")


def _report_found(session: perdure.Session, seconds: float) -> None:
    _report(
        "found",
        seconds=seconds,
        records=[
            [record.position, record.kind, describe_record(record)] for record in session.records()
        ],
        interrupted=[turn.id for turn in session.interrupted],
        plan=session.get("plan"),
    )


def describe_record(record: perdure.Record) -> str:
    """Describe a record in the same words as its acknowledgement."""
    match record.content:
        case Message(message=message):
            return f"{message['role']}: {message['content']}"
        case Value(key=key, data=data):
            return f"{key}: {json.dumps(data)}"
        case TurnBegun():
            return f"turn {record.id!r} begun"
        case TurnChange(turn=turn):
            return f"turn {turn!r} {record.kind.removeprefix('turn.')}"
    return record.kind


def _report_newest(session: perdure.Session, kind: str, text: str) -> None:
    """Report the newest record of a kind; a snapshot may follow it."""
    (record,) = session.records(kinds=[kind], reverse=True, limit=1)
    _report_stored(record.position, kind, text)


def _report_stored(position: int, kind: str, text: str, *, again: bool = False) -> None:
    _report("stored", record=[position, kind, text], again=again)


def _report(event: str, **fields: Any) -> None:
    # One unbuffered write call per line: a kill cannot lose a line that was already reported.
    os.write(1, json.dumps({"event": event, **fields}).encode() + b"\n")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent handles Ctrl-C and ends this process.
    try:
        main(*sys.argv[1:])
    except BrokenPipeError:
        raise SystemExit(3) from None
    except perdure.PerdureError as error:
        _report("error", reason=str(error))
        raise SystemExit(4) from None
