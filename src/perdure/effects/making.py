"""Tools and models that a session makes durable. Its twin is in `making_async`."""

from collections.abc import Callable
from typing import Any, Literal

from perdure.effects import toolbox
from perdure.effects.effecting import Policy
from perdure.effects.model import Model
from perdure.effects.tool import Tool
from perdure.effects.toolbox import Tools
from perdure.effects.tools import Effect, Spec, require_spec
from perdure.handle import Handle


class Making:
    """What a session can do about functions: the part of it that makes tools and models."""

    _handle: Handle

    def tool(  # noqa: PLR0913 - what a tool can be declared to be, by name
        self,
        function: Callable[..., Any],
        *,
        effect: Policy = "unsafe",
        name: str = "",
        version: str = "",
        actor: str = "",
        reconcile: Callable[[Effect], Any] | None = None,
        timeout: float | None = None,
        unstorable: Literal["raise", "return"] = "raise",
        approval: bool | Callable[[dict[str, Any]], Any] = False,
        approval_ttl: float | None = None,
        approval_wait: float | None = None,
    ) -> Tool:
        """Return a tool that runs once for each call, or says that nobody knows whether it ran.

        Call it in a turn, like the function. `effect` says what is to be done about a call whose
        process died before its outcome was recorded: an "unsafe" one is not made again and is
        UnknownOutcomeError, "read_only" and "idempotent" ones are made again (the latter find the
        same `perdure.current_effect().key`), for "reconcile" the function `reconcile` finds out,
        and returns Done(result) or NotDone().

        With `approval`, True or a function of the arguments, a call waits until somebody lets it
        happen (`session.approvals`, `perdure approve`), within `approval_ttl` seconds. Its caller
        waits for `approval_wait` seconds, None for ever; then it is ApprovalPendingError.
        """
        how = Spec(function, name, effect, version, actor, reconcile, timeout, unstorable)
        spec = how._replace(
            approval=approval, approval_ttl=approval_ttl, approval_wait=approval_wait
        )
        return Tool(self._handle, require_spec(spec))

    def model(
        self,
        function: Callable[..., Any],
        *,
        name: str = "",
        version: str = "",
        actor: str = "",
        timeout: float | None = None,
        digest_of: Callable[[dict[str, Any]], Any] | None = None,
    ) -> Model:
        """Return a model whose answers are recorded, so that none is paid for twice.

        Call it in a turn, with a request; the function returns the answer as data that can be
        stored. A request that was answered in this turn, before its process died, gets the recorded
        answer; one that was not is made again. The record has a digest of the request and not the
        request itself; `digest_of` says what of the arguments, by name, is digested.
        """
        how = Spec(function, name, "read_only", version, actor, timeout=timeout)
        spec = how._replace(kind="model", digest_of=digest_of)
        return Model(self._handle, require_spec(spec))

    def run_tool_calls(
        self, message: object | None = None, tools: Tools = (), *, parallel: int = 8
    ) -> list[dict[str, Any]]:
        """Make the tool calls of a message that was appended to the turn, each once, in parallel.

        Without a message, all that are open in the turn: those that a killed process left. Returns
        the messages that tell the model; they are stored with the outcomes.
        """
        return toolbox.run_tool_calls(self._handle, message, tools, parallel=parallel)
