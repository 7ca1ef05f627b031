"""Format an answer as a chat completion: complete, or as the chunks of a stream. Pure."""

from collections.abc import Iterator
from typing import Any

from perdure.testing.model_server.answers import Answer, AnswerCall, calls_with_ids, split_text
from perdure.testing.model_server.prompts import Prompt

CREATED = 1_750_000_000

"""The creation time of every answer: constant, so that an answer depends only on its request."""


def completion(prompt: Prompt, answer: Answer) -> dict[str, Any]:
    """Return the body of an answer that is not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    message |= {"refusal": answer.refusal, "annotations": []}
    if answer.reasoning is not None:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            _call(call, id, call.arguments) for call, id in calls_with_ids(answer, prompt.seed)
        ]
    choice = {"message": message, "logprobs": None, "finish_reason": answer.finish_reason}
    choices = [{"index": index, **choice} for index in range(_choice_count(prompt))]
    head = _head(prompt, "chat.completion")
    return {**head, "choices": choices, "usage": _usage(prompt, answer)}


def chunks(prompt: Prompt, answer: Answer) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a streamed answer, without the final `[DONE]`."""
    head = _head(prompt, "chat.completion.chunk")
    wants_usage = bool((prompt.body.get("stream_options") or {}).get("include_usage"))
    if wants_usage:
        head["usage"] = None
    for index in range(_choice_count(prompt)):
        for delta in _deltas(prompt, answer):
            yield {**head, "choices": [_choice(index, delta)]}
        yield {**head, "choices": [_choice(index, {}, answer.finish_reason)]}
    if wants_usage:
        yield {**head, "choices": [], "usage": _usage(prompt, answer)}


def _deltas(prompt: Prompt, answer: Answer) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": None if answer.calls else "", "refusal": None}
    yield from ({"reasoning_content": piece} for piece in split_text(answer.reasoning or ""))
    yield from ({"content": piece} for piece in split_text(answer.text or ""))
    yield from ({"refusal": piece} for piece in split_text(answer.refusal or ""))
    for index, (call, id) in enumerate(calls_with_ids(answer, prompt.seed)):
        yield {"tool_calls": [{"index": index, **_call(call, id, "")}]}
        kind, field = _field_names(call)
        for piece in split_text(call.arguments):
            yield {"tool_calls": [{"index": index, kind: {field: piece}}]}


def _choice(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def _call(call: AnswerCall, id: str, arguments: str) -> dict[str, Any]:
    kind, field = _field_names(call)
    return {"id": id, "type": kind, kind: {"name": call.name, field: arguments}}


def _field_names(call: AnswerCall) -> tuple[str, str]:
    return ("custom", "input") if call.custom else ("function", "arguments")


def _choice_count(prompt: Prompt) -> int:
    return int(prompt.body.get("n") or 1)


def _head(prompt: Prompt, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{prompt.seed}",
        "object": kind,
        "created": CREATED,
        "model": prompt.body["model"],
        "service_tier": "default",
        "system_fingerprint": "fp_perdure",
    }


def _usage(prompt: Prompt, answer: Answer) -> dict[str, Any]:
    completion = (answer.tokens + answer.reasoning_tokens) * _choice_count(prompt)
    return {
        "prompt_tokens": prompt.tokens,
        "completion_tokens": completion,
        "total_tokens": prompt.tokens + completion,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": answer.reasoning_tokens * _choice_count(prompt),
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
