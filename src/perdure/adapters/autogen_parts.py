"""Patch the agents' methods, tools and hooks while their chat is persisted, and restore them."""

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
    """A chat, as the patched methods see it."""

    def catch_up(self) -> None: ...

    def save(self) -> None: ...

    def call(
        self, method: str, sender: Any, function: Callable[..., Any], arguments: dict[str, Any]
    ) -> Any: ...

    async def a_call(
        self, method: str, sender: Any, function: Callable[..., Any], arguments: dict[str, Any]
    ) -> Any: ...


class Parts:
    """The patches on the agents of a chat. Only these objects are changed, never their classes."""

    def __init__(
        self,
        chat: Calling,
        scope: Block,
        agents: Agents,
        recorder: Recorder,
        effects: Effects,
        failures: Failures,
    ) -> None:
        self._chat = chat
        self._scope = scope
        self._failures = failures
        self._agents = agents
        self._recorder = recorder
        self._effects = effects
        self._originals: list[tuple[Any, str, Callable[..., Any] | None]] = []

    def apply(self) -> None:
        """Apply missing patches. Called repeatedly: agents may be given tools at any time."""
        for agent in self._agents:
            if not self._is_patched(agent, "send"):
                self._patch_methods(agent)
            for name, function in agent.function_map.items():
                if not hasattr(function, _MARK):
                    durable = self._effects.tool(name, function)
                    setattr(durable, _MARK, function)
                    agent.function_map[name] = durable
            self._unhook(agent)  # Append it again, so that it runs last and sees the final message.
            agent.hook_lists[HOOKS].append(self._recorder)
            if A_HOOKS in agent.hook_lists:
                agent.hook_lists[A_HOOKS].append(self._recorder.a_call)
        own(self._chat, [agent.client for agent in self._agents if agent.client])

    def undo(self) -> None:
        """Restore every patched attribute, hook and tool."""
        for target, name, original in self._originals:
            if original is None:
                vars(target).pop(name, None)
            else:
                vars(target)[name] = original  # An instance attribute the user had set.
        self._originals = []
        for agent in self._agents:
            self._unhook(agent)
            for name, function in agent.function_map.items():
                agent.function_map[name] = getattr(function, _MARK, function)

    def _unhook(self, agent: Any) -> None:
        recorder_hooks = (self._recorder, self._recorder.a_call)
        for name in {HOOKS, A_HOOKS} & agent.hook_lists.keys():
            hooks = agent.hook_lists[name]
            agent.hook_lists[name] = [hook for hook in hooks if hook not in recorder_hooks]

    def _is_patched(self, target: Any, name: str) -> bool:
        return any(
            patched is target and attribute == name for patched, attribute, _ in self._originals
        )

    def _set(self, target: Any, name: str, function: Callable[..., Any]) -> None:
        self._originals.append((target, name, vars(target).get(name)))
        vars(target)[name] = function

    def _patch_methods(self, agent: Any) -> None:
        for name in _BEGINNINGS:
            self._set(agent, name, self._patched_start(agent, name))
            self._set(agent, f"a_{name}", self._a_patched_start(agent, f"a_{name}"))
        for name in ("receive", "a_receive"):
            self._set(agent, name, self._patched_receive(agent, name))
        for name in ("a_generate_reply", "a_generate_oai_reply"):
            self._set(agent, name, self._failures.attributing(getattr(agent, name)))
        self._set(agent, "update_system_message", self._patched_update(agent))
        for name in ("resume", "a_resume") if hasattr(agent, "groupchat") else ():
            self._set(agent, name, _refuse_to_resume)
        for name, function in runs_of(self._scope, agent).items():
            self._set(agent, name, function)
        self._patch_code(agent)
        self._set(agent, "get_human_input", self._patched_input(agent))
        self._set(agent, "a_get_human_input", self._a_patched_input(agent))

    def _patch_code(self, agent: Any) -> None:
        self._set(agent, BLOCKS, blocks_run(self._effects, agent.execute_code_blocks))
        executor = agent.code_executor if runs_code(agent) else None
        if executor is not None and not self._is_patched(executor, BLOCKS):
            self._set(executor, BLOCKS, executed(self._effects, executor.execute_code_blocks))

    def _patched_start(self, agent: Any, name: str) -> Callable[..., Any]:
        original = getattr(agent, name)

        def begin(*args: Any, **kwargs: Any) -> Any:
            return self._chat.call(name, agent, original, named(original, args, kwargs))

        return begin

    def _a_patched_start(self, agent: Any, name: str) -> Callable[..., Any]:
        original = getattr(agent, name)

        async def begin(*args: Any, **kwargs: Any) -> Any:
            return await self._chat.a_call(name, agent, original, named(original, args, kwargs))

        return begin

    def _patched_receive(self, agent: Any, name: str) -> Callable[..., Any]:
        """Return a `receive` that refuses messages that would not be recorded."""
        original = getattr(agent, name)

        def receive(*args: Any, **kwargs: Any) -> Any:
            sender = named(original, args, kwargs)["sender"]
            require_given(sender, self._agents)
            if not self._chat.is_running:
                reason = f"a message that {agent.name!r} receives outside a chat is not recorded"
                send = name.replace("receive", "send")
                raise UsageError(f"{reason}: call {send}(...) on {sender.name!r}")
            return original(*args, **kwargs)

        return receive

    def _patched_update(self, agent: Any) -> Callable[[str], None]:
        original = agent.update_system_message

        def update(system_message: str) -> None:
            self._chat.catch_up()
            original(system_message)
            if not self._chat.is_running:
                self._chat.save()

        return update

    def _patched_input(self, agent: Any) -> Callable[..., str]:
        original = agent.get_human_input

        def ask(prompt: str, **options: Any) -> str:
            count = len(human_inputs(agent))
            text = self._effects.ask(
                "human_input", lambda: original(prompt, **options), agent=agent.name, prompt=prompt
            )
            return _heard(agent, text, count)

        return ask

    def _a_patched_input(self, agent: Any) -> Callable[..., Any]:
        original = agent.a_get_human_input

        async def ask(prompt: str, **options: Any) -> str:
            count = len(human_inputs(agent))
            text = await self._effects.a_ask(
                "human_input", lambda: original(prompt, **options), agent=agent.name, prompt=prompt
            )
            return _heard(agent, text, count)

        return ask


def _refuse_to_resume(*_: Any, **__: Any) -> Any:
    """Replace a manager's own `resume`, which would deliver the whole history a second time."""
    reason = "the group's history is already restored, and its own resume would duplicate it"
    raise UsageError(f"{reason}: call initiate_chat, or resume() of the chat from persist()")


def _heard(agent: Any, text: Any, count: int) -> str:
    """Return a human input; add it to the agent's list if it came from the record."""
    if len(human_inputs(agent)) == count:
        human_inputs(agent).append(text)
    return str(text)
