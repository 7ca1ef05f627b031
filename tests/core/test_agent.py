"""The progress of an agent's turn is computed from its messages, in every format; wrong input."""

from typing import Any

import pytest

import perdure
from perdure.core.agent import Progress, measure_progress
from perdure.errors import UsageError

USER = {"role": "user", "content": "Go."}
CALL = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
CHAT = [
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "paid"},
    {"role": "assistant", "content": "done"},
]
TEXT = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "…"}]}
RESPONSES = [
    {"type": "reasoning", "id": "rs_1", "summary": []},
    TEXT,
    {"type": "function_call", "call_id": "c1", "name": "pay", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "paid"},
    TEXT,
]
ANTHROPIC = [
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "c1", "name": "pay", "input": {}}],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "paid"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
]


@pytest.mark.parametrize(
    ("reply", "called"),
    [(CHAT, 1), (RESPONSES, 3), (ANTHROPIC, 1)],
    ids=["chat", "items", "blocks"],
)
def test_a_turn_is_answered_when_its_last_reply_calls_no_tool(
    reply: list[dict[str, Any]], called: int
) -> None:
    assert measure_progress([USER]) == Progress(0, 0, is_answered=False)
    assert measure_progress([USER, *reply[:called]]) == Progress(1, 1, is_answered=False)
    assert measure_progress([USER, *reply[: called + 1]]) == Progress(1, 1, is_answered=False)
    assert measure_progress([USER, *reply]) == Progress(2, 1, is_answered=True)
    assert measure_progress([USER, *reply, USER]) == Progress(2, 1, is_answered=False)


@pytest.mark.parametrize("role", ["user", "system", "tool"])
def test_a_model_that_returns_no_reply_of_its_own_is_not_asked_for_ever(role: str) -> None:
    asked: list[int] = []

    def model(prompt: Any, tools: Any) -> dict[str, Any]:
        asked.append(1)
        assert len(asked) < 40
        return {"role": role, "content": "4929", "tool_call_id": "c1"}

    session = perdure.open("memory:").session("s")
    agent = perdure.Agent(session, model)
    with pytest.raises(UsageError, match="return one of the role 'assistant'") as raised:
        agent.run("r1", "Go.")
    assert "4929" not in str(raised.value)
    assert len(asked) == 1
    assert [*session.messages()] == [{"role": "user", "content": "Go."}]
    assert session.find_turn("r1").state == "failed"


def test_wrong_arguments_are_refused_before_a_turn_begins() -> None:
    session = perdure.open("memory:").session("s")

    def pay() -> str:
        return "paid"

    def model(prompt: Any, tools: Any) -> dict[str, Any]:
        return {"role": "assistant", "content": "done"}

    wrong: Any
    for wrong in (pay, None, 5):
        with pytest.raises(UsageError, match="tools must be a list of functions"):
            perdure.Agent(session, model, wrong)
    with pytest.raises(UsageError, match="instructions must be str, not int"):
        perdure.Agent(session, model, instructions=5)  # type: ignore[arg-type] # the refused case
    other = session.tool(lambda: "other", name="pay")
    with pytest.raises(UsageError, match="two tools have the name 'pay'"):
        perdure.Agent(session, model, [pay, other])
    perdure.Agent(session, model, [pay, pay])
    limits: tuple[tuple[str, Any], ...] = (
        *(("parallel", 0), ("parallel", -1), ("parallel", "all"), ("max_steps", -1)),
        *(("max_tool_calls", -1), ("max_tokens", 0), ("timeout", -1.0)),
    )
    for name, value in limits:
        with pytest.raises(UsageError, match=name):
            perdure.Agent(session, model, **{name: value})
    perdure.Agent(session, model, parallel=1, max_tool_calls=0, max_tokens=100)
    with pytest.raises(UsageError, match="parallel must be 1 or more"):
        session.run_tool_calls(None, [], parallel=0)
    for wrong in (None, 5):
        with pytest.raises(UsageError, match="pass a function that gets the turn"):
            session.run("r1", wrong, "Go.")
    assert session.position == 0
