"""The progress of an agent's turn is computed from its messages, in every format."""

from typing import Any

import pytest

from perdure.core.agent import Progress, measure_progress

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
