"""Save the chats' state in a session value: how the open chat started, and the agents' state.

The value is written when a chat starts and when it ends. Messages are not in it: the agents'
histories are rebuilt from the records. Checks here refuse agents that do not match the recorded
ones before anything has changed. The keys of the value are a stored format: see `FORMAT`.
"""

from typing import Any

from perdure import Session, Turn
from perdure.adapters.autogen.agent_state import AgentsState, ChatAgents
from perdure.adapters.autogen.openings import Opening
from perdure.adapters.autogen.recorder import RESUME_HINT, AgentMessage, read_agent_messages
from perdure.errors import UsageError, VersionError

KEY = "autogen"  # Name of the session value, and prefix of the turns' ids.

FORMAT = 2  # Increased when the keys of the value, or of the agents' state, change their meaning.


class SavedChat:
    """The session's saved chat state. It is written when a chat starts and when it ends."""

    def __init__(self, session: Session, agents: ChatAgents) -> None:
        self._session = session
        self._agents = agents
        self._data: dict[str, Any] = {}
        self._version = 0  # Of the session value; 0 if there is none.

    def load(self) -> None:
        """Read the saved state; UsageError or VersionError if its format is not the current one."""
        self._session.refresh()
        self._data = self._session.get(KEY) or {}
        self._version = self._stored_version()
        format = self._data.get("format", FORMAT)
        if isinstance(format, int) and format < FORMAT:
            reason = f"the AutoGen chat was saved in format {format}, which is no longer read"
            raise UsageError(f"{reason}: use the perdure that saved it, or a new session")
        if format != FORMAT:
            raise VersionError("the AutoGen chat", str(format), str(FORMAT))

    def is_stale(self) -> bool:
        """Return whether another process started or ended a chat since this was read."""
        self._session.refresh()
        return self._stored_version() != self._version

    def _stored_version(self) -> int:
        values = self._session.values
        return values.version(KEY) if KEY in values.keys() else 0  # noqa: SIM118 - a method

    def end_finished_turn(self) -> None:
        """End the turn of a chat that had ended when its process died."""
        # `finish` writes the value first: from there on the chat has ended.
        for turn in self._session.interrupted:
            if self.open_chat is None and turn.id == self.turn_id:
                with turn:
                    pass

    @property
    def open_chat(self) -> Opening | None:
        """How the open chat started; None if none is open."""
        opening: Opening | None = self._data.get("run")
        return opening

    @property
    def finished(self) -> int:
        return int(self._data.get("finished", 0))

    @property
    def state(self) -> AgentsState:
        state: AgentsState = self._data.get("state", {})
        return state

    @property
    def turn_id(self) -> str:
        return f"{KEY}:{self._data.get('begun', 0)}"

    @property
    def chat_id(self) -> str:
        """An id of the open or last chat, unique among all sessions."""
        return f"{self._session.id} {self.turn_id}"

    def turn(self) -> Turn:
        return self._session.turn(id=self.turn_id)

    def require_same_agents(self, messages: list[AgentMessage], others: int) -> None:
        """Raise UsageError unless the session is empty or holds a chat of these agents."""
        names, id = {*self._agents.by_name}, self._session.id
        if others or (len(self._session) and not messages and not self._data):
            reason = f"{id!r} holds a conversation that is not one of AutoGen agents"
            raise UsageError(f"{reason}: use another session, or import it first")
        speakers = {name for message in messages for name in (message.author, message.recipient)}
        missing = sorted((speakers | {*self._data.get("agents", [])}) - names)
        if missing:
            reason = f"{id!r} holds a chat of {', '.join(missing)}, not among the given agents"
            raise UsageError(f"{reason}: pass agents of the same names, or use another session")
        self._require_names()
        for name, members in self._data.get("groups", {}).items():
            self._require_group(name, members)
        if self.open_chat is not None:  # Between chats, tools and models may change.
            self._require_tools()
            self._require_kinds()

    def _require_names(self) -> None:
        """Raise UsageError if two agents have swapped names: each would get the other's history.

        Instructions may change, and agents may be replaced. But an agent that equals what another
        was recorded as, while that one has changed too, was given the wrong name.
        """
        kinds = self._data.get("kinds", {})
        recorded = {
            name: [*kind, self._recorded_instructions(name)] for name, kind in kinds.items()
        }
        current = {
            name: [*_agent_kind(self._agents.by_name[name]), self._agents.configured[name]]
            for name in recorded
        }
        changed = [name for name in recorded if current[name] != recorded[name]]
        for name in changed:
            previous = next((other for other in changed if recorded[other] == current[name]), None)
            if previous is not None:
                reason = f"agents {name!r} and {previous!r} seem to have swapped names"
                since = f"since session {self._session.id!r} was recorded"
                raise UsageError(f"{reason} {since}: use the recorded names or a new session")

    def _require_group(self, name: str, members: list[str]) -> None:
        """Raise UsageError if a recorded group is not among the agents, or has lost a member."""
        manager = self._agents.by_name[name]
        if manager not in [*self._agents.groups]:
            reason = f"{name!r} is a group's manager in {self._session.id!r}"
            raise UsageError(f"{reason}: pass a GroupChatManager of that name")
        current = [agent.name for agent in manager.groupchat.agents]
        missing = [member for member in members if member not in current]
        if missing:
            reason = f"{missing[0]!r} is in the group of {name!r} in {self._session.id!r}"
            raise UsageError(f"{reason}, and not in the given one: pass the same agents")
        if self.open_chat is not None and current != members:
            reason = f"the group of {name!r} was {', '.join(members)} when its chat was interrupted"
            raise UsageError(f"{reason}, and is {', '.join(current)}: {RESUME_HINT}")

    def _require_tools(self) -> None:
        """Raise UsageError if a tool of the open chat is missing."""
        for name, recorded in self._data.get("tools", {}).items():
            missing = sorted({*recorded} - {*self._agents.by_name[name].function_map})
            if missing:
                reason = f"{name!r} had a tool {missing[0]!r} when its chat was interrupted"
                raise UsageError(f"{reason}, and no longer has it: {RESUME_HINT}")

    def _require_kinds(self) -> None:
        """Raise UsageError if an agent lacks its model or has other instructions than recorded."""
        for name, (_, with_model) in self._data.get("kinds", {}).items():
            agent = self._agents.by_name[name]
            reason = ""
            if with_model and agent.client is None:
                reason = f"{name!r} had a model when its chat was interrupted, and has none now"
            elif with_model and self._recorded_instructions(name) != self._agents.configured[name]:
                reason = f"{name!r} was given other instructions when its chat was interrupted"
            if reason:
                raise UsageError(f"{reason}: {RESUME_HINT}")

    def _recorded_instructions(self, name: str) -> Any:
        return self.state.get("system", {}).get(name, {}).get("configured")

    def begin(self, opening: Opening) -> None:
        """Record that a chat starts, with its agents and their state."""
        agents = self._agents
        self._set(
            format=FORMAT,
            agents=[agent.name for agent in agents],
            groups={
                manager.name: [member.name for member in manager.groupchat.agents]
                for manager in agents.groups
            },
            kinds={agent.name: _agent_kind(agent) for agent in agents},
            tools={agent.name: sorted(agent.function_map) for agent in agents},
            begun=self._data.get("begun", 0) + 1,
            run=opening,
            state=self._state(),  # From which it resumes after a crash.
        )

    def finish(self) -> None:
        """Record that the open chat ended, with the agents' state."""
        self._set(run=None, finished=self.finished + 1, state=self._state())

    def save(self) -> None:
        """Save the agents' state, unless a chat is open: that resumes from its starting state."""
        if self.open_chat is None:
            self._set(format=FORMAT, state=self._state())

    def abandon(self, reason: str) -> None:
        """Abandon the turn of the open chat, and record that no chat is open."""
        for turn in self._session.interrupted:
            if turn.id == self.turn_id:
                turn.abandon(reason)
        self._set(run=None)

    def _state(self) -> AgentsState:
        histories = self._agents.changed_histories(
            lambda after: read_agent_messages(self._session, after)[0]
        )
        return {"histories": histories, **self._agents.capture()}

    def _set(self, **changes: Any) -> None:
        data = {**self._data, **changes}
        # In this order: after a failed write the last stored data is still current.
        self._version = self._session.set(KEY, data)
        self._data = data


def _agent_kind(agent: Any) -> list[Any]:
    """Return an agent's class name, and whether it has a model."""
    return [type(agent).__name__, agent.client is not None]
