"""The Responses API of the real package against the server, in both colours."""

import asyncio
import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseInputParam, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from perdure.testing import ModelServer, violations
from tests.testing.model_server.serving import async_client_of, post
from tests.testing.model_server.test_chat import MARKS

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


class Plan(BaseModel):
    goal: str
    steps: list[str]


def again(response: Response) -> ResponseInputParam:
    """Give the output back as input, as an application does."""
    return [item.to_dict() for item in response.output]  # type: ignore[misc]


def test_the_same_request_gets_the_same_answer(client: openai.OpenAI) -> None:
    one, two = (client.responses.create(model="m", input="hello") for _ in range(2))
    assert one == two
    assert one.output_text == "Answer 8c57957dea1e to 1 message."
    assert one.usage is not None
    assert (one.usage.input_tokens, one.usage.output_tokens, one.status) == (9, 9, "completed")
    told = client.responses.create(model="m", input="hello", instructions="Be brief.")
    assert told.output_text != one.output_text


def test_a_stream_says_the_same_in_pieces(client: openai.OpenAI) -> None:
    events = [*client.responses.create(model="m", input="hello", stream=True)]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == "Answer 8c57957dea1e to 1 message."
    assert [event.sequence_number for event in events] == [*range(len(events))]
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == text


def test_the_convenience_stream_gives_the_final_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model="m", input="[[reason]] hello") as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert {"response.reasoning_summary_text.delta", "response.output_text.delta"} <= kinds
    assert [item.type for item in final.output] == ["reasoning", "message"]


def test_parse_gets_an_object_that_fits(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model="m", input="hello", text_format=Plan)
    assert parsed.output_parsed == Plan(goal="8c57957dea1e", steps=["8c57957dea1e"])


def test_tools_are_called_and_their_outputs_answered(client: openai.OpenAI) -> None:
    asked: ResponseInputParam = [
        {
            "role": "user",
            "content": "[[reason]] [[tool add {}]] [[custom sh ls]] [[then]] [[tool b]]",
        }
    ]
    for expected in (["function_call", "custom_tool_call"], ["function_call"], []):
        response = client.responses.create(model="m", input=asked)
        calls = [item for item in response.output if item.type.endswith("_call")]
        assert [call.type for call in calls] == expected
        asked += again(response)
        for call in calls:
            kind: Any = f"{call.type}_output"
            asked.append({"type": kind, "call_id": getattr(call, "call_id", ""), "output": "ok"})
    assert "to 8 messages." in str(asked[-1])
    assert violations("openai.responses", [dict(item) for item in asked]) == []


@pytest.mark.parametrize("index", [1, 2])
def test_reasoning_and_what_it_led_to_can_not_be_parted(client: openai.OpenAI, index: int) -> None:
    asked: list[Any] = [{"role": "user", "content": "[[reason]] hello"}]
    asked += [
        *again(client.responses.create(model="m", input=asked)),
        {"role": "user", "content": "?"},
    ]
    client.responses.create(model="m", input=asked)
    del asked[index]
    with pytest.raises(openai.BadRequestError, match="was provided without its required") as raised:
        client.responses.create(model="m", input=asked)
    assert raised.value.param == "input"


def test_a_refusal_is_one_in_every_way(client: openai.OpenAI) -> None:
    plain = client.responses.create(model="m", input="[[refuse no]]")
    with client.responses.stream(model="m", input="[[refuse no]]") as stream:
        streamed = stream.get_final_response()
    for response in (plain, streamed):
        (message,) = response.output
        assert message.type == "message"
        assert message.content[0].to_dict() == {"type": "refusal", "refusal": "no"}


def test_a_response_goes_on_from_the_one_before(client: openai.OpenAI) -> None:
    first = client.responses.create(model="m", input="hello")
    second = client.responses.create(model="m", input="more", previous_response_id=first.id)
    whole: Any = [
        {"role": "user", "content": "hello"},
        *again(first),
        {"role": "user", "content": "more"},
    ]
    assert client.responses.create(model="m", input=whole).output_text == second.output_text
    assert client.responses.retrieve(second.id) == second
    unkept = client.responses.create(model="m", input="hello", store=False)
    assert unkept.id != first.id
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(model="m", input="more", previous_response_id=unkept.id)
    assert raised.value.code == "previous_response_not_found"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def test_an_answer_that_is_too_long_is_cut(client: openai.OpenAI) -> None:
    cut = client.responses.create(model="m", input="hello", max_output_tokens=3)
    assert (cut.status, cut.output_text) == ("incomplete", "Answer 8c579")
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    events = [*client.responses.create(model="m", input="x", max_output_tokens=3, stream=True)]
    assert events[-1].type == "response.incomplete"


def test_tokens_are_counted_without_an_answer(client: openai.OpenAI) -> None:
    counted = client.responses.input_tokens.count(model="m", input="hello")
    usage = client.responses.create(model="m", input="hello").usage
    assert usage is not None
    assert counted.input_tokens == usage.input_tokens


@pytest.mark.parametrize("text", MARKS)
def test_every_body_has_the_types_that_the_package_declares(server: ModelServer, text: str) -> None:
    body = {"model": "m", "input": text}
    url = f"{server.url}/responses"
    Response.model_validate_json(post(url, body), strict=True)
    *frames, nothing = post(url, {**body, "stream": True}).decode().split("\n\n")
    assert nothing == ""
    for frame in frames:
        name, data = frame.split("\n")
        event = EVENT.validate_json(data.removeprefix("data: "), strict=True)
        assert name == f"event: {event.type}"
        assert json.loads(data.removeprefix("data: "))["type"] == event.type


def test_it_is_the_same_with_await(server: ModelServer) -> None:
    async def ask() -> None:
        async with async_client_of(server) as client:
            text = (await client.responses.create(model="m", input="hello")).output_text
            async with client.responses.stream(model="m", input="hello") as stream:
                assert (await stream.get_final_response()).output_text == text
            parsed = await client.responses.parse(model="m", input="hello", text_format=Plan)
            assert parsed.output_parsed is not None

    asyncio.run(ask())


@pytest.mark.parametrize("name", ["conversation", "background"])
def test_what_is_not_served_is_refused(client: openai.OpenAI, name: str) -> None:
    with pytest.raises(openai.BadRequestError, match=f"'{name}' is not supported"):
        client.responses.create(model="m", input="hello", extra_body={name: "x"})
    client.responses.create(model="m", input="hello", extra_body={name: None})
