"""What agents remember of what was said, as it follows from the record.

Stand-ins hear the recorded messages, through the framework's own code, which gives each side its
roles and names. The agents do not: their classes, hooks and terminals would take it for something
new.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from perdure import UsageError
from perdure.adapters.autogen_names import framework
from perdure.adapters.autogen_openings import storable
from perdure.adapters.autogen_record import INSTEAD, Spoken

CLOSED = "autogen:closed"  # The origin of what answers a call in place of its result.

Histories = dict[str, Any]
"""`pairs`, what each agent knows of each other, and `groups`, what is in each; by their names."""

_PLAIN = {"llm_config": False, "human_input_mode": "NEVER", "code_execution_config": False}


class Hearing:
    """Agents of the same names, and groups, that remember what they are told here."""

    def __init__(self, names: Iterable[str], members: Mapping[str, list[str]]) -> None:
        autogen = framework()
        self.members = {name: [*among] for name, among in members.items()}
        self.after = 0
        self._agents = {name: autogen.ConversableAgent(name, **_PLAIN) for name in names}
        self._groups = {
            name: autogen.GroupChat(agents=[self._agents[one] for one in among], messages=[])
            for name, among in members.items()
        }
        self._passing: dict[str, _Passing] = {}

    def put(self, histories: Histories) -> None:
        """Have the stand-ins remember these lists, which are theirs from now on.

        Where a number stands for a list, they remember so many of the newest messages.
        """
        for name, known in histories["pairs"].items():
            lists = self._agents[name].chat_messages
            for peer, said in known.items():
                lists[self._agents[peer]] = _newest(said, lists[self._agents[peer]])
        for name, said in histories["groups"].items():
            group = self._groups[name]
            group.messages = _newest(said, group.messages)

    def histories(self) -> Histories:
        """Return what they remember; those who remember nothing of each other are left out."""
        pairs = {
            name: {peer.name: said for peer, said in agent.chat_messages.items() if said}
            for name, agent in self._agents.items()
        }
        groups = {name: group.messages for name, group in self._groups.items()}
        return {"pairs": {name: one for name, one in pairs.items() if one}, "groups": groups}

    def hear(self, said: Iterable[Spoken]) -> None:
        """Have chats be heard that have ended; managers pass on what they were told."""
        turn = ""
        for one in said:
            if one.turn != turn:
                self._pass_on(*self._passing)
            self._take(one)
            self.after, turn = one.position, one.turn
        self._pass_on(*self._passing)

    def _take(self, one: Spoken) -> None:
        if one.origin == INSTEAD and one.author in self._passing:
            self._passing[one.author].instead[one.recipient] = one.message
            return
        if one.recipient in self._passing:  # Not before: introductions come between.
            self._pass_on(one.recipient)
        speaker, recipient = self._agents[one.author], self._agents[one.recipient]
        _hand_over(speaker, dict(one.message), recipient)
        if one.recipient in self._groups:
            group = self._groups[one.recipient]
            self._passing[one.recipient] = _Passing(recipient, group, speaker, one.origin)

    def _pass_on(self, *managers: str) -> None:
        for name in managers:
            self._passing.pop(name).on()


class _Passing:
    """What a manager was told and is to pass on, or what it tells some in its place."""

    def __init__(self, manager: Any, group: Any, speaker: Any, origin: str) -> None:
        self._manager = manager
        self._group = group
        self._speaker = speaker
        self._closes = origin == CLOSED
        self._message = manager.last_message(speaker)
        self.instead: dict[str, Any] = {}

    def on(self) -> None:
        if self._concerns(self._group.messages):
            self._group.append(self._message, self._speaker)
        for agent in self._group.agents:
            if agent is not self._speaker and self._concerns(agent.chat_messages[self._manager]):
                message = self.instead.get(agent.name, self._message)
                _hand_over(self._manager, message, agent)

    def _concerns(self, said: list[dict[str, Any]]) -> bool:
        """Whether it belongs there: what closes a call does where that was heard."""
        return not self._closes or ends_on_calls(said)


def ends_on_calls(said: list[dict[str, Any]] | None) -> bool:
    """Whether the last of some messages calls tools, which nobody has answered yet."""
    return bool(said and said[-1].get("tool_calls"))


def _hand_over(speaker: Any, message: Any, recipient: Any) -> None:
    speaker.send(message, recipient, request_reply=False, silent=True)


def _newest(said: Any, heard: list[Any]) -> Any:
    return heard[len(heard) - said :] if isinstance(said, int) else said


def changed(now: Histories, heard: Histories) -> Histories:
    """Return the histories that are not what was heard, or as numbers if they lack its beginning.

    Raises UsageError if one can not be kept.
    """
    pairs: dict[str, Any] = {}
    for name in now["pairs"].keys() | heard["pairs"].keys():
        known, was = now["pairs"].get(name, {}), heard["pairs"].get(name, {})
        for peer in known.keys() | was.keys():
            said, where = known.get(peer, []), f"{name!r} remembers of {peer!r}"
            if said != was.get(peer, []):
                pairs.setdefault(name, {})[peer] = _kept(said, was.get(peer, []), where)
    groups = {
        name: _kept(said, heard["groups"][name], f"is in the group of {name!r}")
        for name, said in now["groups"].items()
        if said != heard["groups"][name]
    }
    return {"pairs": pairs, "groups": groups}


def _kept(said: list[Any], heard: list[Any], where: str) -> Any:
    if len(said) < len(heard) and said == heard[len(heard) - len(said) :]:
        return len(said)
    at = next((at for at, one in enumerate(said) if not storable(one)), None)
    if at is not None:
        reason = f"what {where} was changed to something that JSON can not say"
        raise UsageError(f"{reason}: leave plain messages there", f"$[{at}]")
    return deepcopy(said)
