"""What the model answers: by itself, by the marks in the user's text, or as it was scripted. Pure.

An answer by itself names the digest of the whole prompt, so that a context which differs in one
letter is answered differently. The marks are described in docs/how-to/test-your-agent-offline.md.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.testing.model_server.errors import of_status
from perdure.testing.model_server.prompts import Prompt, Tool, digest, tokens
from perdure.testing.model_server.schema import fitting

NEXT = "[[then]]"

_MARK = re.compile(r"\[\[(tool|custom|refuse|reason|len|say|err)(?=[\s\]])\s*")

_TOOL = re.compile(r"([a-zA-Z0-9_-]+)\s*")


class Call(NamedTuple):
    """A call of a tool; `arguments` is JSON, or whatever a custom tool takes."""

    name: str
    arguments: str
    custom: bool = False
    id: str | None = None


class Answer(NamedTuple):
    """What the model says and does in one go."""

    text: str | None = None
    calls: tuple[Call, ...] = ()
    refusal: str | None = None
    reasoning: str | None = None
    finish: str | None = None

    @property
    def finish_reason(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")

    @property
    def tokens(self) -> int:
        said = [self.text, self.refusal, *(call.arguments for call in self.calls)]
        return sum(tokens(text) for text in said if text)

    @property
    def reasoning_tokens(self) -> int:
        return tokens(self.reasoning or "")


def by_itself(prompt: Prompt) -> Answer:
    """Answer as the marks say for this round of tools, else with the digest of the prompt."""
    rounds = prompt.last_user.split(NEXT)
    marks = [*_marks(rounds[prompt.rounds])] if prompt.rounds < len(rounds) else []
    answer = Answer()
    for name, rest in marks:
        match name:
            case "tool":
                answer = answer._replace(calls=(*answer.calls, _call(rest)))
            case "custom":
                answer = answer._replace(calls=(*answer.calls, _call(rest, custom=True)))
            case "refuse":
                answer = answer._replace(refusal=rest or "I can not help with that.")
            case "reason":
                answer = answer._replace(reasoning=rest or f"Reasoning about {prompt.digest}.")
            case "len":
                answer = answer._replace(text=_words(prompt.digest, int(rest)))
            case "say":
                answer = answer._replace(text=rest)
            case _:
                raise of_status(int(rest))
    if prompt.forced and not answer.calls:
        answer = answer._replace(calls=(_forced(prompt.forced, prompt.digest),))
    if answer.text is None and answer.refusal is None and not answer.calls:
        answer = answer._replace(text=_text(prompt))
    return answer


def made_of(given: Any) -> Answer:
    """Make an answer of what a test wrote: a text, a message, or calls of tools.

    Raises TypeError or KeyError if it is none of these.
    """
    match given:
        case Answer():
            return given
        case str():
            return Answer(text=given)
        case Mapping() if "name" in given:
            return Answer(calls=(_call_of(given),))
        case Mapping():
            unknown = given.keys() - _FIELDS
            if unknown:
                message = f"an answer has no {', '.join(sorted(unknown))}"
                raise TypeError(message)
            return Answer(
                text=given.get("content"),
                calls=tuple(_call_of(call) for call in given.get("tool_calls") or ()),
                refusal=given.get("refusal"),
                reasoning=given.get("reasoning"),
                finish=given.get("finish_reason"),
            )
        case Sequence():
            return Answer(calls=tuple(_call_of(call) for call in given))
    message = f"an answer is a text, a message or a list of calls, not {type(given).__name__}"
    raise TypeError(message)


_FIELDS = {"role", "content", "tool_calls", "refusal", "reasoning", "finish_reason"}


def cut(answer: Answer, limit: int | None) -> Answer:
    """Stop a text in the middle of it if it has more tokens than it may have."""
    if limit is None or answer.text is None or tokens(answer.text) <= limit:
        return answer
    return answer._replace(text=answer.text[: limit * 4], calls=(), finish="length")


def pieces(text: str) -> Iterator[str]:
    """Cut a text as it is streamed: by words, and long words too."""
    for word in re.findall(r"\S+\s*|\s+", text):
        yield from (word[start : start + 16] for start in range(0, len(word), 16))


def with_ids(answer: Answer, seed: str) -> tuple[tuple[Call, str], ...]:
    """Pair each call with its id, which is made of the request where the test gave none."""
    return tuple(
        (call, call.id or f"call_{digest(seed, index)}") for index, call in enumerate(answer.calls)
    )


def _marks(text: str) -> Iterator[tuple[str, str]]:
    """Yield each mark and what it holds; JSON may have brackets of its own."""
    place = 0
    while found := _MARK.search(text, place):
        start = found.end()
        name = _TOOL.match(text, start) if found[1] == "tool" else None
        end = _end_of_json(text, name.end()) if name else start
        place = text.find("]]", end)
        if place < 0:
            return
        yield found[1], text[start:place].strip()


def _end_of_json(text: str, start: int) -> int:
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except ValueError:
        return start  # Models write broken JSON at times: it goes up to the next brackets.


def _call(rest: str, *, custom: bool = False) -> Call:
    name, _, given = rest.partition(" ")
    return Call(name, given.strip() or ("" if custom else "{}"), custom)


def _call_of(given: Mapping[str, Any]) -> Call:
    inner = given.get("function") or given.get("custom") or given
    custom = "input" in inner
    arguments = inner["input"] if custom else inner.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return Call(inner["name"], arguments, custom, given.get("id"))


def _forced(tool: Tool, word: str) -> Call:
    if tool.custom:
        return Call(tool.name, word, custom=True)
    return Call(tool.name, json.dumps(fitting(tool.parameters, word)))


def _text(prompt: Prompt) -> str:
    match prompt.format.get("type"):
        case "json_schema":
            return json.dumps(fitting(prompt.format.get("schema") or {}, prompt.digest))
        case "json_object":
            return json.dumps({"answer": prompt.digest})
    count = len(prompt.items)
    return f"Answer {prompt.digest} to {count} message{'s' if count != 1 else ''}."


def _words(word: str, count: int) -> str:
    return " ".join([word, *(f"w{number}" for number in range(2, count + 1))][:count])
