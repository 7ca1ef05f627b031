"""PerdureSession: a session of the Agents SDK, stored as a session of perdure."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from copy import copy
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar
from uuid import uuid4

from agents import Agent, ItemHelpers, Model, RunConfig, Runner, RunState, SessionSettings
from agents.memory.session import _CompactionSnapshot

from perdure import AsyncSession, AsyncStore, AsyncTurn
from perdure.adapters.openai_agents.approvals import (
    find_waiting_run,
    read_decisions,
    record_decisions,
)
from perdure.adapters.openai_agents.items import (
    FORMAT,
    Item,
    SessionItems,
    cut_items,
    is_opaque,
)
from perdure.adapters.openai_agents.models import (
    RecordingHooks,
    RecordingProvider,
    record_agent,
    record_model,
)
from perdure.adapters.openai_agents.replies import RunRecord, read_run
from perdure.adapters.openai_agents.run import AGENT_KEY, DurableRun
from perdure.adapters.openai_agents.tools import current_run, current_scope
from perdure.adapters.tool_policies import PolicyDeclaration, ToolPolicy, require_policies
from perdure.errors import (
    ConflictError,
    DivergenceError,
    NotFoundError,
    PerdureError,
    UnsupportedError,
    UsageError,
)

VERSIONS = "0.24."  # The adapter uses private names of these releases.

ATTEMPTS_MAX = 64  # of one write that other writers keep overtaking; a caller must not hang

T = TypeVar("T")

# Prefixes of run ids, which are turn ids: the rest was chosen by the caller, or generated.
CALLER_PREFIX, GENERATED_PREFIX = "openai_agents:", "openai_agents."


# Turns of the runs in progress in this process, of any session object.
_live_runs: set[str] = set()


class PerdureSession:
    """A session for `Runner.run(…, session=…)`, and for durable runs with `session.run`.

        session = PerdureSession("claim-4711", store)
        result = await session.run(agent, "Where is my claim?")

    `store` is from `perdure.open_async`, on any backend; in place of an id and a store, an
    AsyncSession can be given. Items are messages of the session. `tools` sets by name the policy
    for a call whose process died before its outcome was recorded, as `session.tool` does: "unsafe",
    the default, reports to the model that the outcome is unknown, "read_only" and "idempotent" run
    it again, and a function reconciles it.

    With `lease` (seconds), other workers cannot write while a run is in progress: they wait that
    long for their own. With `max_tokens`, runs get the newest turns that fit, and the current
    summary. Raises UnsupportedError for versions of the SDK that the adapter does not know.
    """

    def __init__(
        self,
        session_id: "str | AsyncSession",
        store: AsyncStore | None = None,
        *,
        tools: Mapping[str, PolicyDeclaration] | None = None,
        lease: float | None = None,
        max_tokens: int | None = None,
        session_settings: Any = None,
    ) -> None:
        require_version()
        self._session = session_id if isinstance(session_id, AsyncSession) else None
        self._store = store
        if self._session is None and not isinstance(store, AsyncStore):
            kind = type(store).__qualname__
            raise UsageError(f"pass a store of perdure.open_async(...), not a {kind}")
        self.session_id = self._session.id if self._session else str(session_id)
        self.session_settings = session_settings or SessionSettings()
        self._policies: dict[str, ToolPolicy] = require_policies(tools or {})
        self._lease = lease
        self._max_tokens = max_tokens
        self._items: SessionItems | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.session_id!r}>"

    @property
    def losses(self) -> tuple[Any, ...]:
        """Content of other frameworks' messages that items cannot express, as of the last read."""
        return self._items.losses if self._items else ()

    async def open(self) -> AsyncSession:
        """Return the session of perdure that holds the items."""
        if self._session is None:
            assert self._store is not None  # noqa: S101 - checked by `__init__`
            return self._keep(await self._store.session(self.session_id))
        return self._session

    def _keep(self, session: AsyncSession) -> AsyncSession:
        """Return the session that was opened first: two tasks may open it at once."""
        if self._session is None:
            self._session = session
        return self._session

    async def _load(self) -> tuple[AsyncSession, SessionItems]:
        """Return the session and its items, with everything that any writer stored."""
        session = await self.open()
        if self._items is None:
            self._items = SessionItems(session)
        await self._items.refresh()
        return session, self._items

    # The SDK's protocol

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the items, oldest first: all, or at most the newest `limit` ones.

        A limit never separates a call from its output, or an answer from its reasoning.
        """
        run = self._run()
        if run is not None and run.history is not None:
            history, run.history = run.history, None
            return history if limit is None else cut_items(history, limit)
        _, items = await self._load()
        return items.copy(limit)

    async def add_items(self, items: list[Item]) -> None:
        """Append items, all or none; on return they are durable.

        In a durable run, most are stored already: when the model answered or a tool returned.
        """
        if not items:
            return
        run = self._run()
        if run is not None:
            await run.confirm(items)
            return
        session = await self.open()
        opaque = any(map(is_opaque, items))

        async def append() -> None:
            before = session.position
            position = await session.append(*items, opaque=opaque)
            if self._items is not None:
                self._items.note_appended(items, position, before)

        await _retry(append)

    async def pop_item(self) -> Item | None:
        """Take back the newest item and return it; None if there is none. Its record stays."""

        async def pop() -> Item | None:
            session, items = await self._load()
            last = items.last()
            if last is not None:
                await session.retract(await items.last_position(), reason="pop_item")
                items.note_popped()
            return last

        return await _retry(pop)

    async def clear_session(self) -> None:
        """Take back all items. Their records stay: `store.delete(id)` removes them."""

        async def clear() -> None:
            session, items = await self._load()
            if len(items):
                await session.retract(range(1, session.position + 1), reason="clear_session")

        await _retry(clear)

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[Item], bool] | None = None
    ) -> Any:
        """Return the newest items with a function that replaces their end, in one commit.

        `OpenAIResponsesCompactionSession(id, session)` calls it; the replaced items stay in the
        record. None, as for other stores, if old items are to be removed as well.
        """
        if prune_prefix is not None:
            return None
        _, items = await self._load()
        start, found = max(len(items) - limit, 0), items.copy()

        async def replace_suffix(index: int, output: list[Item]) -> bool:
            return await self._replace_from(found, start + index, output)

        return _CompactionSnapshot(found[start:], start == 0, replace_suffix)

    async def _atomic_replace_items(self, items: list[Item]) -> bool:
        """Replace all items in one commit. Called by a compacting session."""
        _, current = await self._load()
        return await self._replace_from(current.copy(), 0, items)

    async def _replace_from(self, found: list[Item], index: int, output: list[Item]) -> bool:
        """Put items in the place of those from an index on; False if they are not as found."""
        session, items = await self._load()
        stored = await items.stored()
        end, old = stored[index:], found[index:]
        if not end or items.copy() != found or not all(item.item in old for item in end):
            return False
        if index and stored[index - 1].place == end[0].place:
            return False  # Both took the place of the same items: they cannot be told apart.
        try:
            await session.replace(end[0].place, end[-1].place, *output)
        except ConflictError:
            return False
        return True

    # Durable runs

    async def run(
        self,
        agent: Any,
        input: Any = None,
        *,
        id: str | None = None,
        through: Any = None,
        **options: Any,
    ) -> Any:
        """Run an agent as `Runner.run` does, with the same options, and return its result.

        The run is a turn: everything is durable when it arises. After a crash or an error the same
        call continues it, and so does one without `input`; another input begins another run. With
        an `id`, a run that has ended is not repeated: it is replayed from the record, and its
        result returned. A result with `interruptions` waits for approvals: pass its state as
        `input`, or in another process get it again by the same call.

        `through` is a session of the SDK around this one, such as a compacting one.
        """
        run = await self._begin(agent, input, id, options)
        token = current_run.set(run), current_scope.set("")
        try:
            session = through or self
            result = await Runner.run(agent, run.input, session=session, **run.options)
            while (state := run.decided_state(result)) is not None:
                result = await Runner.run(agent, state, session=session, **run.options)
        except BaseException as error:
            await self._leave(run, error)
            _raise_cause(error)
            raise
        finally:
            current_run.reset(token[0])
            current_scope.reset(token[1])
        await self._finish(run, result)
        return result

    async def run_streamed(
        self,
        agent: Any,
        input: Any = None,
        *,
        id: str | None = None,
        through: Any = None,
        **options: Any,
    ) -> Any:
        """Start a run as `Runner.run_streamed` does, durable as with `run`; return its result.

        The run ends when `stream_events()` has been read to its end. A recorded response arrives
        again, each text in one piece.
        """
        run = await self._begin(agent, input, id, options)

        def proceed(given: Any) -> Any:
            token = current_run.set(run), current_scope.set("")
            try:
                return Runner.run_streamed(agent, given, session=through or self, **run.options)
            finally:
                current_run.reset(token[0])
                current_scope.reset(token[1])

        try:
            result = proceed(run.input)
        except BaseException as error:
            await self._leave(run, error)
            raise
        result.stream_events = partial(self._events, run, result, result.stream_events, proceed)
        return result

    async def _events(
        self,
        run: DurableRun,
        result: Any,
        stream: Callable[[], AsyncIterator[Any]],
        proceed: Callable[[Any], Any],
    ) -> AsyncIterator[Any]:
        """Yield the events of a run until it ends, or waits for a decision."""
        try:
            async for event in stream():
                yield event
            while (state := run.decided_state(result)) is not None:
                following = proceed(state)
                async for event in following.stream_events():
                    yield event
                # The caller has the first result: it becomes the one that has ended.
                shown = {**vars(following), "stream_events": result.stream_events}
                vars(result).update(shown)
        except BaseException as error:
            await self._leave(run, error)
            _raise_cause(error)
            raise
        await self._finish(run, result)

    async def current_agent(self, agent: Any) -> Any:
        """Return the agent that spoke last: the given one, or one that it hands off to.

        UsageError if none of them has the recorded name.
        """
        session = await self.open()
        await session.refresh()
        name = await session.get(AGENT_KEY)
        if name is None:
            return agent
        agents = _reachable(agent, {})
        if name not in agents:
            reason = f"agent {name!r} spoke last in session {session.id!r}"
            raise UsageError(f"{reason}: pass it, or an agent that leads to it by handoffs")
        return agents[name]

    async def interrupted(self) -> list[Item] | None:
        """Return the input of the newest run that was cut off, or waits for approvals; or None."""
        session = await self.open()
        await session.refresh()
        turns = _open_runs(session)
        return (await read_run(turns[-1])).inputs if turns else None

    async def abandon(self, reason: str = "") -> None:
        """Abandon the newest run that was cut off. Its items stay; open calls are closed."""
        session = await self.open()
        await session.refresh()
        for turn in _open_runs(session)[-1:]:
            await turn.abandon(reason)

    def _run(self) -> DurableRun | None:
        """Return the durable run that this code is part of, if it is one of this session."""
        run = current_run.get()
        return run if run is not None and run.session is self._session else None

    async def _begin(
        self, agent: Any, input: Any, id: str | None, options: dict[str, Any]
    ) -> DurableRun:
        """Begin a run, or continue one; return it with its turn entered."""
        session = await self.open()
        if self._run() is not None:
            reason = f"a run of session {session.id!r} is in progress in this task"
            raise UsageError(f"{reason}: use another session inside of it")
        record_agent(agent)
        lease = None
        if self._lease is not None:
            # Waiting longer than the TTL: a dead holder's lease expires, a live one's is renewed.
            lease = session.lease(ttl=self._lease, timeout=self._lease + 1)
            await lease.__aenter__()
        try:
            return await self._enter(input, id, options, lease)
        except BaseException:
            if lease is not None:
                await lease.release()
            raise

    async def _enter(
        self, input: Any, id: str | None, options: dict[str, Any], lease: Any
    ) -> DurableRun:
        session, _ = await self._load()
        answered, turn, given = 0, None, None
        if isinstance(input, RunState):
            turn, answered = await find_waiting_run(session, _open_runs(session), input)
        else:
            given = None if input is None else _input_items(input)
            turn = await _find_run(session, given, id)
            if turn is None and given is None:
                raise UsageError(f"session {session.id!r} has no run to continue: pass an input")
        if turn is None:
            turn = _new_turn(session, given or [], id, options.get("run_config"))
        await turn.__aenter__()
        _live_runs.add(turn.id)
        try:
            run = await self._prepare(turn, input, answered, options)
        except BaseException:
            _live_runs.discard(turn.id)
            if not turn.ended:
                await turn.suspend()
            raise
        run.lease = lease
        return run

    async def _prepare(
        self, turn: AsyncTurn, input: Any, answered: int, options: dict[str, Any]
    ) -> DurableRun:
        """Return a run whose turn is entered, with what is recorded of it and what came before."""
        session, record = await self.open(), await read_run(turn)
        run = DurableRun(session, turn, record, policies=self._policies, answered=answered)
        if isinstance(input, RunState):
            await record_decisions(session, turn, input)
        else:
            run.history = await self._history(record, is_ended=turn.ended)
        run.decisions = await read_decisions(session, turn, record)
        run.input = record.inputs if input is None else input
        run.options = _recording_options(run, options)
        return run

    async def _history(self, record: RunRecord, *, is_ended: bool) -> list[Item]:
        """Return the items for a run to begin with: all but its own, or a window of them.

        If the run has ended, those before it.
        """
        session, items = await self._load()
        history: list[Item] = items.copy()
        if self._max_tokens is not None:
            history = await session.messages(format=FORMAT, max_tokens=self._max_tokens)
        own = [stored.item for stored in record.items]
        calls = {item["call_id"] for item in own if "call_id" in item}
        kept: list[Item] = []
        while own and history:  # They are at the end, unless other runs came since.
            item = history.pop()
            if item in own:
                own.remove(item)
            elif item.get("call_id") not in calls and not is_ended:
                kept.append(item)
        return [*history, *kept[::-1]]

    async def _finish(self, run: DurableRun, result: Any) -> None:
        try:
            await run.finish(result)
        finally:
            _live_runs.discard(run.turn.id)
            await run.close()

    async def _leave(self, run: DurableRun, error: BaseException) -> None:
        try:
            await run.leave(error)
        except Exception as failure:  # noqa: BLE001 - the first error is raised
            error.add_note(f"perdure could not record how the run ended: {failure}")
        finally:
            _live_runs.discard(run.turn.id)
            await run.close()


async def _retry(attempt: Callable[[], Awaitable[T]]) -> T:
    """Make an attempt again while other writers come first; in the end, raise ConflictError."""
    for _ in range(ATTEMPTS_MAX - 1):
        try:
            return await attempt()
        except ConflictError:
            continue  # The session has caught up.
    return await attempt()


def require_version() -> None:
    """Raise UnsupportedError unless the adapter knows the installed SDK."""
    found = version("openai-agents")
    if not found.startswith(VERSIONS):
        hint = f'install "openai-agents>={VERSIONS}0,<0.25"'
        raise UnsupportedError(f"openai-agents {found} is not known to this adapter", hint)


def _raise_cause(error: BaseException) -> None:
    """Raise the error of perdure that the SDK has wrapped in one of its own, if it has."""
    if isinstance(error.__cause__, PerdureError):
        raise error.__cause__ from error


def _input_items(input: Any) -> list[Item]:
    items = ItemHelpers.input_to_new_input_list(input)
    return [dict(item) for item in items]


def _new_turn(session: AsyncSession, items: list[Item], id: str | None, config: Any) -> AsyncTurn:
    """Return a new turn. It begins with the input, unless a callback decides what is stored."""
    turn_id = f"{GENERATED_PREFIX}{uuid4()}" if id is None else CALLER_PREFIX + id
    callback = getattr(config, "session_input_callback", None)
    if isinstance(config, Mapping):
        callback = config.get("session_input_callback")
    message = items[0] if len(items) == 1 and callback is None else None
    return session.turn(message, id=turn_id)


def _open_runs(session: AsyncSession) -> list[AsyncTurn]:
    prefixes = (CALLER_PREFIX, GENERATED_PREFIX)
    return [turn for turn in session.interrupted if turn.id.startswith(prefixes)]


async def _find_run(
    session: AsyncSession, items: list[Item] | None, id: str | None
) -> AsyncTurn | None:
    """Return the run to continue or to replay, if there is one."""
    if id is not None:
        try:
            turn = await session.find_turn(CALLER_PREFIX + id)
        except NotFoundError:
            return None
        record = await read_run(turn)
        if items is not None and record.inputs[: len(items)] != items[: len(record.inputs)]:
            raise DivergenceError(session.id, id, "another input", "this input")
        return turn
    open_runs = _open_runs(session)
    if items is None:
        return open_runs[-1] if open_runs else None
    for turn in reversed(open_runs):
        if turn.id.startswith(GENERATED_PREFIX):
            if (await read_run(turn)).inputs == items:
                return turn
            if turn.id in _live_runs:
                continue  # It gets a ConflictError, and is continued by its own call.
            await turn.abandon("a run with another input began")
    return None


def _reachable(agent: Any, found: dict[str, Any]) -> dict[str, Any]:
    if agent.name not in found:
        found[agent.name] = agent
        for target in agent.handoffs:
            inner = target if isinstance(target, Agent) else _handoff_agent(target)
            if inner is not None:
                _reachable(inner, found)
    return found


def _handoff_agent(handoff: Any) -> Any:
    reference = getattr(handoff, "_agent_ref", None)
    return reference() if callable(reference) else None


def _recording_options(run: DurableRun, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the Runner, with hooks and models that record."""
    config = options.get("run_config")
    config = RunConfig(**config) if isinstance(config, Mapping) else config or RunConfig()
    recording = copy(config)
    recording.model_provider = RecordingProvider(config.model_provider)
    if isinstance(recording.model, Model):
        record_model(recording.model)
    if options.get("run_config") is None:
        run.provider = recording.model_provider  # Created here, and closed with the run.
    return {
        **options,
        "run_config": recording,
        "hooks": RecordingHooks(run, options.get("hooks")),
    }
