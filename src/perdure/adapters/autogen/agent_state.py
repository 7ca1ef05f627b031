"""Capture the agents' state and context variables at the end of a chat as data; restore them.

Histories are rebuilt from the recorded messages (`histories`). Histories that differ from
that, because code changed them, are stored whole, and so is the rest of the state, which is small.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from perdure.adapters.autogen.histories import (
    CLOSING_ORIGIN,
    HistoryRebuilder,
    changed_histories,
    collect_histories,
    ends_on_calls,
)
from perdure.adapters.autogen.model_calls import set_usage, usage_of
from perdure.adapters.autogen.openings import is_storable
from perdure.adapters.autogen.recorder import AgentMessage, GroupChats, digest
from perdure.adapters.autogen.versions import human_inputs, reply_counts

# State of all agents, as it is saved; its keys are a stored format (`saved_chat.FORMAT`).
AgentsState = dict[str, Any]

VariableValues = dict[str, Any]  # One agent's context variables.

logger = logging.getLogger("perdure.adapters.autogen")

# Content of the answer to a call that a chat left open.
CALL_NOT_MADE = "The chat ended before this call was made."


class AgentSnapshot(NamedTuple):
    """An agent's state when its block was left; this process may pass it to `persist` again."""

    configured: str  # Instructions that the code gave.
    system_message: str
    chat: str
    histories: str  # A digest.


# Weak keys: an agent that the caller has dropped will not be passed again.
_agent_snapshots: WeakKeyDictionary[Any, AgentSnapshot] = WeakKeyDictionary()


class ChatAgents:
    """The agents of a chat by name, and the groups among them."""

    def __init__(self, agents: list[Any], groups: GroupChats) -> None:
        self.by_name = {agent.name: agent for agent in agents}
        self.groups = groups
        self.configured = {agent.name: _configured_instructions(agent) for agent in agents}
        self.variables = ContextVariables(agents)
        self._rebuilder = HistoryRebuilder(self.by_name, self._members())
        self._changed: AgentsState | None = None  # Histories that code changed, as saved.
        self._last_state: AgentsState = {}  # As last captured or restored.

    def __iter__(self) -> Iterator[Any]:
        return iter(self.by_name.values())

    def histories(self) -> dict[str, Any]:
        """Return all histories: per agent and peer, and per group."""
        groups = {manager.name: manager.groupchat for manager in self.groups}
        return collect_histories(self.by_name.values(), groups)

    def take_snapshot(self, chat: str) -> None:
        """Remember the agents' state at the end of a block."""
        histories = digest(self.histories())
        self.variables.take_snapshot()
        for agent in self:
            _agent_snapshots[agent] = AgentSnapshot(
                self.configured[agent.name], agent.system_message, chat, histories
            )

    def match_snapshots(self, chat: str, histories: str) -> bool:
        """Return whether every agent's histories are unchanged since a chat was left."""
        snapshots = [_agent_snapshots.get(agent) for agent in self]
        return all(
            snapshot is not None and (snapshot.chat, snapshot.histories) == (chat, histories)
            for snapshot in snapshots
        )

    def instructions(self) -> dict[str, str]:
        """Return the system message of each agent."""
        return {agent.name: agent.system_message for agent in self}

    def set_instructions(self, instructions: dict[str, str]) -> None:
        """Update system messages that differ."""
        for name, text in instructions.items():
            if self.by_name[name].system_message != text:
                self.by_name[name].update_system_message(text)

    def capture(self) -> AgentsState:
        """Return the agents' state, except the histories."""
        self._last_state = self._current_state()
        return {**self._last_state, "variables": self.variables.capture()}

    def _current_state(self) -> AgentsState:
        return {
            "replies": {agent.name: self._by_name(reply_counts(agent)) for agent in self},
            "replying": {agent.name: self._by_name(agent.reply_at_receive) for agent in self},
            "system": {
                agent.name: {
                    "configured": self.configured[agent.name],
                    "current": agent.system_message,
                }
                for agent in self
            },
            "human": {agent.name: [*human_inputs(agent)] for agent in self},
            "usage": {agent.name: usage_of(agent.client) for agent in self if agent.client},
        }

    def have_changed(self) -> bool:
        """Return whether the state differs from the one last captured or restored."""
        return self.histories_changed() or self._current_state() != self._last_state

    def histories_changed(self) -> bool:
        """Return whether the histories differ from those that the records imply."""
        return self.histories() != self._rebuilder.histories()

    def _by_name(self, by_agent: Mapping[Any, Any]) -> dict[str, Any]:
        # By identity: agents that were not passed to `persist` may have the same names.
        names = {id(agent): agent.name for agent in self}
        return {names[id(peer)]: value for peer, value in by_agent.items() if id(peer) in names}

    def rebuild_histories(self, messages: list[AgentMessage], state: AgentsState) -> None:
        """Set the agents' histories from recorded messages and saved changes."""
        saved = state.get("histories", {"groups": self._members(), "changed": None})
        self._changed = saved["changed"]
        self._rebuilder = self._rebuild(messages, saved["groups"])
        # One copy of all: groups and managers share messages.
        histories = deepcopy(self._rebuilder.histories())
        for agent in self:
            by_peer = histories["pairs"].get(agent.name, {})
            for peer in self:
                agent.chat_messages[peer] = by_peer.get(peer.name, [])
        for manager in self.groups:  # In place: the framework holds a reference to this list, too.
            manager.groupchat.messages[:] = histories["groups"].get(manager.name, [])

    def changed_histories(self, read_after: Callable[[int], list[AgentMessage]]) -> AgentsState:
        """Return the histories that do not follow from the recorded messages, to be saved.

        `read_after` returns the messages after a position. User code may have changed histories,
        and not every manager broadcasts each message.
        """
        current, members = self.histories(), self._members()
        # Usually the new messages explain the histories. Otherwise they are rebuilt from the
        # beginning, to save no more than the differences from all records.
        self._rebuilder.replay(read_after(self._rebuilder.position))
        if members != self._rebuilder.members or current != self._rebuilder.histories():
            self._changed = None
            self._rebuilder = self._rebuild(read_after(0), members)
            changes = changed_histories(current, self._rebuilder.histories())
            if changes["pairs"] or changes["groups"]:
                self._changed = {"after": self._rebuilder.position, **changes}
                self._rebuilder.load(deepcopy(changes))
        return {"groups": members, "changed": self._changed}

    def _members(self) -> dict[str, list[str]]:
        return {
            manager.name: [agent.name for agent in manager.groupchat.agents]
            for manager in self.groups
        }

    def _rebuild(
        self, messages: list[AgentMessage], members: dict[str, list[str]]
    ) -> HistoryRebuilder:
        """Return a rebuilder that has replayed the messages and applied the saved changes."""
        rebuilder = HistoryRebuilder(
            self.by_name, {**{manager.name: [] for manager in self.groups}, **members}
        )
        # Saved changes replace the histories as of `after`; later messages are added to them.
        after = self._changed["after"] if self._changed is not None else 0
        rebuilder.replay([message for message in messages if message.position <= after])
        if self._changed is not None:
            rebuilder.load(deepcopy(self._changed))
        rebuilder.replay([message for message in messages if message.position > after])
        return rebuilder

    def copy_histories(self) -> list[tuple[Any, dict[Any, Any]]]:
        """Return copies of the agents' histories, for `put_back_histories`."""
        pairs = [(agent, {**agent.chat_messages}) for agent in self]
        groups = [
            (manager.groupchat, {"messages": [*manager.groupchat.messages]})
            for manager in self.groups
        ]
        return [*pairs, *groups]

    @staticmethod
    def put_back_histories(lists: list[tuple[Any, dict[Any, Any]]]) -> None:
        """Restore histories in place."""
        for owner, saved in lists:
            if hasattr(owner, "chat_messages"):
                owner.chat_messages.clear()
                owner.chat_messages.update(saved)
            else:
                owner.messages[:] = saved["messages"]

    def open_calls(self, messages: list[AgentMessage]) -> Iterator[AgentMessage]:
        """Yield answers for tool calls that a chat left open: providers reject unanswered calls."""
        last: dict[frozenset[str], AgentMessage] = {}
        managers = {manager.name for manager in self.groups}
        for message in messages:
            # A group is one conversation, whichever member speaks; others are pairs.
            participants = {message.author, message.recipient}
            last[frozenset(participants & managers or participants)] = message
        for message in last.values():
            author, recipient = self.by_name[message.author], self.by_name[message.recipient]
            calls = message.message.get("tool_calls")
            if calls and ends_on_calls(recipient.chat_messages.get(author)):
                closing, to = self._closing_pair(author, recipient)
                yield AgentMessage(
                    0, "", closing.name, to.name, CLOSING_ORIGIN, _closing_message(calls)
                )

    def _closing_pair(self, author: Any, recipient: Any) -> tuple[Any, Any]:
        """Return who answers a call, and to whom: in a group, a member that received the call."""
        for agent in recipient.groupchat.agents if recipient in [*self.groups] else ():
            if agent is not author and ends_on_calls(agent.chat_messages.get(recipient)):
                return agent, recipient
        return recipient, author

    def close_call(self, answer: AgentMessage) -> None:
        """Deliver an answer that closes a call."""
        rebuilder = HistoryRebuilder(self.by_name, self._members())
        pairs = {
            agent.name: {peer.name: agent.chat_messages[peer] for peer in self} for agent in self
        }
        groups = {manager.name: manager.groupchat.messages for manager in self.groups}
        # The rebuilder takes over the agents' own lists, so the answer is appended to them.
        rebuilder.load({"pairs": pairs, "groups": groups})
        rebuilder.replay([answer])

    def restore(self, state: AgentsState) -> list[tuple[str, str]]:
        """Restore the rest of the state; return (what, agent name) where the code's value wins."""
        for agent in self:
            for name, count in state.get("replies", {}).get(agent.name, {}).items():
                reply_counts(agent)[self.by_name[name]] = count
            for name, replies in state.get("replying", {}).get(agent.name, {}).items():
                agent.reply_at_receive[self.by_name[name]] = replies
            human_inputs(agent)[:] = state.get("human", {}).get(agent.name, [])
            usage = state.get("usage", {}).get(agent.name)
            if usage and agent.client:
                set_usage(agent.client, usage)
        variables = [("variables", name) for name in self.variables.restore(state.get("variables"))]
        instructions = [
            agent.name for agent in self if not self._restore_instructions(agent, state)
        ]
        self._last_state = self._current_state()
        return [*(("instructions", name) for name in instructions), *variables]

    def _restore_instructions(self, agent: Any, state: AgentsState) -> bool:
        """Restore an agent's recorded instructions; return False if the code now gives others."""
        system = state.get("system", {}).get(agent.name)
        if system is None or system["current"] == agent.system_message:
            return True
        if system["configured"] != self.configured[agent.name]:
            return False  # The program was changed since: its instructions are the newer ones.
        # Bypass the patched method on the instance: that one would save the state.
        type(agent).update_system_message(agent, system["current"])
        return True


def _configured_instructions(agent: Any) -> str:
    """Return the instructions that the code gave an agent, without changes made by a chat."""
    snapshot, current = _agent_snapshots.get(agent), str(agent.system_message)
    return (
        snapshot.configured
        if snapshot is not None and snapshot.system_message == current
        else current
    )


def _closing_message(calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a message that answers each call with `CALL_NOT_MADE`."""
    answers = [
        {"tool_call_id": call.get("id", ""), "role": "tool", "content": CALL_NOT_MADE}
        for call in calls
    ]
    content = "\n\n".join(CALL_NOT_MADE for _ in answers)
    return {"role": "tool", "tool_responses": answers, "content": content}


class _VariablesSnapshot(NamedTuple):
    """An agent's variables when its block was left; it may be passed to `persist` again."""

    configured: VariableValues
    current: VariableValues


_variables_snapshots: WeakKeyDictionary[Any, _VariablesSnapshot] = WeakKeyDictionary()


class ContextVariables:
    """The context variables of a chat's agents, by agent name."""

    def __init__(self, agents: Iterable[Any]) -> None:
        self._agents = {agent.name: agent for agent in agents if _has_variables(agent)}
        self._unstorable: set[str] = set()
        self._last = current = self.current()
        self._configured = {
            name: _configured_variables(self._agents[name], values)
            for name, values in current.items()
        }

    def current(self) -> dict[str, VariableValues]:
        """Return the variables of every agent whose variables can be stored."""
        variables = {
            name: agent.context_variables.to_dict() for name, agent in self._agents.items()
        }
        for name in variables.keys() - self._unstorable:
            if not is_storable(variables[name]):
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

    def changed(self, previous: dict[str, VariableValues]) -> dict[str, VariableValues]:
        """Return the variables of agents whose variables differ from `previous`."""
        return {
            name: values for name, values in self.current().items() if values != previous.get(name)
        }

    def assign(self, by_name: dict[str, VariableValues]) -> None:
        """Set agents' variables in place."""
        for name, variables in by_name.items():
            current = self._agents[name].context_variables if name in self._agents else None
            # If they are equal, the code's own objects are kept.
            if current is not None and current.to_dict() != variables:
                current.clear()
                current.update(deepcopy(variables))

    def unsaved(self) -> dict[str, VariableValues]:
        """Return the variables that differ from those last captured or restored."""
        return self.changed(self._last)

    def capture(self) -> dict[str, Any]:
        """Return configured and current variables as data."""
        self._last = self.current()
        variables = {
            name: (self._configured.get(name, {}), current) for name, current in self._last.items()
        }
        return {
            name: {"configured": configured, "current": current}
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
            if saved["configured"] == self._configured.get(name)
        }
        # Agents without variables have no entry: reset them to the configured values.
        unrecorded = self._configured.keys() - state.keys() - self._unstorable
        self.assign({name: self._configured[name] for name in unrecorded})
        self.assign({name: saved["current"] for name, saved in unchanged.items()})
        self._last = self.current()
        return [name for name, saved in state.items() if name not in unchanged and saved["current"]]

    def take_snapshot(self) -> None:
        """Remember the agents' variables at the end of a block."""
        for name, values in self.current().items():
            _variables_snapshots[self._agents[name]] = _VariablesSnapshot(
                self._configured.get(name, {}), values
            )


def _has_variables(agent: Any) -> bool:
    return hasattr(getattr(agent, "context_variables", None), "to_dict")


def _configured_variables(agent: Any, current: VariableValues) -> VariableValues:
    """Return the variables that the code gave an agent, without changes made by a chat."""
    snapshot = _variables_snapshots.get(agent)
    return snapshot.configured if snapshot is not None and snapshot.current == current else current
