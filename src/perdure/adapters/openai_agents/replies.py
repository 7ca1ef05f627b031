"""Convert a model's response to messages and their metadata, and back; also to a stream's events.

A response is stored as the items that the SDK would store, with its id and usage as metadata of the
last one. So a recorded response equals the live one in every field that the SDK uses.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from agents import ModelResponse, Usage
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponseOutputItem,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseTextDeltaEvent,
    ResponseUsage,
)
from pydantic import TypeAdapter

from perdure import AsyncTurn
from perdure.adapters.openai_agents.items import Item
from perdure.journal.records import Message

NOTICE_ORIGIN = "perdure:"  # Prefix of the origin of messages that perdure writes itself.

_output_items: TypeAdapter[Any] = TypeAdapter(list[ResponseOutputItem])
_usage: TypeAdapter[Any] = TypeAdapter(Usage)


class StoredResponse(NamedTuple):
    """A recorded response: its items, as messages, and its metadata."""

    items: list[Item]
    meta: Item

    def load(self) -> Any:
        """Return it as the SDK's ModelResponse."""
        return ModelResponse(
            output=_output_items.validate_python(self.items),
            usage=_usage.validate_python(self.meta["usage"]),
            response_id=self.meta.get("id"),
            request_id=self.meta.get("request_id"),
        )

    def events(self) -> Iterator[Any]:
        """Yield the events of a stream that has this response; a text comes in one piece."""
        loaded = self.load()
        output, usage = loaded.output, loaded.usage
        response = Response(
            id=loaded.response_id or "recorded",
            created_at=0,
            model=self.meta.get("model") or "recorded",
            object="response",
            output=[],
            parallel_tool_calls=False,
            tool_choice="auto",
            tools=[],
        )
        yield ResponseCreatedEvent(response=response, sequence_number=0, type="response.created")
        number = 0
        for index, item in enumerate(output):
            for event in _item_events(item, index):
                number += 1
                yield event(number)
        counts = ResponseUsage(
            input_tokens=usage.input_tokens,
            input_tokens_details=usage.input_tokens_details,
            output_tokens=usage.output_tokens,
            output_tokens_details=usage.output_tokens_details,
            total_tokens=usage.total_tokens,
        )
        whole = response.model_copy(update={"output": output, "usage": counts})
        yield ResponseCompletedEvent(
            response=whole, sequence_number=number + 1, type="response.completed"
        )


def _item_events(item: Any, index: int) -> Iterator[Any]:
    """Yield functions of a sequence number that return the events of an item."""
    yield lambda number: ResponseOutputItemAddedEvent(
        item=item, output_index=index, sequence_number=number, type="response.output_item.added"
    )
    for at, part in enumerate(getattr(item, "content", None) or ()):
        if getattr(part, "type", "") == "output_text":
            yield lambda number, at=at, part=part: ResponseTextDeltaEvent(
                content_index=at,
                delta=part.text,
                item_id=item.id,
                logprobs=[],
                output_index=index,
                sequence_number=number,
                type="response.output_text.delta",
            )
    yield lambda number: ResponseOutputItemDoneEvent(
        item=item, output_index=index, sequence_number=number, type="response.output_item.done"
    )


def dump_response(response: Any, model: str) -> StoredResponse:
    """Return a ModelResponse as it is stored."""
    items = response.to_input_items()
    meta = {
        "id": response.response_id,
        "model": model,
        "usage": _usage.dump_python(response.usage, mode="json"),
        "items": len(items),
    }
    if response.request_id:
        meta["request_id"] = response.request_id
    return StoredResponse(items, meta)


def dump_streamed(response: Any, output: Sequence[Any], model: str) -> StoredResponse:
    """Return the response at the end of a stream; `output` are the items, if it has none."""
    usage = response.usage
    counts = Usage(
        requests=1,
        input_tokens=usage.input_tokens if usage else 0,
        output_tokens=usage.output_tokens if usage else 0,
        total_tokens=usage.total_tokens if usage else 0,
    )
    if usage:
        counts.input_tokens_details = usage.input_tokens_details or counts.input_tokens_details
        counts.output_tokens_details = usage.output_tokens_details or counts.output_tokens_details
    whole = ModelResponse(
        output=response.output or [*output],
        usage=counts,
        response_id=response.id,
        request_id=getattr(response, "_request_id", None),
    )
    return dump_response(whole, model)


class StoredItem(NamedTuple):
    """An item of a run and its position; 0 if the position is not known."""

    item: Item
    position: int


class RunRecord(NamedTuple):
    """The record of a run: its input, its responses in order, and all of its items."""

    inputs: list[Item]
    responses: list[StoredResponse]
    items: list[StoredItem]

    def call(self, call_id: str) -> tuple[int, Item] | None:
        """Return a call of the model by its id, with the number of responses up to it."""
        for number, response in enumerate(self.responses, 1):
            for item in response.items:
                if item.get("call_id") == call_id:
                    return number, item
        return None


async def read_run(turn: AsyncTurn) -> RunRecord:
    """Return what is stored of a run, which is a turn."""
    record = RunRecord([], [], [])
    async for each in turn.records():
        content = each.content
        if not isinstance(content, Message) or content.interrupted:
            continue
        if content.origin.startswith(NOTICE_ORIGIN):
            continue
        record.items.append(StoredItem(content.message, each.position))
        if count := content.meta.get("items"):
            items = [stored.item for stored in record.items[-count:]]
            if not record.responses:
                record.inputs.extend([stored.item for stored in record.items[:-count]])
            record.responses.append(StoredResponse(items, content.meta))
    if not record.responses:
        record.inputs.extend([stored.item for stored in record.items])
    return record
