"""PostgresBackend keeps the contract; here is what is special to a server."""

from collections.abc import Callable

import pytest

from perdure.backend import AsyncBackend, Backend
from perdure.backends.postgres import PostgresBackend
from perdure.backends.postgres_async import AsyncPostgresBackend
from perdure.testing import AsyncBackendContract, BackendContract


class TestPostgres(BackendContract):
    @pytest.fixture
    def open_backend(self, postgres_store: str) -> Callable[[], Backend]:
        return lambda: PostgresBackend(postgres_store)


class TestAsyncPostgres(AsyncBackendContract):
    @pytest.fixture
    def open_backend(self, postgres_store: str) -> Callable[[], AsyncBackend]:
        return lambda: AsyncPostgresBackend(postgres_store)
