"""Stored messages in, a transcript that a provider accepts out. Pure.

Whatever was stored, what goes out is valid: results follow their calls, open calls are closed by a
notice, reasoning goes with what it led to, nothing is empty. What can not be said in a format is
never dropped in silence: it is a `Loss`, or, for open calls, `closed`.

The way: each message is read by its own format into speeches (`formats.parts`), items of one answer
are joined, results find their calls (`pairing`), one side is taken (`perspective`), and the wanted
format writes what there is.
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
    """A call without a result, which a notice of interruption answers. `id` is as stored."""

    position: int
    id: str
    name: str


class Transcript(list[dict[str, Any]]):
    """Messages for a provider.

    `system` is what the provider wants apart from them (Anthropic: a text or blocks; Gemini: a
    content), else None. `losses` says what is not in them, `closed` which calls had no result.
    Of a window, `cut` is the position that it begins at where older messages were left out, else 0,
    and `tokens` how many it takes where a number was allowed.
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


def render(said: Sequence[Said], format: str, *, perspective: str = "") -> Transcript:
    """Return a transcript that the provider of the format accepts, whatever was stored.

    With `perspective`, it is one speaker's side: see `perspective.seen_by`. Where the provider
    wants the user to begin and nobody did, a placeholder begins. Nothing said gives nothing.

    Raises UsageError if the format is not one of `FORMATS`.
    """
    if format not in _WRITERS:
        raise UsageError(f"no format {format!r}: choose one of {', '.join(FORMATS)}")
    losses: Losses = []
    speeches = pair(heard(said, losses), losses)
    if perspective:
        speeches = seen_by(perspective, speeches, format, losses)
    closed: list[Closed] = []
    _prepare(speeches, format, losses, closed)
    messages, system = _WRITERS[format](speeches, losses)
    losses.sort(key=lambda loss: loss.position)
    return Transcript(messages, system=system, losses=losses, closed=closed)


def _prepare(speeches: list[Speech], format: str, losses: Losses, closed: list[Closed]) -> None:
    """Close open calls, and see to it that names, ids and places are such as the format takes."""
    apart = format in (ANTHROPIC, GEMINI)
    begun = False
    calls: list[ToolCall] = []
    for speech in speeches:
        if speech.name:
            _name_speaker(speech, format, losses)
        if speech.role == "assistant":
            calls += [part for part in speech.parts if type(part) is ToolCall]
        if speech.role != "system":
            begun = True
        elif begun and apart:
            what = "the place of a system message was left out"
            losses.append(Loss(speech.at, f"{what}: {format} has them all at the beginning"))
    told: set[str] = set()
    for call in calls:
        if call.result is None:
            _close(call, closed)
        _name_call(call, format, losses, told)
    _number_calls(calls, format)


def _number_calls(calls: list[ToolCall], format: str) -> None:
    """Give each call an id of its own; Gemini can do without, where there was none."""
    ids = Ids(format)
    for call in calls:
        if call.id:
            call.out_id = ids.take(call.id)
    for call in calls:  # Last, so that none of these takes an id that somebody has.
        if not call.id and format != GEMINI:
            call.out_id = ids.take(f"call_{call.at}")


def _name_speaker(speech: Speech, format: str, losses: Losses) -> None:
    name = legal_person(speech.name) if format == CHAT else ""
    if name != speech.name:
        done = f"is given as {name!r}" if name else f"was left out: {format} has no place for it"
        losses.append(Loss(speech.at, f"the speaker's name {speech.name!r} {done}"))
    speech.name = name


def _name_call(call: ToolCall, format: str, losses: Losses, told: set[str]) -> None:
    if call.kind not in _PLAIN_CALLS and format != RESPONSES:
        what = f"a call of type {call.kind!r} is given as that of a function {call.name!r}"
        losses.append(Loss(call.at, what))
    name = legal_name(call.name, format)
    if name != call.name and call.name not in told:
        told.add(call.name)
        what = f"the tool's name {call.name!r} is given as {name!r}: {format} takes no other"
        losses.append(Loss(call.at, what))
    call.name = name


def _close(call: ToolCall, closed: list[Closed]) -> None:
    notice = Text(call.at, INTERRUPTED_NOTICE)
    closed.append(Closed(call.at, call.id or call.name, call.name))
    call.result = Result(call.at, call.id, call.name, [notice], error=True)
