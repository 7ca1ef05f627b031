"""Render stored messages as a transcript that a provider accepts.

Stored messages come in, a `Transcript` goes out. Pure; stored messages are never changed.

The transcript is valid whatever was stored: results follow their calls, open calls are closed by a
notice, reasoning stays with the answer it led to, nothing is empty. Content that a format cannot
express is never dropped silently: it is reported as a `Loss`, or, for open calls, in `closed`.

The steps: each message is parsed by its own format into the neutral form (`formats.parts`), items
of one answer are joined, results are attached to their calls (`pairing`), one agent's perspective
is applied (`perspective`), and the requested format writes the result.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from perdure.conversations.cuts import safe_cut, safe_cuts
from perdure.conversations.pairing import pair
from perdure.conversations.perspective import seen_by
from perdure.conversations.speeches import heard
from perdure.effects.calls import INTERRUPTED_NOTICE, Call, answers, closing, open_calls
from perdure.errors import UsageError
from perdure.formats import anthropic_writing, chat, gemini, responses_writing
from perdure.formats.names import Ids, legal_name, legal_person
from perdure.formats.parts import (
    ANTHROPIC,
    CHAT,
    GEMINI,
    RESPONSES,
    Loss,
    Losses,
    Native,
    Result,
    Said,
    Speech,
    Text,
    ToolCall,
)
from perdure.formats.shapes import shape

__all__ = [
    "FORMATS",
    "INTERRUPTED_NOTICE",
    "Call",
    "Closed",
    "Loss",
    "Said",
    "Transcript",
    "answers",
    "closing",
    "open_calls",
    "render",
    "safe_cut",
    "safe_cuts",
    "shape",
]

_WRITERS: dict[str, Callable[[list[Speech], Losses], tuple[list[Native], Any]]] = {
    CHAT: chat.write,
    RESPONSES: responses_writing.write,
    ANTHROPIC: anthropic_writing.write,
    GEMINI: gemini.write,
}
FORMATS = tuple(_WRITERS)
_PLAIN_CALLS = ("function", "custom", "deprecated")


class Closed(NamedTuple):
    """A call without a result, closed by an interruption notice. `id` is the stored one."""

    position: int
    id: str
    name: str


class Transcript(list[dict[str, Any]]):
    """Messages for a provider.

    `system` holds the instructions where the provider wants them apart from the messages
    (Anthropic: a text or blocks; Gemini: a content), else None. `losses` lists content that is
    missing, `closed` the calls without a result. For a window, `cut` is the position at which it
    begins if older messages were left out, else 0, and `tokens` its size if `max_tokens` was given,
    else None.
    """

    cut: int = 0
    tokens: int | None = None

    def __init__(
        self,
        messages: Sequence[Native] = (),
        *,
        system: Any = None,
        losses: Sequence[Loss] = (),
        closed: Sequence[Closed] = (),
    ) -> None:
        super().__init__(messages)
        self.system = system
        self.losses = tuple(losses)
        self.closed = tuple(closed)


def render(stored: Sequence[Said], format: str, *, perspective: str = "") -> Transcript:
    """Return a transcript that the provider of the format accepts, whatever was stored.

    With `perspective`, it is the view of one agent: see `perspective.seen_by`. Where the provider
    requires the user to begin and no user did, a placeholder is added. No messages give an empty
    transcript.

    Raises UsageError if the format is not one of `FORMATS`.
    """
    if format not in _WRITERS:
        raise UsageError(f"no format {format!r}: choose one of {', '.join(FORMATS)}")
    losses: Losses = []
    normalized = pair(heard(stored, losses), losses)
    if perspective:
        normalized = seen_by(perspective, normalized, format, losses)
    closed: list[Closed] = []
    _prepare(normalized, format, losses, closed)
    messages, system = _WRITERS[format](normalized, losses)
    losses.sort(key=lambda loss: loss.position)
    return Transcript(messages, system=system, losses=losses, closed=closed)


def _prepare(messages: list[Speech], format: str, losses: Losses, closed: list[Closed]) -> None:
    """Close open calls, and make names and ids legal in the format."""
    system_apart = format in (ANTHROPIC, GEMINI)
    conversation_begun = False
    calls: list[ToolCall] = []
    for message in messages:
        if message.name:
            _name_speaker(message, format, losses)
        if message.role == "assistant":
            calls += [part for part in message.parts if type(part) is ToolCall]
        if message.role != "system":
            conversation_begun = True
        elif conversation_begun and system_apart:
            what = "the place of a system message was lost"
            losses.append(Loss(message.at, f"{what}: {format} puts them all at the beginning"))
    reported: set[str] = set()
    for call in calls:
        if call.result is None:
            _close(call, closed)
        _name_call(call, format, losses, reported)
    _number_calls(calls, format)


def _number_calls(calls: list[ToolCall], format: str) -> None:
    """Give each call a unique id; in Gemini, a call without an id stays without."""
    ids = Ids(format)
    for call in calls:
        if call.id:
            call.out_id = ids.take(call.id)
    for call in calls:  # Last, so that no generated id takes one that exists.
        if not call.id and format != GEMINI:
            call.out_id = ids.take(f"call_{call.at}")


def _name_speaker(message: Speech, format: str, losses: Losses) -> None:
    name = legal_person(message.name) if format == CHAT else ""
    if name != message.name:
        change = f"is sent as {name!r}" if name else f"was left out: {format} has no field for it"
        losses.append(Loss(message.at, f"the speaker's name {message.name!r} {change}"))
    message.name = name


def _name_call(call: ToolCall, format: str, losses: Losses, reported: set[str]) -> None:
    if call.kind not in _PLAIN_CALLS and format != RESPONSES:
        what = f"a call of type {call.kind!r} is sent as a call of a function {call.name!r}"
        losses.append(Loss(call.at, what))
    name = legal_name(call.name, format)
    if name != call.name and call.name not in reported:
        reported.add(call.name)
        what = f"the tool's name {call.name!r} is sent as {name!r}: {format} does not allow it"
        losses.append(Loss(call.at, what))
    call.name = name


def _close(call: ToolCall, closed: list[Closed]) -> None:
    notice = Text(call.at, INTERRUPTED_NOTICE)
    closed.append(Closed(call.at, call.id or call.name, call.name))
    call.result = Result(call.at, call.id, call.name, [notice], error=True)
