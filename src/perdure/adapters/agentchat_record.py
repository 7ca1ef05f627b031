"""Convert a run's events to session messages, in OpenAI's chat completions format.

Tool calls and results are included. Thoughts, chunks and notices are not: they are derived from
the recorded answers and outcomes.
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
    """Return the stored form of an event or a message of a run."""
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
            {"role": "tool", "tool_call_id": result.call_id, "content": result.content}
            for result in event.content
        ]
    if not isinstance(event, BaseChatMessage):
        return []
    role = "user" if event.source in people else "assistant"
    if isinstance(event, MultiModalMessage):
        parts = [
            {"type": "text", "text": part} if isinstance(part, str) else part.to_openai_format()
            for part in event.content
        ]
        return [{"role": role, "content": parts}]
    return [{"role": role, "content": event.to_model_text()}]


def recipient_of(event: Any) -> str:
    """Return the target of a handoff message, or ""."""
    return str(event.target) if isinstance(event, HandoffMessage) else ""


def people_of(components: Sequence[Any]) -> frozenset[str]:
    """Return the names under which people speak."""
    return frozenset(
        {
            USER,
            *(component.name for component in components if isinstance(component, UserProxyAgent)),
        }
    )


def taken(task: Any) -> list[Any]:
    """Return a task as messages; UsageError if it is invalid."""
    if task is None:
        return []
    if isinstance(task, str):
        return [TextMessage(content=task, source=USER)]
    messages = [task] if isinstance(task, BaseChatMessage) else task
    if not isinstance(messages, Sequence) or not all(
        isinstance(message, BaseChatMessage) for message in messages
    ):
        raise UsageError("a task is a str, a message of autogen_agentchat, or a list of them")
    if not messages:
        raise UsageError("a task that is a list must not be empty: leave it out to resume")
    return [*messages]


def dumped(messages: Sequence[Any]) -> list[Item]:
    """Return messages as they are stored."""
    return [json.loads(json.dumps(message.dump(), default=str)) for message in messages]


def same(task: Sequence[Item], other: Sequence[Item]) -> bool:
    """Return whether two tasks have the same content; ids and times are ignored."""
    return [_said(item) for item in task] == [_said(item) for item in other]


def _said(item: Item) -> Item:
    return {name: value for name, value in item.items() if name not in ("id", "created_at")}


def kept(task: Sequence[Any], result: Any) -> Item:
    """Return the result of a run as it is stored, with the ids of its task's messages."""
    task_ids = [message.id for message in task]
    messages, reason = dumped(result.messages), result.stop_reason
    return {"messages": messages, "stop_reason": reason, "task": task_ids}


def result_of(stored: Item, messages: Messages) -> tuple[list[Any], Any]:
    """Return the task and the result of a stored run."""
    loaded, task_ids = messages.load(stored["messages"]), stored.get("task", ())
    task = [message for message in loaded if message.id in task_ids]
    return task, TaskResult(messages=loaded, stop_reason=stored["stop_reason"])


class LeftOut:
    """The messages of a task, which the caller wants left out of the events."""

    def __init__(self, task: Sequence[Any]) -> None:
        self._task = task
        self._remaining = [message.id for message in task]

    def skip(self, event: Any) -> bool:
        """Return whether to skip an event; each message of the task is skipped once."""
        is_task = event.id in self._remaining
        if is_task:
            self._remaining.remove(event.id)
        return is_task

    def without(self, result: Any) -> Any:
        """Return a result without the task's messages."""
        skipped = LeftOut(self._task)
        messages = [message for message in result.messages if not skipped.skip(message)]
        return TaskResult(messages=messages, stop_reason=result.stop_reason)
