"""Which calls of a model are to be made, and in whose words it is told of them. Pure."""

from collections.abc import Collection
from typing import Any, NamedTuple

from perdure import reading
from perdure.conversations.intake import take
from perdure.effects.calls import closing, open_calls
from perdure.effects.issued import Issued, issued_calls
from perdure.effects.tools import issued
from perdure.errors import ChainError, UsageError
from perdure.records import Message
from perdure.replica import Replica
from perdure.steps import Steps


class Job(NamedTuple):
    """A call of a stored message that has no result yet."""

    position: int
    message: dict[str, Any]
    issued: Issued

    @property
    def identity(self) -> str:
        """Which call it is, for ever: providers' ids can repeat, positions can not."""
        return issued(self.position, self.issued.number)

    def answer(self, text: str, *, failed: bool) -> dict[str, Any]:
        """Return the message that answers the call, in the format of the one that made it."""
        return closing(self.message, self.issued.call, text, failed=failed)

    def problem(self, known: Collection[str]) -> str:
        """Return what keeps the call from being made, as the model is told of it, or nothing."""
        name = self.issued.call.name
        if name not in known:
            return f"Error: there is no tool {name!r}. There are: {', '.join(sorted(known))}."
        if self.issued.problem:
            return f"Error: {name!r} was not called, {self.issued.problem}."
        return ""


def jobs(replica: Replica, turn: str, given: object | None) -> Steps[list[Job]]:
    """Return the open calls of the turn, or those of one message of it."""
    opened = replica.fold.talk.calls
    if given is None:
        wanted = {call_id for call_id, call in opened.items() if call.turn == turn}
    else:
        wanted = {call.id for one in take(given) for call in open_calls(one.message)}
        if wanted - opened.keys() == wanted != set():
            raise UsageError("none of its calls is open: append the message to the turn first")
    found: list[Job] = []
    for position in sorted({call.position for id, call in opened.items() if id in wanted}):
        content = yield from reading.content_at(replica.past, position)
        if not isinstance(content, Message):
            raise ChainError(replica.name, position, "a message with a call is expected here")
        message = replica.settings.codec.unpack(content.message, stream=replica.name)
        found += [
            Job(position, message, one)
            for one in issued_calls(message)
            if one.call.id in wanted and opened[one.call.id].position == position
        ]
    return found
