"""Calls and their results: whose is which, and what is left over. Pure.

A result belongs to the newest call before it that has its id (or, without an id, its name) and no
result yet: ids repeat in long conversations. It is never given to a later call, which has not had
it. A notice of interruption gives way to a result that comes after it.
"""

from perdure.effects.calls import INTERRUPTED_NOTICE
from perdure.formats.parts import Loss, Losses, Part, Result, Speech, Text, ToolCall

_Asked = tuple[
    int, ToolCall
]  # With the number of its speech: of one speech, the first comes first.


def pair(speeches: list[Speech], losses: Losses) -> list[Speech]:
    """Take results out of what is said and give them to their calls."""
    by_id: dict[str, list[_Asked]] = {}
    by_name: dict[str, list[_Asked]] = {}
    kept = []
    for number, speech in enumerate(speeches):
        others: list[Part] = []
        for part in speech.parts:
            if type(part) is Result:
                asked = by_id.get(part.id) if part.id else None
                _give(part, asked or by_name.get(part.name or part.id, []), losses)
                continue
            others.append(part)
            if type(part) is ToolCall:
                for id in _ids(part):
                    by_id.setdefault(id, []).append((number, part))
                by_name.setdefault(part.name, []).append((number, part))
        if len(others) < len(speech.parts):
            speech.parts = others
        if others:
            kept.append(speech)
    return kept


def _ids(call: ToolCall) -> tuple[str, ...]:
    """Return what a result may call the call; a local shell's goes by either of its two ids."""
    if call.kind == "local_shell_call" and call.native is not None:
        return (call.id, str(call.native.get("id")))
    return (call.id,)


def is_notice(result: Result | None) -> bool:
    if result is None:
        return False
    first = result.parts[0] if len(result.parts) == 1 else None
    return type(first) is Text and first.text == INTERRUPTED_NOTICE


def _give(result: Result, asked: list[_Asked], losses: Losses) -> None:
    call = _newest_open(asked, notices=not is_notice(result))
    if call is not None:
        if call.result is not None:
            _tell(call.result, "a later result took its place", losses)
        call.result = result
    elif asked:
        _tell(result, "the call has one already", losses)
    else:
        _tell(result, "its call is not there", losses)


def _tell(result: Result, why: str, losses: Losses) -> None:
    named = result.name or result.id
    losses.append(Loss(result.at, f"a result for {named!r} was left out: {why}"))


def _newest_open(asked: list[_Asked], *, notices: bool) -> ToolCall | None:
    """Return the first open call of the newest speech that has one.

    With `notices`, a call that only a notice answers is open too, after those of its speech that
    nothing answers.
    """
    newest = -1
    found: ToolCall | None = None
    for number, call in reversed(asked):
        if found is not None and number != newest:
            break
        unanswered = call.result is None
        if unanswered or (notices and is_notice(call.result) and _may_yield(found)):
            newest, found = number, call
    return found


def _may_yield(found: ToolCall | None) -> bool:
    return found is None or found.result is not None
