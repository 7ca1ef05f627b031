"""P18: attacks on a store, done for real. SECURITY.md has the table of their numbers.

It also lists those that only a key or an anchor outside the store could detect: a chain that was
recomputed (3, 12, F8), an older copy (5, 16, F7), a session of which no trace is left (7, F4).
"""

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import apsw
import msgspec
import psycopg
import pytest

import perdure
from perdure.backends.digests import digest_of
from perdure.backends.files.format import file_stem
from perdure.backends.memory import MemoryBackend
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.protocol import Append, Backend, Entry
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.backends.sqlite.reading import stream_key
from perdure.errors import ChainError, DamagedError, PayloadError, PerdureError, VersionError
from perdure.journal import chain
from perdure.journal.chain import PendingRecord
from tests.promises import p18_attacks as attacks
from tests.promises.p18_attacks import Opener, Stream
from tests.promises.promise import in_time

ALICE, BOB = "alice", "bob"
LENGTH = 300  # records; a snapshot is between the attacked one and the end
AT = 100


@pytest.fixture(params=attacks.KINDS)
def open_store(request: pytest.FixtureRequest, directory: Path) -> Opener:
    if request.param == "memory":
        return attacks.in_memory
    if request.param == "postgres":
        return attacks.on_postgres(request.getfixturevalue("postgres_url"))
    if request.param == "redis":
        return attacks.on_redis(request.getfixturevalue("redis_url"))
    return attacks.on_disk(request.param, directory)


@pytest.fixture(scope="module")
def streams() -> dict[str, Stream]:
    """Two sessions of 300 messages, one a record at a time."""
    backend = MemoryBackend()
    store = perdure.open(backend)
    for name in (ALICE, BOB):
        session = store.session(name)
        session.label("vip")
        for number in range(1, LENGTH):
            session.append({"role": "user", "content": f"{name} {number}"})
    return {head.stream: Stream(head, [*backend.read(head.stream)]) for head in backend.streams()}


def altered(streams: dict[str, Stream], at: int, **changes: Any) -> dict[str, Stream]:
    """Return the streams with the entry at a position of the first one changed."""
    entries = list(streams[ALICE].entries)
    number = next(number for number, entry in enumerate(entries) if entry.position == at)
    entries[number] = entries[number]._replace(**changes)
    return {**streams, ALICE: streams[ALICE]._replace(entries=entries)}


def entry_at(stream: Stream, position: int) -> Entry:
    return next(entry for entry in stream.entries if entry.position == position)


def found_at(backend: Backend, name: str, error: type[PerdureError] = DamagedError) -> int:
    """Return the position that opening, or else the first read of everything, names."""
    with pytest.raises(error) as caught:
        attacks.read_all(backend, name)
    return getattr(caught.value, "position", 0)


def test_nothing_is_detected_where_nothing_was_done(
    open_store: Opener, streams: dict[str, Stream]
) -> None:
    with open_store() as backend:
        attacks.lay_out(backend, streams)
        for name in (ALICE, BOB):
            messages, records = attacks.read_all(backend, name)
            assert (len(messages), len(records)) == (LENGTH - 1, streams[name].head.position)  # type: ignore[arg-type]
            perdure.open(backend).session(name).verify()


def test_1_an_entry_exchanged_between_two_sessions(
    open_store: Opener, streams: dict[str, Stream]
) -> None:
    mine, others = entry_at(streams[ALICE], AT), entry_at(streams[BOB], AT)
    changed = altered(streams, AT, header=others.header, body=others.body)
    entries = [mine if one == others else one for one in streams[BOB].entries]
    changed[BOB] = streams[BOB]._replace(entries=entries)
    with open_store() as backend:
        attacks.lay_out(backend, changed)
        assert [found_at(backend, name) for name in (ALICE, BOB)] == [AT, AT]


def said_at(streams: dict[str, Stream], position: int) -> bytes:
    """Return what Alice said at a position."""
    said = re.search(rb"alice \d\d", entry_at(streams[ALICE], position).body or b"")
    assert said is not None
    return said[0]


def test_2_and_f1_a_body_that_was_edited(open_store: Opener, streams: dict[str, Stream]) -> None:
    entry = entry_at(streams[ALICE], AT)
    body = (entry.body or b"").replace(said_at(streams, AT), b"mallory!")
    assert body != entry.body
    with open_store() as backend:
        attacks.lay_out(backend, altered(streams, AT, body=body))
        assert found_at(backend, ALICE) == AT
        assert len(attacks.read_all(backend, BOB)) == 2


def test_15_a_body_that_was_emptied(open_store: Opener, streams: dict[str, Stream]) -> None:
    size = len(entry_at(streams[ALICE], AT).body or b"")
    for body in (b" " * size, b""):
        with open_store() as backend:
            attacks.lay_out(backend, altered(streams, AT, body=body))
            assert found_at(backend, ALICE) == AT


@pytest.mark.parametrize("lengths", [(1, 1), (2, 700), (300, 300)], ids=str)
def test_8_and_f6_streams_exchanged_whole(open_store: Opener, lengths: tuple[int, int]) -> None:
    draw = random.Random(1)
    trial = attacks.exchange(open_store, attacks.build(lengths, draw), draw)
    assert not trial.failure


def test_a_sample_of_everything_holds(open_store: Opener) -> None:
    deadline = time.monotonic() + 0.5
    for tried, trial in enumerate(attacks.trials(open_store, 18, deadline + 60)):
        assert not trial.failure, trial
        if tried >= 20 and not in_time(deadline):
            return


def test_the_trials_notice_a_session_that_does_not_check_what_it_belongs_to() -> None:
    """A control: with the check taken out, the other's conversation is shown."""
    draw = random.Random(1)
    pool = attacks.build((5, 5), draw)
    with mock.patch.object(chain, "require_same_stream", return_value=None):
        assert "was opened" in attacks.exchange(attacks.in_memory, pool, draw).failure


# What a store keeps beside the entries.


class Rows:
    """A store whose rows an attacker can change, below perdure."""

    def __init__(self, backend: Backend, execute: Callable[..., Any], key: Any) -> None:
        self.backend, self.execute, self.key = backend, execute, key


@pytest.fixture(params=["sqlite", "postgres"])
def rows(
    request: pytest.FixtureRequest, streams: dict[str, Stream], directory: Path
) -> Iterator[Rows]:
    if request.param == "sqlite":
        sqlite = SqliteBackend(directory / "store.db")
        attacks.lay_out(sqlite, streams)
        connection = apsw.Connection(str(directory / "store.db"))
        yield Rows(sqlite, connection.execute, stream_key(ALICE))
        connection.close()
        sqlite.close()
        return
    postgres = PostgresBackend(request.getfixturevalue("postgres_empty"))
    attacks.lay_out(postgres, streams)
    schema = request.getfixturevalue("postgres_empty").rpartition("schema=")[2]
    with psycopg.connect(request.getfixturevalue("postgres_url"), autocommit=True) as admin:
        admin.execute(f"set search_path to {schema}".encode())
        row = admin.execute("select stream from head where name = %s", [ALICE.encode()]).fetchone()
        assert row is not None

        def execute(sql: str, values: tuple[Any, ...]) -> None:
            texts = [one.encode() if one in (ALICE, "vip", "[]") else one for one in values]
            admin.execute(sql.replace("?", "%s").encode(), texts)

        yield Rows(postgres, execute, row[0])
    postgres.close()


def test_4_a_tail_that_was_cut_off(rows: Rows, streams: dict[str, Stream]) -> None:
    end = streams[ALICE].head.position
    rows.execute("delete from entry where stream = ? and position > ?", (rows.key, end - 10))
    assert found_at(rows.backend, ALICE) in range(end - 9, end + 1)


def test_6_a_head_that_was_put_back(rows: Rows, streams: dict[str, Stream]) -> None:
    """As it was when it was at that position, with its digest and without the snapshot."""
    digest = digest_of(entry_at(streams[ALICE], AT).header)
    sql = "update head set position = ?, digest = ?, snapshot = 0 where name = ?"
    rows.execute(sql, (AT, digest, ALICE))
    assert found_at(rows.backend, ALICE) == AT + 1


def test_9_a_label_that_was_taken_off(rows: Rows) -> None:
    rows.execute("update head set labels = ? where name = ?", ("[]", ALICE))
    rows.execute("delete from label where label = ? and name = ?", ("vip", ALICE))
    with pytest.raises(DamagedError, match="labels of its head do not match"):
        perdure.open(rows.backend).session(ALICE)
    assert len(attacks.read_all(rows.backend, BOB)) == 2


@pytest.mark.parametrize("attack", ["f1 edited", "f2 cut", "f3 removed", "f5 exchanged"])
def test_files_that_were(attack: str, streams: dict[str, Stream], directory: Path) -> None:
    with attacks.on_disk("files", directory)() as backend:
        attacks.lay_out(backend, streams)
        root = Path(backend.name.removeprefix("files:"))
        paths = {name: next(root.rglob(f"{file_stem(name.encode())}*")) for name in (ALICE, BOB)}
        content = {name: path.read_bytes() for name, path in paths.items()}
        if attack == "f1 edited":
            paths[ALICE].write_bytes(content[ALICE].replace(said_at(streams, AT), b"mallory!"))
        elif attack == "f2 cut":
            paths[ALICE].write_bytes(content[ALICE][: len(content[ALICE]) // 2])
        elif attack == "f3 removed":
            paths[ALICE].unlink()
        else:
            paths[ALICE].write_bytes(content[BOB])
            paths[BOB].write_bytes(content[ALICE])
            found_at(backend, BOB)
        position = found_at(backend, ALICE)
        assert position == AT if attack == "f1 edited" else position <= LENGTH + 2


# What a newer version wrote, and what no version writes.


def append_raw(backend: Backend, kind: str, payload: bytes) -> None:
    """Append a record of any kind and payload to a session, with a valid chain."""
    session = perdure.open(backend).session(ALICE)
    past = session._replica.history
    shell: Any = mock.Mock(kind=kind)
    draft = PendingRecord(".newer", shell, payload)
    time_text = chain.timestamp(0)
    entry, _ = chain.link_entry(past.stream, past.tip, [draft], time=time_text, cipher=past.cipher)
    state = session._replica.state
    append = Append(ALICE, [entry], state.head_labels, past.tip.digest or "")
    (outcome,) = backend.append([append])
    assert outcome.status == "stored"


NEWER = {
    "13, a field": ("note", b'{"data":1,"mood":"fine"}', "a field 'mood'"),
    "14, a kind": ("mood", b'{"data":1}', "a record kind 'mood'"),
    "a version": ("note", b'{"data":1,"v":2}', "version 2"),
}


@pytest.mark.parametrize("newer", NEWER)
def test_13_and_14_what_a_newer_version_wrote_is_no_damage(
    open_store: Opener, streams: dict[str, Stream], newer: str
) -> None:
    kind, payload, match = NEWER[newer]
    with open_store() as backend:
        attacks.lay_out(backend, streams)
        append_raw(backend, kind, payload)
        with pytest.raises(VersionError, match=match):
            perdure.open(backend).session(ALICE)
        assert len(attacks.read_all(backend, BOB)) == 2


def test_14_a_kind_that_may_be_skipped_is_skipped(open_store: Opener) -> None:
    with open_store() as backend:
        perdure.open(backend).session(ALICE).append({"role": "user", "content": "1"})
        append_raw(backend, "~mood", b'{"fine":true}')
        session = perdure.open(backend).session(ALICE)
        session.append({"role": "user", "content": "2"})
        assert [message["content"] for message in session.messages()] == ["1", "2"]
        assert [record.kind for record in session.records()] == ["message", "~mood", "message"]
        session.verify()


@pytest.mark.parametrize("payload", [b'{"data":1,"data":2}', b'{"data":1,"topic":7}', b"[]", b"7"])
def test_a_payload_that_no_version_writes_is_damage_or_the_last_of_two(payload: bytes) -> None:
    """Fields that occur twice are read as JSON parsers read them: the last one counts."""
    backend = MemoryBackend()
    perdure.open(backend).session(ALICE).append({"role": "user", "content": "1"})
    append_raw(backend, "note", payload)
    if payload == b'{"data":1,"data":2}':
        records = list(perdure.open(backend).session(ALICE).records())
        assert msgspec.structs.asdict(records[1].content)["data"] == 2
    else:
        with pytest.raises(PayloadError, match=r"entry 2 .* not a note record"):
            perdure.open(backend).session(ALICE)


def test_10_a_forged_snapshot_with_its_chain_recomputed_is_found_by_verify(
    open_store: Opener, streams: dict[str, Stream]
) -> None:
    entries = list(streams[ALICE].entries)
    number = max(at for at, one in enumerate(entries) if b'[["snapshot"' in one.header)
    position = entries[number].position
    salt, payload = json.loads(entries[number].body or b"")
    payload["facts"]["messages"] = 83
    body, previous = msgspec.json.encode([salt, payload]), ""
    for at in range(number, len(entries)):
        header = json.loads(entries[at].header)
        if at == number:
            header[8][0][2:4] = len(body), digest_of(body)
            entries[at] = entries[at]._replace(body=body)
        else:
            header[4] = previous
        entries[at] = entries[at]._replace(header=msgspec.json.encode(header))
        previous = digest_of(entries[at].header)
    with open_store() as backend:
        attacks.lay_out(backend, {ALICE: streams[ALICE]._replace(entries=entries)})
        session = perdure.open(backend).session(ALICE)
        with pytest.raises(DamagedError, match="a state snapshot that does not match") as caught:
            session.verify()
        assert caught.value.position == position
    # The twin: with the chain as it was, opening finds it.
    with open_store() as backend:
        attacks.lay_out(backend, altered(streams, position, body=body))
        with pytest.raises(ChainError, match=f"entry {position} "):
            perdure.open(backend).session(ALICE)
