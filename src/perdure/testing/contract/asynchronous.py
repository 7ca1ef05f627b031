"""The contract suite of `AsyncBackend`: the protocol in short, cancellation and interleaving.

It needs no pytest plugin: each test runs its own event loop.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from perdure.backends.fields import FieldOrder
from perdure.backends.protocol import (
    CHECK,
    ORDER,
    RECENT,
    WATCH,
    Append,
    AsyncBackend,
    Entry,
    require_check,
    require_order,
    require_recent,
    require_watch,
)
from perdure.errors import UsageError
from perdure.testing.contract.samples import (
    HOSTILE_BYTES,
    SIMILAR_TEXTS,
    append_of,
    digest,
    entries,
    entry,
    skip_unless_declared,
    start_of,
)

OpenAsyncBackend = Callable[[], AsyncBackend]


def _in_event_loop(
    test: Callable[[Any, AsyncBackend], Coroutine[Any, Any, None]],
) -> Callable[[Any, OpenAsyncBackend], None]:
    """Run an async test in an event loop of its own, with an open store, and close the store."""

    async def run_and_close(self: Any, backend: AsyncBackend) -> None:
        try:
            await test(self, backend)
        finally:
            await backend.close()

    # Not `functools.wraps`: pytest would take the fixtures from the signature of the async test.
    return lambda self, open_backend: asyncio.run(run_and_close(self, open_backend()))


class AsyncBackendContract:
    """Passes for an async store that satisfies `AsyncBackend`.

    It covers what is specific to an event loop. The rest of the protocol is covered by
    `BackendContract`, run against the sync counterpart or against the store through a portal.
    """

    @pytest.fixture
    def open_backend(self) -> OpenAsyncBackend:
        """Return a function that opens the same store on every call; it is empty at first."""
        message = "override the fixture `open_backend`"
        raise NotImplementedError(message)

    @_in_event_loop
    async def test_appended_entries_are_read_back_and_listed(self, backend: AsyncBackend) -> None:
        outcomes = await backend.append([append_of("s", 1, 3, "l"), append_of("t", 1, 1)])
        assert [outcome.status for outcome in outcomes] == ["stored", "stored"]
        assert await _read(backend, "s") == entries(1, 3)
        backwards = [entry async for entry in backend.read("s", reverse=True, limit=2)]
        assert backwards == [entry(3), entry(2)]
        assert [head.stream async for head in backend.streams(labels=["l"])] == ["s"]
        assert [head.stream async for head in backend.streams(without=["l"])] == ["t"]
        await backend.drop("s", before=3)
        assert await _read(backend, "s") == entries(3, 3)
        (outcome,) = await backend.append([append_of("s", 3, 3, mark="other")])
        assert outcome.status == "conflict"

    @_in_event_loop
    async def test_resends_are_stored_and_only_the_first_append_begins_a_stream(
        self, backend: AsyncBackend
    ) -> None:
        async def status(append: Append) -> str:
            (outcome,) = await backend.append([append])
            return outcome.status

        assert await status(append_of("s", 3, 3)) == "refused"
        assert await status(append_of("s", 1, 2)) == "stored"
        assert await status(start_of("s", 3, 3)) == "conflict"
        assert await status(start_of("s", 9, 9)) == "conflict"
        assert await status(Append("s", [entry(1), entry(2, "other")])) == "conflict"
        assert await status(append_of("s", 1, 3)) == "stored"
        assert await status(append_of("s", 5, 5)) == "refused"
        stale = append_of("s", 4, 4)._replace(previous=digest(entry(3, "another past")))
        assert await status(stale) == "conflict"
        assert await _read(backend, "s") == entries(1, 3)
        for _ in range(2):
            assert await status(start_of("branch", 41, 42)) == "stored"
        assert await _read(backend, "branch") == entries(41, 42)

    @_in_event_loop
    async def test_any_bytes_and_names_are_returned_unchanged(self, backend: AsyncBackend) -> None:
        stored = [Entry(at, data, data) for at, data in enumerate(HOSTILE_BYTES, 1)]
        await backend.append([Append("bytes", stored)])
        assert await _read(backend, "bytes") == stored
        await backend.append([append_of(name, 1, 1, name) for name in SIMILAR_TEXTS])
        for text in SIMILAR_TEXTS:
            expected = sorted(name for name in SIMILAR_TEXTS if name.startswith(text))
            assert [head.stream async for head in backend.streams(prefix=text)] == expected
            assert [head.stream async for head in backend.streams(labels=[text])] == [text]

    @_in_event_loop
    async def test_the_stream_with_the_latest_append_comes_first(
        self, backend: AsyncBackend
    ) -> None:
        skip_unless_declared(backend, RECENT)
        await backend.append([append_of("a", 1, 1, "l")])
        await backend.append([append_of("b", 1, 1)])
        await backend.append([append_of("a", 2, 2, "l")])
        recency = require_recent(backend)
        assert [head.stream async for head in recency.recent()] == ["a", "b"]
        assert [head.stream async for head in recency.recent(prefix="b")] == ["b"]
        assert [head.stream async for head in recency.recent(labels=["l"], limit=1)] == ["a"]
        assert [head.stream async for head in recency.recent(without=["l"])] == ["b"]

    @_in_event_loop
    async def test_streams_are_in_the_order_of_a_fields_values(self, backend: AsyncBackend) -> None:
        skip_unless_declared(backend, ORDER)
        for name, value in (("a", "n\t2"), ("b", "n\t1"), ("c", "n\t3")):
            await backend.append([append_of(name, 1, 1, value, "l")])
        await backend.append([append_of("a", 2, 2, "n\t4")])
        ordered = require_order(backend).ordered
        assert [head.stream async for head in ordered(FieldOrder("n"))] == ["b", "c", "a"]
        down = FieldOrder("n", "2", reverse=True, after=("4", "a"))
        assert [head.stream async for head in ordered(down, labels=["l"])] == ["c"]
        heads = backend.streams(labels=["n\t1", "l"])
        assert [head.stream async for head in heads] == ["b"]

    @_in_event_loop
    async def test_a_store_that_is_intact_has_no_problems(self, backend: AsyncBackend) -> None:
        skip_unless_declared(backend, CHECK)
        await backend.append([append_of("a", 1, 2, "l"), append_of("b", 1, 1)])
        assert [problem async for problem in require_check(backend).check(deep=True)] == []

    @_in_event_loop
    async def test_watch_ends_by_an_append_a_timeout_or_cancellation(
        self, backend: AsyncBackend
    ) -> None:
        skip_unless_declared(backend, WATCH)
        watch = require_watch(backend).watch
        assert await watch("s", after=0, timeout=0) is False
        assert await watch("s", after=0, timeout=0.05) is False
        waiting = [asyncio.create_task(watch("s", after=0)) for _ in range(5)]
        other = asyncio.create_task(watch("other", after=0, timeout=0.5))
        await asyncio.sleep(0.05)
        waiting[0].cancel()
        await backend.append([append_of("s", 1, 1)])
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(answers[0], asyncio.CancelledError)
        assert answers[1:] == [True] * 4
        assert await watch("s", after=0) is True
        assert await other is False

    @_in_event_loop
    async def test_closing_the_store_ends_every_wait(self, backend: AsyncBackend) -> None:
        skip_unless_declared(backend, WATCH)
        waiting = asyncio.create_task(require_watch(backend).watch("s", after=0))
        await asyncio.sleep(0.05)
        await backend.close()
        async with asyncio.timeout(60):
            with pytest.raises(UsageError, match="closed"):
                await waiting

    @_in_event_loop
    async def test_a_long_stream_is_read_completely(self, backend: AsyncBackend) -> None:
        await backend.append([append_of("s", 1, 1500)])
        assert await _read(backend, "s") == entries(1, 1500)

    @_in_event_loop
    async def test_errors_are_raised_in_the_awaiting_task(self, backend: AsyncBackend) -> None:
        with pytest.raises(UsageError):
            await backend.append([append_of("s", 1, 1), append_of("s", 2, 2)])
        (outcome,) = await backend.append([append_of("s", 1, 1)])
        assert outcome.status == "stored"

    @_in_event_loop
    async def test_exactly_one_of_many_tasks_stores_each_position(
        self, backend: AsyncBackend
    ) -> None:
        last: list[Entry] = []
        for position in range(1, 6):
            previous = digest(last[0]) if last else ""
            racers = [Append("s", [entry(position, str(n))], previous=previous) for n in range(16)]
            answers = await asyncio.gather(*(backend.append([racer]) for racer in racers))
            stored = [n for n, (answer,) in enumerate(answers) if answer.status == "stored"]
            assert len(stored) == 1
            last = [entry async for entry in backend.read("s", reverse=True, limit=1)]
            assert last == [entry(position, str(stored[0]))]

    @_in_event_loop
    async def test_readers_and_writers_interleave(self, backend: AsyncBackend) -> None:
        await backend.append([append_of("s", 1, 300)])
        seen = 0
        async for stored in backend.read("s"):
            seen += 1
            assert stored.position == seen
            if seen in {1, 150}:
                await backend.append([append_of(f"during {seen}", 1, 1)])
        assert seen == 300
        assert await _read(backend, "during 150") == entries(1, 1)

    @_in_event_loop
    async def test_a_read_after_a_cancelled_append_shows_whether_it_happened(
        self, backend: AsyncBackend
    ) -> None:
        position = 0
        for number in range(40):
            append = append_of("s", position + 1, position + 1)
            task = asyncio.ensure_future(backend.append([append]))
            await asyncio.sleep(0.0001 * (number % 8))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            stored = await _read(backend, "s")
            assert stored == entries(1, len(stored))
            assert len(stored) in {position, position + 1}
            assert await _read(backend, "s") == stored, "a cancelled append happened later"
            position = len(stored)

    @_in_event_loop
    async def test_an_abandoned_reader_does_no_harm(self, backend: AsyncBackend) -> None:
        await backend.append([append_of("s", 1, 600)])
        for _ in range(5):
            async for stored in backend.read("s"):
                assert stored.position == 1
                break
        assert await _read(backend, "s") == entries(1, 600)

    @_in_event_loop
    async def test_closing_twice_is_harmless_and_a_closed_store_refuses_calls(
        self, backend: AsyncBackend
    ) -> None:
        await backend.append([append_of("s", 1, 1)])
        await backend.close()
        await backend.close()
        with pytest.raises(UsageError, match="closed"):
            await backend.append([append_of("s", 2, 2)])
        with pytest.raises(UsageError, match="closed"):
            await _read(backend, "s")


async def _read(backend: AsyncBackend, stream: str) -> list[Any]:
    return [entry async for entry in backend.read(stream)]
