"""Teams that are changed by hand between their runs, and what is kept of it."""

import asyncio
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.memory import ListMemory, MemoryContent

import perdure
from perdure.adapters.agentchat import persist
from perdure.errors import ConflictError
from tests.adapters.agentchat import teams
from tests.adapters.agentchat.place import Place, cut, twice
from tests.adapters.agentchat.scripts import SESSION, TASKS
from tests.adapters.agentchat.teams import Client, World, critic


def said(prompt: list[Any]) -> list[str]:
    return [one["content"] for one in prompt if one["role"] == "user"]


@pytest.mark.parametrize("name", ["round_robin", "selector", "graph", "nested", "society"])
def test_what_was_cleared_last_stays_cleared(name: str, place: Place) -> None:
    async def go() -> None:
        build = teams.TEAMS[name]
        async with place.durable(build) as durable:
            await durable.run(task=TASKS[0], id="request-9")
            await durable._root.component.reset()
        sent = len(place.prompts)
        async with place.durable(build) as durable:
            assert len((await durable.run(task=TASKS[0], id="request-9")).messages) > 1
            assert len(place.prompts) == sent
            await durable.run(task=TASKS[1])
        assert TASKS[1] in str(place.prompts[sent])
        assert TASKS[0] not in str(place.prompts[sent:])

    asyncio.run(go())


def test_what_was_changed_before_the_first_run_is_kept_and_nothing_else(place: Place) -> None:
    def build(world: World) -> Any:
        return critic(world, memory=[ListMemory()])

    async def go() -> None:
        async with place.durable(build) as durable:
            pass
        async with place.durable(build) as durable:
            assert durable._session.position == 0  # Whoever only looks writes nothing.
            memory = durable._root.component._memory[0]
            await memory.add(MemoryContent(content="Ask Ana.", mime_type="text/plain"))
        async with place.durable(build) as durable:
            await durable.run(task=TASKS[0])
            at = durable._session.position
        async with place.durable(build) as durable:
            assert durable._session.position == at
        assert "Ask Ana." in str(place.prompts[0])

    asyncio.run(go())


def test_what_was_cleared_before_an_error_stays_cleared(place: Place) -> None:
    async def go() -> None:
        async def failing() -> None:
            async with place.durable(teams.round_robin) as durable:
                await durable.run(task=TASKS[0])
                await durable._root.component.reset()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await failing()
        async with place.durable(teams.round_robin) as durable:
            sent = len(place.prompts)
            await durable.run(task=TASKS[1])
        assert TASKS[0] not in str(place.prompts[sent:])

    asyncio.run(go())


def test_a_team_that_went_on_elsewhere_is_not_changed_by_hand(place: Place) -> None:
    async def changing(task: str, error: Exception | None = None) -> None:
        async with place.durable(teams.single) as late:
            async with place.durable(teams.single) as other:
                await other.run(task=task)
            await late._root.component.on_reset(CancellationToken())
            if error is not None:
                raise error

    async def go() -> None:
        async with place.durable(teams.single) as durable:
            await durable.run(task=TASKS[0])
        with pytest.raises(ConflictError, match="changes made here are not saved"):
            await changing(TASKS[1])
        with pytest.raises(ZeroDivisionError) as found:
            await changing("And now?", ZeroDivisionError())
        assert "changes to the team were not saved" in str(found.value.__notes__)
        async with place.durable(teams.single) as durable:
            await durable.run(task="And then?")
        assert {TASKS[0], TASKS[1], "And now?", "And then?"} <= {*said(place.prompts[-1])}

    asyncio.run(go())


def test_a_run_that_is_over_is_kept_whoever_changed_the_team_meanwhile(place: Place) -> None:
    """One that had looked when no run was under way can not know of it."""

    async def go() -> None:
        async with place.durable(teams.single) as durable:
            await durable.run(task=TASKS[0])
        async with place.durable(teams.single) as first:
            async with place.durable(teams.single) as late:
                stream = first.run_stream(task=TASKS[1])
                await anext(stream)
                await late._root.component.on_reset(CancellationToken())

                async def refresh() -> int:
                    return int(late._session.position)

                late._session.refresh = refresh
            with pytest.raises(ConflictError, match="value record came first"):
                [one async for one in stream]
            sent = len(place.prompts)
            await first.run()
            assert len(place.prompts) == sent
        async with place.durable(teams.single) as durable:
            await durable.run(task="And now?")
        assert {*TASKS, "And now?"} <= {*said(place.prompts[-1])}

    asyncio.run(go())


def test_a_team_is_where_it_was_as_soon_as_a_run_is_given_up(place: Place) -> None:
    async def go() -> None:
        async with place.durable(teams.round_robin) as durable:
            await durable.run(task=TASKS[0])
        await cut(place, teams.round_robin, TASKS[1])
        async with place.durable(teams.round_robin) as durable:
            team = durable._root.component
            await durable.abandon()
            assert TASKS[0] in str(await team.save_state())
            assert TASKS[1] not in str(await team.save_state())
            await team.reset()
        async with place.durable(teams.round_robin) as durable:
            sent = len(place.prompts)
            await durable.run(task="And now?")
        assert TASKS[0] not in str(place.prompts[sent:])

    asyncio.run(go())


def test_a_team_that_failed_before_it_was_kept_is_as_good_as_new(place: Place) -> None:
    """A manager does not forget by itself who was speaking when a run failed."""

    async def go() -> None:
        await twice(place, teams.round_robin, "whole")
        wanted = place.prompts
        async with place.durable(teams.round_robin) as durable:
            await durable.run(task=TASKS[0])
        client = Client(place.server.url)
        team = teams.round_robin(World(client, place.ledger))
        place.server.fault(status=500, at=len(place.prompts) + 1)
        with pytest.raises(RuntimeError, match="500"):
            await team.run(task="Something else.")
        sent = len(place.prompts)
        async with (
            perdure.open_async(place.path) as store,
            persist(await store.session(SESSION), team) as durable,
        ):
            await durable.run(task=TASKS[1])
        await client.close()
        assert place.prompts[sent:] == wanted[-len(place.prompts[sent:]) :]
        assert place.messages() == place.messages("whole")

    asyncio.run(go())
