"""Parse a request of either API into a `Prompt`. Pure.

Tokens are a quarter of the characters of the JSON, rounded up: not the count of any vocabulary, but
deterministic.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from perdure.testing.provider_rules.responses import CALL_OF, CALL_OUTPUTS, kind_of


class OfferedTool(NamedTuple):
    """A tool that the request offers."""

    name: str
    custom: bool
    parameters: Mapping[str, Any]


class Prompt(NamedTuple):
    """The parts of a request that determine the answer."""

    api: str
    body: Mapping[str, Any]
    items: Sequence[Mapping[str, Any]]
    """The messages, or the items of the input after those of the previous response."""
    instructions: str | None
    last_user: str
    rounds: int
    """Number of tool rounds since the last user message."""
    format: Mapping[str, Any]
    forced: OfferedTool | None
    limit: int | None

    @property
    def context(self) -> Any:
        """Everything that the model would read."""
        return self.items if self.instructions is None else [self.instructions, self.items]

    @property
    def digest(self) -> str:
        """Identify the context, in twelve hex digits."""
        return digest(self.context)

    @property
    def tokens(self) -> int:
        return tokens(canonical(self.context))

    @property
    def seed(self) -> str:
        """Identify the request; ids in the answer are derived from it."""
        return digest(self.body)


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def digest(*values: Any) -> str:
    return hashlib.sha256(canonical([*values]).encode()).hexdigest()[:12]


def tokens(text: str) -> int:
    return -(-len(text) // 4)


def from_chat(body: Mapping[str, Any]) -> Prompt:
    """Parse a chat completions request whose messages are valid."""
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    last_user = _last_index(messages, lambda message: message["role"] == "user")
    since = messages[last_user + 1 :]
    response_format = body.get("response_format") or {}
    schema = response_format.get("json_schema") or {}
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    return Prompt(
        api="chat",
        body=body,
        items=messages,
        instructions=None,
        last_user=_text(messages[last_user]["content"]) if last_user >= 0 else "",
        rounds=sum(bool(message.get("tool_calls")) for message in since),
        format={**schema, "type": response_format.get("type", "text")},
        forced=_forced_tool(body),
        limit=limit,
    )


def from_responses(body: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> Prompt:
    """Parse a Responses request; `items` is the input after that of the previous response."""
    last_user = _last_index(items, lambda item: item.get("role") == "user")
    calling, rounds = False, 0
    for kind in map(kind_of, items[last_user + 1 :]):
        rounds += kind in CALL_OUTPUTS and not calling
        calling = kind in CALL_OUTPUTS or (calling and kind not in CALL_OF)
    return Prompt(
        api="responses",
        body=body,
        items=items,
        instructions=body.get("instructions"),
        last_user=_text(items[last_user]["content"]) if last_user >= 0 else "",
        rounds=rounds,
        format=(body.get("text") or {}).get("format") or {"type": "text"},
        forced=_forced_tool(body),
        limit=body.get("max_output_tokens"),
    )


def from_anthropic(body: Mapping[str, Any]) -> Prompt:
    """Parse a request of Anthropic's messages that are valid. Results of tools are no user's."""
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    last_user = _last_index(
        messages, lambda item: item["role"] == "user" and _text(item["content"])
    )
    since = [message["content"] for message in messages[last_user + 1 :]]
    system = body.get("system")
    return Prompt(
        api="anthropic",
        body=body,
        items=messages,
        instructions=_text(system) if system else None,
        last_user=_text(messages[last_user]["content"]) if last_user >= 0 else "",
        rounds=sum(any(_is_result(block) for block in content) for content in since),
        format={"type": "text"},
        forced=None,
        limit=body["max_tokens"],
    )


def _is_result(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "tool_result"


def _last_index(messages: Sequence[Mapping[str, Any]], matches: Any) -> int:
    indexes = [index for index, message in enumerate(messages) if matches(message)]
    return indexes[-1] if indexes else -1


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in content if "text" in part)


def _forced_tool(body: Mapping[str, Any]) -> OfferedTool | None:
    """Return the tool that the request requires to be called, None if it requires none."""
    choice = body.get("tool_choice")
    tools = [_parse_tool(tool) for tool in body.get("tools") or ()]
    if choice == "required":
        return tools[0] if tools else None
    if not isinstance(choice, Mapping):
        return None
    kind = str(choice.get("type"))
    name = choice.get("name") or (choice.get(kind) or {}).get("name")
    return next((tool for tool in tools if tool.name == name), None)


def _parse_tool(tool: Mapping[str, Any]) -> OfferedTool:
    kind = str(tool.get("type"))
    inner = tool.get(kind)
    fields = inner if isinstance(inner, Mapping) else tool
    parameters = fields.get("parameters") or {"type": "object"}
    return OfferedTool(str(fields.get("name")), kind == "custom", parameters)
