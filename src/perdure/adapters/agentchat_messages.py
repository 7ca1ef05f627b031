"""Messages from the record: of the classes that a team was given or its agents name, and no others.

A stored message has the name of its class. Nothing is looked for because of what it says.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.adapters import agentchat_tree as tree
from perdure.adapters.agentchat_tree import Node
from perdure.errors import UsageError

HINT = (
    "name it in the agent's produced_message_types or in the team's custom_message_types, "
    "or give up a run that was cut off with abandon()"
)

REPLY = {"told", "inner", "said", "state"}  # What the outcome of an agent's reply consists of.


class Messages:
    """What makes messages of stored ones, for a session that keeps a team."""

    def __init__(self, session: str, root: Node) -> None:
        self._session = session
        self._classes: dict[str, Any] = {}
        for one in tree.message_classes(root):
            known = self._classes.setdefault(one.__name__, one)
            if not _alike(known, one):
                reason = f"two classes of messages are called {one.__name__!r}"
                raise UsageError(f"{reason}, and stored ones have only the name: rename one")

    def load(self, items: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return stored messages as they were, or say which class is not known or has changed."""
        return [self._load(item) for item in items]

    def _load(self, item: Mapping[str, Any]) -> Any:
        found = self._classes.get(item["type"])
        if found is None:
            reason = f"{self._session!r} holds a message of a class that is not known"
            raise UsageError(f"{reason}, {item['type']}: {HINT}")
        try:
            return found.load(item)
        except ValueError as error:  # Validation errors of pydantic are ValueErrors.
            reason = f"{self._session!r} holds a {item['type']} that does not fit the class"
            raise UsageError(f"{reason}: {error}") from error

    def require(self, outcome: Mapping[str, Any]) -> None:
        """Refuse the recorded outcome of a call, if it has messages that can not be made again."""
        if outcome.keys() >= REPLY:
            self.load([*outcome["told"], *outcome["inner"], outcome["said"]])
        self.load(outcome.get("events", ()))

    def words(self, items: Sequence[Mapping[str, Any]]) -> str:
        """Return what stored messages say; of one that can not be made again what it holds."""
        return "\n".join(
            self._load(item).to_model_text()
            if item["type"] in self._classes
            else str(item.get("content", item["type"]))
            for item in items
        )


def _alike(one: Any, other: Any) -> bool:
    """Whether what one class stored the other can load, as far as classes tell."""
    if one is other:
        return True
    try:
        return bool(one.model_json_schema() == other.model_json_schema())
    except Exception:  # noqa: BLE001 - of what a schema can not be made, nothing is known
        return False
