"""What agents know by name: their context variables, of which instructions may be made.

Newer versions of the framework have them. What a chat has made of them is kept as instructions are:
until the code gives an agent others than it did.
"""

import logging
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from perdure.adapters.autogen_openings import storable

Known = dict[str, Any]

logger = logging.getLogger("perdure.adapters.autogen")


class _Left(NamedTuple):
    """What an agent was given, and knew when its chat was left: it may be given once more."""

    given: Known
    now: Known


_left: WeakKeyDictionary[Any, _Left] = WeakKeyDictionary()


class Variables:
    """The context variables of the agents of a chat, by the agents' names."""

    def __init__(self, agents: Iterable[Any]) -> None:
        self._agents = {one.name: one for one in agents if _has_variables(one)}
        self._unstorable: set[str] = set()
        self._seen = now = self.now()
        self._given = {name: _given(self._agents[name], known) for name, known in now.items()}

    def now(self) -> dict[str, Known]:
        """Return what agents know, of those that have something that can be stored."""
        found = {name: one.context_variables.to_dict() for name, one in self._agents.items()}
        for name in found.keys() - self._unstorable:
            if not storable(found[name]):
                self._unstorable.add(name)
                logger.warning(
                    "the context variables of %s are not kept: JSON can not say what they hold",
                    name,
                )
        return {name: deepcopy(one) for name, one in found.items() if name not in self._unstorable}

    def changed(self, before: dict[str, Known]) -> dict[str, Known]:
        """Return what those know who knew something else before."""
        return {name: known for name, known in self.now().items() if known != before.get(name)}

    def put(self, known: dict[str, Known]) -> None:
        for name, variables in known.items():
            now = self._agents[name].context_variables if name in self._agents else None
            if now is not None and now.to_dict() != variables:  # Else they stay the code's objects.
                now.clear()
                now.update(deepcopy(variables))

    def told(self) -> dict[str, Known]:
        """Return what those know who know something else than was captured, or restored, last."""
        return self.changed(self._seen)

    def capture(self) -> dict[str, Any]:
        self._seen = self.now()
        found = {name: (self._given.get(name, {}), now) for name, now in self._seen.items()}
        return {
            name: {"given": given, "now": now}
            for name, (given, now) in found.items()
            if given or now
        }

    def restore(self, state: dict[str, Any] | None) -> list[str]:
        """Have agents know what they knew; return the names of those whom the code gives others."""
        if state is None:
            return []
        same = {name: one for name, one in state.items() if one["given"] == self._given.get(name)}
        # Nothing is recorded of agents that knew nothing.
        others = self._given.keys() - state.keys() - self._unstorable
        self.put({name: self._given[name] for name in others})
        self.put({name: one["now"] for name, one in same.items()})
        self._seen = self.now()
        return [name for name, one in state.items() if name not in same and one["now"]]

    def leave(self) -> None:
        """Remember what the agents know at the end of a block."""
        for name, known in self.now().items():
            _left[self._agents[name]] = _Left(self._given.get(name, {}), known)


def _has_variables(agent: Any) -> bool:
    return hasattr(getattr(agent, "context_variables", None), "to_dict")


def _given(agent: Any, now: Known) -> Known:
    """Return what the code gave an agent, whatever a chat has made of it."""
    before = _left.get(agent)
    return before.given if before is not None and before.now == now else now
