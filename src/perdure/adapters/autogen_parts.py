"""The agents' methods and functions that a chat puts its own in the place of, and puts back."""

from collections.abc import Callable
from typing import Any, Protocol

from perdure import UsageError
from perdure.adapters.autogen_block import Block
from perdure.adapters.autogen_classes import Asking, own
from perdure.adapters.autogen_code import blocks_run, executed
from perdure.adapters.autogen_failures import Failures
from perdure.adapters.autogen_names import human_inputs, runs_code
from perdure.adapters.autogen_openings import named, require_given
from perdure.adapters.autogen_record import Recorder
from perdure.adapters.autogen_runs import runs_of
from perdure.adapters.autogen_state import A_HOOKS, HOOKS, Agents
from perdure.adapters.autogen_tools import Effects

_BEGINNINGS = ("initiate_chat", "initiate_chats", "send")
_MARK = "_perdure_original"
BLOCKS = "execute_code_blocks"


class Calling(Asking, Protocol):
    """A chat, as the methods it has replaced see it."""

    def follow(self) -> None: ...

    def save(self) -> None: ...

    def call(
        self, method: str, sender: Any, function: Callable[..., Any], given: dict[str, Any]
    ) -> Any: ...

    async def a_call(
        self, method: str, sender: Any, function: Callable[..., Any], given: dict[str, Any]
    ) -> Any: ...


class Parts:
    """What of the agents is replaced while their chat is kept. Only these objects are changed."""

    def __init__(
        self,
        chat: Calling,
        block: Block,
        agents: Agents,
        recorder: Recorder,
        effects: Effects,
        failures: Failures,
    ) -> None:
        self._chat = chat
        self._block = block
        self._failures = failures
        self._agents = agents
        self._recorder = recorder
        self._effects = effects
        self._replaced: list[tuple[Any, str, Callable[..., Any] | None]] = []

    def replace(self) -> None:
        """Put the chat's own in place, where that is not done: agents may get tools at any time."""
        for agent in self._agents:
            if not self._is_replaced(agent, "send"):
                self._replace_methods(agent)
            for name, function in agent.function_map.items():
                if not hasattr(function, _MARK):
                    durable = self._effects.tool(name, function)
                    setattr(durable, _MARK, function)
                    agent.function_map[name] = durable
            self._unhook(agent)  # To be the last again: it sees what is sent.
            agent.hook_lists[HOOKS].append(self._recorder)
            if A_HOOKS in agent.hook_lists:
                agent.hook_lists[A_HOOKS].append(self._recorder.a_call)
        own(self._chat, [agent.client for agent in self._agents if agent.client])

    def put_back(self) -> None:
        for target, name, before in self._replaced:
            if before is None:
                vars(target).pop(name, None)
            else:
                vars(target)[name] = before  # A user's own, such as one that asks in a browser.
        self._replaced = []
        for agent in self._agents:
            self._unhook(agent)
            for name, function in agent.function_map.items():
                agent.function_map[name] = getattr(function, _MARK, function)

    def _unhook(self, agent: Any) -> None:
        own = (self._recorder, self._recorder.a_call)
        for name in {HOOKS, A_HOOKS} & agent.hook_lists.keys():
            hooks = agent.hook_lists[name]
            agent.hook_lists[name] = [one for one in hooks if one not in own]

    def _is_replaced(self, target: Any, name: str) -> bool:
        return any(one is target and known == name for one, known, _ in self._replaced)

    def _set(self, target: Any, name: str, function: Callable[..., Any]) -> None:
        self._replaced.append((target, name, vars(target).get(name)))
        vars(target)[name] = function

    def _replace_methods(self, agent: Any) -> None:
        for name in _BEGINNINGS:
            self._set(agent, name, self._beginning(agent, name))
            self._set(agent, f"a_{name}", self._a_beginning(agent, f"a_{name}"))
        for name in ("receive", "a_receive"):
            self._set(agent, name, self._hearing(agent, name))
        for name in ("a_generate_reply", "a_generate_oai_reply"):
            self._set(agent, name, self._failures.awaited(getattr(agent, name)))
        self._set(agent, "update_system_message", self._instructing(agent))
        for name in ("resume", "a_resume") if hasattr(agent, "groupchat") else ():
            self._set(agent, name, _refuse_to_resume)
        for name, function in runs_of(self._block, agent).items():
            self._set(agent, name, function)
        self._replace_code(agent)
        self._set(agent, "get_human_input", self._asking(agent))
        self._set(agent, "a_get_human_input", self._a_asking(agent))

    def _replace_code(self, agent: Any) -> None:
        self._set(agent, BLOCKS, blocks_run(self._effects, agent.execute_code_blocks))
        executor = agent.code_executor if runs_code(agent) else None
        if executor is not None and not self._is_replaced(executor, BLOCKS):
            self._set(executor, BLOCKS, executed(self._effects, executor.execute_code_blocks))

    def _beginning(self, agent: Any, name: str) -> Callable[..., Any]:
        original = getattr(agent, name)

        def begin(*args: Any, **kwargs: Any) -> Any:
            return self._chat.call(name, agent, original, named(original, args, kwargs))

        return begin

    def _a_beginning(self, agent: Any, name: str) -> Callable[..., Any]:
        original = getattr(agent, name)

        async def begin(*args: Any, **kwargs: Any) -> Any:
            return await self._chat.a_call(name, agent, original, named(original, args, kwargs))

        return begin

    def _hearing(self, agent: Any, name: str) -> Callable[..., Any]:
        """Return what hears only agents that are kept, in a chat: there would be no record else."""
        original = getattr(agent, name)

        def hear(*args: Any, **kwargs: Any) -> Any:
            sender = named(original, args, kwargs)["sender"]
            require_given(sender, self._agents)
            if not self._chat.talking:
                reason = f"what {agent.name!r} hears without that somebody sends it is not recorded"
                send = name.replace("receive", "send")
                raise UsageError(f"{reason}: have {sender.name!r} {send}(...) it")
            return original(*args, **kwargs)

        return hear

    def _instructing(self, agent: Any) -> Callable[[str], None]:
        original = agent.update_system_message

        def update(system_message: str) -> None:
            self._chat.follow()
            original(system_message)
            if not self._chat.talking:
                self._chat.save()

        return update

    def _asking(self, agent: Any) -> Callable[..., str]:
        original = agent.get_human_input

        def ask(prompt: str, **options: Any) -> str:
            told = len(human_inputs(agent))
            said = self._effects.answer(
                "human_input", lambda: original(prompt, **options), agent=agent.name, prompt=prompt
            )
            return _heard(agent, said, told)

        return ask

    def _a_asking(self, agent: Any) -> Callable[..., Any]:
        original = agent.a_get_human_input

        async def ask(prompt: str, **options: Any) -> str:
            told = len(human_inputs(agent))
            said = await self._effects.a_answer(
                "human_input", lambda: original(prompt, **options), agent=agent.name, prompt=prompt
            )
            return _heard(agent, said, told)

        return ask


def _refuse_to_resume(*_: Any, **__: Any) -> Any:
    """Stand for a manager's own way to resume, which has everything said a second time."""
    reason = "the group knows what it knew, and resuming it would have that be said twice"
    raise UsageError(f"{reason}: call initiate_chat, or resume() of what persist() returned")


def _heard(agent: Any, said: Any, told: int) -> str:
    """Return what a human said; an agent that was given it from the record is told of it."""
    if len(human_inputs(agent)) == told:
        human_inputs(agent).append(said)
    return str(said)
