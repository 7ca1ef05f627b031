"""Streamed answers: durable on the way, whole at the end, and honest about what was cut."""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.core.state.session_state import SessionState
from perdure.errors import ConflictError, UsageError
from perdure.journal.records import Message, MessageChunk
from perdure.sync import stream as stream_module
from perdure.testing import violations
from tests.formats import streams
from tests.formats.streams import one_choice
from tests.formats.transcripts import chat_call
from tests.support import said, store_in_memory

CUT = [
    one_choice(0, {"role": "assistant", "content": "one "}),
    one_choice(0, {"content": "two "}),
    one_choice(0, {"content": "three"}),
]
WHOLE = [*CUT, one_choice(0, {}, finish_reason="stop")]


def kinds(session: perdure.Session) -> list[str]:
    return [record.kind for record in session.records()]


def answers(session: perdure.Session) -> list[tuple[Any, bool]]:
    return [
        (record.content.message["content"], record.content.interrupted)
        for record in session.records()
        if isinstance(record.content, Message) and record.content.message["role"] == "assistant"
    ]


def texts(session: perdure.Session) -> list[Any]:
    found = session.messages(format="openai.chat")
    assert violations("openai.chat", found) == []
    return [message["content"] for message in found]


class DroppedError(Exception):
    """The connection broke."""


def breaking(chunks: list[Any]) -> Iterator[Any]:
    yield from chunks
    raise DroppedError


def enter(turn: perdure.Turn) -> perdure.Turn:
    """Enter a turn as a process does that will die in it."""
    return contextvars.copy_context().run(turn.__enter__)


def died(backend: MemoryBackend, *, chunks: int = 2) -> perdure.Session:
    """Die in the middle of an answer, and return the session as the next process opens it."""
    session = perdure.open(backend).session("s")
    stream = enter(session.turn("go")).stream(iter(WHOLE), flush_every=0)
    for _ in range(chunks):
        next(stream)
    return perdure.open(backend).session("s")


def test_chunks_are_handed_on_and_the_whole_message_is_the_record() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    with session.turn("go") as turn:
        stream = turn.stream(WHOLE, flush_every=0)
        assert list(stream) == WHOLE
        assert stream.messages[0].message["content"] == "one two three"
        assert not turn.is_partial
    assert answers(session) == [("one two three", False)]
    pieces = [record for record in session.records() if isinstance(record.content, MessageChunk)]
    assert len(pieces) == 4
    assert texts(session) == ["go", "one two three"]
    meta = [record.content.meta for record in session.records() if record.kind == "message"]  # type: ignore[attr-defined]
    assert meta[1]["finish_reason"] == "stop"
    session.verify()


class Clock:
    """A clock that goes only when it is told to."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_pieces_come_at_a_bounded_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    clock = Clock()
    monkeypatch.setattr(stream_module, "time", clock)
    many = [one_choice(0, {"content": "x"}) for _ in range(100)]
    with session.turn("go") as turn:
        for _ in turn.stream([*many, WHOLE[-1]], flush_every=0.5):
            clock.now += 0.125
    assert kinds(session).count("message.chunk") == 25
    assert answers(session) == [("x" * 100, False)]


def test_a_short_answer_has_no_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "time", Clock())
    store, _ = store_in_memory()
    session = store.session("s")
    with session.turn("go") as turn:
        list(turn.stream(WHOLE))
    assert kinds(session) == ["turn.begun", "message", "message", "turn.completed"]


def test_who_stops_reading_leaves_what_was_said() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    with session.turn("go") as turn:
        for number, _ in enumerate(turn.stream(WHOLE)):
            if number == 1:
                break
    assert answers(session) == [("one two ", True)]
    assert texts(session) == ["go", "one two "]
    session.verify()


def test_a_stream_that_nobody_read_from_is_told_and_leaves_its_turn_open() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    with pytest.raises(UsageError, match=r"`for chunk in turn\.stream"), session.turn("q") as turn:
        turn.stream(iter(WHOLE))
    (open_turn,) = store.session("s").interrupted
    with open_turn:
        assert [*open_turn.stream(iter(WHOLE))] == WHOLE
        open_turn.stream(iter(WHOLE)).close()  # Whoever wants nothing of it says so.
    assert texts(store.session("s")) == ["q", "one two three"]

    async def scenario() -> None:
        async with perdure.open_async("memory:") as other:
            talk = await other.session("s")
            with pytest.raises(UsageError, match=r"`async for chunk in turn\.stream"):
                async with talk.turn("q") as turn:
                    turn.stream(drawn())

    async def drawn() -> AsyncIterator[Any]:
        for chunk in WHOLE:
            yield chunk

    asyncio.run(scenario())


def test_a_stream_that_breaks_leaves_what_was_said_and_its_error() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    with pytest.raises(DroppedError), session.turn("go") as turn:
        list(turn.stream(breaking(CUT)))
    assert kinds(session)[-1] == "turn.failed"
    assert session.messages(format="openai.chat")[-1]["content"] == "one two three"
    with session.turn("something else"):  # It cannot replace the answer of the failed turn.
        assert answers(session) == [("one two three", True)]


def test_the_answer_of_a_failed_turn_that_is_continued_replaces_the_cut_one() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    with pytest.raises(DroppedError), session.turn("go", id="t") as turn:
        list(turn.stream(breaking(CUT)))
    with store.session("s").turn("go", id="t") as again:
        assert again.is_partial
        list(again.stream(WHOLE))
    session.refresh()
    assert answers(session) == [("one two three", False)]
    assert session.find_turn("t").answer() == session.last_message


def test_what_a_broken_stream_said_is_durable_at_once() -> None:
    store, backend = store_in_memory()
    session = store.session("s")
    turn = enter(session.turn("go"))
    with pytest.raises(DroppedError):
        list(turn.stream(breaking(CUT)))
    (left,) = perdure.open(backend).session("s").interrupted
    assert left.partial_messages()[0].message["content"] == "one two three"


def test_an_end_without_a_finish_is_a_cut() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    with session.turn("go") as turn:
        assert len(list(turn.stream(CUT))) == 3
        assert turn.is_partial
        assert turn.partial_messages()[0].message["content"] == "one two three"
    assert answers(session) == [("one two three", True)]


def test_a_crash_leaves_what_was_durable() -> None:
    again = died(MemoryBackend())
    (turn,) = again.interrupted
    assert turn.is_partial
    assert turn.partial_messages()[0].message["content"] == "one two "
    assert answers(again) == []
    assert texts(again) == ["go", "one two "]


def test_a_turn_that_is_continued_has_the_context_of_the_first_call() -> None:
    again = died(MemoryBackend())
    with again.interrupted[0] as turn:
        assert texts(again) == ["go"]
        list(turn.stream(WHOLE))
        assert texts(again) == ["go", "one two three"]
    assert answers(again) == [("one two three", False)]
    again.verify()


def test_a_turn_that_is_continued_without_an_answer_keeps_the_cut_one() -> None:
    again = died(MemoryBackend())
    with again.interrupted[0]:
        pass
    assert answers(again) == [("one two ", True)]
    again.verify()


def test_the_next_turn_records_what_was_interrupted() -> None:
    again = died(MemoryBackend())
    assert answers(again) == []
    with again.turn("and now?"):
        assert answers(again) == [("one two ", True)]
        assert texts(again) == ["go", "one two ", "and now?"]
    assert not again.interrupted[0].is_partial
    again.verify()


def test_giving_up_records_what_was_interrupted() -> None:
    again = died(MemoryBackend())
    again.interrupted[0].abandon("not wanted")
    assert answers(again) == [("one two ", True)]


def test_another_try_in_the_same_turn_supersedes_the_first() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    with session.turn("go") as turn:
        with pytest.raises(DroppedError):
            list(turn.stream(breaking(CUT), flush_every=0))
        assert turn.is_partial
        list(turn.stream(WHOLE, flush_every=0))
        assert not turn.is_partial
    assert answers(session) == [("one two three", False)]
    session.verify()


def test_of_answers_that_were_cut_one_after_the_other_the_last_stays() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    with session.turn("go") as turn:
        for number in (1, 2):
            list(turn.stream(CUT[:number], flush_every=0))
        assert [one.message["content"] for one in turn.partial_messages()] == ["one two "]
    assert answers(session) == [("one two ", True)]
    session.verify()


def test_an_answer_that_was_not_streamed_supersedes_a_cut_one() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    with session.turn("go") as turn:
        list(turn.stream(CUT))
        turn.append(said("whole", "assistant"))
    assert answers(session) == [("whole", False)]


def test_sources_are_closed() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    closed: list[str] = []

    def source(name: str) -> Iterator[Any]:
        try:
            yield from WHOLE
        finally:
            closed.append(name)

    with session.turn("go") as turn:
        with turn.stream(source("left")) as stream:
            next(stream)
        assert closed == ["left"]
        next(turn.stream(source("forgotten")))
    assert closed == ["left", "forgotten"]


def test_a_stream_ends_once() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    with session.turn("go") as turn:
        stream = turn.stream(WHOLE)
        list(stream)
        stream.close()
        assert list(stream) == []
    assert len(answers(session)) == 1


def test_who_lost_the_turn_can_store_no_pieces() -> None:
    store, backend = store_in_memory()
    session = store.session("s")
    turn = enter(session.turn("go"))
    stream = turn.stream(WHOLE, flush_every=0)
    next(stream)
    other = perdure.open(backend).session("s")
    with other.interrupted[0] as taken:
        with pytest.raises(ConflictError):
            list(stream)
        list(taken.stream(WHOLE, flush_every=0))
    assert answers(other) == [("one two three", False)]
    other.verify()


def test_what_is_no_chunk_is_refused() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    with pytest.raises(UsageError), session.turn("go") as turn:
        list(turn.stream([{"what": "is this?"}]))


ANTHROPIC = [
    {"type": "message_start", "message": {**streams.ANTHROPIC}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    *(
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        for text in ("one ", "two ", "three")
    ),
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]
TEXTS = ["one ", "two ", "three"]
OTHERS: dict[str, tuple[list[Any], Any]] = {
    "texts": (TEXTS, "one two three"),
    "anthropic": (ANTHROPIC, [{"type": "text", "text": "one two three"}]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_texts_and_streams_of_anthropic_are_kept_the_same_way(name: str) -> None:
    chunks, content = OTHERS[name]
    store, backend = store_in_memory()
    session = store.session("s")
    with session.turn("go") as turn:
        assert list(turn.stream(iter(chunks), flush_every=0)) == chunks
        assert not turn.is_partial
    assert answers(session) == [(content, False)]
    assert kinds(session).count("message.chunk") >= 3
    assert [said_by({"content": content}) for content in texts(session)] == ["go", "one two three"]
    again = perdure.open(backend).session("s")
    assert list(again.messages()) == list(session.messages())
    again.verify()


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("end", ["killed", "left", "broken"])
def test_of_such_a_stream_that_was_cut_what_was_said_stays(name: str, end: str) -> None:
    chunks, _ = OTHERS[name]
    cut = chunks[: chunks.index("two ") + 1] if name == "texts" else chunks[:4]
    store, backend = store_in_memory()
    session = store.session("s")
    if end == "killed":
        stream = enter(session.turn("go")).stream(iter(chunks), flush_every=0)
        for _ in cut:
            next(stream)
        session = perdure.open(backend).session("s")
        with session.interrupted[0] as taken:
            (partial,) = taken.partial_messages()
            assert said_by(partial.message) == "one two "
    elif end == "left":
        with session.turn("go") as turn:
            stream = turn.stream(iter(chunks))
            for _ in cut:
                next(stream)
    else:
        with pytest.raises(DroppedError), session.turn("go") as turn:
            list(turn.stream(breaking(cut)))
        with session.turn():  # It can no longer be replaced now, and becomes a message.
            pass
    ((content, interrupted),) = answers(session)
    assert (said_by({"content": content}), interrupted) == ("one two ", True)
    assert texts(session) == ["go", "one two "]


def said_by(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


WRONG: dict[str, tuple[list[Any], Any]] = {
    "texts": (TEXTS[:2], {"content": "three"}),
    "chat": (CUT[:2], "three"),
    "anthropic": (ANTHROPIC[:4], {"type": "content_block_delta", "index": 0, "delta": 5}),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_came_before_nonsense_is_durable_and_reading_may_go_on(name: str) -> None:
    chunks, wrong = WRONG[name]
    store, backend = store_in_memory()
    session = store.session("s")
    turn = enter(session.turn("go"))
    stream = turn.stream(iter([*chunks, wrong, chunks[-1]]), flush_every=60)
    for chunk in chunks:
        assert next(stream) == chunk
    with pytest.raises(UsageError):
        next(stream)
    (partial,) = perdure.open(backend).session("s").interrupted[0].partial_messages()
    assert said_by(partial.message) == "one two "
    assert list(stream) == chunks[-1:]
    assert said_by(stream.messages[0].message) == "one two two "


class Manager:
    """As `client.messages.stream(...)` returns it."""

    def __enter__(self) -> Iterator[str]:
        return iter(TEXTS)

    def __exit__(self, *error: object) -> None:
        pass

    async def __aenter__(self) -> AsyncIterator[str]:
        return texts_in_a_loop()

    async def __aexit__(self, *error: object) -> None:
        pass


async def texts_in_a_loop() -> AsyncIterator[str]:
    for text in TEXTS:
        yield text


async def awaited() -> AsyncIterator[str]:
    return texts_in_a_loop()


def test_a_source_that_is_none_is_refused_with_advice() -> None:
    store, _ = store_in_memory()
    wrong: list[tuple[Any, str]] = [
        (Manager(), "enter it with `with`"),
        (texts_in_a_loop(), "open_async"),
        (awaited(), "open_async"),
        (5, "pass an iterator"),
    ]
    with store.session("s").turn("go") as turn:
        for source, advice in wrong:
            with pytest.raises(UsageError, match=advice):
                turn.stream(source)
        with Manager() as source:
            assert list(turn.stream(source)) == TEXTS


def test_a_source_that_is_none_is_refused_with_advice_in_a_loop() -> None:
    async def main() -> None:
        async with perdure.open_async("memory:") as store:
            session = await store.session("s")
            wrong: list[tuple[Any, str]] = [
                (Manager(), "enter it with `async with`"),
                (iter(TEXTS), "async generator"),
                (awaited(), "await it first"),
                (5, "pass an async one"),
            ]
            async with session.turn("go") as turn:
                for source, advice in wrong:
                    with pytest.raises(UsageError, match=advice):
                        turn.stream(source)
                async with Manager() as source:
                    assert [chunk async for chunk in turn.stream(source)] == TEXTS
            assert await answers_of(session) == [("one two three", False)]

    asyncio.run(main())


def test_async_generators_of_texts_and_of_anthropic_are_streamed() -> None:
    async def main() -> None:
        async with perdure.open_async("memory:") as store:
            session = await store.session("s")
            for chunks, content in OTHERS.values():
                closed: list[str] = []
                async with session.turn("go") as turn:
                    stream = turn.stream(given_by(chunks, closed), flush_every=0)
                    assert [chunk async for chunk in stream] == chunks
                assert (await answers_of(session))[-1] == (content, False)
                async with session.turn("left") as turn:
                    stream = turn.stream(given_by(chunks, closed))
                    while not stream.messages:
                        await anext(stream)
                assert (await answers_of(session))[-1][1]
                assert closed == ["closed", "closed"]
            await session.verify()

    asyncio.run(main())


def test_calls_of_a_stream_of_anthropic_are_made() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    block = {"type": "tool_use", "id": "toolu_1", "name": "pay", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": '{"amount": 5}'}
    events = [
        ANTHROPIC[0],
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        *ANTHROPIC[-3:],
    ]
    with session.turn("go") as turn:
        list(turn.stream(events))
        (told,) = session.run_tool_calls(None, {"pay": lambda amount: f"paid {amount}"})
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "paid 5"}
    assert told == {"role": "user", "content": [result]}


def test_calls_of_a_cut_answer_are_open_for_nobody() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    begun = one_choice(0, {"role": "assistant", "content": None, "tool_calls": [call]})
    with session.turn("go") as turn:
        list(turn.stream([begun]))
    found = session.messages(format="openai.chat")
    assert not found or violations("openai.chat", found) == []
    assert session._replica.state.conversation.calls == {}


def test_what_a_session_knows_of_its_talk_comes_back_from_a_snapshot() -> None:
    store, backend = store_in_memory()
    session = store.session("s")
    session.append(said("be brief", "system"), said("keep this in mind, please"))
    session.pin(2)
    for number in range(6):
        with session.turn(f"a question of some length, number {number}") as turn:
            turn.append(said("yes", "assistant"))
    session.summarize(lambda _: "Sum.")
    open_call = enter(session.turn("call"))
    open_call.append(chat_call("c1"))
    open_call.record_tools([{"type": "function", "function": {"name": "f", "parameters": {}}}])
    streaming = enter(session.turn("stream", id="own")).stream(WHOLE, flush_every=0)
    next(streaming)
    for number in range(300):
        session.note(number)
    again = perdure.open(backend).session("s")
    fold = again._replica.state
    assert fold.conversation == session._replica.state.conversation
    assert fold.facts() == session._replica.state.facts()
    assert fold.conversation.calls
    assert fold.conversation.partials
    assert fold.conversation.summary is not None
    assert (fold.conversation.pins, fold.conversation.systems) == ((2,), (1,))
    assert fold.conversation.tools[1]
    (*_, snapshot) = [record for record in again.records() if record.kind == "snapshot"]
    restored = SessionState.restore(snapshot.content, b"", name="s", position=1)  # type: ignore[arg-type]
    assert restored.conversation == fold.conversation
    assert again.verify().snapshots > 1


# In an event loop.


async def given_by(chunks: list[Any], closed: list[str]) -> AsyncIterator[Any]:
    try:
        for chunk in chunks:
            await asyncio.sleep(0)
            yield chunk
    finally:
        closed.append("closed")


async def answers_of(session: perdure.AsyncSession) -> list[tuple[Any, bool]]:
    return [
        (record.content.message["content"], record.content.interrupted)
        async for record in session.records()
        if isinstance(record.content, Message) and record.content.message["role"] == "assistant"
    ]


def test_an_async_turn_streams_the_same_way() -> None:
    async def main() -> None:
        async with perdure.open_async("memory:") as store:
            session, closed = await store.session("s"), list[str]()
            async with session.turn("whole") as turn:
                stream = turn.stream(given_by(WHOLE, closed), flush_every=0)
                assert [chunk async for chunk in stream] == WHOLE
            async with session.turn("left") as turn:
                async for _ in turn.stream(given_by(WHOLE, closed), flush_every=0):
                    break
            assert await answers_of(session) == [("one two three", False), ("one ", True)]
            assert closed == ["closed", "closed"]
            async with session.turn("again") as turn:
                assert [chunk async for chunk in turn.stream(given_by(CUT, closed))] == CUT
                assert turn.is_partial
                assert (await turn.partial_messages())[0].message["content"] == "one two three"
                assert len([chunk async for chunk in turn.stream(given_by(WHOLE, closed))]) == 4
            assert (await answers_of(session))[2:] == [("one two three", False)]
            await session.verify()

    asyncio.run(main())


def test_a_task_that_is_cancelled_leaves_what_was_said() -> None:
    async def main() -> None:
        async with perdure.open_async("memory:") as store:
            session, reached = await store.session("s"), asyncio.Event()

            async def slow() -> AsyncIterator[Any]:
                yield CUT[0]
                reached.set()
                await asyncio.sleep(60)

            async def work() -> None:
                async with session.turn("go") as turn:
                    async for _ in turn.stream(slow()):
                        pass

            task = asyncio.create_task(work())
            await reached.wait()
            task.cancel()
            await asyncio.wait([task])
            window = await session.messages(format="openai.chat")
            assert window[-1] == {"role": "assistant", "content": "one "}
            async with session.turn("something else"):
                assert await answers_of(session) == [("one ", True)]

    asyncio.run(main())


@pytest.mark.parametrize("seconds", ["x", None, -1, float("nan"), True])
def test_a_flush_interval_that_is_no_duration_is_refused_before_any_chunk_is_read(
    seconds: Any,
) -> None:
    store, _ = store_in_memory()
    chunks = iter(WHOLE)
    with store.session("s").turn("go") as turn:
        with pytest.raises(UsageError, match="flush_every must be a number of seconds"):
            turn.stream(chunks, flush_every=seconds)
        assert list(turn.stream(chunks, flush_every=0)) == WHOLE


FAILED_STREAMS: dict[str, list[dict[str, Any]]] = {
    "responses": [{"type": "error"}],
    "anthropic": [{"type": "error", "error": {"type": "overloaded_error", "message": "no"}}],
    "later": [
        {"type": "response.created", "response": {"id": "r"}},
        {"type": "error", "message": "no"},
    ],
}


@pytest.mark.parametrize("stream", FAILED_STREAMS)
def test_a_stream_that_brings_an_error_and_no_answer_leaves_no_completed_turn(stream: str) -> None:
    session = perdure.open("memory:").session("s")
    chunks = FAILED_STREAMS[stream]
    seen: list[object] = []
    with (
        pytest.raises(UsageError, match="ended without an answer"),
        session.turn("question", id="r1") as turn,
    ):
        seen.extend(turn.stream(chunks))
    assert seen == chunks
    assert session.find_turn("r1").state == "failed"
    with session.turn("question", id="r1") as turn:
        turn.append(said("answer", "assistant"))
    assert session.find_turn("r1").state == "completed"
    assert [message["content"] for message in session.messages()] == ["question", "answer"]
