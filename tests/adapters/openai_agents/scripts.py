"""A program that may be killed anywhere and run again: three requests to one agent.

With perdure, and the same with the SDK's own session.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from agents import Runner, SQLiteSession

import perdure
from perdure.adapters.openai_agents import PerdureSession
from tests.adapters.openai.scripts import Hooks
from tests.adapters.openai_agents.agents_of import Ledger, Reach, build, make_client, nothing

SESSION = "claim-4711"
FORMS = ["plain", "streamed", "chat", "handoff", "nested"]


def inputs(form: str, tool: str) -> list[str]:
    """Return what is asked, in order: with two calls side by side, and one after another."""
    both = f'[[tool {tool} {{"amount": 10}}]] [[tool {tool} {{"amount": 11}}]] Charge both.'
    each = f'[[tool {tool} {{"amount": 20}}]] [[then]] [[tool {tool} {{"amount": 21}}]] One by one.'
    if form == "handoff":
        each = f"[[tool transfer_to_billing {{}}]] [[then]] {each}"
        both = "Hello."
    if form == "nested":
        both = f"[[tool ask_expert {json.dumps({'input': both})}]] Ask."
    return [both, each] if form != "nested" else [both, "Thanks."]


def reach_of(hooks: Hooks) -> Reach:
    reach: Reach = getattr(hooks, "_reach", nothing)
    return reach


def run(form: str, url: str, path: Path, hooks: Hooks) -> None:
    """Ask everything, each with an id; write the answers."""
    answers = asyncio.run(_run(form, url, path, reach_of(hooks)))
    path.with_suffix(".answers").write_text(json.dumps(answers), "utf-8")


async def _run(form: str, url: str, path: Path, reach: Reach) -> list[str]:
    name, policy = form.split(":")
    ledger = Ledger(path.with_suffix(".ledger"), reach)
    client = make_client(url, reach)
    agent = build(name, client, ledger)
    tool = "charge_once" if policy == "idempotent" else "charge"
    answers = []
    async with client, perdure.open_async(path) as store:
        policies: Any = {tool: ledger.find_out if policy == "reconcile" else policy}
        session = PerdureSession(SESSION, store, tools=policies)
        for number, text in enumerate(inputs(name, tool)):
            if name == "streamed":
                result = await session.run_streamed(agent, text, id=f"request-{number}")
                async for _ in result.stream_events():
                    reach("chunk")
            else:
                result = await session.run(agent, text, id=f"request-{number}")
            answers.append(result.final_output)
    return answers


class WatchedSession(SQLiteSession):  # type: ignore[misc]
    """The SDK's own session; the program may die after each of its writes."""

    reach: Reach

    async def add_items(self, items: Any) -> None:
        await super().add_items(items)
        self.reach("append")


def run_plain(form: str, url: str, path: Path, hooks: Hooks) -> None:
    """Ask everything with the SDK alone; what it says of the past decides where to begin."""
    answers = asyncio.run(_run_plain(form, url, path, reach_of(hooks)))
    path.with_suffix(".answers").write_text(json.dumps(answers), "utf-8")


async def _run_plain(form: str, url: str, path: Path, reach: Reach) -> list[str]:
    name, _ = form.split(":")
    ledger = Ledger(path.with_suffix(".ledger"), reach)
    client = make_client(url, reach)
    agent = build(name, client, ledger)
    session = WatchedSession(SESSION, path)
    session.reach = reach
    answers = []
    done = path.with_suffix(".done")  # What the application remembers: the requests it answered.
    first = len(done.read_text("utf-8")) if done.exists() else 0
    async with client:
        for text in inputs(name, "charge")[first:]:
            if name == "streamed":
                result = Runner.run_streamed(agent, text, session=session)
                async for _ in result.stream_events():
                    reach("chunk")
            else:
                result = await Runner.run(agent, text, session=session)
            answers.append(result.final_output)
            with done.open("a", encoding="utf-8") as file:
                file.write("x")
    session.close()
    return answers
