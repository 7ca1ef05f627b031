"""Store a large result once: if a message contains it verbatim, its outcome refers to the message.

Pure. The outcome is stored right after the message, in the same append, so restoring the result
costs one read.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.core.effects.calls import (
    DENIED_ERROR,
    EXPIRED_ERROR,
    CallOutcome,
    DidNotHappen,
    Happened,
    Kind,
    OutcomeState,
    SharedForm,
    ToolTimeoutError,
)
from perdure.errors import (
    ApprovalDeniedError,
    ApprovalPendingError,
    ChainError,
    EffectError,
    ToolFailureError,
    UnknownOutcomeError,
    UnstoredResultError,
    UsageError,
)
from perdure.formats.tool_calls import INTERRUPTED_NOTICE
from perdure.journal import codec
from perdure.journal.records import Content, EffectOutcome, Message

# The reasons of some failures. A replay recognizes them, so that it can raise the same error.
INTERRUPTED_PREFIX, INTERRUPTED_SUFFIX = "It was interrupted by ", " while it ran."

REASON_CHARS_MAX = 2_000  # characters of an error's text; enough to read, too few for a dump

SHARED_MIN = 64  # characters; naming the form takes 21 bytes, so a shorter one is stored twice


def shared_form(result: Any, message: dict[str, Any]) -> SharedForm:
    """Return how a message contains a packed result: as "text", as "json", or "" if not exactly."""
    text = result_text(message)
    if text is None or len(text) < SHARED_MIN:
        return ""
    if result == text:
        return "text"
    return "json" if codec.encode_tree(result) == text.encode() else ""


def restore_result(settled: EffectOutcome, message: dict[str, Any]) -> EffectOutcome | None:
    """Return an outcome with its result, or None if the message does not contain one."""
    text = result_text(message)
    if text is None:
        return None
    try:
        result = codec.decode_tree(text.encode()) if settled.shared_form == "json" else text
    except (msgspec.DecodeError, UnicodeError):
        return None
    return msgspec.structs.replace(settled, result=result, shared_form="")


def require_result(
    name: str, position: int, settled: EffectOutcome, content: Content
) -> EffectOutcome:
    """Return an outcome with its result from the message at a position, or raise ChainError."""
    restored = restore_result(settled, content.message) if isinstance(content, Message) else None
    if restored is None:
        raise ChainError(name, position, "the result of a call is expected here")
    return restored


def result_text(message: dict[str, Any]) -> str | None:
    """Return the text of a message that answers a single call, in any known format."""
    text: Any = message.get("content")
    if type(text) is list and len(text) == 1 and type(text[0]) is dict:
        text = text[0].get("content")  # Anthropic
    elif "output" in message:
        text = message["output"]  # Responses API
    elif "parts" in message:
        text = _gemini_result(message["parts"])
    return text if type(text) is str else None


def _gemini_result(parts: Any) -> Any:
    if type(parts) is list and len(parts) == 1 and type(parts[0]) is dict:
        response = (parts[0].get("function_response") or {}).get("response")
        return response.get("result") if type(response) is dict else None
    return None


def replay_result(
    stream: str,
    tool: str,
    outcome: EffectOutcome,
    result: Any,
    *,
    key: str,
    position: int,
    as_text: bool,
) -> Any:
    """Return the result of the outcome recorded at a position, or raise its error.

    A result that could not be stored raises UnstoredResultError, unless its text is wanted.
    """
    if outcome.state == "unknown":
        raise UnknownOutcomeError(stream, tool, outcome.effect, key, outcome.reason)
    if outcome.error in (DENIED_ERROR, EXPIRED_ERROR):
        raise ApprovalDeniedError(stream, tool, outcome.error, outcome.reason)
    if outcome.error:
        raise EffectError(stream, tool, outcome.error, outcome.reason, result)
    if outcome.unstored and not as_text:
        raise UnstoredResultError(stream, tool, outcome.unstored, position)
    return result


def failure_outcome(error: BaseException, duration: float, kind: Kind = "tool") -> CallOutcome:
    """Return the outcome of a call that raised; an interrupted tool may have taken effect."""
    name, reason = type(error).__qualname__, exception_text(error)
    if isinstance(error, ToolTimeoutError) and kind != "model":
        return CallOutcome("unknown", reason=reason, duration=duration)
    if isinstance(error, Exception) or kind == "model":
        result = error.result if isinstance(error, ToolFailureError) else None
        return CallOutcome("failed", result, error=name, reason=reason, duration=duration)
    reason = INTERRUPTED_PREFIX + name + INTERRUPTED_SUFFIX
    return CallOutcome("unknown", error=name, reason=reason, duration=duration)


def may_run_again(outcome: CallOutcome | EffectOutcome, policy: str) -> bool:
    """Whether an outcome only says that the call was interrupted, and its policy decides on it."""
    return outcome.state == "unknown" and bool(outcome.error) and policy != "unsafe"


def unstored_outcome(state: OutcomeState, result: object, duration: float) -> CallOutcome:
    """Return the outcome of a call that took effect and whose result cannot be stored."""
    text, kind = codec.to_text(result), codec.type_name(result)
    return CallOutcome(state, text, duration=duration, unstored=kind)


def require_reconciliation(returned: object) -> None:
    """Raise UsageError unless a reconcile function returned Happened or DidNotHappen."""
    if not isinstance(returned, Happened | DidNotHappen):
        expected = "a reconcile function must return Happened(…) or DidNotHappen()"
        raise UsageError(f"{expected}, not {type(returned).__name__}")


def unreconciled_outcome(error: BaseException) -> CallOutcome:
    """Return the outcome of a call whose reconcile function failed."""
    reason = f"The reconcile function failed: {type(error).__qualname__}: {exception_text(error)}"
    return CallOutcome("unknown", reason=reason)


def exception_text(error: BaseException) -> str:
    """Return the text of an error, shortened and storable."""
    try:
        return str(error)[:REASON_CHARS_MAX].encode("utf-8", "replace").decode()
    except Exception:  # noqa: BLE001 - an error whose __str__ fails must still be recorded
        return "(it has no text)"


def recorded_failure_text(error: UnknownOutcomeError | EffectError) -> str:
    """Return a recorded failure, or an unknown outcome, as text for the model."""
    if isinstance(error, UnknownOutcomeError):
        return f"{INTERRUPTED_NOTICE} ({error.reason})"
    if isinstance(error, ApprovalDeniedError):
        return error.reason
    return f"Error: {error.error}: {error.reason}"


def failure_text(outcome: CallOutcome) -> str:
    """Return a failure as text for the model."""
    if outcome.state == "unknown":
        return f"{INTERRUPTED_NOTICE} ({outcome.reason})"
    return f"Error: {outcome.error}: {outcome.reason}"


def to_model_text(result: Any) -> str:
    """Return a result as text for the model."""
    if isinstance(result, str):
        return result
    try:
        return msgspec.json.encode(result, enc_hook=_python_scalar).decode()
    except (TypeError, ValueError):
        return codec.to_text(result, str)


def _python_scalar(value: Any) -> Any:
    """Return a scalar of numpy as Python's own."""
    if hasattr(value, "dtype") and hasattr(value, "item"):
        return value.item()
    raise TypeError(type(value))


def collect_results(answers: Sequence[dict[str, Any] | BaseException]) -> list[dict[str, Any]]:
    """Return the result messages, or raise the first error; pending approvals come last."""
    pending: list[ApprovalPendingError] = []
    for answer in answers:
        if isinstance(answer, ApprovalPendingError):
            pending.append(answer)
        elif isinstance(answer, BaseException):
            raise answer
    if pending:
        stream, tool, approval, store, _ = pending[0].args
        ids = tuple(error.approval for error in pending)
        raise ApprovalPendingError(stream, tool, approval, store, ids)
    return [answer for answer in answers if not isinstance(answer, BaseException)]
