"""AsyncModel: a function that calls a model, recorded before and after each call."""

from typing import Any

from perdure.effects import tools
from perdure.effects.tool_async import AsyncTool
from perdure.effects.tools import Given, Spec
from perdure.handle_async import AsyncHandle


class AsyncModel:
    """A durable model. Created by `session.model`; call it with a request, in a turn."""

    def __init__(self, handle: AsyncHandle, spec: Spec) -> None:
        self._handle = handle
        self._tool = AsyncTool(handle, spec)

    @property
    def name(self) -> str:
        """The name under which its calls are recorded."""
        return self._tool.name

    async def __call__(self, *args: Any, **request: Any) -> Any:
        """Call the model, or return the recorded answer if this request was made before."""
        spec = self._tool.spec
        running = tools.running_turn(self._handle, spec.name)
        arguments = tools.bound(spec, args, request)
        call = tools.asked(self._handle.replica, running, spec, arguments)
        return await self._tool.make(call, Given(arguments, args, request))
