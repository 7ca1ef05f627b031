"""Where a conversation may be cut, so that nothing is torn that belongs together. Pure."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from perdure.effects.calls import answers, open_calls
from perdure.formats.parts import Native, Said
from perdure.formats.responses_items import CALLS, HOSTED, needs_id


def safe_cut(said: Sequence[Said], index: int) -> bool:
    """Whether a window may begin at this index; for several, ask `safe_cuts` once."""
    return safe_cuts(said)[index]


def safe_cuts(said: Sequence[Said]) -> list[bool]:
    """Return, for each index and the end, whether a window may begin there.

    It may not between a call and its result, at a result without a call, nor inside an answer of
    the Responses API, whose items hold on to their reasoning. Calls that were never answered do not
    count: they are closed by a notice wherever they stand.
    """
    whole = [*_pairs(said), *_answers(said)]
    change = [0] * (len(said) + 2)
    for first, last in whole:
        change[first] += 1
        change[last + 1] -= 1
    safe, inside = [], 0
    for step in change[: len(said) + 1]:
        inside += step
        safe.append(inside == 0)
    safe[0] = True
    return safe


_Span = tuple[int, int]  # The first and the last index at which no window may begin.


def _pairs(said: Sequence[Said]) -> Iterator[_Span]:
    waiting: dict[str, list[int]] = {}
    answered: dict[str, int] = {}
    for index, each in enumerate(said):
        for id in answers(each.message):
            if waiting.get(id):
                answered[id] = waiting[id].pop()
            yield answered.get(id, index - 1) + 1, index
        for call in () if each.interrupted else open_calls(each.message):
            waiting.setdefault(call.id, []).append(index)


class _Run(NamedTuple):
    """The items of one answer so far."""

    first: int
    last: int
    led: bool  # Whether reasoning came before.


def _answers(said: Sequence[Said]) -> Iterator[_Span]:
    """Yield the insides of answers; where no reasoning leads, what needs one's id also binds."""
    runs: dict[str, _Run] = {}  # By turn: two workers may write at the same time.
    for index, each in enumerate(said):
        type_, turn = _item_type(each.message), each.turn
        run = runs.pop(turn, None)
        if not type_:
            continue
        if run is None or not (turn or run.last == index - 1):
            run = _Run(index, index, led=False)
        yield run.first + 1, index
        led = run.led or type_ == "reasoning"
        if not led and needs_id(type_):
            yield run.first, index
        runs[turn] = _Run(run.first, index, led)


def _item_type(message: Native) -> str:
    """Return the type of an item of an answer, if the message is one."""
    type_ = message.get("type")
    if type(type_) is not str:
        return ""
    if type_ == "message":
        answer = message.get("role") == "assistant" and "stop_reason" not in message
        return type_ if answer else ""
    return type_ if type_ == "reasoning" or type_ in CALLS or type_ in HOSTED else ""
