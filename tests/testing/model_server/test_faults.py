"""What the server refuses, and how it fails when it is told to, as the package sees it."""

import asyncio
import json
import socket
import struct
import threading
import time
from typing import Any

import openai
import pytest

from perdure.errors import UsageError
from perdure.testing import ModelServer
from tests.testing.model_server.serving import USER, async_client_of, client_of, post, user

CALLED: Any = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}],
}
TOLD: Any = {"role": "tool", "tool_call_id": "c", "content": ""}
EMPTY: Any = {"role": "assistant", "content": "", "tool_calls": []}


@pytest.mark.parametrize(
    ("messages", "complaint", "param", "code"),
    [
        ([CALLED], "must be followed by tool messages", "messages.[1].role", None),
        ([TOLD], "must be a response to a preceeding", "messages.[0].role", None),
        ([{"role": "user", "content": None}], "got null", "messages.[0].content", None),
        ([EMPTY], "empty array", "messages[0].tool_calls", "empty_array"),
        ([{"role": "elf", "content": ""}], "'elf'", "messages[0].role", "invalid_value"),
        ([], "empty array", "messages", "empty_array"),
        ("hello", "Invalid type", "messages", "invalid_type"),
    ],
)
def test_broken_transcripts_are_refused_as_the_api_refuses_them(
    client: openai.OpenAI, messages: Any, complaint: str, param: str, code: str | None
) -> None:
    with pytest.raises(openai.BadRequestError, match=complaint) as raised:
        client.chat.completions.create(model="m", messages=messages)
    assert (raised.value.param, raised.value.code) == (param, code)
    assert raised.value.type == "invalid_request_error"
    assert raised.value.request_id is not None
    assert client.chat.completions.create(model="m", messages=[USER]).choices


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": ""}
THOUGHT: Any = {"type": "reasoning", "id": "rs_1", "summary": []}
ODD: Any = {"role": "user", "content": "x", "metadata": {}}


@pytest.mark.parametrize(
    ("items", "complaint", "param", "code"),
    [
        ([OUTPUT], "No tool call found", "input", None),
        ([CALL], "No tool output found", "input", None),
        ([THOUGHT], "following item", "input", None),
        ([ODD], "Unknown parameter", "input[0].metadata", "unknown_parameter"),
        (5, "Invalid type", "input", "invalid_type"),
    ],
)
def test_broken_inputs_are_refused_as_the_api_refuses_them(
    client: openai.OpenAI, items: Any, complaint: str, param: str, code: str | None
) -> None:
    with pytest.raises(openai.BadRequestError, match=complaint) as raised:
        client.responses.create(model="m", input=items)
    assert (raised.value.param, raised.value.code) == (param, code)


def test_a_strict_server_refuses_what_gateways_refuse(client: openai.OpenAI) -> None:
    message: Any = {"role": "assistant", "content": "hello", "refusal": None}
    client.chat.completions.create(model="m", messages=[USER, message])
    with (
        ModelServer(strict=True) as strict,
        client_of(strict) as other,
        pytest.raises(openai.BadRequestError, match="refusal"),
    ):
        other.chat.completions.create(model="m", messages=[USER, message])


def test_a_prompt_over_the_limit_is_refused() -> None:
    with ModelServer(context_limit=20) as server, client_of(server) as client:
        client.chat.completions.create(model="m", messages=[user("a" * 40)])
        client.responses.create(model="m", input="a" * 40)
        with pytest.raises(openai.BadRequestError, match="maximum context length is 20") as raised:
            client.chat.completions.create(model="m", messages=[user("a" * 80)])
        assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "messages")
        with pytest.raises(openai.BadRequestError, match="context window") as raised:
            client.responses.create(model="m", input="a" * 80)
        assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "input")


def test_requests_without_a_key_a_model_or_a_path_are_refused(client: openai.OpenAI) -> None:
    bare = client.with_options(default_headers={"authorization": ""})
    with pytest.raises(openai.AuthenticationError, match="didn't provide an API key"):
        bare.models.list()
    for path in ("/chat/completions", "/responses", "/embeddings"):
        with pytest.raises(openai.BadRequestError, match="provide a model"):
            client.post(path, cast_to=object, body={"input": "hello", "messages": [USER]})
    with pytest.raises(openai.NotFoundError, match=r"Invalid URL \(POST /v1/audio/speech\)"):
        client.post("/audio/speech", cast_to=object, body={})
    for name, path in (("messages", "/chat/completions"), ("input", "/responses")):
        with pytest.raises(openai.BadRequestError, match=f"Missing required parameter: '{name}'"):
            client.post(path, cast_to=object, body={"model": "m"})
    with pytest.raises(openai.BadRequestError, match="could not parse the JSON body"):
        client.post("/responses", cast_to=object, body=["m"])


@pytest.mark.parametrize(
    ("status", "error"),
    [(429, openai.RateLimitError), (500, openai.InternalServerError), (404, openai.NotFoundError)],
)
def test_a_mark_asks_for_an_error(
    client: openai.OpenAI, status: int, error: type[openai.APIStatusError]
) -> None:
    with pytest.raises(error):
        client.chat.completions.create(model="m", messages=[user(f"[[err {status}]]")])


@pytest.mark.parametrize("status", [429, 500, 503])
def test_the_package_retries_and_succeeds(
    server: ModelServer, client: openai.OpenAI, status: int
) -> None:
    server.fault(status=status, times=2)
    assert client.chat.completions.create(model="m", messages=[USER]).choices
    assert [one.headers["x-stainless-retry-count"] for one in server.requests] == ["0", "1", "2"]
    assert len({str(one.body) for one in server.requests}) == 1


def test_faults_meet_the_requests_that_they_are_for(
    server: ModelServer, client: openai.OpenAI
) -> None:
    once = client.with_options(max_retries=0)
    server.fault(status=500, at=2)
    server.fault(status=429, at=4, times=2)
    server.fault(status=404)
    outcomes = []
    for _ in range(6):
        try:
            once.chat.completions.create(model="m", messages=[USER])
            outcomes.append(200)
        except openai.APIStatusError as error:
            outcomes.append(error.status_code)
    assert outcomes == [404, 500, 200, 429, 429, 200]


def test_a_fault_takes_no_answer_from_the_script() -> None:
    with ModelServer(["only"]) as server, client_of(server) as client:
        server.fault(status=500)
        answer = client.chat.completions.create(model="m", messages=[USER])
    assert answer.choices[0].message.content == "only"


def test_a_stream_that_is_cut_raises_the_error_of_the_package(
    server: ModelServer, client: openai.OpenAI
) -> None:
    server.fault("disconnect", after_chunks=3)
    stream = client.chat.completions.create(model="m", messages=[USER], stream=True)
    got = [next(stream).choices[0].delta.content for _ in range(3)]
    assert got == ["", "Answer ", "8c57957dea1e "]
    with pytest.raises(openai.APIConnectionError):
        next(stream)
    assert len(server.requests) == 1
    server.fault("disconnect", after_chunks=99)  # At the latest when everything was said.
    with (
        pytest.raises(openai.APIConnectionError),
        client.responses.create(model="m", input="hello", stream=True) as events,
    ):
        list(events)
    server.fault("disconnect", after_chunks=5)
    with (
        pytest.raises(openai.APIConnectionError),
        client.responses.stream(model="m", input="hello") as told,
    ):
        told.until_done()


def test_a_stream_can_end_with_an_error(server: ModelServer, client: openai.OpenAI) -> None:
    server.fault(status=404, after_chunks=3)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="m", messages=[USER])
    server.fault(status=500, after_chunks=3, times=2)
    stream = client.chat.completions.create(model="m", messages=[USER], stream=True)
    assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "Answer "]
    next(stream)
    with pytest.raises(openai.APIError, match="The server had an error"):
        next(stream)
    events = client.responses.create(model="m", input="hello", stream=True)
    assert [next(events).type for _ in range(3)][-1] == "response.output_item.added"
    with pytest.raises(openai.APIError, match="The server had an error"):
        next(events)


def test_a_stream_that_is_cut_raises_it_with_await_too(server: ModelServer) -> None:
    async def ask() -> None:
        async with async_client_of(server) as client:
            stream = await client.chat.completions.create(model="m", messages=[USER], stream=True)
            got = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
            assert got == ["", "Answer "]
            with pytest.raises(openai.APIConnectionError):
                await anext(stream)

    server.fault("disconnect", after_chunks=2)
    asyncio.run(ask())


@pytest.mark.parametrize("after_chunks", [0, 1])
def test_a_line_that_is_cut_is_tried_again(
    server: ModelServer, client: openai.OpenAI, after_chunks: int
) -> None:
    server.fault("disconnect", after_chunks=after_chunks)
    once = client.with_options(max_retries=0)
    with pytest.raises(openai.APIConnectionError):
        once.chat.completions.create(model="m", messages=[USER])
    server.fault("disconnect", after_chunks=after_chunks)
    assert client.chat.completions.create(model="m", messages=[USER]).choices
    assert len(server.requests) == 3


@pytest.mark.parametrize(("stream", "after_chunks"), [(False, 0), (False, 1), (True, 0), (True, 2)])
def test_a_server_that_hangs_is_given_up_by_the_client(
    server: ModelServer, client: openai.OpenAI, *, stream: bool, after_chunks: int
) -> None:
    server.fault("hang", after_chunks=after_chunks)
    impatient = client.with_options(max_retries=0, timeout=0.2)
    with pytest.raises(openai.APITimeoutError):
        [*impatient.chat.completions.create(model="m", messages=[USER], stream=stream)]
    assert client.chat.completions.create(model="m", messages=[USER]).choices


def wait_for_the_end_of_all_connections() -> None:
    end = time.monotonic() + 60
    while any(one.name == "perdure-model-connection" for one in threading.enumerate()):
        assert time.monotonic() < end, "a connection outlives its client"
        time.sleep(0.01)


def test_a_hanging_answer_ends_with_its_client(server: ModelServer) -> None:
    server.fault("hang", after_chunks=1)
    with client_of(server) as client:
        next(client.chat.completions.create(model="m", messages=[USER], stream=True))
    wait_for_the_end_of_all_connections()


def test_a_slow_stream_takes_its_time(server: ModelServer, client: openai.OpenAI) -> None:
    server.fault("slow", seconds=0.03, after_chunks=2)
    begun = time.monotonic()
    assert len([*client.chat.completions.create(model="m", messages=[USER], stream=True)]) == 7
    assert time.monotonic() - begun > 0.03 * 5
    server.fault("slow", seconds=0.1)
    begun = time.monotonic()
    assert client.chat.completions.create(model="m", messages=[USER]).choices
    assert time.monotonic() - begun > 0.09
    assert len(server.requests) == 2
    server.fault("slow", seconds=30, after_chunks=99)
    body = {"model": "m", "messages": [USER], "stream": True}
    assert post(f"{server.url}/chat/completions", body).endswith(b"data: [DONE]\n\n")
    assert time.monotonic() - begun < 25


@pytest.mark.parametrize("kind", ["hang", "slow"])
def test_closing_waits_for_nobody(kind: Any) -> None:
    before = set(threading.enumerate())
    server = ModelServer().start()
    server.fault(kind, seconds=60, after_chunks=1, at=2)
    failed: list[Exception] = []

    def ask() -> None:
        with client_of(server, max_retries=0) as client:
            try:
                for _ in client.chat.completions.create(model="m", messages=[USER], stream=True):
                    pass
            except openai.APIConnectionError as error:
                failed.append(error)

    asking = threading.Thread(target=ask)
    with client_of(server) as idle:  # Keeps its connection open, and says nothing more.
        idle.models.list()
        asking.start()
        while len(server.requests) < 2:
            time.sleep(0.01)
        begun = time.monotonic()
        server.close()
        assert time.monotonic() - begun < 40
        asking.join()
    server.close()
    assert set(threading.enumerate()) <= before
    assert len(failed) == 1
    assert len(server.requests) == 2


def test_a_client_that_dies_in_the_middle_is_nothing_to_report(
    server: ModelServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.fault("slow", seconds=0.02, after_chunks=2)
    body = json.dumps({"model": "m", "messages": [USER], "stream": True})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nauthorization: x\r\ncontent-length: {len(body)}"
    port = int(server.url.split(":")[2].removesuffix("/v1"))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        # As the kernel does it for a process that was killed: reset, not closed in good order.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(f"{head}\r\n\r\n{body}".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    wait_for_the_end_of_all_connections()
    assert capfd.readouterr().err == ""


def test_an_error_of_the_server_itself_is_reported(
    server: ModelServer, client: openai.OpenAI, capfd: pytest.CaptureFixture[str]
) -> None:
    server._model.reply = None  # type: ignore[method-assign, assignment]
    with pytest.raises(openai.APIConnectionError):
        client.with_options(max_retries=0).models.list()
    assert "TypeError: 'NoneType' object is not callable" in capfd.readouterr().err


def test_a_server_is_used_once_and_started_first() -> None:
    server = ModelServer()
    with pytest.raises(UsageError, match=r"call start\(\)"):
        _ = server.url
    server.close()
    with server:
        assert server.url.startswith("http://127.0.0.1:")
        with pytest.raises(UsageError, match="already started"):
            server.start()
        port = int(server.url.split(":")[2].removesuffix("/v1"))
        with pytest.raises(UsageError, match=f"cannot listen on port {port}"):
            ModelServer(port=port).start()


@pytest.mark.parametrize(
    "fault",
    [
        {},
        {"kind": "hang", "status": 500},
        {"kind": "explode"},
        {"kind": "slow", "seconds": -1},
        {"kind": "hang", "after_chunks": -1},
        {"status": 500, "times": 0},
        {"status": 500, "at": 0},
    ],
)
def test_what_is_no_fault_is_refused(server: ModelServer, fault: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        server.fault(**fault)
