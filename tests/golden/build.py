"""The sessions of the golden stores: every kind of record, the same to the byte each time.

They are written once, to a store in memory, and laid out in every backend from there. Ids, salts
and times come from a seed. Readers do not care how often there is a snapshot; here it is often.
"""

import contextlib
import itertools
import json
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from unittest import mock
from uuid import UUID

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Entry, Head
from perdure.core.plans import Plan
from perdure.core.state import session_state
from perdure.errors import ApprovalPendingError
from perdure.journal import ids
from perdure.journal.records import Erased

START = 1_780_000_000  # seconds since the epoch; every record is a second later

Streams = dict[str, tuple[Head, list[Entry]]]


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


@contextlib.contextmanager
def repeatable(every: int = 24) -> Iterator[Any]:
    """Give ids, salts, times and durations that are the same each time; lend the clock."""
    clock = itertools.count(START).__next__
    with (
        mock.patch.object(session_state, "SNAPSHOT_EVERY", every),
        mock.patch.object(ids, "_random_bytes", random.Random(27).randbytes),
        mock.patch.object(time, "perf_counter", itertools.count().__next__),
    ):
        yield clock


def build() -> Streams:
    """Return the streams of all sessions."""
    backend = MemoryBackend()
    with repeatable() as clock:
        store = perdure.open(backend, clock=clock)
        _conversation(store)
        _calls(store)
        _branches(store)
        _lease(store)
        _compaction(store)
        _deletion(store)
        _erasure(store, backend)
        _media(store)
        heads = list(backend.streams())
        streams = {head.stream: (head, [*backend.read(head.stream)]) for head in heads}
        store.close()  # After that: it gives a lease back, and one is to be held.
    return streams


def _conversation(store: perdure.Store) -> None:
    session = store.session("conversation ü")
    session.label("vip", "tmp")
    session.label(remove=["tmp"])
    session.describe(customer="jane", amount=12.5, paid=True, due=datetime(2027, 1, 1, tzinfo=UTC))
    with session.turn("My kitchen flooded. 💧", id="turn-1", correlation_id="req-9") as turn:
        turn.append(said("Which room?", "assistant"), id="answer")
    session.append(said("one"), said("two"), said("three"), id="three")
    session.pin(session.position)
    session.unpin(session.position - 1)
    session.retract(session.position - 4, reason="wrong")
    session.replace(session.position - 4, session.position - 4, said("THREE"))
    session.note({"n": 2**60, "when": datetime(2027, 1, 1, tzinfo=UTC)}, topic="plans", id="note")
    session.note("again", topic="plans")
    session.append(said("old"), said("older", "assistant"), said("new"), said("newer", "assistant"))
    session.summarize(lambda messages: f"{len(messages)} messages")
    session.undo_summary()
    for number in range(3):
        session.set(
            "plan", {"steps": list(range(number + 1)), "cost": Decimal("1.50"), "text": "a" * 50}
        )
    session.delete("plan")
    session.set("bytes", {"b": b"\x00\xff", "id": UUID(int=7), "$odd": {"$int": 1}})
    with session.batch(id="batch-1") as batch:
        batch.append(said("in a batch"))
        batch.note("too")
    session.view(lambda state, _: (state or 0) + 1, name="count", every=8).refresh()
    with session.turn("stream it") as turn:
        for _ in turn.stream(
            [
                {"choices": [{"index": 0, "delta": {"role": "assistant", "content": text}}]}
                for text in "abc"
            ],
            flush_every=0,
        ):
            pass
    with contextlib.suppress(ValueError), session.turn("fail", id="failing"):
        raise ValueError("by intent")
    with session.turn("fail", id="failing") as turn:
        turn.append(said("continued", "assistant"))
    interrupted = session.turn("left open").__enter__()
    interrupted.abandon("enough")
    session.turn("and open", id="open").__enter__()


def _calls(store: perdure.Store) -> None:
    session = store.session("calls")

    def pay(amount: int) -> dict[str, Any]:
        return {"paid": amount, "receipt": "r" * 1200}

    free = session.tool(pay, effect="idempotent")
    asked = session.tool(pay, name="transfer", version="1", approval=True, approval_wait=0)
    with session.turn("pay") as turn:
        turn.record_tools([{"type": "function", "function": {"name": "pay", "parameters": {}}}])
        free(3)
        free.keyed("order-7")(4)
        with contextlib.suppress(ApprovalPendingError):
            asked(5)
        (pending,) = session.approvals.pending()
        session.approvals.approve(pending.id, by="ann", reason="fine")
        asked(5)
        session.model(lambda prompt: f"re: {prompt}", name="m")("hello")
        turn.append(said("done", "assistant"))
    with session.turn("again", id="waiting"):
        with contextlib.suppress(ApprovalPendingError):
            asked(6)
        session.approvals.deny(session.approvals.pending()[0].id, by="bob")


def _branches(store: perdure.Store) -> None:
    parent = store.session("parent")
    parent.append(said("1"), said("2"), said("3"))
    branch = parent.branch("branch", at=2)
    branch.append(said("other"))
    branch.branch("twig").set("plan", {"step": 1})
    parent.branch("gone")
    store.delete("gone")
    branch.copy("copy")


def _lease(store: perdure.Store) -> None:
    session = store.session("leased")
    with session.lease(ttl=60, owner="worker 1") as lease:
        session.append(said("held"))
        lease._renew()
    session.lease(ttl=60, owner="worker 2").__enter__()


def _compaction(store: perdure.Store) -> None:
    session = store.session("compacted")
    session.note("first", topic="plans", id="kept-by-topic")
    for number in range(40):
        session.append(said(f"message {number}"), id=f"id-{number}")
    session.compact(keep=10)
    session.append(said("after"))


def _deletion(store: perdure.Store) -> None:
    store.session("again").append(said("before"))
    store.delete("again", reason="asked for")
    store.session("again").append(said("after"))
    store.session("deleted").append(said("gone"))
    store.delete("deleted")


def _media(store: perdure.Store) -> None:
    session = store.session("media")
    url = "data:image/png;base64," + "QUJD" * 1_500
    image = {"type": "image_url", "image_url": {"url": url}}
    for _ in range(2):  # It is stored once.
        session.append({"role": "user", "content": [image]})


def _erasure(store: perdure.Store, backend: MemoryBackend) -> None:
    session = store.session("erased")
    session.append(said("public"), said("secret"), said("public too"), id="three")
    content = Erased(ranges=((2, 2),), reason="requested")
    record_id = session._replica.new_id()
    session._handle.write(Plan("note", "", lambda batch: batch.add_content(record_id, content)))
    stream = backend._streams["erased"]
    sizes = [record[2] for record in json.loads(stream.entries[0].header)[8]]
    body = bytearray(stream.entries[0].body or b"")
    body[sizes[0] : sizes[0] + sizes[1]] = b" " * sizes[1]
    stream.entries[0] = stream.entries[0]._replace(body=bytes(body))
    store.session("erased").append(said("later"))
