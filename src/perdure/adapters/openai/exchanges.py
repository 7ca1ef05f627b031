"""Compare the records of a turn with the inputs of a call. Pure functions, no I/O.

A turn is a sequence of exchanges: inputs, and the model's reply to them. A reply has metadata (its
id, model, usage); inputs from the application have none.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.errors import UsageError
from perdure.formats.tool_calls import INTERRUPTED_NOTICE, answers, open_calls
from perdure.journal.records import Message, Record, TurnBegun, TurnContinued, TurnFailed

Item = dict[str, Any]


MODEL_NAME_MAX = 128  # Characters of a model's name in the record.

_TRANSPORT_OPTIONS = ("timeout", "extra_headers", "extra_query", "stream", "stream_options")

_INSTRUCTION_ROLES = ("system", "developer")


class RecordedReply(NamedTuple):
    """A recorded reply: one message, or the items of a response, with its metadata."""

    messages: list[Item]
    meta: Item


class Exchange(NamedTuple):
    """The inputs, and the reply if there is one."""

    inputs: list[Item]
    reply: RecordedReply | None


def to_plain_data(value: Any) -> Any:
    """Return a value as plain JSON data, with the SDK's objects exported."""
    if isinstance(value, Mapping):
        return {name: to_plain_data(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_data(item) for item in value]
    kind = type(value)
    if hasattr(kind, "to_dict") and hasattr(kind, "model_dump"):
        return to_plain_data(
            value.to_dict(warnings=False)
        )  # Parsed objects differ from their annotations.
    if hasattr(kind, "model_dump"):
        return to_plain_data(value.model_dump(mode="json", exclude_unset=True, warnings=False))
    return value


def parse_inputs(value: Any, name: str) -> list[Item]:
    """Return a call's inputs as messages; a str is a user message."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, Iterable) or isinstance(value, Mapping | bytes):
        raise UsageError(f"a list of messages is expected, not a {type(value).__qualname__}", name)
    items = [to_plain_data(item) for item in value]
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            reason = f"a {type(item).__qualname__} is not a message"
            raise UsageError(f'{reason}: pass {{"role": "user", "content": …}}', f"{name}[{index}]")
    return items


def call_identity(
    format: str, arguments: Mapping[str, Any], field: str, identity: Item
) -> tuple[str, Item]:
    """Return the name a call is recorded under, and the data that identifies it.

    Earlier messages are implied by the record's position; transport options are left out.
    """
    name = arguments.get("model")
    name = name if isinstance(name, str) and name else format
    rest = {
        option: _argument_data(value)
        for option, value in arguments.items()
        if option not in (field, *_TRANSPORT_OPTIONS)
    }
    return name[:MODEL_NAME_MAX], {**identity, "format": format, "arguments": rest}


def _argument_data(value: Any) -> Any:
    """Return an argument as data; a class to parse replies with is identified by its name."""
    if isinstance(value, Mapping):
        return {str(name): _argument_data(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_argument_data(item) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, type):
        return value.__qualname__
    data = to_plain_data(value)
    return type(value).__qualname__ if data is value else _argument_data(data)


def load_reply(recorded: Any) -> RecordedReply:
    """Return the reply of a replayed call, or raise the recorded API error."""
    if not recorded.error:
        return RecordedReply(recorded.messages, recorded.meta)
    import openai

    error_class = getattr(openai, recorded.error, None)
    if not (isinstance(error_class, type) and issubclass(error_class, openai.OpenAIError)):
        raise UsageError(f"the call failed with {recorded.error}: {recorded.reason}")
    # Not `error_class(...)`: API errors require the HTTP response, which is not recorded.
    error: Any = error_class.__new__(error_class)
    Exception.__init__(error, recorded.reason)
    error.message = recorded.reason
    raise error


def is_instruction(message: Item) -> bool:
    return message.get("role") in _INSTRUCTION_ROLES


def is_said(content: Message) -> bool:
    """Return whether a caller's own list would have a message: no instruction, whole, no notice."""
    notice = content.interrupted or content.origin.startswith("perdure:")
    return not notice and not is_instruction(content.message)


def without_instructions(messages: Iterable[Item]) -> list[Item]:
    """Return messages without instructions, which are stored once however often they are passed."""
    return [message for message in messages if not is_instruction(message)]


def only_instructions(messages: Iterable[Item]) -> list[Item]:
    return [message for message in messages if is_instruction(message)]


def split_exchanges(messages: Iterable[Message]) -> list[Exchange]:
    """Return the exchanges of a turn; the last one has no reply if none is recorded."""
    complete: list[Exchange] = []
    pending: list[Item] = []
    for content in messages:
        if content.interrupted:
            continue  # An interrupted answer is not a reply.
        pending.append(content.message)
        if content.meta:
            count = _reply_length(pending, content.meta)
            reply = RecordedReply(pending[-count:], content.meta)
            complete.append(Exchange(pending[:-count], reply))
            pending = []
    return [*complete, Exchange(pending, None)] if pending or not complete else complete


def _reply_length(messages: Sequence[Item], meta: Item) -> int:
    """Return how many of the last messages belong to one reply, such as the items of a response."""
    if meta.get("object") != "response":
        return 1
    count = 1
    while count < len(messages) and is_output(messages[-count - 1]):
        count += 1
    return count


def is_output(item: Item) -> bool:
    """Return whether a message is model output."""
    if item.get("role") is not None:
        return bool(item["role"] == "assistant")
    return not answers(item)


def require_format(reply: RecordedReply, format: str) -> None:
    """Raise UsageError if a reply of one API is requested by a call of the other."""
    recorded = "openai.responses" if reply.meta.get("object") == "response" else "openai.chat"
    if recorded != format:
        reason = f"the reply to this was recorded from {recorded}, but requested through {format}"
        raise UsageError(f"{reason}: use the same API as before, or start another turn")


def require_reply(result: Any, format: str) -> None:
    """Raise UsageError if an endpoint returned no reply, but a page, an error or nothing."""
    if format == "openai.chat":
        choices: Any = getattr(result, "choices", None)
        is_reply = bool(choices) and getattr(choices[0], "message", None) is not None
    else:
        is_reply = isinstance(getattr(result, "output", None), list)
    if not is_reply:
        raise UsageError(
            f"the endpoint's reply is no completion, but {_describe(result)}: check base_url"
        )


def _describe(reply: Any) -> str:
    """Describe an invalid reply without its content."""
    if isinstance(reply, str):
        kind = "a page" if reply.lstrip().startswith("<") else "a text"
        return f"{kind} of {len(reply)} characters"
    data = to_plain_data(reply)
    if not isinstance(data, dict):
        return "nothing" if reply is None else f"a {type(reply).__qualname__}"
    empty = [name for name, value in data.items() if not value]
    fields = f"an object with the fields {', '.join(data) or '(none)'}"
    return f"{fields}, of which {', '.join(empty)} are empty" if empty else fields


def reply_messages(result: Any) -> list[Item]:
    """Return those messages of a reply that can hold calls."""
    choices = getattr(result, "choices", None)
    if choices is None:
        items = [item for item in result.output if item.type != "message"]
    else:
        items = [choice.message for choice in choices[:1]]
        items = [item for item in items if item.tool_calls or item.function_call]
    return [to_plain_data(item) for item in items]


def turn_messages(records: Iterable[Record], turn: str) -> list[Message] | None:
    """Return the messages of a turn; None if another turn or message came after it started."""
    messages: list[Message] = []
    for record in records:
        if isinstance(record.content, TurnBegun) and record.id != turn:
            return None
        if isinstance(record.content, Message) and not record.content.opaque:
            if record.content.turn != turn:
                return None
            messages.append(record.content)
    return messages


def messages_at_entry(records: Iterable[Record], turn: str, *, ended: bool) -> list[Message]:
    """Return the messages that a turn had when this process entered it.

    A turn that no other process held has the inputs before its first reply.
    """
    messages: list[Message] = []
    continued = 0
    for record in records:
        content = record.content
        if isinstance(content, Message) and content.turn == turn:
            messages.append(content)
        elif isinstance(content, TurnContinued) and content.turn == turn:
            continued = len(messages)
    if ended:
        return messages
    if continued:
        return messages[:continued]
    return [] if any(content.meta for content in messages) else messages


def ends_with_failure(records: Sequence[Record], excluded: str = "") -> bool:
    """Return whether the last turn, except the excluded one, failed without later messages."""
    for record in reversed(records):
        if excluded in (record.id, getattr(record.content, "turn", None)):
            continue
        if isinstance(record.content, TurnFailed):
            return True
        if record.kind == Message.kind or record.kind.startswith("turn."):
            return False
    return False


def unanswered_calls(messages: Iterable[Item]) -> list[str]:
    """Return the ids of calls that messages make and do not answer themselves."""
    calls: list[str] = []
    for message in messages:
        answered = answers(message)
        calls = [call for call in calls if call not in answered]
        calls += all_calls([message])
    return calls


def all_calls(messages: Iterable[Item]) -> list[str]:
    """Return the ids of all calls that messages make."""
    return [call.id for message in messages for call in open_calls(message)]


def open_calls_after(calls: Sequence[str], trail: Iterable[Exchange]) -> list[str]:
    """Return the open calls after some exchanges, given the open calls before them."""
    open_ = [*calls]
    for inputs, reply in trail:
        answered = answered_calls(inputs)
        open_ = [call for call in open_ if call not in answered]
        open_ += unanswered_calls(reply.messages) if reply else []
    return open_


def require_matching_results(results: Sequence[str], calls: Sequence[str]) -> None:
    """Raise UsageError if results leave calls open, or answer calls that are not open."""
    missing = [call for call in calls if call not in results]
    unknown = [call for call in results if call not in calls]
    if unknown:
        reason = f"results of calls that are not open: {', '.join(unknown)}"
        raise UsageError(f"{reason}: open are {', '.join(calls)}")
    if missing:
        reason = f"calls without a result: {', '.join(missing)}"
        raise UsageError(f"{reason}: pass the results of all calls together")


def answered_calls(messages: Iterable[Item]) -> list[str]:
    """Return the ids of the calls that messages answer."""
    return [call for message in messages for call in answers(message)]


def stored_results(messages: Iterable[Item]) -> dict[str, Item]:
    """Return the results in a turn's messages by call. A notice is none: a result replaces it."""
    results: dict[str, Item] = {}
    for message in messages:
        for call in all_calls([message]):  # A provider may use an id again.
            results.pop(call, None)
        if INTERRUPTED_NOTICE not in (message.get("content"), message.get("output")):
            results |= dict.fromkeys(answers(message), message)
    return results


def same_inputs(inputs: Sequence[Item], recorded: Sequence[Item], *, whole: bool) -> bool:
    """Return whether a call repeats recorded inputs: all of them, or their end.

    A tool result matches if it answers the same call: a tool that ran twice may return something
    else, and the recorded result, which the model has seen, is the one that counts.
    """
    current, previous = without_instructions(inputs), without_instructions(recorded)
    if not whole:
        previous = (
            previous[len(previous) - len(current) :] if len(current) <= len(previous) else previous
        )
    return len(current) == len(previous) and all(map(_is_same_item, current, previous))


def _is_same_item(item: Item, recorded: Item) -> bool:
    answered = answers(item)
    return item == recorded or (bool(answered) and answered == answers(recorded))


def changed_results(inputs: Sequence[Item], recorded: Sequence[Item]) -> list[str]:
    """Return the calls whose result differs from the recorded one."""
    pairs = zip(
        reversed(without_instructions(inputs)),
        reversed(without_instructions(recorded)),
        strict=False,
    )
    return [call for item, was in pairs if item != was for call in answers(item)][::-1]


def split_known(inputs: Sequence[Item], stored: Sequence[Item]) -> tuple[list[Item], int] | None:
    """Split the messages of a caller that passes the whole list each time, or the end of it.

    Return the new ones, with all instructions, and how many of the stored messages come before
    them. None if the list has no reply of the model, or does not continue the stored messages.
    """
    items = without_instructions(inputs)
    count = max((index + 1 for index, item in enumerate(items) if is_output(item)), default=0)
    known, new = items[:count], items[count:]
    if not known:
        return None
    ends = [count, *range(len(stored), count, -1)]  # From the beginning; else as late as possible.
    for end in ends:
        before = stored[end - count : end]
        if len(before) == count and all(map(_is_same_message, known, before)):
            return [*only_instructions(inputs), *new], end
    return None


def _is_same_message(item: Item, recorded: Item) -> bool:
    """Return whether a message of the caller is the recorded one, or what a list keeps of it."""
    if is_output(item):
        return is_output(recorded) and _output_key(item) == _output_key(recorded)
    return _is_same_item(item, recorded)


def repeats_output(inputs: Iterable[Item], recent: Iterable[Item]) -> bool:
    """Return whether a call repeats earlier model output: the caller keeps a history of its own."""
    outputs = [_output_key(message) for message in recent if is_output(message)]
    return any(_output_key(item) in outputs for item in inputs if is_output(item))


def _output_key(message: Item) -> tuple[Any, list[str]]:
    return message.get("content") or "", unanswered_calls([message])
