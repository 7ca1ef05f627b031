"""Teams and agents that go on where they were, in another process or after an error."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent, UserProxyAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import (
    HandoffMessage,
    MultiModalMessage,
    StructuredMessage,
    TextMessage,
)
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    RoundRobinGroupChat,
    SelectorGroupChat,
)
from autogen_agentchat.tools import TeamTool
from autogen_core import CancellationToken, Image
from autogen_core.memory import ListMemory, MemoryContent
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import UserMessage
from pydantic import BaseModel

import perdure
from perdure.adapters.agentchat import introspection, persist
from perdure.adapters.agentchat.saved_runs import RUN_KEY
from perdure.errors import (
    ConflictError,
    DivergenceError,
    LeaseHeldError,
    UnsupportedError,
    UsageError,
)
from perdure.journal.records import Message
from perdure.testing import ModelServer
from tests.adapters.agentchat import teams
from tests.adapters.agentchat.place import Build, Place, cut, twice, without_repeats
from tests.adapters.agentchat.scripts import SESSION, TASKS
from tests.adapters.agentchat.teams import Client, World, clerk, critic


@pytest.mark.parametrize("name", teams.TEAMS)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_new_process_goes_on_as_the_old_one_would_have(name: str, place: Place) -> None:
    async def go() -> None:
        build = teams.TEAMS[name]
        await twice(place, build, "whole")
        wanted = place.prompts
        for task in TASKS:
            async with place.durable(build) as durable:
                assert durable.interrupted is None
                result = await durable.run(task=task)
                assert isinstance(result, TaskResult)
        assert place.prompts[len(wanted) :] == wanted
        assert place.messages() == place.messages("whole")

    asyncio.run(go())


@pytest.mark.parametrize(
    "name",
    # An agent that is a tool tells of its errors as tools do.
    ["single", "streaming", "round_robin", "selector", "swarm", "graph", "nested", "society"],
)
def test_an_error_of_the_model_leaves_a_run_that_goes_on_in_the_same_process(
    name: str, place: Place
) -> None:
    async def go() -> None:
        build = teams.TEAMS[name]
        await twice(place, build, "whole")
        wanted, charged = place.prompts, len(place.ledger.lines)
        async with place.durable(build, session="other") as durable:
            for task in TASKS:
                place.server.fault(status=500, at=len(place.prompts) + 2)
                with pytest.raises(Exception, match="500"):
                    await durable.run(task=task)
                assert durable.interrupted == task
                await durable.run()
                assert durable.interrupted is None
        assert without_repeats(place.prompts[len(wanted) :]) == wanted
        assert place.messages("other") == place.messages("whole")
        assert len(place.ledger.lines) == 2 * charged

    asyncio.run(go())


@pytest.mark.parametrize("kind", ["agent", "team"])
def test_an_error_inside_of_an_agent_that_is_a_tool_is_the_same_again(
    kind: str, place: Place
) -> None:
    """Who has called such a tool is told of it, and goes on; the next crash may not change that."""

    def build(world: World) -> Any:
        if kind == "agent":
            return teams.agent_tool(world)
        team = RoundRobinGroupChat([clerk(world, "expert")], max_turns=1, name="experts")
        tool = TeamTool(team, name="expert", description="Ask.", return_value_as_last_message=True)
        boss = AssistantAgent("boss", world.client, tools=[tool], reflect_on_tool_use=True)
        return RoundRobinGroupChat([boss, critic(world)], max_turns=3)

    async def go() -> None:
        place.server.fault(status=400, at=2)
        async with place.durable(build, session="whole") as durable:
            await durable.run(task=TASKS[0])
        wanted = place.prompts
        place.server.fault(status=400, at=len(wanted) + 2)
        place.server.fault(status=500, at=len(wanted) + 4)
        with pytest.raises(Exception, match="500"):
            async with place.durable(build) as durable:
                await durable.run(task=TASKS[0])
        sent = len(place.prompts)
        async with place.durable(build) as durable:
            await durable.run()
        again = place.prompts[sent:]
        if kind == "agent":
            assert without_repeats(place.prompts[len(wanted) :]) == wanted
            assert place.messages() == place.messages("whole")
        assert again[0] == place.prompts[sent - 1]  # What failed last: nothing before it.
        told = [one["content"] for one in place.messages() if one["role"] == "tool"]
        assert "Error code: 400" in told[0]

    asyncio.run(go())


def test_a_stream_that_is_left_can_be_gone_on_with(place: Place) -> None:
    async def go() -> None:
        await twice(place, teams.round_robin, "whole")
        wanted = place.prompts
        async with place.durable(teams.round_robin) as durable:
            for number, task in enumerate(TASKS):
                seen = 0
                async for _ in durable.run_stream(task=task):
                    seen += 1
                    if seen == 2 + number:
                        break
                await durable.run(task=task)
        assert without_repeats(place.prompts[len(wanted) :]) == wanted
        assert place.messages() == place.messages("whole")

    asyncio.run(go())


def test_a_stream_that_is_closed_or_was_cancelled_before_can_be_gone_on_with(place: Place) -> None:
    async def go() -> None:
        await twice(place, teams.round_robin, "whole")
        wanted = place.prompts
        async with place.durable(teams.round_robin) as durable:
            await durable.run_stream(task="Never begun.").aclose()
            assert durable.interrupted is None
            stream = durable.run_stream(task=TASKS[0])
            await anext(stream)
            await stream.aclose()
            assert durable.interrupted == TASKS[0]
            await durable.run()
            token = CancellationToken()
            token.cancel()
            with pytest.raises(asyncio.CancelledError):
                await durable.run(task=TASKS[1], cancellation_token=token)
            assert durable.interrupted == TASKS[1]
            await durable.run(task=TASKS[1])
        assert without_repeats(place.prompts[len(wanted) :]) == wanted
        assert place.messages() == place.messages("whole")

    asyncio.run(go())


@pytest.mark.parametrize("name", ["round_robin", "selector", "graph"])
def test_the_first_run_can_be_one_without_a_task(name: str, place: Place) -> None:
    async def go() -> None:
        build = teams.TEAMS[name]
        async with place.durable(build, session="whole") as durable:
            await durable.run()
        wanted = place.prompts
        await cut(place, build, None)
        async with place.durable(build) as durable:
            assert durable.interrupted == ""
            with pytest.raises(UsageError, match="another task was interrupted"):
                await durable.run(task=TASKS[0])
            await durable.run()
            assert durable.interrupted is None
        assert without_repeats(place.prompts[len(wanted) :]) == wanted
        assert place.messages() == place.messages("whole")

    asyncio.run(go())


def test_what_a_run_tells_is_durable_before_it_is_told(place: Place) -> None:
    async def go() -> None:
        async with place.durable(teams.round_robin) as durable:
            told = 0
            async for event in durable.run_stream(task=TASKS[0]):
                if isinstance(event, TaskResult):
                    assert event.messages[0].content == TASKS[0]
                    continue
                told += 1
                assert len(place.messages()) >= told
        messages = place.messages()
        assert [one["role"] for one in messages[:4]] == ["user", "assistant", "tool", "assistant"]

    asyncio.run(go())


def test_of_two_runs_at_a_time_one_is_told(place: Place) -> None:
    async def go() -> None:
        async with place.durable(teams.round_robin) as durable:
            place.server.fault("slow", seconds=1.0)
            running = asyncio.ensure_future(durable.run(task=TASKS[0]))
            while not place.prompts:  # noqa: ASYNC110 - a server in another thread is asked
                await asyncio.sleep(0.01)  # Then it is under way, and stays so for a second.
            with pytest.raises(UsageError, match="in progress"):
                await durable.run(task=TASKS[0])
            assert isinstance(await running, TaskResult)
            stream = durable.run_stream(task=TASKS[1])
            await anext(stream)
            assert isinstance(await durable.run(task=TASKS[1]), TaskResult)
            with pytest.raises(UsageError, match="another was started"):
                await anext(stream)
        assert [one["role"] for one in place.messages()].count("user") == 2

    asyncio.run(go())


def test_another_task_is_refused_until_the_cut_run_is_given_up(place: Place) -> None:
    async def go() -> None:
        await cut(place, teams.round_robin)
        sent = len(place.prompts)
        async with place.durable(teams.round_robin) as durable:
            assert durable.interrupted == TASKS[0]
            with pytest.raises(UsageError, match="another task was interrupted"):
                await durable.run(task=TASKS[1])
            with pytest.raises(UsageError, match="another task was interrupted"):
                await durable.run(id="other")
            assert len(place.prompts) == sent
            await durable.abandon("not wanted")
            with pytest.raises(UsageError, match="no run was interrupted"):
                await durable.abandon()
            await durable.run(task=TASKS[1])
        assert TASKS[0] not in str(place.prompts[sent:])
        assert TASKS[0] in str(place.messages())

    asyncio.run(go())


def test_a_result_is_served_to_whoever_asks_again_under_the_same_id(place: Place) -> None:
    async def go() -> None:
        async with place.durable(teams.round_robin) as durable:
            first = await durable.run(task=TASKS[0], id="request-9")
        sent = len(place.prompts)
        async with place.durable(teams.round_robin) as durable:
            again = await durable.run(task=TASKS[0], id="request-9")
            assert again == first
            assert len(place.prompts) == sent
            await durable.run(task=TASKS[1])
            await durable.run(task=TASKS[1], id="request-10")
            sent = len(place.prompts)
            assert await durable.run(task=TASKS[0], id="request-9") == first
            assert await durable.run(id="request-9") == first
            with pytest.raises(DivergenceError, match="'request-9' with different content"):
                await durable.run(task=TASKS[1], id="request-9")
            assert len(place.prompts) == sent

    asyncio.run(go())


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_script_of_two_steps_can_be_run_again_wherever_it_was_cut(place: Place, at: int) -> None:
    async def script(session: str) -> list[Any]:
        async with place.durable(teams.round_robin, session=session) as durable:
            first = await durable.run(task=TASKS[0], id="step-1")
            second = await durable.run(task=TASKS[1], id="step-2")
            return [[one.content for one in result.messages] for result in (first, second)]

    async def go() -> None:
        wanted = await script("whole")
        asked = len(place.prompts)
        place.server.fault(status=500, at=len(place.server.requests) + asked // 2 + at)
        with pytest.raises(RuntimeError):
            await script("cut")
        assert await script("cut") == wanted
        sent = len(place.prompts)
        assert await script("cut") == wanted
        assert len(place.prompts) == sent
        assert place.messages("cut") == place.messages("whole")

    asyncio.run(go())


def test_an_abandoned_run_is_not_run_again_under_its_id(place: Place) -> None:
    async def go() -> None:
        await cut(place, teams.round_robin, id="request-9")
        async with place.durable(teams.round_robin) as durable:
            await durable.abandon("not wanted")
            with pytest.raises(UsageError, match="'request-9' was abandoned: choose another id"):
                await durable.run(task=TASKS[0], id="request-9")

    asyncio.run(go())


@pytest.mark.parametrize("name", ["single", "several", "magentic"])
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_the_task_can_be_left_out_of_what_is_told(name: str, place: Place) -> None:
    task = teams.GIVEN.get(name, str)(TASKS[0])
    less = {"output_task_messages": False}

    async def go() -> None:
        build = teams.TEAMS[name]
        async with place.durable(build, session="whole") as durable:
            whole = await durable.run(task=task)
        count = 2 if name == "several" else 1
        wanted = [one.content for one in whole.messages[count:]]
        async with place.durable(build) as durable:
            stream = durable.run_stream(task=task, id="request-9", **less)
            *told, result = [one async for one in stream]
            assert [one.content for one in told] == wanted
            assert [one.content for one in result.messages] == wanted
            assert result.stop_reason == whole.stop_reason
        async with place.durable(build) as durable:
            assert await durable.run(id="request-9", **less) == result
            again = await durable.run(id="request-9")
            assert [one.content for one in again.messages[count:]] == wanted
            assert [one.source for one in again.messages[:count]] == ["user", "ana"][:count]
        assert place.messages() == place.messages("whole")

    asyncio.run(go())


def test_one_team_can_serve_several_sessions_in_turn(place: Place) -> None:
    async def go() -> None:
        for session in ("a", "b"):
            await twice(place, teams.selector, session)
        wanted = place.prompts
        client = Client(place.server.url)
        team = teams.selector(World(client, place.ledger))
        async with perdure.open_async(place.path) as store:
            for task in TASKS:
                for name in ("c", "d"):
                    async with persist(await store.session(name), team) as durable:
                        await durable.run(task=task)
        await client.close()
        half = len(wanted) // 2
        sent = place.prompts[len(wanted) :]
        assert sorted(map(str, sent)) == sorted(map(str, wanted))
        assert wanted[:half] == wanted[half:]
        assert place.messages("c") == place.messages("d") == place.messages("a")

    asyncio.run(go())


def test_a_team_is_itself_again_when_it_is_let_go(place: Place) -> None:
    async def go() -> None:
        client = Client(place.server.url)
        agent = clerk(World(client, place.ledger))
        before = {**vars(agent)}
        tool = agent_tools(agent)[0]
        function = tool._func
        async with perdure.open_async(place.path) as store:
            async with persist(await store.session("s"), agent) as durable:
                assert agent._model_client is not before["_model_client"]
                assert tool._func is not function
                await durable.run(task=TASKS[0])
            assert {**vars(agent)} == before
            assert tool._func is function
            with pytest.raises(UsageError, match="not open"):
                await durable.run(task=TASKS[1])
        await client.close()

    asyncio.run(go())


def agent_tools(agent: Any) -> Any:
    return [tool for bench in agent._workbench for tool in bench._tools]


# Bad input: nothing runs.


def renamed(world: World) -> Any:
    return RoundRobinGroupChat([clerk(world, "clerc"), critic(world)], max_turns=3)


def shortened(world: World) -> Any:
    return RoundRobinGroupChat([clerk(world)], max_turns=3)


def reordered(world: World) -> Any:
    return RoundRobinGroupChat([critic(world), clerk(world)], max_turns=3)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (renamed, "no longer has 'clerk' \\('clerc' was added\\)"),
        (shortened, "no longer has 'critic'"),
        (reordered, "has critic, clerk, and had clerk, critic"),
        (teams.selector, "'RoundRobinGroupChat', a RoundRobinGroupChat, and not"),
        (teams.single, "and not 'clerk', a AssistantAgent"),
    ],
)
@pytest.mark.parametrize("cutting", ["", "cut"])
def test_another_team_than_the_one_that_is_kept_is_refused(
    other: Build, told: str, cutting: str, place: Place
) -> None:
    async def go() -> None:
        if cutting:
            await cut(place, teams.round_robin)
        else:
            async with place.durable(teams.round_robin) as durable:
                await durable.run(task=TASKS[0])
        sent, kept = len(place.prompts), place.messages()
        with pytest.raises(UsageError, match=told):
            async with place.durable(other):
                pass
        assert (len(place.prompts), place.messages()) == (sent, kept)

    asyncio.run(go())


def toolless(world: World) -> Any:
    members = [critic(world, "clerk"), critic(world)]
    return RoundRobinGroupChat(members, max_turns=3)


def test_a_cut_run_whose_tool_is_gone_is_refused(place: Place) -> None:
    async def go() -> None:
        await cut(place, teams.round_robin)
        sent = len(place.prompts)
        async with place.durable(toolless) as durable:
            with pytest.raises(UsageError, match="no longer has the tool 'charge'"):
                await durable.run()
        assert len(place.prompts) == sent
        async with place.durable(teams.round_robin) as durable:
            await durable.run()
        async with place.durable(toolless) as durable:  # A run that is over does not need it.
            await durable.run(task=TASKS[1])

    asyncio.run(go())


def reworded(world: World) -> Any:
    other = AssistantAgent("critic", world.client, system_message="I am somebody else.")
    return RoundRobinGroupChat([clerk(world), other], max_turns=9)


def test_a_cut_run_that_asks_something_else_now_is_a_divergence(place: Place) -> None:
    async def go() -> None:
        place.server.fault(status=500, at=4)
        async with place.durable(teams.round_robin) as durable:
            with pytest.raises(RuntimeError, match="500"):
                await durable.run(task=TASKS[0])
        sent = len(place.prompts)
        async with place.durable(reworded) as durable:
            with pytest.raises(DivergenceError, match=r"critic:model#1.*abandon"):
                await durable.run()
            assert len(place.prompts) == sent
            assert durable.interrupted == TASKS[0]
            await durable.abandon()
            await durable.run(task=TASKS[1])

    asyncio.run(go())


def test_what_can_not_work_is_refused(place: Place) -> None:
    async def go() -> None:
        with pytest.raises(UsageError, match="no tool is called 'chrage'"):
            async with place.durable(teams.single, tools={"chrage": "idempotent"}):
                pass
        wrong: Any = "at most once"
        with pytest.raises(UsageError, match="unknown effect 'at most once' of 'charge'"):
            async with place.durable(teams.single, tools={"charge": wrong}):
                pass
        with pytest.raises(UsageError, match="pass an agent or a team"):
            async with place.durable(lambda _: "a team"):
                pass
        with perdure.open("memory:") as store:
            session: Any = store.session("s")
            with pytest.raises(UsageError, match="open_async"):
                persist(session, teams.single(World(Client(place.server.url), place.ledger)))
        async with place.durable(teams.single) as durable:
            for task in ([], 17, ["text"]):
                with pytest.raises(UsageError, match="a task"):
                    await durable.run(task=task)

    asyncio.run(go())
    assert place.prompts == []


def test_a_session_that_holds_another_conversation_is_refused(place: Place) -> None:
    async def go() -> None:
        with perdure.open(place.path) as store:
            store.session(SESSION).append({"role": "user", "content": "Who am I?"})
        match = "holds a conversation that is not an AgentChat team's"
        with pytest.raises(UsageError, match=match):
            async with place.durable(teams.single):
                pass

    asyncio.run(go())
    assert place.prompts == []


@pytest.mark.parametrize("name", ["single", "round_robin"])
def test_a_team_that_is_kept_can_not_be_run_unrecorded(name: str, place: Place) -> None:
    async def go() -> None:
        client = Client(place.server.url)
        team = teams.TEAMS[name](World(client, place.ledger))
        async with perdure.open_async(place.path) as store:
            async with persist(await store.session(SESSION), team) as durable:
                for run in (team.run, team.run_stream):
                    with pytest.raises(UsageError, match="of what persist"):
                        run(task=TASKS[0])
                assert place.prompts == []
                await durable.run(task=TASKS[0])
            assert not {"run", "run_stream"} & vars(team).keys()
        await client.close()

    asyncio.run(go())


def test_other_versions_of_the_package_are_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = None
    monkeypatch.setattr(introspection, "version", lambda _: "0.8.0")
    with pytest.raises(UnsupportedError, match=r"0\.8\.0 is not supported.*>=0\.7,<0\.8"):
        persist(session, None)


# Two processes.


def test_of_two_that_go_on_with_a_run_one_does(place: Place) -> None:
    async def go() -> None:
        await twice(place, teams.round_robin, "whole")
        wanted = place.prompts
        async with place.durable(teams.round_robin) as slow:
            stream = slow.run_stream(task=TASKS[0])
            await anext(stream)
            await anext(stream)
            async with place.durable(teams.round_robin) as other:
                assert other.interrupted == TASKS[0]
                await other.run(task=TASKS[0])
                with pytest.raises(ConflictError):
                    async for _ in stream:
                        pass
                await other.run(task=TASKS[1])
        sent = {str(one) for one in place.prompts[len(wanted) :]}
        assert sent == {str(one) for one in wanted}
        assert place.messages() == place.messages("whole")

    asyncio.run(go())


@pytest.mark.parametrize("pause", [0, 1, 4])
def test_of_two_that_begin_at_once_at_most_one_goes_on(pause: int, place: Place) -> None:
    async def begin(number: int) -> str:
        async with place.durable(teams.single) as durable:
            for _ in range(number * pause):
                await asyncio.sleep(0.001)
            try:
                await durable.run(task=f"Task {number}.")
            except (ConflictError, UsageError) as error:
                return type(error).__name__
        return "done"

    async def go() -> list[str]:
        return [*await asyncio.gather(begin(1), begin(2))]

    ends = asyncio.run(go())
    assert set(ends) <= {"done", "ConflictError", "UsageError"}
    roles = [(one["role"], one["content"]) for one in place.messages()]
    with perdure.open(place.path) as store:
        records = [*store.session(SESSION).records()]
    turns = [one.content.turn for one in records if isinstance(one.content, Message)]
    assert turns == sorted(turns, key=turns.index), roles  # One after the other, never mixed.


def test_one_that_begins_while_another_has_begun_gives_way(place: Place) -> None:
    async def go() -> None:
        async with place.durable(teams.single) as late, place.durable(teams.single) as first:
            stream = first.run_stream(task="Task 1.")
            listing = late._saved_runs._tools

            async def slowly() -> Any:
                await anext(stream)
                return await listing()

            late._saved_runs._tools = slowly
            with pytest.raises(ConflictError, match=r"value record came first"):
                await late.run(task="Task 2.")
            late._saved_runs._tools = listing
            async with place.durable(teams.single) as other:
                assert other.interrupted == "Task 1."
            assert isinstance([one async for one in stream][-1], TaskResult)
            await late.run(task="Task 3.")
        prompts = str(place.prompts)
        assert "Task 1." in prompts
        assert "Task 2." not in prompts

    asyncio.run(go())


def test_a_cut_run_is_known_though_another_was_about_to_begin(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have said what they are about to do when the first begins; the second gives way."""
    said, begun, setting = asyncio.Event(), asyncio.Event(), perdure.AsyncSession.set
    waiting: list[Any] = []

    async def go() -> None:
        async with place.durable(teams.swarm) as first, place.durable(teams.swarm) as late:

            async def set(session: Any, key: str, value: Any) -> int:
                version = await setting(session, key, value)
                if key == RUN_KEY and session is first._session and not waiting:
                    waiting.append(asyncio.ensure_future(late.run(task="Task 2.")))
                    await said.wait()
                elif key == RUN_KEY and session is late._session:
                    said.set()
                    await begun.wait()
                return version

            monkeypatch.setattr(perdure.AsyncSession, "set", set)
            stream = first.run_stream(task=teams.handed("Task 1."))
            await anext(stream)
            begun.set()
            with pytest.raises(ConflictError, match="came first"):
                await waiting[0]
            await stream.aclose()
        async with place.durable(teams.swarm) as durable:
            assert durable.interrupted == "Task 1."
            result = await durable.run()
        assert isinstance(result.messages[0], HandoffMessage)
        assert result.messages[1].source == "lawyer"
        assert "Task 2." not in str(place.prompts)

    asyncio.run(go())


def test_a_run_of_which_nothing_is_known_can_be_given_up(place: Place) -> None:
    """As a version before this one left it that died at its beginning."""

    async def go() -> None:
        async with place.durable(teams.single) as durable:
            await durable.run(task=TASKS[0])
            turn = durable._session.turn(TASKS[1], id="agentchat.other")
            await turn.__aenter__()
            await turn.suspend()
        async with place.durable(teams.single) as durable:
            with pytest.raises(UsageError, match="nothing is recorded about the interrupted run"):
                await durable.run(task=TASKS[1])
            await durable.abandon()
            await durable.run(task=TASKS[1])
        assert len(place.prompts[-1]) > len(place.prompts[0])

    asyncio.run(go())


def test_a_run_begins_in_a_state_that_was_kept_while_it_was_about_to(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = perdure.AsyncSession.set

    async def go() -> None:
        async with place.durable(teams.single) as late, place.durable(teams.single) as first:
            await first.run(task=TASKS[0])

            async def set(session: Any, key: str, value: Any) -> int:
                version = await setting(session, key, value)
                if key == RUN_KEY and session is late._session:
                    monkeypatch.undo()
                    await first._root.component.on_reset(CancellationToken())
                    await first._session.refresh()
                    await first._saved_runs._current_version()
                return version

            monkeypatch.setattr(perdure.AsyncSession, "set", set)
            place.server.fault(status=500, at=len(place.prompts) + 2)
            with pytest.raises(Exception, match="500"):
                await late.run(task=TASKS[1])
            await late.run()
        assert TASKS[0] not in str(place.prompts[-1])

    asyncio.run(go())


# Things that the package does not keep.


def remembering(world: World) -> Any:
    notes = [MemoryContent(content="The limit is 5000.", mime_type="text/plain")]
    return critic(world, memory=[ListMemory(memory_contents=notes)])


def test_memory_is_kept_as_it_was(place: Place) -> None:
    async def go() -> None:
        async with place.durable(remembering) as durable:
            memory = durable._root.component._memory[0]
            await memory.add(MemoryContent(content="Ask Ana.", mime_type="text/plain"))
            await durable.run(task=TASKS[0])
        async with place.durable(remembering) as durable:
            memory = durable._root.component._memory[0]
            assert [one.content for one in memory.content] == ["The limit is 5000.", "Ask Ana."]
            await durable.run(task=TASKS[1])
        assert all("Ask Ana." in str(prompt) for prompt in place.prompts)

    asyncio.run(go())


def buffered(world: World) -> Any:
    return critic(world, model_context=BufferedChatCompletionContext(3))


def test_a_bounded_context_stays_bounded(place: Place) -> None:
    async def go() -> None:
        for task in [*TASKS, "And now?"]:
            async with place.durable(buffered) as durable:
                await durable.run(task=task)
        assert [len(prompt) for prompt in place.prompts] == [2, 4, 4]

    asyncio.run(go())


def told(world: World) -> Any:
    """A selector that was told something before anybody spoke, and forgets what is long ago."""
    first = UserMessage(content="The house rules.", source="user")
    context = BufferedChatCompletionContext(4, initial_messages=[first])
    members = [critic(world), critic(world, "lawyer")]
    return SelectorGroupChat(
        members, world.client, max_turns=2, model_context=context, allow_repeated_speaker=True
    )


def test_what_a_selector_was_told_at_first_stays(place: Place) -> None:
    async def go() -> None:
        async with place.durable(told, session="whole") as durable:
            for task in TASKS:
                await durable.run(task=task)
        wanted = place.prompts
        for task in TASKS:
            async with place.durable(told) as durable:
                place.server.fault(status=500, at=len(place.prompts) + 3)
                with pytest.raises(RuntimeError, match="500"):
                    await durable.run(task=task)
                await durable.run()
        assert without_repeats(place.prompts[len(wanted) :]) == wanted
        assert "The house rules." in str(wanted[0])

    asyncio.run(go())


def asking(answers: list[str]) -> Build:
    def ask(prompt: str) -> str:
        return answers.pop(0)

    def build(world: World) -> Any:
        person = UserProxyAgent("ana", input_func=ask)
        return RoundRobinGroupChat([person, critic(world)], max_turns=4)

    return build


def test_a_person_is_not_asked_twice(place: Place) -> None:
    async def go() -> None:
        answers = ["Shorter.", "Better."]
        place.server.fault(status=500, at=2)
        async with place.durable(asking(answers)) as durable:
            with pytest.raises(RuntimeError, match="500"):
                await durable.run(task=TASKS[0])
        assert answers == []
        async with place.durable(asking(answers)) as durable:
            result = await durable.run()
        said = [one.content for one in result.messages if one.source == "ana"]
        assert said[1:3:2] == ["Shorter."]
        assert "Better." in said
        assert [one["role"] for one in place.messages()].count("user") == 3

    asyncio.run(go())


def stopping(world: World) -> Any:
    """A graph that goes round and round behind its first node, and stops after each two turns."""
    names = ("first", "writer", "reviewer", "filer")
    first, writer, reviewer, filer = (critic(world, name) for name in names)
    builder = DiGraphBuilder()
    for node in (first, writer, reviewer, filer):
        builder.add_node(node)
    builder.add_edge(first, writer, activation_group="in").add_edge(writer, reviewer)
    builder.add_edge(reviewer, writer, condition=lambda _: True, activation_group="back")
    builder.add_edge(reviewer, filer, condition=lambda _: False)
    builder.set_entry_point(first)
    return GraphFlow(builder.get_participants(), builder.build(), max_turns=2)


def test_a_graph_that_stopped_in_a_cycle_goes_on_in_another_process(place: Place) -> None:
    async def go() -> None:
        async with place.durable(stopping, session="whole") as durable:
            await durable.run(task=TASKS[0])
            for _ in range(4):
                await durable.run()
        wanted = place.prompts
        async with place.durable(stopping) as durable:
            await durable.run(task=TASKS[0])
        for _ in range(4):
            async with place.durable(stopping) as durable:
                await durable.run()
        assert len(wanted) == 10
        assert place.prompts[len(wanted) :] == wanted
        assert place.messages() == place.messages("whole")

    asyncio.run(go())


def fan(world: World) -> Any:
    """Two who work side by side, one who waits for both, and one after that."""
    names = ("first", "left", "right", "last", "end")
    first, left, right, last, end = (critic(world, name) for name in names)
    builder = DiGraphBuilder()
    for node in (first, left, right, last, end):
        builder.add_node(node)
    builder.add_edge(first, left).add_edge(first, right)
    builder.add_edge(left, last).add_edge(right, last).add_edge(last, end)
    return GraphFlow(builder.get_participants(), builder.build())


@pytest.mark.parametrize("slow", [2, 3])
@pytest.mark.parametrize("failing", [4, 5])
def test_what_came_side_by_side_comes_in_the_same_order_again(
    slow: int, failing: int, place: Place
) -> None:
    async def go() -> None:
        place.server.fault("slow", seconds=0.3, at=slow)
        place.server.fault(status=500, at=failing)
        async with place.durable(fan) as durable:
            with pytest.raises(RuntimeError, match="500"):
                await durable.run(task=TASKS[0])
        order = [one for one in place.authors() if one in ("left", "right")]
        async with place.durable(fan) as durable:
            result = await durable.run()
        assert result.messages[-1].source == "end"
        assert len(place.prompts) == 6
        assert place.prompts[failing - 1] == place.prompts[5 if failing == 5 else 4]
        speakers = [one.source for one in result.messages[2:4]]
        assert speakers == order  # Which is almost always that of the server's answers.
        assert sorted(order) == ["left", "right"]

    asyncio.run(go())


def test_a_task_can_be_any_message(place: Place) -> None:
    async def go() -> None:
        task = [
            TextMessage(content="Hello.", source="user"),
            HandoffMessage(content="Take over.", source="user", target="critic"),
        ]
        await cut(place, teams.swarm, task)
        async with place.durable(teams.swarm) as durable:
            assert durable.interrupted == "Hello.\nTake over."
            await durable.run(task=task)
        assert [one["content"] for one in place.messages()[:2]] == ["Hello.", "Take over."]

    asyncio.run(go())


def test_who_has_a_lease_keeps_the_team(place: Place) -> None:
    async def go() -> None:
        async with place.durable(teams.single, lease=20) as durable:
            await durable.run(task=TASKS[0])
            with pytest.raises(LeaseHeldError):
                async with place.durable(teams.single, lease=0.1):
                    pass
            async with place.durable(teams.single) as other:
                with pytest.raises(LeaseHeldError):
                    await other.run(task="Something else.")
            await durable.run(task=TASKS[1])
        async with place.durable(teams.single, lease=20) as durable:
            await durable.run(task="And now?")
        assert "Something else." not in str(place.prompts)

    asyncio.run(go())


def test_a_reconcile_function_can_be_given_as_in_other_adapters(place: Place) -> None:
    async def go() -> None:
        found = {"effect": "reconcile", "reconcile": place.ledger.find_out}
        async with place.durable(teams.single, tools={"charge": found}) as durable:
            await durable.run(task=TASKS[0])
            effects = await durable._session.effects.list(kind="tool")
            assert {effect.policy for effect in effects} == {"reconcile"}

    asyncio.run(go())


def test_a_result_that_cannot_be_stored_does_not_stop_a_run_for_good(place: Place) -> None:
    """The client cannot send it either, so the run fails; then it goes on without it."""
    charged: list[int] = []

    def charge(amount: int) -> str:
        """Charge an amount."""
        charged.append(amount)
        return "paid \ud800"

    def build(world: World) -> Any:
        return AssistantAgent("clerk", world.client, tools=[charge], reflect_on_tool_use=True)

    async def go() -> None:
        with pytest.raises((UnicodeError, UsageError)):
            async with place.durable(build) as durable:
                await durable.run(task=TASKS[0])
        paid = [*charged]
        async with place.durable(build) as durable:
            await durable.run()
            effects = await durable._session.effects.list(kind="tool")
        assert charged == paid != []
        assert {(one.state, one.unstored) for one in effects} == {("succeeded", "dict")}
        told = [one["content"] for one in place.messages() if one["role"] == "tool"]
        assert {*told} == {"The call succeeded. Its result of type dict could not be stored."}

    asyncio.run(go())


PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Verdict(BaseModel):
    """What a structured answer says."""

    reason: str
    limit: int


def judging(world: World) -> Any:
    judge = AssistantAgent("judge", world.client, output_content_type=Verdict)
    kinds = [StructuredMessage[Verdict]]
    return RoundRobinGroupChat([judge, critic(world)], max_turns=3, custom_message_types=kinds)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_pictures_and_structured_answers_are_restored(place: Place, path: Path) -> None:
    async def go() -> None:
        picture = MultiModalMessage(content=["Look.", Image.from_base64(PIXEL)], source="user")
        with ModelServer() as server:
            place.server = server
            await cut(place, judging, picture)
            async with place.durable(judging) as durable:
                first = await durable.run(task=picture)
            async with place.durable(judging) as durable:
                second = await durable.run(task="And now?", id="request-9")
            async with place.durable(judging) as durable:
                assert await durable.run(task="And now?", id="request-9") == second
            assert isinstance(first.messages[1].content, Verdict)
            assert "data:image/png" in str(place.prompts[-1])

    asyncio.run(go())


def test_a_run_that_is_cancelled_can_be_gone_on_with(place: Place) -> None:
    async def go() -> None:
        async with place.durable(teams.round_robin) as durable:
            token = CancellationToken()
            stream = durable.run_stream(task=TASKS[0], cancellation_token=token)
            await anext(stream)
            token.cancel()
            with pytest.raises(asyncio.CancelledError):
                async for _ in stream:
                    pass
            assert durable.interrupted == TASKS[0]
            assert isinstance(await durable.run(), TaskResult)
            begun = asyncio.Event()

            async def again() -> None:
                async for _ in durable.run_stream(task=TASKS[1]):
                    begun.set()

            running = asyncio.ensure_future(again())
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert durable.interrupted == TASKS[1]
            assert isinstance(await durable.run(), TaskResult)

    asyncio.run(go())


def test_a_replayed_agent_can_not_run_a_team_in_a_live_session(place: Place) -> None:
    async def go() -> None:
        async with place.durable(teams.TEAMS["single"], session="live") as durable:
            before = place.messages("live")

            async def agent(_session: perdure.AsyncSession) -> None:
                await durable.run(task=TASKS[0])

            async with perdure.open_async("memory:") as store:
                replay = await perdure.replay(await store.session("s"), agent)
            assert isinstance(replay.error, perdure.ReplayBlockedError)
            assert (place.messages("live"), place.prompts) == (before, [])
            await durable.run(task=TASKS[0])
            assert place.messages("live") != before

    asyncio.run(go())
