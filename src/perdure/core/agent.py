"""The progress of an agent's turn, and its limits. Pure: computed from the turn's messages."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from perdure.core.validation import require_int, require_timeout
from perdure.errors import AgentLimitError, UsageError
from perdure.formats.intake import extract_messages
from perdure.formats.tool_calls import answers, open_calls

_INPUT_ROLES = frozenset({"user", "system", "developer", "tool", "function"})

MAX_STEPS = 32  # model calls; an agent that needs more than this usually repeats itself


class Progress(NamedTuple):
    """The progress of a turn: the replies of the model, and its tool calls."""

    replies: int
    calls: int
    is_answered: bool


def measure_progress(messages: Sequence[dict[str, Any]]) -> Progress:
    """Return the progress of a turn that has these messages.

    One reply may be several items, as in the Responses API: it ends where an input follows. A turn
    is answered if its last reply calls no tool.
    """
    replies = calls = calls_of_reply = 0
    was_input = True
    for message in messages:
        is_input = message.get("role") in _INPUT_ROLES or bool(answers(message))
        if not is_input:
            if was_input:
                replies, calls_of_reply = replies + 1, 0
            calls_of_reply += len(open_calls(message))
            calls += len(open_calls(message))
        was_input = is_input
    return Progress(replies, calls, is_answered=not was_input and not calls_of_reply)


def require_reply(reply: object) -> None:
    """Raise UsageError unless a model's reply has a message of the model.

    A turn with another one is never answered, and has no reply that `max_steps` could count.
    """
    messages = [item.message for item in extract_messages(reply)]
    if not measure_progress(messages).replies:
        role = messages[0].get("role")
        what = f"a message of the role {role!r:.40}" if role else "a tool's result"
        raise UsageError(f"the model returned {what}: return one of the role 'assistant'", "$.role")


class AgentLimits(NamedTuple):
    """The limits of a turn, and of one run of it (`timeout`). None: no limit."""

    max_steps: int | None
    max_tool_calls: int | None
    timeout: float | None

    def require_valid(self) -> "AgentLimits":
        """Return the limits, or raise UsageError."""
        for name in ("max_steps", "max_tool_calls"):
            value = getattr(self, name)
            if value is not None and require_int(value, name) < 0:
                raise UsageError(f"{name} must be 0 or more, or None, not {value}")
        require_timeout(self.timeout)
        return self

    def check_calls(self, session: str, turn: str, progress: Progress) -> None:
        """Raise AgentLimitError if the model has made too many tool calls; the last ones wait."""
        if self.max_tool_calls is not None and progress.calls > self.max_tool_calls:
            raise AgentLimitError(session, turn, "max_tool_calls", self.max_tool_calls)

    def check_steps(self, session: str, turn: str, progress: Progress) -> None:
        """Raise AgentLimitError if the model must not be called again in this turn."""
        if self.max_steps is not None and progress.replies >= self.max_steps:
            raise AgentLimitError(session, turn, "max_steps", self.max_steps)

    def check_time(self, session: str, turn: str, seconds: float) -> float | None:
        """Return the seconds that are left of a run, or raise AgentLimitError if there are none."""
        if self.timeout is None:
            return None
        if seconds >= self.timeout:
            raise AgentLimitError(session, turn, "timeout", self.timeout)
        return self.timeout - seconds
