"""The store: the same as LangGraph's own in memory, and durable; expiry, vectors, two writers."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

import perdure
from perdure.adapters.langgraph import PerdureSaver, PerdureStore
from tests.adapters.langgraph.graphs import config, human

NAMESPACES = [("u",), ("u", "1"), ("u", "2"), ("v", "1", "x"), ("w/y", "é"), ("long" * 40, "1")]
FILTERS: list[Any] = [
    None,
    {"n": 3},
    {"n": {"$gt": 2, "$lte": 4}},
    {"t": "x", "n": {"$lt": 4}},
    {"d": {"e": 1}},
    {"n": {"$ne": 1}},
    {"l": [1, 2]},
]
LISTINGS: list[Any] = [
    {},
    {"prefix": ("u",)},
    {"suffix": ("1",)},
    {"prefix": ("*", "1")},
    {"max_depth": 1},
    {"limit": 2, "offset": 1},
]


def plain(found: Any) -> Any:
    return found and (found.namespace, found.key, found.value)


def test_it_does_what_the_store_in_memory_does(any_address: str) -> None:
    chance = random.Random(3)
    with perdure.open(any_address) as opened:
        own, other = PerdureStore(opened), InMemoryStore()
        for _ in range(150):
            namespace, key = chance.choice(NAMESPACES), chance.choice("ab/")
            match chance.choice(["put", "put", "delete", "get", "search", "list"]):
                case "put":
                    value = {
                        "n": chance.randint(0, 5),
                        "t": chance.choice("xyz"),
                        "d": {"e": chance.randint(0, 2)},
                        "l": [1, chance.randint(1, 2)],
                    }
                    own.put(namespace, key, value)
                    other.put(namespace, key, value)
                case "delete":
                    own.delete(namespace, key)
                    other.delete(namespace, key)
                case "get":
                    assert plain(own.get(namespace, key)) == plain(other.get(namespace, key))
                case "search":
                    place, chosen = namespace[: chance.randint(0, 2)], chance.choice(FILTERS)
                    found = own.search(place, filter=chosen, limit=100)
                    wanted = other.search(place, filter=chosen, limit=100)
                    assert sorted(map(repr, map(plain, found))) == sorted(
                        map(repr, map(plain, wanted))
                    )
                case "list":
                    chosen = chance.choice(LISTINGS)
                    # The store in memory goes on listing namespaces that are empty.
                    for empty in [each for each in other._data if not other._data[each]]:
                        del other._data[empty]
                    assert own.list_namespaces(**chosen) == other.list_namespaces(**chosen)


def test_items_outlive_the_process_and_keep_the_time_of_their_creation(path: Path) -> None:
    first = PerdureStore(path)
    first.put(("u",), "k", {"n": 1})
    created = first.get(("u",), "k").created_at
    first.put(("u",), "k", {"n": 2})
    first.close()
    second = PerdureStore(path)
    item = second.get(("u",), "k")
    assert item.value == {"n": 2}
    assert item.created_at == created < item.updated_at
    second.close()


def test_items_expire_and_reading_lets_them_live(path: Path) -> None:
    store = PerdureStore(path, ttl={"default_ttl": 0.05, "refresh_on_read": True})
    store.put(("u",), "short", {"n": 1}, ttl=0.0001)
    store.put(("u",), "default", {"n": 1})
    store.put(("u",), "forever", {"n": 1}, ttl=None)
    expires = store.store.session("langgraph.store/u").get("item.default")["expires"]
    asyncio.run(asyncio.sleep(0.02))
    assert store.get(("u",), "short") is None
    assert [item.key for item in store.search(("u",))] == ["default", "forever"]
    assert store.store.session("langgraph.store/u").get("item.default")["expires"] > expires
    assert store.sweep_ttl() == 1
    assert store.sweep_ttl() == 0
    store.close()


def embed(texts: list[str]) -> list[list[float]]:
    return [[float(text.count("a")), float(text.count("b")), 1.0] for text in texts]


async def embed_later(texts: list[str]) -> list[list[float]]:
    await asyncio.sleep(0)
    return embed(texts)


@pytest.mark.filterwarnings("ignore:NumPy")
def test_a_query_finds_what_is_most_like_it() -> None:
    index: Any = {"dims": 3, "embed": embed, "fields": ["text", "parts[*].text"]}
    own, other = PerdureStore("memory:", index=index), InMemoryStore(index=index)
    for store in (own, other):
        for key, text in (("1", "aaaa"), ("2", "bbbb"), ("3", "ab")):
            store.put(
                ("m",), key, {"text": text, "parts": [{"text": f"b{key}"}, {"text": f"{text}c"}]}
            )
        store.put(("m",), "4", {"other": 1})
        store.put(("m",), "5", {"text": "aaa"}, index=False)

    def ranked(store: Any) -> list[Any]:
        return [
            (item.key, item.score and round(item.score, 4))
            for item in store.search(("m",), query="aaa")
        ]

    assert ranked(own) == ranked(other)
    assert ranked(own)[0][0] == "1"

    async def later() -> list[str]:
        store = PerdureStore("memory:", index={"dims": 3, "embed": embed_later})
        await asyncio.gather(*(store.aput(("m",), str(at), {"t": "a" * at}) for at in range(9)))
        return [item.key for item in await store.asearch(("m",), query="aaaaaaaa", limit=2)]

    assert asyncio.run(later())[0] == "8"


def test_two_writers_of_a_namespace_lose_nothing(path: Path) -> None:
    stores = [PerdureStore(path), PerdureStore(path)]

    async def write() -> None:
        await asyncio.gather(
            *(stores[at % 2].aput(("u",), f"k{at}", {"n": at}) for at in range(20)),
            *(stores[at % 2].aput(("u",), "same", {"n": at}) for at in range(6)),
        )

    asyncio.run(write())
    assert len(stores[0].search(("u",), limit=100)) == 21
    for store in stores:
        store.close()


def test_a_graph_uses_it_beside_a_saver_on_one_perdure_store(path: Path) -> None:
    def remember(state: MessagesState, *, store: BaseStore) -> None:
        store.put(("facts",), "last", {"said": state["messages"][-1].content})

    with perdure.open(path) as opened:
        builder = StateGraph(MessagesState)
        builder.add_node("remember", remember)
        builder.add_edge(START, "remember")
        saver, store = PerdureSaver(opened), PerdureStore(opened)
        builder.compile(checkpointer=saver, store=store).invoke(human("blue"), config())
        assert store.get(("facts",), "last").value == {"said": "blue"}
        assert [info.thread_id for info in saver.threads()] == ["t"]


def test_what_cannot_be_done_is_refused() -> None:
    store = PerdureStore("memory:")
    store.put(("u",), "k", {"n": 1})
    with pytest.raises(perdure.UsageError, match="unknown operators of a filter, \\$near: use"):
        store.search(("u",), filter={"n": {"$near": 1}})
    with pytest.raises(perdure.UsageError, match="set"):
        store.put(("u",), "k", {"n": {1, 2}})
    assert store.get(("u",), "k").value == {"n": 1}
