"""Model calls that failed without ending their chat: somebody went on, as if nothing were said.

A call that failed is made again when its chat goes on after a crash: the failure may be what ended
it. One that was passed over is not: what was said after it follows from the failure. So that it was
passed over is recorded before anything else is, and then the call fails again, in the same words.
"""

import asyncio
from collections import deque
from threading import get_ident
from typing import Any

from perdure import Session
from perdure.adapters.autogen_classes import calling
from perdure.adapters.autogen_record import digest

NAME = "model_failure"  # What it is called in the record.


class ModelError(Exception):
    """A failure from the record, of a kind that is not one of the SDK's."""


class Failures:
    """The failures of a chat's model calls that may be, and those that were, passed over."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._recorded: dict[str, deque[dict[str, Any]]] = {}
        self._pending: dict[object, tuple[dict[str, Any], Exception]] = {}
        self._in_tasks = False

    def begin(self, turn: str, *, goes_on: bool, in_tasks: bool) -> None:
        """Begin a chat, or go on with it; `in_tasks` if it may be several chats side by side."""
        self._pending, self._recorded, self._in_tasks = {}, {}, in_tasks
        for one in self._session.effects.list(tool=NAME, turn=turn) if goes_on else ():
            if one.result is not None:
                self._recorded.setdefault(one.result["request"], deque()).append(one.result)

    def again(self, request: dict[str, Any]) -> Exception | None:
        """Return the failure of a request that was passed over before the process died."""
        found = self._recorded.get(digest(request))
        return _error_of(found.popleft()) if found else None

    def failed(self, request: dict[str, Any], error: Exception) -> None:
        """Take in that a model did not answer. Tools see to their own calls: they run once."""
        place = self._place()
        if place is not None and calling.get() is None:
            self._pending[place] = request, error

    def pass_over(self) -> None:
        """Record that a failure, if there was one here, was passed over: the chat goes on."""
        if not self._pending or (found := self._pending.pop(self._place(), None)) is None:
            return
        request, error = digest(found[0]), found[1]
        failed = {"request": request, **_data_of(error)}
        tool = self._session.tool(lambda **_: failed, effect="read_only", name=NAME)
        tool(agent=found[0]["agent"], request=request)

    def _place(self) -> object | None:
        """Return where a chat runs, among those beside it; None where that can not be told."""
        try:
            return asyncio.current_task()
        except RuntimeError:  # No loop: one of its threads, or code that knows of none.
            return None if self._in_tasks else get_ident()


def _data_of(error: Exception) -> dict[str, Any]:
    status = getattr(error, "status_code", None)
    found = {"error": type(error).__name__, "text": str(error)}
    return {**found, "status": status} if isinstance(status, int) else found


def _error_of(data: dict[str, Any]) -> Exception:
    """Return a failure as whoever passed it over catches it: of the SDK's kind, if it was."""
    kind = _kinds().get(data["error"], ModelError)
    error = kind.__new__(kind, data["text"])  # Without the response that the SDK's own ask for.
    without = dict.fromkeys(("body", "code", "param", "type", "request_id"))
    vars(error).update(without, message=data["text"], status_code=data.get("status"))
    return error


def _kinds() -> dict[str, type[Exception]]:
    try:
        from openai import OpenAIError
    except ImportError:
        return {}
    found: dict[str, type[Exception]] = {}
    kinds: list[type[Exception]] = [OpenAIError]
    while kinds:
        kind = kinds.pop()
        found[kind.__name__] = kind
        kinds += kind.__subclasses__()
    return found
