"""A store of each kind, a model server, and a client of it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.testing import ModelServer
from tests.adapters.openai_agents.agents_of import Ledger, make_client


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(strict=True) as server:
        yield server


@pytest.fixture
async def client(server: ModelServer) -> AsyncIterator[Any]:
    async with make_client(server.url) as client:
        yield client


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture(params=["memory", "sqlite", "files", "postgres"])
def any_address(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "postgres":
        return request.getfixturevalue("postgres_store")
    address = {"memory": "memory:", "sqlite": tmp_path / "a.db", "files": f"files:{tmp_path}/f"}
    return address[request.param]


@pytest.fixture
async def any_store(any_address: Any) -> AsyncIterator[perdure.AsyncStore]:
    async with perdure.open_async(any_address) as store:
        yield store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[perdure.AsyncStore]:
    async with perdure.open_async(tmp_path / "agents.db") as store:
        yield store
