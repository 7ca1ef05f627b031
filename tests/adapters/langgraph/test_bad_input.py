"""What is refused: altered rows, states that cannot be stored, newer layouts, forged classes."""

import dataclasses
import sqlite3
from base64 import b64encode
from pathlib import Path
from typing import Annotated, Any, TypedDict

import ormsgpack
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

import perdure
from perdure.adapters.langgraph import PerdureSaver
from perdure.adapters.langgraph.checkpoint_notes import LAYOUT
from tests.adapters.langgraph.graphs import chat, config, human, texts


@dataclasses.dataclass
class Plan:
    """A class of the application."""

    steps: list[str]


class Planned(TypedDict):
    """A state with an object of the application's own class."""

    messages: Annotated[list[Any], add_messages]
    plan: Any


def planning(saver: Any, plan: Any) -> Any:
    builder = StateGraph(Planned)
    builder.add_node("plan", lambda _: {"plan": plan})
    builder.add_edge(START, "plan")
    return builder.compile(checkpointer=saver)


def test_a_class_that_was_not_allowed_is_refused_with_its_path(path: Path) -> None:
    with PerdureSaver(path) as saver, pytest.raises(perdure.UsageError) as refused:
        planning(saver, {"inner": Plan(["a"])}).invoke(human("hi"), config())
    assert str(refused.value) == (
        f"plan.inner: the class {__name__}.Plan is not allowed in a checkpoint: "
        "allow it: PerdureSaver(..., allow=[Plan])"
    )


def test_an_allowed_class_comes_back_as_itself(path: Path) -> None:
    with PerdureSaver(path, allow=[Plan]) as saver:
        planning(saver, Plan(["a"])).invoke(human("hi"), config())
    with PerdureSaver(path, allow=[Plan]) as saver:
        assert planning(saver, None).get_state(config()).values["plan"] == Plan(["a"])


@pytest.mark.parametrize("value", [lambda: 1, object(), {"deep": [open]}], ids=repr)
def test_what_cannot_be_stored_is_refused_and_the_thread_stays_as_it_was(
    value: Any, path: Path
) -> None:
    with PerdureSaver(path) as saver:
        graph = planning(saver, "fine")
        before = graph.invoke(human("hi"), config())
        with pytest.raises(perdure.UsageError, match=r"^plan.*cannot be stored"):
            planning(saver, value).invoke(human("again"), config())
        assert graph.get_state(config()).values["plan"] == before["plan"]
        assert texts(graph.invoke(human("more"), config()))[-1] == "more"
        saver.session("t").verify()


def test_unusual_values_come_back(path: Path) -> None:
    values = {
        "float": float("inf"),
        "surrogate": "\ud800",
        "bytes": b"\x00\xff",
        "set": {1, 2},
        "keys": {1: "one"},
        "tag": {"~": ["message", {}]},
        "big": 2**60,
        "message": AIMessage("alone"),
    }
    with PerdureSaver(path) as saver:
        planning(saver, values).invoke(human("hi"), config())
    with PerdureSaver(path) as saver:
        found = planning(saver, None).get_state(config()).values["plan"]
    replaced = found.pop("surrogate")
    assert replaced != values.pop("surrogate")  # As with LangGraph's own serializer.
    assert found == values


def forge(path: Path, data: Any) -> None:
    """Store a note as an attacker would who can write to the store through perdure."""
    with perdure.open(path) as store:
        session = store.session("t")
        newest = next(session.notes("langgraph"))
        content: Any = newest.content
        session.note(content.data | data, topic="langgraph", expect=newest.position)


def test_nothing_is_imported_because_stored_data_names_it(path: Path, tmp_path: Path) -> None:
    with PerdureSaver(path) as saver:
        chat(saver).invoke(human("hi"), config())
    made = tmp_path / "made"
    forged = ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb(("os", "mkdir", str(made)))))
    forge(
        path,
        {"put": "f1", "values": {"log": ["v", {"~": ["msgpack", b64encode(forged).decode()]}]}},
    )
    with PerdureSaver(path) as saver:
        found = saver.get_tuple(config())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"log": str(made)}
    assert not made.exists()
    for tag in ("pickle", "json"):
        forge(path, {"put": tag, "values": {"log": ["v", {"~": [tag, b64encode(b"x").decode()]}]}})
        with PerdureSaver(path) as saver, pytest.raises((NotImplementedError, ValueError)):
            saver.get_tuple(config())


def test_a_checkpoint_of_a_newer_version_is_refused(path: Path) -> None:
    with PerdureSaver(path) as saver:
        chat(saver).invoke(human("hi"), config())
    forge(path, {"put": "newer", "layout": LAYOUT + 1})
    with PerdureSaver(path) as saver, pytest.raises(perdure.VersionError, match="upgrade perdure"):
        saver.get_tuple(config())


def test_an_altered_row_is_reported(path: Path) -> None:
    with PerdureSaver(path) as saver:
        graph = chat(saver)
        for text in ("one", "two"):
            graph.invoke(human(text), config())
    with sqlite3.connect(path) as db:
        changed = db.execute(
            "update entry set body = cast(replace(cast(body as text), 're:one', 're:ten') as blob)"
            " where cast(body as text) like '%re:one%'"
        ).rowcount
    db.close()
    assert changed
    with PerdureSaver(path) as saver, pytest.raises(perdure.DamagedError):
        saver.get_tuple(config())


def test_a_graph_whose_channels_changed_finds_what_it_still_has(path: Path) -> None:
    class Other(TypedDict):
        messages: Annotated[list[Any], add_messages]
        added: str

    def build(saver: Any) -> Any:
        builder = StateGraph(Other)
        builder.add_node("other", lambda _: {"added": "new", "messages": [AIMessage("other")]})
        builder.add_edge(START, "other")
        return builder.compile(checkpointer=saver)

    with PerdureSaver(path) as saver:
        chat(saver).invoke(human("one"), config())
    with PerdureSaver(path) as saver:
        state = build(saver).invoke(human("two"), config())
        assert texts(state) == ["one", "re:one", "two", "other"]
        assert state["added"] == "new"
        assert texts(chat(saver).invoke(human("three"), config()))[-1] == "re:three"


def test_calls_without_a_thread_or_a_checkpoint_are_refused() -> None:
    with PerdureSaver("memory:") as saver:
        with pytest.raises(perdure.UsageError, match="pass a thread"):
            saver.get_tuple({"configurable": {}})
        with pytest.raises(perdure.UsageError, match="pass its checkpoint_id"):
            saver.put_writes(config(), [("a", 1)], "task")
        with pytest.raises(perdure.UsageError, match="unknown strategy 'some'"):
            saver.prune(["t"], strategy="some")
        with pytest.raises(perdure.NotFoundError):
            saver.copy_thread("none", "other")
