"""How a chat began, as data: whether a later call is the same, and how it is made again."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from math import isfinite
from typing import Any

from perdure import UsageError
from perdure.adapters.autogen_names import framework
from perdure.adapters.autogen_record import digest

Opening = dict[str, Any]

QUEUE = "chat_queue"

_APART = ("sender", "recipient", "cache")  # A cache is the caller's own; the others are agents.
_DEEPEST = 50  # Levels of a value that is stored as a part of others. One may contain itself.


def opening_of(method: str, sender: Any, given: dict[str, Any]) -> Opening:
    """Return how a chat begins, or how those of a queue do.

    What can not be stored is left out, and named in `unstored`.
    """
    if QUEUE not in given:
        return {"method": method, **_beginning(sender, given)}
    chats = [_beginning(one["sender"], one) for one in given[QUEUE]]
    return {"method": method, "sender": sender.name, "chats": chats}


def _beginning(sender: Any, given: dict[str, Any]) -> Opening:
    options = {key: value for key, value in given.items() if key not in _APART}
    plain = {key: value for key, value in options.items() if storable(value)}
    return {
        "sender": sender.name,
        "recipient": given["recipient"].name,
        "options": plain,
        "unstored": sorted(options.keys() - plain.keys()),
    }


def prepare(
    method: str, sender: Any, given: dict[str, Any], agents: list[Any]
) -> Iterator[tuple[Any, Any]]:
    """Have chats go on with what was said, whatever the call says; yield pairs that it would clear.

    Raises UsageError if somebody takes part who is not among the agents.
    """
    if QUEUE in given:
        given[QUEUE] = _queue(sender, given[QUEUE])
    elif "sender" in given:  # As a function of the framework calls it, for each of a queue.
        reason = "one chat of several can not be kept alone"
        raise UsageError(f"{reason}: call an agent's own initiate_chats(...) with all of them")
    chats = [(one.get("sender", sender), one) for one in given.get(QUEUE, [given])]
    for by, one in chats:
        require_given(by, agents)
        require_given(one["recipient"], agents)
    for by, one in chats if not method.endswith("send") else []:
        if one.get("clear_history", True) and by.chat_messages.get(one["recipient"]):
            yield by, one["recipient"]
        one["clear_history"] = False


def _queue(sender: Any, queue: Any) -> list[dict[str, Any]]:
    """Return a queue of chats with their senders: a copy, as the framework changes it."""
    found: list[Any] = [*queue] if isinstance(queue, list | tuple) else [queue]
    if not all(isinstance(one, dict) and "recipient" in one for one in found):
        raise UsageError("give a list of chats, each a dict with its recipient", f"$.{QUEUE}")
    return [{**one, "sender": one.get("sender") or sender} for one in found]


def require_given(agent: Any, agents: Iterable[Any]) -> None:
    """Raise UsageError if an agent takes part who is not kept."""
    if any(one is agent for one in agents):
        return
    name = getattr(agent, "name", None)
    if name is None:
        raise UsageError(f"a {type(agent).__qualname__} is not an agent: give the agent itself")
    reason = f"{name!r} was not given to persist(): give all agents (run() makes one of its own)"
    if any(one.name == name for one in agents):
        reason = f"another agent was given to persist() as {name!r}: talk to that one"
    elif hasattr(agent, "groupchat"):
        hint = "group patterns make one of their own and are not kept: use a GroupChat"
        reason = f"the manager {name!r} was not given to persist(): give it ({hint})"
    raise UsageError(reason)


def storable(value: object, depth: int = 0) -> bool:
    """Whether a value is what JSON can say, and is no other when it is read again."""
    if type(value) is dict:
        texts = all(type(key) is str and storable(key) for key in value)
        return texts and depth < _DEEPEST and all(storable(v, depth + 1) for v in value.values())
    if type(value) is list:
        return depth < _DEEPEST and all(storable(one, depth + 1) for one in value)
    if type(value) is str:
        return value.isascii() or value == value.encode("utf-8", "ignore").decode("utf-8")
    if type(value) is float:
        return isfinite(value)
    return value is None or type(value) in (bool, int)


def same(recorded: Opening, given: Opening) -> bool:
    """Whether a call begins the chat that was interrupted: who speaks to whom, and what is said."""
    return digest(_told(recorded)) == digest(_told(given))


def _told(opening: Opening) -> list[Any]:
    return [
        [one["sender"], one["recipient"], one["options"].get("message", one["unstored"])]
        for one in _chats(opening)
    ]


def _chats(opening: Opening) -> list[Opening]:
    found: list[Opening] = opening.get("chats", [opening])
    return found


def words(opening: Opening) -> str:
    recipients = ", ".join(one["recipient"] for one in _chats(opening))
    what = "the chats" if "chats" in opening else "the chat"
    return f"{what} that {opening['sender']} began with {recipients}"


def again(opening: Opening, agents: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the method that begins a chat again, and its arguments."""
    unstored = sorted({name for one in _chats(opening) for name in one["unstored"]})
    if unstored:
        reason = f"{words(opening)} had a {unstored[0]} that can not be stored"
        raise UsageError(f"{reason}: begin with the same call as before")
    method = getattr(agents[opening["sender"]], opening["method"])
    given = [{"recipient": agents[one["recipient"]], **one["options"]} for one in _chats(opening)]
    if "chats" not in opening:
        return method, given[0]
    senders = [agents[one["sender"]] for one in opening["chats"]]
    return method, {QUEUE: [{**one, "sender": by} for one, by in zip(given, senders, strict=True)]}


def named(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name."""
    signature = inspect.signature(function)
    if any(one.kind is one.VAR_POSITIONAL for one in signature.parameters.values()):
        # Of a class of one's own, which hands them on: they are called as the framework's are.
        signature = inspect.signature(getattr(framework().ConversableAgent, function.__name__))
        args = (None, *args)
    bound = signature.bind(*args, **kwargs).arguments
    return {
        **{key: value for key, value in bound.items() if key not in ("self", "kwargs")},
        **bound.get("kwargs", {}),
    }
