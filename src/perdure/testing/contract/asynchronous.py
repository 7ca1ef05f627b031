"""What every AsyncBackend must keep beyond the words of the protocol: cancelling, interleaving.

Needs no plugin: each test runs an event loop of its own.
"""

# ruff: noqa: S101, PLR2004 - these are tests, though they are shipped.
import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from perdure.backends.protocol import (
    RECENT,
    WATCH,
    Append,
    AsyncBackend,
    Entry,
    require_recent,
    require_watch,
)
from perdure.errors import UsageError
from perdure.testing.contract.samples import ALIKE, HOSTILE_BYTES, appended, begun, entries, entry

OpenAsyncBackend = Callable[[], AsyncBackend]

Scenario = Callable[[AsyncBackend], Coroutine[Any, Any, None]]

Run = Callable[[Scenario], None]


class AsyncBackendContract:
    """Passes for an async store whose blocking twin, or itself through a portal, keeps the rest."""

    @pytest.fixture
    def open_backend(self) -> OpenAsyncBackend:
        """Return a function that opens the same, at first empty, store each time it is called."""
        message = "override the fixture `open_backend`"
        raise NotImplementedError(message)

    @pytest.fixture
    def run(self, open_backend: OpenAsyncBackend) -> Run:
        """Run a scenario with an open store, and close it."""

        async def scene(scenario: Scenario) -> None:
            backend = open_backend()
            try:
                await scenario(backend)
            finally:
                await backend.close()

        return lambda scenario: asyncio.run(scene(scenario))

    def test_what_was_appended_is_read_back_and_listed(self, run: Run) -> None:
        async def scenario(backend: AsyncBackend) -> None:
            outcomes = await backend.append([appended("s", 1, 3, "l"), appended("t", 1, 1)])
            assert [outcome.status for outcome in outcomes] == ["stored", "stored"]
            assert await _read(backend, "s") == entries(1, 3)
            backwards = [one async for one in backend.read("s", reverse=True, limit=2)]
            assert backwards == [entry(3), entry(2)]
            assert [head.stream async for head in backend.streams(labels=["l"])] == ["s"]
            assert [head.stream async for head in backend.streams(without=["l"])] == ["t"]
            await backend.drop("s", before=3)
            assert await _read(backend, "s") == entries(3, 3)
            (outcome,) = await backend.append([appended("s", 3, 3, mark="other")])
            assert outcome.status == "conflict"

        run(scenario)

    def test_what_is_sent_again_is_stored_and_a_beginning_is_the_first(self, run: Run) -> None:
        async def scenario(backend: AsyncBackend) -> None:
            async def told(append: Append) -> str:
                (outcome,) = await backend.append([append])
                return outcome.status

            assert await told(appended("s", 3, 3)) == "refused"
            assert await told(appended("s", 1, 2)) == "stored"
            assert await told(begun("s", 3, 3)) == "conflict"
            assert await told(begun("s", 9, 9)) == "conflict"
            assert await told(Append("s", [entry(1), entry(2, "other")])) == "conflict"
            assert await told(appended("s", 1, 3)) == "stored"
            assert await told(appended("s", 5, 5)) == "refused"
            assert await _read(backend, "s") == entries(1, 3)
            for _ in range(2):
                assert await told(begun("branch", 41, 42)) == "stored"
            assert await _read(backend, "branch") == entries(41, 42)

        run(scenario)

    def test_any_bytes_and_names_come_back_as_they_were(self, run: Run) -> None:
        async def scenario(backend: AsyncBackend) -> None:
            stored = [Entry(at, data, data) for at, data in enumerate(HOSTILE_BYTES, 1)]
            await backend.append([Append("bytes", stored)])
            assert await _read(backend, "bytes") == stored
            await backend.append([appended(name, 1, 1, name) for name in ALIKE])
            for text in ALIKE:
                wanted = sorted(name for name in ALIKE if name.startswith(text))
                assert [head.stream async for head in backend.streams(prefix=text)] == wanted
                assert [head.stream async for head in backend.streams(labels=[text])] == [text]

        run(scenario)

    def test_the_stream_that_was_appended_to_last_comes_first(self, run: Run) -> None:
        async def scenario(backend: AsyncBackend) -> None:
            if RECENT not in backend.capabilities:
                pytest.skip("this store does not declare the capability `recent`")
            await backend.append([appended("a", 1, 1, "l")])
            await backend.append([appended("b", 1, 1)])
            await backend.append([appended("a", 2, 2, "l")])
            known = require_recent(backend)
            assert [head.stream async for head in known.recent()] == ["a", "b"]
            assert [head.stream async for head in known.recent(prefix="b")] == ["b"]
            assert [head.stream async for head in known.recent(labels=["l"], limit=1)] == ["a"]
            assert [head.stream async for head in known.recent(without=["l"])] == ["b"]

        run(scenario)

    def test_waiting_for_records_ends_with_them_or_with_its_time_or_by_cancelling(
        self, run: Run
    ) -> None:
        async def scenario(backend: AsyncBackend) -> None:
            if WATCH not in backend.capabilities:
                pytest.skip("this store does not declare the capability `watch`")
            known = require_watch(backend)
            assert await known.watch("s", after=0, timeout=0) is False
            assert await known.watch("s", after=0, timeout=0.05) is False
            waiting = [asyncio.create_task(known.watch("s", after=0)) for _ in range(5)]
            other = asyncio.create_task(known.watch("other", after=0, timeout=0.5))
            await asyncio.sleep(0.05)
            waiting[0].cancel()
            await backend.append([appended("s", 1, 1)])
            async with asyncio.timeout(60):
                answers = await asyncio.gather(*waiting, return_exceptions=True)
            assert isinstance(answers[0], asyncio.CancelledError)
            assert answers[1:] == [True] * 4
            assert await known.watch("s", after=0) is True
            assert await other is False

        run(scenario)

    def test_closing_the_store_ends_the_wait(self, open_backend: OpenAsyncBackend) -> None:
        async def scenario() -> None:
            backend = open_backend()
            if WATCH not in backend.capabilities:
                await backend.close()
                pytest.skip("this store does not declare the capability `watch`")
            waiting = asyncio.create_task(require_watch(backend).watch("s", after=0))
            await asyncio.sleep(0.05)
            await backend.close()
            async with asyncio.timeout(60):
                with pytest.raises(UsageError, match="closed"):
                    await waiting

        asyncio.run(scenario())

    def test_a_long_stream_is_read_whole(self, run: Run) -> None:
        async def scenario(backend: AsyncBackend) -> None:
            await backend.append([appended("s", 1, 1500)])
            assert await _read(backend, "s") == entries(1, 1500)

        run(scenario)

    def test_errors_reach_whoever_awaits(self, run: Run) -> None:
        async def scenario(backend: AsyncBackend) -> None:
            with pytest.raises(UsageError):
                await backend.append([appended("s", 1, 1), appended("s", 2, 2)])
            (outcome,) = await backend.append([appended("s", 1, 1)])
            assert outcome.status == "stored"

        run(scenario)

    def test_of_many_tasks_exactly_one_stores_each_position(self, run: Run) -> None:
        async def scenario(backend: AsyncBackend) -> None:
            for position in range(1, 6):
                racers = [appended("s", position, position, mark=str(n)) for n in range(16)]
                answers = await asyncio.gather(*(backend.append([one]) for one in racers))
                stored = [n for n, (answer,) in enumerate(answers) if answer.status == "stored"]
                assert len(stored) == 1
                last = [one async for one in backend.read("s", reverse=True, limit=1)]
                assert last == [entry(position, str(stored[0]))]

        run(scenario)

    def test_readers_and_writers_interleave(self, run: Run) -> None:
        async def scenario(backend: AsyncBackend) -> None:
            await backend.append([appended("s", 1, 300)])
            seen = 0
            async for one in backend.read("s"):
                seen += 1
                assert one.position == seen
                if seen in {1, 150}:
                    await backend.append([appended(f"during {seen}", 1, 1)])
            assert seen == 300
            assert await _read(backend, "during 150") == entries(1, 1)

        run(scenario)

    def test_a_read_after_a_cancelled_append_tells_whether_it_happened(self, run: Run) -> None:
        async def scenario(backend: AsyncBackend) -> None:
            position = 0
            for number in range(40):
                mine = appended("s", position + 1, position + 1)
                task = asyncio.ensure_future(backend.append([mine]))
                await asyncio.sleep(0.0001 * (number % 8))
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                found = await _read(backend, "s")
                assert found == entries(1, len(found))
                assert len(found) in {position, position + 1}
                assert await _read(backend, "s") == found, "nothing happens afterwards"
                position = len(found)

        run(scenario)

    def test_an_abandoned_reader_does_no_harm(self, run: Run) -> None:
        async def scenario(backend: AsyncBackend) -> None:
            await backend.append([appended("s", 1, 600)])
            for _ in range(5):
                async for one in backend.read("s"):
                    assert one.position == 1
                    break
            assert await _read(backend, "s") == entries(1, 600)

        run(scenario)

    def test_closing_twice_is_harmless_and_using_it_afterwards_is_not(
        self, open_backend: OpenAsyncBackend
    ) -> None:
        async def scenario() -> None:
            backend = open_backend()
            await backend.append([appended("s", 1, 1)])
            await backend.close()
            await backend.close()
            with pytest.raises(UsageError, match="closed"):
                await backend.append([appended("s", 2, 2)])
            with pytest.raises(UsageError, match="closed"):
                await _read(backend, "s")

        asyncio.run(scenario())


async def _read(backend: AsyncBackend, stream: str) -> list[Any]:
    return [one async for one in backend.read(stream)]
