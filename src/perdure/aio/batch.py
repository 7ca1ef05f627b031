"""AsyncBatch: several records of a session in one commit, all or none."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self

from perdure.core import annotations
from perdure.core.batch import BatchPlans, JointPlan
from perdure.core.messages import append_parsed, make_attribution, parse_all
from perdure.core.plans import Plan, TurnOwnership
from perdure.core.turns import complete_turn
from perdure.core.values import delete_value, set_value
from perdure.errors import UsageError


class AsyncBatch:
    """Several records in one commit: all or none. Created by `session.batch`.

    The methods only collect: the records are written when the block ends, and not at all if it
    raises. After the block, `positions` is the range that they have.
    """

    def __init__(
        self,
        plans: BatchPlans,
        write: Callable[[JointPlan], Awaitable[range]],
        turn: TurnOwnership | None = None,
    ) -> None:
        self._plans = plans
        self._write = write
        self._turn = turn
        self._open: bool | None = None
        self._positions = range(0)

    def __repr__(self) -> str:
        state = "open" if self._open else "not entered" if self._open is None else "ended"
        return f"<{type(self).__name__} of {self._plans.replica.name!r}: {state}>"

    @property
    def positions(self) -> range:
        """The positions of the records, once the block has ended; empty before, or without any."""
        return self._positions

    def append(
        self,
        *messages: object,
        author: str = "",
        recipient: str = "",
        channel: str = "",
        origin: str = "",
        id: str | None = None,
    ) -> None:
        """Append messages, as `session.append` does, or as `turn.append` in the batch of a turn."""
        attribution = make_attribution(author, recipient, channel, origin)
        parsed = parse_all(messages)
        plan = append_parsed(
            self._plans.replica, parsed, attribution=attribution, turn=self._turn, record_id=id
        )
        self._add(plan, "append", [[*item] for item in parsed], [*attribution], id)

    def set(self, key: str, value: object) -> None:
        """Store a value as the newest version of a key."""
        self._add(set_value(self._plans.replica, key, value), "set", key, value)

    def delete(self, key: str) -> None:
        """Delete a value; NotFoundError when the block ends if it does not exist."""
        self._add(delete_value(self._plans.replica, key), "delete", key)

    def note(self, data: object, *, author: str = "", id: str | None = None) -> None:
        """Append a note that is not part of the conversation."""
        plan = annotations.add_note(self._plans.replica, data, author=author, record_id=id)
        self._add(plan, "note", data, author, id)

    def label(self, *add: str, remove: Sequence[str] = ()) -> None:
        """Add or remove labels, by which `store.sessions` finds the session."""
        plan = annotations.change_labels(self._plans.replica, add, remove)
        self._add(plan, "label", [*add], [*remove])

    def pin(self, position: int) -> None:
        """Pin the message at a position: every window includes it."""
        self._add(annotations.pin_message(self._plans.replica, position, on=True), "pin", position)

    def unpin(self, position: int) -> None:
        """Unpin a message, so that windows may cut it again."""
        plan = annotations.pin_message(self._plans.replica, position, on=False)
        self._add(plan, "unpin", position)

    def _add(self, plan: Plan[Any], call: str, *arguments: object) -> None:
        self._require_open()
        self._plans.add(plan, call, *arguments)

    def _require_open(self) -> None:
        if self._open is None:
            raise UsageError("the batch is not open: enter it with `async with` first")
        if not self._open:
            raise UsageError("the batch has ended: begin another with session.batch()")

    async def __aenter__(self) -> Self:
        if self._open is not None:
            raise UsageError("a batch is entered once: begin another with session.batch()")
        self._open = True
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._open = False
        if error is None and len(self._plans):
            self._positions = await self._write(self._plans.join())


class AsyncTurnBatch(AsyncBatch):
    """A batch of a turn, which may end the turn with it. Created by `turn.batch`."""

    completes = False
    """Whether the turn ends with this batch."""

    def complete(self) -> None:
        """End the turn as complete, in the same commit. Nothing can be added afterwards."""
        if self._turn is not None:
            self._add(complete_turn(self._plans.replica, self._turn), "complete")
            self.completes, self._open = True, False
