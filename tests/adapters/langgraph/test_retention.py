"""Pruning and deleting: what is left is as it was, and the space is free."""

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

import perdure
from perdure.adapters.langgraph import PerdureSaver
from tests.adapters.langgraph.graphs import chat, config, human, texts


def size(path: Path) -> int:
    files = [path] if path.is_file() else [*path.rglob("*")]
    return sum(file.stat().st_size for file in files if file.is_file())


def grow(saver: Any, thread: str = "t", turns: int = 40) -> Any:
    graph = chat(saver, lambda state: {"messages": [AIMessage("a" * 400)], "log": ["x" * 50]})
    for number in range(turns):
        graph.invoke(human(f"{number}" * 100), config(thread))
    return graph


@pytest.mark.parametrize("kind", ["", "files:"])
def test_pruning_frees_space_and_the_thread_continues(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with PerdureSaver(f"{kind}{path}") as saver, PerdureSaver(f"{kind}{path}") as other:
        graph = grow(saver)
        state = graph.get_state(config())
        stale = grow(other, "another", turns=1).get_state(config())
        assert stale.values == state.values
    before = size(path)
    with PerdureSaver(f"{kind}{path}") as saver, PerdureSaver(f"{kind}{path}") as other:
        waiting = chat(other)
        assert waiting.get_state(config()).values == state.values
        saver.prune(["t", "none"])
        assert [item.config["configurable"]["checkpoint_id"] for item in saver.list(config())] == [
            state.config["configurable"]["checkpoint_id"]
        ]
        found = chat(saver).get_state(config())
        assert (found.values, found.next, found.metadata) == (
            (state.values, state.next, state.metadata)
        )
        shown = [message["content"] for message in saver.session("t").messages()]
        assert shown == texts(state.values)
        saver.session("t").verify()
        # A saver in another process had the thread open.
        assert texts(waiting.invoke(human("on"), config()))[-2:] == ["on", "re:on"]
        saver.prune(["t"])
        again = chat(saver).get_state(config()).values
        assert texts(again) == [*texts(state.values), "on", "re:on"]
    with PerdureSaver(f"{kind}{path}") as saver:
        assert chat(saver).get_state(config()).values == again
        pruned = size(path)
        assert pruned < before * 0.6
        saver.delete_thread("t")
    assert size(path) < pruned / 2


def test_pruning_keeps_interrupts_writes_and_subgraphs(path: Path) -> None:
    def ask(state: MessagesState) -> Any:
        return {"messages": [AIMessage(f"heard {interrupt('really?')}")]}

    def build(saver: Any) -> Any:
        inner = StateGraph(MessagesState)
        inner.add_node("ask", ask)
        inner.add_edge(START, "ask")
        outer = StateGraph(MessagesState)
        outer.add_node("inner", inner.compile())
        outer.add_edge(START, "inner")
        return outer.compile(checkpointer=saver)

    with PerdureSaver(path) as saver:
        build(saver).invoke(human("hi"), config())
        saver.prune(["t"])
    with PerdureSaver(path) as saver:
        state = build(saver).get_state(config(), subgraphs=True)
        assert state.interrupts[0].value == "really?"
        assert state.tasks[0].state.next == ("ask",)
        assert texts(build(saver).invoke(Command(resume="yes"), config())) == ["hi", "heard yes"]


def test_a_pruning_that_was_interrupted_is_finished_by_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PerdureSaver(path) as saver:
        state = grow(saver).get_state(config()).values

        def die(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(perdure.Session, "compact", die)
            with pytest.raises(KeyboardInterrupt):
                saver.prune(["t"])
    with PerdureSaver(path) as saver:
        assert chat(saver).get_state(config()).values == state
        saver.prune(["t"])
        assert chat(saver).get_state(config()).values == state
        assert [message["content"] for message in saver.session("t").messages()] == texts(state)
        assert saver.session("t").complete_from > 1


def test_messages_of_other_writers_survive_a_pruning(path: Path) -> None:
    with PerdureSaver(path) as saver:
        grow(saver, turns=3)
        saver.session("t").append({"role": "user", "content": "from elsewhere"})
        state = grow(saver, turns=3).get_state(config()).values
        saver.prune(["t"])
        shown = [message["content"] for message in saver.session("t").messages()]
    assert [text for text in shown if text != "from elsewhere"] == texts(state)
    assert shown.count("from elsewhere") == 1
    with PerdureSaver(path) as saver:
        assert chat(saver).get_state(config()).values == state
        assert len([*saver.list(config())]) == 1


def test_without_the_checkpoints_of_a_run_the_session_shows_the_one_before(path: Path) -> None:
    with PerdureSaver(path) as saver:
        graph = chat(saver)
        for run in ("one", "two"):
            graph.invoke(human(run), {**config(), "metadata": {"run_id": run}})
        saver.delete_for_runs(["two", "none"])
        assert texts(graph.get_state(config()).values) == ["one", "re:one"]
        shown = [message["content"] for message in saver.session("t").messages()]
        assert shown == ["one", "re:one"]
        assert texts(graph.invoke(human("three"), config())) == [
            "one",
            "re:one",
            "three",
            "re:three",
        ]
