"""An agent with a tool that must not run twice, as a process may run it again after a kill.

The same script runs on perdure and on LangGraph's own SQLite saver, for the table in the page.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import httpx
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition

from perdure.adapters.langgraph import PerdureSaver, tool_node
from tests.adapters.langgraph.graphs import config
from tests.adapters.openai.scripts import Hooks

TASK = '[[tool charge {"amount": 250}]] Settle the claim.'


class State(TypedDict):
    """A conversation."""

    messages: Annotated[list[Any], add_messages]


def ledger_of(path: Path) -> list[str]:
    """Return what the tool did in the world outside."""
    ledger = path.with_suffix(".ledger")
    return ledger.read_text().splitlines() if ledger.exists() else []


class CountedSaver(SqliteSaver):  # type: ignore[misc]
    """LangGraph's own saver; its commits are places to die at, as those of perdure are."""

    reach: Any = None

    def put(self, *args: Any, **options: Any) -> Any:
        result = super().put(*args, **options)
        self.reach("append")
        return result

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        super().put_writes(config, writes, task_id, task_path)
        self.reach("append")


def build(path: Path, hooks: Hooks, model: Any, saver: Any) -> Any:
    """Return the graph: a model that calls `charge`, and the node that runs it."""

    @tool  # type: ignore[untyped-decorator]
    def charge(amount: int) -> str:
        """Charge the card."""
        hooks.chunk()  # A place to die at: inside the tool, before its effect,
        with path.with_suffix(".ledger").open("a") as ledger:
            ledger.write(f"{amount}\n")
        hooks.chunk()  # and after it.
        return f"charged {amount}"

    asked = model.bind_tools([charge])
    own = isinstance(saver, PerdureSaver)
    builder = StateGraph(State)
    builder.add_node("model", lambda state: {"messages": [asked.invoke(state["messages"])]})
    builder.add_node("tools", tool_node(saver, [charge]) if own else ToolNode([charge]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


@contextmanager
def open_saver(form: str, path: Path, hooks: Hooks) -> Iterator[Any]:
    if form.startswith("own"):
        with PerdureSaver(path) as own:
            yield own
        return
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        saver = CountedSaver(connection)
        saver.reach = getattr(hooks, "_reach", lambda _: None)
        yield saver


def run(form: str, url: str, path: Path, hooks: Hooks) -> None:
    """Do what a new process does: continue the thread, or begin it if there is nothing yet.

    `form` is the saver, `own` or `official`, and the durability: `own-sync`.
    """
    client = httpx.Client(
        verify=False,  # noqa: S501 - loading certificates takes longer than the script
        event_hooks={
            "request": [lambda _: hooks.sending()],
            "response": [lambda _: hooks.received()],
        },
    )
    with client, open_saver(form, path, hooks) as saver:
        model = ChatOpenAI(
            model="m", base_url=url, api_key="test", http_client=client, max_retries=0
        )
        graph = build(path, hooks, model, saver)
        state = graph.get_state(config())
        begun = state.values.get("messages") or state.next
        given = None if begun else {"messages": [HumanMessage(TASK)]}
        graph.invoke(given, config(), durability=form.partition("-")[2])
