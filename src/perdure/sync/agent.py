# Generated from aio/agent.py by scripts/generate_sync.py: do not edit.
"""Agent: a model and its tools in a loop, durable at every step.

The loop keeps nothing between two steps: it reads from the turn what is done, and does the next
step. So it continues after a crash or an error as if nothing had happened.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from perdure.core.agent import MAX_STEPS, AgentLimits, measure_progress, require_reply
from perdure.core.effects.calls import require_returned
from perdure.core.effects.model_calls import PendingModelCall
from perdure.core.validation import require_int, require_parallel, require_str
from perdure.errors import AgentLimitError, EffectError, UsageError
from perdure.formats.intake import IncomingMessage
from perdure.formats.parts import CHAT
from perdure.formats.requests import tool_definition, with_instructions
from perdure.formats.schemas import describe_tool, with_types
from perdure.formats.tokens import Counter
from perdure.formats.transcript import FORMATS, Transcript
from perdure.sync.concurrency import call_function, require_resolved
from perdure.sync.session import Session
from perdure.sync.tools import Tool, ToolSet, tools_by_name
from perdure.sync.turn import Turn


class Agent:
    """A model that answers with the help of tools, in a session.

        agent = perdure.Agent(session, openai_chat(client, "gpt-4o-mini"), [look_up])
        answer = agent.run("request-1", "Where is my order?")

    `model` is a function of a transcript and a list of tool definitions that returns the reply: one
    of `perdure.models`, or your own. Its attribute `format` names the format of both; without one
    it is "openai.chat". `tools` are functions or tools of the session; their definitions for the
    model come from their names, signatures and docstrings.
    """

    def __init__(  # noqa: PLR0913 - every option of an agent, by name
        self,
        session: Session,
        model: Callable[[Transcript, list[dict[str, Any]]], Any],
        tools: ToolSet = (),
        *,
        instructions: str = "",
        max_steps: int | None = MAX_STEPS,
        max_tool_calls: int | None = None,
        max_tokens: int | None = None,
        counter: Counter | None = None,
        timeout: float | None = None,
        parallel: int = 8,
    ) -> None:
        if not isinstance(session, Session):
            kind = type(session).__qualname__
            raise UsageError(f"this agent needs the class Session, not {kind}")
        if not callable(model):
            hint = "pass a function, such as perdure.models.openai_chat(client, name)"
            raise UsageError(f"a {type(model).__qualname__} is not a model: {hint}")
        self.session = session
        self._model = model
        self._format = str(getattr(model, "format", CHAT))
        if self._format not in FORMATS:
            raise UsageError(f"no format {self._format!r}: choose one of {', '.join(FORMATS)}")
        self._name = str(getattr(model, "name", "") or getattr(model, "__name__", "model"))
        self._tools, self._definitions = _prepare_tools(session, tools, self._format)
        self._instructions = require_str(instructions or "", "instructions")
        self._limits = AgentLimits(max_steps, max_tool_calls, timeout).require_valid()
        if max_tokens is not None and require_int(max_tokens, "max_tokens") < 1:
            raise UsageError(f"max_tokens must be 1 or more, or None, not {max_tokens}")
        self._max_tokens = max_tokens
        self._counter = counter
        self._parallel = require_parallel(parallel)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} of {self.session.id!r}>"

    def run(
        self, id: str, message: object | None = None, *, correlation_id: str = "", author: str = ""
    ) -> dict[str, Any]:
        """Answer a message in the turn with this id, once; return the answer, the same each time.

        As `session.run` does: after an error or a crash, call it again with the same id. It
        continues where it stopped. Replies of the model and results of tools that are recorded are
        used again. If a limit is reached, AgentLimitError; if a call needs an approval,
        ApprovalPendingError. Both leave everything in place for the next run.
        """
        return self.session.run(id, self, message, correlation_id=correlation_id, author=author)

    def __call__(self, turn: Turn) -> None:
        """Do the steps of a turn that are not done yet, until the model has answered."""
        start, session = time.monotonic(), self.session
        if self._definitions:
            turn.record_tools(self._definitions)
        while not (progress := measure_progress(turn.messages(opaque=False))).is_answered:
            self._limits.check_calls(session.id, turn.id, progress)
            spent = time.monotonic() - start
            left = self._limits.check_time(session.id, turn.id, spent)
            if not session.run_tool_calls(None, self._tools, parallel=self._parallel):
                self._limits.check_steps(session.id, turn.id, progress)
                self._ask(turn, left)

    def _ask(self, turn: Turn, seconds: float | None) -> None:
        """Call the model and store its reply, within so many seconds."""
        window = self.session.messages(
            format=self._format, max_tokens=self._max_tokens, counter=self._counter
        )
        prompt = with_instructions(window, self._format, self._instructions)
        request = {"messages": [*prompt], "system": prompt.system, "tools": self._definitions}
        call = turn.begin_model_call(self._name, request)
        try:
            replies = _recorded_reply(call, self.session.id)
            if replies is None:
                replies = [self._call_model(turn, prompt, seconds)]
            turn.append(*replies, reply_to=call)
        except BaseException as error:
            call.failed(error)
            raise

    def _call_model(self, turn: Turn, prompt: Transcript, seconds: float | None) -> Any:
        function = partial(self._model, prompt, self._definitions)
        called = call_function(function, timeout=seconds, name=f"perdure model {self._name}")
        if called is None:
            raise AgentLimitError(self.session.id, turn.id, "timeout", self._limits.timeout or 0)
        reply = require_returned(called, seconds)
        require_resolved(reply)
        require_reply(reply)
        return reply


def _prepare_tools(
    session: Session, offered: ToolSet, format: str
) -> tuple[dict[str, Tool[..., Any]], list[dict[str, Any]]]:
    """Return the tools by name, with functions that take JSON, and their definitions."""
    handle = session._handle  # noqa: SLF001 - the tools are those of the session
    tools: dict[str, Tool[..., Any]] = {}
    definitions: list[dict[str, Any]] = []
    for name, tool in tools_by_name(handle, offered).items():
        function = tool.spec.function
        definitions.append(tool_definition(describe_tool(function, name), format))
        spec = tool.spec._replace(function=with_types(function, name))
        tools[name] = Tool(handle, spec)
    return tools, definitions


def _recorded_reply(call: PendingModelCall, session: str) -> Sequence[Any] | None:
    """Return the recorded reply if the session is replayed: the model must not be called."""
    recorded = call.recorded()
    if recorded is None:
        return None
    if recorded.error:
        raise EffectError(session, call.call.tool, recorded.error, recorded.reason)
    *earlier, last = recorded.messages
    return [*earlier, IncomingMessage(last, recorded.meta)]
