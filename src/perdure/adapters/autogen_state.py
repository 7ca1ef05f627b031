"""What agents know at the end of a chat, as data, and how they are made to know it again.

Their histories follow from the recorded messages: see `autogen_hearing`. Those that do not, because
somebody changed them, are kept as they are, and so is everything else, which is small.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from perdure.adapters.autogen_hearing import CLOSED, Hearing, changed, ends_on_calls
from perdure.adapters.autogen_models import set_usage, usage_of
from perdure.adapters.autogen_names import human_inputs, reply_counts
from perdure.adapters.autogen_record import Groups, Spoken, digest
from perdure.adapters.autogen_variables import Variables

HOOKS = "process_message_before_send"
A_HOOKS = "a_process_message_before_send"  # From 0.2.36 on, before 0.3: those of async code.
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
        self._heard = Hearing(self.by_name, self._members())
        self._kept: State | None = None
        self._seen: State = {}

    def __iter__(self) -> Iterator[Any]:
        return iter(self.by_name.values())

    def histories(self) -> dict[str, Any]:
        """Return all that the agents remember of each other, and the groups of themselves."""
        pairs = {
            agent.name: {
                peer.name: agent.chat_messages[peer]
                for peer in self
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
        self._seen = self._known()
        return {**self._seen, "variables": self.variables.capture()}

    def _known(self) -> State:
        return {
            "replies": {agent.name: self._named(reply_counts(agent)) for agent in self},
            "replying": {agent.name: self._named(agent.reply_at_receive) for agent in self},
            "system": {
                agent.name: {"given": self.given[agent.name], "now": agent.system_message}
                for agent in self
            },
            "human": {agent.name: [*human_inputs(agent)] for agent in self},
            "usage": {agent.name: usage_of(agent.client) for agent in self if agent.client},
        }

    def are_changed(self) -> bool:
        """Whether agents know something else than was captured, or restored, last."""
        return self.have_other_histories() or self._known() != self._seen

    def have_other_histories(self) -> bool:
        return self.histories() != self._heard.histories()

    def _named(self, by_agent: Mapping[Any, Any]) -> dict[str, Any]:
        names = {id(agent): agent.name for agent in self}
        return {names[id(peer)]: value for peer, value in by_agent.items() if id(peer) in names}

    def hear(self, said: list[Spoken], state: State) -> None:
        """Make the agents remember what they did, of what was said and besides."""
        heard = state.get("heard", {"groups": self._members(), "kept": None})
        self._kept = heard["kept"]
        self._heard = self._listen(said, heard["groups"])
        found = deepcopy(self._heard.histories())  # At once: groups and managers share messages.
        for agent in self:
            known = found["pairs"].get(agent.name, {})
            for peer in self:
                agent.chat_messages[peer] = known.get(peer.name, [])
        for manager in self.groups:  # The framework holds this very list, too.
            manager.groupchat.messages[:] = found["groups"].get(manager.name, [])

    def heard(self, said: Callable[[int], list[Spoken]]) -> State:
        """Return which of the agents' histories do not follow from what was said, and are kept.

        `said` gives what was said after a position.
        Somebody may have changed them, and not every manager passes on what it was told.
        """
        now, members = self.histories(), self._members()
        self._heard.hear(said(self._heard.after))
        if members != self._heard.members or now != self._heard.histories():
            self._kept = None
            self._heard = self._listen(said(0), members)
            others = changed(now, self._heard.histories())
            if others["pairs"] or others["groups"]:
                self._kept = {"after": self._heard.after, **others}
                self._heard.put(deepcopy(others))
        return {"groups": members, "kept": self._kept}

    def _members(self) -> dict[str, list[str]]:
        return {one.name: [agent.name for agent in one.groupchat.agents] for one in self.groups}

    def _listen(self, said: list[Spoken], members: dict[str, list[str]]) -> Hearing:
        """Return what follows from what was said, and from histories that are kept since then."""
        found = Hearing(self.by_name, {**{one.name: [] for one in self.groups}, **members})
        after = self._kept["after"] if self._kept is not None else 0
        found.hear([one for one in said if one.position <= after])
        if self._kept is not None:
            found.put(deepcopy(self._kept))
        found.hear([one for one in said if one.position > after])
        return found

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

    def open_calls(self, said: list[Spoken]) -> Iterator[Spoken]:
        """Yield the answers that close calls which a chat ended on: models refuse to go on else."""
        last: dict[frozenset[str], Spoken] = {}
        managers = {manager.name for manager in self.groups}
        for one in said:
            talk = {one.author, one.recipient}
            last[frozenset(talk & managers or talk)] = one
        for one in last.values():
            author, recipient = self.by_name[one.author], self.by_name[one.recipient]
            calls = one.message.get("tool_calls")
            if calls and ends_on_calls(recipient.chat_messages.get(author)):
                closing, to = self._closing(author, recipient)
                yield Spoken(0, "", closing.name, to.name, CLOSED, _closing(calls))

    def _closing(self, author: Any, recipient: Any) -> tuple[Any, Any]:
        """Return who answers a call, and whom: in a group, somebody to whom it was passed on."""
        for agent in recipient.groupchat.agents if recipient in [*self.groups] else ():
            if agent is not author and ends_on_calls(agent.chat_messages.get(recipient)):
                return agent, recipient
        return recipient, author

    def close(self, one: Spoken) -> None:
        """Have the agents hear what closes a call."""
        hearing = Hearing(self.by_name, self._members())
        pairs = {agent.name: {one.name: agent.chat_messages[one] for one in self} for agent in self}
        groups = {manager.name: manager.groupchat.messages for manager in self.groups}
        hearing.put({"pairs": pairs, "groups": groups})
        hearing.hear([one])

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
        self._seen = self._known()
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
