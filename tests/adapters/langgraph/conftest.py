"""Stores for savers: the address of an empty one of each kind."""

from pathlib import Path

import pytest

BACKENDS = ("memory", "sqlite", "files", "postgres")


@pytest.fixture(params=BACKENDS)
def any_address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        address: str = request.getfixturevalue("postgres_store")
        return address
    paths = {"memory": "memory:", "sqlite": f"{tmp_path}/a.db", "files": f"files:{tmp_path}/a"}
    return paths[request.param]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agents.db"
