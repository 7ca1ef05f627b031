"""Runs that wait for a person: in another process, decided once, with the calls as recorded."""

from typing import Any

import openai
import pytest
from agents import Agent, OpenAIResponsesModel, RunState

import perdure
from perdure.adapters.openai_agents import PerdureSession
from perdure.testing import ModelServer
from tests.adapters.openai_agents.agents_of import Ledger, current_key, tool

pytestmark = pytest.mark.anyio

TEXT = '[[tool refund {"amount": 11}]] [[tool charge {"amount": 12}]] Please.'


def cashier(client: Any, ledger: Ledger, *, nested: bool = False) -> Any:
    @tool(needs_approval=True)
    def refund(amount: int) -> str:
        """Refund."""
        with current_key() as key:
            return ledger.charge(-amount, key)

    @tool()
    def charge(amount: int) -> str:
        """Charge."""
        with current_key() as key:
            return ledger.charge(amount, key)

    model = OpenAIResponsesModel("gpt-4o", client)
    agent = Agent(name="cashier", model=model, tools=[refund, charge])
    if nested:
        return Agent(name="clerk", model=model, tools=[agent.as_tool("ask_cashier", "Ask.")])
    return agent


async def test_an_approved_call_runs_once_in_any_process(
    any_store: perdure.AsyncStore, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    agent = cashier(client, ledger)
    waiting = await PerdureSession("s", any_store).run(agent, TEXT, id="r1")
    assert [item.name for item in waiting.interruptions] == ["refund"]
    assert ledger.amounts == [12]
    # Another process gets the same from the record.
    own = PerdureSession("s", any_store)
    again = await own.run(agent, TEXT, id="r1")
    assert (len(server.requests), len(again.interruptions)) == (1, 1)
    state = again.to_state()
    state.approve(state.get_interruptions()[0])
    result = await own.run(agent, state)
    assert result.interruptions == []
    assert ledger.amounts == [12, -11]
    position = (await own.open()).position
    repeated = await PerdureSession("s", any_store).run(agent, TEXT, id="r1")
    assert repeated.final_output == result.final_output
    session = await any_store.session("s")
    assert session.position == position
    assert (len(server.requests), ledger.amounts) == (2, [12, -11])


async def test_a_state_is_used_once(
    store: perdure.AsyncStore, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    agent = cashier(client, ledger)
    own = PerdureSession("s", store)
    waiting = await own.run(agent, TEXT)
    text = waiting.to_state().to_string()
    for _ in range(2):
        state = await RunState.from_string(agent, text)
        state.approve(state.get_interruptions()[0])
        if ledger.amounts == [12]:
            await PerdureSession("s", store).run(agent, state)
            continue
        with pytest.raises(perdure.UsageError, match="used once"):
            await PerdureSession("s", store).run(agent, state)
    assert ledger.amounts == [12, -11]


async def test_a_state_with_another_call_is_refused(
    store: perdure.AsyncStore, client: Any, ledger: Ledger
) -> None:
    """The SDK notices this by a digest without a key, which can be left out of the state."""
    agent = cashier(client, ledger)
    own = PerdureSession("s", store)
    waiting = await own.run(agent, TEXT)
    data = waiting.to_state().to_json()
    data["context"].pop("tool_invocations", None)
    altered = RunState.from_json(agent, _altered(data))
    state = await altered
    state.approve(state.get_interruptions()[0])
    with pytest.raises(perdure.UsageError, match="another call"):
        await PerdureSession("s", store).run(agent, state)
    assert ledger.amounts == [12]


def _altered(value: Any) -> Any:
    """Change the amount of the refund wherever it is."""
    if isinstance(value, dict):
        return {name: _altered(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_altered(item) for item in value]
    return value.replace('{"amount": 11}', '{"amount": 9000}') if isinstance(value, str) else value


@pytest.mark.parametrize("approved", [True, False])
async def test_a_decision_is_kept_when_the_run_fails_after_it(
    approved: bool,  # noqa: FBT001 - a parameter of the test
    store: perdure.AsyncStore,
    client: Any,
    server: ModelServer,
    ledger: Ledger,
) -> None:
    agent = cashier(client, ledger)
    own = PerdureSession("s", store)
    state = (await own.run(agent, TEXT, id="r1")).to_state()
    [item] = state.get_interruptions()
    if approved:
        state.approve(item)
    else:
        state.reject(item, rejection_message="not today")
    server.fault(status=500, at=2)
    with pytest.raises(openai.InternalServerError):
        await own.run(agent, state)
    result = await PerdureSession("s", store).run(agent, TEXT, id="r1")
    assert result.interruptions == []
    assert ledger.amounts == ([12, -11] if approved else [12])
    outputs = [item["output"] for item in await own.get_items() if "output" in item]
    assert outputs == ["charged -11" if approved else "not today", "charged 12"]
    sent = server.requests[-1].body["input"]
    assert sorted(item["output"] for item in sent if "output" in item) == sorted(outputs)


async def test_another_decision_about_the_same_call_is_refused(
    store: perdure.AsyncStore, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    agent = cashier(client, ledger)
    own = PerdureSession("s", store)
    waiting = await own.run(agent, TEXT)
    first, second = waiting.to_state(), waiting.to_state()
    first.reject(first.get_interruptions()[0])
    server.fault(status=500, at=2)
    with pytest.raises(openai.InternalServerError):
        await own.run(agent, first)
    second.approve(second.get_interruptions()[0])
    other = PerdureSession("s", store)
    with pytest.raises(perdure.DivergenceError):
        await other.run(agent, second)
    assert ledger.amounts == [12]
    assert (await other.run(agent, TEXT)).final_output  # With the decision that came first.
    assert ledger.amounts == [12]


async def test_a_stream_waits_and_goes_on_in_the_same_way(
    store: perdure.AsyncStore, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    agent = cashier(client, ledger)
    own = PerdureSession("s", store)
    waiting = await own.run_streamed(agent, TEXT, id="r1")
    async for _ in waiting.stream_events():
        pass
    state = waiting.to_state()
    state.approve(state.get_interruptions()[0])
    result = await own.run_streamed(agent, state)
    async for _ in result.stream_events():
        pass
    assert ledger.amounts == [12, -11]
    again = await PerdureSession("s", store).run_streamed(agent, TEXT, id="r1")
    async for _ in again.stream_events():
        pass
    assert again.final_output == result.final_output
    assert (len(server.requests), ledger.amounts) == (2, [12, -11])


async def test_an_agent_that_is_a_tool_can_wait_too(
    store: perdure.AsyncStore, client: Any, server: ModelServer, ledger: Ledger
) -> None:
    agent = cashier(client, ledger, nested=True)
    text = '[[tool ask_cashier {"input": "[[tool refund {\\"amount\\": 11}]] Do it."}]] Ask.'
    own = PerdureSession("s", store)
    waiting = await own.run(agent, text, id="r1")
    assert [item.name for item in waiting.interruptions] == ["refund"]
    state = waiting.to_state()
    state.approve(state.get_interruptions()[0])
    result = await own.run(agent, state)
    assert ledger.amounts == [-11]
    again = await PerdureSession("s", store).run(agent, text, id="r1")
    assert again.final_output == result.final_output
    assert (len(server.requests), ledger.amounts) == (4, [-11])
