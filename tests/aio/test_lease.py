"""Leases in an event loop: the same promises, and those about cancelling."""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.aio import lease as lease_module
from perdure.aio.group_commit import AsyncBatcher
from perdure.aio.lease import AsyncLease
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import Append, Outcome
from perdure.core.plans import Plan
from perdure.errors import FencedError, LeaseHeldError, UnavailableError, UsageError
from tests.promises.p29_tasks import CancelledAt
from tests.support import said


class Clock:
    """A monotonic clock that goes only when it is turned."""

    def __init__(self) -> None:
        self.at = 1_000.0

    def monotonic(self) -> float:
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()

    async def wait(_: AsyncLease, seconds: float, __: float) -> None:
        clock.at += seconds

    monkeypatch.setattr(lease_module, "time", clock)
    monkeypatch.setattr(AsyncLease, "_wait", wait)
    return clock


@contextlib.asynccontextmanager
async def handles(path: Path) -> AsyncIterator[tuple[perdure.AsyncSession, perdure.AsyncSession]]:
    async with perdure.open_async(path) as one, perdure.open_async(path) as two:
        first = await one.session("s")
        await first.append(said("first"))
        yield first, await two.session("s")


def test_one_holds_and_the_other_waits(tmp_path: Path) -> None:
    async def scene() -> None:
        async with handles(tmp_path / "a.db") as (one, two):
            async with one.lease(ttl=60, owner="one") as lease:
                assert (lease.epoch, lease.held) == (1, True)
                assert one.lease_holder == (1, "one", 60.0, True)
                with pytest.raises(LeaseHeldError, match="held by 'one'"):
                    await two.append(said("x"))
                with pytest.raises(LeaseHeldError):
                    async with two.lease(timeout=0.05):
                        pass
                with pytest.raises(UsageError, match="already"):
                    async with one.lease():
                        pass
                await two.note("open to all")
                waiting = asyncio.create_task(take(two))
                await asyncio.sleep(0.1)
                assert not waiting.done()
                await one.append(said("second"))
            assert await asyncio.wait_for(waiting, 60) == 2
            assert [message["content"] for message in await two.messages()][1:] == [
                "second",
                "third",
            ]
            await two.verify()

    asyncio.run(scene())


async def take(session: perdure.AsyncSession) -> int:
    async with session.lease(timeout=True) as lease:
        await session.append(said("third"))
        return lease.epoch


def test_whoever_slept_too_long_is_fenced(tmp_path: Path, clock: Clock) -> None:
    async def scene() -> None:
        async with handles(tmp_path / "a.db") as (one, two), one.lease() as first:
            await two.refresh()
            before = clock.at
            async with two.lease(timeout=True, owner="two") as second:
                assert (second.epoch, clock.at - before) == (2, 30.0)
                await two.append(said("by two"))
                clock.at = before  # The one that slept thinks that no time has passed.
                with pytest.raises(FencedError, match="'two' took over"):
                    await one.append(said("stale"))
            assert first.lost.is_set()
            assert not first.held

    with pytest.raises(FencedError, match="'two' took over"):
        asyncio.run(scene())


def test_a_store_that_is_away_lets_the_lease_run_out(clock: Clock) -> None:
    class Away(MemoryBackend):
        away = False

        def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
            if self.away:
                raise UnavailableError("test", "away")
            return super().append(appends)

    async def scene() -> None:
        backend = Away()
        session = await perdure.open_async(ThreadedBackend(backend)).session("s")
        async with session.lease() as lease:
            backend.away = True
            clock.at += 29
            assert await lease._renew() == 2.5
            clock.at += 1
            assert await lease._renew() is None
            backend.away = False
            assert lease.lost.is_set()
            with pytest.raises(FencedError, match="no renewal"):
                await session.append(said("late"))

    with pytest.raises(FencedError, match="no renewal"):
        asyncio.run(scene())


def test_a_store_that_hangs_is_told_of_when_the_time_has_passed() -> None:
    """In real time: nothing answers, and whoever waits for `lost` wakes up."""

    async def scene() -> None:
        session = await perdure.open_async(ThreadedBackend(MemoryBackend())).session("s")
        async with session.lease(ttl=0.3) as lease:
            batcher = session._handle._batcher
            release = asyncio.Event()
            write_all = batcher._run

            def hang(plans: list[Plan[Any]], batcher: AsyncBatcher[Plan[Any], Any]) -> None:
                async def later() -> None:
                    await release.wait()
                    write_all(plans, batcher)

                waiting.append(asyncio.create_task(later()))
                batcher.process = waiting[-1]

            waiting: list[asyncio.Task[None]] = []
            batcher._run = hang
            await asyncio.wait_for(lease.lost.wait(), 60)
            release.set()

    with pytest.raises(FencedError, match="no renewal"):
        asyncio.run(scene())


def test_a_session_that_was_deleted_under_its_holder_is_lost(tmp_path: Path) -> None:
    async def scene() -> None:
        async with handles(tmp_path / "a.db") as (one, two):
            lease = one.lease()
            assert repr(lease) == "<AsyncLease on 's': not held>"
            await lease.release()  # It was never taken.
            await lease.__aenter__()
            async with two.lease(force=True):
                pass
            async with perdure.open_async(tmp_path / "a.db") as third:
                await third.delete("s")
            with pytest.raises(FencedError):
                await lease.__aexit__(None, None, None)
            assert lease.lost.is_set()

    asyncio.run(scene())


def test_a_lease_that_can_not_be_given_back_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    class Away(MemoryBackend):
        away = False

        def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
            if self.away:
                raise UnavailableError("test", "away")
            return super().append(appends)

    async def scene() -> None:
        backend = Away()
        session = await perdure.open_async(ThreadedBackend(backend)).session("s")
        async with session.lease():
            backend.away = True
        backend.away = False
        await session.append(said("first"))

    caplog.set_level("INFO")
    asyncio.run(scene())
    (record,) = [record for record in caplog.records if record.message.startswith("release")]
    assert record.outcome == "UnavailableError"  # type: ignore[attr-defined]


def test_it_is_renewed_while_others_work(clock: Clock) -> None:
    """In real time; the clock is turned between renewals, in all by four times the ttl."""

    async def renewals(session: perdure.AsyncSession) -> int:
        return sum([record.kind == "lease.renewed" async for record in session.records()])

    async def scene() -> None:
        session = await perdure.open_async("memory:").session("s")
        began = time.monotonic()
        async with session.lease(ttl=0.25) as lease, asyncio.timeout(60):
            for _ in range(5):
                clock.at += 0.2
                # The next one may have begun before the clock was turned.
                wanted = await renewals(session) + 2
                while await renewals(session) < wanted:  # noqa: ASYNC110 - a test
                    await asyncio.sleep(0.01)
            assert lease.held
            await session.append(said("still there"))
        assert 10 <= await renewals(session) <= (time.monotonic() - began) / (0.25 / 12)

    asyncio.run(scene())


def test_closing_gives_it_back(tmp_path: Path) -> None:
    async def scene() -> None:
        async with perdure.open_async(tmp_path / "a.db") as store:
            one = await store.session("s")
            lease = one.lease()
            await lease.__aenter__()
            await one.close()
            two = await store.session("s")
            assert two.lease_holder is None
            await two.lease().__aenter__()
        with perdure.open(tmp_path / "a.db") as again:
            assert again.session("s").lease_holder is None

    asyncio.run(scene())


@pytest.mark.parametrize("nth", range(1, 9))
def test_cancelled_at_any_await_it_leaves_nothing_behind(tmp_path: Path, nth: int) -> None:
    """Taking, writing under it and giving it back: cut anywhere, others need not wait."""

    async def work(session: perdure.AsyncSession) -> None:
        async with session.lease(ttl=60):
            await session.append(said("x"))

    async def scene() -> None:
        async with handles(tmp_path / "a.db") as (one, two):
            with contextlib.suppress(asyncio.CancelledError):
                await CancelledAt(work(one), nth)
            async with two.lease(timeout=30) as other:  # It would last for a minute.
                assert other.held
            async with one.lease() as lease:
                assert lease.held
            await two.verify()

    asyncio.run(scene())


def test_a_waiting_task_can_be_cancelled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with handles(tmp_path / "a.db") as (one, two):
            async with one.lease():
                waiting = asyncio.create_task(take(two))
                await asyncio.sleep(0.1)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            await two.refresh()
            assert two.lease_holder is None
            await two.append(said("second"))

    asyncio.run(scene())
    assert not [record for record in caplog.records if record.message.startswith("lease_lost")]


# Sessions that nobody refers to any more.


def renewing() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "perdure-lease"]


async def until_none_renews() -> bool:
    for _ in range(2_000):
        if not renewing():
            return True
        await asyncio.sleep(0.01)
    return False


@pytest.mark.parametrize("in_turn", [False, True])
def test_a_lease_that_nobody_refers_to_is_renewed_no_more(*, in_turn: bool) -> None:
    async def forget(store: perdure.AsyncStore, number: int) -> None:
        session = await store.session(f"session {number}")
        if in_turn:
            async with session.turn("Go."):
                await session.lease(ttl=3600).__aenter__()
        else:
            await session.lease(ttl=3600).__aenter__()

    async def run() -> None:
        async with perdure.open_async("memory:") as store:
            for number in range(50):
                await asyncio.create_task(forget(store, number))
            assert renewing()
            gc.collect()
            assert await until_none_renews()

    asyncio.run(run())


def test_a_lease_is_renewed_while_its_session_is_kept(tmp_path: Path) -> None:
    async def run() -> None:
        async with perdure.open_async(tmp_path / "s.db") as store:
            session: perdure.AsyncSession | None = await store.session("s")
            assert session is not None
            await session.lease(ttl=1).__aenter__()
            gc.collect()
            await asyncio.sleep(1.2)
            assert len(renewing()) == 1
            with pytest.raises(LeaseHeldError):
                await (await store.session("s")).append(said("x"))
            del session
            gc.collect()
            assert await until_none_renews()
            async with (await store.session("s")).lease(timeout=20) as lease:
                assert lease.epoch == 2

    asyncio.run(run())
