"""Render stored messages as a transcript that a provider accepts, and find where to cut one.

Stored messages come in, a `Transcript` goes out. Pure; stored messages are never changed.

The transcript is valid whatever was stored: results follow their calls, open calls are closed by a
notice, reasoning stays with the answer it led to, nothing is empty. Content that a format cannot
express is never dropped silently: it is reported as a `Loss`, or, for open calls, in
`interrupted_calls`.

The steps: each message is parsed by its own format into the neutral form (`formats.parts`), items
of one answer are joined, results are attached to their calls (`attach_results`), one
agent's perspective is applied (`from_perspective`), and the requested format writes the result.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from perdure.errors import UsageError
from perdure.formats import anthropic, gemini, openai_chat, openai_responses
from perdure.formats.fields import (
    CallIds,
    as_text,
    dicts_in,
    legal_speaker_name,
    legal_tool_name,
)
from perdure.formats.openai_responses import CALLS, HOSTED, needs_id
from perdure.formats.parts import (
    ANTHROPIC,
    CHAT,
    GEMINI,
    RESPONSES,
    Loss,
    Losses,
    Media,
    Native,
    NormalizedMessage,
    Part,
    Refusal,
    StoredMessage,
    Text,
    ToolCall,
    ToolResult,
    unsupported_part,
)
from perdure.formats.tool_calls import INTERRUPTED_NOTICE, Call, answers, closing, open_calls


def safe_cut(messages: Sequence[StoredMessage], index: int) -> bool:
    """Whether a window may begin at this index; for several, call `safe_cuts` once."""
    return safe_cuts(messages)[index]


def safe_cuts(messages: Sequence[StoredMessage]) -> list[bool]:
    """Return, for each index and the end, whether a window may begin there.

    A window may not begin between a call and its result, at a result without a call, or inside an
    answer of the Responses API, whose items depend on their reasoning. Calls that were never
    answered do not count: a notice closes them wherever they are.
    """
    spans = [*_call_spans(messages), *_answer_spans(messages)]
    change = [0] * (len(messages) + 2)
    for first, last in spans:
        change[first] += 1
        change[last + 1] -= 1
    safe, open_spans = [], 0
    for step in change[: len(messages) + 1]:
        open_spans += step
        safe.append(open_spans == 0)
    safe[0] = True
    return safe


_Span = tuple[int, int]  # First and last index at which no window may begin.


def _call_spans(messages: Sequence[StoredMessage]) -> Iterator[_Span]:
    calls: dict[str, list[int]] = {}
    answered: dict[str, int] = {}
    for index, stored in enumerate(messages):
        if stored.opaque:
            continue
        for id in answers(stored.message):
            if calls.get(id):
                answered[id] = calls[id].pop()
            yield answered.get(id, index - 1) + 1, index
        for call in () if stored.interrupted else open_calls(stored.message):
            calls.setdefault(call.id, []).append(index)


class _AnswerRun(NamedTuple):
    """The items of one answer so far."""

    first: int
    last: int
    led: bool  # Whether reasoning came before them.


def _answer_spans(messages: Sequence[StoredMessage]) -> Iterator[_Span]:
    """Yield the spans inside answers.

    Without leading reasoning, an item that must keep its id also protects the answer's first index:
    the reasoning it depends on may have been cut away.
    """
    runs: dict[str, _AnswerRun] = {}  # By turn: two workers may write at the same time.
    for index, stored in enumerate(messages):
        type_, turn = _item_type(stored.message), stored.turn
        run = runs.pop(turn, None)
        if stored.opaque and run is not None:  # The answer continues after it.
            runs[turn] = run._replace(last=index)
        if not type_ or stored.opaque:
            continue
        if run is None or not (turn or run.last == index - 1):
            run = _AnswerRun(index, index, led=False)
        yield run.first + 1, index
        led = run.led or type_ == "reasoning"
        if not led and needs_id(type_):
            yield run.first, index
        runs[turn] = _AnswerRun(run.first, index, led)


def _item_type(message: Native) -> str:
    """Return the type of a message that is an item of a response; "" for any other."""
    type_ = message.get("type")
    if type(type_) is not str:
        return ""
    if type_ == "message":
        answer = message.get("role") == "assistant" and "stop_reason" not in message
        return type_ if answer else ""
    return type_ if type_ == "reasoning" or type_ in CALLS or type_ in HOSTED else ""


# A call and the number of its message: among the calls of one message, the first comes first.
_NumberedCall = tuple[int, ToolCall]


def attach_results(messages: list[NormalizedMessage], losses: Losses) -> list[NormalizedMessage]:
    """Remove results from the messages and attach them to their calls."""
    by_id: dict[str, list[_NumberedCall]] = {}
    by_name: dict[str, list[_NumberedCall]] = {}
    remaining = []
    for number, message in enumerate(messages):
        others: list[Part] = []
        for part in message.parts:
            if type(part) is ToolResult:
                candidates = by_id.get(part.id) if part.id else None
                _attach_result(part, candidates or by_name.get(part.name or part.id, []), losses)
                continue
            others.append(part)
            if type(part) is ToolCall:
                for id in _call_ids(part):
                    by_id.setdefault(id, []).append((number, part))
                by_name.setdefault(part.name, []).append((number, part))
        if len(others) < len(message.parts):
            message.parts = others
        if others:
            remaining.append(message)
    return remaining


def _call_ids(call: ToolCall) -> tuple[str, ...]:
    """Return the ids by which a result may name a call; a local shell call has two."""
    if call.kind == "local_shell_call" and call.native is not None:
        return (call.id, str(call.native.get("id")))
    return (call.id,)


def is_notice(result: ToolResult | None) -> bool:
    if result is None:
        return False
    first = result.parts[0] if len(result.parts) == 1 else None
    return type(first) is Text and first.text == INTERRUPTED_NOTICE


def _attach_result(result: ToolResult, candidates: list[_NumberedCall], losses: Losses) -> None:
    call = _newest_open_call(candidates, notices=not is_notice(result))
    if call is not None:
        if call.result is not None:
            _report_unattached(call.result, "a later result replaced it", losses)
        call.result = result
    elif candidates:
        _report_unattached(result, "its call already has a result", losses)
    else:
        _report_unattached(result, "its call is missing", losses)


def _report_unattached(result: ToolResult, reason: str, losses: Losses) -> None:
    call = result.name or result.id
    losses.append(Loss(result.at, f"a result for {call!r} was left out: {reason}"))


def _newest_open_call(candidates: list[_NumberedCall], *, notices: bool) -> ToolCall | None:
    """Return the first open call of the newest message that has one.

    With `notices`, a call answered only by an interruption notice counts as open too, but comes
    after the unanswered calls of its message.
    """
    newest = -1
    best: ToolCall | None = None
    for number, call in reversed(candidates):
        if best is not None and number != newest:
            break
        unanswered = call.result is None
        if unanswered or (notices and is_notice(call.result) and _is_replaceable(best)):
            newest, best = number, call
    return best


def _is_replaceable(best: ToolCall | None) -> bool:
    return best is None or best.result is not None


def from_perspective(
    name: str, messages: list[NormalizedMessage], format: str, losses: Losses
) -> list[NormalizedMessage]:
    """Return a conversation as the agent `name` sees it.

    Messages by `name` get the role assistant, messages by other authors the role user. A message
    without an author keeps its role. System messages are for all agents, unless they have a
    recipient. A message addressed to another agent only is omitted, which is not a loss.

    The calls and the reasoning of other agents, with their results, are left out and reported as
    losses. Other authors are named: in chat completions always, in the `name` field; in the other
    formats only where there are several, by a prefix of the text.
    """
    visible = [
        message for message in messages if message.author == name or message.recipient in ("", name)
    ]
    speakers = set()
    for message in visible:
        if message.role in ("system", "context"):
            continue
        if message.author == name or (not message.author and message.role == "assistant"):
            message.role, message.stored_role = "assistant", ""
            continue
        speakers.add(message.author)
        if message.author:
            message.parts = _parts_for_others(message, losses)
            message.role, message.stored_role = "user", ""
    visible = [message for message in visible if message.parts]
    reported: set[str] = set()
    for message in visible:
        if message.role == "user" and message.author:
            if format == CHAT:
                _set_author_name(message, reported, losses)
            elif len(speakers) > 1:
                _prefix_author(message)
    return visible


def _parts_for_others(message: NormalizedMessage, losses: Losses) -> list[Part]:
    parts: list[Part] = []
    for part in message.parts:
        if type(part) is Text or type(part) is Refusal:
            parts.append(Text(part.at, part.text))
        elif type(part) is Media:
            parts.append(part)
        else:
            what = "a call" if type(part) is ToolCall else "a part that only its own model can use"
            reason = f"it belongs to {message.author!r}"
            losses.append(Loss(part.at, f"{what} was left out: {reason}"))
            if type(part) is ToolCall and part.result is not None:
                losses.append(Loss(part.result.at, f"a result was left out: {reason}"))
    return parts


def _set_author_name(message: NormalizedMessage, reported: set[str], losses: Losses) -> None:
    message.name = legal_speaker_name(message.author)
    if message.name != message.author and message.author not in reported:
        reported.add(message.author)
        what = f"the name {message.author!r} is sent as {message.name!r}"
        losses.append(Loss(message.at, f"{what}: {CHAT} does not allow it"))


def _prefix_author(message: NormalizedMessage) -> None:
    first = message.parts[0]
    if type(first) is Text:
        message.parts[0] = Text(first.at, f"{message.author}: {first.text}")
    else:
        message.parts.insert(0, Text(message.at, f"{message.author}:"))


_RESPONSES_PARTS = frozenset({"input_text", "input_image", "input_file", "output_text"})

_CHAT_PARTS = frozenset({"image_url", "input_audio", "file", "refusal"})

_CHAT_FIELDS = frozenset({"tool_calls", "tool_call_id", "function_call", "refusal", "audio"})

_ANTHROPIC_BLOCKS = anthropic.BLOCKS.keys() - {"text"}

_ANTHROPIC_FIELDS = frozenset({"cache_control", "citations"})

_ANTHROPIC_ANSWER_FIELDS = frozenset({"stop_reason", "stop_sequence", "usage"})


def detect_format(message: Native) -> str:
    """Return the format of a message: `openai.chat`, `openai.responses`, `anthropic`, `gemini`.

    - `parts`, or the role `model`: gemini.
    - A `type`: responses, unless it is a `message` with blocks that only Anthropic has, or with
      metadata that only Anthropic's answers have.
    - Content in parts that only one format has: that format.
    - Everything else, such as a role and a text, means the same in all: openai.chat.
    """
    content = message.get("content")
    if type(content) is str and "type" not in message:
        return CHAT
    if "parts" in message or message.get("role") == "model":
        return GEMINI
    type_ = message.get("type")
    if type(type_) is str and type_ != "message":
        return RESPONSES
    if message.keys() & _CHAT_FIELDS:
        return CHAT
    if type_ == "message" and message.keys() & _ANTHROPIC_ANSWER_FIELDS:
        return ANTHROPIC
    parts_format = _format_of_parts(dicts_in(content))
    if type_ == "message":
        return RESPONSES if parts_format == CHAT else parts_format or RESPONSES
    # A reference to an item of a response may omit its type.
    return parts_format or (RESPONSES if message.keys() == {"id"} else CHAT)


def _format_of_parts(parts: list[Native]) -> str:
    """Return the format of the first part that only one format has; "" if there is none."""
    for part in parts:
        kind = as_text(part.get("type"))
        if kind in _RESPONSES_PARTS:
            return RESPONSES
        if kind in _CHAT_PARTS:
            return CHAT
        if kind in _ANTHROPIC_BLOCKS or part.keys() & _ANTHROPIC_FIELDS:
            return ANTHROPIC
    return ""


_READERS: dict[str, Callable[[Native, int], NormalizedMessage]] = {
    CHAT: openai_chat.read,
    RESPONSES: openai_responses.read,
    ANTHROPIC: anthropic.read,
    GEMINI: gemini.read,
}


def normalize(stored: Sequence[StoredMessage], losses: Losses) -> list[NormalizedMessage]:
    """Normalize messages; the items of one answer of the Responses API become one message."""
    normalized: list[NormalizedMessage] = []
    latest: dict[str, NormalizedMessage] = {}  # By turn: two workers may write at the same time.
    for position, native, author, recipient, _, turn, interrupted, _, opaque, _ in stored:
        if opaque:
            losses.append(Loss(position, "an opaque message was left out: it has no known format"))
            continue
        message = _READERS[detect_format(native)](native, position)
        message.author, message.recipient, message.turn = author, recipient, turn
        if interrupted:
            _keep_complete_parts(message, losses)
        previous = latest.get(turn) if turn else normalized[-1] if normalized else None
        if not message.parts:
            if previous is not None:
                previous.ended = True
            if not interrupted:
                losses.append(Loss(position, "the message was left out: it is empty"))
            continue
        if message.role not in ("assistant", "context"):
            _set_role(message, losses)
        if (
            message.home == RESPONSES
            and previous is not None
            and _continues_answer(previous, message)
        ):
            previous.parts += message.parts
        else:
            normalized.append(message)
            latest[turn] = message
    return normalized


def _set_role(message: NormalizedMessage, losses: Losses) -> None:
    """Set the role of a message with an unknown role, or with calls: only assistants make calls."""
    calls = any(type(part) is ToolCall for part in message.parts)
    if message.role and not calls:
        return
    role = "assistant" if calls else "user"
    losses.append(Loss(message.at, f"the role {message.stored_role!r} is sent as {role!r}"))
    message.role, message.stored_role = role, ""


def _continues_answer(previous: NormalizedMessage, message: NormalizedMessage) -> bool:
    """Whether an item belongs to the same answer as the one before it.

    After calls, only further calls do: any other item was written after their results.
    """
    return (
        message.role == previous.role == "assistant"
        and not (previous.ended or message.ended)
        and previous.turn == message.turn
        and previous.author == message.author
        and previous.recipient == message.recipient
        and previous.home in (RESPONSES, CHAT)
        and (type(previous.parts[-1]) is not ToolCall or type(message.parts[0]) is ToolCall)
    )


def _keep_complete_parts(message: NormalizedMessage, losses: Losses) -> None:
    """Keep only texts and results of an interrupted answer: its other parts may be incomplete."""
    kept: list[Part] = []
    for part in message.parts:
        if type(part) is Text:
            kept.append(Text(part.at, part.text))
        elif type(part) is Refusal:
            kept.append(Refusal(part.at, part.text))
        elif type(part) is ToolResult:
            kept.append(part)
        else:
            what = f"a call of {part.name!r}" if type(part) is ToolCall else "a part"
            losses.append(Loss(part.at, f"{what} was left out: the answer was interrupted"))
    if not kept:
        losses.append(
            Loss(message.at, "an answer was left out: it was interrupted before any text")
        )
    message.parts = kept
    message.ended = True


__all__ = [
    "FORMATS",
    "INTERRUPTED_NOTICE",
    "Call",
    "InterruptedCall",
    "Loss",
    "StoredMessage",
    "Transcript",
    "answers",
    "closing",
    "detect_format",
    "open_calls",
    "render",
    "safe_cut",
    "safe_cuts",
]


_WRITERS: dict[str, Callable[[list[NormalizedMessage], Losses], tuple[list[Native], Any]]] = {
    CHAT: openai_chat.write,
    RESPONSES: openai_responses.write,
    ANTHROPIC: anthropic.write,
    GEMINI: gemini.write,
}

FORMATS = tuple(_WRITERS)

_PLAIN_CALLS = ("function", "custom", "deprecated")


class InterruptedCall(NamedTuple):
    """A call without a result, closed by an interruption notice. `id` is the stored one."""

    position: int
    id: str
    name: str


class Transcript(list[dict[str, Any]]):
    """Messages for a provider.

    `system` holds the instructions where the provider wants them apart from the messages
    (Anthropic: a text or blocks; Gemini: a content), else None. `losses` lists content that is
    missing, `interrupted_calls` the calls without a result. For a window, `truncated_before` is the
    position at which it begins if older messages were left out, else 0, and `tokens` its size if
    `max_tokens` was given, else None.
    """

    truncated_before: int = 0
    tokens: int | None = None

    def __init__(
        self,
        messages: Sequence[Native] = (),
        *,
        system: Any = None,
        losses: Sequence[Loss] = (),
        interrupted_calls: Sequence[InterruptedCall] = (),
    ) -> None:
        super().__init__(messages)
        self.system = system
        self.losses = tuple(losses)
        self.interrupted_calls = tuple(interrupted_calls)


def render(stored: Sequence[StoredMessage], format: str, *, perspective: str = "") -> Transcript:
    """Return a transcript that the provider of the format accepts, whatever was stored.

    With `perspective`, it is the view of one agent: see `from_perspective`. Where the provider
    requires the user to begin and no user did, a placeholder is added. No messages give an empty
    transcript.

    Raises UsageError if the format is not one of `FORMATS`.
    """
    if format not in _WRITERS:
        raise UsageError(f"no format {format!r}: choose one of {', '.join(FORMATS)}")
    losses: Losses = []
    normalized = attach_results(normalize(stored, losses), losses)
    if format != RESPONSES:
        _report_fields(stored, format, losses)
    if perspective:
        normalized = from_perspective(perspective, normalized, format, losses)
    closed: list[InterruptedCall] = []
    _prepare_for_format(normalized, format, losses, closed)
    messages, system = _WRITERS[format](normalized, losses)
    losses.sort(key=lambda loss: loss.position)
    return Transcript(messages, system=system, losses=losses, interrupted_calls=closed)


def _report_fields(stored: Sequence[StoredMessage], format: str, losses: Losses) -> None:
    """Report the unknown fields of items of the Responses API, which are parsed without them."""
    for each in stored:
        native = each.message
        if "type" in native and not each.opaque and detect_format(native) == RESPONSES:
            fields = openai_responses.fields_of_answers(native, each.position)
            losses += [unsupported_part(field, format) for field in fields]


def _prepare_for_format(
    messages: list[NormalizedMessage], format: str, losses: Losses, closed: list[InterruptedCall]
) -> None:
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
            _close_call(call, closed)
        _name_call(call, format, losses, reported)
    _assign_ids(calls, format)


def _assign_ids(calls: list[ToolCall], format: str) -> None:
    """Give each call a unique id; in Gemini, a call without an id stays without."""
    ids = CallIds(format)
    for call in calls:
        if call.id:
            call.out_id = ids.take(call.id)
    for call in calls:  # Last, so that no generated id takes one that exists.
        if not call.id and format != GEMINI:
            call.out_id = ids.take(f"call_{call.at}")


def _name_speaker(message: NormalizedMessage, format: str, losses: Losses) -> None:
    name = legal_speaker_name(message.name) if format == CHAT else ""
    if name != message.name:
        change = f"is sent as {name!r}" if name else f"was left out: {format} has no field for it"
        losses.append(Loss(message.at, f"the speaker's name {message.name!r} {change}"))
    message.name = name


def _name_call(call: ToolCall, format: str, losses: Losses, reported: set[str]) -> None:
    if call.kind not in _PLAIN_CALLS and format != RESPONSES:
        what = f"a call of type {call.kind!r} is sent as a call of a function {call.name!r}"
        losses.append(Loss(call.at, what))
    name = legal_tool_name(call.name, format)
    if name != call.name and call.name not in reported:
        reported.add(call.name)
        what = f"the tool's name {call.name!r} is sent as {name!r}: {format} does not allow it"
        losses.append(Loss(call.at, what))
    call.name = name


def _close_call(call: ToolCall, closed: list[InterruptedCall]) -> None:
    notice = Text(call.at, INTERRUPTED_NOTICE)
    closed.append(InterruptedCall(call.at, call.id or call.name, call.name))
    call.result = ToolResult(call.at, call.id, call.name, [notice], error=True)
