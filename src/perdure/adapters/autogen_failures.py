"""Model calls that failed without ending their chat: somebody went on, as if nothing were said.

A call that failed is made again when its chat goes on after a crash: the failure may be what ended
it. One that was passed over is not: what was said after it follows from the failure. So that it was
passed over is recorded before anything else is, and then the call fails again, in the same words.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

from perdure import Session
from perdure.adapters.autogen_classes import calling
from perdure.adapters.autogen_openings import storable
from perdure.adapters.autogen_record import digest

NAME = "model_failure"  # What it is called in the record.
_FIELDS = ("message", "body", "code", "param", "type", "request_id", "status_code")  # Of the SDK's.


class ModelError(Exception):
    """A failure from the record, of a kind that is not loaded or can not be made so."""


class Failures:
    """The failures of a chat's model calls that may be, and those that were, passed over."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._recorded: dict[str, deque[dict[str, Any]]] = {}
        self._pending: dict[object, tuple[dict[str, Any], Exception]] = {}
        self._astray: list[tuple[dict[str, Any], Exception]] = []
        self._in_tasks = False

    def begin(self, turn: str, *, goes_on: bool, in_tasks: bool) -> None:
        """Begin a chat, or go on with it; `in_tasks` if it may be several chats side by side."""
        self._pending, self._recorded, self._astray = {}, {}, []
        self._in_tasks = in_tasks
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
        if place is None:
            self._astray.append((request, error))
        elif calling.get() is None:
            self._pending[place] = request, error

    def awaited(self, answer: Callable[..., Any]) -> Callable[..., Any]:
        """Return a coroutine function that answers; what fails in a thread of it failed there."""

        async def found(*args: Any, **kwargs: Any) -> Any:
            try:
                return await answer(*args, **kwargs)
            except Exception as error:
                for one in [one for one in self._astray if one[1] is error]:
                    self._astray.remove(one)
                    self.failed(*one)
                raise

        return found

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
    kind = type(error)
    fields = {name: vars(error).get(name) for name in _FIELDS}
    plain = {name: one for name, one in fields.items() if name in vars(error) and storable(one)}
    return {"error": [kind.__module__, kind.__qualname__], "text": str(error), "fields": plain}


def _error_of(data: dict[str, Any]) -> Exception:
    """Return a failure as whoever passed it over catches it: of its kind, if that is loaded."""
    kinds = [one for one in _kinds() if [one.__module__, one.__qualname__] == data["error"]]
    made = (_made(kind, data) for kind in kinds)
    return next((one for one in made if one is not None), ModelError(data["text"]))


def _made(kind: type[Exception], data: dict[str, Any]) -> Exception | None:
    try:
        error = kind.__new__(kind, data["text"])  # Without the response that some ask for.
        vars(error).update(data["fields"])
        return error if str(error) == data["text"] else None
    except Exception:  # noqa: BLE001 - what a class does that somebody wrote
        return None


def _kinds() -> Iterator[type[Exception]]:
    kinds: list[type[Exception]] = [Exception]
    while kinds:
        kind = kinds.pop()
        yield kind
        kinds += type.__subclasses__(kind)
