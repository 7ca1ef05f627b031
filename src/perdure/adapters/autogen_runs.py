"""Patch `run` and its variants, with which the framework starts chats in its own threads or tasks.

Such a thread or task looks up the agent's `initiate_chat` only once it runs, possibly after the
block has ended: the chat would then run without a record. So the framework gets a copy of the agent
whose methods stay those of the block, and refuse once it has ended.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from perdure import UsageError
from perdure.adapters.autogen_block import Block
from perdure.adapters.autogen_openings import named

_AT_ONCE, _AWAITED = ("run",), ("a_run",)
_LATER = ("run_iter", "a_run_iter")  # They start when the first event is requested.
_SEVERAL = ("sequential_run", "a_sequential_run")
_BEGINNINGS = ("initiate_chat", "a_initiate_chat")


def runs_of(scope: Block, agent: Any) -> dict[str, Callable[..., Any]]:
    """Return the patched run methods of an agent, by name."""
    methods: dict[str, Callable[..., Any]] = {}
    for name in (*_AT_ONCE, *_AWAITED, *_LATER):
        original = getattr(agent, name, None)
        if _is_own(original):
            patch = _awaited if name in _AWAITED else _begun
            methods[name] = patch(_Run(scope, agent, original, soon=name not in _LATER))
    refused = [name for name in _SEVERAL if _is_own(getattr(agent, name, None))]
    return methods | {name: partial(_refuse, name) for name in refused}


def _is_own(method: object) -> bool:
    """Return whether a method is the framework's: a user's class may define its own."""
    module = getattr(getattr(method, "__func__", None), "__module__", None)
    return isinstance(module, str) and module.startswith("autogen.")


class _Run:
    """A run method of an agent, through which the framework starts a chat."""

    def __init__(self, scope: Block, agent: Any, original: Any, *, soon: bool) -> None:
        self._scope = scope
        self._agent = agent
        self._original = original
        self._soon = soon

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = named(self._original, args, kwargs)
        if arguments.get("recipient") is None:
            name = self._original.__name__
            reason = f"{name}() creates its own agent to talk to {self._agent.name!r}"
            raise UsageError(f"{reason}: pass a recipient, and pass it to persist() too")
        self._scope.require_entered()
        if self._soon:
            self._scope.expect_chat()
        return self._original.__func__(self._agent_copy(), **arguments)

    def _agent_copy(self) -> Any:
        # A shallow copy that calls neither the constructor nor a user's `__copy__`.
        agent = object.__new__(type(self._agent))
        vars(agent).update(vars(self._agent))
        if self._soon:
            vars(agent).update({name: self._patched_start(name) for name in _BEGINNINGS})
        return agent

    def _patched_start(self, name: str) -> Callable[..., Any]:
        begin = vars(self._agent)[name]

        def start(*args: Any, **kwargs: Any) -> Any:
            self._scope.chat_arrived()
            return begin(*args, **kwargs)

        return start

    def with_agent(self, response: Any) -> Any:
        """Return the framework's response, with the original agent in place of the copy."""
        agents = getattr(response, "agents", None)
        if isinstance(agents, list) and agents:
            agents[0] = self._agent
        return response


def _begun(run: _Run) -> Callable[..., Any]:
    return lambda *args, **kwargs: run.with_agent(run.begin(args, kwargs))


def _awaited(run: _Run) -> Callable[..., Any]:
    async def begin(*args: Any, **kwargs: Any) -> Any:
        return run.with_agent(await run.begin(args, kwargs))

    return begin


def _refuse(name: str, *_: Any, **__: Any) -> Any:
    instead = f"{'a_' if name.startswith('a_') else ''}initiate_chats"
    raise UsageError(f"the chats of {name}() cannot be recorded as one: call {instead}()")
