"""Model calls of the framework as effects: its client's answers as data, and back."""

from copy import deepcopy
from typing import Any


def request_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return what tells one request from another: who asks, and everything it says."""
    agent = getattr(config.get("agent"), "name", "")
    return {"agent": agent, "messages": deepcopy(config.get("messages") or [])}


def data_of(wrapper: Any, response: Any) -> dict[str, Any]:
    """Return what a model answered, and what has been used by now, as data."""
    return {
        "messages": [_said(one) for one in wrapper.extract_text_or_completion_object(response)],
        "model": str(getattr(response, "model", None) or ""),
        "cost": _number(getattr(response, "cost", None)),
        "usage": usage_of(wrapper),
    }


def _said(message: Any) -> Any:
    if hasattr(message, "model_dump"):
        return {"message": message.model_dump(mode="json")}
    return {"plain": dict(message)} if isinstance(message, dict) else message


def _number(cost: Any) -> float:
    return float(cost) if isinstance(cost, int | float) else 0.0


def usage_of(wrapper: Any) -> dict[str, Any]:
    """Return what a client has used: calls that were made, and those with cached answers too."""
    return {
        "actual": deepcopy(wrapper.actual_usage_summary),
        "total": deepcopy(wrapper.total_usage_summary),
    }


def set_usage(wrapper: Any, usage: dict[str, Any]) -> None:
    wrapper.actual_usage_summary = deepcopy(usage["actual"])
    wrapper.total_usage_summary = deepcopy(usage["total"])


class Message:
    """A message of a recorded answer: it has the fields of the SDK's own."""

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
    """A choice of a recorded answer."""

    def __init__(self, message: Message) -> None:
        self.message = message


class Answer:
    """A recorded answer, as the framework takes one of a client."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._messages = data["messages"]
        self.model = data["model"]
        self.cost = data["cost"]
        self.config_id = 0
        self.pass_filter = True
        self.choices = [Choice(_whole(one)) for one in self._messages]

    def message_retrieval_function(self, _: object = None) -> list[Any]:
        return [_retrieved(one) for one in self._messages]


def _retrieved(said: Any) -> Any:
    if not isinstance(said, dict):
        return said
    return Message(said["message"]) if "message" in said else deepcopy(said["plain"])


def _whole(said: Any) -> Message:
    fields = said.get("message") or said.get("plain") if isinstance(said, dict) else None
    return Message(fields or {"role": "assistant", "content": said, "tool_calls": None})
