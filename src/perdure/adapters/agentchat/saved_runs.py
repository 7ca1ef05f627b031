"""Save a team's state between runs, and the run that is in progress.

Two values. `agentchat.state` is the team's state after its last run, with the run's result. It is
stored in the commit that completes the run's turn, so a run is found again by its turn, and its
result in the version of that commit. `agentchat.run` holds the newest run's turn, its task, and the
version of the state that it starts from. It is set before the turn starts: without its turn it is
no run. Of two runs that start at once the session admits one. A run whose turn is open was
interrupted: it is run again from that version.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

from perdure import AsyncSession, AsyncTurn
from perdure.adapters.agentchat import introspection, team_state
from perdure.adapters.agentchat.introspection import TeamNode
from perdure.adapters.agentchat.messages import (
    Item,
    MessageLoader,
    dump_messages,
    dump_result,
    human_names,
    is_same_task,
    load_result,
    parse_task,
    recipient_of,
    to_chat_messages,
)
from perdure.adapters.agentchat.model_client import request_digest
from perdure.adapters.agentchat.run_log import FINISH_HINT, MODEL_FAILURE
from perdure.adapters.tool_policies import ToolPolicy
from perdure.errors import ConflictError, DivergenceError, NotFoundError, UsageError
from perdure.journal.records import EffectOutcome, Message, Value

STATE_KEY = "agentchat.state"
RUN_KEY = "agentchat.run"

ORIGIN = "autogen_agentchat"  # Origin of the messages of a run.

# Prefixes of run ids, which are turn ids: the rest was chosen by the caller, or generated.
CALLER_RUN_PREFIX, GENERATED_RUN_PREFIX = "agentchat:", "agentchat."


class StartedRun(NamedTuple):
    """A started run; `recorded` has its turn's existing messages by author, oldest first."""

    turn: AsyncTurn | None
    version: int
    task: list[Any]
    recorded: Mapping[str, deque[Item]]
    order: tuple[str, ...] = ()
    failed: Mapping[str, str] = MappingProxyType({})
    result: Any = None


class SavedRuns:
    """The saved state and runs of one team in a session."""

    def __init__(self, session: AsyncSession, root: TeamNode) -> None:
        self._session = session
        self._root = root
        self.messages = MessageLoader(session.id, root)
        self._humans = human_names([node.component for node in root.all])
        self._version: int | None = None  # Version of the team's state; None if unknown.
        self._last_state: team_state.TeamState = {}
        self._original_state: team_state.TeamState = {}  # Before this session was attached.
        self._run: dict[str, Any] | None = None  # The value of `RUN_KEY` for the newest run.

    @property
    def interrupted(self) -> str | None:
        """The task of an interrupted run, as text."""
        if self._run is None or self._open_turn() is None:
            return None
        return self.messages.text(self._run["task"])

    def _open_turn(self) -> AsyncTurn | None:
        turns = self._session.interrupted
        return next(
            (
                turn
                for turn in turns
                if turn.id.startswith((CALLER_RUN_PREFIX, GENERATED_RUN_PREFIX))
            ),
            None,
        )

    async def _load_interrupted(self) -> AsyncTurn | None:
        """Return the turn of an interrupted run, and load what was recorded about the run."""
        turn = self._open_turn()
        self._run = await self._stored_run(turn.id) if turn is not None else None
        return turn

    async def _stored_run(self, turn: str) -> dict[str, Any] | None:
        """Return the data stored for a run before its turn started.

        Another process that started at the same time may have stored a newer version, and then
        given way.
        """
        for version in range(self._stored_version(RUN_KEY), 0, -1):
            run: dict[str, Any] = await self._session.get(RUN_KEY, version=version)
            if run["turn"] == turn:
                return run
        return None

    def _stored_version(self, key: str = STATE_KEY) -> int:
        """Return the version of a value in this view of the session; 0 if there is none."""
        values = self._session.values
        return values.version(key) if key in values.keys() else 0  # noqa: SIM118 - a method

    async def restore(self) -> None:
        """Restore the team to the session's state; UsageError if that is another team's."""
        # The caller's objects are given back as they came: see `restore_original`.
        self._original_state = await team_state.save_state(self._root)
        turn, version = await self._load_interrupted(), self._stored_version()
        if version == 0:
            if len(self._session):
                reason = (
                    f"{self._session.id!r} holds a conversation that is not an AgentChat team's"
                )
                raise UsageError(f"{reason}: use another session")
            self._version, self._last_state = 0, self._original_state
            return
        stored = await self._session.get(STATE_KEY)
        introspection.require_shape(self._session.id, stored["team"], self._root)
        if turn is None:  # Otherwise the run that resumes loads the state it started from.
            await self._load(stored)
            self._version = version

    async def _load(self, stored: team_state.TeamState) -> None:
        try:
            await team_state.load_state(self._root, stored)
        except (ValueError, KeyError) as error:  # pydantic's ValidationError is a ValueError.
            reason = f"the state saved in {self._session.id!r} does not fit the team"
            raise UsageError(f"{reason}: pass the same team, or use another session") from error
        self._last_state = await team_state.save_state(self._root)

    async def require_tools(self, policies: Mapping[str, ToolPolicy]) -> None:
        """Raise UsageError for policies of tools that do not exist."""
        available = {name for names in (await self._tools()).values() for name in names}
        available |= {node.component.name for node in self._root.observed if node.opaque}
        if unknown := sorted(policies.keys() - available):
            listed = ", ".join(sorted(available))
            raise UsageError(f"no tool is called {unknown[0]!r}: there are {listed}")

    async def _require_same_tools(self, recorded: Mapping[str, list[str]]) -> None:
        current = await self._tools()
        for path, names in recorded.items():
            if missing := [name for name in names if name not in current.get(path, ())]:
                reason = f"{path!r} no longer has the tool {missing[0]!r} of an interrupted run"
                raise UsageError(f"{reason}: add the tool, or abandon() the run")

    async def _tools(self) -> dict[str, list[str]]:
        return {
            node.path: [tool["name"] for bench in benches for tool in await bench.list_tools()]
            for node in self._root.observed
            if (benches := introspection.node_workbenches(node))
        }

    async def save_changes(self) -> None:
        """Save changes made by hand since the last run, if no run is interrupted."""
        # With an unknown version, the team is as a stopped run left it: nothing to save.
        if self._version is None or await team_state.save_state(self._root) == self._last_state:
            return
        position = await self._session.refresh()
        if self._open_turn() is not None or self._stored_version() != self._version:
            reason = "the team ran in another process, and changes made here are not saved"
            raise ConflictError(self._session.id, position, position, reason)
        await self._current_version()

    async def restore_original(self) -> None:
        """Restore the team's state from before this session was attached."""
        await team_state.load_state(self._root, self._original_state)

    async def begin(self, task: Any, id: str | None) -> StartedRun:
        """Start a run, or resume the interrupted one. On return its task is durable."""
        messages = parse_task(task)
        await self._session.refresh()
        finished = await self._finished(id, messages) if id is not None else None
        if finished is not None:
            return finished
        turn = await self._load_interrupted()
        if turn is not None:
            return await self._resume(turn, self._run, messages, id)
        return await self._begin(messages, id, await self._current_version())

    async def _finished(self, id: str, messages: list[Any]) -> StartedRun | None:
        """Return a finished run with its result, however long ago it was; None if there is none."""
        try:
            turn = await self._session.find_turn(CALLER_RUN_PREFIX + id)
        except NotFoundError:
            return None
        if turn.state == "abandoned":
            raise UsageError(f"the run {id!r} was abandoned: choose another id")
        if turn.state != "completed":
            return None
        version = await self._version_of(turn)
        stored = await self._session.get(STATE_KEY, version=version)
        task, result = load_result(stored["result"], self.messages)
        if messages and not is_same_task(dump_messages(task), dump_messages(messages)):
            digests = [request_digest(one, {}) for one in (task, messages)]
            raise DivergenceError(self._session.id, id, *digests)
        return StartedRun(None, version, task, {}, result=result)

    async def _version_of(self, turn: AsyncTurn) -> int:
        """Return the version of the state that was stored with the end of a run's turn."""
        version, kinds = 0, ("value", "turn.completed")
        async for record in self._session.records(after=turn.branch_point, kinds=kinds):
            content = record.content
            if isinstance(content, Value) and content.key == STATE_KEY:
                version = content.version
            elif content.subject == turn.id:
                break
        return version

    async def _current_version(self) -> int:
        """Return the newest version of the state, after loading it or saving the team's changes."""
        newest = self._stored_version()
        stored = await self._session.get(STATE_KEY, {"run": "", "result": None})
        if self._version != newest:  # Another process ran the team, or a run was stopped here.
            introspection.require_shape(self._session.id, stored["team"], self._root)
            await self._load(stored)
            self._version = newest
            return newest
        current = await team_state.save_state(self._root)
        if newest and current == self._last_state:
            return newest
        saved = self._state_value(stored["run"], current, stored["result"])
        self._version = await self._session.set(STATE_KEY, saved)
        self._last_state = current
        return self._version

    def _state_value(self, run: str, current: team_state.TeamState, result: Any) -> dict[str, Any]:
        return {"run": run, "result": result, "team": introspection.shape(self._root), **current}

    async def _begin(self, task: list[Any], id: str | None, version: int) -> StartedRun:
        task_items = [to_chat_messages(message, self._humans) for message in task]
        first = task_items[0][0] if task_items else None
        author = task[0].source if task else ""
        turn_id = GENERATED_RUN_PREFIX + uuid4().hex if id is None else CALLER_RUN_PREFIX + id
        turn = self._session.turn(first, author=author, id=turn_id)
        self._run = {
            "turn": turn_id,
            "task": dump_messages(task),
            "state": version,
            "tools": await self._tools(),
        }
        await self._session.set(RUN_KEY, self._run)  # Before the turn: see the module.
        await turn.__aenter__()
        if turn.ended:
            await turn.__aexit__(None, None, None)
            position = self._session.position
            reason = "another process has finished the run"
            raise ConflictError(self._session.id, position, position, reason)
        if self._stored_version() != version:  # Changed by hand after `version` was read.
            version = await self._current_version()
            self._run = {**self._run, "state": version}
            await self._session.set(RUN_KEY, self._run)
        recorded: dict[str, deque[Item]] = defaultdict(deque)
        if first is not None:
            recorded[author].append(first)
        return StartedRun(turn, version, task, recorded)

    async def _resume(
        self, turn: AsyncTurn, run: dict[str, Any] | None, messages: list[Any], id: str | None
    ) -> StartedRun:
        if run is None:
            raise UsageError("nothing is recorded about the interrupted run: abandon() it")
        if (messages and not is_same_task(run["task"], dump_messages(messages))) or (
            id is not None and CALLER_RUN_PREFIX + id != turn.id
        ):
            reason = "a run with another task was interrupted"
            raise UsageError(f"{reason}: run without a task to resume it, or abandon() it")
        await self._require_same_tools(run["tools"])
        stored = await self._session.get(STATE_KEY, version=run["state"])
        task = messages or self.messages.load(run["task"])
        recorded: dict[str, deque[Item]] = defaultdict(deque)
        order: list[str] = []
        failed: dict[str, str] = {}
        async for entry in self._session.records(after=turn.branch_point):
            content: Any = entry.content
            if getattr(content, "turn", "") != turn.id:
                continue
            if isinstance(content, Message) and not content.origin.startswith("perdure:"):
                recorded[content.author].append(content.message)
            elif isinstance(content, EffectOutcome) and isinstance(content.result, dict):
                self.messages.require(content.result)
                # The order in which outcomes were recorded is the order of their replay.
                order += [content.result["by"]] if "by" in content.result else []
                failed |= (
                    content.result.get(MODEL_FAILURE, {}) if content.state == "succeeded" else {}
                )
        await turn.__aenter__()
        try:
            self._version = None
            await self._load(stored)
        except BaseException:
            await turn.suspend()
            raise
        return StartedRun(turn, run["state"], task, recorded, tuple(order), failed)

    async def record_event(self, run: StartedRun, event: Any) -> None:
        """Record an event of a run, unless its turn already has it. On return it is durable."""
        assert run.turn is not None  # noqa: S101 - runs that have a result have no events
        # By author: concurrent agents have no order among each other.
        recorded, new = run.recorded[event.source], []
        for item in to_chat_messages(event, self._humans):
            if not recorded:
                new.append(item)
            elif (previous := recorded.popleft()) != item:
                digests = request_digest((), previous), request_digest((), item)
                name = f"a message of {event.source}"
                raise DivergenceError(self._session.id, name, *digests, hint=FINISH_HINT)
        if new:
            recipient = recipient_of(event)
            await run.turn.append(*new, author=event.source, recipient=recipient, origin=ORIGIN)

    async def finish(self, run: StartedRun, result: Any) -> None:
        """Save the state that a run led to, and complete its turn, in one commit."""
        assert run.turn is not None  # noqa: S101
        current = await team_state.save_state(self._root)
        # A result is needed only where the caller can ask for the run again.
        is_named = run.turn.id.startswith(CALLER_RUN_PREFIX)
        saved_result = dump_result(run.task, result) if is_named else None
        async with run.turn.batch() as batch:
            batch.set(STATE_KEY, self._state_value(run.turn.id, current, saved_result))
            batch.complete()
        self._version, self._last_state = self._stored_version(), current
        await run.turn.__aexit__(None, None, None)

    async def leave(self, run: StartedRun) -> None:
        """Leave a run open: the team's current state is not one to continue from."""
        self._version = None
        introspection.reset_runtimes(self._root)  # A stopped runtime has undelivered messages.
        if run.turn is not None and not run.turn.ended:
            await run.turn.suspend()

    async def abandon(self, reason: str) -> None:
        """Abandon the interrupted run."""
        await self._session.refresh()
        turn = self._open_turn()
        if turn is None:
            raise UsageError("no run was interrupted: there is nothing to abandon")
        await turn.abandon(reason)
        self._version = None
        if self._stored_version():
            await self._current_version()
