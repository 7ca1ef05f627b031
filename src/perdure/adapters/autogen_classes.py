"""The two classes of the framework that are changed while chats are kept, and for those only.

Agents that the framework makes for a moment, to choose a speaker, and copies that it makes of group
chats are out of anybody's reach. So the classes of clients and of groups ask whose they are, and
do what they did where they are nobody's.
"""

from collections.abc import Callable
from contextvars import ContextVar
from threading import Lock
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary


class Asking(Protocol):
    """A chat, as clients and groups see it."""

    @property
    def talking(self) -> bool: ...

    def ask(self, wrapper: Any, create: Callable[..., Any], config: dict[str, Any]) -> Any: ...

    def choose(self, group: Any, choose: Callable[..., Any], agents: Any) -> Any: ...


class Calling(NamedTuple):
    """A chat and one of its tools, which is running."""

    chat: Asking
    tool: str


inside: ContextVar[Asking | None] = ContextVar("perdure_autogen_chat", default=None)
"""The chat that the running code is a part of."""

calling: ContextVar[Calling | None] = ContextVar("perdure_autogen_tool", default=None)
"""The tool that the running code is a part of."""

_owners: WeakKeyDictionary[Any, Asking] = WeakKeyDictionary()
_lock = Lock()
_before: list[tuple[type, str, Any]] = []
_users = 0


def own(chat: Asking, clients: list[Any]) -> None:
    """Let the model calls of some clients be a chat's."""
    for client in clients:
        _owners[client] = chat


def disown(chat: Asking) -> None:
    for client in [one for one, owner in _owners.items() if owner is chat]:
        del _owners[client]


def install(autogen: Any) -> None:
    """Have clients and groups ask whose they are; `uninstall` undoes it after the last user."""
    global _users  # noqa: PLW0603 - there is one framework, and one change of it
    with _lock:
        _users += 1
        if _users == 1:
            _change(autogen.OpenAIWrapper, "__init__", _beginning)
            _change(autogen.OpenAIWrapper, "create", _creating)
            for name in ("random_select_speaker", "manual_select_speaker"):
                _change(autogen.GroupChat, name, _choosing)


def uninstall() -> None:
    global _users  # noqa: PLW0603 - as above
    with _lock:
        _users -= 1
        while _users == 0 and _before:
            cls, name, original = _before.pop()
            setattr(cls, name, original)


def _change(cls: type, name: str, change: Callable[[Callable[..., Any]], Any]) -> None:
    original = vars(cls)[name]
    _before.append((cls, name, original))
    setattr(cls, name, change(original))


def _beginning(begin: Callable[..., None]) -> Callable[..., None]:
    def begin_owned(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        chat = inside.get()
        if chat is not None:
            _owners[self] = chat

    return begin_owned


def _creating(create: Callable[..., Any]) -> Callable[..., Any]:
    def create_owned(self: Any, **config: Any) -> Any:
        chat = _owners.get(self) or inside.get()
        if chat is None or not chat.talking:
            return create(self, **config)
        return chat.ask(self, create, config)

    return create_owned


def _choosing(choose: Callable[..., Any]) -> Callable[..., Any]:
    def choose_owned(self: Any, agents: Any = None) -> Any:
        chat = inside.get()
        if chat is None or not chat.talking:
            return choose(self, agents)
        return chat.choose(self, choose, agents)

    return choose_owned
