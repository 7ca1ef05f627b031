"""Format an answer as a message of Anthropic's API, not streamed. Pure."""

import json
from typing import Any

from perdure.testing.model_server.answers import Answer, calls_with_ids
from perdure.testing.model_server.prompts import Prompt

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def message(prompt: Prompt, answer: Answer) -> dict[str, Any]:
    """Return the body of an answer. A refusal is its text, and its reason to stop."""
    blocks: list[dict[str, Any]] = []
    if answer.reasoning is not None:
        thinking = {"thinking": answer.reasoning, "signature": prompt.seed}
        blocks.append({"type": "thinking", **thinking})
    text = answer.refusal or answer.text
    if text:
        blocks.append({"type": "text", "text": text, "citations": None})
    for call, id in calls_with_ids(answer, prompt.seed):
        arguments = json.loads(call.arguments)
        blocks.append({"type": "tool_use", "id": id, "name": call.name, "input": arguments})
    reason = _STOP_REASONS.get(answer.finish_reason, answer.finish_reason)
    return {
        "id": f"msg_{prompt.seed}",
        "type": "message",
        "role": "assistant",
        "model": prompt.body["model"],
        "content": blocks,
        "stop_reason": "refusal" if answer.refusal else reason,
        "stop_sequence": None,
        "usage": {"input_tokens": prompt.tokens, "output_tokens": answer.tokens},
    }
