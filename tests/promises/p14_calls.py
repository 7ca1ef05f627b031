"""Every public call on a live store, in both colors, and what a replay has to say about each.

`Live` is a store with something of every kind in it. A row of `CALLS` is a public name with a
plausible call. WRITES: it changes the store. REFUSED: it does not, or not yet. Both are blocked in
a replayed agent. FREE: it neither reads nor writes the store. `names` finds the public names, so
that a new method without a row is noticed.
"""

import asyncio
import inspect
import pkgutil
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import perdure
from perdure import aio, sync
from perdure.aio.batch import AsyncStoreBatch
from perdure.aio.store import AsyncStore
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import AsyncBackend, Backend
from perdure.core.effects.calls import CallArguments, ToolTimeoutError
from perdure.core.effects.model_calls import PendingModelCall
from perdure.core.replay.result import Replay
from perdure.core.settings import settings_of
from perdure.errors import ApprovalPendingError, ReplayBlockedError
from perdure.sync.batch import StoreBatch
from perdure.sync.store import Store
from tests.formats.streams import one_choice
from tests.promises.p14_agents import Entered, drive, settled

WRITES, REFUSED, FREE = "writes", "refused", "free"

# Classes of aio/ and sync/ that an application never holds: what it holds uses them.
INTERNAL = {
    *("Background", "Batcher", "Driver", "DurableCall", "GroupCommitter", "Handle", "Repeater"),
    *(
        "ReplayHandle",
        "ReplaySession",
        "PastReader",
        "ResultDispatcher",
        "StallDetector",
        "StepRunner",
        "StepWaiter",
        "SessionReader",
        "Summaries",
        "Waiter",
    ),
    "_Waiter",
}
SPECIAL = {"__enter__", "__call__", "__next__"}
ASYNC_SPECIAL = {"__aenter__": "__enter__", "__anext__": "__next__"}

STREAM = [one_choice(0, {"content": text}) for text in ("Let ", "me ", "see.")]
ASKING = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "charge", "arguments": '{"n": 1}'}}
    ],
}
YES = {"role": "assistant", "content": "Yes."}
TOOL = {"type": "function", "function": {"name": "charge", "parameters": {}}}


def charge(n: int) -> int:
    return n


def hello(text: str = "Hello.") -> dict[str, str]:
    return {"role": "user", "content": text}


async def finished(value: Any) -> Any:
    """Carry a call through: await it, or read all that it yields."""
    if isinstance(value, Future):
        return value.result()
    if hasattr(value, "__anext__"):
        return [item async for item in value]
    if hasattr(value, "__next__"):
        return [*value]
    return await settled(value)


QUESTION = {"role": "user", "content": "What else?"}


def count_records(count: int, _record: Any) -> int:
    return count + 1


class Live:
    """A live store with something of every kind in it, and the objects that an agent may hold."""

    def __init__(self, backend: Backend, own: AsyncBackend | None = None, *, address: str) -> None:
        self.backend = backend
        self.address = address
        """The address of the store; empty in memory."""
        self.is_async = own is not None
        settings = settings_of(None, time.time, verify_writes=False)
        self.store: Any = Store(backend, settings) if own is None else AsyncStore(own, settings)
        self.session: Any = None
        self.new = 0

    async def fill(self) -> "Live":
        """Write what the calls need."""
        store = self.store
        self.replayed = await settled(store.session("replayed"))
        await self.agent(self.replayed)
        self.session = session = await settled(store.session("live"))
        for number in range(3):
            async with Entered(session.turn(f"Question {number}? " + "x" * 60)) as turn:
                await settled(turn.append({"role": "assistant", "content": "Yes. " + "y" * 60}))
        self.pinned = session.position - 1
        await settled(session.pin(self.pinned))
        await settled(session.set("key", {"a": 1}))
        self.body: Any = await settled(session.upload(b"picture", media_type="image/png"))
        await settled(session.summarize(lambda _: "Short.", keep_turns=1))
        async with Entered(session.turn("One more? " + "x" * 60)) as turn:
            await settled(turn.append({"role": "assistant", "content": "Yes. " + "y" * 60}))
        await self._unknown_effect()
        spare = await settled(store.session("spare"))
        await settled(spare.note("for deletion"))
        await self._talk()
        await self._approval()
        leased = await settled(store.session("leased"))
        self.lease = await Entered(leased.lease(ttl=3_600, owner="worker")).__aenter__()
        self.batch: Any = await Entered(session.batch()).__aenter__()
        self.turn_batch: Any = await Entered(self.turn.batch()).__aenter__()
        kind: Any = AsyncStoreBatch if self.is_async else StoreBatch
        # Not by `store.batch()`: stores of files have none, but must not be read for one either.
        self.store_batch: Any = await Entered(kind(store._driver, store._unlock)).__aenter__()
        await settled(session.note("seen", topic="topic", id="known"))
        self.view: Any = await settled(session.view(count_records, name="count", initial=0))
        self.values: Any = await settled(store.values("shared"))
        await settled(self.values.set("key", 1))
        return self

    def agent_of(self) -> Any:
        """Return an agent of the live session."""
        kind: Any = perdure.AsyncAgent if self.is_async else perdure.Agent
        return kind(self.session, lambda *_: YES)

    async def _unknown_effect(self) -> None:
        session = await settled(self.store.session("unknown"))
        gate = asyncio.Event() if self.is_async else threading.Event()
        with suppress(ToolTimeoutError):
            async with Entered(session.turn("Wait.")):
                await settled(session.tool(gate.wait, name="wait", timeout=0.01)())
        gate.set()
        self.unknown = session
        self.effect = (await settled(session.effects.unknown()))[0]

    async def _talk(self) -> None:
        """Leave turns open, with calls to make, a stream to read and a partial answer."""
        self.talk = await settled(self.store.session("talk"))
        self.turn = await Entered(self.talk.turn("Pay.")).__aenter__()
        await settled(self.turn.append(ASKING))
        self.pending = self.turn.begin_model_call("small", {"q": 1})
        self.tool = self.talk.tool(charge)
        self.model = self.talk.model(charge, name="small")
        self.stream = self.turn.stream(self._chunks(), flush_every=0.0)
        await self._next_chunk()
        cut = await settled(self.store.session("cut"))
        self.cut = await Entered(cut.turn("Tell.")).__aenter__()
        stream = self.cut.stream(self._chunks(), flush_every=0.0)
        await (anext(stream) if self.is_async else settled(next(stream)))
        await settled(self.cut.suspend())
        (self.interrupted,) = cut.interrupted

    def _chunks(self) -> Any:
        async def chunks() -> Any:
            for chunk in STREAM:
                yield chunk

        return chunks() if self.is_async else iter(STREAM)

    async def _next_chunk(self) -> Any:
        return await anext(self.stream) if self.is_async else next(self.stream)

    async def _approval(self) -> None:
        self.waiting = await settled(self.store.session("waiting"))
        pay = self.waiting.tool(charge, approval=True, approval_wait=0.0)
        with suppress(ApprovalPendingError):
            async with Entered(self.waiting.turn("Pay.")):
                await settled(pay(5))
        (self.approval,) = await settled(self.waiting.approvals.pending())

    async def agent(self, session: Any) -> None:
        """The agent that is recorded, and replayed with calls on the live store besides."""
        async with Entered(session.turn("Pay.")) as turn:
            await settled(turn.append({"role": "assistant", "content": "Paid."}))

    def fresh(self) -> str:
        """Return a name that is not in use."""
        self.new += 1
        return f"new-{self.new}"

    def make(self) -> Any:
        """Make a call as `session.run_tool_calls` does."""
        call = self.tool.spec.request(f"direct:{self.fresh()}", {"n": 1}, "0" * 32)
        running = self.talk._handle.active_turns[self.turn.id]
        return self.tool.make(call, CallArguments({"n": 1}, (1,), {}), running)

    def call_numbers(self) -> dict[str, int]:
        """Return how often each call was made in the open turn, by which the next one is named."""
        running = self.talk._handle.active_turns[self.turn.id]
        return dict(running.sequence._count)

    async def in_loop(self, work: Any) -> Any:
        """Await something in either color."""
        if self.is_async:
            return await work
        return asyncio.run(work)

    def contents(self, *, beside: str = "") -> Any:
        """Return everything that the store holds, but for a session beside it."""
        heads = sorted(head for head in self.backend.streams() if head.stream != beside)
        return [(head, [*self.backend.read(head.stream)]) for head in heads]

    async def close(self) -> None:
        await settled(self.store.close())


class Call(NamedTuple):
    """A public call: what a replay does about it, and the call itself."""

    verdict: str
    make: Callable[[Live], Any]


async def copy_async(live: Live) -> Any:
    target = MemoryBackend()
    return await perdure.copy_async(ThreadedBackend(live.backend), ThreadedBackend(target))


async def note_in(batch: Any) -> None:
    async with Entered(batch) as writer:
        writer.note("seen")


async def rotate_keys(live: Live) -> None:
    with suppress(perdure.UsageError):  # The store is not encrypted.
        await finished(live.store.rotate_keys())


async def note_in_store(live: Live) -> None:
    async with Entered(live.store.batch()) as batch:
        (await settled(batch.session("live"))).note("seen")


async def call_agent(live: Live) -> None:
    async with Entered(live.session.turn("Go.")) as turn:
        await settled(live.agent_of()(turn))


def batch_calls(batch: Callable[[Live], Any]) -> dict[str, Call]:
    """Return the calls on an open batch. They collect, for a write when its block ends."""
    return {
        "__enter__": Call(FREE, lambda live: Entered(batch(live)).__aenter__()),
        "append": Call(REFUSED, lambda live: batch(live).append(hello())),
        "delete": Call(REFUSED, lambda live: batch(live).delete("key")),
        "describe": Call(REFUSED, lambda live: batch(live).describe(customer="c-17")),
        "end": Call(REFUSED, lambda live: batch(live).end(range(0))),
        "label": Call(REFUSED, lambda live: batch(live).label("vip")),
        "note": Call(REFUSED, lambda live: batch(live).note("seen")),
        "open": Call(REFUSED, lambda live: batch(live).open()),
        "pin": Call(REFUSED, lambda live: batch(live).pin(2)),
        "positions": Call(FREE, lambda live: batch(live).positions),
        "set": Call(REFUSED, lambda live: batch(live).set("key", 2)),
        "unpin": Call(REFUSED, lambda live: batch(live).unpin(2)),
    }


def _of_body(name: str, live: Live) -> Any:
    return getattr(live.body, name)


CALLS: dict[str, Call] = {
    "copy": Call(REFUSED, lambda live: perdure.copy(live.backend, MemoryBackend())),
    "copy_async": Call(REFUSED, lambda live: live.in_loop(copy_async(live))),
    "current_effect": Call(FREE, lambda _: perdure.current_effect()),
    "open": Call(REFUSED, lambda _: perdure.open("memory:").close()),
    "open, a backend": Call(REFUSED, lambda live: perdure.open(live.backend)),
    "open_async": Call(REFUSED, lambda live: perdure.open_async(ThreadedBackend(live.backend))),
    "replay": Call(REFUSED, lambda live: perdure.replay(live.replayed, id)),
    "safe_id": Call(FREE, lambda _: perdure.safe_id("a b")),
    # The store.
    "Store.__enter__": Call(FREE, lambda live: Entered(live.store).__aenter__()),
    "Store.batch": Call(REFUSED, lambda live: live.store.batch()),
    "Store.closed": Call(FREE, lambda live: live.store.closed),
    "Store.approvals": Call(REFUSED, lambda live: live.store.approvals()),
    "Store.close": Call(REFUSED, lambda live: live.store.close()),
    "Store.delete": Call(WRITES, lambda live: live.store.delete("spare")),
    "Store.guarantees": Call(FREE, lambda live: live.store.guarantees()),
    "Store.records": Call(REFUSED, lambda live: live.store.records("live")),
    "Store.resume": Call(REFUSED, lambda live: live.store.resume("live")),
    "Store.session": Call(REFUSED, lambda live: live.store.session("live")),
    "Store.rotate_keys": Call(REFUSED, rotate_keys),
    "Store.verify": Call(REFUSED, lambda live: live.store.verify()),
    "Store.session, new": Call(REFUSED, lambda live: live.store.session(live.fresh())),
    "Store.sessions": Call(REFUSED, lambda live: live.store.sessions()),
    "Store.sessions, recent": Call(REFUSED, lambda live: live.store.sessions(recent=True)),
    "Store.sessions, by a field": Call(REFUSED, lambda live: live.store.sessions(order="x")),
    "Store.values": Call(REFUSED, lambda live: live.store.values("shared")),
    # A session.
    "Session.__enter__": Call(FREE, lambda live: Entered(live.session).__aenter__()),
    "Session.append": Call(WRITES, lambda live: live.session.append(hello())),
    "Session.batch": Call(FREE, lambda live: live.session.batch()),
    "Session.batch, whole": Call(WRITES, lambda live: note_in(live.session.batch())),
    "Session.branch": Call(WRITES, lambda live: live.session.branch(live.fresh())),
    "Session.compact": Call(WRITES, lambda live: live.session.compact(keep=1)),
    "Session.complete_from": Call(FREE, lambda live: live.session.complete_from),
    "Session.copy": Call(WRITES, lambda live: live.session.copy(live.fresh())),
    "Session.close": Call(REFUSED, lambda live: live.session.close()),
    "Session.current_turn": Call(FREE, lambda live: live.session.current_turn),
    "Session.describe": Call(WRITES, lambda live: live.session.describe(customer="c-17")),
    "Session.fields": Call(FREE, lambda live: live.session.fields),
    "Session.delete": Call(WRITES, lambda live: live.session.delete("key")),
    "Session.find_turn": Call(REFUSED, lambda live: live.talk.find_turn(live.turn.id)),
    "Session.get": Call(REFUSED, lambda live: live.session.get("key")),
    "Session.get, missing": Call(REFUSED, lambda live: live.session.get("missing")),
    "Session.id": Call(FREE, lambda live: live.session.id),
    "Session.interrupted": Call(FREE, lambda live: live.session.interrupted),
    "Session.label": Call(WRITES, lambda live: live.session.label("vip")),
    "Session.labels": Call(FREE, lambda live: live.session.labels),
    "Session.last_message": Call(FREE, lambda live: live.session.last_message),
    "Session.lease": Call(FREE, lambda live: live.session.lease()),
    "Session.lease_holder": Call(FREE, lambda live: live.session.lease_holder),
    "Session.messages": Call(REFUSED, lambda live: live.session.messages()),
    "Session.messages, a window": Call(
        REFUSED, lambda live: live.session.messages(format="openai.chat", max_tokens=4_000)
    ),
    "Session.messages, summarized": Call(
        WRITES,
        lambda live: live.session.messages(max_messages=4, summarize=lambda _: "Less."),
    ),
    "Session.model": Call(FREE, lambda live: live.session.model(charge)),
    "Session.note": Call(WRITES, lambda live: live.session.note("seen")),
    "Session.find": Call(REFUSED, lambda live: live.session.find("known")),
    "Session.notes": Call(REFUSED, lambda live: live.session.notes("topic")),
    "Session.view": Call(
        REFUSED, lambda live: live.session.view(count_records, name="other", initial=0)
    ),
    "Session.pin": Call(WRITES, lambda live: live.session.pin(2)),
    "Session.position": Call(FREE, lambda live: live.session.position),
    "Session.record": Call(REFUSED, lambda live: live.session.record(1)),
    "Session.records": Call(REFUSED, lambda live: live.session.records()),
    "Session.refresh": Call(REFUSED, lambda live: live.session.refresh()),
    "Session.replace": Call(WRITES, lambda live: live.session.replace(2, 2, QUESTION)),
    "Session.upload": Call(WRITES, lambda live: live.session.upload(b"another picture")),
    "Session.retract": Call(WRITES, lambda live: live.session.retract(2)),
    "Session.run": Call(
        WRITES, lambda live: live.session.run("r1", lambda turn: turn.append(YES), "And now?")
    ),
    "Session.run_tool_calls": Call(
        WRITES, lambda live: live.talk.run_tool_calls(tools=[live.tool])
    ),
    "Session.set": Call(WRITES, lambda live: live.session.set("key", {"a": 2})),
    "Session.summarize": Call(
        WRITES, lambda live: live.session.summarize(lambda _: "Less.", keep_turns=1)
    ),
    "Session.summarize_in_background": Call(
        WRITES,
        lambda live: live.session.summarize_in_background(lambda _: "Less.", keep_turns=1),
    ),
    "Session.tool": Call(FREE, lambda live: live.session.tool(charge)),
    "Session.turn": Call(FREE, lambda live: live.session.turn("And now?")),
    "Session.undo_summary": Call(WRITES, lambda live: live.session.undo_summary()),
    "Session.unpin": Call(WRITES, lambda live: live.session.unpin(live.pinned)),
    "Session.verify": Call(REFUSED, lambda live: live.session.verify()),
    "Session.watch": Call(REFUSED, lambda live: live.session.watch(timeout=0.0)),
    # A turn.
    "Turn.__enter__": Call(
        WRITES, lambda live: Entered(live.session.turn("And now?")).__aenter__()
    ),
    "Turn.__enter__, interrupted": Call(
        WRITES, lambda live: Entered(live.interrupted).__aenter__()
    ),
    "Turn.abandon": Call(WRITES, lambda live: live.interrupted.abandon()),
    "Turn.answer": Call(REFUSED, lambda live: live.turn.answer()),
    "Turn.append": Call(WRITES, lambda live: live.turn.append(hello())),
    "Turn.batch": Call(REFUSED, lambda live: live.turn.batch()),
    "Turn.begin_model_call": Call(REFUSED, lambda live: live.turn.begin_model_call("m", {})),
    "Turn.branch_point": Call(FREE, lambda live: live.turn.branch_point),
    "Turn.complete": Call(WRITES, lambda live: live.turn.complete()),
    "Turn.ended": Call(FREE, lambda live: live.turn.ended),
    "Turn.fail": Call(WRITES, lambda live: live.turn.fail(ValueError())),
    "Turn.is_partial": Call(FREE, lambda live: live.interrupted.is_partial),
    "Turn.messages": Call(REFUSED, lambda live: live.turn.messages()),
    "Turn.partial_messages": Call(REFUSED, lambda live: live.interrupted.partial_messages()),
    "Turn.record_tools": Call(WRITES, lambda live: live.turn.record_tools([TOOL])),
    "Turn.records": Call(REFUSED, lambda live: live.turn.records()),
    "Turn.state": Call(FREE, lambda live: live.turn.state),
    "Turn.stream": Call(REFUSED, lambda live: live.turn.stream(live._chunks()) and None),
    "Turn.suspend": Call(REFUSED, lambda live: live.turn.suspend()),
    "Stream.__enter__": Call(FREE, lambda live: Entered(live.stream).__aenter__()),
    "Stream.__next__": Call(WRITES, lambda live: live._next_chunk()),
    "Stream.close": Call(REFUSED, lambda live: live.stream.close()),
    "Stream.messages": Call(FREE, lambda live: live.stream.messages),
    "Stream.require_read": Call(FREE, lambda live: live.stream.require_read()),
    # Calls.
    "Tool.__call__": Call(WRITES, lambda live: live.tool(7)),
    "Tool.__call__, keyed": Call(WRITES, lambda live: live.tool.keyed(live.fresh())(7)),
    "Tool.keyed": Call(FREE, lambda live: live.tool.keyed("k")),
    "Tool.make": Call(WRITES, lambda live: live.make()),
    "Tool.name": Call(FREE, lambda live: live.tool.name),
    "Model.__call__": Call(WRITES, lambda live: live.model(7)),
    "Model.name": Call(FREE, lambda live: live.model.name),
    "PendingModelCall.failed": Call(REFUSED, lambda live: live.pending.failed(ValueError())),
    "PendingModelCall.recorded": Call(FREE, lambda live: live.pending.recorded()),
    "PendingModelCall.withdraw": Call(REFUSED, lambda live: live.pending.withdraw()),
    "Effects.changed": Call(FREE, lambda live: live.session.effects.changed),
    "Effects.list": Call(REFUSED, lambda live: live.session.effects.list()),
    "Effects.reconcile": Call(
        WRITES, lambda live: live.unknown.effects.reconcile(live.effect, perdure.Happened(1))
    ),
    "Effects.unknown": Call(REFUSED, lambda live: live.session.effects.unknown()),
    "Approvals.approve": Call(
        WRITES, lambda live: live.waiting.approvals.approve(live.approval.id, by="Ada")
    ),
    "Approvals.deny": Call(
        WRITES, lambda live: live.waiting.approvals.deny(live.approval.id, by="Ada")
    ),
    "Approvals.list": Call(REFUSED, lambda live: live.waiting.approvals.list()),
    "Approvals.pending": Call(REFUSED, lambda live: live.waiting.approvals.pending()),
    # An agent.
    "Agent.__call__": Call(WRITES, call_agent),
    "Agent.run": Call(WRITES, lambda live: live.agent_of().run(live.fresh(), "Go.")),
    # Batches.
    **{
        f"{kind}.{name}": call
        for kind, batch in (
            ("Batch", lambda live: live.batch),
            ("TurnBatch", lambda live: live.turn_batch),
        )
        for name, call in batch_calls(batch).items()
    },
    "TurnBatch.complete": Call(REFUSED, lambda live: live.turn_batch.complete()),
    "TurnBatch.completes": Call(FREE, lambda live: live.turn_batch.completes),
    "StoreBatch.__enter__": Call(FREE, lambda live: Entered(live.store_batch).__aenter__()),
    "StoreBatch.session": Call(REFUSED, lambda live: live.store_batch.session("live")),
    "StoreBatch.session, whole": Call(WRITES, note_in_store),
    # Values.
    "Values.__enter__": Call(FREE, lambda live: Entered(live.values).__aenter__()),
    "Values.close": Call(REFUSED, lambda live: live.values.close()),
    "Values.delete": Call(WRITES, lambda live: live.values.delete("key")),
    "Values.get": Call(REFUSED, lambda live: live.values.get("key")),
    "Values.history": Call(REFUSED, lambda live: live.values.history("key")),
    "Values.id": Call(FREE, lambda live: live.values.id),
    "Values.keys": Call(FREE, lambda live: live.values.keys()),
    "Values.refresh": Call(REFUSED, lambda live: live.values.refresh()),
    "Values.set": Call(WRITES, lambda live: live.values.set("key", 2)),
    "Values.version": Call(FREE, lambda live: live.values.version("key")),
    # A large body.
    "LargeBody.chunks": Call(REFUSED, lambda live: live.body.chunks()),
    "LargeBody.read": Call(REFUSED, lambda live: live.body.read()),
    "LargeBody.text": Call(REFUSED, lambda live: live.body.as_base64.text()),
    **{
        f"LargeBody.{name}": Call(FREE, partial(_of_body, name))
        for name in (
            *("as_base64", "as_data_url", "as_text", "citation", "digest"),
            *("home", "is_text", "media_type", "size"),
        )
    },
    # A view.
    "View.position": Call(FREE, lambda live: live.view.position),
    "View.refresh": Call(REFUSED, lambda live: live.view.refresh()),
    "View.state": Call(FREE, lambda live: live.view.state),
    # A lease.
    "Lease.__enter__": Call(WRITES, lambda live: Entered(live.session.lease()).__aenter__()),
    "Lease.epoch": Call(FREE, lambda live: live.lease.epoch),
    "Lease.held": Call(FREE, lambda live: live.lease.held),
    "Lease.release": Call(WRITES, lambda live: live.lease.release()),
}
# They only build a plan or add to a batch, which nothing but a handle writes.
PURE = {f"PendingModelCall.{name}" for name in ("add_intent", "add_outcome", "answered_by")}


def names() -> Iterator[str]:
    """Yield the public functions and methods: of `perdure`, and of what an application holds."""
    for name in perdure.__all__:
        if not isinstance(getattr(perdure, name), type):
            yield name
    for package in (sync, aio):
        for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = import_module(info.name)
            for name, cls in inspect.getmembers(module, inspect.isclass):
                plain = name.removeprefix("Async")
                if cls.__module__ == module.__name__ and plain not in INTERNAL:
                    yield from _methods(plain, cls)
    yield from _methods("PendingModelCall", PendingModelCall)


def _methods(name: str, cls: type) -> Iterator[str]:
    for method in dir(cls):
        plain = ASYNC_SPECIAL.get(method, method)
        if plain in SPECIAL or not method.startswith("_"):
            yield f"{name}.{plain}"


class Tried(NamedTuple):
    """A call that a replayed agent made, and the error that it got."""

    name: str
    error: BaseException | None


Attempt = Callable[[], Coroutine[Any, Any, None]]
Way = Callable[[Attempt], Coroutine[Any, Any, None]]


async def directly(attempt: Attempt) -> None:
    await attempt()


async def replay_with(
    live: Live,
    chosen: Sequence[str],
    way: Way = directly,
) -> tuple[Replay, list[Tried]]:
    """Replay the agent, which also makes the chosen calls on the live store, in some way."""
    tried: list[Tried] = []

    async def call(name: str) -> None:
        error = None
        try:
            await finished(CALLS[name].make(live))
        except Exception as raised:  # noqa: BLE001 - judged by `wrong`
            error = raised
        tried.append(Tried(name, error))

    async def work(session: Any) -> None:
        for name in chosen:
            await way(partial(call, name))
        await live.agent(session)

    if live.is_async:
        return await perdure.replay(live.replayed, work), tried
    return perdure.replay(live.replayed, lambda session: drive(work(session))), tried


def wrong(replay: Replay, tried: Sequence[Tried]) -> str:
    """Say what is wrong with a replay that made calls on a live store."""
    refused = [*replay.refused]
    for name, error in tried:
        if CALLS[name].verdict == FREE:
            if isinstance(error, ReplayBlockedError):
                return f"{name} was refused"
        elif not isinstance(error, ReplayBlockedError):
            return f"{name} was not refused: {error!r}"
        elif error.args[0] not in refused:
            return f"{name} was refused and is not in the result"
        else:
            refused.remove(error.args[0])
    if refused:
        return f"refused, and by which call? {refused}"
    if replay.divergence is not None or replay.error is not None:
        return f"it departed: {replay.divergence}, {replay.error!r}"
    blocked = any(CALLS[name].verdict != FREE for name, _ in tried)
    return "" if replay.identical != blocked else f"identical is {replay.identical}"
