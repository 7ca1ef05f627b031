"""The contract suite of `Backend`: subclass `BackendContract` and define how to open a store.

    class TestMine(BackendContract):
        @pytest.fixture
        def open_backend(self, tmp_path):
            return lambda: MyBackend(tmp_path / "store")

Rules for editing: a test is a sentence of the protocol, each negative test has a positive
counterpart, and no test may depend on the store. The class attributes describe only what a store
physically cannot do.
"""

import contextlib
from collections.abc import Iterator

import pytest

from perdure.backends.protocol import Backend
from perdure.testing.contract.append import AppendContract
from perdure.testing.contract.atomic import AtomicContract
from perdure.testing.contract.check import CheckContract
from perdure.testing.contract.order import OrderContract
from perdure.testing.contract.ranges import RangeContract
from perdure.testing.contract.read import ReadContract
from perdure.testing.contract.recent import RecentContract
from perdure.testing.contract.remove import RemoveContract
from perdure.testing.contract.samples import OpenBackend
from perdure.testing.contract.sharing import SharingContract
from perdure.testing.contract.tail import TailContract
from perdure.testing.contract.watch import WatchContract


class BackendContract(
    AppendContract,
    ReadContract,
    RangeContract,
    SharingContract,
    RecentContract,
    OrderContract,
    AtomicContract,
    CheckContract,
    RemoveContract,
    TailContract,
    WatchContract,
):
    """Passes for a store that satisfies every sentence of `perdure.backends.protocol.Backend`.

    `reopens` is False for a store whose data is lost on close, `processes` for one that other
    processes cannot reach.
    """

    reopens = True
    processes = True

    @pytest.fixture
    def open_backend(self) -> OpenBackend:
        """Return a function that opens the same store on every call; it is empty at first."""
        message = "override the fixture `open_backend`"
        raise NotImplementedError(message)

    @pytest.fixture
    def open_handle(self, open_backend: OpenBackend) -> Iterator[OpenBackend]:
        """Return a function that opens the store; every handle is closed after the test."""
        with contextlib.ExitStack() as handles:
            yield lambda: handles.enter_context(contextlib.closing(open_backend()))

    @pytest.fixture
    def backend(self, open_handle: OpenBackend) -> Backend:
        """Open the store for one test."""
        return open_handle()
