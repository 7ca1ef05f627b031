"""A program that may be killed anywhere and run again: two tasks for one team."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import perdure
from perdure.adapters.agentchat import persist
from tests.adapters.agentchat.teams import GIVEN, TEAMS, Client, Ledger, World
from tests.adapters.openai.scripts import Hooks

TASKS = ["Draft a claims escalation checklist.", "Refine that for high-value policies only."]
SESSION = "claim-4711"


@asynccontextmanager
async def closing(client: Client) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await client.close()


def policies(ledger: Ledger, policy: str) -> dict[str, Any]:
    return {"charge": ledger.find_out if policy == "reconcile" else policy}


def run(form: str, url: str, path: Path, hooks: Hooks) -> None:
    """Do what is left of the tasks, with the team and the policy that `form` names."""
    team, policy = form.split(":")
    asyncio.run(_run(team, policy, url, path, hooks))


async def _run(name: str, policy: str, url: str, path: Path, hooks: Hooks) -> None:
    ledger = Ledger(path.with_suffix(".ledger"), hooks.sending, hooks.received)
    client = Client(url, hooks.chunk)
    async with closing(client), perdure.open_async(path) as store:
        session = await store.session(SESSION)
        team = TEAMS[name](World(client, ledger))
        async with persist(session, team, tools=policies(ledger, policy)) as durable:
            if durable.interrupted is not None:
                await durable.run()
            said = [one for one in await session.messages() if one.get("content") in TASKS]
            for task in TASKS[len(said) :]:
                await durable.run(task=GIVEN.get(name, str)(task))
