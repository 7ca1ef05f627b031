"""Approvals of a run: people's decisions are recorded before the run continues with them.

In: a RunState that a person decided on, or the result of a run that waits. Out: notes of the
session, or the state with the recorded decisions. A decision counts once: another one about the
same call is a DivergenceError.
"""

from collections.abc import Mapping
from typing import Any

from perdure import AsyncSession, AsyncTurn
from perdure.adapters.openai_agents.items import Item
from perdure.adapters.openai_agents.replies import RunRecord, read_run
from perdure.errors import UsageError

TOPIC = "openai_agents.approvals"


def call_id_of(item: Any) -> str:
    """Return the id of the call that an approval is about."""
    return str(field_of(item.raw_item, "call_id") or field_of(item.raw_item, "id"))


def field_of(item: Any, name: str) -> Any:
    """Return a field of an item, which is a dict or an object of the SDK."""
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)


async def find_waiting_run(
    session: AsyncSession, turns: list[AsyncTurn], state: Any
) -> tuple[AsyncTurn, int]:
    """Return the open run that a state belongs to, and how many of its responses the state has.

    UsageError if there is none, or if a call of the state is not as it is recorded.
    """
    calls = {call_id_of(item): item.raw_item for item in state.get_interruptions()}
    for turn in reversed(turns):
        record = await read_run(turn)
        places = {id: place for id in calls if (place := record.call(id)) is not None}
        if calls and not places and len(turns) > 1:
            continue  # Calls of an agent that is a tool are no messages: then it is the only run.
        for id, (_, item) in places.items():
            if any(item.get(name) != field_of(calls[id], name) for name in ("name", "arguments")):
                reason = f"the state has another call {id!r} than the run"
                raise UsageError(f"{reason} of session {session.id!r}: take the state of the run")
        number = max((number for number, _ in places.values()), default=len(record.responses))
        return turn, number
    reason = f"no run of session {session.id!r} waits for this state"
    raise UsageError(f"{reason}: a state is used once; run the input with its id for the result")


async def record_decisions(session: AsyncSession, turn: AsyncTurn, state: Any) -> None:
    """Record what a person decided about the calls of a state."""
    for item in state.get_interruptions():
        decision = _decision(state, item)
        if decision is not None:
            call = call_id_of(item)
            data = {"run": turn.id, "call": call, **decision}
            await session.note(data, topic=TOPIC, id=f"{turn.id}/{call}")


def _decision(state: Any, item: Any) -> Item | None:
    # A call of an agent that is a tool belongs to a state inside of the state.
    nested = state._find_nested_approval_state(item)  # noqa: SLF001 - behind the version check
    owner, pending = nested or (state, item)
    context, name = owner._context, pending.tool_name or ""  # noqa: SLF001
    which = {"tool_namespace": pending.tool_namespace, "existing_pending": pending}
    approved = context.get_approval_status(name, call_id_of(pending), **which)
    if approved is None:
        return None
    message = context.get_rejection_message(name, call_id_of(pending), **which)
    return {"approved": approved, **({"message": message} if message else {})}


class RecordedDecisions:
    """The decisions that are recorded about the calls of one run."""

    def __init__(self, decisions: dict[str, Item], record: RunRecord) -> None:
        self._decisions = decisions
        outputs = [stored.item for stored in record.items if "output" in stored.item]
        self._answered = {item.get("call_id") for item in outputs}

    def apply(self, result: Any) -> Any:
        """Return the state of a run that waits, with recorded decisions; None without any.

        A call that has an output was decided on: its output comes from the record.
        """
        state, is_decided = result.to_state(), False
        for item in state.get_interruptions():
            call = call_id_of(item)
            decision = self._decisions.pop(call, None)
            if decision is None and call not in self._answered:
                continue
            is_decided = True
            self._answered.discard(call)
            if decision is None or decision["approved"]:
                state.approve(item)
            else:
                state.reject(item, rejection_message=decision.get("message"))
        return state if is_decided else None


async def read_decisions(
    session: AsyncSession, turn: AsyncTurn, record: RunRecord
) -> RecordedDecisions:
    """Return the recorded decisions about the calls of a run."""
    decisions: dict[str, Item] = {}
    async for note in session.notes(TOPIC):
        if note.position < turn.branch_point:
            break
        data = note.content.data  # type: ignore[attr-defined] # notes of a topic are notes
        if data["run"] == turn.id:
            decisions[data["call"]] = data
    return RecordedDecisions(decisions, record)
