"""A persisted chat of classic agents: start, resume after a crash, abandon.

Comes in: the patched methods of the agents, clients and groups call `call`, `call_model` and
`select_speaker`. Goes out: messages and effects in the session's turn. On resume the framework's
own code runs again from the start of the interrupted chat; its calls are answered from the record
until the record ends, and from there on they are made. It never edits recorded messages.
"""

import asyncio
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from types import TracebackType
from typing import Any, Self

from perdure import Session, Turn
from perdure.adapters.autogen import context, model_calls, openings, patches
from perdure.adapters.autogen.agent_state import ChatAgents
from perdure.adapters.autogen.context import PersistScope
from perdure.adapters.autogen.model_calls import ModelFailures
from perdure.adapters.autogen.openings import Opening
from perdure.adapters.autogen.patches import AgentPatches
from perdure.adapters.autogen.recorder import (
    RESUME_HINT,
    AgentMessage,
    GroupChats,
    MessageRecorder,
    digest,
    read_agent_messages,
)
from perdure.adapters.autogen.saved_chat import SavedChat
from perdure.adapters.autogen.tool_calls import (
    CODE_TOOL,
    ChatEffects,
    ToolPolicies,
    require_supported_result,
)
from perdure.adapters.autogen.versions import SEND_HOOKS
from perdure.errors import ConflictError, DivergenceError, PerdureError, UsageError

logger = logging.getLogger("perdure.adapters.autogen")


class DurableChat:
    """A chat whose agents are durable. Created by `persist`."""

    def __init__(
        self,
        autogen: Any,
        session: Session,
        agents: list[Any],
        tools: ToolPolicies,
        lease: float | None,
    ) -> None:
        self._autogen = autogen
        self._session = session
        # A dead process holds its lease until the TTL expires; a live one renews it well before.
        self._lease = (
            nullcontext() if lease is None else session.lease(ttl=lease, timeout=2 * lease)
        )
        groups = GroupChats(
            [agent for agent in agents if isinstance(agent, autogen.GroupChatManager)]
        )
        self._agents = ChatAgents(agents, groups)
        self._failures = ModelFailures(session)
        names = {*self._agents.by_name}
        self._recorder = MessageRecorder(session, names, groups, self._failures.record_swallowed)
        self._effects = ChatEffects(session, self, self._recorder, self._agents, tools)
        self._scope = PersistScope(self._release)
        self._patches = AgentPatches(
            self, self._scope, self._agents, self._recorder, self._effects, self._failures
        )
        self._saved = SavedChat(session, self._agents)
        self._policies = tools
        self._resources = ExitStack()
        self._used = False
        self.is_running = False

    def __del__(self) -> None:
        if not getattr(self, "_used", True):
            warning = "persist(...) was never entered, and nothing was recorded: use it with `with`"
            warnings.warn(warning, RuntimeWarning, stacklevel=2)

    @property
    def interrupted(self) -> str | None:
        """A description of the chat that started and did not end; None if there is none."""
        self._scope.require_entered()
        opening = self._saved.open_chat
        return openings.describe(opening) if opening is not None else None

    @property
    def finished(self) -> int:
        """The number of chats that have ended in this session."""
        self._scope.require_entered()
        return self._saved.finished

    def resume(self) -> Any:
        """Resume the interrupted chat; return its result, or None if no chat was interrupted.

        A chat started by an `a_…` method must be awaited: use `await chat.a_resume()`.
        """
        self._scope.require_entered()
        self.catch_up()
        opening = self._saved.open_chat
        if opening is None:
            return None
        if opening["method"].startswith("a_"):
            raise UsageError("the chat was started by an async method: await chat.a_resume()")
        method, arguments = openings.resume_call(opening, self._agents.by_name)
        return method(**arguments)

    async def a_resume(self) -> Any:
        """Resume the interrupted chat in async code, as `resume` does."""
        self._scope.require_entered()
        self.catch_up()
        opening = self._saved.open_chat
        if opening is None:
            return None
        method, arguments = openings.resume_call(opening, self._agents.by_name)
        result = method(**arguments)
        return await result if asyncio.iscoroutine(result) else result

    def abandon(self, reason: str = "") -> None:
        """Abandon the interrupted chat. The agents return to the state they had before it started.

        It may be called without `with`, for agents with which the chat cannot be resumed.
        """
        self._used = True
        self._saved.load()
        if self._saved.open_chat is None:
            raise UsageError("no chat was interrupted: there is nothing to abandon")
        self._saved.abandon(reason)
        if self._scope.entered:
            self._restore()

    def __enter__(self) -> Self:
        self._used = True
        with ExitStack() as stack:
            stack.enter_context(self._lease)
            self._begin()
            self._resources = stack.pop_all()
        return self

    def _begin(self) -> None:
        """Load, check and restore; patch last, so that an error leaves the agents unpatched."""
        # The checks come first: after a UsageError the agents are as they were.
        self._require_free()
        self._load()
        self._require_tools()
        self._saved.end_finished_turn()
        self._restore(only_own=True)
        patches.install(self._autogen)
        self._patches.apply()
        self._scope.enter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            # An interrupted chat resumes from the state that was saved when it started.
            if error is None and not self.is_running and self._saved.open_chat is None:
                self._save_changes()
        finally:
            self._leave(silent=error is not None)

    def _save_changes(self) -> None:
        """Save variables and histories that the code changed since the last chat."""
        variables = self._agents.variables.unsaved()
        if variables or self._agents.have_changed():
            self.catch_up()
            self._agents.variables.assign(variables)  # `catch_up` may have replaced them.
            self.save()

    def _leave(self, *, silent: bool) -> None:
        try:
            self._scope.leave()
        except UsageError:  # Must not hide the error with which the block is left.
            if not silent:
                raise

    def _release(self) -> None:
        """Undo all patches and release the lease."""
        with self._resources:  # The lease is released last, even if a patch cannot be undone.
            self._agents.take_snapshot(self._saved.chat_id)
            self._patches.undo()
            patches.unclaim(self)
            patches.uninstall()

    def _load(self) -> None:
        self._saved.load()
        self._saved.require_same_agents(*read_agent_messages(self._session))

    def catch_up(self) -> None:
        """Load chats that other processes recorded since, and restore the agents accordingly."""
        if not self.is_running and self._saved.is_stale():
            changed = self._saved.open_chat is None and self._agents.histories_changed()
            self._load()
            self._restore()
            if changed:  # Local edits that the other process could not know of: they are lost.
                position, why = self._session.position, "histories were changed here meanwhile"
                raise ConflictError(self._session.id, position, position, why)

    def _require_free(self) -> None:
        for agent in self._agents:
            if any(isinstance(hook, MessageRecorder) for hook in agent.hook_lists[SEND_HOOKS]):
                reason = f"{agent.name!r} is already in use by another `with persist(...)` block"
                raise UsageError(f"{reason}: leave it first, or pass another agent")

    def _require_tools(self) -> None:
        existing = {CODE_TOOL, *(name for agent in self._agents for name in agent.function_map)}
        unknown = [name for name in self._policies if name not in existing]
        if unknown:
            raise UsageError(f"no agent has a tool {unknown[0]!r}", f"$.tools.{unknown[0]}")
        for agent in self._agents:
            for name, function in agent.function_map.items():
                require_supported_result(name, function)

    def _restore(self, *, only_own: bool = False) -> list[AgentMessage]:
        """Restore the agents to the end of the last chat, or to the start of the open one.

        Returns the messages of the open chat. With `only_own`, agents that already have a different
        history keep it, and that is a UsageError.
        """
        messages, _ = read_agent_messages(self._session)
        turn = self._saved.turn_id if self._saved.open_chat is not None else None
        histories, lists = self._agents.histories(), self._agents.copy_histories()
        has_history = histories["pairs"] or any(histories["groups"].values())
        previous = digest(histories)  # Before the rebuild: it refills the groups' lists in place.
        self._agents.rebuild_histories(
            [message for message in messages if message.turn != turn], self._saved.state
        )
        is_own = previous == digest(self._agents.histories())
        is_own = is_own or (
            turn is not None and self._agents.match_snapshots(self._saved.chat_id, previous)
        )
        if only_own and has_history and not is_own:
            self._agents.put_back_histories(lists)
            reason = "the agents have a history that is not the session's"
            raise UsageError(f"{reason}: pass new agents, or use a new session")
        for what, name in self._agents.restore(self._saved.state):
            logger.warning(
                "%s: the %s of %s were changed both in a chat and in the code: using the code's",
                self._session.id,
                what,
                name,
            )
        return [message for message in messages if message.turn == turn]

    def save(self) -> None:
        """Save the agents' state, between chats."""
        self._saved.save()

    def call(
        self, method: str, sender: Any, function: Callable[..., Any], arguments: dict[str, Any]
    ) -> Any:
        """Start or resume a chat; inside a chat, call the framework's own method."""
        if self._is_nested(sender):
            result = function(**arguments)
            self._recorder.proceed()  # The nested chat ended in spite of a failed model call.
            return result
        with self._scope.exclusive(), self._running(self._opening(method, sender, arguments)):
            return function(**arguments)

    async def a_call(
        self, method: str, sender: Any, function: Callable[..., Any], arguments: dict[str, Any]
    ) -> Any:
        """Start or resume a chat as `call` does, in async code."""
        if self._is_nested(sender):
            result = await function(**arguments)
            self._recorder.proceed()
            return result
        with self._scope.exclusive(), self._running(self._opening(method, sender, arguments)):
            return await function(**arguments)

    def _is_nested(self, sender: Any) -> bool:
        """Return whether the running code is part of this chat; UsageError in its tools."""
        tool_context = context.current_tool.get()
        if tool_context is not None and tool_context.chat is self:
            reason = f"the tool {tool_context.tool!r} starts a chat of {sender.name!r}"
            why = "messages sent inside a tool cannot be replayed after a crash"
            hint = "leave agents that chat only inside tools out of persist(), or use a nested chat"
            raise UsageError(f"{reason}, who was passed to persist(), and {why}: {hint}")
        return context.current_chat.get() is self

    def _opening(self, method: str, sender: Any, arguments: dict[str, Any]) -> Opening:
        for by, recipient in openings.keep_histories(method, sender, arguments, [*self._agents]):
            logger.info(
                "%s: initiate_chat continues the history of %s and %s; clear_history=False "
                "is used instead of True",
                self._session.id,
                by.name,
                recipient.name,
            )
        return openings.opening_of(method, sender, arguments)

    @contextmanager
    def _running(self, opening: Opening) -> Iterator[None]:
        """Run one chat in its turn; abandon it if it fails before anything was recorded."""
        self.catch_up()
        if self._saved.open_chat is not None:
            with self._turn(self._prepare_resume(opening), resuming=True):
                yield
            return
        self._saved.begin(opening)
        start = 0
        try:
            with self._turn([], resuming=False):
                start = self._session.position
                yield
        except Exception as error:
            # A chat refused at once, as for a wrong argument, must not have to be resumed.
            if isinstance(error, UsageError) or not isinstance(error, PerdureError):
                self._session.refresh()
                if self._session.position == start:  # Nothing was recorded that could be resumed.
                    self.abandon("it failed before anything was said")
            raise

    @contextmanager
    def _turn(self, previous: list[AgentMessage], *, resuming: bool) -> Iterator[None]:
        """Record the chat in its turn; `previous` messages are replayed first."""
        self._patches.apply()  # Agents may have been given tools and clients since.
        with self._saved.turn() as turn:
            token = context.current_chat.set(self)
            self.is_running = True
            try:
                self._failures.begin(turn.id, resuming=resuming, in_tasks=self._runs_in_tasks())
                self._recorder.begin(turn, previous)
                self._close_calls()
                yield
                # The framework may have swallowed an error of the recorder: then nothing ended.
                self._recorder.raise_if_broken()
                self._recorder.require_all_replayed()
                self._saved.finish()
            except BaseException:
                _suspend(turn)
                raise
            finally:
                self.is_running = False
                self._recorder.end()
                context.current_chat.reset(token)

    def _runs_in_tasks(self) -> bool:
        """Return whether the open chat was started by an async method."""
        opening = self._saved.open_chat
        return opening is not None and opening["method"].startswith("a_")

    def _close_calls(self) -> None:
        """Answer tool calls that the previous chat left open: providers reject unanswered calls."""
        messages = [
            m for m in read_agent_messages(self._session)[0] if m.turn != self._saved.turn_id
        ]
        for answer in self._agents.open_calls(messages):
            self._recorder.record_message(
                answer.author, answer.recipient, answer.message, answer.origin
            )
            self._agents.close_call(answer)

    def _prepare_resume(self, opening: Opening) -> list[AgentMessage]:
        """Require the interrupted call, restore the agents, return the recorded messages."""
        recorded = self._saved.open_chat
        assert recorded is not None  # noqa: S101 - checked by the caller
        if not openings.is_same_opening(recorded, opening):
            description, hint = openings.describe(recorded), f"call resume() first; {RESUME_HINT}"
            raise DivergenceError(
                self._session.id, description, digest(recorded), digest(opening), hint
            )
        logger.info("%s: resuming %s", self._session.id, openings.describe(recorded))
        return self._restore()

    def call_model(self, wrapper: Any, create: Callable[..., Any], config: dict[str, Any]) -> Any:
        """Call a model, or return its recorded answer."""
        self._recorder.proceed()
        self._patches.apply()  # An agent may have been given a new tool since the last call.
        responses: list[Any] = []

        def call(**_: Any) -> Any:
            # Copies of the recorded messages: the framework's own may have changed meanwhile.
            sent = {"messages": deepcopy(request["messages"])} if config.get("messages") else {}
            # The live response is returned as it is: the record need not have all of it.
            responses.append(create(wrapper, **{**config, **sent}))
            return model_calls.response_data(wrapper, responses[0])

        request = model_calls.request_identity(config)
        try:
            self._failures.raise_recorded(request)
            data = self._session.model(call, name="model", actor=request["agent"])(**request)
        except PerdureError as error:
            # The framework turns any error into an empty summary, and would continue with that.
            self._recorder.error = error
            raise
        except Exception as error:
            self._failures.note_failure(request, error)
            raise
        self._failures.note_answer(request)
        if responses:
            return responses[0]
        model_calls.set_usage(wrapper, data["usage"])  # As after the recorded call.
        return model_calls.RecordedResponse(data)

    def select_speaker(self, group: Any, select: Callable[..., Any], agents: Any) -> Any:
        """Let chance or a person select a speaker, or return the recorded selection."""

        def select_name() -> str | None:
            # None if a person leaves the selection to the model.
            agent = select(group, agents)
            return None if agent is None else str(agent.name)

        candidates = [agent.name for agent in (group.agents if agents is None else agents)]
        name = self._effects.ask("speaker", select_name, among=candidates)
        return next((agent for agent in group.agents if agent.name == name), None)


def _suspend(turn: Turn) -> None:
    """Suspend a turn as a crash would: the chat is interrupted, and can be resumed."""
    if not turn.ended:
        turn.suspend()
