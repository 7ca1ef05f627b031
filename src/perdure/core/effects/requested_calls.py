"""The model's tool calls that still have to run, and the results of those that ran. Pure."""

from collections.abc import Collection
from typing import Any, NamedTuple

from perdure.core import turn_records
from perdure.core.effects.calls import issued_call_id
from perdure.core.replica import Replica
from perdure.core.streaming import INTERRUPTED_ORIGIN
from perdure.errors import UsageError
from perdure.formats.intake import extract_messages
from perdure.formats.tool_calls import RequestedCall, answers, closing, parse_calls
from perdure.journal import reader
from perdure.journal.records import Message
from perdure.journal.requests import Steps


class IssuedCall(NamedTuple):
    """A call of a stored message, and its result for the model if there is one."""

    position: int
    message: dict[str, Any]
    issued: RequestedCall
    result: dict[str, Any] | None = None
    is_closed: bool = False
    """Whether the result is only a notice, with which the next turn closed the call."""

    def with_result(self, result: dict[str, Any], is_notice: bool) -> "IssuedCall":  # noqa: FBT001
        """Return the call with a result. The first one counts, unless it is only a notice."""
        if self.result is not None and (is_notice or not self.is_closed):
            return self
        return self._replace(result=result, is_closed=is_notice)

    def makes(self, request: RequestedCall) -> bool:
        """Whether this is a call of the same tool with the same id and arguments."""
        return request._replace(number=self.issued.number) == self.issued

    @property
    def identity(self) -> str:
        """The identity of the call, by position: providers' ids can repeat, positions cannot."""
        return issued_call_id(self.position, self.issued.number)

    def answer(self, text: str, *, failed: bool) -> dict[str, Any]:
        """Return the message that answers the call, in the format of the message that made it."""
        return closing(self.message, self.issued.call, text, failed=failed)

    def problem(self, known: Collection[str]) -> str:
        """Return why the call cannot be made, as an error text for the model, or ""."""
        name = self.issued.call.name
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            return f"Error: there is no tool {name!r}. There are: {names}."
        if self.issued.problem:
            return f"Error: {name!r} was not called, {self.issued.problem}."
        return ""


def read_requested_calls(
    replica: Replica, turn: str, message: object | None
) -> Steps[list[IssuedCall]]:
    """Return the open calls of the turn, or all calls of one message of the turn, in order.

    A call of the message that was answered already has its result, however often it is asked for.
    """
    open_by_id = replica.state.conversation.calls
    if message is None:
        ids = {call_id for call_id, call in open_by_id.items() if call.turn == turn}
        return (yield from _read_open_calls(replica, ids))
    items = [item.message for item in extract_messages(message)]
    wanted = [request for item in items for request in parse_calls(item)]
    by_id: _CallsById = {}
    for call in (yield from _read_open_calls(replica, {request.call.id for request in wanted})):
        by_id.setdefault(call.issued.call.id, []).append(call)
    if not all(_newest_call(by_id, request) for request in wanted):
        for call_id, calls in (yield from _read_answered_calls(replica, turn)).items():
            by_id[call_id] = calls + by_id.get(call_id, [])
    found = [_newest_call(by_id, request) for request in wanted]
    if not all(found):
        raise UsageError("the message is not part of the turn: append it with turn.append first")
    return [call for call in found if call is not None]


# Calls by the ids of their provider, oldest first: these ids can repeat.
_CallsById = dict[str, list[IssuedCall]]


def _newest_call(by_id: _CallsById, request: RequestedCall) -> IssuedCall | None:
    """Return the newest call of the tool with the same id and arguments, or None."""
    calls = by_id.get(request.call.id, [])
    return next((call for call in calls[::-1] if call.makes(request)), None)


def _read_open_calls(replica: Replica, ids: Collection[str]) -> Steps[list[IssuedCall]]:
    """Return the open calls with these ids, in order."""
    open_by_id = replica.state.conversation.calls
    positions = {id: call.position for id, call in open_by_id.items() if id in ids}
    calls: list[IssuedCall] = []
    for position in sorted({*positions.values()}):
        content = yield from reader.read_kind(replica.history, position, Message)
        stored = replica.settings.codec.unpack(content.message, stream=replica.name)
        calls += [
            IssuedCall(position, stored, request)
            for request in parse_calls(stored)
            if positions.get(request.call.id) == position
        ]
    return calls


def _read_answered_calls(replica: Replica, turn: str) -> Steps[_CallsById]:
    """Return the calls of a turn's messages, with their results."""
    batch = replica.new_batch()
    place = yield from turn_records.find_turn(batch, turn)
    by_id: _CallsById = {}
    for position, _, content in (yield from turn_records.read_turn(batch, place)) if place else ():
        if isinstance(content, Message) and not (content.interrupted or content.opaque):
            message = replica.settings.codec.unpack(content.message, stream=replica.name)
            is_notice = content.origin == INTERRUPTED_ORIGIN
            for call_id in answers(message):
                if call_id in by_id:
                    by_id[call_id][-1] = by_id[call_id][-1].with_result(message, is_notice)
            for request in parse_calls(message):
                call = IssuedCall(position, message, request)
                by_id.setdefault(request.call.id, []).append(call)
    return by_id
