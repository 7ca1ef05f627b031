"""What others wrote, held against plans that were made without knowing of it. Pure.

A note goes on after a conflict, and the handle then knows more than its caller: what was taken in
on the way is kept here, until the caller was told to look.
"""

from collections.abc import Iterable

from perdure.content import Content
from perdure.errors import ConflictError
from perdure.plans import Plan
from perdure.records import Message


class Unseen:
    """What others wrote that a write took in on its way, and that no caller was told of."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._after = 0
        """The position that they came after, if there are any."""
        self.contents: dict[tuple[str, str], Content] = {}

    def overlook(self, newer: Iterable[Content], after: int) -> None:
        """Remember what was taken in, after a position, without the caller being told of it."""
        if not self.contents:
            self._after = after
        for content in newer:
            about = "" if content.kind == Message.kind else content.subject
            self.contents[content.kind, about] = content

    def tell(self) -> None:
        """Count everything as seen: the caller refreshed, or was told to look."""
        self.contents = {}

    def judge(
        self, plan: Plan, newer: Iterable[Content], after: int, head: int
    ) -> ConflictError | None:
        """Return the conflict if what others wrote, after a position, makes a plan void."""
        voiding = [content.kind for content in newer if plan.void_by(content)]
        if not voiding:
            return None
        # That the turn was taken over says more than that its new owner has spoken.
        kind = next((kind for kind in voiding if kind.startswith("turn.")), voiding[-1])
        first = self._after if self.contents else after
        return ConflictError(self._name, first, head, f"a {kind} record came first")
