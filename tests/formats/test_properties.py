"""Transcripts of any history: valid, complete or told, and stable. The histories are P13's."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.formats.parts import Losses, ToolCall, ToolResult
from perdure.formats.tool_calls import answers, open_calls
from perdure.formats.transcript import FORMATS, normalize, render, safe_cuts
from tests.promises import p13_transcripts
from tests.promises.p13_histories import Drawing, History

sources = st.randoms(use_true_random=False)
formats = st.sampled_from(FORMATS)


def drawn(source: random.Random, *, tame: bool = False) -> History:
    return Drawing(source, tame=tame).history()


@settings(max_examples=150, deadline=None)
@given(source=sources, format=formats)
def test_whatever_was_stored_the_provider_takes_it(source: random.Random, format: str) -> None:
    assert p13_transcripts.failure(drawn(source), format) == ""


@settings(max_examples=80, deadline=None)
@given(source=sources, format=formats)
def test_of_a_whole_history_nothing_is_missing_that_can_be_said(
    source: random.Random, format: str
) -> None:
    assert p13_transcripts.failure(drawn(source, tame=True), format) == ""


@settings(max_examples=80, deadline=None)
@given(source=sources)
def test_a_window_from_a_safe_cut_loses_no_result_and_no_reasoning(source: random.Random) -> None:
    history = drawn(source, tame=True)
    before = {loss.position for loss in render(history.said, "openai.responses").losses}
    for index, safe in enumerate(safe_cuts(history.said)):
        if safe:
            window = render(history.said[index:], "openai.responses")
            assert window.interrupted_calls == ()
            assert {loss.position for loss in window.losses} <= before


@settings(max_examples=80, deadline=None)
@given(source=sources)
def test_calls_and_answers_are_those_that_transcripts_find(source: random.Random) -> None:
    for each in drawn(source).said:
        losses: Losses = []
        parts = [part for speech in normalize([each], losses) for part in speech.parts]
        if not each.interrupted:
            calls = [part.id or part.name for part in parts if type(part) is ToolCall]
            assert calls == [call.id for call in open_calls(each.message)]
        given = [part.id or part.name for part in parts if type(part) is ToolResult]
        assert given == answers(each.message)
