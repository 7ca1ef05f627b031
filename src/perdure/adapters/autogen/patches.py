"""Patch the agents of a chat and the framework's classes while a chat is persisted.

Three kinds of patches, in this order: `AgentPatches` replaces methods, tools and hooks of the given
agents; `patched_run_methods` are their run methods, which the framework executes in a thread or a
task of its own; `install` replaces methods of the client and group classes, because the framework
creates clients and groups while a chat runs. Class patches affect only clients that a chat has
claimed and code that runs inside a chat. Everything is restored when the `with persist(...)` block
and its last chat have ended.
"""

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from perdure.adapters.autogen.agent_state import ChatAgents
from perdure.adapters.autogen.context import ChatContext, PersistScope, current_chat
from perdure.adapters.autogen.model_calls import ModelFailures
from perdure.adapters.autogen.openings import arguments_by_name, require_participant
from perdure.adapters.autogen.recorder import MessageRecorder
from perdure.adapters.autogen.tool_calls import ChatEffects, durable_code_blocks, durable_executor
from perdure.adapters.autogen.versions import (
    ASYNC_SEND_HOOKS,
    SEND_HOOKS,
    human_inputs,
    runs_code,
)
from perdure.errors import UsageError

_START_METHODS = ("initiate_chat", "initiate_chats", "send")
_INITIATE_METHODS = ("initiate_chat", "a_initiate_chat")
_RUN_METHODS, _ASYNC_RUN_METHODS = ("run",), ("a_run",)
_LAZY_RUN_METHODS = ("run_iter", "a_run_iter")  # They start when the first event is requested.
_REFUSED_METHODS = ("sequential_run", "a_sequential_run")
EXECUTE_METHOD = "execute_code_blocks"

# Attribute of a durable tool: the function that the agent had before, to be put back.
_ORIGINAL_MARK = "_perdure_original"


class ChatCallbacks(ChatContext, Protocol):
    """A chat, as the patched methods see it."""

    def catch_up(self) -> None: ...

    def save(self) -> None: ...

    def call(
        self, method: str, sender: Any, function: Callable[..., Any], arguments: dict[str, Any]
    ) -> Any: ...

    async def a_call(
        self, method: str, sender: Any, function: Callable[..., Any], arguments: dict[str, Any]
    ) -> Any: ...


class AgentPatches:
    """The patches on the agents of a chat. Only these objects are changed, never their classes."""

    def __init__(
        self,
        chat: ChatCallbacks,
        scope: PersistScope,
        agents: ChatAgents,
        recorder: MessageRecorder,
        effects: ChatEffects,
        failures: ModelFailures,
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
            if not self._is_patched(agent, "send"):  # All methods of an agent are patched together.
                self._patch_methods(agent)
            for name, function in agent.function_map.items():
                if not hasattr(function, _ORIGINAL_MARK):
                    durable = self._effects.tool(name, function)
                    setattr(durable, _ORIGINAL_MARK, function)
                    agent.function_map[name] = durable
            self._unhook(agent)  # Append it again, so that it runs last and sees the final message.
            agent.hook_lists[SEND_HOOKS].append(self._recorder)
            if ASYNC_SEND_HOOKS in agent.hook_lists:
                agent.hook_lists[ASYNC_SEND_HOOKS].append(self._recorder.a_call)
        claim(self._chat, [agent.client for agent in self._agents if agent.client])

    def undo(self) -> None:
        """Restore every patched attribute, hook and tool."""
        for target, name, original in self._originals:
            if original is None:  # The class's method is visible again.
                vars(target).pop(name, None)
            else:
                vars(target)[name] = original  # An instance attribute the user had set.
        self._originals = []
        for agent in self._agents:
            self._unhook(agent)
            for name, function in agent.function_map.items():
                agent.function_map[name] = getattr(function, _ORIGINAL_MARK, function)

    def _unhook(self, agent: Any) -> None:
        # Compared by equality: each access to a method creates a new object.
        recorder_hooks = (self._recorder, self._recorder.a_call)
        for name in {SEND_HOOKS, ASYNC_SEND_HOOKS} & agent.hook_lists.keys():
            hooks = agent.hook_lists[name]
            agent.hook_lists[name] = [hook for hook in hooks if hook not in recorder_hooks]

    def _is_patched(self, target: Any, name: str) -> bool:
        # By identity: agents share executors, and users' classes may define equality.
        return any(
            patched is target and attribute == name for patched, attribute, _ in self._originals
        )

    def _set(self, target: Any, name: str, function: Callable[..., Any]) -> None:
        self._originals.append((target, name, vars(target).get(name)))
        vars(target)[name] = function

    def _patch_methods(self, agent: Any) -> None:
        for name in _START_METHODS:
            self._set(agent, name, self._patched_start(agent, name))
            self._set(agent, f"a_{name}", self._a_patched_start(agent, f"a_{name}"))
        for name in ("receive", "a_receive"):
            self._set(agent, name, self._patched_receive(agent, name))
        for name in ("a_generate_reply", "a_generate_oai_reply"):
            self._set(agent, name, self._failures.attributing(getattr(agent, name)))
        self._set(agent, "update_system_message", self._patched_update(agent))
        # Only managers of groups have their own `resume`.
        for name in ("resume", "a_resume") if hasattr(agent, "groupchat") else ():
            self._set(agent, name, _refuse_to_resume)
        for name, function in patched_run_methods(self._scope, agent).items():
            self._set(agent, name, function)
        self._patch_code(agent)
        self._set(agent, "get_human_input", self._patched_input(agent))
        self._set(agent, "a_get_human_input", self._a_patched_input(agent))

    def _patch_code(self, agent: Any) -> None:
        self._set(
            agent, EXECUTE_METHOD, durable_code_blocks(self._effects, agent.execute_code_blocks)
        )
        # Agents run code themselves or through an executor, which several agents may share.
        executor = agent.code_executor if runs_code(agent) else None
        if executor is not None and not self._is_patched(executor, EXECUTE_METHOD):
            self._set(
                executor,
                EXECUTE_METHOD,
                durable_executor(self._effects, executor.execute_code_blocks),
            )

    def _patched_start(self, agent: Any, name: str) -> Callable[..., Any]:
        original = getattr(agent, name)

        def begin(*args: Any, **kwargs: Any) -> Any:
            return self._chat.call(name, agent, original, arguments_by_name(original, args, kwargs))

        return begin

    def _a_patched_start(self, agent: Any, name: str) -> Callable[..., Any]:
        original = getattr(agent, name)

        async def begin(*args: Any, **kwargs: Any) -> Any:
            return await self._chat.a_call(
                name, agent, original, arguments_by_name(original, args, kwargs)
            )

        return begin

    def _patched_receive(self, agent: Any, name: str) -> Callable[..., Any]:
        """Return a `receive` that refuses messages that would not be recorded."""
        original = getattr(agent, name)

        def receive(*args: Any, **kwargs: Any) -> Any:
            sender = arguments_by_name(original, args, kwargs)["sender"]
            require_participant(sender, self._agents)
            if not self._chat.is_running:
                reason = f"a message that {agent.name!r} receives outside a chat is not recorded"
                send = name.replace("receive", "send")
                raise UsageError(f"{reason}: call {send}(...) on {sender.name!r}")
            return original(*args, **kwargs)

        return receive

    def _patched_update(self, agent: Any) -> Callable[[str], None]:
        original = agent.update_system_message

        def update(system_message: str) -> None:
            self._chat.catch_up()  # A newer state that is restored later would undo the update.
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
            return _note_human_input(agent, text, count)

        return ask

    def _a_patched_input(self, agent: Any) -> Callable[..., Any]:
        original = agent.a_get_human_input

        async def ask(prompt: str, **options: Any) -> str:
            count = len(human_inputs(agent))
            text = await self._effects.a_ask(
                "human_input", lambda: original(prompt, **options), agent=agent.name, prompt=prompt
            )
            return _note_human_input(agent, text, count)

        return ask


def _refuse_to_resume(*_: Any, **__: Any) -> Any:
    """Replace a manager's own `resume`, which would deliver the whole history a second time."""
    reason = "the group's history is already restored, and its own resume would duplicate it"
    raise UsageError(f"{reason}: call initiate_chat, or resume() of the chat from persist()")


def _note_human_input(agent: Any, text: Any, count: int) -> str:
    """Return a human input; add it to the agent's list if it came from the record."""
    # A live input was added by the framework's own method, which a replay does not call.
    if len(human_inputs(agent)) == count:
        human_inputs(agent).append(text)
    return str(text)


def patched_run_methods(scope: PersistScope, agent: Any) -> dict[str, Callable[..., Any]]:
    """Return the patched run methods of an agent, by name."""
    methods: dict[str, Callable[..., Any]] = {}
    for name in (*_RUN_METHODS, *_ASYNC_RUN_METHODS, *_LAZY_RUN_METHODS):
        original = getattr(agent, name, None)
        if _is_framework_method(original):
            patch = _patched_async_run if name in _ASYNC_RUN_METHODS else _patched_run
            methods[name] = patch(
                _RunMethod(scope, agent, original, soon=name not in _LAZY_RUN_METHODS)
            )
    refused = [
        name for name in _REFUSED_METHODS if _is_framework_method(getattr(agent, name, None))
    ]
    return methods | {name: partial(_refuse_sequential_run, name) for name in refused}


def _is_framework_method(method: object) -> bool:
    """Return whether a method is the framework's: a user's class may define its own."""
    # Older versions lack some of the run methods; a function set on the agent is the user's.
    module = getattr(getattr(method, "__func__", None), "__module__", None)
    return isinstance(module, str) and module.startswith("autogen.")


class _RunMethod:
    """A run method of an agent, through which the framework starts a chat."""

    def __init__(self, scope: PersistScope, agent: Any, original: Any, *, soon: bool) -> None:
        self._scope = scope
        self._agent = agent
        self._original = original
        self._soon = soon

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the framework's method on a copy of the agent that reports when its chat starts."""
        arguments = arguments_by_name(self._original, args, kwargs)
        if arguments.get("recipient") is None:
            name = self._original.__name__
            reason = f"{name}() creates its own agent to talk to {self._agent.name!r}"
            raise UsageError(f"{reason}: pass a recipient, and pass it to persist() too")
        self._scope.require_entered()
        if self._soon:  # The block must not end before the thread or task has reached its chat.
            self._scope.expect_chat()
        return self._original.__func__(self._agent_copy(), **arguments)

    def _agent_copy(self) -> Any:
        # A shallow copy that calls neither the constructor nor a user's `__copy__`.
        agent = object.__new__(type(self._agent))
        vars(agent).update(vars(self._agent))
        if self._soon:
            vars(agent).update({name: self._patched_start(name) for name in _INITIATE_METHODS})
        return agent

    def _patched_start(self, name: str) -> Callable[..., Any]:
        begin = vars(self._agent)[name]

        def start(*args: Any, **kwargs: Any) -> Any:
            self._scope.chat_arrived()
            return begin(*args, **kwargs)

        return start

    def with_agent(self, response: Any) -> Any:
        """Return the framework's response, with the original agent in place of the copy."""
        agents = getattr(response, "agents", None)
        if isinstance(agents, list) and agents:
            agents[0] = self._agent
        return response


def _patched_run(run: _RunMethod) -> Callable[..., Any]:
    return lambda *args, **kwargs: run.with_agent(run.begin(args, kwargs))


def _patched_async_run(run: _RunMethod) -> Callable[..., Any]:
    async def begin(*args: Any, **kwargs: Any) -> Any:
        return run.with_agent(await run.begin(args, kwargs))

    return begin


def _refuse_sequential_run(name: str, *_: Any, **__: Any) -> Any:
    instead = f"{'a_' if name.startswith('a_') else ''}initiate_chats"
    raise UsageError(f"the chats of {name}() cannot be recorded as one: call {instead}()")


# The chat of each client. Weak: the framework drops clients without notice.
_owners: WeakKeyDictionary[Any, ChatContext] = WeakKeyDictionary()

_install_lock = Lock()

_originals: list[tuple[type, str, Any]] = []

_install_count = 0


def install(autogen: Any) -> None:
    """Patch the client and group classes; `uninstall` undoes it after the last user."""
    global _install_count  # noqa: PLW0603 - one framework, one patch of it
    with _install_lock:
        _install_count += 1
        if _install_count == 1:
            _patch(autogen.OpenAIWrapper, "__init__", _patched_init)
            _patch(autogen.OpenAIWrapper, "create", _patched_create)
            for name in ("random_select_speaker", "manual_select_speaker"):
                _patch(autogen.GroupChat, name, _patched_select)


def uninstall() -> None:
    """Undo `install` for one user; the last one restores the classes."""
    global _install_count  # noqa: PLW0603 - as above
    with _install_lock:
        _install_count -= 1
        while _install_count == 0 and _originals:
            cls, name, original = _originals.pop()
            setattr(cls, name, original)


def _patch(cls: type, name: str, wrap: Callable[[Callable[..., Any]], Any]) -> None:
    original = vars(cls)[name]  # Not `getattr`: exactly this object is put back.
    _originals.append((cls, name, original))
    setattr(cls, name, wrap(original))


def claim(chat: ChatContext, clients: list[Any]) -> None:
    """Route the model calls of these clients to a chat."""
    for client in clients:
        _owners[client] = chat


def unclaim(chat: ChatContext) -> None:
    """Stop routing model calls to a chat."""
    for client in [client for client, owner in _owners.items() if owner is chat]:
        del _owners[client]


def _patched_init(init: Callable[..., None]) -> Callable[..., None]:
    def init_owned(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        # A client created inside a chat may be used in a thread that does not inherit the context.
        chat = current_chat.get()
        if chat is not None:
            _owners[self] = chat

    return init_owned


def _patched_create(create: Callable[..., Any]) -> Callable[..., Any]:
    def create_owned(self: Any, **config: Any) -> Any:
        # An agent's own client is claimed; a temporary agent's belongs to the running chat.
        chat = _owners.get(self) or current_chat.get()
        if chat is None or not chat.is_running:
            return create(self, **config)
        return chat.call_model(self, create, config)

    return create_owned


def _patched_select(select: Callable[..., Any]) -> Callable[..., Any]:
    def select_owned(self: Any, agents: Any = None) -> Any:
        chat = current_chat.get()
        if chat is None or not chat.is_running:
            return select(self, agents)
        return chat.select_speaker(self, select, agents)

    return select_owned
