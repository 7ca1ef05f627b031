"""P13, a seeded sample: a transcript is always valid for its provider."""

from collections import Counter
from typing import Any
from unittest import mock

import pytest

from perdure.formats import anthropic, openai_responses
from perdure.formats import transcript as transcript_module
from perdure.formats.fields import CallIds
from perdure.formats.transcript import FORMATS
from tests.promises import p13_transcripts
from tests.promises.p13_histories import draw
from tests.promises.promise import sample

pytestmark = pytest.mark.durability


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_transcripts_are_valid_whatever_was_stored(seed: int) -> None:
    sample(p13_transcripts.PROMISE, seed=seed, seconds=3, least=400)


def test_a_seed_repeats_its_history() -> None:
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


def test_the_histories_have_what_transcripts_can_stumble_over() -> None:
    """Otherwise the sample would prove nothing."""
    seen: Counter[str] = Counter()
    for seed in range(400):
        history = draw(seed)
        seen["interrupted"] += any(each.interrupted for each in history.said)
        seen["authors"] += any(each.author for each in history.said)
        seen["reasoning"] += bool(history.reasoning_of)
        for format in FORMATS:
            transcript = transcript_module.render(history.said, format)
            seen["closed"] += bool(transcript.interrupted_calls)
            seen["losses"] += bool(transcript.losses)
            for loss in transcript.losses:
                seen[loss.what.rpartition(": ")[2]] += 1
    for what in (
        "interrupted",
        "authors",
        "reasoning",
        "closed",
        "losses",
        "its call is missing",
        "its call already has a result",
        "the content it led to is missing",
        "the answer was interrupted",
    ):
        assert seen[what] > 10, what


def _open(call: Any, closed: list[Any]) -> None:
    """Leave a call without a result."""


def _as_it_is(id: str, *_: object) -> str:
    return id


@pytest.mark.parametrize(
    ("where", "name", "broken", "said"),
    [
        (transcript_module, "_close_call", _open, "did not have response|without|No tool output"),
        (transcript_module, "legal_tool_name", _as_it_is, "does not match pattern"),
        (CallIds, "take", lambda _, wanted: wanted, "unique|Duplicate|pattern"),
        (
            openai_responses._ItemWriter,
            "_drop_reasoning_at_the_end",
            lambda _: None,
            "following item",
        ),
        (anthropic, "_drop_late_thinking", lambda blocks, _: blocks, "thinking"),
        (anthropic, "_strip_trailing_space", lambda _: None, "trailing whitespace"),
        (anthropic, "_drop_unpaired", lambda *_: None, "unexpected `tool_use_id`"),
        (
            transcript_module,
            "attach_results",
            lambda speeches, _: speeches,
            "calls are closed|No tool",
        ),
    ],
)
def test_a_broken_rule_is_found(where: Any, name: str, broken: Any, said: str) -> None:
    """The twins: the sample fails when a rule of the transcripts is not kept."""
    with (
        mock.patch.object(where, name, broken),
        pytest.raises(AssertionError, match=said),
    ):
        sample(p13_transcripts.PROMISE, seed=1, seconds=20, least=5_000)
