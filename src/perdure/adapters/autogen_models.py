"""Model calls of the framework as effects: its client's answers as data, and back."""

from copy import deepcopy
from typing import Any

from perdure.adapters.autogen_openings import storable

# What the framework adds to a completion of the SDK; a recorded one gets it anew.
_ADDED = {"config_id", "cost", "message_retrieval_function", "pass_filter"}


def request_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return what tells one request from another: who asks, and everything it says."""
    agent = getattr(config.get("agent"), "name", "")
    return {"agent": agent, "messages": deepcopy(config.get("messages") or [])}


def data_of(wrapper: Any, response: Any) -> dict[str, Any]:
    """Return what a model answered, and what has been used by now, as data."""
    said = [_said(one) for one in wrapper.extract_text_or_completion_object(response)]
    return {
        "messages": said,
        "completion": _completion_of(response, said),
        "model": str(getattr(response, "model", None) or ""),
        "cost": _number(getattr(response, "cost", None)),
        "usage": usage_of(wrapper),
    }


def _said(message: Any) -> Any:
    if hasattr(message, "model_dump"):
        return {"message": message.model_dump(mode="json")}
    return {"plain": dict(message)} if isinstance(message, dict) else message


def _completion_of(response: Any, said: list[Any]) -> dict[str, Any] | None:
    """Return what else a completion of the SDK holds: of its messages only those that say more."""
    if not hasattr(response, "choices") or not hasattr(response, "model_dump"):
        return None
    found: dict[str, Any] = response.model_dump(mode="json", exclude=_ADDED, warnings=False)
    for choice, one in zip(found["choices"], said, strict=False):
        if _told(choice["message"]) == _told(_whole(one).model_dump()):
            del choice["message"]
    return found if storable(found) else None


def _told(message: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in message.items() if one is not None}


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
    """A recorded answer, as the framework takes one of a client.

    Whatever else its completion had, such as its usage or why it ended, it has too.
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
            else [Choice(_whole(one)) for one in self._messages]
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._completion is None:
            raise AttributeError(name)
        return getattr(self._completion, name)

    def message_retrieval_function(self, _: object = None) -> list[Any]:
        return [_retrieved(one) for one in self._messages]


def _completion(data: dict[str, Any]) -> Any:
    """Return the completion of a recorded answer, as the SDK gives one; None if it was none."""
    found = deepcopy(data.get("completion"))
    if found is None:
        return None
    from openai.types.chat import ChatCompletion

    for choice, one in zip(found["choices"], data["messages"], strict=False):
        choice.setdefault("message", _whole(one).model_dump())
    return ChatCompletion.construct(**found)


def _retrieved(said: Any) -> Any:
    if not isinstance(said, dict):
        return said
    return Message(said["message"]) if "message" in said else deepcopy(said["plain"])


def _whole(said: Any) -> Message:
    fields = said.get("message") or said.get("plain") if isinstance(said, dict) else None
    return Message(fields or {"role": "assistant", "content": said, "tool_calls": None})
