"""What agents know at the end of a chat, as data, and how they are made to know it again.

Their histories are made from the recorded messages, by sending them once more without asking for
answers: that gives each side its own roles and names. Everything else is small, and kept as it is.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from perdure.adapters.autogen_models import set_usage, usage_of
from perdure.adapters.autogen_names import human_inputs, reply_counts
from perdure.adapters.autogen_record import INSTEAD, Groups, Spoken, digest
from perdure.adapters.autogen_variables import Variables

HOOKS = "process_message_before_send"
A_HOOKS = "a_process_message_before_send"  # From 0.2.36 on, before 0.3: those of async code.
CLOSED = "autogen:closed"  # The origin of what answers a call in place of its result.
NOT_MADE = "The chat ended before this call was made."

State = dict[str, Any]


class Left(NamedTuple):
    """How an agent was when its chat was left: the same process may give it once more."""

    given: str
    system: str
    chat: str
    heard: str


_left: WeakKeyDictionary[Any, Left] = WeakKeyDictionary()


class Agents:
    """The agents of a chat by name, and the groups among them."""

    def __init__(self, agents: list[Any], groups: Groups) -> None:
        self.by_name = {agent.name: agent for agent in agents}
        self.groups = groups
        self.given = {agent.name: _given(agent) for agent in agents}
        self.variables = Variables(agents)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.by_name.values())

    def peers(self, agent: Any) -> Iterator[Any]:
        return (one for one in self if one is not agent)

    def histories(self) -> dict[str, Any]:
        """Return all that the agents remember of each other, and the groups of themselves."""
        pairs = {
            agent.name: {
                peer.name: agent.chat_messages[peer]
                for peer in self.peers(agent)
                if agent.chat_messages.get(peer)
            }
            for agent in self
        }
        groups = {manager.name: manager.groupchat.messages for manager in self.groups}
        return {"pairs": {name: one for name, one in pairs.items() if one}, "groups": groups}

    def leave(self, chat: str) -> None:
        """Remember how the agents are at the end of a block."""
        heard = digest(self.histories())
        self.variables.leave()
        for agent in self:
            _left[agent] = Left(self.given[agent.name], agent.system_message, chat, heard)

    def are_left(self, chat: str, heard: str) -> bool:
        """Whether the agents remember what they did when a chat was left."""
        known = [_left.get(agent) for agent in self]
        return all(one is not None and (one.chat, one.heard) == (chat, heard) for one in known)

    def instructions(self) -> dict[str, str]:
        """Return the system message of each agent."""
        return {agent.name: agent.system_message for agent in self}

    def instruct(self, instructions: dict[str, str]) -> None:
        for name, text in instructions.items():
            if self.by_name[name].system_message != text:
                self.by_name[name].update_system_message(text)

    def capture(self) -> State:
        """Return what the agents know, other than what was said."""
        histories = self.histories()
        return {
            "lengths": {
                name: {peer: len(said) for peer, said in one.items()}
                for name, one in histories["pairs"].items()
            },
            "group_lengths": {name: len(said) for name, said in histories["groups"].items()},
            "replies": {agent.name: self._named(reply_counts(agent)) for agent in self},
            "replying": {agent.name: self._named(agent.reply_at_receive) for agent in self},
            "system": {
                agent.name: {"given": self.given[agent.name], "now": agent.system_message}
                for agent in self
            },
            "variables": self.variables.capture(),
            "human": {agent.name: [*human_inputs(agent)] for agent in self},
            "usage": {agent.name: usage_of(agent.client) for agent in self if agent.client},
        }

    def _named(self, by_agent: Mapping[Any, Any]) -> dict[str, Any]:
        names = {id(agent): agent.name for agent in self}
        return {names[id(peer)]: value for peer, value in by_agent.items() if id(peer) in names}

    def hear(self, said: list[Spoken], state: State) -> None:
        """Make the agents remember what was said, and let go of what they had let go."""
        with self._quiet():
            for agent in self:
                for peer in self.peers(agent):
                    agent.chat_messages[peer] = []
            for manager in self.groups:
                manager.groupchat.messages.clear()  # The framework holds this very list, too.
            self._say(said)
        self._cut(state)

    def lists(self) -> list[tuple[Any, dict[Any, Any]]]:
        """Return the agents' histories as they are, to be put back."""
        pairs = [(agent, {**agent.chat_messages}) for agent in self]
        groups = [(one.groupchat, {"messages": [*one.groupchat.messages]}) for one in self.groups]
        return [*pairs, *groups]

    @staticmethod
    def put_back(lists: list[tuple[Any, dict[Any, Any]]]) -> None:
        for owner, before in lists:
            if hasattr(owner, "chat_messages"):
                owner.chat_messages.clear()
                owner.chat_messages.update(before)
            else:
                owner.messages[:] = before["messages"]

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Keep hooks from hearing, and terminals from showing, what is said again."""
        before = [(agent, agent.hook_lists[HOOKS], agent.silent) for agent in self]
        try:
            for agent in self:
                agent.hook_lists[HOOKS], agent.silent = [], True
            yield
        finally:
            for agent, hooks, silent in before:
                agent.hook_lists[HOOKS], agent.silent = hooks, silent

    def _say(self, said: list[Spoken]) -> None:
        """Have everything be heard that was said; managers pass on what they were told."""
        passing: dict[str, _Passing] = {}
        groups = {manager.name for manager in self.groups}
        for one in said:
            sender, recipient = self.by_name[one.author], self.by_name[one.recipient]
            if one.origin == INSTEAD and one.author in passing:
                passing[one.author].instead[one.recipient] = one.message
                continue
            if one.recipient in passing:  # Not before: introductions come between.
                passing.pop(one.recipient).on()
            _hand_over(sender, dict(one.message), recipient)
            if one.recipient in groups:
                passing[one.recipient] = _Passing(recipient, sender)
        for left in passing.values():
            left.on()

    def open_calls(self, said: list[Spoken]) -> Iterator[Spoken]:
        """Yield the answers that close calls which a chat ended on: models refuse to go on else."""
        last: dict[frozenset[str], Spoken] = {}
        managers = {manager.name: manager for manager in self.groups}
        for one in said:
            talk = {one.author, one.recipient}
            last[frozenset(talk & {*managers} or talk)] = one
        for one in last.values():
            author, recipient = self.by_name[one.author], self.by_name[one.recipient]
            heard = recipient.chat_messages.get(author)
            calls = one.message.get("tool_calls")
            if calls and heard and heard[-1].get("tool_calls"):
                closing = recipient
                if recipient.name in managers:
                    closing = next(a for a in recipient.groupchat.agents if a is not author)
                to = author if closing is recipient else recipient
                yield Spoken(0, "", closing.name, to.name, CLOSED, _closing(calls))

    def close(self, one: Spoken) -> None:
        """Have the agents hear what closes a call."""
        with self._quiet():
            self._say([one])

    def _cut(self, state: State) -> None:
        """Let go what the agents had let go themselves: histories that were cleared."""
        for name, lengths in state.get("lengths", {}).items():
            histories = self.by_name[name].chat_messages
            for peer in self.peers(self.by_name[name]):
                said = histories[peer]
                del said[: len(said) - lengths.get(peer.name, 0)]
        if "lengths" in state:
            for agent in self:
                if agent.name not in state["lengths"]:
                    for peer in self.peers(agent):
                        agent.chat_messages[peer] = []
        for manager in self.groups:
            messages, length = manager.groupchat.messages, state.get("group_lengths", {})
            del messages[: len(messages) - length.get(manager.name, len(messages))]

    def remember(self, state: State) -> list[tuple[str, str]]:
        """Make the agents know the rest; return what of whom the code has changed."""
        for agent in self:
            for name, count in state.get("replies", {}).get(agent.name, {}).items():
                reply_counts(agent)[self.by_name[name]] = count
            for name, on in state.get("replying", {}).get(agent.name, {}).items():
                agent.reply_at_receive[self.by_name[name]] = on
            human_inputs(agent)[:] = state.get("human", {}).get(agent.name, [])
            usage = state.get("usage", {}).get(agent.name)
            if usage and agent.client:
                set_usage(agent.client, usage)
        given = [("variables", name) for name in self.variables.restore(state.get("variables"))]
        told = [agent.name for agent in self if not self._instruct(agent, state)]
        return [*(("instructions", name) for name in told), *given]

    def _instruct(self, agent: Any, state: State) -> bool:
        """Give an agent the instructions it had, unless the code gives others than it did then."""
        system = state.get("system", {}).get(agent.name)
        if system is None or system["now"] == agent.system_message:
            return True
        if system["given"] != self.given[agent.name]:
            return False
        # Of the class: what a chat has put in its place on the agent saves it.
        type(agent).update_system_message(agent, system["now"])
        return True


def _given(agent: Any) -> str:
    """Return the instructions that the code gave an agent, whatever a chat has made of them."""
    before, now = _left.get(agent), str(agent.system_message)
    return before.given if before is not None and before.system == now else now


def _closing(calls: list[dict[str, Any]]) -> dict[str, Any]:
    answers = [
        {"tool_call_id": call.get("id", ""), "role": "tool", "content": NOT_MADE} for call in calls
    ]
    content = "\n\n".join(NOT_MADE for _ in answers)
    return {"role": "tool", "tool_responses": answers, "content": content}


def _hand_over(sender: Any, message: Any, recipient: Any) -> None:
    # Of the class: what a chat has put in its place on the agent records it.
    type(sender).send(sender, message, recipient, request_reply=False, silent=True)


class _Passing:
    """What a manager was told and is to pass on, or what it tells some in its place."""

    def __init__(self, manager: Any, speaker: Any) -> None:
        self._manager = manager
        self._speaker = speaker
        self._message = manager.last_message(speaker)
        self.instead: dict[str, Any] = {}

    def on(self) -> None:
        group = self._manager.groupchat
        group.append(self._message, self._speaker)
        for agent in group.agents:
            if agent is not self._speaker:
                message = self.instead.get(agent.name, self._message)
                _hand_over(self._manager, message, agent)
