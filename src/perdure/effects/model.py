"""Model: a function that asks a model, recorded before and after. Its twin is in `model_async`."""

from typing import Any

from perdure.effects import tools
from perdure.effects.tool import Tool
from perdure.effects.tools import Given, Spec
from perdure.handle import Handle


class Model:
    """A durable model. Made by `session.model`; called with a request, in a turn."""

    def __init__(self, handle: Handle, spec: Spec) -> None:
        self._handle = handle
        self._tool = Tool(handle, spec)

    @property
    def name(self) -> str:
        """The name that it is recorded under."""
        return self._tool.name

    def __call__(self, *args: Any, **request: Any) -> Any:
        """Ask the model, or return what it answered when this very request was made before."""
        spec = self._tool.spec
        running = tools.running_turn(self._handle, spec.name)
        arguments = tools.bound(spec, args, request)
        call = tools.asked(self._handle.replica, running, spec, arguments)
        return self._tool.make(call, Given(arguments, args, request))
