"""Summaries: what they replace in windows, what is refused, and that nothing is lost by one."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.core import summaries as summaries_module
from perdure.core.history import SUMMARY_HEADING
from perdure.core.plans import Plan
from perdure.core.state.conversation import SUMMARIES_MAX
from perdure.errors import ConflictError, DamagedError, NotFoundError, SummaryError, UsageError
from perdure.events import correlation_id
from perdure.formats.transcript import Transcript
from perdure.journal.records import Summary
from perdure.testing import ModelServer, violations
from tests.formats.transcripts import chat_call, chat_result
from tests.support import said, store_in_memory

LONG = "a question that takes a few words to ask, number "


def talked(session: perdure.Session, turns: int, *, first: int = 0) -> None:
    for number in range(first, first + turns):
        with session.turn(f"{LONG}{number}") as turn:
            turn.append(said(f"answer {number}", "assistant"))


def shown(session: perdure.Session, **asked: Any) -> list[Any]:
    found = session.messages(format="openai.chat", **asked)
    assert violations("openai.chat", found) == []
    return [message["content"] for message in found]


def numbered(first: int, last: int) -> list[str]:
    return [text for n in range(first, last) for text in (f"{LONG}{n}", f"answer {n}")]


def summary(text: str) -> str:
    return SUMMARY_HEADING + text


@pytest.fixture(autouse=True)
def no_correlation() -> None:
    """Forget the correlation id of a turn that a test before may have entered and never left."""
    correlation_id.set("")


@pytest.fixture
def session() -> perdure.Session:
    store, _ = store_in_memory()
    session = store.session("s")
    session.append(said("be brief", "system"))
    talked(session, 8)
    return session


def test_a_summary_stands_for_older_turns_which_stay_stored(session: perdure.Session) -> None:
    given: list[Transcript] = []

    def sum_up(messages: Transcript) -> str:
        given.append(messages)
        return "They talked."

    made = session.summarize(sum_up, keep_turns=3)
    assert [message["content"] for message in given[0]] == numbered(0, 5)
    assert shown(session) == ["be brief", summary("They talked."), *numbered(5, 8)]
    assert len(session.messages()) == len(session) == 17
    (record,) = [record for record in session.records() if record.kind == "summary"]
    assert record.content == made
    by_position = {record.position: record for record in session.records()}
    assert by_position[made.last].content.message["content"] == "answer 4"  # type: ignore[attr-defined]
    assert (made.first, made.previous, made.counter) == (1, 0, "estimate")
    session.verify()


def test_the_next_summary_takes_the_one_in_force_in(session: perdure.Session) -> None:
    first = session.summarize(lambda _: "First.", keep_turns=3)
    at = session.position
    given: list[Any] = []

    def sum_up(messages: Transcript) -> str:
        given.extend(message["content"] for message in messages)
        return "Second."

    made = session.summarize(sum_up, keep_turns=1)
    assert given == [summary("First."), *numbered(5, 7)]
    assert made.previous == at
    assert made.first > first.last
    assert shown(session) == ["be brief", summary("Second."), *numbered(7, 8)]


def test_undoing_goes_back_step_by_step(session: perdure.Session) -> None:
    before = shown(session)
    session.summarize(lambda _: "First.", keep_turns=3)
    between = shown(session)
    session.summarize(lambda _: "Second.", keep_turns=1)
    session.undo_summary()
    assert shown(session) == between
    session.undo_summary()
    assert shown(session) == before
    with pytest.raises(NotFoundError, match="an active summary"):
        session.undo_summary()
    session.summarize(lambda _: "Again.", keep_turns=3)
    assert summary("Again.") in shown(session)
    session.verify()


def test_another_handle_and_a_later_process_see_the_same(session: perdure.Session) -> None:
    session.summarize(lambda _: "They talked.")
    backend = session._handle.driver._backend
    again = perdure.open(backend).session("s")
    assert shown(again) == shown(session)
    for number in range(300):  # A snapshot of the fold comes between.
        again.note(number)
    assert shown(perdure.open(backend).session("s")) == shown(session)
    again.undo_summary()
    session.refresh()
    assert shown(session) == ["be brief", *numbered(0, 8)]
    assert again.verify().snapshots > 1


def test_a_branch_has_the_summaries_of_the_past_that_it_shares(session: perdure.Session) -> None:
    before = session.position
    session.summarize(lambda _: "They talked.")
    assert shown(session.branch("with")) == shown(session)
    assert shown(session.branch("without", at=before)) == ["be brief", *numbered(0, 8)]


def test_pinned_messages_and_instructions_stay_beside_a_summary(session: perdure.Session) -> None:
    session.pin(3)
    given: list[Transcript] = []

    def sum_up(messages: Transcript) -> str:
        given.append(messages)
        return "Sum."

    session.summarize(sum_up, keep_turns=2)
    assert shown(session) == ["be brief", f"{LONG}0", summary("Sum."), *numbered(6, 8)]
    assert said("be brief", "system") not in given[0]
    assert given[0][0] == said(f"{LONG}0")  # So that unpinning it loses nothing.


def test_calls_are_not_torn_from_their_results() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    for number in range(5):
        call, result = chat_call(f"c{number}"), chat_result(f"c{number}", "x" * 200)
        session.append(said("go"), call, result, said("done", "assistant"))
    given: list[Transcript] = []

    def sum_up(messages: Transcript) -> str:
        given.append(messages)
        return "They did things."

    session.summarize(sum_up, keep_turns=2)
    assert len(given[0]) == 12
    assert violations("openai.chat", given[0]) == []
    assert len(shown(session)) == 9


def test_a_turn_that_is_going_on_is_not_summed_up(session: perdure.Session) -> None:
    with session.turn("an early question") as early:
        talked(session, 6, first=8)
        session.summarize(lambda _: "Sum.", keep_turns=1)
        assert shown(session)[:3] == ["be brief", summary("Sum."), "an early question"]
        early.append(said("its answer", "assistant"))
    assert "its answer" in shown(session)


# What is refused.


def hang(_: Transcript) -> str:
    time.sleep(60)
    return "too late"


def fail(_: Transcript) -> str:
    raise RuntimeError("no model, and the customer's number is 7")


def stop(_: Transcript) -> str:
    raise SystemExit(3)


BAD: list[tuple[Callable[[Transcript], Any], dict[str, Any], str]] = [
    (lambda _: "", {}, "the text is empty"),
    (lambda _: " \n\t", {}, "the text is empty"),
    (lambda _: None, {}, "must be a str, not NoneType"),
    (lambda _: b"sum", {}, "must be a str, not bytes"),
    (lambda _: ["sum"], {}, "must be a str, not list"),
    (lambda _: "long " * 2000, {}, "is what it would replace"),
    (lambda _: "a few words " * 5, {"max_tokens": 20}, "and 20 are allowed"),
    (lambda _: "lone \ud800", {}, "it cannot be stored"),
    (fail, {}, "raised RuntimeError"),
    (stop, {}, "raised SystemExit"),
    (hang, {"timeout": 0.05}, "longer than 0.05 seconds"),
    (lambda _: "sum", {"keep_turns": 8}, "nothing to summarize"),
]
NAMES = [f"{number} {reason}" for number, (_, _, reason) in enumerate(BAD)]


@pytest.mark.parametrize(("with_", "asked", "reason"), BAD, ids=NAMES)
def test_a_bad_summary_is_refused_and_the_view_is_as_it_was(
    session: perdure.Session, with_: Callable[[Transcript], Any], asked: dict[str, Any], reason: str
) -> None:
    before, position = shown(session), session.position
    started = time.monotonic()
    with pytest.raises(SummaryError) as caught:
        session.summarize(with_, **asked)
    assert time.monotonic() - started < 40
    assert reason in str(caught.value)
    assert "number" not in str(caught.value)  # What the conversation says is not for logs.
    assert (shown(session), session.position) == (before, position)
    assert session.summarize(lambda _: "sum").text == "sum"


@pytest.mark.parametrize(("with_", "asked", "reason"), BAD, ids=NAMES)
def test_a_bad_summary_is_refused_in_an_event_loop_too(
    with_: Callable[[Transcript], Any], asked: dict[str, Any], reason: str
) -> None:
    async def main() -> None:
        async with perdure.open_async("memory:") as store:
            session = await talked_async(store)
            position = session.position
            with pytest.raises(SummaryError) as caught:
                await session.summarize(with_, **asked)
            assert reason in str(caught.value)
            assert session.position == position

    asyncio.run(main())


def test_the_cause_of_a_failure_is_kept(session: perdure.Session) -> None:
    with pytest.raises(SummaryError) as caught:
        session.summarize(fail)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_an_empty_session_has_nothing_to_sum_up() -> None:
    store, _ = store_in_memory()
    with pytest.raises(SummaryError, match="nothing to summarize"):
        store.session("s").summarize(lambda _: "sum", keep_turns=1)


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    ("a text", {}, "a function or an OpenAI client, not a str"),
    (None, {}, "not a NoneType"),
    (openai.OpenAI(api_key="test"), {}, "a client needs a model"),
    (len, {"model": "m"}, "`model` is for clients"),
    (len, {"keep_turns": 0}, "keep_turns must be 1 or more"),
    (len, {"keep_turns": "4"}, "keep_turns must be int"),
    (len, {"max_tokens": 0}, "max_tokens must be 1 or more"),
    (len, {"timeout": 0}, "timeout must be more than 0"),
]


@pytest.mark.parametrize(("with_", "asked", "reason"), WRONG, ids=[row[2] for row in WRONG])
def test_what_can_make_no_summary_is_told_at_once(
    session: perdure.Session, with_: Any, asked: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        session.summarize(with_, **asked)
    with pytest.raises(UsageError, match=reason):
        session.summarize_in_background(with_, **asked)
    with pytest.raises(UsageError, match=reason):
        session.messages(max_tokens=100, summarize=perdure.Summarizer(with_, **asked))


def test_only_a_window_can_overflow(session: perdure.Session) -> None:
    for asked in ({}, {"format": "openai.chat"}, {"last": 3}):
        with pytest.raises(UsageError, match="pass max_tokens or max_messages"):
            session.messages(summarize=len, **asked)


def test_an_async_function_needs_an_event_loop(session: perdure.Session) -> None:
    async def sum_up(_: Transcript) -> str:
        return "sum"

    with pytest.raises(UsageError, match="needs open_async"):
        session.summarize(sum_up)


def test_undoing_ends_where_the_fold_ends() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    for number in range(SUMMARIES_MAX + 2):
        talked(session, 2, first=2 * number)
        session.summarize(lambda _: "Sum.", keep_turns=1)
    for _ in range(SUMMARIES_MAX - 1):
        session.undo_summary()
    before = shown(session)
    with pytest.raises(NotFoundError, match="at most 64"):
        session.undo_summary()
    assert shown(session) == before


# Together with others.


def test_turns_go_on_while_a_summary_is_made(session: perdure.Session) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def sum_up(_: Transcript) -> str:
        begun.set()
        assert go_on.wait(60)
        return "Sum."

    future = session.summarize_in_background(sum_up, keep_turns=2)
    assert begun.wait(60)
    talked(session, 2, first=8)
    other = perdure.open(session._handle.driver._backend).session("s")
    talked(other, 1, first=10)
    assert not future.done()
    go_on.set()
    assert future.result(60).text == "Sum."
    assert shown(session) == ["be brief", summary("Sum."), *numbered(6, 11)]
    session.verify()


def test_the_first_of_two_summaries_wins(session: perdure.Session) -> None:
    other = perdure.open(session._handle.driver._backend).session("s")

    def sum_up(_: Transcript) -> str:
        other.summarize(lambda _: "Theirs.")
        return "Mine."

    def undo(_: Transcript) -> str:
        session.undo_summary()
        return "Mine."

    with pytest.raises(ConflictError, match="summary record came first"):
        session.summarize(sum_up)
    assert summary("Theirs.") in shown(session)
    with pytest.raises(ConflictError, match="another summary came first"):
        session.summarize(undo, keep_turns=1)
    assert shown(session) == ["be brief", *numbered(0, 8)]


def test_closing_waits_for_a_summary_in_the_background(session: perdure.Session) -> None:
    future = session.summarize_in_background(slow)
    session.close()
    assert future.done()
    assert future.result().text == "Sum."
    with pytest.raises(UsageError, match="closed"):
        session.summarize_in_background(slow)


def slow(_: Transcript) -> str:
    time.sleep(0.2)
    return "Sum."


def test_closing_the_store_waits_too(tmp_path: Any) -> None:
    with perdure.open(tmp_path / "agents.db") as store:
        session = store.session("s")
        talked(session, 8)
        future = session.summarize_in_background(slow)
    assert future.result(0).text == "Sum."
    with perdure.open(tmp_path / "agents.db") as store:
        assert summary("Sum.") in shown(store.session("s"))


def test_closing_does_not_wait_for_what_hangs(session: perdure.Session) -> None:
    future = session.summarize_in_background(hang, timeout=0.1)
    started = time.monotonic()
    session.close()
    assert time.monotonic() - started < 40
    assert isinstance(future.exception(0), SummaryError)


def test_a_refusal_in_the_background_is_told_of(
    session: perdure.Session, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SummaryError):
        session.summarize_in_background(lambda _: "").result(60)
    (told,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert told.getMessage() == ("summary_failed store=memory: session=s reason=the text is empty")


def test_summaries_are_events(session: perdure.Session, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "perdure")
    made = session.summarize(lambda _: "Sum.")
    with pytest.raises(SummaryError):
        session.summarize(lambda _: "", keep_turns=1)
    found = [vars(record) for record in caplog.records if vars(record)["event"] == "summary"]
    assert [(each["outcome"], each["first"]) for each in found] == [
        ("ok", made.first),
        ("SummaryError", made.last + 3),  # The end of a turn and a beginning are between.
    ]
    assert (found[0]["last"], found[0]["tokens"]) == (made.last, made.tokens)
    assert "Sum." not in caplog.text


# When a window overflows.


def test_a_window_that_would_be_cut_is_summed_up_first(session: perdure.Session) -> None:
    calls: list[int] = []

    def sum_up(messages: Transcript) -> str:
        calls.append(len(messages))
        return "Sum."

    everything = session.messages(format="openai.chat", max_tokens=5000, summarize=sum_up)
    assert (calls, len(everything)) == ([], 17)
    found = session.messages(format="openai.chat", max_tokens=300, summarize=sum_up)
    assert len(calls) == 1
    assert found.truncated_before == 0
    assert (found.tokens or 0) <= 300
    assert found[1]["content"] == summary("Sum.")
    again = session.messages(format="openai.chat", max_tokens=300, summarize=sum_up)
    assert (again, len(calls)) == (found, 1)


@pytest.mark.parametrize("budget", [120, 150, 200, 300])
def test_as_few_turns_stay_as_leave_room_for_the_summary(
    session: perdure.Session, budget: int
) -> None:
    found = session.messages(format="openai.chat", max_tokens=budget, summarize=lambda _: "Sum.")
    assert (found.truncated_before, found[1]["content"]) == (0, summary("Sum."))
    assert found[-1]["content"] == "answer 7"


def test_in_a_long_conversation_nothing_is_ever_left_out_without_a_summary() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    known: set[str] = set()

    def sum_up(messages: Transcript) -> str:
        known.update(message["content"] for message in messages if message["role"] == "user")
        return "They talked about numbers."

    for number in range(60):
        with session.turn(f"{LONG}{number}") as turn:
            found = session.messages(
                format="openai.chat",
                max_tokens=300,
                summarize=perdure.Summarizer(sum_up, keep_turns=2),
            )
            assert found.truncated_before == 0
            assert violations("openai.chat", found) == []
            in_view = known | {message["content"] for message in found}
            assert {f"{LONG}{n}" for n in range(number + 1)} <= in_view
            turn.append(said(f"answer {number}", "assistant"))
    summaries = [record for record in session.records() if record.kind == "summary"]
    assert 5 < len(summaries) < 40
    session.verify()


def test_messages_can_be_what_overflows(session: perdure.Session) -> None:
    found = session.messages(max_messages=10, summarize=lambda _: "Sum.")
    assert found.truncated_before == 0
    assert len(found) <= 10
    assert found[1]["content"] == summary("Sum.")


@pytest.mark.parametrize(
    "with_", [fail, lambda _: "", lambda _: "words " * 40], ids=["fails", "empty", "long"]
)
def test_a_window_without_its_summary_is_as_without_asking(
    session: perdure.Session, with_: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plain = session.messages(format="openai.chat", max_tokens=200)
    position = session.position
    found = session.messages(format="openai.chat", max_tokens=200, summarize=with_)
    assert (found, found.truncated_before, session.position) == (
        plain,
        plain.truncated_before,
        position,
    )
    assert found.truncated_before
    (told,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert vars(told)["event"] == "summary_failed"


def test_somebody_elses_summary_will_do(session: perdure.Session) -> None:
    other = perdure.open(session._handle.driver._backend).session("s")

    def sum_up(_: Transcript) -> str:
        other.summarize(lambda _: "Theirs.", keep_turns=1)
        return "Mine."

    found = session.messages(format="openai.chat", max_tokens=300, summarize=sum_up)
    assert found[1]["content"] == summary("Theirs.")


# With a client.


def test_a_client_makes_summaries(session: perdure.Session) -> None:
    with ModelServer() as server, openai.OpenAI(base_url=server.url, api_key="test") as client:
        made = session.summarize(client, model="gpt-4o-mini", max_tokens=4000)
        (request,) = server.requests
    assert made.text
    assert made.meta["model"].startswith("gpt-4o-mini")
    assert made.meta["usage"]["total_tokens"] > 0
    body = request.body
    assert body["messages"][0]["content"] == summaries_module.INSTRUCTION
    assert body["messages"][1:-1] == [
        {"role": role, "content": text}
        for role, text in zip(["user", "assistant"] * 4, numbered(0, 4), strict=True)
    ]
    assert "at most 4000 tokens" in body["messages"][-1]["content"]
    assert summary(made.text) in shown(session)


def test_a_client_that_fails_leaves_all_as_it_was(session: perdure.Session) -> None:
    with (
        openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="test", max_retries=0) as client,
        pytest.raises(SummaryError, match="raised APIConnectionError"),
    ):
        session.summarize(client, model="gpt-4o-mini")


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ({"finish_reason": "length", "message": {"content": "cut o"}}, "cut off at its limit"),
        ({"message": {"content": None, "refusal": "I can not."}}, "the model refused"),
        ({"message": {"content": None}}, "must be a str, not NoneType"),
        ({"delta": {"content": "a"}}, "did not return a chat completion"),
    ],
)
def test_what_a_model_did_not_finish_is_no_summary(
    session: perdure.Session, choice: dict[str, Any], reason: str
) -> None:
    class Client:
        """A client in OpenAI's manner."""

        chat: Any

        def create(self, **_: Any) -> dict[str, Any]:
            return {"object": "chat.completion", "choices": [choice]}

    client = Client()
    client.chat = Client()
    client.chat.completions = client
    with pytest.raises(SummaryError, match=reason):
        session.summarize(client, model="m")


# In an event loop.


async def talked_async(store: perdure.AsyncStore) -> perdure.AsyncSession:
    session = await store.session("s")
    await session.append(said("be brief", "system"))
    for number in range(8):
        async with session.turn(f"{LONG}{number}") as turn:
            await turn.append(said(f"answer {number}", "assistant"))
    return session


async def in_background(session: perdure.AsyncSession) -> None:
    go_on = asyncio.Event()

    async def sum_up(_: Transcript) -> str:
        await go_on.wait()
        return "Second."

    task = session.summarize_in_background(sum_up, keep_turns=2)
    await asyncio.sleep(0.01)
    async with session.turn("meanwhile"):
        assert not task.done()
    go_on.set()
    assert (await task).text == "Second."
    found = await session.messages(format="openai.chat")
    assert [message["content"] for message in found][-1] == "meanwhile"
    await session.undo_summary()


def test_an_async_session_does_the_same() -> None:
    async def main() -> None:
        async with perdure.open_async("memory:") as store:
            session = await talked_async(store)

            async def sum_up(messages: Transcript) -> str:
                await asyncio.sleep(0)
                return f"{len(messages)} messages."

            assert (await session.summarize(sum_up)).text == "8 messages."
            await in_background(session)
            await session.undo_summary()
            assert (await session.summarize(lambda messages: f"{len(messages)}.")).text == "10."
            await session.undo_summary()
            found = await session.messages(max_tokens=300, summarize=sum_up)
            assert found[1]["content"].startswith(SUMMARY_HEADING)
            refused = await session.messages(max_tokens=130, summarize=lambda _: "")
            assert refused.truncated_before
            await session.verify()

    asyncio.run(main())


def test_an_async_client_and_a_plain_one_both_serve_in_a_loop() -> None:
    async def main(url: str) -> None:
        async with perdure.open_async("memory:") as store:
            session = await talked_async(store)
            async with openai.AsyncOpenAI(base_url=url, api_key="test") as client:
                made = await session.summarize(client, model="gpt-4o-mini")
            assert made.meta["usage"]
            with openai.OpenAI(base_url=url, api_key="test") as plain:
                again = await session.summarize(plain, model="gpt-4o-mini", keep_turns=1)
            assert again.previous

    with ModelServer() as server:
        asyncio.run(main(server.url))


def test_closing_an_async_session_waits_and_a_task_can_be_cancelled() -> None:
    async def sum_up(_: Transcript) -> str:
        await asyncio.sleep(0.1)
        return "Sum."

    async def main() -> None:
        store = perdure.open_async("memory:")
        session = await talked_async(store)
        cancelled = session.summarize_in_background(sum_up)
        await asyncio.sleep(0)
        cancelled.cancel()
        task = session.summarize_in_background(sum_up)
        await session.close()
        assert cancelled.cancelled()
        assert task.done()
        assert (await task).text == "Sum."
        await store.close()

    asyncio.run(main())


# For auditors.


@pytest.mark.parametrize(("changed", "value"), [("last", 10**6), ("first", 0), ("first", 10**5)])
def test_a_summary_of_messages_that_are_not_before_it_is_found_out(
    session: perdure.Session, changed: str, value: Any
) -> None:
    session.verify()
    good = session.summarize(lambda _: "Sum.")
    session.verify()
    session.undo_summary()
    fields = {name: getattr(good, name) for name in Summary.__struct_fields__}
    forged = Summary(**{**fields, changed: value})
    forgery = Plan("summary", "", lambda batch: batch.add_content(".forged", forged))
    session._handle.write(forgery)
    with pytest.raises(DamagedError, match="which it does not follow"):
        session.verify()


def test_a_store_of_ones_own_counter_counts_summaries_with_it() -> None:
    class Words:
        name = "words"

        def count(self, message: Any) -> int:
            return len(str(message["content"]).split())

    session = perdure.open(MemoryBackend(), tokens=Words()).session("s")
    talked(session, 8)
    made = session.summarize(lambda _: "one two three")
    assert (made.tokens, made.counter) == (9, "words")
