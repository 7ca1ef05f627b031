"""Compactions through the public API: what they return, and what can be read afterwards."""

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.errors import CompactedError
from tests.support import said


async def test_a_session_is_compacted_and_goes_on() -> None:
    store = perdure.open_async(ThreadedBackend(MemoryBackend()))
    session = await store.session("s")
    for number in range(20):
        await session.append(said(str(number)))
    reached: list[tuple[int, int]] = []
    result = await session.compact(keep=5, progress=lambda *at: reached.append(at))
    assert (result.complete_from, session.complete_from, len(session)) == (16, 16, 5)
    assert reached[-1] == (20, 20)
    with pytest.raises(CompactedError):
        await session.record(3)
    await session.append(said("next"))
    other = await store.session("s")
    assert [message["content"] for message in await other.messages()][-2:] == ["19", "next"]
    assert (await other.verify()).complete_from == 16
    await store.close()
