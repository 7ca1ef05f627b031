"""The model calls of a chat as data: requests, responses, usage, and swallowed failures.

A failed call is made again when its chat resumes after a crash: the failure may be what ended the
chat. But the framework can swallow the error of a call and continue the chat. A swallowed failure
is not retried: the messages after it depend on it. So it is recorded before anything else is, and
on resume the call fails again with the same text.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from copy import deepcopy
from threading import get_ident
from typing import Any

from perdure import Session
from perdure.adapters.autogen.context import current_tool
from perdure.adapters.autogen.openings import is_storable
from perdure.adapters.autogen.recorder import digest

FAILURE_TOOL = "model_failure"  # Tool name in the record.

# Attributes of the SDKs' errors, by which callers handle them.
_ERROR_FIELDS = ("message", "body", "code", "param", "type", "request_id", "status_code")

# Fields that the framework adds to an SDK completion; a recorded one gets them again on replay.
_FRAMEWORK_FIELDS = {"config_id", "cost", "message_retrieval_function", "pass_filter"}


def request_identity(config: dict[str, Any]) -> dict[str, Any]:
    """Return the identity of a request: the asking agent and all messages."""
    # Models and options may change between attempts: the conversation identifies the request.
    agent = getattr(config.get("agent"), "name", "")
    return {"agent": agent, "messages": deepcopy(config.get("messages") or [])}


def response_data(wrapper: Any, response: Any) -> dict[str, Any]:
    """Return a model's response, and the usage so far, as data."""
    messages = [
        _message_data(message) for message in wrapper.extract_text_or_completion_object(response)
    ]
    return {
        "messages": messages,
        "completion": _completion_data(response, messages),
        "model": str(getattr(response, "model", None) or ""),
        "cost": _cost_number(getattr(response, "cost", None)),
        "usage": usage_of(wrapper),
    }


def _message_data(message: Any) -> Any:
    if hasattr(message, "model_dump"):
        return {"message": message.model_dump(mode="json")}
    return {"plain": dict(message)} if isinstance(message, dict) else message


def _completion_data(response: Any, messages: list[Any]) -> dict[str, Any] | None:
    """Return the other fields of an SDK completion; messages only where they hold more."""
    if not hasattr(response, "choices") or not hasattr(response, "model_dump"):
        return None
    completion: dict[str, Any] = response.model_dump(
        mode="json", exclude=_FRAMEWORK_FIELDS, warnings=False
    )
    for choice, message in zip(completion["choices"], messages, strict=False):
        # The messages are stored already: keep a choice's message only if it adds a field.
        if _without_none(choice["message"]) == _without_none(_full_message(message).model_dump()):
            del choice["message"]
    # The messages are enough to resume; the rest is recorded only if it reads back equal.
    return completion if is_storable(completion) else None


def _without_none(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if value is not None}


def _cost_number(cost: Any) -> float:
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


class RecordedMessage:
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


class RecordedChoice:
    """A choice of a recorded response."""

    def __init__(self, message: RecordedMessage) -> None:
        self.message = message


class RecordedResponse:
    """A recorded response, as the framework expects one from a client.

    It also has the completion's other fields, such as usage and finish reason.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self._messages = data["messages"]
        self.model = data["model"]
        self.cost = data["cost"]
        self.config_id = 0
        self.pass_filter = True  # The answer was accepted when it was recorded.
        self._completion = _load_completion(data)
        self.choices: list[Any] = (
            self._completion.choices
            if self._completion is not None
            else [RecordedChoice(_full_message(message)) for message in self._messages]
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._completion is None:
            raise AttributeError(name)
        return getattr(self._completion, name)

    def message_retrieval_function(self, _: object = None) -> list[Any]:
        return [_load_message(message) for message in self._messages]


def _load_completion(data: dict[str, Any]) -> Any:
    """Return the SDK completion of a recorded response; None if the response was not one."""
    fields = deepcopy(data.get("completion"))
    if fields is None:
        return None
    from openai.types.chat import ChatCompletion

    for choice, message in zip(fields["choices"], data["messages"], strict=False):
        choice.setdefault("message", _full_message(message).model_dump())
    # `construct` does not validate: whatever fields the provider sent come back.
    return ChatCompletion.construct(**fields)


def _load_message(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    return (
        RecordedMessage(message["message"]) if "message" in message else deepcopy(message["plain"])
    )


def _full_message(message: Any) -> RecordedMessage:
    fields = message.get("message") or message.get("plain") if isinstance(message, dict) else None
    return RecordedMessage(fields or {"role": "assistant", "content": message, "tool_calls": None})


class RecordedModelError(Exception):
    """A recorded failure whose exception class is not loaded or cannot be constructed."""


class ModelFailures:
    """Failed model calls of a chat: recorded ones to replay, and new ones that may be swallowed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._recorded: dict[str, deque[dict[str, Any]]] = {}
        self._answers: dict[str, int] = {}  # of a request in this chat so far
        self._pending: dict[object, tuple[dict[str, Any], Exception]] = {}
        self._unattributed: list[tuple[dict[str, Any], Exception]] = []
        self._in_tasks = False

    def begin(self, turn: str, *, resuming: bool, in_tasks: bool) -> None:
        """Start or resume a chat; `in_tasks` if it may run several chats concurrently."""
        self._pending, self._recorded, self._answers, self._unattributed = {}, {}, {}, []
        self._in_tasks = in_tasks
        for effect in self._session.effects.list(tool=FAILURE_TOOL, turn=turn) if resuming else ():
            if effect.result is not None:
                self._recorded.setdefault(effect.result["request"], deque()).append(effect.result)

    def raise_recorded(self, request: dict[str, Any]) -> None:
        """Raise the error if this request failed here, and was swallowed, before the crash."""
        of = digest(request)
        recorded = self._recorded.get(of)
        if recorded and recorded[0]["answers"] == self._answers.get(of, 0):
            raise _load_error(recorded.popleft())

    def note_answer(self, request: dict[str, Any]) -> None:
        """Count an answer: the same request may fail before it, after it, or both."""
        if current_tool.get() is None:
            of = digest(request)
            self._answers[of] = self._answers.get(of, 0) + 1

    def note_failure(self, request: dict[str, Any], error: Exception) -> None:
        """Note a failed model call. Calls inside tools are skipped: a tool runs only once."""
        lane = self._lane()
        if lane is None:  # Until the error reaches the task that waits for the thread.
            self._unattributed.append((request, error))
        elif current_tool.get() is None:
            self._pending[lane] = request, error

    def attributing(self, reply: Callable[..., Any]) -> Callable[..., Any]:
        """Return a coroutine function that attributes its worker threads' failures to its task.

        The framework runs synchronous model calls of async agents in an executor's threads.
        """

        async def attributed(*args: Any, **kwargs: Any) -> Any:
            try:
                return await reply(*args, **kwargs)
            except Exception as error:
                for failure in [failure for failure in self._unattributed if failure[1] is error]:
                    self._unattributed.remove(failure)
                    self.note_failure(*failure)
                raise

        return attributed

    def record_swallowed(self) -> None:
        """Record this task's or thread's pending failure, if any: the chat continues."""
        if not self._pending or (pending := self._pending.pop(self._lane(), None)) is None:
            return
        # As a tool, because its outcome is recorded in the chat's turn before the chat continues.
        request, error = digest(pending[0]), pending[1]
        answers = self._answers.get(request, 0)
        failure = {"request": request, "answers": answers, **_error_data(error)}
        tool = self._session.tool(lambda **_: failure, effect="read_only", name=FAILURE_TOOL)
        tool(agent=pending[0]["agent"], request=request)

    def _lane(self) -> object | None:
        """Return the task or thread that runs this chat; None where it cannot be determined."""
        try:
            return asyncio.current_task()
        except RuntimeError:  # No loop here: a worker thread of async code, or synchronous code.
            return None if self._in_tasks else get_ident()


def _error_data(error: Exception) -> dict[str, Any]:
    kind = type(error)
    fields = {name: vars(error).get(name) for name in _ERROR_FIELDS}
    plain = {
        name: value for name, value in fields.items() if name in vars(error) and is_storable(value)
    }
    return {"error": [kind.__module__, kind.__qualname__], "text": str(error), "fields": plain}


def _load_error(data: dict[str, Any]) -> Exception:
    """Return the recorded error as an instance of its original class, if that class is loaded."""
    # The framework handles some classes of errors: another class could change the chat.
    kinds = [
        kind
        for kind in _exception_classes()
        if [kind.__module__, kind.__qualname__] == data["error"]
    ]
    errors = (_construct_error(kind, data) for kind in kinds)
    return next((error for error in errors if error is not None), RecordedModelError(data["text"]))


def _construct_error(kind: type[Exception], data: dict[str, Any]) -> Exception | None:
    try:
        # Not `kind(...)`: some constructors require the HTTP response, which is not recorded.
        error = kind.__new__(kind, data["text"])
        vars(error).update(data["fields"])
        return error if str(error) == data["text"] else None
    except Exception:  # noqa: BLE001 - an arbitrary user class may raise anything
        return None


def _exception_classes() -> Iterator[type[Exception]]:
    """Yield all loaded exception classes. Nothing is imported by a recorded name."""
    kinds: list[type[Exception]] = [Exception]
    while kinds:
        kind = kinds.pop()
        yield kind
        kinds += type.__subclasses__(kind)
