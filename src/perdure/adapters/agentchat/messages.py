"""Convert a run's events to session messages and to stored data, and back.

Session messages are in OpenAI's chat completions format. Tool calls and results are included.
Thoughts, chunks and notices are not: they are derived from the recorded answers and outcomes.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from autogen_agentchat.agents import UserProxyAgent
from autogen_agentchat.base import Response, TaskResult
from autogen_agentchat.messages import (
    BaseChatMessage,
    HandoffMessage,
    MultiModalMessage,
    TextMessage,
    ToolCallExecutionEvent,
    ToolCallRequestEvent,
)

from perdure.adapters.agentchat import introspection
from perdure.adapters.agentchat.introspection import TeamNode
from perdure.errors import UsageError

Item = dict[str, Any]  # A message, a result or a reply as it is stored.

USER = "user"  # The source that the package gives to a task that is a text.

# Keys of a recorded reply of an agent: events, events inside the response, its message, state.
REPLY_KEYS = {"events", "inner", "message", "state"}

UNKNOWN_CLASS_HINT = (
    "name it in the agent's produced_message_types or in the team's custom_message_types, "
    "or abandon() an interrupted run"
)


def to_chat_messages(event: Any, people: frozenset[str]) -> list[Item]:
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
    if not isinstance(event, BaseChatMessage):  # Thoughts, chunks and notices.
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


def human_names(components: Sequence[Any]) -> frozenset[str]:
    """Return the names under which people speak."""
    return frozenset(
        {
            USER,
            *(component.name for component in components if isinstance(component, UserProxyAgent)),
        }
    )


def parse_task(task: Any) -> list[Any]:
    """Return a task as messages; UsageError if it is invalid."""
    if task is None:
        return []
    if isinstance(task, str):
        return [TextMessage(content=task, source=USER)]
    # The package's own rules; checked here, because a run must not start with an invalid task.
    messages = [task] if isinstance(task, BaseChatMessage) else task
    if not isinstance(messages, Sequence) or not all(
        isinstance(message, BaseChatMessage) for message in messages
    ):
        raise UsageError("a task is a str, a message of autogen_agentchat, or a list of them")
    if not messages:
        raise UsageError("a task that is a list must not be empty: leave it out to resume")
    return [*messages]


def is_same_task(task: Sequence[Item], other: Sequence[Item]) -> bool:
    """Return whether two tasks have the same content; ids and times are ignored."""
    return [_without_ids(item) for item in task] == [_without_ids(item) for item in other]


def _without_ids(item: Item) -> Item:
    # A program that is started again creates its task anew.
    return {name: value for name, value in item.items() if name not in ("id", "created_at")}


def dump_messages(messages: Sequence[Any]) -> list[Item]:
    """Return messages as they are stored."""
    # A user's class may override `dump` and leave values that are not JSON.
    return [json.loads(json.dumps(message.dump(), default=str)) for message in messages]


class MessageLoader:
    """Loads stored messages for a session that holds a team."""

    def __init__(self, session: str, root: TeamNode) -> None:
        self._session = session
        self._classes: dict[str, Any] = {}
        for message_class in introspection.message_classes(root):
            # Several agents may declare one class, or classes created alike from the same code.
            known_class = self._classes.setdefault(message_class.__name__, message_class)
            if not _has_same_schema(known_class, message_class):
                reason = f"two message classes are called {message_class.__name__!r}"
                raise UsageError(f"{reason}, and messages are stored by class name: rename one")

    def load(self, items: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return stored messages as objects; UsageError if a class is unknown or has changed."""
        return [self._load(item) for item in items]

    def _load(self, item: Mapping[str, Any]) -> Any:
        message_class = self._classes.get(item["type"])
        if message_class is None:
            reason = f"{self._session!r} holds a message of an unknown class"
            raise UsageError(f"{reason}, {item['type']}: {UNKNOWN_CLASS_HINT}")
        try:
            return message_class.load(item)
        except ValueError as error:  # pydantic's ValidationError is a ValueError.
            reason = f"{self._session!r} holds a {item['type']} that does not fit the class"
            raise UsageError(
                f"{reason}: use the class that stored it, or another session"
            ) from error

    def require(self, outcome: Mapping[str, Any]) -> None:
        """Raise UsageError if a recorded outcome has messages that cannot be loaded."""
        # Before the run resumes: an error in the middle of it would leave agents waiting.
        if outcome.keys() >= REPLY_KEYS:
            self.load([*outcome["inner"], outcome["message"]])
        self.load(outcome.get("events", ()))

    def text(self, items: Sequence[Mapping[str, Any]]) -> str:
        """Return the text of stored messages; the raw content of one that cannot be loaded."""
        return "\n".join(
            self._load(item).to_model_text()
            if item["type"] in self._classes
            else str(item.get("content", item["type"]))
            for item in items
        )


def _has_same_schema(first: Any, second: Any) -> bool:
    """Return whether two classes have the same schema: each can load the other's messages."""
    if first is second:
        return True
    try:
        return bool(first.model_json_schema() == second.model_json_schema())
    except Exception:  # noqa: BLE001 - without a schema they cannot be compared
        return False


def dump_result(task: Sequence[Any], result: Any) -> Item:
    """Return the result of a run as it is stored, with the ids of its task's messages."""
    task_ids = [message.id for message in task]
    messages, reason = dump_messages(result.messages), result.stop_reason
    return {"messages": messages, "stop_reason": reason, "task": task_ids}


def load_result(stored: Item, messages: MessageLoader) -> tuple[list[Any], Any]:
    """Return the task and the result of a stored run."""
    loaded, task_ids = messages.load(stored["messages"]), stored.get("task", ())
    task = [message for message in loaded if message.id in task_ids]
    return task, TaskResult(messages=loaded, stop_reason=stored["stop_reason"])


def dump_reply(events: Sequence[Any]) -> Item:
    """Return an agent's reply as it is stored: its events, and its response last."""
    *rest, response = events
    return {
        "events": [event.dump() for event in rest],
        "inner": [event.dump() for event in response.inner_messages or ()],
        "message": response.chat_message.dump(),
    }


def load_reply(stored: Mapping[str, Any], messages: MessageLoader) -> list[Any]:
    """Return the events and the response of a stored reply."""
    [message], inner = messages.load([stored["message"]]), messages.load(stored["inner"])
    response = Response(chat_message=message, inner_messages=inner)
    return [*messages.load(stored["events"]), response]


class SkippedMessages:
    """The messages of a task, which the caller wants left out of the events."""

    def __init__(self, task: Sequence[Any]) -> None:
        self._task = task
        self._remaining = [message.id for message in task]  # A message may occur twice.

    def skip(self, event: Any) -> bool:
        """Return whether to skip an event; each message of the task is skipped once."""
        is_task = event.id in self._remaining
        if is_task:
            self._remaining.remove(event.id)
        return is_task

    def without(self, result: Any) -> Any:
        """Return a result without the task's messages."""
        skipped = SkippedMessages(self._task)
        messages = [message for message in result.messages if not skipped.skip(message)]
        return TaskResult(messages=messages, stop_reason=result.stop_reason)
