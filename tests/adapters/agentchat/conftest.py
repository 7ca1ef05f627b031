"""A server whose answers depend on the whole prompt, and what teams are built of."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.testing import ModelServer
from tests.adapters.agentchat.model import answer
from tests.adapters.agentchat.place import Place
from tests.adapters.agentchat.teams import Ledger


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(answer) as server:
        yield server


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agents.db"


@pytest.fixture
def place(server: ModelServer, path: Path, ledger: Ledger) -> Place:
    return Place(server, path, ledger)
