"""Rebuild the agents' histories from the recorded messages.

Stand-in agents of the same names receive the recorded messages through the framework's own code,
which assigns the roles and names on each side. The real agents never receive them: their classes,
hooks and terminals would treat each as a new message.
"""

from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from typing import Any

from perdure.adapters.autogen.openings import is_storable
from perdure.adapters.autogen.recorder import REPLACEMENT_ORIGIN, AgentMessage
from perdure.adapters.autogen.versions import framework
from perdure.errors import UsageError

CLOSING_ORIGIN = "autogen:closed"  # Origin of a message that answers a call in place of its result.

# `pairs`: messages per agent and peer; `groups`: messages per group. Keys are agent names.
Histories = dict[str, Any]

# Stand-ins must never reply, ask a person or run code: they only receive.
_STAND_IN_OPTIONS = {
    "llm_config": False,
    "human_input_mode": "NEVER",
    "code_execution_config": False,
}


def collect_histories(agents: Collection[Any], groups: Mapping[str, Any]) -> Histories:
    """Return the histories of agents and groups, without copies; empty pairs are omitted."""
    pairs: dict[str, dict[str, Any]] = {}
    for agent in agents:
        # `get`, because a lookup would add an empty list: the framework uses a defaultdict.
        by_peer = {
            peer.name: messages for peer in agents if (messages := agent.chat_messages.get(peer))
        }
        if by_peer:
            pairs[agent.name] = by_peer
    return {"pairs": pairs, "groups": {name: group.messages for name, group in groups.items()}}


class HistoryRebuilder:
    """Rebuilds histories with stand-in agents and groups that receive recorded messages."""

    def __init__(self, names: Iterable[str], members: Mapping[str, list[str]]) -> None:
        autogen = framework()
        self.members = {name: [*agents] for name, agents in members.items()}
        self.position = 0  # Of the last message replayed.
        self._agents = {name: autogen.ConversableAgent(name, **_STAND_IN_OPTIONS) for name in names}
        self._groups = {
            name: autogen.GroupChat(agents=[self._agents[member] for member in agents], messages=[])
            for name, agents in members.items()
        }
        self._broadcasts: dict[str, _PendingBroadcast] = {}

    def load(self, histories: Histories) -> None:
        """Set the stand-ins' histories; the lists belong to them from now on.

        An int in place of a list keeps that many of the newest messages.
        """
        for name, by_peer in histories["pairs"].items():
            lists = self._agents[name].chat_messages
            for peer, messages in by_peer.items():
                lists[self._agents[peer]] = _newest(messages, lists[self._agents[peer]])
        for name, messages in histories["groups"].items():
            group = self._groups[name]
            group.messages = _newest(messages, group.messages)

    def histories(self) -> Histories:
        """Return the rebuilt histories; pairs without messages are omitted."""
        return collect_histories(self._agents.values(), self._groups)

    def replay(self, messages: Iterable[AgentMessage]) -> None:
        """Replay the messages of chats that have ended; managers broadcast what they received."""
        turn = ""
        for message in messages:
            if message.turn != turn:  # The last broadcast of a chat has no next message to end it.
                self._finish_broadcasts(*self._broadcasts)
            self._deliver(message)
            self.position, turn = message.position, message.turn
        self._finish_broadcasts(*self._broadcasts)

    def _deliver(self, message: AgentMessage) -> None:
        """Deliver one message; a manager's broadcast of it is held back."""
        if message.origin == REPLACEMENT_ORIGIN and message.author in self._broadcasts:
            self._broadcasts[message.author].replacements[message.recipient] = message.message
            return
        # The broadcast waits until the next message: a manager's introductions come in between.
        if message.recipient in self._broadcasts:
            self._finish_broadcasts(message.recipient)
        speaker, recipient = self._agents[message.author], self._agents[message.recipient]
        _send_silently(speaker, dict(message.message), recipient)
        if message.recipient in self._groups:
            group = self._groups[message.recipient]
            self._broadcasts[message.recipient] = _PendingBroadcast(
                recipient, group, speaker, message.origin
            )

    def _finish_broadcasts(self, *managers: str) -> None:
        for name in managers:
            self._broadcasts.pop(name).deliver()


class _PendingBroadcast:
    """A message that a manager has yet to broadcast, and its replacements for some members."""

    def __init__(self, manager: Any, group: Any, speaker: Any, origin: str) -> None:
        self._manager = manager
        self._group = group
        self._speaker = speaker
        self._closes = origin == CLOSING_ORIGIN
        self._message = manager.last_message(speaker)
        self.replacements: dict[str, Any] = {}

    def deliver(self) -> None:
        """Append the message to the group and send it to every other member."""
        # In the manager's order: first the group's own list, then its members.
        if self._applies_to(self._group.messages):
            self._group.append(self._message, self._speaker)
        for agent in self._group.agents:
            if agent is not self._speaker and self._applies_to(agent.chat_messages[self._manager]):
                message = self.replacements.get(agent.name, self._message)
                _send_silently(self._manager, message, agent)

    def _applies_to(self, history: list[dict[str, Any]]) -> bool:
        """Return whether the message belongs in a history: a closing answer only after its call."""
        return not self._closes or ends_on_calls(history)


def ends_on_calls(messages: list[dict[str, Any]] | None) -> bool:
    """Return whether the last message calls tools and is not answered yet."""
    return bool(messages and messages[-1].get("tool_calls"))


def _send_silently(speaker: Any, message: Any, recipient: Any) -> None:
    speaker.send(message, recipient, request_reply=False, silent=True)


def _newest(messages: Any, rebuilt: list[Any]) -> Any:
    return rebuilt[len(rebuilt) - messages :] if isinstance(messages, int) else messages


def changed_histories(current: Histories, rebuilt: Histories) -> Histories:
    """Return the histories that differ from the rebuilt ones, or lengths if only old ones are gone.

    Raises UsageError if one cannot be stored.
    """
    pairs: dict[str, Any] = {}
    for name in current["pairs"].keys() | rebuilt["pairs"].keys():
        by_peer, rebuilt_by_peer = current["pairs"].get(name, {}), rebuilt["pairs"].get(name, {})
        for peer in by_peer.keys() | rebuilt_by_peer.keys():
            messages, where = by_peer.get(peer, []), f"{name!r} remembers of {peer!r}"
            if messages != rebuilt_by_peer.get(peer, []):
                pairs.setdefault(name, {})[peer] = _saved_history(
                    messages, rebuilt_by_peer.get(peer, []), where
                )
    groups = {
        name: _saved_history(messages, rebuilt["groups"][name], f"is in the group of {name!r}")
        for name, messages in current["groups"].items()
        if messages != rebuilt["groups"][name]
    }
    return {"pairs": pairs, "groups": groups}


def _saved_history(messages: list[Any], rebuilt: list[Any], where: str) -> Any:
    """Return a changed history as it is saved: its length if only old messages were dropped."""
    # A history that was cut, as `clear_history` does, needs no copy: the records have the rest.
    if len(messages) < len(rebuilt) and messages == rebuilt[len(rebuilt) - len(messages) :]:
        return len(messages)
    index = next(
        (index for index, message in enumerate(messages) if not is_storable(message)), None
    )
    if index is not None:
        reason = f"what {where} was changed to something that is not JSON"
        raise UsageError(f"{reason}: leave plain messages there", f"$[{index}]")
    return deepcopy(messages)
