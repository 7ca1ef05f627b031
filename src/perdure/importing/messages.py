"""A file of messages that another program left → messages to append, and a report of repairs. Pure.

Nothing is left out in silence: an element either is a message, as it stands or repaired, or its
text is a leftover that goes into a note. Whoever says something is told by the role, never guessed
from the order.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from perdure import codec
from perdure.conversations.intake import ROLES, require_role
from perdure.effects import calls
from perdure.errors import UsageError
from perdure.importing.elements import LISTS, Element, read
from perdure.importing.text import IN_NOTE, Repair

# What programs call those who speak, where it is not what providers call them.
ALIASES = {
    "human": "user",
    "ai": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "gpt": "assistant",
    "model": "assistant",
}
_ITEM = re.compile(r"\w+_call|\w+_output|mcp_\w+|message|reasoning|compaction|item_reference")
_SILENT = frozenset({"role", "content", "name", "refusal", "tool_call_id", "type", "id"})
# How pickles begin: from protocol 2 on, of lists and dicts in 1, of those and others in 0.
_PICKLE = re.compile(
    rb"\x80|[\]}]q\0|\([dlt]p\d+\n|\(?[VS][^\n]*\np\d+\n|c[\w.]+\n[\w.]+\n(?:p\d+\n|q\0)"
)
_NAME_MAX = 64  # Letters; providers take no longer names of speakers.


class Leftover(NamedTuple):
    """The text of an element that could not be a message as it stands. `element` counts from 1."""

    element: int
    byte: int
    reason: str
    raw: str


class Imported(NamedTuple):
    """What a file holds. `about` is what stood beside the list of messages, key by key."""

    messages: list[dict[str, Any]]
    repairs: list[Repair]
    leftovers: list[Leftover]
    about: dict[str, Any]


def parse(data: bytes) -> Imported:
    """Read a list of messages, JSON lines of them, or an object that holds a list of them.

    Whatever the file holds, this does not raise, but for a pickle, which is UsageError. Messages
    are as `session.append` takes them; but one that is too large for a record is not told here.
    """
    if _PICKLE.match(data):
        reason = "a pickle is not read, since reading one runs what it says"
        raise UsageError(f"{reason}: let the program that wrote it write JSON")
    found = read(data)
    judge = _Judge(found.repairs)
    for number, element in enumerate(found.elements, start=1):
        judge.take(number, element)
    judge.close()
    about = {key: judge.beside(key, element) for key, element in found.about.items()}
    repairs = sorted(judge.repairs, key=lambda repair: repair.element or 0)
    return Imported(judge.messages, repairs, judge.leftovers, about)


class _Judge:
    def __init__(self, repairs: list[Repair]) -> None:
        self.messages: list[dict[str, Any]] = []
        self.leftovers: list[Leftover] = []
        self.repairs = [*repairs]
        self._keep_raw = {repair.element for repair in repairs if repair.keep_raw}
        self._open: dict[str, int] = {}
        self._codec = codec.Codec()

    def take(self, number: int, element: Element) -> None:
        """Make a message of an element, or leave its text over."""
        if element.damage:
            self._leave(number, element, element.damage)
            return
        try:
            message = self._message(number, element.value)
        except UsageError as error:
            reason = error.reason.partition(":")[0]
            self._repair(number, f"no message: {reason}", f"its text {IN_NOTE}")
            self._leave(number, element, reason)
            return
        if number in self._keep_raw:
            self._leave(number, element, "a key more than once")
        self._follow_calls(number, message)
        self.messages.append(message)

    def close(self) -> None:
        """Report the calls that nobody answered."""
        for call, number in self._open.items():
            done = "kept; a transcript closes it as interrupted"
            self._repair(number, f"the call {call[:40]!r} has no result", done)

    def beside(self, key: str, element: Element) -> Any:
        """Return what stands beside the messages, or its text where that can not be stored."""
        try:
            return self._storable({key: element.value}, None)[key]
        except (UsageError, RecursionError) as error:
            reason = error.reason if isinstance(error, UsageError) else "nested too deeply"
            self._repair(None, f"{key[:40]!r}: {reason}", "kept as its text")
            return element.raw

    def _message(self, number: int, value: Any) -> dict[str, Any]:
        """Return an element as a message that can be stored, or raise UsageError."""
        if not isinstance(value, dict):
            raise UsageError(f"{_kind(value)} stands where a message should")
        message = self._with_role(number, value)
        try:
            message = self._storable(self._with_content(number, message), number)
        except RecursionError:
            raise UsageError("nested too deeply") from None
        message = self._answering(number, message)
        require_role(message)
        return message

    def _storable(self, value: dict[str, Any], number: int | None) -> dict[str, Any]:
        """Return a value without what `codec` refuses in texts; UsageError if it refuses more."""
        try:
            self._codec.pack(value)
        except UsageError:
            value = self._clean(value, number)
            self._codec.pack(value)
        return value

    def _clean(self, value: Any, number: int | None) -> Any:
        if isinstance(value, str):
            clean = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            if clean != value:
                self._repair(number, "half of a surrogate pair", "became U+FFFD")
            return clean
        if isinstance(value, list):
            return [self._clean(item, number) for item in value]
        if isinstance(value, dict):
            return {
                self._clean(key, number): self._clean(item, number) for key, item in value.items()
            }
        return value

    def _with_role(self, number: int, value: dict[str, Any]) -> dict[str, Any]:
        role = value.get("role")
        if role is None:
            return self._without_role(number, value)
        if not isinstance(role, str) or not role.strip():
            raise UsageError("its role is not a word")
        known = role.strip().lower()
        if known == "model" and "parts" in value:  # Gemini's own word.
            pass
        elif known in ALIASES:
            known = ALIASES[known]
        elif known not in ROLES:
            name = value.get("name") or re.sub(r"\W+", "_", role.strip())[:_NAME_MAX]
            self._repair(
                number, f"the role {role[:40]!r}", f"taken as a user named {str(name)[:40]!r}"
            )
            return {**value, "role": "user", "name": name}
        if known != role:
            self._repair(number, f"the role {role[:40]!r}", f"taken as {known!r}")
        return {**value, "role": known}

    def _without_role(self, number: int, value: dict[str, Any]) -> dict[str, Any]:
        """Take an item of OpenAI's Responses, or what LangChain and others make of a message."""
        kind = value.get("type", value.get("from"))
        if not isinstance(kind, str):
            raise UsageError("it has no role")
        data = value.get("data")
        inner = {**value, **data} if isinstance(data, dict) else value
        if kind.lower() in {*ALIASES, *ROLES} and {"content", "value"} & inner.keys():
            gone = {"type", "from", "data"} if inner is not value else {"type", "from"}
            rest = {key: item for key, item in inner.items() if key not in gone}
            if "content" not in rest:
                rest["content"] = rest.pop("value")
            self._repair(number, f"no role, but {kind[:40]!r}", "read as the role")
            return self._with_role(number, {"role": kind, **rest})
        if "type" not in value or not _ITEM.fullmatch(kind):
            raise UsageError(f"it has no role, and {kind[:40]!r} is not a type of item")
        return value

    def _with_content(self, number: int, message: dict[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        if isinstance(content, str | list) or "role" not in message:
            return message
        if content is None:
            if not message.keys() - _SILENT and not message.get("refusal"):
                self._repair(number, "no content: it says nothing", "kept as it is")
            return message
        self._repair(number, f"content that is {_kind(content)}", "kept as its JSON")
        text = codec.encode_tree(self._clean(content, number)).decode()
        return {**message, "content": text}

    def _answering(self, number: int, message: dict[str, Any]) -> dict[str, Any]:
        """Return a tool's result with the call that it answers, where that can be told."""
        if message.get("role") != "tool" or _answered(message) or len(self._open) != 1:
            return message
        (call,) = self._open
        found = "a tool's result that names no call"
        self._repair(number, found, f"taken for that of the only open one, {call[:40]!r}")
        return {**message, "tool_call_id": call}

    def _follow_calls(self, number: int, message: dict[str, Any]) -> None:
        for call in _answered(message):
            if self._open.pop(call, None) is None:
                done = "kept; a transcript leaves it out"
                self._repair(number, f"a result for {call[:40]!r}, which was not called", done)
        for made in calls.open_calls(message):
            self._open[made.id] = number

    def _leave(self, number: int, element: Element, reason: str) -> None:
        self.leftovers.append(Leftover(number, element.byte, reason, element.raw))

    def _repair(self, number: int | None, found: str, done: str) -> None:
        self.repairs.append(Repair(found, done, element=number))


def _answered(message: Mapping[str, Any]) -> list[str]:
    """Return the ids of the calls that a message answers, AutoGen's way of saying so included."""
    responses = message.get("tool_responses")
    if isinstance(responses, list):
        return [str(found["tool_call_id"]) for found in responses if _has_id(found)]
    return [call for call in calls.answers({**message}) if call]


def _has_id(found: object) -> bool:
    return isinstance(found, dict) and bool(found.get("tool_call_id"))


def _kind(value: object) -> str:
    numbers = {int: "a number", float: "a number", bool: "true or false"}
    names = {dict: "an object", list: "a list", str: "a string", type(None): "null", **numbers}
    return names[type(value)]


__all__ = ["IN_NOTE", "LISTS", "Imported", "Leftover", "Repair", "parse"]
