"""Counting tokens: the estimate errs upwards, the exact count is OpenAI's, every shape is read."""

import builtins
import subprocess
import sys
import timeit
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure.errors import DivergenceError, UnsupportedError, UsageError
from perdure.formats.tokens import (
    CALL_TOKENS,
    ESTIMATE,
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    REPLY_TOKENS,
    RESULT_TOKENS,
    Counter,
    Estimate,
    TextCounter,
    counter_for,
)
from tests.formats.token_samples import DECLARATION, PROSE, samples

VOCABULARIES = ("o200k_base", "cl100k_base")

# From "How to count tokens with tiktoken" in OpenAI's cookbook: what tiktoken itself returns.
PUBLISHED = [
    ("o200k_base", "tiktoken is great!", [83, 8251, 2488, 382, 2212, 0]),
    ("cl100k_base", "antidisestablishmentarianism", [519, 85342, 34500, 479, 8997, 2191]),
    ("o200k_base", "antidisestablishmentarianism", [493, 129901, 376, 160388, 21203, 2367]),
    ("cl100k_base", "2 + 2 = 4", [17, 489, 220, 17, 284, 220, 19]),
    ("o200k_base", "2 + 2 = 4", [17, 659, 220, 17, 314, 220, 19]),
    (
        "cl100k_base",
        "お誕生日おめでとう",
        [33334, 45918, 243, 21990, 9080, 33334, 62004, 16556, 78699],
    ),
    ("o200k_base", "お誕生日おめでとう", [8930, 9697, 243, 128225, 8930, 17693, 4344, 48669]),
]

# From the same page: the messages, and what the API itself counted for them.
EXAMPLE = [
    {
        "role": "system",
        "content": "You are a helpful, pattern-following assistant that translates corporate "
        "jargon into plain English.",
    },
    {
        "role": "system",
        "name": "example_user",
        "content": "New synergies will help drive top-line growth.",
    },
    {
        "role": "system",
        "name": "example_assistant",
        "content": "Things working well together will increase revenue.",
    },
    {
        "role": "system",
        "name": "example_user",
        "content": "Let's circle back when we have more bandwidth to touch base on opportunities "
        "for increased leverage.",
    },
    {
        "role": "system",
        "name": "example_assistant",
        "content": "Let's talk later when we're less busy about how to do better.",
    },
    {
        "role": "user",
        "content": "This late pivot means we don't have time to boil the ocean for the client "
        "deliverable.",
    },
]
COUNTED = {
    "gpt-3.5-turbo": 129,
    "gpt-4-0613": 129,
    "gpt-4": 129,
    "gpt-4o": 124,
    "gpt-4o-mini": 124,
}


class Words(TextCounter):
    """A counter of one's own: a word is a token."""

    name = "words"

    def text(self, text: str) -> int:
        return len(text.split())


def count(message: Mapping[str, Any]) -> int:
    return Words().count(message)


@pytest.mark.parametrize(("vocabulary", "text", "ids"), PUBLISHED)
def test_texts_have_the_ids_that_openai_published(
    vocabulary: str, text: str, ids: list[int]
) -> None:
    counter: Any = counter_for(vocabulary)
    assert list(counter._tokenizer.encode_ordinary(text)) == ids
    assert counter.text(text) == len(ids)


@pytest.mark.parametrize(("model", "expected"), COUNTED.items())
def test_a_prompt_has_as_many_tokens_as_the_api_counts(model: str, expected: int) -> None:
    counter = counter_for(model)
    assert sum(map(counter.count, EXAMPLE)) + REPLY_TOKENS == expected
    assert sum(map(ESTIMATE.count, EXAMPLE)) + REPLY_TOKENS >= expected


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_the_estimate_is_never_below_the_exact_count(vocabulary: str) -> None:
    exact = counter_for(vocabulary)
    below = []
    tried = 0
    for seed in range(3):
        for what, text in samples(seed):
            message = {"role": "user", "content": text}
            found, needed = ESTIMATE.count(message), exact.count(message)
            tried += 1
            if found < needed:
                below.append((what, found, needed))
    assert below == []
    assert tried > 1_000


@pytest.mark.parametrize("text", PROSE)
def test_english_prose_is_estimated_at_less_than_three_times_its_count(text: str) -> None:
    message = {"role": "user", "content": text}
    assert ESTIMATE.count(message) < 3 * counter_for("gpt-4o").count(message)


def test_the_estimate_of_other_languages_stays_useful() -> None:
    exact = counter_for("cl100k_base")
    for language, text in DECLARATION.items():
        message = {"role": "user", "content": text}
        assert ESTIMATE.count(message) < 3 * exact.count(message), language


def test_the_estimate_is_fast_enough_for_long_histories() -> None:
    message = {"role": "user", "content": (PROSE[1] + " ") * 11}
    assert 900 < len(message["content"]) < 1_100
    seconds = min(timeit.repeat(lambda: ESTIMATE.count(message), number=500, repeat=20)) / 500
    # About 1.7 µs where it was measured; the bound leaves room for slow and busy machines.
    assert seconds < 20e-6


def test_what_looks_like_a_control_token_is_mere_text() -> None:
    counter: Any = counter_for("o200k_base")
    assert counter.text("<|endoftext|>") > 1
    assert counter.text("<|im_start|>system") > 3


def test_half_of_a_surrogate_pair_is_counted_and_not_refused() -> None:
    for counter in (ESTIMATE, counter_for("o200k_base")):
        assert counter.count({"role": "user", "content": "a \ud83d b"}) > 3


@pytest.mark.parametrize(
    ("name", "vocabulary"),
    [
        ("o200k_base", "o200k_base"),
        ("cl100k_base", "cl100k_base"),
        ("gpt-4o", "o200k_base"),
        ("gpt-4o-mini-2024-07-18", "o200k_base"),
        ("GPT-4o-mini", "o200k_base"),
        ("chatgpt-4o-latest", "o200k_base"),
        ("gpt-4.1-nano", "o200k_base"),
        ("gpt-5", "o200k_base"),
        ("gpt-5.2-pro", "o200k_base"),
        ("gpt-oss-120b", "o200k_base"),
        ("openai/gpt-oss:20b", "o200k_base"),
        ("o1", "o200k_base"),
        ("o3-mini", "o200k_base"),
        ("o4-mini-2025-04-16", "o200k_base"),
        ("ft:gpt-4o-mini:acme::abc", "o200k_base"),
        ("gpt-4", "cl100k_base"),
        ("gpt-4-turbo", "cl100k_base"),
        ("gpt-3.5-turbo-0125", "cl100k_base"),
        ("gpt-35-turbo", "cl100k_base"),
        ("ft:gpt-3.5-turbo:acme", "cl100k_base"),
    ],
)
def test_models_are_counted_with_their_vocabulary(name: str, vocabulary: str) -> None:
    assert counter_for(name).name == vocabulary


@pytest.mark.parametrize("name", ["gpt-4.7", "gpt-6", "claude-opus-4", "o2", "gpt", "", "llama3"])
def test_an_unknown_model_is_refused_with_what_is_known(name: str) -> None:
    with pytest.raises(UsageError, match=r"perdure knows o200k_base, cl100k_base, gpt-4o, "):
        counter_for(name)


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError, match="must be str, not NoneType"):
        counter_for(None)  # type: ignore[arg-type]


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "splintr":
            raise ModuleNotFoundError(name=name)
        return real(name, *rest)

    monkeypatch.setattr("perdure.formats.tokens._tokenizers", {})
    assert counter_for("gpt-4o").name == "o200k_base"
    monkeypatch.setattr("perdure.formats.tokens._tokenizers", {})
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnsupportedError, match=r"pip install 'perdure\[tokens\]'"):
        counter_for("gpt-4o")


def test_the_estimate_imports_no_tokenizer() -> None:
    code = (
        "import sys; from perdure.formats.tokens import ESTIMATE, counter_for;"
        "ESTIMATE.count({'role': 'user', 'content': 'x'}); before = 'splintr' in sys.modules;"
        "counter_for('gpt-4o'); print(before, 'splintr' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_a_counter_says_under_which_name_its_counts_are_kept() -> None:
    own: Counter = Words()
    assert own.name == "words"
    assert ESTIMATE.name == "estimate"
    assert Estimate(image=765).name == "estimate, image 765"
    assert counter_for("gpt-4o", image=765).name == "o200k_base, image 765"


def test_a_message_costs_its_text_its_role_and_what_surrounds_it() -> None:
    assert count({"role": "user", "content": "one two three"}) == MESSAGE_TOKENS + 1 + 3
    assert count({"role": "user", "content": ""}) == MESSAGE_TOKENS + 1
    assert count({"role": "assistant", "content": None}) == MESSAGE_TOKENS + 1
    assert count({"role": "user", "content": "one", "name": "Ann"}) == MESSAGE_TOKENS + 1 + 1 + 2
    assert count({"role": "master of ceremonies", "content": "one"}) == MESSAGE_TOKENS + 3 + 1
    assert ESTIMATE.count({"role": "user", "content": ""}) == MESSAGE_TOKENS + 1 + 3


# The words that messages are made of, as keys and in the place of others.
KEYS = st.sampled_from(
    [
        "role",
        "content",
        "type",
        "text",
        "name",
        "tool_calls",
        "function",
        "arguments",
        "input",
        "output",
        "parts",
        "image_url",
        "data",
        "file_data",
        "media_type",
        "format",
        "audio",
        "refusal",
        "functionCall",
        "summary",
        "encrypted_content",
        "url",
    ]
)
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "up this"}}
AROUND = MESSAGE_TOKENS + 1


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "assistant", "content": None, "refusal": "I can not"}, AROUND + 3),
        ({"role": "assistant", "tool_calls": [CALL, CALL]}, AROUND + 2 * (CALL_TOKENS + 3)),
        (
            {"role": "assistant", "function_call": {"name": "look", "arguments": "up"}},
            AROUND + CALL_TOKENS + 2,
        ),
        (
            {"role": "tool", "tool_call_id": "call_1", "content": "found it"},
            AROUND + RESULT_TOKENS + 2,
        ),
        ({"role": "user", "content": [{"type": "text", "text": "one two"}]}, AROUND + 2),
        (
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what is this"},
                    {
                        "type": "image_url",
                        "image_url": {"url": "data:image/png;base64," + "A" * 99},
                    },
                ],
            },
            AROUND + 3 + IMAGE_TOKENS,
        ),
        (
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_image", "file_id": "f"}],
            },
            AROUND + IMAGE_TOKENS,
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "input_audio", "input_audio": {"data": "A" * 1000, "format": "wav"}}
                ],
            },
            AROUND + 10,
        ),
        (
            {"role": "assistant", "audio": {"id": "a", "data": "A" * 500, "transcript": "one two"}},
            AROUND + 5 + 2,
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "file", "file": {"filename": "a b", "file_data": "A" * 50_000}}
                ],
            },
            AROUND + 2 + 10_000,
        ),
        (
            {"role": "user", "content": [{"type": "file", "file": {"file_id": "x"}}]},
            AROUND + IMAGE_TOKENS,
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "up this"},
            CALL_TOKENS + 3,
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": "found it"},
            MESSAGE_TOKENS + RESULT_TOKENS + 2,
        ),
        (
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [{"type": "input_text", "text": "found it"}],
            },
            MESSAGE_TOKENS + RESULT_TOKENS + 2,
        ),
        (
            {
                "type": "reasoning",
                "id": "rs",
                "summary": [{"type": "summary_text", "text": "I think"}],
                "encrypted_content": "A" * 400,
            },
            MESSAGE_TOKENS + 2 + 100,
        ),
        (
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "let me see", "signature": "A" * 400},
                    {"type": "tool_use", "id": "t", "name": "look", "input": {"where": "in there"}},
                ],
            },
            AROUND + 3 + CALL_TOKENS + 1 + 2,
        ),
        (
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t", "content": "found it"}],
            },
            AROUND + RESULT_TOKENS + 2,
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "image", "source": {"type": "base64", "data": "A" * 9}},
                    {"type": "document", "source": {"type": "text", "data": "one two"}},
                    {"type": "document", "source": {"type": "url", "url": "https://x"}},
                ],
            },
            AROUND + IMAGE_TOKENS + 2 + IMAGE_TOKENS,
        ),
        (
            {"role": "model", "parts": [{"text": "one two"}, {"functionCall": {"name": "look"}}]},
            AROUND + 2 + CALL_TOKENS + 1,
        ),
        (
            {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": "A"}}]},
            AROUND + IMAGE_TOKENS,
        ),
        (
            {
                "role": "user",
                "parts": [{"functionResponse": {"name": "look", "response": {"it": "is here"}}}],
            },
            AROUND + 2,
        ),
        ({"type": "web_search_call", "id": "w", "action": {"query": "one two"}}, 3 + 1 + 2),
    ],
)
def test_every_shape_is_read(message: dict[str, Any], expected: int) -> None:
    assert count(message) == expected
    assert ESTIMATE.count(message) >= counter_for("o200k_base").count(message) > 0


def test_what_no_model_is_shown_does_not_count() -> None:
    message = {"role": "assistant", "content": "one"}
    more = {"id": "msg_1", "usage": {"input_tokens": 7}, "annotations": [], "model": "gpt-4o"}
    assert count({**message, **more}) == count(message)


def test_a_value_that_json_lacks_is_counted_by_its_text() -> None:
    call = {"type": "tool_use", "name": "look", "input": {"at": frozenset({1})}}
    assert count({"role": "assistant", "content": [call]}) > AROUND


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, JSON, max_size=5))
def test_whatever_a_message_holds_it_is_counted(message: dict[str, Any]) -> None:
    for counter in (ESTIMATE, Words()):
        assert counter.count(message) >= MESSAGE_TOKENS


def test_what_is_no_message_is_refused() -> None:
    for counter in (ESTIMATE, Words()):
        with pytest.raises(UsageError, match="a message must be a dict, not str"):
            counter.count("hello")  # type: ignore[arg-type]


def test_a_counter_of_ones_own_must_count_texts() -> None:
    with pytest.raises(NotImplementedError):
        TextCounter().count({"role": "user", "content": "x"})


@pytest.mark.parametrize("calls", [1, 2, 7])
def test_calls_and_results_cost_at_least_what_the_published_format_takes(calls: int) -> None:
    """OpenAI's format of its open-weight models, as far as it is public."""
    from splintr import Tokenizer

    tokenizer = Tokenizer.from_pretrained("gpt_oss")
    name, arguments, result = "get_current_weather", '{"location":"Tokyo"}', '{"sunny": true}'
    called = (
        f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        f"{arguments}<|call|>"
    )
    answered = (
        f"<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{result}<|end|>"
    )
    counter = counter_for("gpt-oss-20b")
    call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call] * calls}
    needed = len(tokenizer.encode_with_special(called * calls))
    assert needed <= counter.count(message) <= needed + 10
    needed = len(tokenizer.encode_with_special(answered))
    found = counter.count({"role": "tool", "tool_call_id": "c", "content": result})
    assert needed <= found <= needed + 10


def test_an_id_is_known_whoever_counts_tokens(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    message = {"role": "user", "content": "hello"}
    for counter in (None, ESTIMATE, "gpt-4o", None):
        with perdure.open(path, tokens=counter) as store:
            session = store.session("s")
            assert session.append(message, id="r1") == 1
            assert session.append(message, {**message, "content": "two"}, id="r2") == 3
            with session.turn("question", id="t1") as turn:
                if not turn.ended:
                    turn.append(message, id="r3")
            with pytest.raises(DivergenceError, match="'t1'") as caught:
                session.turn("another question", id="t1").__enter__()
            assert "\t" not in str(caught.value)
            assert len(session) == 5
            session.verify()


def test_what_is_no_counter_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="the name of a model or a Counter, not object"):
        perdure.open("memory:", tokens=object())  # type: ignore[arg-type]
