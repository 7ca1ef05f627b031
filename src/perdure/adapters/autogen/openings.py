"""How a chat started, as data: recognize a repeated call, and make the call again."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from math import isfinite
from typing import Any

from perdure.adapters.autogen.recorder import digest
from perdure.adapters.autogen.versions import framework
from perdure.errors import UsageError

# Method, sender, recipient and options of a chat, or of each of several `chats`; it is stored.
Opening = dict[str, Any]

QUEUE = "chat_queue"  # Argument of the methods that start several chats.

_NOT_OPTIONS = ("sender", "recipient", "cache")  # Agents, and the caller's own cache: not options.

_MAX_DEPTH = 50  # Levels of nesting in stored data; also stops at values that contain themselves.


def opening_of(method: str, sender: Any, arguments: dict[str, Any]) -> Opening:
    """Return how a chat, or each chat of a queue, starts.

    Options that cannot be stored are left out, and listed in `unstored`.
    """
    if QUEUE not in arguments:
        return {"method": method, **_chat_opening(sender, arguments)}
    chats = [_chat_opening(chat["sender"], chat) for chat in arguments[QUEUE]]
    return {"method": method, "sender": sender.name, "chats": chats}


def _chat_opening(sender: Any, arguments: dict[str, Any]) -> Opening:
    options = {key: value for key, value in arguments.items() if key not in _NOT_OPTIONS}
    plain = {key: value for key, value in options.items() if is_storable(value)}
    return {
        "sender": sender.name,
        "recipient": arguments["recipient"].name,
        "options": plain,
        "unstored": sorted(options.keys() - plain.keys()),
    }


def keep_histories(
    method: str, sender: Any, arguments: dict[str, Any], agents: list[Any]
) -> Iterator[tuple[Any, Any]]:
    """Set `clear_history` to False; yield the pairs whose history it would have cleared.

    Raises UsageError if a participant was not passed to `persist`.
    """
    if QUEUE in arguments:
        arguments[QUEUE] = _parse_queue(sender, arguments[QUEUE])
    elif "sender" in arguments:  # The framework's module-level function calls it so, per chat.
        reason = "one chat of several cannot be recorded alone"
        raise UsageError(f"{reason}: call an agent's own initiate_chats(...) with all of them")
    chats = [(chat.get("sender", sender), chat) for chat in arguments.get(QUEUE, [arguments])]
    for chat_sender, chat in chats:
        require_participant(chat_sender, agents)
        require_participant(chat["recipient"], agents)
    for chat_sender, chat in chats if not method.endswith("send") else []:
        if chat.get("clear_history", True) and chat_sender.chat_messages.get(chat["recipient"]):
            yield chat_sender, chat["recipient"]
        # Clearing would erase what the record has, and histories are rebuilt from the record.
        chat["clear_history"] = False


def _parse_queue(sender: Any, queue: Any) -> list[dict[str, Any]]:
    """Return a copy of a chat queue with senders filled in: the framework modifies the queue."""
    chats: list[Any] = [*queue] if isinstance(queue, list | tuple) else [queue]
    if not all(isinstance(chat, dict) and "recipient" in chat for chat in chats):
        raise UsageError("pass a list of chats, each a dict with its recipient", f"$.{QUEUE}")
    return [{**chat, "sender": chat.get("sender") or sender} for chat in chats]


def require_participant(agent: Any, agents: Iterable[Any]) -> None:
    """Raise UsageError if an agent was not passed to `persist`."""
    if any(participant is agent for participant in agents):
        return
    name = getattr(agent, "name", None)
    if name is None:
        raise UsageError(f"a {type(agent).__qualname__} is not an agent: pass the agent itself")
    reason = f"{name!r} was not passed to persist(): pass all agents (run() creates its own)"
    if any(participant.name == name for participant in agents):
        reason = f"another agent was passed to persist() as {name!r}: use that one"
    elif hasattr(agent, "groupchat"):
        hint = "group patterns create their own and are not supported: use a GroupChat"
        reason = f"the manager {name!r} was not passed to persist(): pass it ({hint})"
    raise UsageError(reason)


def is_storable(value: object, depth: int = 0) -> bool:
    """Return whether a value is plain JSON data that reads back equal."""
    # By exact type: a subclass, such as a named tuple or an enum, reads back as its base.
    if type(value) is dict:
        texts = all(type(key) is str and is_storable(key) for key in value)
        return (
            texts and depth < _MAX_DEPTH and all(is_storable(v, depth + 1) for v in value.values())
        )
    if type(value) is list:
        return depth < _MAX_DEPTH and all(is_storable(item, depth + 1) for item in value)
    if type(value) is str:  # Lone surrogates cannot be encoded.
        return value.isascii() or value == value.encode("utf-8", "ignore").decode("utf-8")
    if type(value) is float:
        return isfinite(value)
    return value is None or type(value) in (bool, int)


def is_same_opening(recorded: Opening, opening: Opening) -> bool:
    """Return whether a call starts the interrupted chat: same sender, recipient and message."""
    return digest(_opening_identity(recorded)) == digest(_opening_identity(opening))


def _opening_identity(opening: Opening) -> list[Any]:
    # Other options, such as limits of turns, may change between attempts.
    return [
        [chat["sender"], chat["recipient"], chat["options"].get("message", chat["unstored"])]
        for chat in _chats(opening)
    ]


def _chats(opening: Opening) -> list[Opening]:
    chats: list[Opening] = opening.get("chats", [opening])
    return chats


def describe(opening: Opening) -> str:
    """Return a description of a chat for messages."""
    recipients = ", ".join(chat["recipient"] for chat in _chats(opening))
    noun = "the chats" if "chats" in opening else "the chat"
    return f"{noun} that {opening['sender']} started with {recipients}"


def resume_call(opening: Opening, agents: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the method that starts a chat again, and its arguments."""
    unstored = sorted({name for chat in _chats(opening) for name in chat["unstored"]})
    if unstored:
        reason = f"{describe(opening)} had a {unstored[0]} that cannot be stored"
        raise UsageError(f"{reason}: make the same call as before")
    method = getattr(agents[opening["sender"]], opening["method"])
    arguments = [
        {"recipient": agents[chat["recipient"]], **chat["options"]} for chat in _chats(opening)
    ]
    if "chats" not in opening:
        return method, arguments[0]
    senders = [agents[chat["sender"]] for chat in opening["chats"]]
    return method, {
        QUEUE: [
            {**chat, "sender": chat_sender}
            for chat, chat_sender in zip(arguments, senders, strict=True)
        ]
    }


def arguments_by_name(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name."""
    signature = inspect.signature(function)
    if any(
        parameter.kind is parameter.VAR_POSITIONAL for parameter in signature.parameters.values()
    ):
        # A user's subclass that forwards *args: bind them to the framework's own signature.
        signature = inspect.signature(getattr(framework().ConversableAgent, function.__name__))
        args = (None, *args)
    bound = signature.bind(*args, **kwargs).arguments
    return {
        **{key: value for key, value in bound.items() if key not in ("self", "kwargs")},
        **bound.get("kwargs", {}),
    }
