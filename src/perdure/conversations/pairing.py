"""Attach tool results to their calls, and report the results that fit no call.

Normalized messages come in and go out, without separate results. Pure, but it changes the messages
and calls it is given.

A result belongs to the newest call before it that has its id (or, without an id, its name) and no
result yet: ids repeat in long conversations. It is never attached to a later call. A real result
replaces an earlier interruption notice.
"""

from perdure.effects.calls import INTERRUPTED_NOTICE
from perdure.formats.parts import Loss, Losses, Part, Result, Speech, Text, ToolCall

# A call and the number of its message: among the calls of one message, the first comes first.
_Asked = tuple[int, ToolCall]


def pair(messages: list[Speech], losses: Losses) -> list[Speech]:
    """Remove results from the messages and attach them to their calls."""
    by_id: dict[str, list[_Asked]] = {}
    by_name: dict[str, list[_Asked]] = {}
    remaining = []
    for number, message in enumerate(messages):
        others: list[Part] = []
        for part in message.parts:
            if type(part) is Result:
                candidates = by_id.get(part.id) if part.id else None
                _give(part, candidates or by_name.get(part.name or part.id, []), losses)
                continue
            others.append(part)
            if type(part) is ToolCall:
                for id in _ids(part):
                    by_id.setdefault(id, []).append((number, part))
                by_name.setdefault(part.name, []).append((number, part))
        if len(others) < len(message.parts):
            message.parts = others
        if others:
            remaining.append(message)
    return remaining


def _ids(call: ToolCall) -> tuple[str, ...]:
    """Return the ids by which a result may name a call; a local shell call has two."""
    if call.kind == "local_shell_call" and call.native is not None:
        return (call.id, str(call.native.get("id")))
    return (call.id,)


def is_notice(result: Result | None) -> bool:
    if result is None:
        return False
    first = result.parts[0] if len(result.parts) == 1 else None
    return type(first) is Text and first.text == INTERRUPTED_NOTICE


def _give(result: Result, candidates: list[_Asked], losses: Losses) -> None:
    call = _newest_open(candidates, notices=not is_notice(result))
    if call is not None:
        if call.result is not None:
            _tell(call.result, "a later result replaced it", losses)
        call.result = result
    elif candidates:
        _tell(result, "its call already has a result", losses)
    else:
        _tell(result, "its call is missing", losses)


def _tell(result: Result, reason: str, losses: Losses) -> None:
    call = result.name or result.id
    losses.append(Loss(result.at, f"a result for {call!r} was left out: {reason}"))


def _newest_open(candidates: list[_Asked], *, notices: bool) -> ToolCall | None:
    """Return the first open call of the newest message that has one.

    With `notices`, a call answered only by an interruption notice counts as open too, but comes
    after the unanswered calls of its message.
    """
    newest = -1
    best: ToolCall | None = None
    for number, call in reversed(candidates):
        if best is not None and number != newest:
            break
        unanswered = call.result is None
        if unanswered or (notices and is_notice(call.result) and _may_yield(best)):
            newest, best = number, call
    return best


def _may_yield(best: ToolCall | None) -> bool:
    return best is None or best.result is not None
