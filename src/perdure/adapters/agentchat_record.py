"""What a run tells → messages of a session, in the form of OpenAI's chat completions.

Calls and results are among them. Thoughts, chunks and notices of the package are not: what they
say comes from the answers and outcomes in the journal.
"""

import json
from collections.abc import Sequence
from typing import Any

from autogen_agentchat.agents import UserProxyAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import (
    BaseChatMessage,
    HandoffMessage,
    MultiModalMessage,
    TextMessage,
    ToolCallExecutionEvent,
    ToolCallRequestEvent,
)

from perdure.adapters.agentchat_messages import Messages
from perdure.errors import UsageError

Item = dict[str, Any]
USER = "user"


def messages_of(event: Any, people: frozenset[str]) -> list[Item]:
    """Return what is stored of an event or a message of a run."""
    if isinstance(event, ToolCallRequestEvent):
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in event.content
        ]
        return [{"role": "assistant", "content": None, "tool_calls": calls}]
    if isinstance(event, ToolCallExecutionEvent):
        return [
            {"role": "tool", "tool_call_id": one.call_id, "content": one.content}
            for one in event.content
        ]
    if not isinstance(event, BaseChatMessage):
        return []
    role = "user" if event.source in people else "assistant"
    if isinstance(event, MultiModalMessage):
        parts = [
            {"type": "text", "text": one} if isinstance(one, str) else one.to_openai_format()
            for one in event.content
        ]
        return [{"role": role, "content": parts}]
    return [{"role": role, "content": event.to_model_text()}]


def recipient_of(event: Any) -> str:
    """Return to whom a message hands over, if it does."""
    return str(event.target) if isinstance(event, HandoffMessage) else ""


def people_of(components: Sequence[Any]) -> frozenset[str]:
    """Return the names under which people speak."""
    return frozenset({USER, *(one.name for one in components if isinstance(one, UserProxyAgent))})


def taken(task: Any) -> list[Any]:
    """Return a task as messages, or say what is wrong with it."""
    if task is None:
        return []
    if isinstance(task, str):
        return [TextMessage(content=task, source=USER)]
    found = [task] if isinstance(task, BaseChatMessage) else task
    if not isinstance(found, Sequence) or not all(
        isinstance(one, BaseChatMessage) for one in found
    ):
        raise UsageError("a task is a str, a message of autogen_agentchat, or a list of them")
    if not found:
        raise UsageError("a task that is a list must not be empty: leave it out to go on")
    return [*found]


def dumped(messages: Sequence[Any]) -> list[Item]:
    """Return messages as they are stored."""
    return [json.loads(json.dumps(one.dump(), default=str)) for one in messages]


def same(one: Sequence[Item], other: Sequence[Item]) -> bool:
    """Whether two tasks say the same; who wrote them down when does not count."""
    return [_said(item) for item in one] == [_said(item) for item in other]


def _said(item: Item) -> Item:
    return {name: value for name, value in item.items() if name not in ("id", "created_at")}


def kept(task: Sequence[Any], result: Any) -> Item:
    """Return the result of a run as it is stored, with which of its messages were the task."""
    asked = [one.id for one in task]
    messages, reason = dumped(result.messages), result.stop_reason
    return {"messages": messages, "stop_reason": reason, "task": asked}


def result_of(stored: Item, messages: Messages) -> tuple[list[Any], Any]:
    """Return the task of a run whose result was kept, and the result."""
    found, asked = messages.load(stored["messages"]), stored.get("task", ())
    task = [one for one in found if one.id in asked]
    return task, TaskResult(messages=found, stop_reason=stored["stop_reason"])


class LeftOut:
    """Messages of a task that the caller does not want to be told of again."""

    def __init__(self, task: Sequence[Any]) -> None:
        self._task = task
        self._left = [one.id for one in task]

    def has(self, event: Any) -> bool:
        """Whether it is one of them, which comes once."""
        found = event.id in self._left
        if found:
            self._left.remove(event.id)
        return found

    def of(self, result: Any) -> Any:
        """Return a result without them."""
        left_out = LeftOut(self._task)
        messages = [one for one in result.messages if not left_out.has(one)]
        return TaskResult(messages=messages, stop_reason=result.stop_reason)
