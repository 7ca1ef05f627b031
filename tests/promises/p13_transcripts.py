"""P13: a transcript is always valid for its provider, and nothing is missing from it in silence.

Each trial draws a history, mostly damaged, and renders it in every format and from the perspectives
of its speakers. The rules that judge are written apart from the code that renders.
"""

import json
import random
from collections.abc import Iterator
from typing import Any

from perdure.formats.parts import StoredMessage
from perdure.formats.transcript import FORMATS, Transcript, render
from perdure.testing import violations
from tests.promises import p13_fields
from tests.promises.p13_histories import Drawing, History
from tests.promises.promise import Promise, Trial, in_time


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=repr)


def invalid(transcript: Transcript, format: str, history: History) -> str:
    """Say what the provider would refuse; nothing at all is not sent."""
    if not transcript:
        return ""
    found = violations(
        format, transcript, system=transcript.system, reasoning_of=history.reasoning_of
    )
    return "; ".join(found[:3])


def missing(transcript: Transcript, history: History) -> str:
    """Say which messages are neither there nor told."""
    there = dumped([*transcript, transcript.system])
    told = {loss.position for loss in transcript.losses}
    gone = [
        each.position
        for each in history.said
        if history.markers[each.position] not in there
        and each.position not in told
        and history.markers[each.position] in dumped(each.message)
    ]
    return f"nothing tells of the messages at {gone}" if gone else ""


def unstable(transcript: Transcript, format: str) -> str:
    """Say how rendering what was rendered changes it."""
    again = render(
        [StoredMessage(number, each) for number, each in enumerate(transcript, 1)], format
    )
    if [*again] != [*transcript]:
        return f"rendered again it is another: {dumped(transcript)} then {dumped(again)}"
    return (
        f"rendered again, calls are closed: {again.interrupted_calls}"
        if again.interrupted_calls
        else ""
    )


def incomplete(transcript: Transcript, format: str, history: History) -> str:
    """Of a whole history: say what is missing that the format can say."""
    there = dumped([*transcript, transcript.system])
    own = history.formats == (format,)
    gone = [
        position
        for position, marker in history.markers.items()
        if marker not in there and (own or position in history.universal)
    ]
    if gone:
        return f"{gone} are missing, though {format} can say them"
    return (
        f"calls were closed: {transcript.interrupted_calls}" if transcript.interrupted_calls else ""
    )


def failure(history: History, format: str) -> str:
    """Try one history in one format."""
    before = dumped([each.message for each in history.said])
    transcript = render(history.said, format)
    found = invalid(transcript, format, history) or missing(transcript, history)
    found = found or unstable(transcript, format)
    if history.whole:
        found = found or incomplete(transcript, format, history)
    for author in {each.author for each in history.said} - {""}:
        side = render(history.said, format, perspective=author)
        if wrong := invalid(side, format, history) or unstable(side, format):
            found = found or f"as {author} sees it: {wrong}"
    if dumped([each.message for each in history.said]) != before:
        found = found or "what was stored was changed"
    return f"{format}: {found}" if found else ""


def trial(seed: int) -> Trial:
    """Draw one history, try it in every format, and tell the first thing that is wrong."""
    draw = random.Random(seed)
    history = Drawing(draw, tame=draw.random() < 0.2).history()
    for format in FORMATS:
        try:
            found = failure(history, format)
        except Exception as error:  # noqa: BLE001 - no history may break it
            found = f"{format}: {type(error).__name__}: {error}"
        if found:
            return Trial(f"history {seed}", found)
    return Trial(f"history {seed}", p13_fields.failure(seed))


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    """Yield one trial for each history."""
    seeds = random.Random(seed)
    while in_time(deadline):
        yield trial(seeds.getrandbits(62))


PROMISE = Promise("P13", "A transcript is valid for its provider", 100_000, trials)
