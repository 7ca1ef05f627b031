"""Save and restore the agents' context variables, from which instructions may be rendered.

Newer versions of the framework have them. Changes made in a chat persist, as for instructions,
until the code gives an agent other variables than before.
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
    """An agent's variables when its block was left; it may be passed to `persist` again."""

    configured: Known
    current: Known


_left: WeakKeyDictionary[Any, _Left] = WeakKeyDictionary()


class Variables:
    """The context variables of a chat's agents, by agent name."""

    def __init__(self, agents: Iterable[Any]) -> None:
        self._agents = {agent.name: agent for agent in agents if _has_variables(agent)}
        self._unstorable: set[str] = set()
        self._last = current = self.current()
        self._configured = {
            name: _given(self._agents[name], values) for name, values in current.items()
        }

    def current(self) -> dict[str, Known]:
        """Return the variables of every agent whose variables can be stored."""
        variables = {
            name: agent.context_variables.to_dict() for name, agent in self._agents.items()
        }
        for name in variables.keys() - self._unstorable:
            if not storable(variables[name]):
                self._unstorable.add(name)
                logger.warning(
                    "the context variables of %s are not saved: they hold values that are not JSON",
                    name,
                )
        return {
            name: deepcopy(values)
            for name, values in variables.items()
            if name not in self._unstorable
        }

    def changed(self, previous: dict[str, Known]) -> dict[str, Known]:
        """Return the variables of agents whose variables differ from `previous`."""
        return {
            name: values for name, values in self.current().items() if values != previous.get(name)
        }

    def assign(self, by_name: dict[str, Known]) -> None:
        """Set agents' variables in place."""
        for name, variables in by_name.items():
            current = self._agents[name].context_variables if name in self._agents else None
            if (
                current is not None and current.to_dict() != variables
            ):  # Equal: keep the code's objects.
                current.clear()
                current.update(deepcopy(variables))

    def unsaved(self) -> dict[str, Known]:
        """Return the variables that differ from those last captured or restored."""
        return self.changed(self._last)

    def capture(self) -> dict[str, Any]:
        """Return configured and current variables as data."""
        self._last = self.current()
        variables = {
            name: (self._configured.get(name, {}), current) for name, current in self._last.items()
        }
        return {
            name: {"given": configured, "now": current}
            for name, (configured, current) in variables.items()
            if configured or current
        }

    def restore(self, state: dict[str, Any] | None) -> list[str]:
        """Restore variables; return the agents for which the code's values win."""
        if state is None:
            return []
        unchanged = {
            name: saved
            for name, saved in state.items()
            if saved["given"] == self._configured.get(name)
        }
        # Agents without variables have no entry: reset them to the configured values.
        unrecorded = self._configured.keys() - state.keys() - self._unstorable
        self.assign({name: self._configured[name] for name in unrecorded})
        self.assign({name: saved["now"] for name, saved in unchanged.items()})
        self._last = self.current()
        return [name for name, saved in state.items() if name not in unchanged and saved["now"]]

    def take_snapshot(self) -> None:
        """Remember the agents' variables at the end of a block."""
        for name, values in self.current().items():
            _left[self._agents[name]] = _Left(self._configured.get(name, {}), values)


def _has_variables(agent: Any) -> bool:
    return hasattr(getattr(agent, "context_variables", None), "to_dict")


def _given(agent: Any, current: Known) -> Known:
    """Return the variables that the code gave an agent, without changes made by a chat."""
    snapshot = _left.get(agent)
    return snapshot.configured if snapshot is not None and snapshot.current == current else current
