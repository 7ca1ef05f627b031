"""Tools of a ToolNode as effects: once each, interrupts and failures included."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt

import perdure
from perdure.adapters.langgraph import PerdureSaver, RecordedToolCalls, tool_node
from tests.adapters.langgraph.graphs import config, texts

ran: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


@tool  # type: ignore[untyped-decorator]
def charge(amount: int) -> str:
    """Charge the card."""
    ran.append(("charge", amount, len(perdure.current_effect().key)))
    return f"charged {amount}"


@tool  # type: ignore[untyped-decorator]
async def charge_later(amount: int) -> str:
    """Charge the card, in an event loop."""
    ran.append(("later", amount, len(perdure.current_effect().key)))
    await asyncio.sleep(0.001)
    return f"charged {amount}"


@tool  # type: ignore[untyped-decorator]
def ask(question: str) -> str:
    """Ask a human."""
    ran.append("asked")
    return f"heard {interrupt(question)}"


@tool  # type: ignore[untyped-decorator]
def fail(times: int) -> str:
    """Fail so many times."""
    ran.append("failed")
    if len(ran) <= times:
        raise ValueError("a secret")
    return "worked"


@tool  # type: ignore[untyped-decorator]
def command(name: str) -> Command[Any]:
    """Change the state."""
    ran.append("command")
    return Command(update={"messages": [ToolMessage(f"I am {name}", tool_call_id="c0")]})


TOOLS = [charge, charge_later, ask, fail, command]


def model(state: Any) -> Any:
    """Make the calls that the user's text lists; then say what came of them."""
    last = state["messages"][-1]
    if isinstance(last, HumanMessage):
        calls = [
            {"name": name, "args": {argument: int(value) if value.isdigit() else value}}
            for name, argument, value in (part.split(":") for part in str(last.content).split())
        ]
        numbered = [{**call, "id": f"c{at}", "type": "tool_call"} for at, call in enumerate(calls)]
        return {"messages": [AIMessage("", tool_calls=numbered)]}
    results = [message.content for message in state["messages"] if message.type == "tool"]
    return {"messages": [AIMessage(" | ".join(results))]}


def agent(saver: Any, node: Any = None, **options: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", node or tool_node(saver, TOOLS, **options))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


def given(text: str) -> Any:
    return {"messages": [HumanMessage(text)]}


def states(saver: PerdureSaver) -> list[tuple[str, str]]:
    return [(effect.tool, effect.state) for effect in saver.tool_calls("t").effects.list()]


@pytest.fixture
def saver() -> Iterator[PerdureSaver]:
    with PerdureSaver("memory:") as saver:
        yield saver


def test_each_call_is_recorded_and_the_conversation_has_only_its_messages(
    saver: PerdureSaver,
) -> None:
    state = agent(saver).invoke(given("charge:amount:5 charge:amount:6"), config())
    assert texts(state)[-1] == "charged 5 | charged 6"
    assert states(saver) == [("charge", "succeeded")] * 2
    assert sorted(ran) == [("charge", 5, 22), ("charge", 6, 22)]
    shown = saver.session("t").messages()
    assert [message["role"] for message in shown] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert saver.session("t").messages(format="anthropic").losses == ()


def test_a_node_that_is_run_again_from_an_earlier_checkpoint_makes_no_call_again(
    saver: PerdureSaver,
) -> None:
    graph = agent(saver)
    first = graph.invoke(given("charge:amount:5"), config())
    before = next(at for at in graph.get_state_history(config()) if at.next == ("tools",))
    again = graph.invoke(None, before.config)
    assert texts(again) == texts(first)
    assert len(ran) == 1
    # Other arguments are another call, though the message and the call have the same ids.
    message = before.values["messages"][-1].model_copy(deep=True)
    message.tool_calls[0]["args"] = {"amount": 7}
    edited = graph.update_state(before.config, {"messages": [message]})
    assert texts(graph.invoke(None, edited))[-1] == "charged 7"
    assert [call[1] for call in ran] == [5, 7]


def test_equal_calls_of_two_turns_are_two_calls(saver: PerdureSaver) -> None:
    graph = agent(saver)
    for _ in range(2):
        graph.invoke(given("charge:amount:5"), config())
    assert len(ran) == 2


def test_a_tool_that_interrupts_is_run_again_and_its_neighbour_is_not(
    saver: PerdureSaver,
) -> None:
    graph = agent(saver)
    state = graph.invoke(given("ask:question:really? charge:amount:5"), config())
    assert state["__interrupt__"][0].value == "really?"
    state = graph.invoke(Command(resume="yes"), config())
    assert texts(state)[-1] == "heard yes | charged 5"
    assert ran.count("asked") == 2
    assert sum(call[0] == "charge" for call in ran) == 1
    assert ("ask", "succeeded") in states(saver)


def test_a_tool_that_raised_is_tried_again_by_the_next_run(saver: PerdureSaver) -> None:
    graph = agent(saver)
    for begin in (given("fail:times:2"), None):
        with pytest.raises(ValueError, match="a secret"):
            graph.invoke(begin, config())
    assert texts(graph.invoke(None, config()))[-1] == "worked"
    assert states(saver) == [("fail", "failed"), ("fail", "failed"), ("fail", "succeeded")]


def test_an_error_that_the_node_tells_the_model_is_a_recorded_failure(saver: PerdureSaver) -> None:
    graph = agent(saver, handle_tool_errors=True)
    state = graph.invoke(given("fail:times:1"), config())
    assert "a secret" in texts(state)[-1]
    assert states(saver) == [("fail", "failed")]
    before = next(at for at in graph.get_state_history(config()) if at.next == ("tools",))
    assert texts(graph.invoke(None, before.config)) == texts(state)
    assert ran == ["failed"]


def test_commands_of_tools_come_back_from_the_record(saver: PerdureSaver) -> None:
    graph = agent(saver)
    first = graph.invoke(given("command:name:Ann"), config())
    assert texts(first)[-1] == "I am Ann"
    before = next(at for at in graph.get_state_history(config()) if at.next == ("tools",))
    assert texts(graph.invoke(None, before.config))[-1] == "I am Ann"
    assert ran == ["command"]


@pytest.mark.parametrize(("effects", "runs"), [("unsafe", 1), ("read_only", 2), ("idempotent", 2)])
def test_the_policy_decides_about_a_call_whose_process_died(
    effects: str, runs: int, saver: PerdureSaver
) -> None:
    """A thread that never ends stands for the process: what it began is left open."""
    begun, go_on = threading.Event(), threading.Event()

    @tool  # type: ignore[untyped-decorator]
    def hang(amount: int) -> str:
        """Never return, the first time."""
        ran.append(amount)
        begun.set()
        if len(ran) == 1:
            go_on.wait(60)
        return "returned"

    def build() -> Any:
        return agent(saver, tool_node(saver, [hang], effects={"hang": effects}))

    def die() -> None:
        with suppress(perdure.PerdureError):  # Its turn was taken over.
            build().invoke(given("hang:amount:5"), config())

    dying = threading.Thread(target=die)
    dying.start()
    assert begun.wait(60)
    state = build().invoke(None, config())
    go_on.set()
    dying.join(60)
    assert len(ran) == runs
    notice = "may have taken effect" if effects == "unsafe" else "returned"
    assert notice in texts(state)[-1]


def test_async_tools_and_many_at_once_never_wait_for_each_other(saver: PerdureSaver) -> None:
    graph = agent(saver)
    many = " ".join(f"charge_later:amount:{number}" for number in range(10))

    async def run() -> list[Any]:
        runs = [graph.ainvoke(given(many), config(f"t{number}")) for number in range(8)]
        return await asyncio.wait_for(asyncio.gather(*runs), 60)

    states = asyncio.run(run())
    assert {texts(state)[-1] for state in states} == {
        " | ".join(f"charged {number}" for number in range(10))
    }
    assert len(ran) == 80


def test_wrappers_serve_a_tool_node_of_the_callers_own(saver: PerdureSaver) -> None:
    calls = RecordedToolCalls(saver, {"charge": "read_only"})
    node = ToolNode(TOOLS, wrap_tool_call=calls.run, awrap_tool_call=calls.arun)
    agent(saver, node).invoke(given("charge:amount:5"), config())
    assert states(saver) == [("charge", "succeeded")]


def test_what_cannot_be_recorded_is_refused(saver: PerdureSaver) -> None:
    with pytest.raises(perdure.UsageError, match="unsafe, read_only or idempotent, not sometimes"):
        tool_node(saver, TOOLS, effects="sometimes")
    plain = StateGraph(MessagesState)
    plain.add_node("tools", tool_node(saver, TOOLS))
    plain.add_edge(START, "tools")
    message = model(given("charge:amount:5"))["messages"]
    with pytest.raises(perdure.UsageError, match="pass a thread_id"):
        plain.compile().invoke({"messages": message})
    assert ran == []


def test_copied_and_deleted_threads_take_their_calls_with_them(saver: PerdureSaver) -> None:
    graph = agent(saver)
    graph.invoke(given("charge:amount:5"), config())
    saver.copy_thread("t", "copy")
    before = next(at for at in graph.get_state_history(config("copy")) if at.next == ("tools",))
    assert texts(graph.invoke(None, before.config))[-1] == "charged 5"
    assert len(ran) == 1
    saver.delete_thread("copy")
    assert saver.tool_calls("copy").effects.list() == []
    assert states(saver) == [("charge", "succeeded")]
