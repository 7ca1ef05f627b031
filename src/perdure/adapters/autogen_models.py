"""Convert the framework's model responses to storable data, and back.

A recorded response behaves like the SDK's: the framework and user code read the same fields.
"""

from copy import deepcopy
from typing import Any

from perdure.adapters.autogen_openings import storable

# Fields that the framework adds to an SDK completion; a recorded one gets them again on replay.
_ADDED = {"config_id", "cost", "message_retrieval_function", "pass_filter"}


def request_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the identity of a request: the asking agent and all messages."""
    agent = getattr(config.get("agent"), "name", "")
    return {"agent": agent, "messages": deepcopy(config.get("messages") or [])}


def data_of(wrapper: Any, response: Any) -> dict[str, Any]:
    """Return a model's response, and the usage so far, as data."""
    messages = [_said(message) for message in wrapper.extract_text_or_completion_object(response)]
    return {
        "messages": messages,
        "completion": _completion_of(response, messages),
        "model": str(getattr(response, "model", None) or ""),
        "cost": _number(getattr(response, "cost", None)),
        "usage": usage_of(wrapper),
    }


def _said(message: Any) -> Any:
    if hasattr(message, "model_dump"):
        return {"message": message.model_dump(mode="json")}
    return {"plain": dict(message)} if isinstance(message, dict) else message


def _completion_of(response: Any, messages: list[Any]) -> dict[str, Any] | None:
    """Return the other fields of an SDK completion; messages only where they hold more."""
    if not hasattr(response, "choices") or not hasattr(response, "model_dump"):
        return None
    completion: dict[str, Any] = response.model_dump(mode="json", exclude=_ADDED, warnings=False)
    for choice, message in zip(completion["choices"], messages, strict=False):
        # The messages are stored already: keep a choice's message only if it adds a field.
        if _told(choice["message"]) == _told(_whole(message).model_dump()):
            del choice["message"]
    return completion if storable(completion) else None


def _told(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if value is not None}


def _number(cost: Any) -> float:
    return float(cost) if isinstance(cost, int | float) else 0.0


def usage_of(wrapper: Any) -> dict[str, Any]:
    """Return a client's usage: actual calls, and total including cached answers."""
    return {
        "actual": deepcopy(wrapper.actual_usage_summary),
        "total": deepcopy(wrapper.total_usage_summary),
    }


def set_usage(wrapper: Any, usage: dict[str, Any]) -> None:
    wrapper.actual_usage_summary = deepcopy(usage["actual"])
    wrapper.total_usage_summary = deepcopy(usage["total"])


class Message:
    """A message of a recorded response, with the fields of the SDK's class."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return deepcopy(self._fields)

    dict = model_dump

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._fields:
            raise AttributeError(name)
        return self._fields[name]


class Choice:
    """A choice of a recorded response."""

    def __init__(self, message: Message) -> None:
        self.message = message


class Answer:
    """A recorded response, as the framework expects one from a client.

    It also has the completion's other fields, such as usage and finish reason.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self._messages = data["messages"]
        self.model = data["model"]
        self.cost = data["cost"]
        self.config_id = 0
        self.pass_filter = True
        self._completion = _completion(data)
        self.choices: list[Any] = (
            self._completion.choices
            if self._completion is not None
            else [Choice(_whole(message)) for message in self._messages]
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._completion is None:
            raise AttributeError(name)
        return getattr(self._completion, name)

    def message_retrieval_function(self, _: object = None) -> list[Any]:
        return [_retrieved(message) for message in self._messages]


def _completion(data: dict[str, Any]) -> Any:
    """Return the SDK completion of a recorded response; None if the response was not one."""
    fields = deepcopy(data.get("completion"))
    if fields is None:
        return None
    from openai.types.chat import ChatCompletion

    for choice, message in zip(fields["choices"], data["messages"], strict=False):
        choice.setdefault("message", _whole(message).model_dump())
    # `construct` does not validate: whatever fields the provider sent come back.
    return ChatCompletion.construct(**fields)


def _retrieved(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    return Message(message["message"]) if "message" in message else deepcopy(message["plain"])


def _whole(message: Any) -> Message:
    fields = message.get("message") or message.get("plain") if isinstance(message, dict) else None
    return Message(fields or {"role": "assistant", "content": message, "tool_calls": None})
