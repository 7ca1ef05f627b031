"""What a graph finds again: in another process, after changes in place, on forks."""

import asyncio
import threading
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

import perdure
from perdure.adapters.langgraph import PerdureSaver
from tests.adapters.langgraph.graphs import chat, config, human, texts


def session_texts(saver: PerdureSaver, thread: str = "t") -> list[str]:
    return [message["content"] for message in saver.session(thread).messages()]


def seen_anew(path: Path) -> Any:
    """Return the state that another process finds, and the texts of the session."""
    with PerdureSaver(path) as saver:
        return chat(saver).get_state(config()).values, session_texts(saver)


def test_another_process_finds_the_state_and_the_session_shows_it(path: Path) -> None:
    """Each text makes the node do something else to the messages: graphs.echo says what."""
    state: Any = {}
    with PerdureSaver(path) as saver:
        graph = chat(saver)
        for text in ("one", "two", "change", "three", "change only", "remove", "edit", "four"):
            state = graph.invoke(human(text), config())
            found, shown = seen_anew(path)
            assert found == state, text
            assert shown == texts(state), text
        assert texts(state)[:3] == ["CHANGED ONLY", "EDITED", "re:two"]
        state = graph.invoke(human("clear"), config())
        assert seen_anew(path) == (state, ["fresh"])
        saver.session("t").verify()


def test_a_message_is_stored_once_and_only_a_changed_one_again(path: Path) -> None:
    def node(state: Any) -> Any:
        return {"messages": [AIMessage(f"answer {len(state['messages'])}", id=None)]}

    with PerdureSaver(path) as saver:
        graph = chat(saver, node)
        for number in range(5):
            graph.invoke(human(f"question {number}"), config())
        records = [*saver.session("t").records()]
    assert sum(record.kind == "message" for record in records) == 10


def test_every_checkpoint_of_the_history_is_the_same_in_another_process(path: Path) -> None:
    def history(graph: Any) -> Any:
        return [
            (found.config, found.values, found.next) for found in graph.get_state_history(config())
        ]

    with PerdureSaver(path) as saver:
        graph = chat(saver)
        for text in ("one", "change", "two", "remove", "three"):
            graph.invoke(human(text), config())
        old = next(
            found
            for found in graph.get_state_history(config())
            if not found.next and texts(found.values)[-1] == "re:two"
        )
        forked = graph.invoke(human("fork"), old.config)
        assert texts(forked) == [*texts(old.values), "fork", "re:fork"]
        assert session_texts(saver) == texts(forked)
        newest = [*graph.get_state_history(config())][4]  # The end of the line that was left.
        back = graph.invoke(human("back"), newest.config)
        assert session_texts(saver) == texts(back)
        known = history(graph)
    with PerdureSaver(path) as saver:
        assert history(chat(saver)) == known
        assert len(known) == 21
        saver.session("t").verify()


def test_what_a_caller_does_to_a_state_changes_no_other(path: Path) -> None:
    saver = PerdureSaver(path)
    graph = chat(saver)
    graph.invoke(human("one"), config())
    for _ in range(2):
        state = graph.get_state(config()).values
        assert texts(state) == ["one", "re:one"]
        state["messages"][0].content = "spoiled"
        state["messages"][1].additional_kwargs["spoiled"] = True
        del state["messages"][1:]
        state["log"].append("spoiled")
    saver.close()


def test_writes_of_a_failed_step_are_found_and_not_made_again(path: Path) -> None:
    ran: list[str] = []

    class State(TypedDict):
        messages: Annotated[list[Any], add_messages]

    def first(state: State) -> Any:
        ran.append("first")
        return {"messages": [AIMessage("first", id="a")]}

    def second(state: State) -> Any:
        ran.append("second")
        if len(ran) < 3:
            raise RuntimeError
        return {"messages": [AIMessage("second", id="b")]}

    def graph(saver: Any) -> Any:
        builder = StateGraph(State)
        builder.add_node("first", first)
        builder.add_node("second", second)
        builder.add_edge(START, "first")
        builder.add_edge(START, "second")
        return builder.compile(checkpointer=saver)

    with PerdureSaver(path) as saver, pytest.raises(RuntimeError):
        graph(saver).invoke(human("go"), config())
    with PerdureSaver(path) as saver:
        state = graph(saver).invoke(None, config())
        assert texts(state) == ["go", "first", "second"]
        assert session_texts(saver) == texts(state)
        assert sorted(ran) == ["first", "second", "second"]


def test_subgraphs_interrupts_and_sends_continue_in_another_process(path: Path) -> None:
    class State(TypedDict):
        messages: Annotated[list[Any], add_messages]
        done: Annotated[list[int], lambda left, right: left + right]

    def ask(state: State) -> Any:
        return {"messages": [AIMessage(f"heard {interrupt('really?')}")]}

    def build(saver: Any) -> Any:
        inner = StateGraph(State)
        inner.add_node("ask", ask)
        inner.add_edge(START, "ask")
        outer = StateGraph(State)
        outer.add_node("inner", inner.compile())
        outer.add_node("work", lambda state: {"done": [state["number"]]})
        outer.add_edge(START, "inner")
        outer.add_conditional_edges(
            "inner", lambda _: [Send("work", {"number": number}) for number in range(3)]
        )
        outer.add_edge("work", END)
        return outer.compile(checkpointer=saver)

    with PerdureSaver(path) as saver:
        assert build(saver).invoke(human("hi"), config())["__interrupt__"][0].value == "really?"
    with PerdureSaver(path) as saver:
        graph = build(saver)
        assert graph.get_state(config(), subgraphs=True).tasks[0].state.next == ("ask",)
        state = graph.invoke(Command(resume="yes"), config())
        assert texts(state) == ["hi", "heard yes"]
        assert state["done"] == [0, 1, 2]
        assert session_texts(saver) == texts(state)


@pytest.mark.filterwarnings("ignore:.*DeltaChannel.*")
def test_delta_channels_are_rebuilt_also_after_pruning(any_address: str) -> None:
    class State(TypedDict):
        items: Annotated[list[str], DeltaChannel(lambda value, writes: sum(writes, value or []))]

    def build(saver: Any) -> Any:
        builder = StateGraph(State)
        builder.add_node("add", lambda state: {"items": [f"n{len(state['items'])}"]})
        builder.add_edge(START, "add")
        return builder.compile(checkpointer=saver)

    store, state = perdure.open(any_address), {}
    for number in range(4):
        state = build(PerdureSaver(store)).invoke({"items": [f"i{number}"]}, config())
    assert state["items"] == ["i0", "n1", "i1", "n3", "i2", "n5", "i3", "n7"]
    PerdureSaver(store).prune(["t"])
    saver = PerdureSaver(store)
    assert build(saver).get_state(config()).values == state
    assert len([*saver.list(config())]) == 1
    state = build(saver).invoke({"items": ["last"]}, config())
    assert state["items"][-2:] == ["last", "n9"]
    store.close()


def test_one_object_serves_blocking_code_async_code_and_two_loops(any_address: str) -> None:
    with PerdureSaver(any_address) as saver:
        graph = chat(saver)

        async def many(start: int) -> None:
            await asyncio.gather(
                *(
                    graph.ainvoke(human("hi"), config(f"t{number}"))
                    for number in range(start, start + 8)
                )
            )
            own = config(f"loop{start}")
            graph.invoke(human("blocking, in a loop"), own)
            found = [item async for item in saver.alist(own)]
            assert saver.get_tuple(own) is not None
            assert len(found) == len([*saver.list(own)])

        loops = [threading.Thread(target=asyncio.run, args=(many(start),)) for start in (0, 8)]
        for loop in loops:
            loop.start()
        graph.invoke(human("blocking"), config("b"))
        for loop in loops:
            loop.join(60)
            assert not loop.is_alive()
        # Nothing is locked while a listing is open.
        for item in saver.list(config("b")):
            assert saver.get_tuple(item.config) is not None
        threads = {info.thread_id for info in saver.threads()}
        assert threads == {"b", "loop0", "loop8", *(f"t{number}" for number in range(16))}


def test_threads_are_listed_copied_and_deleted_whatever_their_ids_are(any_address: str) -> None:
    names = ["plain", "käse/42", "a" * 300, ".hidden", ""]
    with PerdureSaver(any_address, prefix="app:") as saver:
        graph = chat(saver)
        for name in names:
            graph.invoke(human("hi"), config(name))
        assert {info.thread_id for info in saver.threads()} == {*names}
        assert all(info.messages == 2 and info.metadata["step"] == 1 for info in saver.threads())
        assert {item.config["configurable"]["thread_id"] for item in saver.list(None)} == {*names}
        saver.copy_thread("käse/42", "b" * 300)
        assert (
            graph.get_state(config("b" * 300)).values == graph.get_state(config("käse/42")).values
        )
        assert {info.thread_id for info in saver.threads()} == {*names, "b" * 300}
        for name in names:
            saver.delete_thread(name)
        assert [info.thread_id for info in saver.threads()] == ["b" * 300]
        assert graph.get_state(config("plain")).values == {}
        assert texts(graph.invoke(human("again"), config("plain"))) == ["again", "re:again"]


def test_threads_expire_after_their_time(path: Path) -> None:
    with PerdureSaver(path, ttl=timedelta(hours=1)) as saver:
        chat(saver).invoke(human("hi"), config())
        assert saver.delete_expired() == []
    clock = [0.0]
    with perdure.open(path.with_name("old.db"), clock=lambda: clock[0]) as store:
        saver = PerdureSaver(store, ttl=timedelta(hours=1))
        chat(saver).invoke(human("hi"), config())
        assert saver.delete_expired() == ["t"]
        assert [*saver.threads()] == []
        with pytest.raises(perdure.UsageError, match="no thread expires"):
            PerdureSaver(store).delete_expired()


def test_a_long_list_beside_the_conversation_is_stored_as_what_it_grew_by(path: Path) -> None:
    saver, state = PerdureSaver(path), {}
    graph = chat(saver, lambda state: {"log": ["x" * 100] * 4})
    for _ in range(20):
        state = graph.invoke({"log": []}, config())
    notes = [record.content for record in saver.session("t").records(kinds=["note"])]
    size = sum(len(str(note)) for note in notes)
    assert len(state["log"]) == 80
    assert size < 20 * 3000, "eight thousand for each turn at the end, if it was stored whole"
    saver.close()
    with PerdureSaver(path) as saver:
        assert chat(saver).get_state(config()).values["log"] == state["log"]


def test_human_edits_by_another_seat_do_not_confuse_the_thread(path: Path) -> None:
    """Messages that others append to the session, or take back, are theirs."""
    with PerdureSaver(path) as saver:
        graph = chat(saver)
        graph.invoke(human("one"), config())
        other = saver.session("t")
        other.append({"role": "user", "content": "from elsewhere"})
        first = next(record for record in other.records() if record.kind == "message")
        other.retract(first.position)
        state = graph.invoke(human("two"), config())
        assert texts(state) == ["one", "re:one", "two", "re:two"]
    found, shown = seen_anew(path)
    assert found == state
    assert shown == ["re:one", "from elsewhere", "two", "re:two"]


def test_messages_of_any_role_or_class_of_langchain_are_kept(path: Path) -> None:
    from langchain_core.messages import ChatMessage

    def node(state: Any) -> Any:
        return {"messages": [ChatMessage("I object", role="critic")]}

    with PerdureSaver(path) as saver:
        state = chat(saver, node).invoke(human("one"), config())
    assert seen_anew(path)[0] == state
    assert isinstance(state["messages"][0], HumanMessage)


def test_a_message_that_an_entrypoint_changed_in_place_is_noticed(path: Path) -> None:
    """Its code runs where other graphs only pass their input on."""
    from langgraph.func import entrypoint

    def build(saver: Any) -> Any:
        @entrypoint(checkpointer=saver)  # type: ignore[untyped-decorator]
        def talk(text: str, *, previous: Any) -> Any:
            said = previous or []
            if said:
                said[0].content = "CHANGED"
            return [*said, HumanMessage(text, id=text)]

        return talk

    with PerdureSaver(path) as saver:
        graph = build(saver)
        for text in ("one", "two", "three"):
            state = graph.invoke(text, config())
            assert state[0].content == ("one" if text == "one" else "CHANGED")
            with PerdureSaver(path) as other:
                assert build(other).get_state(config()).values == state


def test_messages_that_a_caller_still_holds_are_not_handed_out_again(path: Path) -> None:
    with PerdureSaver(path) as saver:
        graph = chat(saver)
        held = graph.invoke(human("one"), config())["messages"]
        for _ in range(2):
            state = graph.get_state(config()).values["messages"]
            assert not {*map(id, state)} & {*map(id, held)}
            assert state == held
        graph.get_state(config()).values["messages"][0].content = "spoiled, and let go"
        assert texts(graph.get_state(config()).values) == ["one", "re:one"]
        assert texts(graph.invoke(human("two"), config()))[0] == "one"
