"""The kinds of record by which a person lets a call happen, or does not."""

from typing import Any, ClassVar, Literal

from perdure.content import Content


class ApprovalAsked(Content, frozen=True, kw_only=True):
    """A call waits for somebody to approve it; the approval's id is the id of this record.

    It is about exactly this: the tool, its version, and the arguments with this digest.
    """

    kind: ClassVar[str] = "approval.asked"

    identity: str
    """Which call of the agent it is: the intent will bear the same."""
    tool: str
    arguments: Any
    digest: str
    """Of the arguments as they were stored."""
    turn: str
    version: str = ""
    actor: str = ""
    expires: str = ""
    """The time, as in headers, from which it can not be used any more."""

    @property
    def subject(self) -> str:
        return self.identity


class ApprovalDecided(Content, frozen=True, kw_only=True):
    """What was decided about an approval. The first decision counts; `expired` ends any.

    `bound` is the digest of the tool, its version and the arguments that the decision is about.
    """

    kind: ClassVar[str] = "approval.decided"

    approval: str
    decision: Literal["approved", "denied", "expired"]
    bound: str
    by: str = ""
    reason: str = ""

    @property
    def subject(self) -> str:
        return self.approval
