"""Graphs as people write them, and the places that their checkpoints are stored in."""

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages


class Chat(TypedDict):
    """A conversation, and a list that grows beside it."""

    messages: Annotated[list[Any], add_messages]
    log: Annotated[list[str], operator.add]


def config(thread: str = "t", **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, **more}}


def human(text: str) -> Any:
    return {"messages": [HumanMessage(text)]}


def texts(state: Any) -> list[str]:
    return [message.content for message in state["messages"]]


def echo(state: Any) -> Any:
    """Answer the last message; some texts make it do what nodes do to messages."""
    said, text = state["messages"], state["messages"][-1].content
    answer: list[Any] = [AIMessage(f"re:{text}")]
    if text == "change":
        said[0].content = "CHANGED"
        said[1].additional_kwargs["seen"] = True
    elif text == "change only":
        said[0].content = "CHANGED ONLY"
        return {"log": [text]}
    elif text == "remove":
        answer = [RemoveMessage(id=said[1].id)]
    elif text == "edit":
        answer = [AIMessage("EDITED", id=said[1].id)]
    elif text == "clear":
        answer = [RemoveMessage(id="__remove_all__"), HumanMessage("fresh")]
    return {"messages": answer, "log": [text]}


def chat(saver: Any, node: Callable[[Any], Any] = echo, **options: Any) -> Any:
    """Return a graph of one node that answers."""
    builder = StateGraph(Chat)
    builder.add_node("chat", node)
    builder.add_edge(START, "chat")
    return builder.compile(checkpointer=saver, **options)
