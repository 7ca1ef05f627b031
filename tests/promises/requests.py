"""A request with two tools that is disturbed at a point, and the processes that try it again.

A form (`request_forms`) does the request under its id, as a program would. Its model, its tools,
its reader and its store are in a `World`, which numbers every point that is passed: before and
after each commit, each model call, each piece of a streamed answer and each effect of a tool. At
one of them something happens. Each run is a process of its own, which may really be killed.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import perdure
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import Append, Backend, Outcome
from perdure.testing.faults import BackendWrapper
from tests.promises import children

SESSION, REQUEST, TEXT = "ann", "r-1", "Charge me 5, and mail it to me."
HANGS_AFTER = 60.0  # Seconds; a run takes a tenth of one.

KILL, MODEL, TOOL, CTRL_C, CANCEL, CLOSE = "kill", "model", "tool", "ctrl-c", "cancel", "close"
# At which points each of them happens; "" is all.
DISTURBANCES = {
    KILL: "",
    MODEL: "model",
    TOOL: "tool",
    CTRL_C: "",
    CANCEL: "",
    CLOSE: "shown",
}


class ModelDownError(Exception):
    """The model's 500."""


class ToolBrokenError(Exception):
    """A tool that raises."""


class Closed(BaseException):
    """The reader of the answer goes away."""


ANY = "any"


class Disturbance(NamedTuple):
    """What happens, and where: at which of the points of a name, or of all (`ANY`).

    Tools that run together pass their points in any order: the number of a point among all would
    name another one in each run.
    """

    kind: str
    at: int
    what: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.at} ({self.what})"


class Scenario(NamedTuple):
    """Whether the model asks for both tools `together` or one by one, and their policy."""

    calls: str
    policy: str

    def __str__(self) -> str:
        return f"{self.calls}, {self.policy}"


SCENARIOS = [
    Scenario("one by one", "unsafe"),
    Scenario("together", "unsafe"),
    Scenario("one by one", "idempotent"),
]


class Answer(NamedTuple):
    """The last thing that a form yields: the text of the answer."""

    text: str


class World:
    """Everything around one run of a request, and the points that it passes."""

    def __init__(
        self, directory: Path, scenario: Scenario, disturbance: Disturbance | None = None
    ) -> None:
        self.scenario = scenario
        self.points: list[str] = []
        self._disturbance = disturbance
        self._ledger = directory / "ledger"
        self._happened = directory / "happened"
        self._lock = threading.Lock()
        self.task: asyncio.Task[Any] | None = None

    def reach(self, what: str) -> None:
        """Pass a point."""
        with self._lock:
            self.points.append(what)
            disturbance = self._disturbance
            if disturbance is None or disturbance.what not in (what, ANY):
                return
            passed = self.points if disturbance.what == ANY else [what] * self.points.count(what)
            if disturbance.at != len(passed):
                return
            with self._happened.open("a") as happened:
                happened.write(f"{disturbance.kind}: {what}\n")
        self._disturb(disturbance.kind)

    def happened(self) -> list[tuple[str, str]]:
        """Return what happened in all runs so far, and at which point."""
        if not self._happened.exists():
            return []
        lines = self._happened.read_text().splitlines()
        return [(kind, what) for kind, _, what in (line.partition(": ") for line in lines)]

    def _disturb(self, kind: str) -> None:
        if kind == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == MODEL:
            raise ModelDownError("500")
        elif kind == TOOL:
            raise ToolBrokenError("no")
        elif kind == CTRL_C:
            # To the main thread, wherever this is; there the handler runs before the next step.
            signal.raise_signal(signal.SIGINT)
        elif kind == CLOSE:
            raise Closed
        elif self.task is not None:
            self.task.get_loop().call_soon_threadsafe(self.task.cancel)

    # The model, whose answer is a function of the prompt.

    def answer(self, messages: Sequence[Any]) -> dict[str, Any]:
        results = [message["content"] for message in messages if message["role"] == "tool"]
        calls = [_call("charge", {"amount": 5}), _call("mail", {"to": "ann"})]
        if len(results) == len(calls):
            return {"role": "assistant", "content": f"Done: {'; '.join(results)}"}
        asked = calls if self.scenario.calls == "together" else [calls[len(results)]]
        return {"role": "assistant", "content": None, "tool_calls": asked}

    def complete(self, messages: Sequence[Any]) -> dict[str, Any]:
        """Answer at once."""
        self.reach("model, before")
        message = self.answer(messages)
        self.reach("model, after")
        return message

    def stream(self, messages: Sequence[Any]) -> Iterator[dict[str, Any]]:
        """Answer in chunks of a chat completion."""
        self.reach("model, before")
        for chunk in chunks(self.answer(messages)):
            yield chunk
            self.reach("model, chunk")

    # Tools.

    def tools(self) -> list[Callable[..., Any]]:
        def charge(amount: int) -> str:
            """Charge an amount."""
            self._take_effect("charge")
            return f"charged {amount}"

        def mail(to: str) -> str:
            """Mail to somebody."""
            self._take_effect("mail")
            return f"mailed to {to}"

        return [charge, mail]

    def async_tools(self) -> list[Callable[..., Any]]:
        async def charge(amount: int) -> str:
            """Charge an amount."""
            await self._take_effect_async("charge")
            return f"charged {amount}"

        async def mail(to: str) -> str:
            """Mail to somebody."""
            await self._take_effect_async("mail")
            return f"mailed to {to}"

        return [charge, mail]

    def _take_effect(self, tool: str) -> None:
        self.reach(f"tool {tool}, before")
        self._write(tool)
        self.reach(f"tool {tool}, after")

    async def _take_effect_async(self, tool: str) -> None:
        self.reach(f"tool {tool}, before")
        await asyncio.sleep(0)
        self._write(tool)
        self.reach(f"tool {tool}, after")
        await asyncio.sleep(0)

    def _write(self, tool: str) -> None:
        key = perdure.current_effect().key
        if self.scenario.policy == "idempotent" and any(key == line.key for line in self.effects()):
            return
        with self._ledger.open("a") as ledger:
            ledger.write(f"{tool} {key}\n")

    def effects(self) -> list["Line"]:
        """Return what really happened."""
        if not self._ledger.exists():
            return []
        return [Line(*line.split()) for line in self._ledger.read_text().splitlines()]


class Line(NamedTuple):
    """A real effect of a tool."""

    tool: str
    key: str


def _call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call-{name}", "type": "function", "function": function}


def chunks(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a message as chunks of a chat completion."""
    text, calls = message["content"], message.get("tool_calls", ())
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None if calls else ""}]
    if text:
        deltas += [{"content": text[:9]}, {"content": text[9:]}]
    for index, call in enumerate(calls):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        begun = {"index": index, "id": call["id"], "type": "function"}
        deltas.append({"tool_calls": [{**begun, "function": {"name": name, "arguments": ""}}]})
        rest = {"index": index, "function": {"arguments": arguments}}
        deltas.append({"tool_calls": [rest]})
    finish = "tool_calls" if calls else "stop"
    ends = [None] * len(deltas) + [finish]
    return [
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": end}],
        }
        for delta, end in zip([*deltas, {}], ends, strict=True)
    ]


class Commits(BackendWrapper):
    """A store whose commits are points."""

    def __init__(self, backend: Backend, world: World) -> None:
        super().__init__(backend)
        self._world = world

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        self._world.reach("commit, before")
        outcomes = super().append(appends)
        self._world.reach("commit, after")
        return outcomes

    def close(self) -> None:
        self.backend.close()


class Form(NamedTuple):
    """A way to write the program: `run(session, world)` yields pieces, and last its `Answer`."""

    name: str
    run: Callable[[Any, World], Any]
    is_async: bool = False

    def __str__(self) -> str:
        return f"{self.name}, {'async' if self.is_async else 'sync'}"


class Report(NamedTuple):
    """What a process said before it ended: its answer, what it raised, the points it passed."""

    killed: bool = False
    answer: str | None = None
    raised: str = ""
    points: Sequence[str] = ()


def run(
    form: Form, open_backend: Callable[[], Backend], world: World, *, patience: float = HANGS_AFTER
) -> Report:
    """Do the request in a process of its own."""

    def work(pipe: int) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        logging.getLogger("perdure").setLevel(logging.CRITICAL)  # Writes in doubt are no news.
        answer, raised = None, ""
        try:
            perform = _perform_async if form.is_async else _perform
            answer = perform(form, open_backend, world)
        except BaseException as error:  # noqa: BLE001 - whatever a program ends with
            raised = f"{type(error).__name__}: {error}"
            if not isinstance(error, EXPECTED):
                raised += "".join(traceback.format_exception(error))[-1500:]
        # As at the end of a program: tools in threads are waited for.
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join(HANGS_AFTER)
        report = Report(answer=answer, raised=raised, points=world.points)
        os.write(pipe, json.dumps(report).encode())

    sys.stdout.flush()
    end = children.collect(*children.fork(work), kill_after=patience)
    if end.code == -signal.SIGKILL:
        return Report(killed=True)
    if end.code:
        raise RuntimeError(f"{form}: a process ended with {end.code}")
    return Report(*json.loads(end.said))


EXPECTED = (ModelDownError, ToolBrokenError, KeyboardInterrupt, asyncio.CancelledError)


def _perform(form: Form, open_backend: Callable[[], Backend], world: World) -> str | None:
    with perdure.open(Commits(open_backend(), world)) as store:
        pieces, answer = form.run(store.session(SESSION), world), None
        try:
            for piece in pieces:
                if isinstance(piece, Answer):
                    answer = piece.text
                else:
                    world.reach("shown")
        except Closed:
            pieces.close()
        return answer


def _perform_async(form: Form, open_backend: Callable[[], Backend], world: World) -> str | None:
    async def main() -> str | None:
        world.task = asyncio.current_task()
        async with perdure.open_async(ThreadedBackend(Commits(open_backend(), world))) as store:
            pieces, answer = form.run(await store.session(SESSION), world), None
            try:
                async for piece in pieces:
                    if isinstance(piece, Answer):
                        answer = piece.text
                    else:
                        world.reach("shown")
            except Closed:
                await pieces.aclose()
            return answer

    return asyncio.run(main())
