"""What a request asks, whichever of the two APIs it came by. Pure.

Tokens are counted as a quarter of the characters of the JSON, rounded up: not what any vocabulary
says, but the same everywhere and always.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from perdure.testing.provider_rules.responses import ANSWERS, CALL_OF, kind_of


class Tool(NamedTuple):
    """A tool that the request offers."""

    name: str
    custom: bool
    parameters: Mapping[str, Any]


class Prompt(NamedTuple):
    """What an answer is made of."""

    api: str
    body: Mapping[str, Any]
    items: Sequence[Mapping[str, Any]]
    """The messages, or the items of the input with those that went before."""
    instructions: str | None
    last_user: str
    rounds: int
    """How often tools were called since the user spoke."""
    format: Mapping[str, Any]
    forced: Tool | None
    limit: int | None

    @property
    def said(self) -> Any:
        """Everything that the model would read."""
        return self.items if self.instructions is None else [self.instructions, self.items]

    @property
    def digest(self) -> str:
        """Tell this prompt from every other, in twelve letters."""
        return digest(self.said)

    @property
    def tokens(self) -> int:
        return tokens(canonical(self.said))

    @property
    def seed(self) -> str:
        """Tell this request from every other: what ids are made of."""
        return digest(self.body)


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def digest(*values: Any) -> str:
    return hashlib.sha256(canonical([*values]).encode()).hexdigest()[:12]


def tokens(text: str) -> int:
    return -(-len(text) // 4)


def of_chat(body: Mapping[str, Any]) -> Prompt:
    """Read a request of chat completions, whose messages were found to be valid."""
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    speaker = _last(messages, lambda message: message["role"] == "user")
    since = messages[speaker + 1 :]
    asked = body.get("response_format") or {}
    schema = asked.get("json_schema") or {}
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    return Prompt(
        api="chat",
        body=body,
        items=messages,
        instructions=None,
        last_user=_text(messages[speaker]["content"]) if speaker >= 0 else "",
        rounds=sum(bool(message.get("tool_calls")) for message in since),
        format={**schema, "type": asked.get("type", "text")},
        forced=_forced(body),
        limit=limit,
    )


def of_responses(body: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> Prompt:
    """Read a request of responses; the items are the whole input, with what went before."""
    speaker = _last(items, lambda item: item.get("role") == "user")
    calling, rounds = False, 0
    for kind in map(kind_of, items[speaker + 1 :]):
        rounds += kind in ANSWERS and not calling
        calling = kind in ANSWERS or (calling and kind not in CALL_OF)
    return Prompt(
        api="responses",
        body=body,
        items=items,
        instructions=body.get("instructions"),
        last_user=_text(items[speaker]["content"]) if speaker >= 0 else "",
        rounds=rounds,
        format=(body.get("text") or {}).get("format") or {"type": "text"},
        forced=_forced(body),
        limit=body.get("max_output_tokens"),
    )


def _last(messages: Sequence[Mapping[str, Any]], wanted: Any) -> int:
    found = [index for index, message in enumerate(messages) if wanted(message)]
    return found[-1] if found else -1


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in content if "text" in part)


def _forced(body: Mapping[str, Any]) -> Tool | None:
    """Name the tool that must be called, if the request says that one must be."""
    choice = body.get("tool_choice")
    tools = [_tool(tool) for tool in body.get("tools") or ()]
    if choice == "required":
        return tools[0] if tools else None
    if not isinstance(choice, Mapping):
        return None
    kind = str(choice.get("type"))
    name = choice.get("name") or (choice.get(kind) or {}).get("name")
    return next((tool for tool in tools if tool.name == name), None)


def _tool(tool: Mapping[str, Any]) -> Tool:
    kind = str(tool.get("type"))
    inner = tool.get(kind)
    told = inner if isinstance(inner, Mapping) else tool
    parameters = told.get("parameters") or {"type": "object"}
    return Tool(str(told.get("name")), kind == "custom", parameters)
