"""A conversation that the SDK stored in its own database is continued with perdure."""

from pathlib import Path
from typing import Any

import pytest
from agents import Runner, SQLiteSession
from click.testing import CliRunner

import perdure
from perdure.adapters.openai_agents import PerdureSession
from perdure.cli.__main__ import main
from perdure.testing import ModelServer
from tests.adapters.openai_agents.agents_of import Ledger, build

pytestmark = pytest.mark.anyio


async def test_an_imported_conversation_continues(
    tmp_path: Path, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    path, store_path = tmp_path / "conversations.db", tmp_path / "agents.db"
    agent = build("plain", client, ledger)
    sdk = SQLiteSession("claim-4711", path)  # It stays open: a program may be running.
    await Runner.run(agent, '[[reason]] [[tool charge {"amount": 5}]] Pay.', session=sdk)
    items, before = await sdk.get_items(), path.read_bytes()
    command = ["import", "--openai-agents", str(path), "--store", str(store_path)]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert path.read_bytes() == before
    async with perdure.open_async(store_path) as store:
        own = PerdureSession("claim-4711", store)
        assert await own.get_items() == items
        await Runner.run(agent, "Hello?", session=sdk)
        await own.run(agent, "Hello?")
    assert server.requests[-1].body["input"] == server.requests[-2].body["input"]
    sdk.close()
