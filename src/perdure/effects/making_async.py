"""The methods of a session that make functions durable: tools and models."""

from collections.abc import Callable
from typing import Any, Literal

from perdure.effects import toolbox_async
from perdure.effects.effecting import Policy
from perdure.effects.model_async import AsyncModel
from perdure.effects.tool_async import AsyncTool
from perdure.effects.toolbox_async import Tools
from perdure.effects.tools import Effect, Spec, require_spec
from perdure.handle_async import AsyncHandle


class AsyncMaking:
    """The part of a session that creates tools and models."""

    _handle: AsyncHandle

    def tool(  # noqa: PLR0913 - every option of a tool, by name
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
    ) -> AsyncTool:
        """Return a tool that runs once for each call, or reports that its outcome is unknown.

        Call it in a turn, like the function. `effect` is the policy for a call whose process died
        before its outcome was recorded. "unsafe": it is not made again and raises
        UnknownOutcomeError. "read_only" and "idempotent": it is made again; an idempotent tool gets
        the same `perdure.current_effect().key`. "reconcile": the function `reconcile` finds out
        whether it happened, and returns Done(result) or NotDone().

        With `approval` (True, or a function of the arguments), a call runs only after it was
        approved (`session.approvals`, `perdure approve`) within `approval_ttl` seconds. The caller
        waits up to `approval_wait` seconds (None: no limit), then gets ApprovalPendingError.
        """
        options = Spec(function, name, effect, version, actor, reconcile, timeout, unstorable)
        spec = options._replace(
            approval=approval, approval_ttl=approval_ttl, approval_wait=approval_wait
        )
        return AsyncTool(self._handle, require_spec(spec))

    def model(
        self,
        function: Callable[..., Any],
        *,
        name: str = "",
        version: str = "",
        actor: str = "",
        timeout: float | None = None,
        digest_of: Callable[[dict[str, Any]], Any] | None = None,
    ) -> AsyncModel:
        """Return a model whose answers are recorded, so that no answer is paid for twice.

        Call it in a turn, with a request; the function returns the answer as storable data. A
        request that was answered in this turn, before its process died, gets the recorded answer;
        a request without an answer is sent again. The record has a digest of the request, not the
        request itself; `digest_of` maps the arguments, by name, to the data that is digested.
        """
        options = Spec(function, name, "read_only", version, actor, timeout=timeout)
        spec = options._replace(kind="model", digest_of=digest_of)
        return AsyncModel(self._handle, require_spec(spec))

    async def run_tool_calls(
        self, message: object | None = None, tools: Tools = (), *, parallel: int = 8
    ) -> list[dict[str, Any]]:
        """Make the tool calls of a message that was appended to the turn, each once, in parallel.

        Without a message: all open calls of the turn, such as those left by a killed process.
        Returns the result messages for the model; they are stored with the outcomes.
        """
        return await toolbox_async.run_tool_calls(self._handle, message, tools, parallel=parallel)
