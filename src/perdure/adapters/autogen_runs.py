"""Chats that the framework begins in a thread or a task of its own: `run` and those like it.

It looks up how an agent begins a chat when that thread or task has come so far, which may be when
the block is over: the chat would go on without a record. So it is given a stand-in for the agent,
whose methods stay those of the block, and refuse when that is over.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from perdure import UsageError
from perdure.adapters.autogen_block import Block
from perdure.adapters.autogen_openings import named

_AT_ONCE, _AWAITED = ("run",), ("a_run",)
_LATER = ("run_iter", "a_run_iter")  # When somebody asks for the first event.
_SEVERAL = ("sequential_run", "a_sequential_run")
_BEGINNINGS = ("initiate_chat", "a_initiate_chat")


def runs_of(block: Block, agent: Any) -> dict[str, Callable[..., Any]]:
    """Return what stands in the place of an agent's methods, by name: of those that it has."""
    found: dict[str, Callable[..., Any]] = {}
    for name in (*_AT_ONCE, *_AWAITED, *_LATER):
        original = getattr(agent, name, None)
        if _is_own(original):
            make = _awaited if name in _AWAITED else _begun
            found[name] = make(_Run(block, agent, original, soon=name not in _LATER))
    refused = [name for name in _SEVERAL if _is_own(getattr(agent, name, None))]
    return found | {name: partial(_refuse, name) for name in refused}


def _is_own(method: object) -> bool:
    """Whether a method is the framework's: one that a user's class has by this name is another."""
    module = getattr(getattr(method, "__func__", None), "__module__", None)
    return isinstance(module, str) and module.startswith("autogen.")


class _Run:
    """A method of an agent that has the framework begin a chat."""

    def __init__(self, block: Block, agent: Any, original: Any, *, soon: bool) -> None:
        self._block = block
        self._agent = agent
        self._original = original
        self._soon = soon

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = named(self._original, args, kwargs)
        if given.get("recipient") is None:
            name = self._original.__name__
            reason = f"{name}() makes one of its own to talk to {self._agent.name!r}"
            raise UsageError(f"{reason}, which is not kept: give a recipient, and it to persist()")
        self._block.require_entered()
        if self._soon:
            self._block.announce()
        return self._original.__func__(self._stand_in(), **given)

    def _stand_in(self) -> Any:
        found = object.__new__(type(self._agent))
        vars(found).update(vars(self._agent))
        if self._soon:
            vars(found).update({name: self._arriving(name) for name in _BEGINNINGS})
        return found

    def _arriving(self, name: str) -> Callable[..., Any]:
        begin = vars(self._agent)[name]

        def arrive(*args: Any, **kwargs: Any) -> Any:
            self._block.arrive()
            return begin(*args, **kwargs)

        return arrive

    def shown(self, response: Any) -> Any:
        """Return what the framework gave, with the agent itself in it."""
        agents = getattr(response, "agents", None)
        if isinstance(agents, list) and agents:
            agents[0] = self._agent
        return response


def _begun(run: _Run) -> Callable[..., Any]:
    return lambda *args, **kwargs: run.shown(run.begin(args, kwargs))


def _awaited(run: _Run) -> Callable[..., Any]:
    async def begin(*args: Any, **kwargs: Any) -> Any:
        return run.shown(await run.begin(args, kwargs))

    return begin


def _refuse(name: str, *_: Any, **__: Any) -> Any:
    instead = f"{'a_' if name.startswith('a_') else ''}initiate_chats"
    raise UsageError(f"the chats of {name}() can not be kept as one: call {instead}()")
