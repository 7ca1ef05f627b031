"""What the model answers, without any socket: marks, scripts, schemas, tokens."""

import json
from typing import Any, Literal

import pytest
from openai.lib._pydantic import to_strict_json_schema
from pydantic import BaseModel, Field, TypeAdapter

from perdure.testing.model_server.answers import (
    Answer,
    AnswerCall,
    default_answer,
    parse_answer,
    split_text,
    truncate,
)
from perdure.testing.model_server.errors import ApiError
from perdure.testing.model_server.prompts import Prompt, from_chat, from_responses, tokens
from perdure.testing.model_server.schema import example_value


def asked(text: str, **more: Any) -> Prompt:
    return from_chat({"model": "m", "messages": [{"role": "user", "content": text}], **more})


def answered(text: str, **more: Any) -> Answer:
    return default_answer(asked(text, **more))


def test_an_answer_by_itself_names_the_digest_of_the_whole_prompt() -> None:
    system = {"role": "system", "content": "Be brief."}
    user = {"role": "user", "content": "hello"}
    texts = {
        default_answer(from_chat({"model": "m", "messages": messages})).text
        for messages in ([user], [system, user], [user, user], [system, {**user, "name": "a"}])
    }
    assert len(texts) == 4
    assert (
        answered("hello").text == default_answer(from_chat({"model": "x", "messages": [user]})).text
    )
    assert answered("hello").text == "Answer 8c57957dea1e to 1 message."


def test_instructions_belong_to_the_prompt() -> None:
    items = [{"role": "user", "content": "hello"}]
    plain = from_responses({"model": "m"}, items)
    told = from_responses({"model": "m", "instructions": "Be brief."}, items)
    assert plain.digest == asked("hello").digest
    assert told.digest != plain.digest


A_BRACKETS = AnswerCall("a", '{"x": [[1]]}')


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[[tool a]]", [AnswerCall("a", "{}")]),
        (
            '[[tool a {"x": [[1]]}]] [[tool b {"]]": 1}]]',
            [A_BRACKETS, AnswerCall("b", '{"]]": 1}')],
        ),
        ('[[tool a {"broken": ]]', [AnswerCall("a", '{"broken":')]),
        ("[[custom shell ls -l /]]", [AnswerCall("shell", "ls -l /", custom=True)]),
        ("[[custom shell]]", [AnswerCall("shell", "", custom=True)]),
        ("[[tool a", []),
        ("[[tools a]] [[ tool a]]", []),
    ],
)
def test_marks_call_tools(text: str, calls: list[AnswerCall]) -> None:
    assert [*answered(f"please {text}").calls] == calls


def test_marks_say_how_it_is_said() -> None:
    assert answered("[[say exactly this]]").text == "exactly this"
    assert answered("[[refuse]]") == Answer(refusal="I cannot help with that.")
    assert answered("[[refuse no]]").refusal == "no"
    assert (answered("[[reason because]]").reasoning, answered("").reasoning) == ("because", None)
    assert len((answered("[[len 40]]").text or "").split()) == 40
    assert answered("[[len 0]]").text == ""
    assert answered("[[tool a]]").text is None
    both = answered("[[say I look.]] [[tool a]]")
    assert (both.text, both.calls, both.finish_reason) == (
        "I look.",
        (AnswerCall("a", "{}"),),
        "tool_calls",
    )
    with pytest.raises(ApiError) as raised:
        answered("[[err 503]]")
    assert raised.value.status == 503


def chat(*messages: dict[str, Any]) -> Answer:
    return default_answer(from_chat({"model": "m", "messages": messages}))


def test_each_round_of_tools_has_its_marks() -> None:
    user = {"role": "user", "content": "[[tool a]] [[then]] [[tool b]] [[tool c]]"}
    called: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "…"}
    rounds = [chat(user, *[called, result] * count) for count in range(3)]
    assert [[call.name for call in answer.calls] for answer in rounds] == [["a"], ["b", "c"], []]
    assert rounds[2].text is not None
    assert chat(user, called, result, user).calls == rounds[0].calls


def test_rounds_are_counted_in_responses_too() -> None:
    items: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
    call, output = {"type": "function_call"}, {"type": "function_call_output"}
    counts = []
    thought = {"type": "reasoning"}
    for more in ([], [call, thought, call], [output, output], [thought, call], [output]):
        items += more
        counts.append(from_responses({"model": "m"}, items).rounds)
    assert counts == [0, 1, 1, 2, 2]
    assert from_responses({"model": "m"}, items[1:]).last_user == ""


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("hello", Answer(text="hello")),
        ({"content": "hello"}, Answer(text="hello")),
        ({"role": "assistant", "content": None, "refusal": "no"}, Answer(refusal="no")),
        ({"content": "a", "reasoning": "b"}, Answer(text="a", reasoning="b")),
        ({"content": "a", "finish_reason": "length"}, Answer(text="a", finish="length")),
        ({"name": "add", "arguments": {"n": 1}}, Answer(calls=(AnswerCall("add", '{"n": 1}'),))),
        ([{"name": "add"}], Answer(calls=(AnswerCall("add", "{}"),))),
        ([{"name": "sh", "input": "ls"}], Answer(calls=(AnswerCall("sh", "ls", custom=True),))),
        (
            [{"id": "c", "name": "add", "arguments": "{"}],
            Answer(calls=(AnswerCall("add", "{", id="c"),)),
        ),
        (
            {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "add"}}]},
            Answer(calls=(AnswerCall("add", "{}", id="c"),)),
        ),
        (
            {"tool_calls": [{"type": "custom", "custom": {"name": "sh", "input": "ls"}}]},
            Answer(calls=(AnswerCall("sh", "ls", custom=True),)),
        ),
        (Answer(text="x"), Answer(text="x")),
    ],
)
def test_a_test_writes_answers_in_several_ways(given: Any, answer: Answer) -> None:
    assert parse_answer(given) == answer


@pytest.mark.parametrize("given", [5, None, {"contents": "hello"}, [{"arguments": {}}], [5]])
def test_what_is_no_answer_is_refused(given: Any) -> None:
    with pytest.raises((TypeError, KeyError, AttributeError)):
        parse_answer(given)


def test_a_text_is_cut_at_the_limit() -> None:
    answer = Answer(text="a" * 41)
    assert truncate(answer, None) == truncate(answer, 11) == answer
    assert truncate(answer, 10) == Answer(text="a" * 40, finish="length")
    called = Answer(calls=(AnswerCall("a", "{}" * 40),))
    assert truncate(called, 10) == called


@pytest.mark.parametrize("text", ["", " ", "one two  three\n", "x" * 40, ' {"a": "' + "b" * 20])
def test_pieces_make_the_whole(text: str) -> None:
    assert "".join(split_text(text)) == text
    assert all(0 < len(piece) <= 17 for piece in split_text(text))


def test_tokens_are_quarters_of_characters() -> None:
    assert [tokens("a" * count) for count in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert Answer(text="12345", calls=(AnswerCall("a", "{}"),)).tokens == 3


TOOL = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ("auto", None),
        (None, None),
        ("required", "one"),
        ({"type": "function", "function": {"name": "two"}}, "two"),
        ({"type": "function", "name": "two"}, "two"),
        ({"type": "function", "name": "three"}, None),
    ],
)
def test_a_forced_tool_is_called_with_what_it_takes(choice: Any, called: str | None) -> None:
    tools = [
        {"type": "function", "function": {"name": "one", "parameters": TOOL}},
        {"type": "function", "name": "two", "parameters": TOOL},
    ]
    calls = answered("hello", tools=tools, tool_choice=choice).calls
    assert [call.name for call in calls] == ([called] if called else [])
    assert all(json.loads(call.arguments) == {"city": "8c57957dea1e"} for call in calls)
    marked = answered("[[tool other]]", tools=tools, tool_choice=choice).calls
    assert [call.name for call in marked] == ["other"]


def test_a_custom_tool_is_forced_too() -> None:
    tools = [{"type": "custom", "custom": {"name": "shell"}}, {"type": "custom", "name": "sql"}]
    choice = {"type": "custom", "custom": {"name": "shell"}}
    (call,) = answered("hello", tools=tools, tool_choice=choice).calls
    assert call == AnswerCall("shell", "8c57957dea1e", custom=True)
    plain = [{"type": "function", "function": {"name": "now"}}]
    (call,) = answered("hello", tools=plain, tool_choice="required").calls
    assert (call.name, json.loads(call.arguments)) == ("now", {})


def test_the_limit_has_two_names_in_chat() -> None:
    assert asked("x", max_tokens=5).limit == asked("x", max_completion_tokens=5).limit == 5
    assert asked("x").limit is None


class Step(BaseModel):
    why: str
    inner: "Step | None"
    further: "list[Step]"


class Plan(BaseModel):
    kind: Literal["plan"]
    priority: Literal["high", "low"]
    count: int = Field(ge=3, le=5)
    even: int = Field(multiple_of=4)
    small: int = Field(lt=-5)
    share: float = Field(gt=0, lt=1)
    name: str = Field(min_length=20)
    short: str = Field(max_length=3)
    sure: bool
    nothing: None
    maybe: int | None
    either: int | str
    steps: list[Step] = Field(min_length=2)
    first: Step


def test_a_schema_gets_a_value_that_fits() -> None:
    schema = to_strict_json_schema(Plan)
    value = example_value(schema, "word")
    plan = Plan.model_validate(value)
    assert (plan.steps[0].why, plan.nothing, plan.maybe) == ("word", None, 1)
    assert example_value(schema, "word") == value
    assert example_value(schema, "other") != value
    assert TypeAdapter(list[int]).validate_python(
        example_value({"type": "array", "items": {"type": "integer"}}, "")
    )


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": ["string", "null"]}, "w"),
        ({"type": ["null"]}, None),
        ({"anyOf": [{"type": "null"}]}, None),
        ({"type": "string", "format": "date"}, "2024-05-01"),
        ({"allOf": [{"$ref": "#/$defs/n"}], "$defs": {"n": {"type": "integer"}}}, 1),
        ({"properties": {"a": {}}}, {"a": "w"}),
        ({"type": "array", "items": {"$ref": "#"}}, [[[[[]]]]]),
        ({"type": "array"}, ["w"]),
        ({"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "integer"}]}, [[1]]),
        ({"type": ["array", "null"], "items": {"$ref": "#"}}, [[[[None]]]]),
        ({"$ref": "#"}, "w"),
        ({}, "w"),
    ],
)
def test_odd_schemas_get_values_too(schema: dict[str, Any], value: Any) -> None:
    assert example_value(schema, "w") == value


def test_a_schema_that_nothing_fits_is_given_up() -> None:
    value = example_value({"properties": {"a": {"$ref": "#"}}}, "w")
    assert str(value).count("{") < 100


def test_formats_of_answers() -> None:
    assert json.loads(answered("x", response_format={"type": "json_object"}).text or "").keys() == {
        "answer"
    }
    schema = {"name": "n", "schema": {"type": "object", "properties": {"a": {"const": 5}}}}
    chosen = {"type": "json_schema", "json_schema": schema}
    assert answered("x", response_format=chosen).text == '{"a": 5}'
    body = {"model": "m", "text": {"format": {"type": "json_schema", **schema}}}
    assert (
        default_answer(from_responses(body, [{"role": "user", "content": "x"}])).text == '{"a": 5}'
    )
