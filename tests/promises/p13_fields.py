"""P13, field by field: junk in the place of any content is refused, rendered, or told as a loss."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from perdure.errors import UsageError
from perdure.formats.field_types import require_message
from perdure.formats.parts import StoredMessage
from perdure.formats.transcript import FORMATS, Transcript, render
from tests.promises.p13_histories import draw

MARK = "here-it-is"
JUNK: list[Any] = [
    MARK,
    [MARK],
    {"a": MARK},
    [{"a": MARK}],
    {"type": "text", "text": MARK},
    [{"type": "text", "text": MARK}],
    [{"type": "input_text", "text": MARK}],
    [{"type": "new", "value": MARK}],
    {"type": MARK},
    {"name": MARK, "arguments": MARK},
    [[MARK]],
]
# Fields that carry no content of their own, or that are left out on purpose.
BESIDE = frozenset(
    {
        *("id", "call_id", "tool_call_id", "tool_use_id", "type", "role", "name", "status"),
        *("phase", "annotations", "logprobs", "signature", "thoughtSignature", "detail"),
        *("thought_signature", "encrypted_content", "cache_control", "media_type", "mime_type"),
        *("mimeType", "format", "filename", "title", "citations", "usage", "index", "model"),
        *("stop_reason", "stop_sequence", "parsed", "parsed_arguments", "is_error", "thought"),
        *("expires_at", "data", "outcome", "exit_code"),
        "transcript",  # Where the audio itself is sent, its transcript is not.
    }
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside of a message that carries content."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        if key not in BESIDE:
            yield (*path, key)
            yield from places(item, (*path, key))


def with_junk(message: dict[str, Any], path: tuple[Any, ...], junk: Any) -> dict[str, Any]:
    changed = copy.deepcopy(message)
    inside: Any = changed
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = junk
    return changed


def is_told(transcript: Transcript, position: int) -> bool:
    shown = json.dumps([*transcript, transcript.system], default=repr)
    if MARK in shown or position in {loss.position for loss in transcript.losses}:
        return True
    return position in {call.position for call in transcript.interrupted_calls}


class Spoiled(NamedTuple):
    """A history with junk in the message at a position."""

    said: list[StoredMessage]
    position: int


def spoiled(seed: int) -> Spoiled | None:
    """Return a history with junk in one message; None if that is refused at append."""
    source, history = random.Random(seed), draw(seed, tame=True).said
    paths = [(each, path) for each in history for path in places(each.message)]
    if not paths:
        return None
    each, path = source.choice(paths)
    path = path if source.random() < 0.9 else ("unheard_of",)
    changed = with_junk(each.message, path, source.choice(JUNK))
    try:
        require_message(changed)
    except UsageError:
        return None
    said = [each._replace(message=changed) if one is each else one for one in history]
    return Spoiled(said, each.position)


def failure(seed: int) -> str:
    """Say which format lost junk that was accepted, without telling."""
    found = spoiled(seed)
    for format in FORMATS if found is not None else ():
        if found is not None and not is_told(render(found.said, format), found.position):
            return f"{format}: nothing tells of a field of the message at {found.position}"
    return ""
