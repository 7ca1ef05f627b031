"""The assistant of the demo: `python -m perdure.cli.demo_child STORE SESSION`.

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
import perdure.backends.sqlite  # Imported early, so that the time to resume does not include it.
from perdure.records import Message, TurnBegun, TurnChange, Value

THINKING = 0.04  # Seconds per part, half of them between its two writes: room for a kill.


class Scene(NamedTuple):
    """A turn of the script: the prompt, and the answer in parts."""

    turn: str
    prompt: str
    parts: tuple[str, ...]


# The scripted model: no LLM, no network. All parts differ, so that duplicates can be detected.
SCRIPT = (
    Scene(
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
    Scene(
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
        _tell_found(session, time.perf_counter() - start)
        done = session.get("plan", {"step": 0})["step"]
        first = 1
        for scene in SCRIPT:
            _play(session, scene, first, done)
            first += len(scene.parts)
        _tell("done")


def _play(session: perdure.Session, scene: Scene, first: int, done: int) -> None:
    """Start or resume a turn. Fixed ids of the turn and its parts make the writes idempotent."""
    position = session.position
    with session.turn(scene.prompt, id=scene.turn) as turn:
        if turn.ended:
            return
        _tell_entered(session, scene, position, turn.start + 1)
        last = first + len(scene.parts) - 1
        for step, part in enumerate(scene.parts, start=first):
            if step > done:
                _work(session, turn, step, part, is_last=step == last)
    _acknowledge(session.position, "turn.completed", f"turn {scene.turn!r} completed")


def _work(
    session: perdure.Session, turn: perdure.Turn, step: int, part: str, *, is_last: bool
) -> None:
    time.sleep(THINKING / 2)
    if is_last:
        _tell("wait", turn=turn.id)
        if not sys.stdin.readline():
            raise SystemExit(3)
    previous = session.position
    position = turn.append({"role": "assistant", "content": part}, id=f"part-{step}")
    _acknowledge(position, "message", f"assistant: {part}", again=position <= previous)
    time.sleep(THINKING / 2)
    session.set("plan", {"step": step})
    _acknowledge(session.position, "value", f'plan: {{"step": {step}}}')


def _tell_entered(session: perdure.Session, scene: Scene, position: int, first: int) -> None:
    if first <= position:
        _acknowledge(session.position, "turn.continued", f"turn {scene.turn!r} continued")
        return
    _acknowledge(first, "turn.begun", f"turn {scene.turn!r} begun")
    _acknowledge(first + 1, "message", f"user: {scene.prompt}")


def _tell_found(session: perdure.Session, seconds: float) -> None:
    _tell(
        "found",
        seconds=seconds,
        records=[[record.position, record.kind, describe(record)] for record in session.records()],
        interrupted=[turn.id for turn in session.interrupted],
        plan=session.get("plan"),
    )


def describe(record: perdure.Record) -> str:
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


def _acknowledge(position: int, kind: str, text: str, *, again: bool = False) -> None:
    _tell("stored", record=[position, kind, text], again=again)


def _tell(event: str, **fields: Any) -> None:
    # One unbuffered write call per line: a kill cannot lose a line that was already reported.
    os.write(1, json.dumps({"event": event, **fields}).encode() + b"\n")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent handles Ctrl-C and ends this process.
    try:
        main(*sys.argv[1:])
    except BrokenPipeError:
        raise SystemExit(3) from None
    except perdure.PerdureError as error:
        _tell("error", reason=str(error))
        raise SystemExit(4) from None
