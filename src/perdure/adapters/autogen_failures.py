"""Model calls that failed without ending their chat, because the framework swallowed the error.

A failed call is made again when its chat resumes after a crash: the failure may be what ended the
chat. A swallowed failure is not retried: the messages after it depend on it. So it is recorded
before anything else is, and on resume the call fails again with the same text.
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

NAME = "model_failure"  # Tool name in the record.
_FIELDS = ("message", "body", "code", "param", "type", "request_id", "status_code")  # SDK errors.


class ModelError(Exception):
    """A recorded failure whose exception class is not loaded or cannot be constructed."""


class Failures:
    """Failed model calls of a chat: recorded ones to replay, and new ones that may be swallowed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._recorded: dict[str, deque[dict[str, Any]]] = {}
        self._pending: dict[object, tuple[dict[str, Any], Exception]] = {}
        self._unattributed: list[tuple[dict[str, Any], Exception]] = []
        self._in_tasks = False

    def begin(self, turn: str, *, resuming: bool, in_tasks: bool) -> None:
        """Start or resume a chat; `in_tasks` if it may run several chats concurrently."""
        self._pending, self._recorded, self._unattributed = {}, {}, []
        self._in_tasks = in_tasks
        for effect in self._session.effects.list(tool=NAME, turn=turn) if resuming else ():
            if effect.result is not None:
                self._recorded.setdefault(effect.result["request"], deque()).append(effect.result)

    def replayed_error(self, request: dict[str, Any]) -> Exception | None:
        """Return the error of a request that failed and was swallowed before the crash."""
        recorded = self._recorded.get(digest(request))
        return _error_of(recorded.popleft()) if recorded else None

    def note_failure(self, request: dict[str, Any], error: Exception) -> None:
        """Note a failed model call. Calls inside tools are skipped: a tool runs only once."""
        lane = self._lane()
        if lane is None:
            self._unattributed.append((request, error))
        elif calling.get() is None:
            self._pending[lane] = request, error

    def attributing(self, reply: Callable[..., Any]) -> Callable[..., Any]:
        """Return a coroutine function that attributes its worker threads' failures to its task."""

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
        request, error = digest(pending[0]), pending[1]
        failure = {"request": request, **_data_of(error)}
        tool = self._session.tool(lambda **_: failure, effect="read_only", name=NAME)
        tool(agent=pending[0]["agent"], request=request)

    def _lane(self) -> object | None:
        """Return the task or thread that runs this chat; None where it cannot be determined."""
        try:
            return asyncio.current_task()
        except RuntimeError:  # No loop here: a worker thread of async code, or synchronous code.
            return None if self._in_tasks else get_ident()


def _data_of(error: Exception) -> dict[str, Any]:
    kind = type(error)
    fields = {name: vars(error).get(name) for name in _FIELDS}
    plain = {
        name: value for name, value in fields.items() if name in vars(error) and storable(value)
    }
    return {"error": [kind.__module__, kind.__qualname__], "text": str(error), "fields": plain}


def _error_of(data: dict[str, Any]) -> Exception:
    """Return the recorded error as an instance of its original class, if that class is loaded."""
    kinds = [kind for kind in _kinds() if [kind.__module__, kind.__qualname__] == data["error"]]
    errors = (_made(kind, data) for kind in kinds)
    return next((error for error in errors if error is not None), ModelError(data["text"]))


def _made(kind: type[Exception], data: dict[str, Any]) -> Exception | None:
    try:
        # Not `kind(...)`: some constructors require the HTTP response, which is not recorded.
        error = kind.__new__(kind, data["text"])
        vars(error).update(data["fields"])
        return error if str(error) == data["text"] else None
    except Exception:  # noqa: BLE001 - an arbitrary user class may raise anything
        return None


def _kinds() -> Iterator[type[Exception]]:
    """Yield all loaded exception classes. Nothing is imported by a recorded name."""
    kinds: list[type[Exception]] = [Exception]
    while kinds:
        kind = kinds.pop()
        yield kind
        kinds += type.__subclasses__(kind)
