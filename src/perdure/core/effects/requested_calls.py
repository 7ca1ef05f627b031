"""The model's tool calls that still have to run, and how their results are formatted. Pure."""

from collections.abc import Collection
from typing import Any, NamedTuple

from perdure.core.effects.calls import issued_call_id
from perdure.core.replica import Replica
from perdure.errors import UsageError
from perdure.formats.intake import extract_messages
from perdure.formats.tool_calls import RequestedCall, closing, open_calls, parse_calls
from perdure.journal import reader
from perdure.journal.records import Message
from perdure.journal.requests import Steps


class PendingCall(NamedTuple):
    """A call of a stored message that has no result yet."""

    position: int
    message: dict[str, Any]
    issued: RequestedCall

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
            return f"Error: there is no tool {name!r}. There are: {', '.join(sorted(known))}."
        if self.issued.problem:
            return f"Error: {name!r} was not called, {self.issued.problem}."
        return ""


def read_pending_calls(
    replica: Replica, turn: str, message: object | None
) -> Steps[list[PendingCall]]:
    """Return the open calls of the turn, or only those of one message."""
    state, past, _ = replica.view
    open_by_id = state.conversation.calls
    if message is None:
        wanted = {call_id for call_id, call in open_by_id.items() if call.turn == turn}
    else:
        parsed = extract_messages(message)
        wanted = {call.id for item in parsed for call in open_calls(item.message)}
        if wanted - open_by_id.keys() == wanted != set():
            raise UsageError("none of its calls is open: append the message to the turn first")
    pending: list[PendingCall] = []
    positions = {id: call.position for id, call in open_by_id.items() if id in wanted}
    for position in sorted({*positions.values()}):
        content = yield from reader.read_kind(past, position, Message)
        stored = replica.settings.codec.unpack(content.message, stream=replica.name)
        pending += [
            PendingCall(position, stored, request)
            for request in parse_calls(stored)
            if positions.get(request.call.id) == position
        ]
    return pending
