"""What somebody who can write to an encrypted store, and has no key, can and can not do."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Append
from perdure.errors import ChainError, DamagedError, PayloadError, PerdureError, WrongKeyError
from tests import sealing
from tests.sealing import KEY, Forger
from tests.support import said

pytest.importorskip("cryptography")


def filled() -> MemoryBackend:
    backend = MemoryBackend()
    store = perdure.open(backend, keys=KEY)
    for name in ("a", "b"):
        session = store.session(name)
        with session.turn(f"{name}: pay 10 euros"):
            session.set("plan", {"step": 1})
        for number in range(260):  # More than a snapshot is apart.
            session.append(said(f"{name} {number}"))
    return backend


FILLED = filled()


@pytest.fixture
def backend() -> MemoryBackend:
    """A store of its own for each attack."""
    own = MemoryBackend()
    for head in FILLED.streams():
        own.append([Append(head.stream, [*FILLED.read(head.stream)], head.labels)])
    return own


def read_all(backend: MemoryBackend, name: str = "a") -> list[Any]:
    session = perdure.open(backend, keys=KEY).resume(name)
    session.verify()
    return session.messages()


def edited_body(forger: Forger) -> None:
    body = bytearray(forger.bodies[-1][0])
    body[60] ^= 1
    forger.bodies[-1][0] = bytes(body)


def edited_commitment(forger: Forger) -> None:
    body = bytearray(forger.bodies[-1][0])
    body[30] ^= 1
    forger.bodies[-1][0] = bytes(body)


def cut_body(forger: Forger) -> None:
    forger.bodies[-1][0] = forger.bodies[-1][0][:40]


def other_time(forger: Forger) -> None:
    forger.headers[-1][5] = "2026-11-18T10:00:00.000000Z"


def other_kind(forger: Forger) -> None:
    forger.headers[-1][8][0][0] = "note"


def other_id(forger: Forger) -> None:
    forger.headers[-1][8][0][1] = "." + "A" * 22


def exchanged_bodies(forger: Forger) -> None:
    forger.bodies[-1][0], forger.bodies[-2][0] = forger.bodies[-2][0], forger.bodies[-1][0]


def repeated_entry(forger: Forger) -> None:
    forger.headers.append(copy.deepcopy(forger.headers[-1]))
    forger.bodies.append([*forger.bodies[-1]])


def left_out_entry(forger: Forger) -> None:
    del forger.headers[-2], forger.bodies[-2]


def forged_snapshot(forger: Forger) -> None:
    """The newest message becomes a snapshot, which opening would begin with."""
    forger.headers[-1][8][0][0] = "snapshot"
    forger.headers[-1][7] = ["", "a"]


def forged_deletion(forger: Forger) -> None:
    forger.headers[-1][8][0][0] = "deleted"
    forger.headers[-1][7] = ["", "a"]


def plain_record(forger: Forger) -> None:
    forger.headers[-1][1], forger.headers[-1][6] = "plain", ""
    text = json.dumps({"message": said("pay Mallory")})
    forger.bodies[-1][0] = f'["{"A" * 22}",{text}]'.encode()


def plain_deletion(forger: Forger) -> None:
    forged_deletion(forger)
    plain_record(forger)
    forger.bodies[-1][0] = f'["{"A" * 22}",{{"reason":"mallory"}}]'.encode()


ATTACKS: list[Callable[[Forger], None]] = [
    edited_body,
    edited_commitment,
    cut_body,
    other_time,
    other_kind,
    other_id,
    exchanged_bodies,
    repeated_entry,
    left_out_entry,
    forged_snapshot,
    forged_deletion,
    plain_record,
    plain_deletion,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_forged_entry_is_detected_though_its_chain_was_computed_again(
    backend: MemoryBackend, attack: Callable[[Forger], None]
) -> None:
    forger = Forger(backend, "a")
    attack(forger)
    sealing.replace(backend, "a", forger.entries())
    with pytest.raises(DamagedError):
        perdure.open(backend, keys=KEY).session("a")
    assert len(read_all(backend, "b")) == 261


def test_what_is_linked_again_unchanged_is_accepted(backend: MemoryBackend) -> None:
    """The attacks above fail because of what they change."""
    sealing.replace(backend, "a", Forger(backend, "a").entries())
    assert len(read_all(backend)) == 261


def test_sessions_cannot_be_exchanged(backend: MemoryBackend) -> None:
    forgers = {name: Forger(backend, name) for name in ("a", "b")}
    sealing.replace(backend, "a", forgers["b"].entries())
    with pytest.raises(ChainError, match="another session"):
        perdure.open(backend, keys=KEY).session("a")
    for header in forgers["b"].headers:
        if header[7]:
            header[7] = ["", "a"]
    sealing.replace(backend, "a", forgers["b"].entries())
    with pytest.raises(PayloadError):
        perdure.open(backend, keys=KEY).session("a")


def test_an_entry_cannot_be_moved_to_another_session(backend: MemoryBackend) -> None:
    mine, other = Forger(backend, "a"), Forger(backend, "b")
    mine.bodies[-1], mine.headers[-1][6] = other.bodies[-1], other.headers[-1][6]
    sealing.replace(backend, "a", mine.entries())
    with pytest.raises(PerdureError):
        perdure.open(backend, keys=KEY).session("a")


def test_keys_cannot_be_exchanged(backend: MemoryBackend) -> None:
    names = [sealing.data_keys(backend, name)[0] for name in ("a", "b")]
    contents = [Forger(backend, name) for name in names]
    contents[0].bodies, contents[1].bodies = contents[1].bodies, contents[0].bodies
    for name, forger in zip(names, contents, strict=True):
        sealing.replace(backend, name, forger.entries())
    with pytest.raises(WrongKeyError):
        perdure.open(backend, keys=KEY).session("a")


def test_a_label_cannot_be_forged(backend: MemoryBackend) -> None:
    session = perdure.open(backend, keys=KEY).session("a")
    session.label("vip")
    entries = [*backend.read("a")]
    sealing.replace(backend, "a", entries, labels={"paid"})
    store = perdure.open(backend, keys=KEY)
    with pytest.raises(DamagedError, match="label"):
        list(store.sessions())
    with pytest.raises(DamagedError, match="label"):
        store.session("a").verify()


def test_an_older_state_is_accepted_which_the_documentation_says(backend: MemoryBackend) -> None:
    """A key does not help against it; `docs/how-to/encrypt-a-store.md` names it."""
    sealing.replace(backend, "a", [*backend.read("a")][:-3])
    assert len(read_all(backend)) == 258
