"""Durable runs: what is recorded, what continues, what is not done twice, what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import mcp.types as mcp
import openai
import pytest
from agents import (
    Agent,
    CustomTool,
    GuardrailFunctionOutput,
    InputGuardrail,
    LocalShellTool,
    MaxTurnsExceeded,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    OutputGuardrail,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunHooks,
    Runner,
    SessionSettings,
    ToolOutputImage,
)
from agents.exceptions import InputGuardrailTripwireTriggered
from agents.mcp import MCPServer

import perdure
from perdure.adapters.openai_agents import PerdureSession
from perdure.formats.tool_calls import INTERRUPTED_NOTICE
from perdure.testing import ModelServer
from perdure.testing.provider_rules import violations
from tests.adapters.openai_agents.agents_of import Ledger, build, current_key, make_client, tool

pytestmark = pytest.mark.anyio

CHARGE = '[[tool charge {"amount": 5}]] Pay.'


def clerk(client: Any, *tools: Any, **options: Any) -> Any:
    model = OpenAIResponsesModel("gpt-4o", client)
    return Agent(name="clerk", model=model, tools=[*tools], **options)


async def seen(store: perdure.AsyncStore, id: str = "s") -> Any:
    session = await store.session(id)
    await session.verify()
    return session


async def effects(store: perdure.AsyncStore) -> list[tuple[str, str]]:
    session = await seen(store)
    return [(each.tool, each.state) for each in await session.effects.list()]


async def test_a_run_is_a_turn_whose_items_every_seat_can_read(
    any_store: perdure.AsyncStore, client: Any, ledger: Ledger
) -> None:
    own = PerdureSession("s", any_store)
    result = await own.run(build("plain", client, ledger), f"[[reason]] {CHARGE}")
    session = await seen(any_store)
    assert session.interrupted == ()
    assert await session.messages() == await own.get_items() == result.to_input_list()
    authors = [record.content.author async for record in session.records(kinds=["message"])]
    assert authors == ["", "clerk", "clerk", "", "clerk"]
    for format in ("openai.chat", "openai.responses", "anthropic", "gemini"):
        transcript = await session.messages(format=format)
        assert violations(format, transcript, system=transcript.system) == []
    assert await effects(any_store) == [
        ("gpt-4o", "succeeded"),
        ("charge", "succeeded"),
        ("gpt-4o", "succeeded"),
    ]


async def test_a_run_that_failed_continues_where_it_was(
    store: perdure.AsyncStore, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    agent = build("plain", client, ledger)
    server.fault(status=500, at=2)
    with pytest.raises(openai.InternalServerError):
        await PerdureSession("s", store).run(agent, CHARGE)
    own = PerdureSession("s", store)
    assert await own.interrupted() == [{"role": "user", "content": CHARGE}]
    result = await own.run(agent, CHARGE)
    assert len(server.requests) == 3
    assert ledger.amounts == [5]
    assert server.requests[1].body["input"] == server.requests[2].body["input"]
    assert await own.interrupted() is None
    await own.run(agent, CHARGE)  # Without an id, the same words again are another request.
    assert ledger.amounts == [5, 5]
    assert result.final_output


async def test_a_run_continues_without_an_input_and_with_fewer_limits(
    store: perdure.AsyncStore, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    agent = build("plain", client, ledger)
    own = PerdureSession("s", store)
    with pytest.raises(MaxTurnsExceeded):
        await own.run(agent, CHARGE, max_turns=1)
    result = await PerdureSession("s", store).run(agent)
    assert result.final_output.startswith("Answer")
    assert (len(server.requests), ledger.amounts) == (2, [5])
    with pytest.raises(perdure.UsageError, match="no run to continue"):
        await own.run(agent)


async def test_another_input_begins_another_run_and_the_model_learns_what_is_unknown(
    store: perdure.AsyncStore, client: Any, server: ModelServer
) -> None:
    running = asyncio.Event()

    @tool()
    async def charge(amount: int) -> str:
        """Charge."""
        running.set()
        await asyncio.sleep(60)
        return f"charged {amount}"

    run = asyncio.ensure_future(PerdureSession("s", store).run(clerk(client, charge), CHARGE))
    await running.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    result = await PerdureSession("s", store).run(clerk(client, charge), "What happened?")
    sent = server.requests[-1].body["input"]
    assert INTERRUPTED_NOTICE in str([item for item in sent if "output" in item])
    assert sent[-1] == {"role": "user", "content": "What happened?"}
    assert result.final_output
    assert ("charge", "unknown") in await effects(store)
    assert (await seen(store)).interrupted == ()


async def test_an_id_names_one_request(
    store: perdure.AsyncStore, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    agent = build("plain", client, ledger)
    own = PerdureSession("s", store)
    first = await own.run(agent, CHARGE, id="r1")
    await own.run(agent, "Something else.", id="r2")
    position = (await own.open()).position
    again = await PerdureSession("s", store).run(agent, CHARGE, id="r1")
    assert again.final_output == first.final_output
    assert again.to_input_list() == first.to_input_list()
    assert again.context_wrapper.usage.total_tokens == first.context_wrapper.usage.total_tokens
    assert (await seen(store)).position == position
    assert (len(server.requests), ledger.amounts) == (3, [5])
    with pytest.raises(perdure.DivergenceError):
        await own.run(agent, "Other words.", id="r1")


async def test_an_ended_run_with_other_code_is_a_divergence(
    store: perdure.AsyncStore, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    own = PerdureSession("s", store)
    await own.run(clerk(client), "Hello.", id="r1")

    def longer(call: Any) -> Any:
        return call.model_data

    guarded = clerk(client, handoffs=[])
    guarded.output_type = dict  # The recorded answer is no JSON: the SDK would ask again.
    with pytest.raises(Exception, match=r"(?i)json|schema"):
        await own.run(guarded, "Hello.", id="r1")
    assert len(server.requests) == 1


async def test_a_stream_that_is_read_again_has_the_same_answer(
    store: perdure.AsyncStore, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    agent = build("streamed", client, ledger)
    texts: list[str] = []
    for _ in range(2):
        result = await PerdureSession("s", store).run_streamed(agent, CHARGE, id="r1")
        deltas = [
            event.data.delta
            async for event in result.stream_events()
            if event.type == "raw_response_event"
            and event.data.type == "response.output_text.delta"
        ]
        assert "".join(deltas) == result.final_output
        texts.append(result.final_output)
    assert texts[0] == texts[1]
    assert (len(server.requests), ledger.amounts) == (2, [5])


async def test_a_stream_that_breaks_is_asked_for_again_and_nothing_else(
    store: perdure.AsyncStore, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    agent = build("streamed", client, ledger)
    server.fault("disconnect", at=2, after_chunks=3)
    result = await PerdureSession("s", store).run_streamed(agent, CHARGE)
    with pytest.raises(Exception, match=r"(?i)connect|closed|peer"):
        async for _ in result.stream_events():
            pass
    result = await PerdureSession("s", store).run_streamed(agent, CHARGE)
    async for _ in result.stream_events():
        pass
    assert result.final_output
    assert (len(server.requests), ledger.amounts) == (3, [5])


async def test_who_speaks_is_recorded(
    store: perdure.AsyncStore, client: Any, ledger: Ledger
) -> None:
    triage = build("handoff", client, ledger)
    own = PerdureSession("s", store)
    assert await own.current_agent(triage) is triage
    result = await own.run(triage, f"[[tool transfer_to_billing {{}}]] [[then]] {CHARGE}")
    assert result.last_agent is triage.handoffs[0]
    other = PerdureSession("s", store)
    assert await other.current_agent(triage) is triage.handoffs[0]
    with pytest.raises(perdure.UsageError, match="'billing'"):
        await other.current_agent(clerk(client))
    session = await seen(store)
    authors = [r.content.author async for r in session.records(kinds=["message"])]
    assert [author for author in authors if author] == ["triage", "billing", "billing"]


async def test_an_agent_that_is_a_tool_is_recorded_step_by_step(
    store: perdure.AsyncStore, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    text = '[[tool ask_expert {"input": "[[tool charge {\\"amount\\": 5}]] Do it."}]] Ask.'
    server.fault(status=500, at=4)
    agent = build("nested", client, ledger)
    with pytest.raises(openai.InternalServerError):
        await PerdureSession("s", store).run(agent, text)
    await PerdureSession("s", store).run(agent, text)
    assert (len(server.requests), ledger.amounts) == (5, [5])
    assert [state for _, state in await effects(store)] == ["succeeded"] * 5
    items = await PerdureSession("s", store).get_items()
    assert [item.get("name") for item in items if "call_id" in item] == ["ask_expert", None]


async def test_a_tool_that_fails_is_recorded_as_failed(
    store: perdure.AsyncStore, client: Any
) -> None:
    @tool()
    def plain() -> str:
        """Fail."""
        raise ValueError("boom")

    @tool(failure_error_function=lambda _, error: f"sorry: {error}")
    def polite() -> str:
        """Fail."""
        raise ValueError("boom")

    @tool(failure_error_function=None)
    def strict() -> str:
        """Fail."""
        raise ValueError("boom")

    own = PerdureSession("s", store)
    await own.run(clerk(client, plain, polite), "[[tool plain {}]] [[tool polite {}]]")
    outputs = [item["output"] for item in await own.get_items() if "output" in item]
    assert outputs == ["Error: ValueError: boom", "sorry: boom"]
    with pytest.raises(Exception, match="boom"):
        await own.run(clerk(client, strict), "[[tool strict {}]]")
    await own.run(clerk(client, strict), "[[tool strict {}]]")
    states = [each for each in await effects(store) if each[0] != "gpt-4o"]
    assert states == [("plain", "failed"), ("polite", "succeeded"), ("strict", "failed")]


async def test_a_tool_that_takes_too_long_is_unknown_and_the_agent_goes_on(
    store: perdure.AsyncStore, client: Any
) -> None:
    @tool(timeout=0.05)
    async def slow() -> str:
        """Wait."""
        await asyncio.sleep(5)
        return "late"

    own = PerdureSession("s", store)
    await own.run(clerk(client, slow), "[[tool slow {}]]", id="r1")
    [output] = [item["output"] for item in await own.get_items() if "output" in item]
    assert "timed out" in output
    assert ("slow", "unknown") in await effects(store)
    position = (await own.open()).position
    again = await PerdureSession("s", store).run(clerk(client, slow), "[[tool slow {}]]", id="r1")
    assert again.final_output
    assert (await seen(store)).position == position


async def test_results_that_are_no_text_come_back_as_they_were(
    store: perdure.AsyncStore, client: Any
) -> None:
    @tool()
    def picture() -> ToolOutputImage:
        """Show."""
        return ToolOutputImage(image_url="https://example.org/a.png")

    @tool()
    def table() -> dict[str, int]:
        """Count."""
        return {"a": 1}

    text = "[[tool picture {}]] [[tool table {}]]"
    results = [
        await PerdureSession("s", store).run(clerk(client, picture, table), text, id="r1")
        for _ in range(2)
    ]
    assert results[0].to_input_list() == results[1].to_input_list()
    outputs = [item["output"] for item in results[0].to_input_list() if "output" in item]
    assert outputs == [
        [{"type": "input_image", "image_url": "https://example.org/a.png"}],
        "{'a': 1}",
    ]
    assert await PerdureSession("s", store).get_items() == results[0].to_input_list()


async def test_a_tool_that_acts_on_this_machine_is_refused_before_anything_runs(
    store: perdure.AsyncStore, client: Any, server: ModelServer
) -> None:
    agent = clerk(client, LocalShellTool(executor=lambda _: ""))
    with pytest.raises(perdure.UnsupportedError, match="'local_shell'"):
        await PerdureSession("s", store).run(agent, "Hello.")
    assert server.requests == []
    assert (await seen(store)).position == 0


async def test_what_a_guardrail_withholds_is_taken_back(
    store: perdure.AsyncStore, client: Any, server: ModelServer
) -> None:
    async def trip(context: Any, agent: Any, output: Any) -> Any:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered="secret" in str(output))

    guarded = clerk(client, output_guardrails=[OutputGuardrail(trip)])
    own = PerdureSession("s", store)
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await own.run(guarded, "[[say a secret]]")
    assert "a secret" not in str([item for item in await own.get_items() if item["role"] != "user"])
    inputs = clerk(client, input_guardrails=[InputGuardrail(trip)])
    with pytest.raises(InputGuardrailTripwireTriggered):
        await own.run(inputs, "a secret")
    assert (await own.run(guarded, "Hello.")).final_output.startswith("Answer")
    assert (await seen(store)).interrupted == ()


async def test_outside_of_a_durable_run_agents_and_tools_are_as_they_were(
    store: perdure.AsyncStore, client: Any, ledger: Ledger
) -> None:
    agent = build("plain", client, ledger)
    await PerdureSession("s", store).run(agent, CHARGE)
    position = (await seen(store)).position
    result = await Runner.run(agent, CHARGE)
    assert ledger.amounts == [5, 5]
    assert result.final_output
    plain = PerdureSession("t", store)
    await Runner.run(agent, CHARGE, session=plain)
    assert ledger.amounts == [5, 5, 5]
    assert len(await plain.get_items()) == 4
    assert (await seen(store)).position == position


async def test_options_of_the_runner_are_passed_on(
    store: perdure.AsyncStore, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    told: list[str] = []

    class Hooks(RunHooks):  # type: ignore[misc]
        async def on_llm_start(self, *args: Any) -> None:
            told.append("start")

        async def on_tool_end(self, *args: Any) -> None:
            told.append("tool")

        async def on_agent_end(self, *args: Any) -> None:
            told.append("end")

    def newest(history: list[Any], new: list[Any]) -> list[Any]:
        return [*history[-1:], *new]

    config = RunConfig(
        model=OpenAIChatCompletionsModel("gpt-4o-mini", client),
        session_input_callback=newest,
        session_settings=SessionSettings(limit=2),
    )
    own = PerdureSession("s", store)
    agent = build("plain", client, ledger)
    for _ in range(2):
        await own.run(agent, CHARGE, hooks=Hooks(), run_config=config)
    assert told == ["start", "tool", "start", "end"] * 2
    assert {request.body["model"] for request in server.requests} == {"gpt-4o-mini"}
    assert [len(request.body["messages"]) for request in server.requests] == [2, 4, 3, 5]
    assert config.model_provider.__class__.__name__ == "MultiProvider"
    assert len(await own.get_items()) == 8
    assert (await own.run(agent, "Bye.", run_config={"model": config.model})).final_output


async def test_what_guardrails_and_tools_ask_is_no_part_of_the_conversation(
    store: perdure.AsyncStore, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    """They share the model object of the agent, which records."""
    agent = build("plain", client, ledger)
    helper = Agent(name="helper", model=agent.model, tools=agent.tools)

    async def check(context: Any, agent: Any, input: Any) -> Any:
        told = await Runner.run(helper, '[[tool charge {"amount": 1}]] Is that fine?')
        return GuardrailFunctionOutput(output_info=told.final_output, tripwire_triggered=False)

    @tool()
    async def ask() -> str:
        """Ask."""
        return str((await Runner.run(helper, "What do you think?")).final_output)

    agent.tools = [*agent.tools, ask]
    agent.input_guardrails = [InputGuardrail(check, run_in_parallel=True)]
    answers = []
    for _ in range(2):
        result = await PerdureSession("s", store).run(agent, "[[tool ask {}]] Pay.", id="r1")
        answers.append(result.final_output)
        assert len(await PerdureSession("s", store).get_items()) == 4
    assert answers[0] == answers[1]
    assert ledger.amounts == [1]  # Of the guardrail's own agent, whose calls are recorded too.
    assert len(server.requests) == 5


async def test_a_run_inside_of_a_tool_is_a_run_of_its_own(
    store: perdure.AsyncStore, client: Any
) -> None:
    other = PerdureSession("other", store)

    @tool()
    async def again() -> str:
        """Run."""
        return str((await other.run(clerk(client), "Hello.", id="inner")).final_output)

    await PerdureSession("s", store).run(clerk(client, again), "[[tool again {}]]")
    assert ("again", "succeeded") in await effects(store)
    assert len(await other.get_items()) == 2


async def test_ids_of_reasoning_can_be_left_out(
    store: perdure.AsyncStore, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    agent = build("plain", client, ledger)
    own = PerdureSession("s", store)
    config = RunConfig(reasoning_item_id_policy="omit")
    await own.run(agent, "[[reason]] Hello.", run_config=config)
    items = await own.get_items()
    kinds = [item.get("type", item.get("role")) for item in items]
    assert kinds == ["user", "reasoning", "message"]
    assert "id" not in items[1]


async def test_a_chat_model_s_items_have_no_ids_and_are_kept_apart(
    store: perdure.AsyncStore, client: Any, ledger: Ledger
) -> None:
    own = PerdureSession("s", store)
    agent = build("chat", client, ledger)
    text = '[[tool charge {"amount": 1}]] [[then]] [[tool charge {"amount": 2}]] [[then]] [[say x]]'
    result = await own.run(agent, text, id="r1")
    again = await PerdureSession("s", store).run(agent, text, id="r1")
    assert await own.get_items() == result.to_input_list() == again.to_input_list()
    kinds = [record.kind async for record in (await seen(store)).records()]
    assert "messages.replaced" not in kinds


async def test_a_recorded_run_can_be_replayed(
    store: perdure.AsyncStore, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    agent = build("plain", client, ledger)
    await PerdureSession("s", store).run(agent, CHARGE, id="r1")

    async def program(session: perdure.AsyncSession) -> str:
        result = await PerdureSession(session).run(agent, CHARGE, id="r1")
        return str(result.final_output)

    replayed = await perdure.replay(await seen(store), program)
    assert replayed.divergence is None
    assert (len(server.requests), ledger.amounts) == (2, [5])


async def test_two_runs_at_once_lose_nothing_silently(tmp_path: Path, server: ModelServer) -> None:
    """Each race: both runs end and everything is stored, or one is told of the conflict."""
    lost = told = 0
    async with make_client(server.url) as client, perdure.open_async(tmp_path / "a.db") as store:
        ledger = Ledger(tmp_path / "ledger")
        agent = build("plain", client, ledger)
        for race in range(100):
            id = f"race-{race}"
            shared = PerdureSession(id, store)
            # Half of the races share a session object, half do not, as two processes would not.
            owns = [shared, shared if race % 2 else PerdureSession(id, store)]
            texts = [f'[[tool charge {{"amount": {race * 2 + each}}}]] Pay.' for each in (0, 1)]
            results = await asyncio.gather(
                *(own.run(agent, text) for own, text in zip(owns, texts, strict=True)),
                return_exceptions=True,
            )
            items = await PerdureSession(id, store).get_items()
            for text, result in zip(texts, results, strict=True):
                if isinstance(result, BaseException):
                    assert isinstance(result, perdure.ConflictError), repr(result)
                    told += 1
                    await PerdureSession(id, store).run(agent, text)  # As it says: again.
                    continue
                own_items = [item.to_input_item() for item in result.new_items]
                missing = [item for item in own_items if item not in items]
                lost += bool(missing) or {"role": "user", "content": text} not in items
            assert violations("openai.responses", items) == []
            items = await PerdureSession(id, store).get_items()
            assert violations("openai.responses", items) == []
            assert (await seen(store, id)).interrupted == ()
        assert sorted(ledger.amounts) == [*range(200)]  # Each once, whoever was told of a conflict.
    assert lost == 0
    assert told >= 40


async def test_a_run_that_another_one_overtook_is_continued_by_the_same_call(
    store: perdure.AsyncStore, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    begun, overtaken = asyncio.Event(), asyncio.Event()

    @tool()
    async def charge(amount: int) -> str:
        """Charge."""
        begun.set()
        await overtaken.wait()
        with current_key() as key:
            return ledger.charge(amount, key)

    agent = clerk(client, charge)
    run = asyncio.ensure_future(PerdureSession("s", store).run(agent, CHARGE))
    await begun.wait()
    assert (await PerdureSession("s", store).run(agent, "Are you there?")).final_output
    overtaken.set()
    with pytest.raises(perdure.ConflictError):
        await run
    result = await PerdureSession("s", store).run(agent, CHARGE)
    assert result.final_output
    assert ledger.amounts == [5]
    assert len(server.requests) == 4  # The answer that came too late is asked for again.
    assert ("charge", "succeeded") in await effects(store)
    items = await PerdureSession("s", store).get_items()
    assert violations("openai.responses", items) == []


async def test_with_a_lease_one_run_waits_for_the_other(
    tmp_path: Path, server: ModelServer
) -> None:
    async with make_client(server.url) as client, perdure.open_async(tmp_path / "a.db") as store:
        ledger = Ledger(tmp_path / "ledger")
        agent = build("plain", client, ledger)
        owns = [PerdureSession("s", store, lease=5) for _ in range(3)]
        results = await asyncio.gather(*(own.run(agent, CHARGE) for own in owns))
        assert ledger.amounts == [5, 5, 5]
        sizes = sorted(len(result.input) for result in results)
        assert sizes == [1, 5, 9]  # Each has seen all of those before it.
        assert len(await owns[0].get_items()) == 12


class Clerk(MCPServer):  # type: ignore[misc]
    """A server of tools, in this process."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    @property
    def name(self) -> str:
        return "clerk"

    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[Any]:
        schema = {"type": "object", "properties": {"amount": {"type": "integer"}}}
        return [mcp.Tool(name="charge", input_schema=schema)]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
        with current_key() as key:
            text = self._ledger.charge(arguments["amount"], key)
        return mcp.CallToolResult(content=[mcp.TextContent(type="text", text=text)])

    async def list_prompts(self) -> Any: ...

    async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...


async def test_tools_of_servers_and_tools_of_free_text_are_effects(
    store: perdure.AsyncStore, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    async def shout(context: Any, text: str) -> str:
        with current_key() as key:
            return ledger.charge(len(text), key)

    custom = CustomTool(name="shout", description="Shout.", on_invoke_tool=shout)
    agent = clerk(client, custom, mcp_servers=[Clerk(ledger)])
    text = '[[tool charge {"amount": 5}]] [[custom shout hello]] Do.'
    server.fault(status=500, at=2)
    with pytest.raises(openai.InternalServerError):
        await PerdureSession("s", store).run(agent, text)
    agent = clerk(client, custom, mcp_servers=[Clerk(ledger)])
    result = await PerdureSession("s", store).run(agent, text)
    assert sorted(ledger.amounts) == [5, 5]
    assert all(line["key"] for line in ledger.lines)
    assert len(server.requests) == 3
    assert result.final_output
    states = {each for each in await effects(store) if each[0] != "gpt-4o"}
    assert states == {("charge", "succeeded"), ("shout", "succeeded")}
    items = await PerdureSession("s", store).get_items()
    assert items == result.to_input_list()
