"""Reject plans invalidated by records that other writers appended in the meantime. Pure.

A plan that conflicts with nothing, such as a note, is retried after a conflict. The handle has then
applied records that its caller has not seen. They are kept here until the caller refreshes or gets
a ConflictError, so that a later plan made without them is still rejected.
"""

from collections.abc import Iterable

from perdure.content import Content
from perdure.errors import ConflictError
from perdure.plans import Plan
from perdure.records import Message


class Unseen:
    """Records of other writers that a write applied, and that no caller has been notified of."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._after = 0
        """The position before the first of them, if there are any."""
        self.contents: dict[tuple[str, str], Content] = {}

    def add(self, newer: Iterable[Content], after: int) -> None:
        """Add records that were applied after a position without notifying the caller.

        The newest of each kind and subject is enough, so the memory used stays small.
        """
        if not self.contents:
            self._after = after
        for content in newer:
            subject = "" if content.kind == Message.kind else content.subject
            self.contents[content.kind, subject] = content

    def clear(self) -> None:
        """Count everything as seen: the caller refreshed, or got a ConflictError."""
        self.contents = {}

    def find_conflict(
        self, plan: Plan, newer: Iterable[Content], after: int, head: int
    ) -> ConflictError | None:
        """Return a ConflictError if records after a position invalidate a plan, else None."""
        kinds = [content.kind for content in newer if plan.invalidated_by(content)]
        if not kinds:
            return None
        # A turn taken over by another handle explains more than the messages it then wrote.
        kind = next((kind for kind in kinds if kind.startswith("turn.")), kinds[-1])
        first = self._after if self.contents else after
        return ConflictError(self._name, first, head, f"a {kind} record came first")
