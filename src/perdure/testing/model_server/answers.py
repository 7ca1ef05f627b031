"""The answers of the model: default, requested by marks in the user's text, or scripted. Pure.

The default answer contains the digest of the whole prompt, so that a context that differs in one
letter gets a different answer. docs/how-to/test-your-agent-offline.md describes the marks.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.testing.model_server.errors import error_for_status
from perdure.testing.model_server.prompts import OfferedTool, Prompt, digest, tokens
from perdure.testing.model_server.schema import example_value

ROUND_SEPARATOR = "[[then]]"

_MARK = re.compile(r"\[\[(tool|custom|refuse|reason|len|say|err)(?=[\s\]])\s*")

_TOOL = re.compile(r"([a-zA-Z0-9_-]+)\s*")


class AnswerCall(NamedTuple):
    """A tool call; `arguments` is JSON text, or free text for a custom tool."""

    name: str
    arguments: str
    custom: bool = False
    id: str | None = None


class Answer(NamedTuple):
    """One answer of the model: text, tool calls, refusal, reasoning."""

    text: str | None = None
    calls: tuple[AnswerCall, ...] = ()
    refusal: str | None = None
    reasoning: str | None = None
    finish: str | None = None

    @property
    def finish_reason(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")

    @property
    def tokens(self) -> int:
        texts = [self.text, self.refusal, *(call.arguments for call in self.calls)]
        return sum(tokens(text) for text in texts if text)

    @property
    def reasoning_tokens(self) -> int:
        return tokens(self.reasoning or "")


def default_answer(prompt: Prompt) -> Answer:
    """Return the answer that the marks request for this tool round, else the prompt's digest."""
    rounds = prompt.last_user.split(ROUND_SEPARATOR)
    marks = [*_parse_marks(rounds[prompt.rounds])] if prompt.rounds < len(rounds) else []
    answer = Answer()
    for name, rest in marks:
        match name:
            case "tool" | "custom":
                call = _parse_call(rest, custom=name == "custom")
                answer = answer._replace(calls=(*answer.calls, call))
            case "refuse":
                answer = answer._replace(refusal=rest or "I cannot help with that.")
            case "reason":
                answer = answer._replace(reasoning=rest or f"Reasoning about {prompt.digest}.")
            case "len":
                answer = answer._replace(text=_words(prompt.digest, int(rest)))
            case "say":
                answer = answer._replace(text=rest)
            case _:
                raise error_for_status(int(rest))
    if prompt.forced and not answer.calls:
        answer = answer._replace(calls=(_forced_call(prompt.forced, prompt.digest),))
    if answer.text is None and answer.refusal is None and not answer.calls:
        answer = answer._replace(text=_default_text(prompt))
    return answer


def parse_answer(scripted: Any) -> Answer:
    """Parse an answer scripted by a test: a text, a message, or tool calls.

    Raises TypeError or KeyError if it is none of these.
    """
    match scripted:
        case Answer():
            return scripted
        case str():
            return Answer(text=scripted)
        case Mapping() if "name" in scripted:
            return Answer(calls=(_convert_call(scripted),))
        case Mapping():
            unknown = scripted.keys() - _FIELDS
            if unknown:
                message = f"an answer has no field {', '.join(sorted(unknown))}"
                raise TypeError(message)
            return Answer(
                text=scripted.get("content"),
                calls=tuple(_convert_call(call) for call in scripted.get("tool_calls") or ()),
                refusal=scripted.get("refusal"),
                reasoning=scripted.get("reasoning"),
                finish=scripted.get("finish_reason"),
            )
        case Sequence():
            return Answer(calls=tuple(_convert_call(call) for call in scripted))
    message = f"an answer is a text, a message or a list of calls, not {type(scripted).__name__}"
    raise TypeError(message)


_FIELDS = {"role", "content", "tool_calls", "refusal", "reasoning", "finish_reason"}


def truncate(answer: Answer, limit: int | None) -> Answer:
    """Cut a text that has more tokens than `limit`; the answer then has no calls."""
    if limit is None or answer.text is None or tokens(answer.text) <= limit:
        return answer
    return answer._replace(text=answer.text[: limit * 4], calls=(), finish="length")


def split_text(text: str) -> Iterator[str]:
    """Split a text into the deltas of a stream: words, and parts of long words."""
    for word in re.findall(r"\S+\s*|\s+", text):
        yield from (word[start : start + 16] for start in range(0, len(word), 16))


def calls_with_ids(answer: Answer, seed: str) -> tuple[tuple[AnswerCall, str], ...]:
    """Pair each call with its id; if the test set none, it is derived from the request."""
    return tuple(
        (call, call.id or f"call_{digest(seed, index)}") for index, call in enumerate(answer.calls)
    )


def _parse_marks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and content of each mark; JSON in a mark may contain brackets."""
    position = 0
    while mark := _MARK.search(text, position):
        start = mark.end()
        name = _TOOL.match(text, start) if mark[1] == "tool" else None
        end = _end_of_json(text, name.end()) if name else start
        position = text.find("]]", end)
        if position < 0:
            return
        yield mark[1], text[start:position].strip()


def _end_of_json(text: str, start: int) -> int:
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except ValueError:
        return start  # models sometimes write invalid JSON: take the text up to the brackets


def _parse_call(rest: str, *, custom: bool) -> AnswerCall:
    name, _, arguments = rest.partition(" ")
    return AnswerCall(name, arguments.strip() or ("" if custom else "{}"), custom)


def _convert_call(call: Mapping[str, Any]) -> AnswerCall:
    inner = call.get("function") or call.get("custom") or call
    custom = "input" in inner
    arguments = inner["input"] if custom else inner.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return AnswerCall(inner["name"], arguments, custom, call.get("id"))


def _forced_call(tool: OfferedTool, word: str) -> AnswerCall:
    if tool.custom:
        return AnswerCall(tool.name, word, custom=True)
    return AnswerCall(tool.name, json.dumps(example_value(tool.parameters, word)))


def _default_text(prompt: Prompt) -> str:
    match prompt.format.get("type"):
        case "json_schema":
            return json.dumps(example_value(prompt.format.get("schema") or {}, prompt.digest))
        case "json_object":
            return json.dumps({"answer": prompt.digest})
    count = len(prompt.items)
    return f"Answer {prompt.digest} to {count} message{'s' if count != 1 else ''}."


def _words(word: str, count: int) -> str:
    return " ".join([word, *(f"w{number}" for number in range(2, count + 1))][:count])
