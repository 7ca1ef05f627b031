"""Chat completions of the real package against the server, in both colours."""

import asyncio
import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from perdure.testing import ModelServer
from tests.testing.model_server.serving import USER, async_client_of, client_of, post, user

MARKS = [
    "hello",
    "[[len 30]]",
    "[[refuse]]",
    "[[reason]]",
    "[[tool a {}]] [[tool b {}]]",
    "[[say Wait.]] [[custom sh ls]]",
]


class Plan(BaseModel):
    goal: str
    steps: list[str]


def joined(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_the_same_request_gets_the_same_answer(client: openai.OpenAI) -> None:
    one, two = (
        client.chat.completions.create(model="gpt-4o-mini", messages=[USER]) for _ in range(2)
    )
    assert one == two
    assert one.choices[0].message.content == "Answer 8c57957dea1e to 1 message."
    assert (one.model, one.choices[0].finish_reason) == ("gpt-4o-mini", "stop")
    assert one.usage is not None
    assert (one.usage.prompt_tokens, one.usage.completion_tokens) == (9, 9)
    assert one._request_id is not None
    assert one._request_id.startswith("req_")
    assert one._request_id != two._request_id
    other = client.chat.completions.create(model="gpt-4o-mini", messages=[user("hello!")])
    assert other.id != one.id


def test_a_stream_says_the_same_in_pieces(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="m", messages=[USER])
    stream = client.chat.completions.create(
        model="m", messages=[USER], stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = [*stream]
    assert joined(chunks) == whole.choices[0].message.content
    assert len(chunks) == 7
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert (last.choices, last.usage) == ([], whole.usage)


def test_tools_are_called_in_parallel_and_their_results_answered(
    server: ModelServer, client: openai.OpenAI
) -> None:
    asked = user('[[tool add {"n": 1}]] [[tool add {"n": 2}]]')
    first = client.chat.completions.create(model="m", messages=[asked]).choices[0]
    calls = first.message.tool_calls or []
    assert (first.finish_reason, first.message.content) == ("tool_calls", None)
    found = [
        (call.function.name, call.function.arguments) for call in calls if call.type == "function"
    ]
    assert found == [("add", '{"n": 1}'), ("add", '{"n": 2}')]
    assert len({call.id for call in calls}) == 2
    # The message goes back as it came: with nulls and annotations, as the hosted API takes it.
    messages: list[Any] = [asked, first.message]
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in calls]
    second = client.chat.completions.create(model="m", messages=messages)
    assert (second.choices[0].message.content or "").endswith("to 4 messages.")
    assert server.requests[1].body["messages"][1]["refusal"] is None


def test_the_convenience_stream_puts_calls_together(client: openai.OpenAI) -> None:
    asked = user('[[tool add {"n": [1, 2, 3]}]] [[tool look_up {}]]')
    with client.chat.completions.stream(model="m", messages=[asked]) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_completion().choices[0].message
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert message.tool_calls is not None
    assert json.loads(message.tool_calls[0].function.arguments) == {"n": [1, 2, 3]}


def test_a_refusal_is_one_in_every_way(client: openai.OpenAI) -> None:
    asked = [user("[[refuse I would rather not.]]")]
    plain = client.chat.completions.create(model="m", messages=asked).choices[0].message
    parsed = client.chat.completions.parse(model="m", messages=asked, response_format=Plan)
    with client.chat.completions.stream(model="m", messages=asked) as stream:
        streamed = stream.get_final_completion().choices[0].message
    for message in (plain, parsed.choices[0].message, streamed):
        assert (message.refusal, message.content or None) == ("I would rather not.", None)


def test_parse_gets_an_object_that_fits(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(model="m", messages=[USER], response_format=Plan)
    assert parsed.choices[0].message.parsed == Plan(goal="8c57957dea1e", steps=["8c57957dea1e"])


def test_reasoning_comes_in_the_field_of_compatible_servers(client: openai.OpenAI) -> None:
    message = client.chat.completions.create(model="m", messages=[user("[[reason hm]]")])
    assert (message.choices[0].message.model_extra or {})["reasoning_content"] == "hm"
    assert message.usage is not None
    assert message.usage.completion_tokens_details is not None
    assert message.usage.completion_tokens_details.reasoning_tokens == 1


def test_an_answer_that_is_too_long_is_cut(client: openai.OpenAI) -> None:
    cut = client.chat.completions.create(model="m", messages=[USER], max_completion_tokens=3)
    assert cut.choices[0].finish_reason == "length"
    assert cut.choices[0].message.content == "Answer 8c579"


def test_several_choices_are_given_if_asked_for(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="m", messages=[USER], n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


@pytest.mark.parametrize("text", MARKS)
def test_every_body_has_the_types_that_the_package_declares(server: ModelServer, text: str) -> None:
    body = {"model": "m", "messages": [user(text)], "stream_options": {"include_usage": True}}
    url = f"{server.url}/chat/completions"
    ChatCompletion.model_validate_json(post(url, body), strict=True)
    *frames, end, nothing = post(url, {**body, "stream": True}).decode().split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    for frame in frames:
        chunk = json.loads(frame.removeprefix("data: "))
        for choice in chunk["choices"]:
            # The package has no type for the pieces of a call of a custom tool.
            if "custom" not in str(choice["delta"].get("tool_calls")):
                ChatCompletionChunk.model_validate(chunk, strict=True)


def test_copies_of_a_client_reach_the_server_too(
    server: ModelServer, client: openai.OpenAI
) -> None:
    copy = client.with_options(max_retries=0, default_headers={"x-mine": "1"})
    copy.chat.completions.create(model="m", messages=[USER], extra_body={"extra": 1})
    raw = copy.chat.completions.with_raw_response.create(model="m", messages=[USER])
    assert raw.headers["x-request-id"].startswith("req_")
    first, second = server.requests
    assert (first.number, second.number) == (1, 2)
    assert (first.method, first.path) == ("POST", "/v1/chat/completions")
    assert (first.headers["x-mine"], first.body["extra"]) == ("1", 1)
    assert first.headers["authorization"] == "Bearer test"


def test_it_is_the_same_with_await(server: ModelServer) -> None:
    async def ask() -> None:
        async with async_client_of(server) as client:
            completions = client.chat.completions
            plain = await completions.create(model="m", messages=[USER])
            text = plain.choices[0].message.content
            stream = await completions.create(model="m", messages=[USER], stream=True)
            assert joined([chunk async for chunk in stream]) == text
            async with completions.stream(model="m", messages=[USER]) as told:
                assert (await told.get_final_completion()).choices[0].message.content == text
            parsed = await completions.parse(model="m", messages=[USER], response_format=Plan)
            assert parsed.choices[0].message.parsed is not None
            many = await asyncio.gather(
                *(completions.create(model="m", messages=[user(str(i))]) for i in range(20))
            )
            assert len({one.id for one in many}) == 20

    asyncio.run(ask())
    assert [request.number for request in server.requests] == [*range(1, 25)]


def test_a_function_can_answer() -> None:
    def answer(body: Any) -> Any:
        last = body["messages"][-1]
        return [{"name": "add"}] if last["role"] == "user" else f"got {last['content']}"

    with ModelServer(answer) as server, client_of(server) as client:
        called = client.chat.completions.create(model="m", messages=[USER]).choices[0].message
        assert called.tool_calls is not None
        result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "5"}
        messages: list[Any] = [USER, called, result]
        final = client.chat.completions.create(model="m", messages=messages)
        assert final.choices[0].message.content == "got 5"


def test_answers_can_be_scripted_and_run_out() -> None:
    script = ["one", {"content": "two", "reasoning": "hm"}, 5]
    with ModelServer(script) as server, client_of(server) as client:
        for expected in ("one", "two"):
            answer = client.chat.completions.create(model="m", messages=[USER])
            assert answer.choices[0].message.content == expected
        for complaint in ("a text, a message or a list of calls, not int", "no answer left"):
            with pytest.raises(openai.BadRequestError, match=complaint) as raised:
                client.chat.completions.create(model="m", messages=[USER])
            assert raised.value.code == "answer_failed"
        assert len(server.requests) == 4


@pytest.mark.parametrize("answer", ["always", {"content": "always"}])
def test_one_answer_can_be_for_all(answer: Any) -> None:
    with ModelServer(answer) as server, client_of(server) as client:
        for _ in range(2):
            reply = client.chat.completions.create(model="m", messages=[USER])
            assert reply.choices[0].message.content == "always"


@pytest.mark.parametrize("extra", [{"tools": 5}, {"n": "x"}, {"response_format": [1]}])
def test_a_malformed_parameter_is_refused(client: openai.OpenAI, extra: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError, match="malformed"):
        client.chat.completions.create(model="m", messages=[USER], extra_body=extra)


def test_audio_is_not_served(client: openai.OpenAI) -> None:
    client.chat.completions.create(model="m", messages=[USER], modalities=["text"])
    with pytest.raises(openai.BadRequestError, match="'modalities' is not supported"):
        client.chat.completions.create(model="m", messages=[USER], modalities=["text", "audio"])


def test_vectors_and_models(client: openai.OpenAI) -> None:
    data = client.embeddings.create(model="m", input=["a", "b", "a"]).data
    assert data[0].embedding == data[2].embedding != data[1].embedding
    assert sum(value**2 for value in data[0].embedding) == pytest.approx(1, abs=1e-5)
    plain = client.embeddings.create(model="m", input="a", encoding_format="float", dimensions=8)
    assert plain.data[0].embedding == pytest.approx(data[0].embedding, abs=1e-6)
    assert len(client.embeddings.create(model="m", input=[1, 2], dimensions=3).data) == 1
    assert [model.id for model in client.models.list()] == ["perdure-test"]
    assert client.models.retrieve("any").id == "any"
