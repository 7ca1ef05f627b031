"""What every Backend must keep, as tests: subclass `BackendContract` and say how to open a store.

    class TestMine(BackendContract):
        @pytest.fixture
        def open_backend(self, tmp_path):
            return lambda: MyBackend(tmp_path / "store")

Rules for editors: a test is a sentence of the protocol, each negative has a positive twin, and
nothing may depend on which store it is. Knobs are only for physics.
"""

from collections.abc import Callable, Iterator

import pytest

from perdure.backends.protocol import Backend
from perdure.testing.contract.append import AppendingContract
from perdure.testing.contract.read import ReadingContract
from perdure.testing.contract.recent import RecentContract
from perdure.testing.contract.remove import RemovingContract
from perdure.testing.contract.sharing import SharingContract
from perdure.testing.contract.watch import WatchContract


class BackendContract(
    AppendingContract,
    ReadingContract,
    SharingContract,
    RecentContract,
    RemovingContract,
    WatchContract,
):
    """Passes for a store that keeps every sentence of `perdure.backend.Backend`.

    `reopens` is False for a store that is gone when closed, `processes` for one that other
    processes can not reach.
    """

    reopens = True
    processes = True

    @pytest.fixture
    def open_backend(self) -> Callable[[], Backend]:
        """Return a function that opens the same, at first empty, store each time it is called."""
        message = "override the fixture `open_backend`"
        raise NotImplementedError(message)

    @pytest.fixture
    def backend(self, open_backend: Callable[[], Backend]) -> Iterator[Backend]:
        """One handle on the store, closed after the test."""
        backend = open_backend()
        yield backend
        backend.close()
