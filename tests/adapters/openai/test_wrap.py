"""What a wrapped client does in one process: turns, windows, failures, streams, tools."""

import copy
import logging
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

import perdure
from perdure.adapters.openai import wrap
from perdure.journal.records import Message, Note, TurnAbandoned, TurnFailed
from perdure.testing import ModelServer
from tests.adapters.openai.scripts import CHAT_TOOL, Steps


def user(text: str) -> ChatCompletionMessageParam:
    return {"role": "user", "content": text}


def kinds(session: perdure.Session) -> list[str]:
    """Return what was recorded, but for the calls of the model: see test_effects.py.

    How many pieces of a stream are stored depends on the time that it takes.
    """
    found = [record.kind for record in session.records()]
    return [kind for kind in found if not kind.startswith(("effect.", "message.chunk"))]


def sent(server: ModelServer) -> list[Any]:
    return [one.body.get("messages") or one.body["input"] for one in server.requests]


def say(client: openai.OpenAI, text: str, **more: Any) -> Any:
    return client.chat.completions.create(model="m", messages=[user(text)], **more)


CALL = '[[tool look_up {"id": 17}]] Where is my order?'


def result(reply: Any, content: str = "on its way") -> Any:
    call = reply.choices[0].message.tool_calls[0]
    return {"role": "tool", "tool_call_id": call.id, "content": content}


def test_only_what_is_new_is_given_and_everything_is_sent(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    first = say(client, "one")
    say(client, "two")
    answer = first.choices[0].message.content
    assert sent(server)[1] == [user("one"), {"role": "assistant", "content": answer}, user("two")]
    assert kinds(session) == ["turn.begun", "message", "message", "turn.completed"] * 2
    replies = [r.content for r in session.records() if isinstance(r.content, Message)][1::2]
    assert replies[0].meta["usage"]["total_tokens"] == first.usage.total_tokens
    assert replies[0].meta["id"] == first.id


SEALED = {"__enc__": 1, "payload": "gAAAA"}


def test_an_opaque_item_in_the_session_is_not_sent(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    first = say(client, "one")
    session.append(SEALED, opaque=True)
    say(client, "two")
    answer = first.choices[0].message.content
    assert sent(server)[1] == [user("one"), {"role": "assistant", "content": answer}, user("two")]


def test_an_opaque_item_stops_no_other_handle(bare: openai.OpenAI, server: ModelServer) -> None:
    with perdure.open("memory:") as store:
        server.fault("disconnect", after_chunks=3)
        session = store.session("s")
        with pytest.raises(openai.APIConnectionError):
            list(say(wrap(bare, session), "hello", stream=True))
        session.append(SEALED, opaque=True)
        session = store.session("s")
        say(wrap(bare, session), "hello")
        assert sent(server) == [[user("hello")]] * 2
        assert session.interrupted == ()


def test_an_opaque_item_is_in_no_exchange_of_a_turn_that_is_over(
    client: openai.OpenAI, bare: openai.OpenAI, session: perdure.Session
) -> None:
    with session.turn(id="t1") as turn:
        first = say(client, "hello")
        turn.append(SEALED, opaque=True)
        second = say(client, "and now?")
    with session.turn(id="t1"):
        again = wrap(bare, session)
        assert [say(again, "hello"), say(again, "and now?")] == [first, second]


def test_the_window_is_cut_as_asked_for(
    bare: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    client = wrap(bare, session, max_messages=3)
    for number in range(4):
        say(client, f"number {number}")
    assert [len(one) for one in sent(server)] == [1, 3, 3, 3]
    with pytest.raises(perdure.ContextWindowError, match=r"need \d+ tokens; max_tokens is 5"):
        say(wrap(bare, session, max_tokens=5), "a text of more tokens than are allowed")
    assert session.last_message == user("a text of more tokens than are allowed")
    assert kinds(session)[-1] == "turn.failed"


def test_a_client_is_still_a_client(
    client: openai.OpenAI, bare: openai.OpenAI, session: perdure.Session
) -> None:
    assert isinstance(client, openai.OpenAI)
    assert client.base_url == bare.base_url
    assert client.embeddings.create(model="m", input="hello").data
    assert len(session) == 0
    client.max_retries = 7
    assert bare.max_retries == 7
    assert "recorded" in repr(client)
    assert "chat" in dir(client)
    with client as entered:
        assert entered is client
    assert bare.is_closed()


def test_copies_belong_to_the_same_conversation(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    reply = say(client, CALL, tools=[CHAT_TOOL])
    copy = client.with_options(timeout=5).copy(max_retries=1)
    copy.chat.completions.create(model="m", messages=[result(reply)])
    assert len(sent(server)[1]) == 3
    assert kinds(session).count("turn.begun") == 1
    assert session.interrupted == ()


def test_the_package_and_the_client_are_not_changed(
    client: openai.OpenAI, bare: openai.OpenAI, session: perdure.Session
) -> None:
    say(client, "recorded")
    say(bare, "not recorded")
    assert len(session) == 2
    assert "create" not in vars(bare.chat.completions)


@pytest.mark.parametrize("name", ["with_raw_response", "with_streaming_response"])
def test_raw_responses_are_refused_where_they_would_not_be_recorded(
    client: openai.OpenAI, bare: openai.OpenAI, name: str
) -> None:
    for owner in (client, client.chat, client.chat.completions, client.responses):
        with pytest.raises(perdure.UsageError, match="call it on the original client"):
            getattr(owner, name)
    assert getattr(client.embeddings, name)
    assert getattr(bare.chat.completions, name)


def test_state_on_the_server_is_refused(client: openai.OpenAI, session: perdure.Session) -> None:
    for more in ({"previous_response_id": "r"}, {"conversation": "c"}, {"background": True}):
        with pytest.raises(perdure.UsageError, match="leave it out"):
            client.responses.create(model="m", input="hello", **more)
    assert session.position == 0


def test_parsed_responses_are_recorded(client: openai.OpenAI, session: perdure.Session) -> None:
    parsed = client.responses.parse(model="m", input="steps", text_format=Steps).output_parsed
    assert parsed is not None
    assert session.last_message is not None
    assert Steps.model_validate_json(session.last_message["content"][0]["text"]) == parsed
    with session.turn("more", id="t1"):
        first = client.responses.parse(model="m", input=[], text_format=Steps)
    with session.turn("more", id="t1"):
        assert client.responses.parse(model="m", input=[], text_format=Steps) == first


def test_the_beta_resource_is_recorded_as_well(
    client: openai.OpenAI, session: perdure.Session
) -> None:
    beta: Any = client.beta
    reply = beta.chat.completions.parse(model="m", messages=[user("steps")], response_format=Steps)
    assert reply.choices[0].message.parsed.steps
    assert len(session) == 2


def test_wrong_pairs_are_refused(bare: openai.OpenAI, session: perdure.Session) -> None:
    with pytest.raises(perdure.UsageError, match="wrapped already"):
        wrap(wrap(bare, session), session)
    with pytest.raises(perdure.UsageError, match=r"needs a session of perdure.open_async\(...\)"):
        wrap(openai.AsyncOpenAI(api_key="test"), session)
    with pytest.raises(perdure.UsageError, match="is not a client"):
        wrap("client", session)  # type: ignore[type-var]


# Instructions, and lists that hold too much.


def test_instructions_that_are_given_with_every_call_stand_once(
    client: openai.OpenAI, bare: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    system: ChatCompletionMessageParam = {"role": "system", "content": "Be brief."}
    for wrapped in (client, client, wrap(bare, session, max_tokens=100)):
        wrapped.chat.completions.create(model="m", messages=[system, user("hello")])
    assert [[one["role"] for one in prompt].count("system") for prompt in sent(server)] == [1, 1, 1]
    assert len(session) == 7


# A caller that passes its whole list each time.


def ask(client: openai.OpenAI, messages: list[Any], **options: Any) -> Any:
    return client.chat.completions.create(model="m", messages=messages, **options)


@pytest.mark.parametrize("kept", ["object", "role and content"])
def test_a_caller_may_pass_its_whole_list_each_time(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer, kept: str
) -> None:
    memory: list[Any] = [{"role": "system", "content": "Be brief."}]
    for text in ("one", "two", "one"):
        memory.append(user(text))
        message = ask(client, memory).choices[0].message
        short = {"role": message.role, "content": message.content}
        memory.append(message if kept == "object" else short)
    assert len(session) == 7
    assert [len(prompt) for prompt in sent(server)] == [2, 4, 6]


def test_a_list_may_have_only_the_end_of_the_conversation(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    say(client, "one")
    answer = say(client, "two").choices[0].message
    ask(client, [user("two"), answer, user("three")])
    assert len(session) == 6
    assert len(sent(server)[-1]) == 5


def test_the_tutorial_can_be_run_again_and_after_a_crash_before_it_saved_its_list(
    bare: openai.OpenAI, server: ModelServer
) -> None:
    with perdure.open("memory:") as store:

        def tutorial(memory: list[Any], *, crashes: bool = False) -> Any:
            client = wrap(bare, store.session("s"))
            asked = [*memory, user("Hello, how are you?")]
            message = ask(client, asked).choices[0].message
            if not crashes:
                memory[:] = [*asked, {"role": message.role, "content": message.content}]
            return message.content

        memory: list[Any] = []
        first = tutorial(memory)
        lost = tutorial(memory, crashes=True)
        assert tutorial(memory) == lost != first
        assert len(server.requests) == 2
        tutorial(memory)
        assert len(store.session("s")) == 6
        assert len(sent(server)[-1]) == 5


def test_a_repeated_list_gets_the_recorded_reply_as_a_stream_too(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    first = say(client, "one").choices[0].message
    second = ask(client, [user("one"), first, user("two")]).choices[0].message
    chunks = ask(client, [user("one"), first, user("two")], stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == second.content
    options = {"include_usage": True}
    *_, last = ask(client, [user("one"), first, user("two")], stream=True, stream_options=options)
    assert (last.choices, last.usage.total_tokens > 0) == ([], True)
    assert (len(server.requests), len(session)) == (2, 4)


def test_a_whole_list_whose_last_call_failed_stores_nothing_twice(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    first = say(client, "one").choices[0].message
    server.fault(status=500, times=1)
    whole = [user("one"), first, user("two")]
    with pytest.raises(openai.InternalServerError):
        ask(client, whole)
    ask(client, whole)
    assert [message["role"] for message in session.messages()] == ["user", "assistant"] * 2


def test_tools_in_a_whole_list(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    memory: list[Any] = [user('[[tool look_up {"id": 17}]] Where is it?')]
    tools: Any = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]
    while True:
        message = ask(client, memory, tools=tools).choices[0].message
        memory.append(message)
        if not message.tool_calls:
            break
        memory += [
            {"role": "tool", "tool_call_id": call.id, "content": "here"}
            for call in message.tool_calls
        ]
    assert [one["role"] for one in session.messages()] == ["user", "assistant", "tool", "assistant"]
    assert len(server.requests) == 2
    assert session.interrupted == ()
    replies = len(server.requests)
    ask(client, memory[:1] + memory[1:3], tools=tools)  # A step of it, repeated later.
    assert len(server.requests) == replies


def test_a_list_that_does_not_continue_the_session_is_refused(
    client: openai.OpenAI, session: perdure.Session
) -> None:
    answer = say(client, "one").choices[0].message
    say(client, "two")
    before = session.position
    with pytest.raises(perdure.UsageError, match="pass only new messages"):
        ask(client, [user("another beginning"), answer, user("three")])
    assert session.position == before


def test_examples_in_a_list_are_new_messages(
    client: openai.OpenAI, session: perdure.Session
) -> None:
    say(client, "one")
    example: ChatCompletionMessageParam = {"role": "assistant", "content": "as in this example"}
    ask(client, [user("so"), example, user("two")])
    assert len(session) == 6


# Failures.


def test_a_failure_of_the_api_is_a_failed_turn_and_the_next_call_goes_on(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    server.fault(status=500)
    with pytest.raises(openai.InternalServerError):
        say(client, "hello")
    failed = [record.content for record in session.records()][-1]
    assert isinstance(failed, TurnFailed)
    assert failed.error == "InternalServerError"
    assert session.interrupted == ()
    say(client, "something else")
    assert sent(server)[-1] == [user("hello"), user("something else")]


def test_a_call_that_failed_and_is_made_again_says_nothing_twice(
    bare: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    server.fault(status=500, times=3)
    for _ in range(3):
        with pytest.raises(openai.InternalServerError):
            say(wrap(bare, session), "hello")
    client = wrap(bare, session)
    reply = say(client, CALL)  # Something else, so that the message before was said alone.
    server.fault(status=500)
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="m", messages=[result(reply)])
    client.chat.completions.create(model="m", messages=[result(reply)])
    roles = [one["role"] for one in session.messages()]
    assert roles == ["user", "user", "assistant", "tool", "assistant"]
    assert sent(server)[-1] == sent(server)[-2]
    say(client, "hello")
    say(client, "hello")
    assert len(session) == 9


def test_retries_of_the_transport_are_not_turns(
    server: ModelServer, session: perdure.Session
) -> None:
    with openai.OpenAI(base_url=server.url, api_key="test", max_retries=2) as bare:
        server.fault(status=500, times=2)
        say(wrap(bare, session), "hello")
    assert len(server.requests) == 3
    assert kinds(session) == ["turn.begun", "message", "message", "turn.completed"]


# Tools.


def test_a_turn_is_open_until_its_calls_have_results(
    client: openai.OpenAI, session: perdure.Session
) -> None:
    reply = say(client, CALL, tools=[CHAT_TOOL])
    assert session.current_turn is not None
    assert kinds(session) == ["turn.begun", "message", "tools", "message"]
    client.chat.completions.create(model="m", messages=[result(reply)], tools=[CHAT_TOOL])
    assert session.current_turn is None
    assert kinds(session)[4:] == ["message", "message", "turn.completed"]


def test_results_must_fit_the_calls(client: openai.OpenAI, session: perdure.Session) -> None:
    orphan: Any = {"role": "tool", "tool_call_id": "call_x", "content": "5"}
    with pytest.raises(perdure.UsageError, match="not open: call_x"):
        client.chat.completions.create(model="m", messages=[orphan])
    assert session.position == 0
    reply = say(client, CALL + '[[tool look_up {"id": 18}]]')
    before = session.position
    with pytest.raises(perdure.UsageError, match="not open: call_x: open are call_"):
        client.chat.completions.create(model="m", messages=[orphan])
    with pytest.raises(perdure.UsageError, match="calls without a result: call_"):
        client.chat.completions.create(model="m", messages=[result(reply)])
    assert session.position == before
    results: Any = [
        {"role": "tool", "tool_call_id": call.id, "content": "5"}
        for call in reply.choices[0].message.tool_calls
    ]
    client.chat.completions.create(model="m", messages=results)
    assert session.interrupted == ()


def test_another_input_in_the_place_of_results_gives_the_turn_up(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    say(client, CALL)
    say(client, "Never mind.")
    assert any(isinstance(record.content, TurnAbandoned) for record in session.records())
    assert [one["role"] for one in sent(server)[1]] == ["user", "assistant", "tool", "user"]
    assert "Interrupted" in sent(server)[1][2]["content"]


def test_changes_of_the_tools_are_told(
    bare: openai.OpenAI, session: perdure.Session, caplog: pytest.LogCaptureFixture
) -> None:
    changes: list[Any] = []
    client = wrap(bare, session, on_tools=changes.append)
    other = {"type": "function", "function": {"name": "other", "parameters": {}}}
    same: Any = {"type": "function", **CHAT_TOOL["function"]}
    with caplog.at_level(logging.INFO, "perdure"):
        say(client, "one", tools=[CHAT_TOOL])
        client.responses.create(model="m", input="two", tools=[same])
        say(client, "three", tools=iter([other]))
    assert [tuple(one) for one in changes] == [(("other",), ("look_up",), ())]
    told = [one for one in caplog.records if getattr(one, "event", "") == "tools"]
    assert [one.__dict__["added"] for one in told] == ["other"]


# Streams.


def test_chunks_pass_unchanged(
    client: openai.OpenAI, bare: openai.OpenAI, session: perdure.Session
) -> None:
    with say(client, "hello", stream=True) as stream:
        assert isinstance(stream, openai.Stream)
        assert stream.response.status_code == 200
        chunks = list(stream)
    assert chunks == list(say(bare, "hello", stream=True))
    assert kinds(session) == ["turn.begun", "message", "message", "turn.completed"]


@pytest.mark.parametrize("prompt", ["hello", "[[reason]] hello"])
def test_the_same_call_after_a_dropped_stream_has_the_same_context(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer, prompt: str
) -> None:
    for api in (
        lambda: list(say(client, prompt, stream=True)),
        lambda: list(client.responses.create(model="m", input=prompt, stream=True)),
    ):
        before, begun = len(session), len(server.requests)
        server.fault("disconnect", after_chunks=3, times=2)
        for _ in range(2):
            with pytest.raises(openai.APIConnectionError):
                api()
        server.fault(status=429)
        with pytest.raises(openai.RateLimitError):
            api()
        api()
        first, *others = sent(server)[begun:]
        assert others == [first] * 3
        assert [one["role"] for one in session.messages()[before:] if "role" in one] == [
            "user",
            "assistant",
        ]
    ends = [kind for kind in kinds(session) if kind.startswith("turn.")]
    assert ends == ["turn.begun", "turn.completed"] * 2


def test_something_else_after_a_dropped_stream_makes_its_turn_a_failed_one(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    server.fault("disconnect", after_chunks=3)
    with pytest.raises(openai.APIConnectionError):
        list(say(client, "hello", stream=True))
    say(client, "something else")
    records = [record for record in session.records() if record.kind != "effect.outcome"]
    contents = [record.content for record in records]
    failed = [at for at, one in enumerate(contents) if isinstance(one, TurnFailed)]
    assert len(failed) == 1
    cut = contents[failed[0] + 1]  # Stored when the next turn begins.
    assert isinstance(cut, Message)
    assert cut.interrupted
    assert cut.message["content"].startswith("Answer ")
    assert [one["role"] for one in sent(server)[-1]] == ["user", "assistant", "user"]
    assert kinds(session)[-1] == "turn.completed"


def test_another_handle_goes_on_after_a_dropped_stream(
    bare: openai.OpenAI, server: ModelServer
) -> None:
    with perdure.open("memory:") as store:
        server.fault("disconnect", after_chunks=3)
        with pytest.raises(openai.APIConnectionError):
            list(say(wrap(bare, store.session("s")), "hello", stream=True))
        session = store.session("s")
        say(wrap(bare, session), "hello")
        assert sent(server) == [[user("hello")]] * 2
        assert session.interrupted == ()


def test_results_are_given_again_after_a_dropped_stream(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    reply = say(client, CALL)
    server.fault("disconnect", after_chunks=3)
    with pytest.raises(openai.APIConnectionError):
        list(client.chat.completions.create(model="m", messages=[result(reply)], stream=True))
    client.chat.completions.create(model="m", messages=[result(reply)])
    assert sent(server)[-1] == sent(server)[-2]
    roles = [one["role"] for one in session.messages()]
    assert roles == ["user", "assistant", "tool", "assistant"]


def test_a_stream_that_drops_after_a_call_that_failed_doubles_nothing(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    server.fault(status=500)
    with pytest.raises(openai.InternalServerError):
        say(client, "hello")
    server.fault("disconnect", after_chunks=3)
    with pytest.raises(openai.APIConnectionError):
        list(say(client, "hello", stream=True))
    say(client, "hello")
    assert sent(server) == [[user("hello")]] * 3


def test_an_error_in_the_midst_of_a_stream_leaves_the_turn_open(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    for stream in (
        lambda: client.responses.create(model="m", input="hello", stream=True),
        lambda: say(client, "hello [[len 20]]", stream=True),
    ):
        server.fault(status=500, after_chunks=5)
        with pytest.raises(openai.APIError):
            list(stream())
        assert session.current_turn is not None
        assert session.current_turn.is_partial
        list(stream())
        assert session.current_turn is None
    assert len(session) == 4


def test_a_stream_that_is_closed_early_leaves_what_was_said(
    client: openai.OpenAI, session: perdure.Session
) -> None:
    with client.chat.completions.stream(model="m", messages=[user("hello [[len 20]]")]) as stream:
        for event in stream:
            if event.type == "content.delta":
                break
    assert kinds(session)[-1] == "turn.abandoned"
    assert session.last_message is not None
    assert session.last_message["role"] == "assistant"


def test_a_stream_that_nobody_reads_on_is_closed_by_the_next_call(
    client: openai.OpenAI, session: perdure.Session
) -> None:
    stream = say(client, "hello [[len 20]]", stream=True)
    next(stream)
    next(stream)
    say(client, "again")
    with pytest.raises(perdure.UsageError, match="read it to its end first"):
        next(stream)
    assert kinds(session).count("turn.abandoned") == 1
    assert kinds(session)[-1] == "turn.completed"
    stream.close()


def test_two_calls_at_once_are_refused(session: perdure.Session) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def answer(_: object) -> str:
        asked.set()
        assert go_on.wait(60)
        return "Well."

    with (
        ModelServer(answer) as server,
        openai.OpenAI(base_url=server.url, api_key="test", max_retries=0) as bare,
    ):
        client = wrap(bare, session)
        thread = threading.Thread(target=say, args=(client, "one"))
        thread.start()
        assert asked.wait(60)
        with pytest.raises(perdure.UsageError, match="is in progress"):
            say(client, "two")
        go_on.set()
        thread.join()
        say(client, "two")
    assert kinds(session) == ["turn.begun", "message", "message", "turn.completed"] * 2


def test_a_call_that_ran_out_of_time_is_under_way_no_more(
    client: openai.OpenAI, server: ModelServer, session: perdure.Session
) -> None:
    server.fault("hang")
    with pytest.raises(openai.APITimeoutError):
        say(client.with_options(timeout=0.2), "one")
    say(client, "two")
    assert kinds(session).count("turn.failed") == 1


def test_two_wrappers_of_a_session_have_one_turn(
    bare: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    reply = say(wrap(bare, session), CALL)
    other = wrap(bare, session)
    other.chat.completions.create(model="m", messages=[result(reply)])
    assert session.current_turn is None
    assert kinds(session)[-1] == "turn.completed"
    stream = say(wrap(bare, session), "hello [[len 20]]", stream=True)
    next(stream)
    say(other, "again")
    with pytest.raises(perdure.UsageError, match="read it to its end first"):
        next(stream)


def test_a_copy_belongs_to_the_conversation(
    client: openai.OpenAI, session: perdure.Session
) -> None:
    say(copy.copy(client), "hello")
    assert len(session) == 2


# Bad input.


NO_COMPLETION = [
    ("<html>Sign in</html>", "text/html", "a page of 20 characters"),
    ('{"error": {"message": "no credit left"}}', "application/json", "the fields error"),
    ('{"id": "x", "choices": []}', "application/json", "fields id, choices, of which choices"),
    ('{"id": "x", "choices": null}', "application/json", "fields id, choices, of which choices"),
    ('{"id": "x", "choices": [{"message": null}]}', "application/json", "fields id, choices"),
    ("null", "application/json", "nothing"),
]


@pytest.mark.parametrize(("body", "kind", "told"), NO_COMPLETION)
def test_what_is_no_completion_is_a_failed_turn_that_describes_it(
    session: perdure.Session, server: ModelServer, body: str, kind: str, told: str
) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", kind)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as other:
        threading.Thread(target=other.serve_forever, args=(0.01,)).start()
        url = f"http://127.0.0.1:{other.server_port}"
        try:
            with openai.OpenAI(base_url=url, api_key="test", max_retries=0) as bare:
                client = wrap(bare, session)
                match = f"reply is no completion, but .*{told}.*: check base_url"
                with pytest.raises(perdure.UsageError, match=match) as caught:
                    say(client, "hello")
                with pytest.raises(perdure.UsageError, match=match):
                    client.responses.create(model="m", input="hello")
                assert "credit" not in str(caught.value)
        finally:
            other.shutdown()
    assert kinds(session)[-1] == "turn.failed"
    assert len(session) == 1


def test_instructions_that_could_not_be_written_are_given_again(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    create: Any = client.chat.completions.create
    system = {"role": "system", "content": "Be brief."}
    with pytest.raises(perdure.UsageError, match="is not a role"):
        create(model="m", messages=[system, {"role": "wizard", "content": "x"}])
    create(model="m", messages=[system, user("hello")])
    create(model="m", messages=[system, user("hello again")])
    assert sent(server)[0] == [system, user("hello")]
    assert [one["role"] for one in sent(server)[1]].count("system") == 1


def test_bad_input_is_refused_before_anything_is_written(
    client: openai.OpenAI, session: perdure.Session
) -> None:
    create: Any = client.chat.completions.create
    for messages, text in (
        ([], "no new message"),
        (5, "a list of messages is expected, not a int"),
        (["hello"], "a str is not a message"),
        ([{"role": "wizard", "content": "x"}], "is not a role"),
    ):
        with pytest.raises(perdure.UsageError, match=text):
            create(model="m", messages=messages)
    assert len(session) == 0
    with pytest.raises(perdure.UsageError, match="is not a role"):
        create(model="m", messages=[user("hello"), {"role": "wizard", "content": "x"}])
    assert len(session) == 0
    assert session.interrupted == ()


def test_a_bad_result_leaves_the_turn_open(client: openai.OpenAI, session: perdure.Session) -> None:
    reply = say(client, CALL)
    create: Any = client.chat.completions.create
    with pytest.raises(perdure.UsageError, match="is not a role"):
        create(model="m", messages=[result(reply), {"role": "wizard", "content": "x"}])
    create(model="m", messages=[result(reply)])
    assert kinds(session).count("turn.completed") == 1


# Inside a turn of one's own.


def test_calls_inside_a_turn_belong_to_it(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    with session.turn(CALL) as turn:
        assert session.current_turn is turn
        reply = client.chat.completions.create(model="m", messages=[])
        client.chat.completions.create(model="m", messages=[result(reply)])
        say(client, "and another")
        assert "turn.completed" not in kinds(session)
    assert kinds(session).count("turn.begun") == 1
    assert [len(one) for one in sent(server)] == [1, 3, 5]
    turns = {r.content.turn for r in session.records() if isinstance(r.content, Message)}
    assert turns == {turn.id}
    assert session.current_turn is None


def test_the_message_of_the_turn_may_be_given_again(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    with session.turn("hello"):
        say(client, "hello")
    assert sent(server) == [[user("hello")]]


def test_a_failure_inside_a_turn_is_the_turns(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    server.fault(status=500)
    with session.turn("hello") as turn:
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="m", messages=[])
        assert not turn.ended
        with client.chat.completions.stream(model="m", messages=[]) as stream:
            stream.until_done()
    assert kinds(session) == ["turn.begun", "message", "message", "turn.completed"]


def test_a_turn_that_is_over_gives_its_replies_again_and_takes_no_more(
    client: openai.OpenAI, bare: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    with session.turn("hello", id="t1"):
        first = client.chat.completions.create(model="m", messages=[])
    before = session.position
    for again in (client, wrap(bare, session)):
        with session.turn("hello", id="t1"):
            found = again.chat.completions.create(model="m", messages=[])
            assert (found, found._request_id) == (first, first._request_id)
            with pytest.raises(perdure.UsageError, match="was not part of it"):
                say(again, "more")
    assert session.position == before
    assert len(server.requests) == 1
    assert first._request_id is not None


def test_a_reply_is_not_given_to_a_call_of_the_other_api(
    client: openai.OpenAI, session: perdure.Session
) -> None:
    with session.turn("hello", id="t1"):
        client.chat.completions.create(model="m", messages=[])
    with (
        session.turn("hello", id="t1"),
        pytest.raises(perdure.UsageError, match="was recorded from openai"),
    ):
        client.responses.create(model="m", input=[])


@pytest.mark.parametrize("fault", [{"kind": "disconnect", "after_chunks": 3}, {"status": 500}])
@pytest.mark.parametrize("same", ["object", "handle", "process"])
def test_a_turn_that_failed_is_continued_by_the_same_block(
    bare: openai.OpenAI, server: ModelServer, fault: dict[str, Any], same: str
) -> None:
    bare = bare.with_options(max_retries=0)
    with perdure.open("memory:") as store:
        session = store.session("s")
        turn = session.turn("hello", id="t1")

        def block() -> Any:
            nonlocal session, turn
            session = store.session("s") if same == "process" else session
            turn = turn if same == "object" else session.turn("hello", id="t1")
            client = wrap(bare, session)
            with turn:
                first = ask(client, [])
                chunks = list(ask(client, [user("shorter")], stream=True))
            return first.choices[0].message.content, [chunk.choices for chunk in chunks]

        server.fault(**fault, at=2)
        with pytest.raises(openai.APIError):
            block()
        first, chunks = block()
        assert len(server.requests) == 3
        assert len(chunks) > 3
        assert turn.state == "completed"
        assert block()[0] == first  # It is completed now: nothing is asked.
        assert len(server.requests) == 3
        roles = ["user", "assistant", "user", "assistant"]
        assert [message["role"] for message in session.messages()] == roles
        assert turn.answer() == session.last_message


def test_tools_in_a_turn_that_failed_run_once(bare: openai.OpenAI, server: ModelServer) -> None:
    bare = bare.with_options(max_retries=0)
    paid: list[int] = []
    tools: Any = [{"type": "function", "function": {"name": "pay", "parameters": {}}}]

    def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    with perdure.open("memory:") as store:

        def block() -> Any:
            session = store.session("s")
            client = wrap(bare, session)
            text = '[[tool pay {"amount": 1}]] [[tool pay {"amount": 2}]] Pay.'
            with session.turn(text, id="t1") as turn:
                while True:
                    message = ask(client, [], tools=tools).choices[0].message
                    if not session.run_tool_calls(message, [pay]):
                        return message.content, turn

        for at in (1, 2):
            server.fault(status=500, at=len(server.requests) + at)
            with pytest.raises(openai.InternalServerError):
                block()
        answer, turn = block()
        asked = len(server.requests)
        assert block()[0] == answer == turn.answer()["content"]
        assert (sorted(paid), len(server.requests)) == ([1, 2], asked)


def test_a_second_wrapper_inside_a_turn_asks_the_model(
    bare: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    with session.turn("hello"):
        for _ in range(2):
            wrap(bare, session).chat.completions.create(model="m", messages=[])
    assert len(server.requests) == 2


# After another process died: what the record holds decides. (Processes die in test_kills.)


def unfinished(bare: openai.OpenAI, store: perdure.Store, text: str) -> Any:
    """Let a handle leave a turn with a call open, as a process that dies does."""
    return say(wrap(bare, store.session("s")), text)


def test_a_result_that_differs_the_second_time_is_noted_and_the_first_one_stands(
    bare: openai.OpenAI, server: ModelServer
) -> None:
    with perdure.open("memory:") as store:
        text = CALL + '[[then]][[tool look_up {"id": 18}]]'
        reply = unfinished(bare, store, text)
        session = store.session("s")
        client = wrap(bare, session)
        say(client, text)
        client.chat.completions.create(model="m", messages=[result(reply, "first")])
        again = store.session("s")
        client = wrap(bare, again)
        asked = len(server.requests)
        assert say(client, text).id == reply.id
        client.chat.completions.create(model="m", messages=[result(reply, "second")])
        assert len(server.requests) == asked
        notes = [one.content.data for one in again.records() if isinstance(one.content, Note)]
        assert len(notes) == 1
        results = [one["content"] for one in again.messages() if one["role"] == "tool"]
        assert results == ["first"]


def test_results_alone_go_on_with_an_unfinished_turn(
    bare: openai.OpenAI, server: ModelServer
) -> None:
    with perdure.open("memory:") as store:
        reply = unfinished(bare, store, CALL)
        session = store.session("s")
        wrap(bare, session).chat.completions.create(model="m", messages=[result(reply)])
        assert session.interrupted == ()
        assert [one["role"] for one in sent(server)[-1]] == ["user", "assistant", "tool"]


def test_something_else_leaves_an_unfinished_turn_as_it_is(
    bare: openai.OpenAI, server: ModelServer
) -> None:
    with perdure.open("memory:") as store:
        unfinished(bare, store, CALL)
        session = store.session("s")
        client = wrap(bare, session)
        say(client, "Never mind.")
        assert len(session.interrupted) == 1
        assert [one["role"] for one in sent(server)[-1]] == ["user", "assistant", "tool", "user"]
        say(client, CALL)  # Others spoke since: this is a new turn.
        assert kinds(session).count("turn.begun") == 3


def test_a_refusal_and_reasoning_are_given_again_as_they_came(
    bare: openai.OpenAI, server: ModelServer
) -> None:
    with perdure.open("memory:") as store:
        session = store.session("s")
        client = wrap(bare, session)
        for text in ("[[refuse]]", '[[reason]][[tool f {"a": 1}]]', "[[reason]]"):
            with session.turn(text, id=text):
                whole = client.responses.create(model="m", input=[])
            asked = len(server.requests)
            with session.turn(text, id=text):
                *_, last = client.responses.create(model="m", input=[], stream=True)
            assert last.type == "response.completed"
            assert last.response == whole
            with session.turn(text, id=text), client.responses.stream(model="m", input=[]) as found:
                final = found.get_final_response()
            assert [one.type for one in final.output] == [one.type for one in whole.output]
            assert len(server.requests) == asked
