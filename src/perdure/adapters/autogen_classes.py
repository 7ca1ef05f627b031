"""Patch the two framework classes whose instances are out of reach, for persisted chats only.

The framework creates temporary agents (to choose a speaker) and copies of group chats, which no
patch of a given object would reach. So the client and group classes look up which chat they
belong to, and behave as before where they belong to none. The patch is global: it is applied with
the first open chat and undone with the last.
"""

from collections.abc import Callable
from contextvars import ContextVar
from threading import Lock
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary


class Asking(Protocol):
    """A chat, as patched clients and groups see it."""

    @property
    def is_running(self) -> bool: ...

    def call_model(
        self, wrapper: Any, create: Callable[..., Any], config: dict[str, Any]
    ) -> Any: ...

    def select_speaker(self, group: Any, select: Callable[..., Any], agents: Any) -> Any: ...


class Calling(NamedTuple):
    """A chat and its tool that is running."""

    chat: Asking
    tool: str


inside: ContextVar[Asking | None] = ContextVar("perdure_autogen_chat", default=None)
"""The chat that the running code belongs to."""

calling: ContextVar[Calling | None] = ContextVar("perdure_autogen_tool", default=None)
"""The tool that the running code belongs to."""

_owners: WeakKeyDictionary[Any, Asking] = WeakKeyDictionary()
_lock = Lock()
_before: list[tuple[type, str, Any]] = []
_users = 0


def own(chat: Asking, clients: list[Any]) -> None:
    """Route the model calls of these clients to a chat."""
    for client in clients:
        _owners[client] = chat


def disown(chat: Asking) -> None:
    """Stop routing model calls to a chat."""
    for client in [client for client, owner in _owners.items() if owner is chat]:
        del _owners[client]


def install(autogen: Any) -> None:
    """Patch the client and group classes; `uninstall` undoes it after the last user."""
    global _users  # noqa: PLW0603 - one framework, one patch of it
    with _lock:
        _users += 1
        if _users == 1:
            _change(autogen.OpenAIWrapper, "__init__", _beginning)
            _change(autogen.OpenAIWrapper, "create", _creating)
            for name in ("random_select_speaker", "manual_select_speaker"):
                _change(autogen.GroupChat, name, _choosing)


def uninstall() -> None:
    """Undo `install` for one user; the last one restores the classes."""
    global _users  # noqa: PLW0603 - as above
    with _lock:
        _users -= 1
        while _users == 0 and _before:
            cls, name, original = _before.pop()
            setattr(cls, name, original)


def _change(cls: type, name: str, wrap: Callable[[Callable[..., Any]], Any]) -> None:
    original = vars(cls)[name]
    _before.append((cls, name, original))
    setattr(cls, name, wrap(original))


def _beginning(init: Callable[..., None]) -> Callable[..., None]:
    def init_owned(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        chat = inside.get()
        if chat is not None:
            _owners[self] = chat

    return init_owned


def _creating(create: Callable[..., Any]) -> Callable[..., Any]:
    def create_owned(self: Any, **config: Any) -> Any:
        # An agent's own client is claimed; a temporary agent's belongs to the running chat.
        chat = _owners.get(self) or inside.get()
        if chat is None or not chat.is_running:
            return create(self, **config)
        return chat.call_model(self, create, config)

    return create_owned


def _choosing(select: Callable[..., Any]) -> Callable[..., Any]:
    def select_owned(self: Any, agents: Any = None) -> Any:
        chat = inside.get()
        if chat is None or not chat.is_running:
            return select(self, agents)
        return chat.select_speaker(self, select, agents)

    return select_owned
