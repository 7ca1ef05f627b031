"""How a chat began, as data: whether a later call is the same, and how it is made again."""

from typing import Any

from perdure import UsageError
from perdure.adapters.autogen_record import digest

Opening = dict[str, Any]

_PLAIN = (str, int, float, bool, type(None))


def opening_of(method: str, sender: Any, recipient: Any, given: dict[str, Any]) -> Opening:
    """Return how a chat begins. What can not be stored is left out, and named in `unstored`."""
    options = {key: value for key, value in given.items() if key not in ("recipient", "cache")}
    plain = {key: value for key, value in options.items() if storable(value)}
    return {
        "method": method,
        "sender": sender.name,
        "recipient": recipient.name,
        "options": plain,
        "unstored": sorted(options.keys() - plain.keys()),
    }


def storable(value: object) -> bool:
    """Whether a value is what JSON can say."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and storable(one) for key, one in value.items())
    if isinstance(value, list):
        return all(storable(one) for one in value)
    return isinstance(value, _PLAIN)


def same(recorded: Opening, given: Opening) -> bool:
    """Whether a call begins the chat that was interrupted: who speaks to whom, and what is said."""
    return digest(_told(recorded)) == digest(_told(given))


def _told(opening: Opening) -> list[Any]:
    message = opening["options"].get("message", opening["unstored"])
    return [opening["sender"], opening["recipient"], message]


def words(opening: Opening) -> str:
    return f"the chat that {opening['sender']} began with {opening['recipient']}"


def again(opening: Opening, agents: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the method that begins a chat again, and its arguments."""
    if "message" in opening["unstored"]:
        reason = f"{words(opening)} has a function as its message, which is not stored"
        raise UsageError(f"{reason}: begin it with the same call as before")
    recipient = agents[opening["recipient"]]
    method = getattr(agents[opening["sender"]], opening["method"])
    return method, {"recipient": recipient, **opening["options"]}
