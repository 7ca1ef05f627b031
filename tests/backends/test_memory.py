"""MemoryBackend keeps the contract, except that nothing survives."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Backend
from perdure.testing import BackendContract
from perdure.testing.contract.samples import append_all, append_of, entries


class TestMemory(BackendContract):
    reopens = False
    processes = False

    @pytest.fixture
    def open_backend(self) -> Callable[[], Backend]:
        return MemoryBackend


def test_it_says_that_nothing_survives() -> None:
    assert MemoryBackend().guarantees.survives == "nothing"
    assert MemoryBackend().guarantees.shared_by == "one process"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can not fork")
def test_a_child_that_was_forked_while_the_lock_was_held_can_use_its_copy() -> None:
    backend = MemoryBackend()
    append_all(backend, append_of("s", 1, 1))
    with backend._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(100)  # Or it would wait for the lock for ever.
            good = append_all(backend, append_of("s", 2, 2)) == ["stored"]
            os._exit(0 if good and list(backend.read("s")) == entries(1, 2) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(backend.read("s")) == entries(1, 1), "the parent has its own"


def test_an_interrupt_in_the_middle_of_an_append_loses_no_stream() -> None:
    class Interrupting(dict[str, Any]):
        def pop(self, *name: Any) -> Any:
            super().pop(*name)
            raise KeyboardInterrupt

    backend = MemoryBackend()
    append_all(backend, append_of("s", 1, 1))
    backend._streams = Interrupting(backend._streams)
    with pytest.raises(KeyboardInterrupt):
        append_all(backend, append_of("s", 2, 2))
    backend._streams = {**backend._streams}
    assert append_all(backend, append_of("s", 2, 2)) == ["stored"]
    assert list(backend.read("s")) == entries(1, 2)
