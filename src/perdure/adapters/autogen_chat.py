"""A chat of classic agents that is kept: how it begins, goes on after a crash, and is given up.

The framework's own code runs again from the start of a chat that was interrupted. What it asks and
does is served from the record until that ends; from there on it is asked and done.
"""

import asyncio
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Self

from perdure import ConflictError, DivergenceError, PerdureError, Session, Turn, UsageError
from perdure.adapters import autogen_classes as classes
from perdure.adapters import autogen_models as models
from perdure.adapters import autogen_openings as openings
from perdure.adapters.autogen_block import Block
from perdure.adapters.autogen_code import NAME as CODE
from perdure.adapters.autogen_failures import Failures
from perdure.adapters.autogen_kept import Kept
from perdure.adapters.autogen_openings import Opening
from perdure.adapters.autogen_parts import Parts
from perdure.adapters.autogen_record import HINT, Groups, Recorder, Spoken, digest, spoken
from perdure.adapters.autogen_state import HOOKS, Agents
from perdure.adapters.autogen_tools import Effects, Policies, require_result

logger = logging.getLogger("perdure.adapters.autogen")


class Chat:
    """A chat whose agents are durable. Made by `persist`."""

    def __init__(
        self,
        autogen: Any,
        session: Session,
        agents: list[Any],
        tools: Policies,
        lease: float | None,
    ) -> None:
        self._autogen = autogen
        self._session = session
        # Who died holds its lease until it ends; who lives renews it several times meanwhile.
        self._lease = nullcontext() if lease is None else session.lease(ttl=lease, wait=2 * lease)
        groups = Groups([one for one in agents if isinstance(one, autogen.GroupChatManager)])
        self._agents = Agents(agents, groups)
        self._failures = Failures(session)
        names = {*self._agents.by_name}
        self._recorder = Recorder(session, names, groups, self._failures.pass_over)
        self._effects = Effects(session, self, self._recorder, self._agents, tools)
        self._block = Block(self._let_go)
        self._parts = Parts(
            self, self._block, self._agents, self._recorder, self._effects, self._failures
        )
        self._kept = Kept(session, self._agents)
        self._policies = tools
        self._held = ExitStack()
        self._used = False
        self.talking = False

    def __del__(self) -> None:
        if not getattr(self, "_used", True):
            words = "persist(...) was never entered, and nothing was kept: use it with `with`"
            warnings.warn(words, RuntimeWarning, stacklevel=2)

    @property
    def interrupted(self) -> str | None:
        """What a chat was about that began and did not end, in words; None if there is none."""
        self._block.require_entered()
        run = self._kept.run
        return openings.words(run) if run is not None else None

    @property
    def finished(self) -> int:
        """How many chats have come to their end in this session."""
        self._block.require_entered()
        return self._kept.finished

    def resume(self) -> Any:
        """Go on with the chat that was interrupted; return its result, or None without one.

        One that was begun by an `a_…` method is awaited: use `await chat.a_resume()`.
        """
        self._block.require_entered()
        self.follow()
        run = self._kept.run
        if run is None:
            return None
        if run["method"].startswith("a_"):
            raise UsageError("the chat was begun by an async method: await chat.a_resume()")
        method, arguments = openings.again(run, self._agents.by_name)
        return method(**arguments)

    async def a_resume(self) -> Any:
        """Go on with the chat that was interrupted, as `resume` does, in async code."""
        self._block.require_entered()
        self.follow()
        run = self._kept.run
        if run is None:
            return None
        method, arguments = openings.again(run, self._agents.by_name)
        result = method(**arguments)
        return await result if asyncio.iscoroutine(result) else result

    def abandon(self, reason: str = "") -> None:
        """Give the interrupted chat up. The agents know what they knew before it began.

        It may be called without `with`, where agents are refused that the chat can not go on with.
        """
        self._used = True
        self._kept.load()
        if self._kept.run is None:
            raise UsageError("no chat was interrupted: there is nothing to give up")
        self._kept.abandon(reason)
        if self._block.entered:
            self._restore()

    def __enter__(self) -> Self:
        self._used = True
        with ExitStack() as stack:
            stack.enter_context(self._lease)
            self._begin()
            self._held = stack.pop_all()
        return self

    def _begin(self) -> None:
        self._require_free()
        self._load()
        self._require_tools()
        self._kept.settle()
        self._restore(only_own=True)
        classes.install(self._autogen)
        self._parts.replace()
        self._block.enter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None and not self.talking and self._kept.run is None:
                self._save_told()
        finally:
            self._leave(silent=error is not None)

    def _save_told(self) -> None:
        """Record what the code has told the agents, and had them forget, since a chat."""
        told = self._agents.variables.told()
        if told or self._agents.are_changed():
            self.follow()
            self._agents.variables.put(told)
            self.save()

    def _leave(self, *, silent: bool) -> None:
        try:
            self._block.leave()
        except UsageError:
            if not silent:
                raise

    def _let_go(self) -> None:
        with self._held:
            self._agents.leave(self._kept.chat)
            self._parts.put_back()
            classes.disown(self)
            classes.uninstall()

    def _load(self) -> None:
        self._kept.load()
        self._kept.require_same(*spoken(self._session))

    def follow(self) -> None:
        """Have the agents know what was said in other processes since they were given."""
        if not self.talking and self._kept.moved():
            changed = self._kept.run is None and self._agents.have_other_histories()
            self._load()
            self._restore()
            if changed:  # To something that the others did not know of.
                position, why = self._session.position, "histories were changed here meanwhile"
                raise ConflictError(self._session.id, position, position, why)

    def _require_free(self) -> None:
        for agent in self._agents:
            if any(isinstance(hook, Recorder) for hook in agent.hook_lists[HOOKS]):
                reason = f"{agent.name!r} is kept already, by a `with persist(...)` that goes on"
                raise UsageError(f"{reason}: leave it first, or give another agent")

    def _require_tools(self) -> None:
        known = {CODE, *(name for agent in self._agents for name in agent.function_map)}
        unknown = [name for name in self._policies if name not in known]
        if unknown:
            raise UsageError(f"no agent has a tool {unknown[0]!r}", f"$.tools.{unknown[0]}")
        for agent in self._agents:
            for name, function in agent.function_map.items():
                require_result(name, function)

    def _restore(self, *, only_own: bool = False) -> list[Spoken]:
        """Make the agents know what they knew when the last chat ended or the open one began.

        Returns what was said in the open one. With `only_own`, agents that remember something else
        keep it, and that is a UsageError.
        """
        said, _ = spoken(self._session)
        turn = self._kept.turn_id if self._kept.run is not None else None
        histories, lists = self._agents.histories(), self._agents.lists()
        known = histories["pairs"] or any(histories["groups"].values())
        before = digest(histories)  # Of now: groups keep their lists, which are filled anew.
        self._agents.hear([one for one in said if one.turn != turn], self._kept.state)
        own = before == digest(self._agents.histories())
        own = own or (turn is not None and self._agents.are_left(self._kept.chat, before))
        if only_own and known and not own:
            self._agents.put_back(lists)
            reason = "the agents have a history that is not the session's"
            raise UsageError(f"{reason}: give new agents, or begin a new session")
        for what, name in self._agents.remember(self._kept.state):
            logger.warning(
                "%s: the %s of %s were changed in a chat, and now in the code: the code's are used",
                self._session.id,
                what,
                name,
            )
        return [one for one in said if one.turn == turn]

    def save(self) -> None:
        """Record what the agents know, between chats."""
        self._kept.save()

    def call(
        self, method: str, sender: Any, function: Callable[..., Any], given: dict[str, Any]
    ) -> Any:
        """Begin a chat, or go on with it; inside of one, do what the framework does."""
        if self._inside(sender):
            result = function(**given)
            self._recorder.go_on()
            return result
        with self._block.alone(), self._running(self._opening(method, sender, given)):
            return function(**given)

    async def a_call(
        self, method: str, sender: Any, function: Callable[..., Any], given: dict[str, Any]
    ) -> Any:
        if self._inside(sender):
            result = await function(**given)
            self._recorder.go_on()
            return result
        with self._block.alone(), self._running(self._opening(method, sender, given)):
            return await function(**given)

    def _inside(self, sender: Any) -> bool:
        """Whether the running code is a part of a chat that has begun."""
        calling = classes.calling.get()
        if calling is not None and calling.chat is self:
            reason = (
                f"the tool {calling.tool!r} has {sender.name!r} talk, who was given to persist()"
            )
            why = "what is said in a tool can not be said again after a crash"
            hint = "leave agents that talk only in tools out of persist(), or use a nested chat"
            raise UsageError(f"{reason}, and {why}: {hint}")
        return classes.inside.get() is self

    def _opening(self, method: str, sender: Any, given: dict[str, Any]) -> Opening:
        for one, other in openings.prepare(method, sender, given, [*self._agents]):
            logger.info(
                "%s: initiate_chat goes on with the history of %s and %s; clear_history=False "
                "is taken in place of True",
                self._session.id,
                one.name,
                other.name,
            )
        return openings.opening_of(method, sender, given)

    @contextmanager
    def _running(self, opening: Opening) -> Iterator[None]:
        self.follow()
        if self._kept.run is not None:
            with self._turn(self._continue(opening), goes_on=True):
                yield
            return
        self._kept.begin(opening)
        begun = 0
        try:
            with self._turn([], goes_on=False):
                begun = self._session.position
                yield
        except Exception as error:
            if isinstance(error, UsageError) or not isinstance(error, PerdureError):
                self._session.refresh()
                if self._session.position == begun:  # Nothing came of it that could go on.
                    self.abandon("it failed before anything was said")
            raise

    @contextmanager
    def _turn(self, before: list[Spoken], *, goes_on: bool) -> Iterator[None]:
        """Record what is said and done; what was said `before` is said again."""
        self._parts.replace()
        with self._kept.turn() as turn:
            token = classes.inside.set(self)
            self.talking = True
            try:
                self._failures.begin(turn.id, goes_on=goes_on, in_tasks=self._in_tasks())
                self._recorder.begin(turn, before)
                self._close_calls()
                yield
                self._recorder.require_whole()
                self._recorder.require_all()
                self._kept.finish()
            except BaseException:
                _leave(turn)
                raise
            finally:
                self.talking = False
                self._recorder.end()
                classes.inside.reset(token)

    def _in_tasks(self) -> bool:
        run = self._kept.run
        return run is not None and run["method"].startswith("a_")

    def _close_calls(self) -> None:
        """Answer the calls that the chat before ended on: models refuse to go on else."""
        said = [one for one in spoken(self._session)[0] if one.turn != self._kept.turn_id]
        for one in self._agents.open_calls(said):
            self._recorder.say(one.author, one.recipient, one.message, one.origin)
            self._agents.close(one)

    def _continue(self, opening: Opening) -> list[Spoken]:
        run = self._kept.run
        assert run is not None  # noqa: S101 - the caller saw to it
        if not openings.same(run, opening):
            what, hint = openings.words(run), f"call resume() first; {HINT}"
            raise DivergenceError(self._session.id, what, digest(run), digest(opening), hint)
        logger.info("%s: going on with %s", self._session.id, openings.words(run))
        return self._restore()

    def ask(self, wrapper: Any, create: Callable[..., Any], config: dict[str, Any]) -> Any:
        """Ask a model, or give what it answered before the process died."""
        self._recorder.go_on()
        self._parts.replace()  # What the answer calls may have been given to an agent just now.
        live: list[Any] = []

        def ask(**_: Any) -> Any:
            if (error := self._failures.again(request)) is not None:
                raise error
            live.append(create(wrapper, **config))
            return models.data_of(wrapper, live[0])

        request = models.request_of(config)
        try:
            data = self._session.model(ask, name="model", actor=request["agent"])(**request)
        except PerdureError as error:
            # The framework makes an empty summary of any error, and would go on with that.
            self._recorder.broken = error
            raise
        except Exception as error:
            self._failures.failed(request, error)
            raise
        if live:
            return live[0]
        models.set_usage(wrapper, data["usage"])
        return models.Answer(data)

    def choose(self, group: Any, choose: Callable[..., Any], agents: Any) -> Any:
        """Have chance or a person choose a speaker, or take the one that was chosen."""

        def chosen() -> str | None:
            agent = choose(group, agents)
            return None if agent is None else str(agent.name)

        among = [agent.name for agent in (group.agents if agents is None else agents)]
        name = self._effects.answer("speaker", chosen, among=among)
        return next((agent for agent in group.agents if agent.name == name), None)


def _leave(turn: Turn) -> None:
    """Leave a turn as a process that dies does: the chat is interrupted, and can go on."""
    if not turn.ended:
        turn.leave()
