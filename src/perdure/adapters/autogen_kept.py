"""What a session holds of its chats besides what was said: which began, and what agents knew."""

from typing import Any

from perdure import Session, Turn, UsageError, VersionError
from perdure.adapters.autogen_openings import Opening
from perdure.adapters.autogen_record import HINT, Spoken, spoken
from perdure.adapters.autogen_state import Agents, State

KEY = "autogen"
FORMAT = 2


class Kept:
    """The session's value of chats. It is written when a chat begins and when it ends."""

    def __init__(self, session: Session, agents: Agents) -> None:
        self._session = session
        self._agents = agents
        self._data: dict[str, Any] = {}
        self._version = 0

    def load(self) -> None:
        self._session.refresh()
        self._data = self._session.get(KEY) or {}
        self._version = self._newest()
        found = self._data.get("format", FORMAT)
        if isinstance(found, int) and found < FORMAT:
            reason = f"the AutoGen chat was kept in format {found}, which is not read any more"
            raise UsageError(f"{reason}: go on with the perdure that kept it, or in a new session")
        if found != FORMAT:
            raise VersionError("the AutoGen chat", str(found), str(FORMAT))

    def moved(self) -> bool:
        """Whether a chat began or ended in another process since this was read."""
        self._session.refresh()
        return self._newest() != self._version

    def _newest(self) -> int:
        values = self._session.values
        return values.version(KEY) if KEY in values.keys() else 0  # noqa: SIM118 - a method

    def settle(self) -> None:
        """End the turn of a chat that had ended when its process died."""
        for turn in self._session.interrupted:
            if self.run is None and turn.id == self.turn_id:
                with turn:
                    pass

    @property
    def run(self) -> Opening | None:
        """How the chat began that is open; None if none is."""
        found: Opening | None = self._data.get("run")
        return found

    @property
    def finished(self) -> int:
        return int(self._data.get("finished", 0))

    @property
    def state(self) -> State:
        found: State = self._data.get("state", {})
        return found

    @property
    def turn_id(self) -> str:
        return f"{KEY}:{self._data.get('begun', 0)}"

    @property
    def chat(self) -> str:
        """Which chat is open, or was last, of all sessions' chats."""
        return f"{self._session.id} {self.turn_id}"

    def turn(self) -> Turn:
        return self._session.turn(id=self.turn_id)

    def require_same(self, said: list[Spoken], others: int) -> None:
        """Raise UsageError unless the session holds a chat of these agents, or nothing yet."""
        names, id = {*self._agents.by_name}, self._session.id
        if others or (len(self._session) and not said and not self._data):
            reason = f"{id!r} holds a conversation that is not one of AutoGen agents"
            raise UsageError(f"{reason}: take another session, or import it first")
        spoke = {name for one in said for name in (one.author, one.recipient)}
        missing = sorted((spoke | {*self._data.get("agents", [])}) - names)
        if missing:
            reason = f"{id!r} holds a chat of {', '.join(missing)}, who are not among the agents"
            raise UsageError(f"{reason}: give agents of the same names, or another session")
        self._require_names()
        for name, members in self._data.get("groups", {}).items():
            self._require_group(name, members)
        if self.run is not None:
            self._require_tools()
            self._require_kinds()

    def _require_names(self) -> None:
        """Raise UsageError if an agent has the name of another: what it knew would be the other's.

        Instructions may change, and agents may become others. But one that is what another was,
        who is not any more, was given its name.
        """
        kinds = self._data.get("kinds", {})
        before = {name: [*kind, self._given(name)] for name, kind in kinds.items()}
        now = {
            name: [*_kind(self._agents.by_name[name]), self._agents.given[name]] for name in before
        }
        others = [name for name in before if now[name] != before[name]]
        for name in others:
            was = next((one for one in others if before[one] == now[name]), None)
            if was is not None:
                reason = f"the agent {name!r} is what {was!r} was in {self._session.id!r}"
                hint = "give the agents the names that they had, or take another session"
                raise UsageError(f"{reason}, and {was!r} is another: {hint}")

    def _require_group(self, name: str, members: list[str]) -> None:
        manager = self._agents.by_name[name]
        if manager not in [*self._agents.groups]:
            reason = f"{name!r} is a group's manager in {self._session.id!r}"
            raise UsageError(f"{reason}: give a GroupChatManager of that name")
        now = [agent.name for agent in manager.groupchat.agents]
        gone = [member for member in members if member not in now]
        if gone:
            reason = f"{gone[0]!r} is in the group of {name!r} in {self._session.id!r}"
            raise UsageError(f"{reason}, and not in the one given: give the same agents")
        if self.run is not None and now != members:
            reason = f"the group of {name!r} was {', '.join(members)} when its chat was interrupted"
            raise UsageError(f"{reason}, and is {', '.join(now)}: {HINT}")

    def _require_tools(self) -> None:
        for name, before in self._data.get("tools", {}).items():
            gone = sorted({*before} - {*self._agents.by_name[name].function_map})
            if gone:
                reason = f"{name!r} had a tool {gone[0]!r} when its chat was interrupted"
                raise UsageError(f"{reason}, and has it no more: {HINT}")

    def _require_kinds(self) -> None:
        """Raise UsageError if an agent would be asked, or answer, otherwise than it was and did."""
        for name, (_, with_model) in self._data.get("kinds", {}).items():
            agent = self._agents.by_name[name]
            reason = ""
            if with_model and agent.client is None:
                reason = f"{name!r} had a model when its chat was interrupted, and has none now"
            elif with_model and self._given(name) != self._agents.given[name]:
                reason = f"{name!r} was given other instructions when its chat was interrupted"
            if reason:
                raise UsageError(f"{reason}: {HINT}")

    def _given(self, name: str) -> Any:
        return self.state.get("system", {}).get(name, {}).get("given")

    def begin(self, opening: Opening) -> None:
        """Record that a chat begins; who takes part, and what they know."""
        agents = self._agents
        self._set(
            format=FORMAT,
            agents=[agent.name for agent in agents],
            groups={one.name: [a.name for a in one.groupchat.agents] for one in agents.groups},
            kinds={agent.name: _kind(agent) for agent in agents},
            tools={agent.name: sorted(agent.function_map) for agent in agents},
            begun=self._data.get("begun", 0) + 1,
            run=opening,
            state=self._state(),
        )

    def finish(self) -> None:
        self._set(run=None, finished=self.finished + 1, state=self._state())

    def save(self) -> None:
        """Record what the agents know now, unless a chat is open: it began with what they knew."""
        if self.run is None:
            self._set(format=FORMAT, state=self._state())

    def abandon(self, reason: str) -> None:
        for turn in self._session.interrupted:
            if turn.id == self.turn_id:
                turn.abandon(reason)
        self._set(run=None)

    def _state(self) -> State:
        heard = self._agents.heard(lambda after: spoken(self._session, after)[0])
        return {"heard": heard, **self._agents.capture()}

    def _set(self, **changes: Any) -> None:
        data = {**self._data, **changes}
        self._version = self._session.set(KEY, data)
        self._data = data


def _kind(agent: Any) -> list[Any]:
    """Return what an agent is besides what it is told: of which class, and if with a model."""
    return [type(agent).__name__, agent.client is not None]
