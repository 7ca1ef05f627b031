"""A list that an AutoGen agent kept of a chat → the same messages, and who said each to whom. Pure.

Such a list is one agent's side: what it said itself is the assistant's, what it was told the
user's. Copied into both agents, as tutorials do it, it is wrong for one of them, and grows with
roles of both kinds. Names tell who spoke; where there is none, who spoke before.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from perdure.codec import encode_tree
from perdure.errors import UsageError
from perdure.importing.messages import Imported, Leftover
from perdure.importing.text import IN_NOTE, Repair

CHANNEL = "autogen"
USER, ASSISTANT = "user_proxy", "assistant"  # As they are called where nobody calls them otherwise.
_CALLED = ("tool", "function")


class Pair(NamedTuple):
    """The two agents of a chat: who began it, and whose model answers."""

    user: str = USER
    assistant: str = ASSISTANT

    def other(self, name: str) -> str:
        return self.user if name == self.assistant else self.assistant


class Said(NamedTuple):
    """A message, and who said it to whom."""

    message: dict[str, Any]
    author: str
    recipient: str


class Chat(NamedTuple):
    """A file's messages with their speakers; `imported` has the repairs of both."""

    said: list[Said]
    imported: Imported


def chat_of(imported: Imported, agents: Pair | None = None) -> Chat:
    """Return who said what in a file; UsageError if it is not a chat of these two, or of two."""
    pair = _pair(imported.messages, agents)
    reader = _Reader(pair)
    said = [*reader.read(imported.messages)]
    messages = [one.message for one in said]
    repairs = [*imported.repairs, *reader.repairs]
    leftovers = [*imported.leftovers, *reader.leftovers]
    return Chat(said, Imported(messages, repairs, leftovers, imported.about))


def _pair(messages: list[dict[str, Any]], agents: Pair | None) -> Pair:
    names = {name: message for message in messages if (name := _name(message))}
    if agents is not None:
        strange = sorted(names.keys() - {*agents})
        if strange:
            reason = f"{strange[0]!r} speaks in it, and not only {agents.user} and"
            raise UsageError(f"{reason} {agents.assistant}: give the names that it has")
        return agents
    if len(names) > len(Pair._fields):
        reason = f"{len(names)} agents speak in it: {', '.join([*names][:5])}"
        raise UsageError(f"{reason}: a list of a group does not tell who heard what")
    first = next(iter(names), USER)
    if len(names) == 1:  # Whoever spoke alone began it, unless it is the one whose model answers.
        return Pair(USER, first) if first == ASSISTANT else Pair(first)
    return Pair(*names) if names else Pair()


def _calls(message: dict[str, Any]) -> set[str]:
    """Return the calls that a message makes: their ids, of an old kind their names."""
    calls = message.get("tool_calls")
    found = {str(one.get("id")) for one in calls or () if isinstance(one, dict)}
    old = message.get("function_call")
    return found | {f"function {old.get('name')}"} if isinstance(old, dict) else found


def _answered(message: dict[str, Any]) -> set[str]:
    """Return the calls that a message answers."""
    if message.get("role") == "function":
        return {f"function {message.get('name')}"}
    results = message.get("tool_responses")
    found = [one for one in results or () if isinstance(one, dict)]
    found += [message] if message.get("role") == "tool" and not found else []
    return {str(one.get("tool_call_id")) for one in found}


def _name(message: dict[str, Any]) -> str:
    name = message.get("name")
    named = isinstance(name, str) and message.get("role") != "function"
    return str(name) if named and name else ""


class _Reader:
    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._called: set[str] = set()
        self.repairs: list[Repair] = []
        self.leftovers: list[Leftover] = []

    def read(self, messages: list[dict[str, Any]]) -> Iterator[Said]:
        before = ""
        for number, message in enumerate(messages, start=1):
            if message.get("role") in ("system", "developer"):
                text = str(message.get("content"))
                hint = "its text {}: give it to the agent that it is for"
                self._put_aside(number, "instructions among what was said", hint, text)
                continue
            if strange := self._strange(message):
                self._put_aside(number, strange, "it {}", encode_tree(message).decode())
                continue
            self._called |= _calls(message)
            author = self._author(message, before)
            yield Said(self._seen(number, message, author), author, self._pair.other(author))
            before = author

    def _put_aside(self, number: int, what: str, hint: str, text: str) -> None:
        self.repairs.append(Repair(what, hint.format(IN_NOTE), None, number))
        self.leftovers.append(Leftover(number, 0, what, text))

    def _strange(self, message: dict[str, Any]) -> str:
        """Return why no agent could be given a message, or nothing."""
        answered = _answered(message)
        if answered and not answered <= self._called:
            return "a tool's result without its call, which models refuse"
        says = message.get("content") is not None or answered or _calls(message)
        return "" if says else "a message that says nothing, which agents refuse"

    def _author(self, message: dict[str, Any], before: str) -> str:
        if _name(message):
            return _name(message)
        calls = message.get("tool_calls") or message.get("function_call")
        if before and (calls or message.get("role") in _CALLED):
            return self._pair.other(before)
        return self._pair.assistant if message.get("role") == "assistant" else self._pair.user

    def _seen(self, number: int, message: dict[str, Any], author: str) -> dict[str, Any]:
        """Return a message with its role as the assistant sees it; report one that is another."""
        role = message.get("role")
        calls = message.get("tool_calls") or message.get("function_call")
        wanted = "assistant" if author == self._pair.assistant or calls else "user"
        if role in _CALLED or role == wanted:
            return message
        found = f"the role {role!r} of what {author[:40]} said"
        self.repairs.append(Repair(found, f"taken as {wanted!r}: the other side's", None, number))
        return {**message, "role": wanted}
