"""Where programs run one after the other, each as a new process would."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.adapters.agentchat import persist
from perdure.journal.records import Message
from perdure.testing import ModelServer
from tests.adapters.agentchat.scripts import SESSION, TASKS
from tests.adapters.agentchat.teams import Client, Ledger, World

Build = Callable[[World], Any]


class Place:
    """Where programs run one after the other: a store, a server, a ledger."""

    def __init__(self, server: ModelServer, path: Path, ledger: Ledger) -> None:
        self.server, self.path, self.ledger = server, path, ledger

    @asynccontextmanager
    async def durable(
        self, build: Build, *, session: str = SESSION, **options: Any
    ) -> AsyncIterator[Any]:
        """Do what a new process does: open the store, build the team, persist it."""
        client = Client(self.server.url)
        try:
            async with perdure.open_async(self.path) as store:
                found = await store.session(session)
                team = build(World(client, self.ledger))
                async with persist(found, team, **options) as durable:
                    yield durable
        finally:
            await client.close()

    @property
    def prompts(self) -> list[Any]:
        return [request.body["messages"] for request in self.server.requests]

    def messages(self, session: str = SESSION) -> list[Any]:
        with perdure.open(self.path) as store:
            return list(store.session(session).messages())

    def authors(self) -> list[str]:
        """Who said something, in the order of the record."""
        with perdure.open(self.path) as store:
            contents = [record.content for record in store.session(SESSION).records()]
        return [one.author for one in contents if isinstance(one, Message)]


async def twice(place: Place, build: Build, session: str) -> None:
    """Run both tasks in one process."""
    async with place.durable(build, session=session) as durable:
        for task in TASKS:
            await durable.run(task=task)


def without_repeats(sent: list[Any]) -> list[Any]:
    return [one for at, one in enumerate(sent) if at == 0 or one != sent[at - 1]]


async def cut(
    place: Place, build: Build, task: Any = TASKS[0], *, id: str | None = None, **options: Any
) -> None:
    """Leave a run behind whose third call of a model failed."""
    place.server.fault(status=500, at=len(place.prompts) + 3)
    async with place.durable(build, **options) as durable:
        with pytest.raises(Exception, match="500"):
            await durable.run(task=task, id=id)
