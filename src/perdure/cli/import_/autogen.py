"""An AutoGen agent's list of chat messages → the same messages, with author and recipient. Pure.

Such a list is one agent's perspective: its own messages have the role assistant, received ones the
role user. Copied into both agents, as tutorials do, the roles are wrong for one of them, and later
messages are added with roles of both perspectives. The author is found by the message's name; if it
has none, by the previous author.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from perdure.cli.import_.encodings import IN_NOTE, Repair
from perdure.cli.import_.messages import ImportedMessages, Leftover
from perdure.errors import UsageError
from perdure.journal.codec import encode_tree

CHANNEL = "autogen"

USER, ASSISTANT = "user_proxy", "assistant"  # AutoGen's conventional agent names.

_RESULT_ROLES = ("tool", "function")


class AgentPair(NamedTuple):
    """The two agents of a chat: the one that started it, and the one whose model answers."""

    user: str = USER
    assistant: str = ASSISTANT

    def other(self, name: str) -> str:
        return self.user if name == self.assistant else self.assistant


class ChatMessage(NamedTuple):
    """A message, its author and its recipient."""

    message: dict[str, Any]
    author: str
    recipient: str


class ImportedChat(NamedTuple):
    """A file's messages with their authors; `imported` holds the repairs of both passes."""

    messages: list[ChatMessage]
    imported: ImportedMessages


def parse_chat(imported: ImportedMessages, agents: AgentPair | None = None) -> ImportedChat:
    """Assign authors to a file's messages; UsageError unless it is a chat of (these) two agents."""
    pair = _find_pair(imported.messages, agents)
    reader = _ChatReader(pair)
    chat_messages = [*reader.read(imported.messages)]
    messages = [chat_message.message for chat_message in chat_messages]
    repairs = [*imported.repairs, *reader.repairs]
    leftovers = [*imported.leftovers, *reader.leftovers]
    return ImportedChat(
        chat_messages, ImportedMessages(messages, repairs, leftovers, imported.about)
    )


def _find_pair(messages: list[dict[str, Any]], agents: AgentPair | None) -> AgentPair:
    names = {name: message for message in messages if (name := _speaker_name(message))}
    if agents is not None:
        others = sorted(names.keys() - {*agents})
        if others:
            reason = f"it has messages of {others[0]!r}, not only of {agents.user} and"
            raise UsageError(f"{reason} {agents.assistant}: pass the names used in the file")
        return agents
    if len(names) > len(AgentPair._fields):
        reason = f"it has messages of {len(names)} agents: {', '.join([*names][:5])}"
        raise UsageError(f"{reason}: a group chat's list does not say who received each message")
    first = next(iter(names), USER)
    if len(names) == 1:  # A single name is the starter, unless it is the default assistant.
        return AgentPair(USER, first) if first == ASSISTANT else AgentPair(first)
    return AgentPair(*names) if names else AgentPair()


def _call_ids(message: dict[str, Any]) -> set[str]:
    """Return the ids of a message's tool calls; for a legacy function call, its name."""
    calls = message.get("tool_calls")
    ids = {str(call.get("id")) for call in calls or () if isinstance(call, dict)}
    legacy = message.get("function_call")
    return ids | {f"function {legacy.get('name')}"} if isinstance(legacy, dict) else ids


def _answered_ids(message: dict[str, Any]) -> set[str]:
    """Return the ids of the calls that a message answers."""
    if message.get("role") == "function":
        return {f"function {message.get('name')}"}
    results = message.get("tool_responses")
    responses = [result for result in results or () if isinstance(result, dict)]
    responses += [message] if message.get("role") == "tool" and not responses else []
    return {str(response.get("tool_call_id")) for response in responses}


def _speaker_name(message: dict[str, Any]) -> str:
    name = message.get("name")
    # In a legacy function result, `name` is the function's.
    has_name = isinstance(name, str) and message.get("role") != "function"
    return str(name) if has_name and name else ""


class _ChatReader:
    def __init__(self, pair: AgentPair) -> None:
        self._pair = pair
        self._called: set[str] = set()
        self.repairs: list[Repair] = []
        self.leftovers: list[Leftover] = []

    def read(self, messages: list[dict[str, Any]]) -> Iterator[ChatMessage]:
        previous = ""
        for number, message in enumerate(messages, start=1):
            if message.get("role") in ("system", "developer"):
                text = str(message.get("content"))
                hint = "its text {}: pass it to the agent as its system message"
                self._put_aside(number, "instructions among the messages", hint, text)
                continue
            if reason := self._refusal(message):
                self._put_aside(number, reason, "it {}", encode_tree(message).decode())
                continue
            self._called |= _call_ids(message)
            author = self._author(message, previous)
            corrected = self._with_role(number, message, author)
            yield ChatMessage(corrected, author, self._pair.other(author))
            previous = author

    def _put_aside(self, number: int, reason: str, hint: str, text: str) -> None:
        self.repairs.append(Repair(reason, hint.format(IN_NOTE), None, number))
        self.leftovers.append(Leftover(number, 0, reason, text))

    def _refusal(self, message: dict[str, Any]) -> str:
        """Return why agents or models would reject a message; empty if they would not."""
        answered = _answered_ids(message)
        if answered and not answered <= self._called:
            return "a tool result without its call, which models reject"
        has_content = message.get("content") is not None or answered or _call_ids(message)
        return "" if has_content else "a message without content, which agents reject"

    def _author(self, message: dict[str, Any], previous: str) -> str:
        if _speaker_name(message):
            return _speaker_name(message)
        calls = message.get("tool_calls") or message.get("function_call")
        if previous and (calls or message.get("role") in _RESULT_ROLES):
            return self._pair.other(previous)
        return self._pair.assistant if message.get("role") == "assistant" else self._pair.user

    def _with_role(self, number: int, message: dict[str, Any], author: str) -> dict[str, Any]:
        """Return a message with its role from the assistant's perspective; report a change."""
        role = message.get("role")
        calls = message.get("tool_calls") or message.get("function_call")
        expected = "assistant" if author == self._pair.assistant or calls else "user"
        if role in _RESULT_ROLES or role == expected:
            return message
        found = f"the role {role!r} in a message of {author[:40]}"
        done = f"read as {expected!r}: it is from the other agent's perspective"
        self.repairs.append(Repair(found, done, None, number))
        return {**message, "role": expected}
