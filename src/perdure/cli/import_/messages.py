"""A file of messages from another program → messages to append, and a report of repairs. Pure.

Nothing is dropped silently: an element is either a message, unchanged or repaired, or its text is a
leftover that is stored in a note. The author is taken from the role, never guessed from the order.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from perdure.cli.import_.encodings import IN_NOTE, Repair
from perdure.cli.import_.json_recovery import MESSAGE_KEYS, Element, read_elements
from perdure.errors import UsageError
from perdure.formats import tool_calls
from perdure.formats.field_types import require_message
from perdure.formats.intake import ROLES
from perdure.journal import codec

# Role names that programs use → the providers' names.
ROLE_ALIASES = {
    "human": "user",
    "ai": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "gpt": "assistant",
    "model": "assistant",
}

_ITEM_TYPE = re.compile(r"\w+_call|\w+_output|mcp_\w+|message|reasoning|compaction|item_reference")

_ENVELOPE_KEYS = frozenset({"role", "content", "name", "refusal", "tool_call_id", "type", "id"})

# The first bytes of a pickle: protocol 2 and later; lists and dicts in 1; these and others in 0.
_PICKLE = re.compile(
    rb"\x80|[\]}]q\0|\([dlt]p\d+\n|\(?[VS][^\n]*\np\d+\n|c[\w.]+\n[\w.]+\n(?:p\d+\n|q\0)"
)

_NAME_MAX = 64  # characters; providers reject longer author names


class Leftover(NamedTuple):
    """The text of an element that could not become a message unchanged. `element` counts from 1."""

    element: int
    byte: int
    reason: str
    raw: str


class ImportedMessages(NamedTuple):
    """The content of a file. `about` holds the other keys of the object with the messages."""

    messages: list[dict[str, Any]]
    repairs: list[Repair]
    leftovers: list[Leftover]
    about: dict[str, Any]


def parse_file(data: bytes) -> ImportedMessages:
    """Parse a list of messages, JSON lines of them, or an object that contains a list of them.

    Raises only UsageError, for a pickle; any other content is repaired or left over. Messages are
    valid for `session.append`, except that the size limit of a record is not checked here.
    """
    if _PICKLE.match(data):
        reason = "a pickle is not read, because loading one executes code from it"
        raise UsageError(f"{reason}: export JSON from the program that wrote it")
    parsed = read_elements(data)
    builder = _MessageBuilder(parsed.repairs)
    for number, element in enumerate(parsed.elements, start=1):
        builder.add(number, element)
    builder.close()
    about = {key: builder.about(key, element) for key, element in parsed.about.items()}
    repairs = sorted(builder.repairs, key=lambda repair: repair.element or 0)
    return ImportedMessages(builder.messages, repairs, builder.leftovers, about)


class _MessageBuilder:
    def __init__(self, repairs: list[Repair]) -> None:
        self.messages: list[dict[str, Any]] = []
        self.leftovers: list[Leftover] = []
        self.repairs = [*repairs]
        self._keep_raw = {repair.element for repair in repairs if repair.keep_raw}
        self._open: dict[str, int] = {}
        self._codec = codec.Codec()

    def add(self, number: int, element: Element) -> None:
        """Convert an element to a message, or keep its text as a leftover."""
        if element.damage:
            self._leave(number, element, element.damage)
            return
        try:
            message = self._message(number, element.value)
        except UsageError as error:
            reason = error.reason.partition(":")[0]
            self._repair(number, f"not a message: {reason}", f"its text {IN_NOTE}")
            self._leave(number, element, reason)
            return
        if number in self._keep_raw:
            self._leave(number, element, "a duplicate key")
        self._follow_calls(number, message)
        self.messages.append(message)

    def close(self) -> None:
        """Report the calls that have no result."""
        for call, number in self._open.items():
            done = "kept; a transcript closes it as interrupted"
            self._repair(number, f"the call {call[:40]!r} has no result", done)

    def about(self, key: str, element: Element) -> Any:
        """Return the value of another key of the object, or its text if it cannot be stored."""
        try:
            return self._storable({key: element.value}, None)[key]
        except (UsageError, RecursionError) as error:
            reason = error.reason if isinstance(error, UsageError) else "nested too deeply"
            self._repair(None, f"{key[:40]!r}: {reason}", "kept as its text")
            return element.raw

    def _message(self, number: int, value: Any) -> dict[str, Any]:
        """Return an element as a storable message, or raise UsageError."""
        if not isinstance(value, dict):
            raise UsageError(f"{_json_type(value)} instead of an object")
        message = self._with_role(number, value)
        try:
            message = self._storable(self._with_content(number, message), number)
        except RecursionError:
            raise UsageError("nested too deeply") from None
        message = self._with_call_id(number, message)
        require_message(message)
        return message

    def _storable(self, value: dict[str, Any], number: int | None) -> dict[str, Any]:
        """Return a value with invalid text cleaned; UsageError if `codec` still rejects it."""
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
                self._repair(number, "a lone surrogate", "replaced by U+FFFD")
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
            raise UsageError("its role is not a name")
        normalized = role.strip().lower()
        if normalized == "model" and "parts" in value:  # Gemini's own role.
            pass
        elif normalized in ROLE_ALIASES:
            normalized = ROLE_ALIASES[normalized]
        elif normalized not in ROLES:
            name = value.get("name") or re.sub(r"\W+", "_", role.strip())[:_NAME_MAX]
            self._repair(
                number, f"the role {role[:40]!r}", f"read as a user named {str(name)[:40]!r}"
            )
            return {**value, "role": "user", "name": name}
        if normalized != role:
            self._repair(number, f"the role {role[:40]!r}", f"read as {normalized!r}")
        return {**value, "role": normalized}

    def _without_role(self, number: int, value: dict[str, Any]) -> dict[str, Any]:
        """Accept an item of OpenAI's Responses API, or a message as LangChain stores it."""
        kind = value.get("type", value.get("from"))
        if not isinstance(kind, str):
            raise UsageError("it has no role")
        data = value.get("data")
        inner = {**value, **data} if isinstance(data, dict) else value
        if kind.lower() in {*ROLE_ALIASES, *ROLES} and {"content", "value"} & inner.keys():
            envelope = {"type", "from", "data"} if inner is not value else {"type", "from"}
            fields = {key: item for key, item in inner.items() if key not in envelope}
            if "content" not in fields:
                fields["content"] = fields.pop("value")
            self._repair(number, f"no role, but {kind[:40]!r}", "read as the role")
            return self._with_role(number, {"role": kind, **fields})
        if "type" not in value or not _ITEM_TYPE.fullmatch(kind):
            raise UsageError(f"it has no role, and {kind[:40]!r} is not an item type")
        return value

    def _with_content(self, number: int, message: dict[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        if isinstance(content, str | list) or "role" not in message:
            return message
        if content is None:
            if not message.keys() - _ENVELOPE_KEYS and not message.get("refusal"):
                self._repair(number, "a message without content", "kept unchanged")
            return message
        self._repair(number, f"content that is {_json_type(content)}", "kept as its JSON")
        text = codec.encode_tree(self._clean(content, number)).decode()
        return {**message, "content": text}

    def _with_call_id(self, number: int, message: dict[str, Any]) -> dict[str, Any]:
        """Add the missing call id to a tool result, if only one call is open."""
        if message.get("role") != "tool" or _answered_calls(message) or len(self._open) != 1:
            return message
        (call,) = self._open
        found = "a tool result without a call id"
        self._repair(number, found, f"assigned to the only open call, {call[:40]!r}")
        return {**message, "tool_call_id": call}

    def _follow_calls(self, number: int, message: dict[str, Any]) -> None:
        for call_id in _answered_calls(message):
            if self._open.pop(call_id, None) is None:
                done = "kept; a transcript omits it"
                self._repair(number, f"a result for the unknown call {call_id[:40]!r}", done)
        for call in tool_calls.open_calls(message):
            self._open[call.id] = number

    def _leave(self, number: int, element: Element, reason: str) -> None:
        self.leftovers.append(Leftover(number, element.byte, reason, element.raw))

    def _repair(self, number: int | None, found: str, done: str) -> None:
        self.repairs.append(Repair(found, done, element=number))


def _answered_calls(message: Mapping[str, Any]) -> list[str]:
    """Return the ids of the calls that a message answers, including AutoGen's `tool_responses`."""
    responses = message.get("tool_responses")
    if isinstance(responses, list):
        return [str(response["tool_call_id"]) for response in responses if _has_id(response)]
    return [call for call in tool_calls.answers({**message}) if call]


def _has_id(response: object) -> bool:
    return isinstance(response, dict) and bool(response.get("tool_call_id"))


def _json_type(value: object) -> str:
    numbers = {int: "a number", float: "a number", bool: "true or false"}
    names = {dict: "an object", list: "a list", str: "a string", type(None): "null", **numbers}
    return names[type(value)]


__all__ = ["IN_NOTE", "MESSAGE_KEYS", "ImportedMessages", "Leftover", "Repair", "parse_file"]
