"""Load stored messages, using only classes that the team was given or its agents declare.

A stored message has the name of its class. No class is imported or looked up because of stored
data.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.adapters import agentchat_tree as tree
from perdure.adapters.agentchat_tree import Node
from perdure.errors import UsageError

HINT = (
    "name it in the agent's produced_message_types or in the team's custom_message_types, "
    "or abandon() an interrupted run"
)

REPLY = {"told", "inner", "said", "state"}  # Keys of a recorded reply of an agent.


class Messages:
    """Loads stored messages for a session that holds a team."""

    def __init__(self, session: str, root: Node) -> None:
        self._session = session
        self._classes: dict[str, Any] = {}
        for message_class in tree.message_classes(root):
            known_class = self._classes.setdefault(message_class.__name__, message_class)
            if not _alike(known_class, message_class):
                reason = f"two message classes are called {message_class.__name__!r}"
                raise UsageError(f"{reason}, and messages are stored by class name: rename one")

    def load(self, items: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return stored messages as objects; UsageError if a class is unknown or has changed."""
        return [self._load(item) for item in items]

    def _load(self, item: Mapping[str, Any]) -> Any:
        message_class = self._classes.get(item["type"])
        if message_class is None:
            reason = f"{self._session!r} holds a message of an unknown class"
            raise UsageError(f"{reason}, {item['type']}: {HINT}")
        try:
            return message_class.load(item)
        except ValueError as error:  # pydantic's ValidationError is a ValueError.
            reason = f"{self._session!r} holds a {item['type']} that does not fit the class"
            raise UsageError(f"{reason}: {error}") from error

    def require(self, outcome: Mapping[str, Any]) -> None:
        """Raise UsageError if a recorded outcome has messages that cannot be loaded."""
        if outcome.keys() >= REPLY:
            self.load([*outcome["told"], *outcome["inner"], outcome["said"]])
        self.load(outcome.get("events", ()))

    def text(self, items: Sequence[Mapping[str, Any]]) -> str:
        """Return the text of stored messages; the raw content of one that cannot be loaded."""
        return "\n".join(
            self._load(item).to_model_text()
            if item["type"] in self._classes
            else str(item.get("content", item["type"]))
            for item in items
        )


def _alike(first: Any, second: Any) -> bool:
    """Return whether two classes have the same schema: each can load the other's messages."""
    if first is second:
        return True
    try:
        return bool(first.model_json_schema() == second.model_json_schema())
    except Exception:  # noqa: BLE001 - without a schema they cannot be compared
        return False
