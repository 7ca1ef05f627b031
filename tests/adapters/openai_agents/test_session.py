"""The SDK's session protocol on perdure: items, limits, taking back, compaction, other writers."""

import asyncio
import random
from pathlib import Path
from typing import Any

import apsw
import pytest
from agents import (
    Agent,
    OpenAIResponsesCompactionSession,
    OpenAIResponsesModel,
    Runner,
    Session,
    SessionSettings,
    SQLiteSession,
)
from agents.extensions.memory import EncryptedSession

import perdure
from perdure.adapters.openai_agents import PerdureSession
from perdure.adapters.openai_agents.items import cut_items
from perdure.testing import ModelServer
from perdure.testing.provider_rules import violations

pytestmark = pytest.mark.anyio

USER: dict[str, Any] = {"role": "user", "content": "hello"}
ANSWER: dict[str, Any] = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "hi", "annotations": []}],
}
REASONING: dict[str, Any] = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "encrypted_content": "sealed",
}


def call(number: int) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}


def output(number: int, text: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": text}


async def test_it_is_a_session_of_the_sdk(store: perdure.AsyncStore) -> None:
    assert isinstance(PerdureSession("s", store), Session)


async def test_items_are_kept_as_they_are_in_every_store(any_store: perdure.AsyncStore) -> None:
    """The same calls on the SDK's own session give the same."""
    own, sdk = PerdureSession("s", any_store), SQLiteSession("s")
    items: list[Any] = [USER, REASONING, call(1), output(1), ANSWER, {"__enc__": 1, "payload": "x"}]
    for session in (own, sdk):
        await session.add_items([])
        await session.add_items(items[:2])
        await session.add_items(items[2:])
    for limit in (None, 2, 100):
        assert await own.get_items(limit) == await sdk.get_items(limit)
    assert await PerdureSession("s", any_store).get_items() == items
    for _ in range(len(items)):
        assert await own.pop_item() == await sdk.pop_item()
        assert await own.get_items() == await sdk.get_items()
    assert await own.pop_item() is None
    await own.add_items([USER])
    await own.clear_session()
    await own.clear_session()
    assert await own.get_items() == []
    await own.add_items([ANSWER])
    assert await own.get_items() == [ANSWER]
    sdk.close()


async def test_items_are_messages_of_the_session(store: perdure.AsyncStore) -> None:
    own = PerdureSession("s", store)
    await own.add_items([USER, ANSWER])
    session = await store.session("s")
    assert await session.messages() == [USER, ANSWER]
    chat = await session.messages(format="openai.chat")
    assert [message["role"] for message in chat] == ["user", "assistant"]
    await own.pop_item()
    await session.refresh()
    assert await session.messages() == [USER]
    kinds = [record.kind async for record in session.records()]
    assert kinds == ["message", "message", "messages.retracted"]


async def test_what_a_caller_does_to_items_does_not_reach_the_session(
    store: perdure.AsyncStore,
) -> None:
    own = PerdureSession("s", store)
    given: list[Any] = [{**USER}, {**ANSWER, "content": [{**ANSWER["content"][0]}]}]
    await own.get_items()
    await own.add_items(given)
    given[1]["content"][0]["text"] = "changed"
    found = await own.get_items()
    assert found == [USER, ANSWER]
    found[1]["content"][0]["text"] = "changed"
    assert await own.get_items() == [USER, ANSWER]


async def test_other_writers_are_seen_and_none_is_lost(any_store: perdure.AsyncStore) -> None:
    """Many tasks with sessions of their own add, read and take back; a list does the same."""
    rng = random.Random(7)
    sessions = [PerdureSession("s", any_store) for _ in range(4)]
    popped: list[str] = []

    async def work(own: PerdureSession, name: str) -> None:
        for number in range(12):
            await own.add_items(
                [{"role": "user", "content": f"{name}-{number}-{at}"} for at in "ab"]
            )
            if rng.random() < 0.3:
                await own.get_items()
            if rng.random() < 0.2 and (item := await own.pop_item()):
                popped.append(item["content"])

    await asyncio.gather(*(work(own, f"w{at}") for at, own in enumerate(sessions)))
    expected = {
        f"w{at}-{number}-{each}" for at in range(4) for number in range(12) for each in "ab"
    }
    for own in sessions:
        found = [item["content"] for item in await own.get_items()]
        assert sorted(found) == sorted(expected - {*popped})
    assert len(popped) == len({*popped}) > 0


async def test_tasks_that_share_a_session_see_all_items(any_store: perdure.AsyncStore) -> None:
    own = PerdureSession("s", any_store)

    async def work(name: str) -> None:
        for number in range(10):
            await own.add_items([{"role": "user", "content": f"{name}-{number}"}])
            items = await own.get_items()
            texts = [item["content"] for item in items]
            assert len(texts) == len({*texts})
            assert f"{name}-{number}" in texts

    await asyncio.gather(*(work(f"t{number}") for number in range(6)))
    items = await own.get_items()
    assert len(items) == 60
    assert items == await PerdureSession("s", any_store).get_items()


async def test_outputs_are_in_the_order_of_their_calls(store: perdure.AsyncStore) -> None:
    own = PerdureSession("s", store)
    await own.add_items([USER, call(1), call(2), call(3), output(3), output(1)])
    await own.add_items([output(2)])
    wanted = [USER, call(1), call(2), call(3), output(1), output(2), output(3)]
    assert await own.get_items() == wanted
    assert await PerdureSession("s", store).get_items() == wanted
    for count in range(len(wanted), 0, -1):
        assert await own.pop_item() == wanted[count - 1]
        assert await own.get_items() == wanted[: count - 1]


HISTORY: list[dict[str, Any]] = [
    USER,
    REASONING,
    ANSWER,
    {"role": "user", "content": "again"},
    {**REASONING, "id": "rs_2"},
    call(1),
    call(2),
    output(1),
    output(2),
    {**ANSWER, "id": "msg_2"},
]


@pytest.mark.parametrize("limit", range(len(HISTORY) + 2))
def test_a_limit_separates_neither_pairs_nor_reasoning(limit: int) -> None:
    found = cut_items(HISTORY, limit)
    assert len(found) <= limit
    assert found == HISTORY[len(HISTORY) - len(found) :]
    if found:
        before = HISTORY[len(HISTORY) - len(found) - 1] if len(found) < len(HISTORY) else {}
        assert before.get("type") != "reasoning"
    assert violations("openai.responses", [*found, USER]) == []
    best = [0, 1, 1, 1, 1, 1, 6, 7, 7, 9, 10, 10]
    assert len(found) == best[limit]


async def test_the_sdk_sends_what_a_limit_leaves(
    store: perdure.AsyncStore, client: Any, server: ModelServer
) -> None:
    """The server rejects a call or an answer without the reasoning that belongs to it."""
    own = PerdureSession("s", store, session_settings=SessionSettings(limit=3))
    agent = Agent(name="clerk", model=OpenAIResponsesModel("gpt-4o", client))
    await own.add_items([*HISTORY])
    for _ in range(3):
        await Runner.run(agent, "[[reason]] go on", session=own)
    assert [len(request.body["input"]) for request in server.requests] == [2, 4, 4]


async def test_a_window_of_tokens_begins_with_a_turn(
    store: perdure.AsyncStore, client: Any, server: ModelServer
) -> None:
    own = PerdureSession("s", store, max_tokens=200)
    agent = Agent(name="clerk", model=OpenAIResponsesModel("gpt-4o", client))
    for number in range(6):
        await own.run(agent, f"[[reason]] {number} " + "word " * 60)
    sizes = [len(request.body["input"]) for request in server.requests]
    assert sizes[0] == 1
    assert max(sizes) <= 4
    assert all(request.body["input"][0]["role"] == "user" for request in server.requests)


class Compacting:
    """A client of `/responses/compact` that answers without a server of that kind."""

    def __init__(self) -> None:
        self.responses = self
        self.inputs: list[Any] = []

    async def compact(self, **options: Any) -> Any:
        from openai.types.responses import CompactedResponse

        self.inputs.append(options.get("input"))
        item = {"id": "cmp_1", "type": "compaction", "encrypted_content": "sealed"}
        return CompactedResponse.model_validate(
            {
                "id": "resp_1",
                "created_at": 0,
                "object": "response.compaction",
                "output": [item],
                "usage": {
                    "input_tokens": 1,
                    "output_tokens": 1,
                    "total_tokens": 2,
                    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                    "output_tokens_details": {"reasoning_tokens": 0},
                },
            }
        )


async def test_compaction_replaces_in_one_commit_and_the_record_keeps_all(
    any_store: perdure.AsyncStore,
) -> None:
    own = PerdureSession("s", any_store)
    compacting: Any = OpenAIResponsesCompactionSession(
        "s", own, client=Compacting(), compaction_mode="input"
    )
    await compacting.add_items([USER, *HISTORY])
    session = await any_store.session("s")
    before = session.position
    await compacting.run_compaction({"force": True})
    items = await own.get_items()
    assert items[-1]["type"] == "compaction"
    assert len(items) < len(HISTORY)
    await session.refresh()
    kinds = [record.kind async for record in session.records(after=before)]
    assert kinds[-1] == "messages.replaced"
    assert {*kinds[:-1]} == {"message"}
    await session.verify()
    assert await PerdureSession("s", any_store).get_items() == items
    await own.add_items([USER])
    assert (await own.get_items())[-1] == USER


async def test_an_encrypted_session_can_be_stored(store: perdure.AsyncStore) -> None:
    own = PerdureSession("s", store)
    session = EncryptedSession("s", own, encryption_key="a key of some length", ttl=600)
    await session.add_items([USER, ANSWER])
    assert await session.get_items() == [USER, ANSWER]
    assert "hello" not in str(await own.get_items())


async def test_items_of_another_framework_are_converted(store: perdure.AsyncStore) -> None:
    session = await store.session("s")
    chat_call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    await session.append(
        {"role": "user", "content": "hello", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [chat_call]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        {"role": "assistant", "content": "done"},
    )
    own = PerdureSession("s", store)
    items = await own.get_items()
    assert [item.get("type", item.get("role")) for item in items[1:3]] == [
        "function_call",
        "function_call_output",
    ]
    assert violations("openai.responses", items) == []
    assert [loss.position for loss in own.losses] == [1]  # The name of the speaker.
    await own.add_items([USER])
    assert (await own.get_items())[-1] == USER
    assert await own.pop_item() == USER
    assert await own.get_items() == items


async def test_what_cannot_be_expressed_is_reported(store: perdure.AsyncStore) -> None:
    session = await store.session("s")
    sound = {"inline_data": {"mime_type": "audio/wav", "data": "AAAA"}}
    await session.append({"role": "user", "parts": [{"text": "listen"}, sound]})
    own = PerdureSession("s", store)
    [item] = await own.get_items()
    assert "listen" in str(item)
    assert "AAAA" not in str(item)
    [loss] = own.losses
    assert loss.position == 1
    assert "audio" in loss.what


async def test_an_item_that_cannot_be_stored_is_refused_whole(store: perdure.AsyncStore) -> None:
    own = PerdureSession("s", store)
    with pytest.raises(perdure.UsageError):
        await own.add_items([USER, {"role": "user", "content": float("nan")}])
    assert await own.get_items() == []


async def test_an_altered_row_is_an_error_not_a_shorter_history(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    async with perdure.open_async(path) as store:
        await PerdureSession("s", store).add_items([USER, ANSWER])
    with apsw.Connection(str(path)) as connection:
        tables = [row[0] for row in connection.execute("select name from sqlite_master")]
        table = next(name for name in tables if "entr" in name)
        columns = [row[1] for row in connection.execute(f"pragma table_info({table})")]
        body = next(name for name in columns if "body" in name or "payload" in name)
        old, new = b"hello", b"jello"
        for rowid, data in [*connection.execute(f"select rowid, {body} from {table}")]:  # noqa: S608
            stored = data.encode() if isinstance(data, str) else data
            if old in stored:
                connection.execute(
                    f"update {table} set {body} = ? where rowid = ?",  # noqa: S608
                    (stored.replace(old, new), rowid),
                )
    async with perdure.open_async(path) as store:
        with pytest.raises((perdure.ChainError, perdure.DamagedError, perdure.PayloadError)):
            await PerdureSession("s", store).get_items()


async def test_a_store_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    with (
        perdure.open(tmp_path / "a.db") as store,
        pytest.raises(perdure.UsageError, match="open_async"),
    ):
        PerdureSession("s", store)  # type: ignore[arg-type]


async def test_unknown_versions_of_the_sdk_are_refused(
    store: perdure.AsyncStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.adapters.openai_agents.session.version", lambda _: "0.99.1")
    with pytest.raises(perdure.UnsupportedError, match=r"0\.99\.1"):
        PerdureSession("s", store)


@pytest.mark.parametrize("write", ["add", "pop", "clear"])
async def test_a_write_that_others_keep_overtaking_ends_with_a_conflict(
    store: perdure.AsyncStore, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = PerdureSession("s", store)
    await own.add_items([USER])
    attempts = []

    async def overtaken(*args: Any, **options: Any) -> Any:
        attempts.append(args)
        if len(attempts) < limit:
            raise perdure.ConflictError("s", 1, 2)
        return await real(*args, **options)

    session = await own.open()
    name = "append" if write == "add" else "retract"
    real = getattr(session, name)
    monkeypatch.setattr(session, name, overtaken)
    calls = {"add": lambda: own.add_items([USER]), "pop": own.pop_item, "clear": own.clear_session}
    limit = 10_000
    with pytest.raises(perdure.ConflictError):
        await calls[write]()
    assert len(attempts) == 64
    limit = len(attempts) + 5
    await calls[write]()  # Soon enough, it is done.
    assert len(await own.get_items()) == (2 if write == "add" else 0)
