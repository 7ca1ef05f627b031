# Generated from aio/test_compaction.py by scripts/generate_sync.py: do not edit.
"""Compactions through the public API: what they return, and what can be read afterwards."""

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.errors import CompactedError
from tests.support import said


def test_a_session_is_compacted_and_goes_on() -> None:
    store = perdure.open(MemoryBackend())
    session = store.session("s")
    for number in range(20):
        session.append(said(str(number)))
    reached: list[tuple[int, int]] = []
    result = session.compact(keep=5, progress=lambda *at: reached.append(at))
    assert (result.complete_from, session.complete_from, len(session)) == (16, 16, 5)
    assert reached[-1] == (20, 20)
    with pytest.raises(CompactedError):
        session.record(3)
    session.append(said("next"))
    other = store.session("s")
    assert [message["content"] for message in other.messages()][-2:] == ["19", "next"]
    assert other.verify().complete_from == 16
    store.close()
