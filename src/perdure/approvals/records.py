"""The record kinds of approvals: a call waits until a person approves or denies it."""

from typing import Any, ClassVar, Literal

from perdure.content import Content


class ApprovalAsked(Content, frozen=True, kw_only=True):
    """A call waits for approval; the approval's id is the id of this record.

    It covers exactly this tool, its version, and the arguments with this digest.
    """

    kind: ClassVar[str] = "approval.asked"

    identity: str
    """Identifies the call of the agent; the intent will have the same identity."""
    tool: str
    arguments: Any
    digest: str
    """The digest of the arguments as stored."""
    turn: str
    version: str = ""
    actor: str = ""
    expires: str = ""
    """The time of expiry, in the format of headers; empty if it does not expire."""

    @property
    def subject(self) -> str:
        return self.identity


class ApprovalDecided(Content, frozen=True, kw_only=True):
    """The decision on an approval. The first decision counts; `expired` ends any approval.

    `bound` is the digest of the tool, its version and the arguments that the decision covers.
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
