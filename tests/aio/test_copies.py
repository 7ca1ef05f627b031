"""Copies of sessions within a store: the same content, and nothing that ties the two."""

from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.errors import DivergenceError, NotFoundError, UsageError
from perdure.journal.records import Copied, Note
from tests.support import said


async def listed(store: perdure.AsyncStore, **options: Any) -> list[str]:
    return [info.id async for info in store.sessions(**options)]


async def kinds(session: perdure.AsyncSession) -> list[str]:
    return [record.kind async for record in session.records()]


async def test_a_copy_has_the_same_content_at_the_same_positions() -> None:
    backend = MemoryBackend()
    store = perdure.open_async(ThreadedBackend(backend))
    source = await store.session("s")
    for number in range(300):  # Beyond a snapshot and several pages.
        await source.append(said(str(number)), id=f"m-{number}")
    await source.set("plan", {"n": 1})
    await source.note("seen", topic="t")
    await source.label("vip")
    copy = await source.copy("c")
    again = await perdure.open_async(ThreadedBackend(backend)).session("c")
    for each in (copy, again):
        assert await each.messages() == await source.messages()
        assert await each.get("plan") == {"n": 1}
        assert each.labels == {"vip"}
        assert [note.content async for note in each.notes("t")] == [Note(data="seen", topic="t")]
    ours = [record async for record in copy.records()]
    theirs = [record async for record in source.records()]
    for mine, its in zip(ours, theirs, strict=False):
        assert (mine.position, mine.id, mine.kind, mine.time) == its[:4]
    assert [record.kind for record in ours[len(theirs) :]] == ["copied"]
    content = ours[-1].content
    assert isinstance(content, Copied)
    assert (content.position, content.digest) == (theirs[-1].position, theirs[-1].digest)
    assert (await copy.verify()).records == len(ours)
    assert await listed(store) == ["c", "s"]


async def test_neither_session_needs_the_other() -> None:
    store = perdure.open_async(ThreadedBackend(MemoryBackend()))
    source = await store.session("s")
    await source.append(said("one"))
    copy = await source.copy("c")
    await copy.append(said("two"))
    await source.append(said("another two"))
    await store.delete("s")
    assert [message["content"] for message in await copy.messages()] == ["one", "two"]
    copy = await (await store.resume("c")).copy("d")
    await store.delete("c")
    assert [message["content"] for message in await copy.messages()] == ["one", "two"]
    await copy.verify()


async def test_a_copy_knows_the_ids_of_its_source() -> None:
    store = perdure.open_async(ThreadedBackend(MemoryBackend()))
    source = await store.session("s")
    places = [await source.append(said(str(n)), id=f"m-{n}") for n in range(300)]
    copy = await source.copy("c")
    assert [await copy.append(said(str(n)), id=f"m-{n}") for n in range(300)] == places
    with pytest.raises(DivergenceError):
        await copy.append(said("other"), id="m-1")


async def test_leases_and_branches_are_not_copied() -> None:
    store = perdure.open_async(ThreadedBackend(MemoryBackend()))
    source = await store.session("s")
    await source.append(said("one"))
    await source.branch("b")
    async with source.lease(owner="worker"):
        await source.append(said("two"))
        copy = await source.copy("c")
        assert copy.lease_holder is None
        assert copy.labels == frozenset()
        await copy.append(said("three"))
    assert "omitted" in await kinds(copy)
    assert not {"lease.taken", "branch.kept"} & {*await kinds(copy)}
    await copy.verify()
    await store.delete("c")  # No branch needs it.


async def test_a_copy_of_a_branch_has_the_shared_past_itself() -> None:
    store = perdure.open_async(ThreadedBackend(MemoryBackend()))
    source = await store.session("s")
    for number in range(300):
        await source.append(said(str(number)))
    await source.label("parent's")
    branch = await source.branch("b", at=280)
    await branch.append(said("its own"))
    copy = await branch.copy("c")
    assert copy.labels == frozenset()
    await store.delete("b")
    await store.delete("s")
    copy = await store.resume("c")
    assert [message["content"] for message in await copy.messages(last=2)] == ["271", "its own"]
    assert (await copy.verify()).snapshots > 1


async def test_open_turns_are_abandoned_in_the_copy() -> None:
    store = perdure.open_async(ThreadedBackend(MemoryBackend()))
    source = await store.session("s")
    async with source.turn("Go.", id="r-1") as turn:
        await turn.append(said("Working.", "assistant"))
        copy = await source.copy("c")
    assert (await copy.find_turn("r-1")).state == "abandoned"
    assert copy.interrupted == ()
    assert (await source.find_turn("r-1")).state == "completed"
    assert len(copy) == 2
    await copy.verify()


async def test_summaries_and_retractions_are_copied() -> None:
    store = perdure.open_async(ThreadedBackend(MemoryBackend()))
    source = await store.session("s")
    for number in range(10):
        async with source.turn(f"question {number} " * 20) as turn:
            await turn.append(said(f"answer {number} " * 20, "assistant"))
    await source.summarize(lambda _messages: "All so far.", keep_turns=2)
    await source.append(said("wrong"))
    await source.retract(source.position)
    copy = await source.copy("c")
    window: dict[str, Any] = {"format": "openai.chat", "max_messages": 6}
    assert await copy.messages(**window) == await source.messages(**window)
    assert len(copy) == len(source) == 20
    await copy.verify()
    copy = await copy.copy("d")
    await copy.verify()


async def test_a_copy_of_a_session_created_again_begins_where_that_begins() -> None:
    store = perdure.open_async(ThreadedBackend(MemoryBackend()))
    await (await store.session("s")).append(said("gone"))
    await store.delete("s")
    source = await store.session("s")
    await source.append(said("new"))
    copy = await source.copy("c")
    assert [message["content"] for message in await copy.messages()] == ["new"]
    await copy.verify()


async def test_a_copy_needs_an_id_of_its_own() -> None:
    store = perdure.open_async(ThreadedBackend(MemoryBackend()))
    source = await store.session("s")
    await source.append(said("one"))
    await (await store.session("gone")).append(said("two"))
    await store.delete("gone")
    for taken, reason in (("s", "exists"), ("gone", "was deleted")):
        with pytest.raises(UsageError, match=reason):
            await source.copy(taken)
    with pytest.raises(UsageError):
        await source.copy("")


async def test_a_copy_of_a_session_without_records_is_a_new_one() -> None:
    store = perdure.open_async(ThreadedBackend(MemoryBackend()))
    copy = await (await store.session("s")).copy("c")
    assert (copy.position, len(copy)) == (0, 0)
    assert await listed(store) == []
    with pytest.raises(NotFoundError):
        await store.resume("c")
