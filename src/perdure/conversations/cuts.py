"""Find the indexes where a conversation may be cut without separating calls from results.

Stored messages come in, booleans per index go out. Pure; nothing is changed.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from perdure.effects.calls import answers, open_calls
from perdure.formats.parts import Native, Said
from perdure.formats.responses_items import CALLS, HOSTED, needs_id


def safe_cut(messages: Sequence[Said], index: int) -> bool:
    """Whether a window may begin at this index; for several, call `safe_cuts` once."""
    return safe_cuts(messages)[index]


def safe_cuts(messages: Sequence[Said]) -> list[bool]:
    """Return, for each index and the end, whether a window may begin there.

    A window may not begin between a call and its result, at a result without a call, or inside an
    answer of the Responses API, whose items depend on their reasoning. Calls that were never
    answered do not count: a notice closes them wherever they are.
    """
    spans = [*_pairs(messages), *_answers(messages)]
    change = [0] * (len(messages) + 2)
    for first, last in spans:
        change[first] += 1
        change[last + 1] -= 1
    safe, open_spans = [], 0
    for step in change[: len(messages) + 1]:
        open_spans += step
        safe.append(open_spans == 0)
    safe[0] = True
    return safe


_Span = tuple[int, int]  # First and last index at which no window may begin.


def _pairs(messages: Sequence[Said]) -> Iterator[_Span]:
    calls: dict[str, list[int]] = {}
    answered: dict[str, int] = {}
    for index, stored in enumerate(messages):
        for id in answers(stored.message):
            if calls.get(id):
                answered[id] = calls[id].pop()
            yield answered.get(id, index - 1) + 1, index
        for call in () if stored.interrupted else open_calls(stored.message):
            calls.setdefault(call.id, []).append(index)


class _Run(NamedTuple):
    """The items of one answer so far."""

    first: int
    last: int
    led: bool  # Whether reasoning came before them.


def _answers(messages: Sequence[Said]) -> Iterator[_Span]:
    """Yield the spans inside answers.

    Without leading reasoning, an item that must keep its id also protects the answer's first index:
    the reasoning it depends on may have been cut away.
    """
    runs: dict[str, _Run] = {}  # By turn: two workers may write at the same time.
    for index, stored in enumerate(messages):
        type_, turn = _item_type(stored.message), stored.turn
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
    """Return the type of a message that is an item of a response; "" for any other."""
    type_ = message.get("type")
    if type(type_) is not str:
        return ""
    if type_ == "message":
        answer = message.get("role") == "assistant" and "stop_reason" not in message
        return type_ if answer else ""
    return type_ if type_ == "reasoning" or type_ in CALLS or type_ in HOSTED else ""
