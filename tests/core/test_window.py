"""Windows: the newest part that fits, cut at turns, whatever was stored, at the cost of itself."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import example, settings
from hypothesis import given as drawn
from hypothesis import strategies as st

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Entry
from perdure.core import window
from perdure.core.history import MessageCounter
from perdure.core.messages import parse_messages
from perdure.core.window import WindowRequest
from perdure.errors import ContextWindowError, UsageError
from perdure.formats.tokens import ESTIMATE, REPLY_TOKENS
from perdure.formats.transcript import FORMATS, Transcript
from perdure.testing import violations
from tests.formats.streams import one_choice
from tests.formats.transcripts import chat_call, chat_result
from tests.promises.p13_histories import Drawing
from tests.support import contents, said, store_in_memory


class Letters:
    """Counts letters, one for the message itself, and how often it was asked."""

    name = "letters"

    def __init__(self) -> None:
        self.asked = 0

    def count(self, message: Mapping[str, Any]) -> int:
        self.asked += 1
        return 1 + len(str(message.get("content") or ""))


LETTERS = Letters()


def talked(session: perdure.Session, turns: int, *, first: int = 0) -> None:
    """Add turns of a question and an answer of nine letters each: 20 tokens a turn."""
    for number in range(first, first + turns):
        with session.turn(f"question{number % 10}") as turn:
            turn.append(said(f"answer..{number % 10}", "assistant"))


def texts(transcript: Transcript) -> list[Any]:
    return [message["content"] for message in transcript]


def test_the_newest_turns_that_fit_are_given_and_the_rest_is_left_out() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    talked(session, 10)
    found = session.messages(max_tokens=REPLY_TOKENS + 59, counter=LETTERS)
    assert texts(found) == ["question8", "answer..8", "question9", "answer..9"]
    assert found.tokens == REPLY_TOKENS + 40
    assert session.messages()[found.truncated_before // 4 * 2] == said("question8")
    whole = session.messages(max_tokens=REPLY_TOKENS + 200, counter=LETTERS)
    assert (len(whole), whole.truncated_before, whole.tokens) == (20, 0, REPLY_TOKENS + 200)


def test_instructions_and_pinned_messages_stay_in_every_window() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    session.append(said("be brief", "system"))
    pinned = session.append(said("my number is 7"))
    talked(session, 5)
    session.append(said("be kind", "developer"))
    talked(session, 5)
    session.pin(pinned)
    for format in (None, "openai.chat"):
        found = session.messages(format=format, max_messages=6)
        expected = ["be brief", "my number is 7", "be kind", "question4", "answer..4"]
        assert texts(found) == expected
    session.unpin(pinned)
    assert "my number is 7" not in texts(session.messages(max_messages=6))


def test_what_is_pinned_is_in_its_place_once_where_the_window_reaches_it() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    talked(session, 3)
    session.pin(session.position - 1)
    assert texts(session.messages(max_messages=6)) == contents(session)


@pytest.mark.parametrize(("unit", "needed"), [("tokens", 43), ("messages", 4)])
def test_a_budget_below_the_newest_turn_is_an_error_with_both_numbers(
    unit: str, needed: int
) -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    session.append(said("123456789", "system"))
    talked(session, 5)
    with session.turn("question0") as turn:
        turn.append(said("answer..0", "assistant"), said("and......", "assistant"))
    limit: dict[str, Any] = {f"max_{unit}": needed - 1, "counter": LETTERS}
    with pytest.raises(ContextWindowError) as caught:
        session.messages(**limit)
    assert (caught.value.needed, caught.value.given) == (needed, needed - 1)
    assert f"{needed} {unit}; max_{unit} is {needed - 1}" in str(caught.value)
    limit[f"max_{unit}"] += 1
    assert len(session.messages(**limit)) == 4


def test_instructions_alone_can_be_too_much() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    session.append(said("x" * 100, "system"))
    with pytest.raises(ContextWindowError, match="104 tokens; max_tokens is 50"):
        session.messages(max_tokens=50, counter=LETTERS)


def test_an_empty_session_has_an_empty_window() -> None:
    store, _ = store_in_memory()
    found = store.session("s").messages(format="openai.chat", max_tokens=10)
    assert (list(found), found.truncated_before, found.tokens) == ([], 0, REPLY_TOKENS)


def test_a_window_never_begins_within_a_call() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    for number in range(6):
        call, result = chat_call(f"c{number}"), chat_result(f"c{number}")
        session.append(said("go"), call, result, said("done", "assistant"))
    for most in range(4, 25):
        found = session.messages(format="openai.chat", max_messages=most)
        assert len(found) == most // 4 * 4
        assert found[0] == said("go")
        assert violations("openai.chat", found) == []


def test_turns_that_mix_are_cut_where_neither_is_torn() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    with session.turn("one") as one:
        one.append(chat_call("c1"))
        with session.turn("two") as two:
            one.append(chat_result("c1"))
            two.append(said("2", "assistant"))
    talked(session, 1)
    found = session.messages(format="openai.chat", max_messages=5)
    assert texts(found) == ["question0", "answer..0"]


def test_where_no_user_speaks_any_safe_place_will_do() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    session.append(*(said(f"{number}", "assistant") for number in range(2000)))
    found = session.messages(max_messages=10)
    assert texts(found) == [f"{number}" for number in range(1990, 2000)]


@pytest.mark.parametrize("format", [None, *FORMATS])
def test_every_format_is_valid_with_a_call_that_nobody_answered(format: str | None) -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    talked(session, 5)
    session.append(said("go"), chat_call("c1"))
    found = session.messages(format=format, max_tokens=400)
    assert found.truncated_before == 0
    if format is not None:
        assert violations(format, found, system=found.system) == []
        assert [call.id for call in found.interrupted_calls] == ["c1"]


def test_a_notice_for_an_open_call_is_part_of_the_budget() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    session.append(said("earlier"), said("yes", "assistant"), said("go"), chat_call("c1"))
    found = session.messages(format="openai.chat", max_tokens=1000)
    assert len(found) == 5
    tight = found.tokens or 0
    assert len(session.messages(format="openai.chat", max_tokens=tight)) == 5
    assert len(session.messages(format="openai.chat", max_tokens=tight - 1)) == 3
    other = session.messages(format="anthropic", max_tokens=1000)
    stored = [*session.messages(), found[-1]]
    assert other.tokens == REPLY_TOKENS + sum(map(ESTIMATE.count, stored))


def test_a_notice_counts_only_where_its_call_is_shown() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    session.append(said("go"), chat_call("c1"))
    session.append(said("never mind"), said("fine", "assistant"))
    found = session.messages(max_tokens=REPLY_TOKENS + 16, counter=LETTERS)
    assert texts(found) == ["never mind", "fine"]


def test_a_window_shows_one_side_of_a_group() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    session.append(said("plan it", "assistant"), author="ann")
    session.append(said("done", "assistant"), author="bob")
    found = session.messages(format="openai.chat", max_tokens=200, perspective="bob")
    assert [(message["role"], message["content"]) for message in found] == [
        ("user", "plan it"),
        ("assistant", "done"),
    ]
    assert sum(map(ESTIMATE.count, found)) + REPLY_TOKENS == found.tokens


def test_a_branch_has_windows_of_the_past_that_it_shares() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    session.append(said("be brief", "system"))
    talked(session, 3)
    branch = session.branch("b", at=session.position - 4)
    session.append(said("later"))
    talked(branch, 1, first=7)
    found = branch.messages(format="openai.chat", max_messages=5)
    assert texts(found) == ["be brief", "question1", "answer..1", "question7", "answer..7"]


def test_the_cut_answer_of_a_failed_turn_is_shown_where_it_was_cut() -> None:
    store, _ = store_in_memory()
    session = store.session("s")

    def breaking() -> Iterator[Any]:
        yield one_choice(0, {"role": "assistant", "content": "half"})
        raise ConnectionError

    with pytest.raises(ConnectionError), session.turn("go") as turn:
        list(turn.stream(breaking()))
    session.append(said("later"))
    assert texts(session.messages(format="openai.chat")) == ["go", "half", "later"]


def test_a_cut_answer_is_shown_unless_its_turn_is_held_here() -> None:
    store, backend = store_in_memory()
    session = store.session("s")
    turn = session.turn("go")
    turn.__enter__()
    stream = turn.stream([one_choice(0, {"role": "assistant", "content": "half"})], flush_every=0)
    next(stream)
    assert texts(session.messages(format="openai.chat")) == ["go"]
    other = perdure.open(backend).session("s")
    assert texts(other.messages(format="openai.chat")) == ["go", "half"]
    assert texts(other.messages(max_messages=2)) == ["go", "half"]
    with other.interrupted[0]:
        assert texts(other.messages(format="openai.chat")) == ["go"]


def test_what_can_be_no_window_is_refused() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    wrong: list[dict[str, Any]] = [
        {"format": "openai"},
        {"max_tokens": 0},
        {"max_messages": -1},
        {"max_tokens": 1.5},
        {"perspective": "ann"},
        {"last": 2, "max_tokens": 5},
    ]
    for asked in wrong:
        with pytest.raises(UsageError):
            session.messages(**asked)


# What it costs.


class Counted(MemoryBackend):
    """A store that counts what is read of it."""

    entries = size = 0

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        limit: int | None = None,
        reverse: bool = False,
        max_body: int | None = None,
    ) -> Iterator[Entry]:
        found = super().read(stream, after=after, limit=limit, reverse=reverse, max_body=max_body)
        for entry in found:
            self.entries += 1
            self.size += len(entry.header) + len(entry.body or b"")
            yield entry


def cost(messages: int) -> tuple[int, int, int]:
    backend = Counted()
    session = perdure.open(backend).session("s")
    session.append(said("be brief", "system"))
    for first in range(1_000_000, 1_000_000 + messages, 500):
        few = range(first, min(first + 500, 1_000_000 + messages))
        session.append(*(said(f"message {n}", "user" if n % 2 else "assistant") for n in few))
    session.append(*(said(f"and then {n}", "user" if n % 2 else "assistant") for n in range(97)))
    again = perdure.open(backend).session("s")
    backend.entries = backend.size = 0
    found = again.messages(format="openai.chat", max_tokens=1000)
    assert found.truncated_before
    return len(found), backend.entries, backend.size


def test_a_window_of_a_long_session_reads_as_much_as_one_of_a_short_one() -> None:
    short, long = cost(8_000), cost(20_000)
    assert short[:2] == long[:2]
    assert abs(short[2] - long[2]) < 0.05 * short[2]  # Positions have more digits.
    assert short[1] < 2 * short[0] + 2 * 32


def test_counts_that_are_stored_are_not_made_again() -> None:
    counter = Letters()
    store = perdure.open(MemoryBackend(), tokens=counter)
    session = store.session("s")
    session.append(said("be brief", "system"))
    talked(session, 50)
    counter.asked = 0
    for format in (None, "openai.chat"):
        found = session.messages(format=format, max_tokens=300)
        assert len(found) > 20
    assert counter.asked == 0
    session.messages(max_tokens=300, counter=ESTIMATE)
    assert counter.asked == 0


def test_the_summary_in_force_is_not_counted_again() -> None:
    counter = Letters()
    session = perdure.open(MemoryBackend(), tokens=counter).session("s")
    talked(session, 10)
    session.summarize(lambda _: "they talked")
    counter.asked = 0
    assert len(session.messages(format="openai.chat", max_tokens=300)) == 9
    assert counter.asked == 0


def finished(session: perdure.Session, steps: Any, request: Any) -> Transcript:
    while True:
        try:
            request = steps.send(session._handle.driver.answer(request))
        except StopIteration as end:
            found: Transcript = end.value
            return found


def test_a_window_is_all_of_one_state_while_others_write() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    session.append(said("be brief", "system"))
    talked(session, 10)
    steps = window.read_window(session._replica, WindowRequest(max_messages=21), live=())
    request = next(steps)
    session.summarize(lambda _: "sum")
    assert len(finished(session, steps, request)) == 21
    assert len(session.messages(max_messages=21)) == 10


# Whatever was stored, whatever is allowed.


@settings(max_examples=150, deadline=None)
@drawn(
    seed=st.integers(0, 2**32),  # Drawing all of a history from hypothesis takes too long.
    tokens=st.integers(1, 3000) | st.none(),
    most=st.integers(1, 30) | st.none(),
    format=st.sampled_from(FORMATS),
)
@example(seed=2562, tokens=2568, most=10, format="openai.chat")
def test_any_window_is_valid_and_within_its_budget_and_cut_only_if_need_be(
    seed: int, tokens: int | None, most: int | None, format: str
) -> None:
    source = random.Random(seed)
    session = perdure.open(MemoryBackend()).session("s")
    fill(session, source)
    pinnable = [record.position for record in session.records() if is_plain(record)]
    for position in source.sample(pinnable, min(len(pinnable), source.randint(0, 3))):
        session.pin(position)
    found = given(session, format=format, max_tokens=tokens, max_messages=most)
    if isinstance(found, ContextWindowError):
        assert found.needed > found.given
        assert found.given in (tokens, most)
        return
    assert not found or violations(format, found, system=found.system, strict=False) == []
    if most is not None:
        assert len(found) <= most
    if tokens is not None and format == "openai.chat":
        assert sum(map(ESTIMATE.count, found)) + REPLY_TOKENS <= tokens
    everything = session.messages(format=format)
    if not found.truncated_before:
        assert list(found) == list(everything)
        return
    counted = sum(map(ESTIMATE.count, everything)) + REPLY_TOKENS
    stored = sum(map(ESTIMATE.count, session.messages())) + REPLY_TOKENS
    # Room is kept for the results that calls without one will get.
    stored += sum(MessageCounter.of(session._replica.state, ESTIMATE, 0).notices.values())
    longest = max(len(everything), len(session))
    too_many = most is not None and longest > most
    assert too_many or (tokens is not None and max(counted, stored) > tokens)


def given(session: perdure.Session, **asked: Any) -> Transcript | ContextWindowError:
    try:
        return session.messages(**asked)
    except ContextWindowError as error:
        return error


def fill(session: perdure.Session, source: random.Random) -> None:
    """Store random conversations, damaged ones too, in turns and without."""
    for _ in range(source.randint(1, 5)):
        history = [each.message for each in Drawing(source).history().said]
        accepted = [message for message in history if is_accepted(message)]
        if not accepted:
            continue
        if source.random() < 0.5:
            session.append(*accepted)
            continue
        with session.turn() as turn:
            turn.append(*accepted)


def is_accepted(message: dict[str, Any]) -> bool:
    try:
        parse_messages(message)
    except UsageError:
        return False
    return True


def is_plain(record: perdure.Record) -> bool:
    message = getattr(record.content, "message", {})
    return isinstance(message.get("content"), str) and message.get("role") == "user"
