"""Reject plans invalidated by records that other writers appended in the meantime. Pure.

A plan that conflicts with nothing, such as a note, is retried after a conflict. The handle has then
applied records that its caller has not seen. They are kept here until the caller refreshes or gets
a ConflictError, so that a later plan made without them is still rejected.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import ConflictError
from perdure.journal.codec import with_article
from perdure.journal.records import Content, Message, Omitted

if TYPE_CHECKING:
    from perdure.core.plans import Plan


class ConflictRule(NamedTuple):
    """The kinds of record that invalidate a plan: with any subject, or only with the same one."""

    any_subject: frozenset[str] = frozenset()
    same_subject: frozenset[str] = frozenset()
    bypasses_lease: bool = False
    """Whether any handle may write it while another one holds the session's lease."""


# The session is no longer the one the caller saw: it was deleted, or created as a branch.
_HISTORY_CHANGES = frozenset({"deleted", "branched"})

_CONVERSATION_CHANGES = frozenset({"message", "messages.retracted", "messages.replaced", "erased"})

_TURN_CHANGES = frozenset({"turn.continued", "turn.completed", "turn.failed", "turn.abandoned"})


# The only definition of which records invalidate which plans. `_HISTORY_CHANGES` also invalidate
# every plan but `delete`. Plans that do not bypass the lease fail while another handle holds it.
CONFLICT_RULES: dict[str, ConflictRule] = {
    # Written in view of a conversation that has changed since: the caller must re-read it.
    "message": ConflictRule(any_subject=_CONVERSATION_CHANGES, same_subject=_TURN_CHANGES),
    # A chunk is no message yet, so only the loss of its turn invalidates it. The end of a streamed
    # answer was already shown to the user, so another writer's message does not invalidate it.
    "message.chunk": ConflictRule(same_subject=_TURN_CHANGES),
    "answer": ConflictRule(same_subject=_TURN_CHANGES),
    "summary": ConflictRule(
        any_subject=frozenset({"summary", "summary.undone"}) | _CONVERSATION_CHANGES - {"message"}
    ),
    "turn.begin": ConflictRule(any_subject=_CONVERSATION_CHANGES | {"turn.begun"}),
    # It names positions, and looks them up at each execution; but the caller chose them in view of
    # what earlier retractions had left.
    "retract": ConflictRule(any_subject=_CONVERSATION_CHANGES - {"message"}),
    "turn.continue": ConflictRule(same_subject=_TURN_CHANGES),
    # Ending a turn depends on that turn only, not on other writers' messages.
    "turn.end": ConflictRule(same_subject=_TURN_CHANGES),
    # A new version is derived from the version before.
    "value": ConflictRule(same_subject=frozenset({"value"})),
    # These commute with everything.
    "note": ConflictRule(bypasses_lease=True),
    "label": ConflictRule(bypasses_lease=True),
    "describe": ConflictRule(bypasses_lease=True),
    "view": ConflictRule(bypasses_lease=True),
    # Without effect until a record cites it, which is a plan of its own.
    "part": ConflictRule(),
    "pin": ConflictRule(),
    "tools": ConflictRule(),
    # These look up their effect in the state at each execution. The outcome of a call is a fact
    # about the outside world, so it is recorded even if another handle holds the lease by now.
    "effect.intend": ConflictRule(),
    "effect.settle": ConflictRule(bypasses_lease=True),
    # This looks up its approval in the state at each execution: the first decision counts.
    "approval.decide": ConflictRule(bypasses_lease=True),
    # A branch needs the records up to its position, which a compaction may have dropped.
    "keep": ConflictRule(any_subject=frozenset({"compacted"}), bypasses_lease=True),
    "release": ConflictRule(bypasses_lease=True),
    "refresh": ConflictRule(bypasses_lease=True),
    "catch-up": ConflictRule(bypasses_lease=True),
    "accept-rollback": ConflictRule(bypasses_lease=True),
    # These look up the lease holder in the state at each execution. Only the holder may renew.
    "lease.take": ConflictRule(bypasses_lease=True),
    "lease.renew": ConflictRule(),
    "lease.release": ConflictRule(bypasses_lease=True),
    # A batch is invalid if one of its parts is (`JointPlan`).
    "batch": ConflictRule(),
    # It ends a copy, which nothing but the copy itself has written to.
    "copy": ConflictRule(bypasses_lease=True),
    # These check at each execution whether the session is in use, so no record invalidates them.
    "delete": ConflictRule(),
    "compact": ConflictRule(),
}


# Stands for records that a compaction dropped before this handle read them. They may have been any.
UNREADABLE = Omitted()


class UnseenRecords:
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
        self, plan: "Plan[Any]", newer: Iterable[Content], after: int, head: int
    ) -> ConflictError | None:
        """Return a ConflictError if records after a position invalidate a plan, else None."""
        causes = [content for content in newer if plan.invalidated_by(content)]
        if not causes:
            return None
        # A turn taken over by another handle explains more than the messages it then wrote.
        turns = (content for content in causes if content.kind.startswith("turn."))
        cause = next(turns, causes[-1])
        first = self._after if self.contents else after
        if cause is UNREADABLE:
            reason = "records that were compacted since came first"
        else:
            reason = f"{with_article(cause.kind)} record came first"
        return ConflictError(self._name, first, head, reason)
