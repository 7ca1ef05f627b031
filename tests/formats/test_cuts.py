"""Where a window may begin."""

from perdure.formats.parts import StoredMessage
from perdure.formats.transcript import render, safe_cut, safe_cuts
from tests.formats.transcripts import (
    ANSWER,
    RESPONSES,
    USER,
    chat_call,
    chat_result,
    item_answer,
    item_call,
    item_reasoning,
    item_result,
    said,
    use,
    used,
)


def test_nothing_is_cut_between_a_call_and_its_result() -> None:
    history = said(USER, chat_call("a", "b"), chat_result("a"), chat_result("b"), ANSWER)
    assert safe_cuts(history) == [True, True, False, False, True, True]
    assert [safe_cut(history, index) for index in range(6)] == safe_cuts(history)


def test_an_opaque_message_is_part_of_nothing_and_divides_nothing() -> None:
    sealed = StoredMessage(9, chat_result("a"), opaque=True)
    calls = said(USER, chat_call("a"), chat_result("a"))
    assert safe_cuts([*calls[:2], sealed]) == [True, True, True, True]
    assert safe_cuts([*calls[:2], sealed, calls[2]]) == [True, True, False, False, True]
    items = said(USER, item_reasoning("1"), item_answer("1"))
    assert safe_cuts(items) == [True, True, False, True]
    assert safe_cuts([*items[:2], sealed, items[2]]) == [True, True, False, False, True]


def test_what_stands_between_a_call_and_its_late_result_is_kept_with_them() -> None:
    history = said(USER, use("a"), USER, ANSWER, used("a"), USER)
    assert safe_cuts(history) == [True, True, False, False, False, True, True]


def test_a_call_that_nobody_answered_forbids_nothing() -> None:
    assert safe_cuts(said(chat_call("a"), USER, ANSWER)) == [True, True, True, True]


def test_a_half_call_that_was_cut_off_waits_for_nothing() -> None:
    cut = [
        *said(USER),
        StoredMessage(2, chat_call("a"), interrupted=True),
        *said(USER, chat_result("a")),
    ]
    assert safe_cuts(cut) == [True, True, True, False, True]


def test_no_window_begins_with_a_result_of_nothing() -> None:
    assert safe_cuts(said(USER, chat_result("a"), USER)) == [True, False, True, True]


def test_an_id_that_repeats_means_the_newest_open_call() -> None:
    once = [chat_call("a"), chat_result("a")]
    history = said(USER, *once, USER, *once, chat_result("a"))
    assert safe_cuts(history) == [True, True, False, True, True, False, False, True]
    crashed = said(chat_call("a"), USER, *once)
    assert safe_cuts(crashed) == [True, True, True, False, True]


def test_nothing_is_cut_inside_an_answer_that_holds_on_to_its_reasoning() -> None:
    history = said(
        USER, item_reasoning(), item_answer(), item_call("a"), item_result("a"), item_answer(), USER
    )
    assert safe_cuts(history) == [True, True, False, False, False, True, True, True]


def test_answers_of_two_workers_are_each_kept_whole() -> None:
    one, two = {"turn": "1"}, {"turn": "2"}
    history = [
        *said(item_reasoning("rs_1"), **one),
        *said(item_reasoning("rs_2"), **two),
        *said(item_answer(id="msg_1"), **one),
        *said(item_answer(id="msg_2"), **two),
    ]
    assert safe_cuts(history) == [True, False, False, False, True]
    assert [item.get("id") for item in render(history, RESPONSES)] == [
        "rs_1",
        "msg_1",
        "rs_2",
        "msg_2",
    ]


def test_nothing_said_can_be_cut() -> None:
    assert safe_cuts([]) == [True]
