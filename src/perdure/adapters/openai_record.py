"""What stands in the record of a turn, against what a call gives. Pure.

A turn is a row of exchanges: what was put in, and the model's reply to it. A reply is known by what
came with it (its id, model, usage); what an application put in came alone.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.errors import UsageError
from perdure.records import Message, Record, TurnBegun, TurnContinued, TurnFailed
from perdure.transcript import answers, open_calls

Item = dict[str, Any]

SHOWN = 200  # Characters of what is no reply.
NAME_MAX = 128  # Characters of a model's name.
_TRAVEL = ("timeout", "extra_headers", "extra_query", "stream", "stream_options")
_INSTRUCTIONS = ("system", "developer")


class Reply(NamedTuple):
    """A reply as recorded: one message, or the items of a response; and what came with it."""

    messages: list[Item]
    meta: Item


class Exchange(NamedTuple):
    """What was put in, and the reply, if it came."""

    inputs: list[Item]
    reply: Reply | None


def plain(value: Any) -> Any:
    """Return a value as JSON would give it back, with the SDK's objects in it exported."""
    if isinstance(value, Mapping):
        return {name: plain(found) for name, found in value.items()}
    if isinstance(value, list | tuple):
        return [plain(found) for found in value]
    kind = type(value)
    if hasattr(kind, "to_dict") and hasattr(kind, "model_dump"):
        return plain(value.to_dict(warnings=False))  # Parsed objects differ from their annotations.
    if hasattr(kind, "model_dump"):
        return plain(value.model_dump(mode="json", exclude_unset=True, warnings=False))
    return value


def inputs_of(given: Any, name: str) -> list[Item]:
    """Return what a call puts in as messages; a text is what the user says."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, Iterable) or isinstance(given, Mapping | bytes):
        raise UsageError(f"a list of messages is expected, not a {type(given).__qualname__}", name)
    found = [plain(one) for one in given]
    for index, one in enumerate(found):
        if not isinstance(one, dict):
            reason = f"a {type(one).__qualname__} is not a message"
            raise UsageError(f'{reason}: give {{"role": "user", "content": …}}', f"{name}[{index}]")
    return found


def asked(format: str, arguments: Mapping[str, Any], field: str, said: Item) -> tuple[str, Item]:
    """Return what a call is recorded under, and what makes two calls the same.

    What was said before is bound by the place of the record; how the call travels is left out.
    """
    name = arguments.get("model")
    name = name if isinstance(name, str) and name else format
    rest = {one: _told(found) for one, found in arguments.items() if one not in (field, *_TRAVEL)}
    return name[:NAME_MAX], {**said, "format": format, "arguments": rest}


def _told(value: Any) -> Any:
    """Return an argument as data; a class that answers are parsed with is known by its name."""
    if isinstance(value, Mapping):
        return {str(name): _told(found) for name, found in value.items()}
    if isinstance(value, list | tuple):
        return [_told(found) for found in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, type):
        return value.__qualname__
    found = plain(value)
    return type(value).__qualname__ if found is value else _told(found)


def reply_of(recorded: Any) -> Reply:
    """Return the reply that a replayed call had, or raise as the API did."""
    if not recorded.error:
        return Reply(recorded.messages, recorded.meta)
    import openai

    found = getattr(openai, recorded.error, None)
    if not (isinstance(found, type) and issubclass(found, openai.OpenAIError)):
        raise UsageError(f"the call failed with {recorded.error}: {recorded.reason}")
    error: Any = found.__new__(found)
    Exception.__init__(error, recorded.reason)
    error.message = recorded.reason
    raise error


def is_instruction(message: Item) -> bool:
    return message.get("role") in _INSTRUCTIONS


def said(messages: Iterable[Item]) -> list[Item]:
    """Return messages without instructions, which stand once however often they are given."""
    return [one for one in messages if not is_instruction(one)]


def instructions(messages: Iterable[Item]) -> list[Item]:
    return [one for one in messages if is_instruction(one)]


def exchanges(messages: Iterable[Message]) -> list[Exchange]:
    """Return the exchanges of a turn; the last one has no reply where that has not come."""
    found: list[Exchange] = []
    waiting: list[Item] = []
    for content in messages:
        if content.interrupted:
            continue  # An answer that was cut is none.
        waiting.append(content.message)
        if content.meta:
            count = _length_of_reply(waiting, content.meta)
            reply = Reply(waiting[-count:], content.meta)
            found.append(Exchange(waiting[:-count], reply))
            waiting = []
    return [*found, Exchange(waiting, None)] if waiting or not found else found


def _length_of_reply(messages: Sequence[Item], meta: Item) -> int:
    """Return how many of the last messages came together, as the items of one response do."""
    if meta.get("object") != "response":
        return 1
    count = 1
    while count < len(messages) and is_output(messages[-count - 1]):
        count += 1
    return count


def is_output(item: Item) -> bool:
    """Whether a message is of a kind that models say."""
    if item.get("role") is not None:
        return bool(item["role"] == "assistant")
    return not answers(item)


def require_format(reply: Reply, format: str) -> None:
    """Refuse to give a reply of one API to a call of the other."""
    found = "openai.responses" if reply.meta.get("object") == "response" else "openai.chat"
    if found != format:
        reason = f"the reply to this was recorded from {found}, and {format} asks for it"
        raise UsageError(f"{reason}: ask as before, or begin another turn")


def require_reply(result: Any, format: str) -> None:
    """Refuse what an endpoint gave in the place of a reply: a page, an error, nothing."""
    if format == "openai.chat":
        choices: Any = getattr(result, "choices", None)
        found = bool(choices) and getattr(choices[0], "message", None) is not None
    else:
        found = isinstance(getattr(result, "output", None), list)
    if not found:
        text = result if isinstance(result, str) else json.dumps(plain(result), default=str)
        reason = f"the endpoint's reply is no completion: {' '.join(text.split())[:SHOWN]}"
        raise UsageError(f"{reason}; check base_url")


def messages_of_reply(result: Any) -> list[Item]:
    """Return the messages of a reply, as far as they can hold calls."""
    choices = getattr(result, "choices", None)
    if choices is None:
        found = [one for one in result.output if one.type != "message"]
    else:
        found = [choice.message for choice in choices[:1]]
        found = [one for one in found if one.tool_calls or one.function_call]
    return [plain(one) for one in found]


def messages_of(records: Iterable[Record], turn: str) -> list[Message] | None:
    """Return the messages of a turn; None if others spoke after it began."""
    found: list[Message] = []
    for record in records:
        if isinstance(record.content, TurnBegun) and record.id != turn:
            return None
        if isinstance(record.content, Message):
            if record.content.turn != turn:
                return None
            found.append(record.content)
    return found


def before_entered(records: Iterable[Record], turn: str, *, ended: bool) -> list[Message]:
    """Return the messages that a turn had when this process entered it.

    A turn that nobody else held has what was put in before the first reply.
    """
    found: list[Message] = []
    continued = 0
    for record in records:
        content = record.content
        if isinstance(content, Message) and content.turn == turn:
            found.append(content)
        elif isinstance(content, TurnContinued) and content.turn == turn:
            continued = len(found)
    if ended:
        return found
    if continued:
        return found[:continued]
    return [] if any(content.meta for content in found) else found


def ends_failed(records: Sequence[Record], but: str = "") -> bool:
    """Whether the last turn, but for one, ended with an error, and nothing was said since."""
    for record in reversed(records):
        if but in (record.id, getattr(record.content, "turn", None)):
            continue
        if isinstance(record.content, TurnFailed):
            return True
        if record.kind == Message.kind or record.kind.startswith("turn."):
            return False
    return False


def calls_of(messages: Iterable[Item]) -> list[str]:
    """Return the ids of the calls that messages make and do not answer themselves."""
    calls: list[str] = []
    for message in messages:
        answered = answers(message)
        calls = [call for call in calls if call not in answered]
        calls += all_calls([message])
    return calls


def all_calls(messages: Iterable[Item]) -> list[str]:
    """Return the ids of all calls that messages make."""
    return [call.id for message in messages for call in open_calls(message)]


def calls_at_end(calls: Sequence[str], trail: Iterable[Exchange]) -> list[str]:
    """Return the calls that are open after some exchanges, given those that were before."""
    open_ = [*calls]
    for inputs, reply in trail:
        answered = results_of(inputs)
        open_ = [call for call in open_ if call not in answered]
        open_ += calls_of(reply.messages) if reply else []
    return open_


def require_all(results: Sequence[str], calls: Sequence[str]) -> None:
    """Refuse results that leave calls open, or that answer none."""
    missing = [call for call in calls if call not in results]
    unknown = [call for call in results if call not in calls]
    if unknown:
        reason = f"results of calls that are not open: {', '.join(unknown)}"
        raise UsageError(f"{reason}: open are {', '.join(calls)}")
    if missing:
        reason = f"calls without a result: {', '.join(missing)}"
        raise UsageError(f"{reason}: give the results of all calls together")


def results_of(messages: Iterable[Item]) -> list[str]:
    """Return the ids of the calls that messages answer."""
    return [call for message in messages for call in answers(message)]


def same_inputs(given: Sequence[Item], recorded: Sequence[Item], *, whole: bool) -> bool:
    """Whether a call gives what was put in before: all of it, or the end of it.

    A tool's result is the same if it answers the same call: a tool that ran twice may say
    something else, and what the model was told is what stands.
    """
    one, other = said(given), said(recorded)
    if not whole:
        other = other[len(other) - len(one) :] if len(one) <= len(other) else other
    return len(one) == len(other) and all(map(_same, one, other))


def _same(given: Item, recorded: Item) -> bool:
    answered = answers(given)
    return given == recorded or (bool(answered) and answered == answers(recorded))


def differing(given: Sequence[Item], recorded: Sequence[Item]) -> list[str]:
    """Return the calls whose result is not what was recorded."""
    pairs = zip(reversed(said(given)), reversed(said(recorded)), strict=False)
    return [call for one, other in pairs if one != other for call in answers(one)][::-1]


def repeated(given: Iterable[Item], recent: Iterable[Item]) -> bool:
    """Whether a call gives back what the model said before: the caller keeps a list of its own."""
    known = [_key(message) for message in recent if is_output(message)]
    return any(_key(one) in known for one in given if is_output(one))


def _key(message: Item) -> tuple[Any, list[str]]:
    return message.get("content") or "", calls_of([message])
