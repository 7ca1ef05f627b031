"""Clusters: slots that move, primaries that die, and replicas that have less."""

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from hashlib import sha1
from pathlib import Path
from typing import Any, cast

import pytest

import perdure
from perdure.backends.redis import scripts
from perdure.backends.redis.backend import RedisBackend
from perdure.backends.redis.backend_async import AsyncRedisBackend
from perdure.errors import HistoryReplacedError, UnavailableError, UnsupportedError
from perdure.testing.contract.samples import (
    append_all,
    append_of,
    append_to,
    entries,
    entry,
    names,
    positions,
)
from tests.backends.redis.cluster import Cluster, ask, await_
from tests.backends.redis.server import Server

pytestmark = pytest.mark.durability


@contextlib.contextmanager
def opened(cluster: Cluster, **options: object) -> Iterator[RedisBackend]:
    backend = RedisBackend(cluster.address(**options))
    try:
        yield backend
    finally:
        backend.close()


def slot_of(backend: RedisBackend, stream: str) -> int:
    layout = backend._pool.layout
    return layout.slots[layout.bucket(stream)]


def test_buckets_are_on_all_primaries_and_in_the_slots_that_servers_compute(
    redis_cluster: Cluster,
) -> None:
    with opened(redis_cluster) as backend:
        layout = backend._pool.layout
        assert layout.buckets == 16
        for bucket, slot in enumerate(layout.slots):
            server = redis_cluster.servers[0]
            assert ask(server, "CLUSTER", "KEYSLOT", layout.heads[bucket]) == slot
            assert ask(server, "CLUSTER", "KEYSLOT", layout.entries_key(bucket, b"{x}")) == slot
        assert len(backend._pool.primaries) > 1
        assert {layout.bucket(f"s{n}") for n in range(500)} == {*range(16)}


def test_a_batch_over_sessions_is_refused_in_a_cluster(redis_cluster: Cluster) -> None:
    with perdure.open(redis_cluster.address()) as store:
        assert "atomic" not in store.guarantees().capabilities
        with pytest.raises(UnsupportedError, match="several sessions in one commit"):
            store.batch()
        store.session("one").append({"role": "user", "content": "x"})


@contextlib.contextmanager
def moving(cluster: Cluster, slot: int) -> Iterator[tuple[Server, Server]]:
    """Begin to move a slot to another primary: some keys are here, some there."""
    source = cluster.owner(slot)
    target = next(one for one in cluster.primaries() if one is not source)
    ids = {one.port: ask(one, "CLUSTER", "MYID") for one in (source, target)}
    ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source.port])
    ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target.port])
    yield source, target
    while keys := ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
        ask(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
    for one in (target, source, *cluster.primaries()):
        ask(one, "CLUSTER", "SETSLOT", slot, "NODE", ids[target.port])


def test_a_slot_may_move_while_a_session_is_written(redis_cluster: Cluster) -> None:
    """Whoever has not heard of it is redirected, while it moves and afterwards."""
    with opened(redis_cluster) as backend:
        append_all(backend, append_of("s", 1, 3, "l"))
        slot = slot_of(backend, "s")
        ending = threading.Event()
        stored: list[int] = [3]

        def write() -> None:
            while not ending.is_set():
                position = stored[-1] + 1
                assert append_all(backend, append_of("s", position, position, "l")) == ["stored"]
                stored.append(position)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            with moving(redis_cluster, slot):
                time.sleep(0.1)
            time.sleep(0.1)
        finally:
            ending.set()
            thread.join()
        assert list(backend.read("s")) == entries(1, stored[-1])
        assert len(stored) > 3
        assert names(backend, labels=["l"]) == ["s"]
        assert list(backend.check()) == []


def test_while_a_slot_moves_reads_continue_and_appends_wait(redis_cluster: Cluster) -> None:
    """Some of its keys are on one node, some on the other: no script may see only a part."""

    async def scenario(backend: AsyncRedisBackend) -> None:
        layout = backend._pool.layout
        await backend.append([append_of("s", 1, 1)])
        with moving(redis_cluster, layout.slots[layout.bucket("s")]) as (source, target):
            key = layout.entries_key(layout.bucket("s"), b"s")
            ask(source, "MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
            assert [one async for one in backend.read("s")] == entries(1, 1)
            appending = asyncio.create_task(backend.append([append_of("s", 2, 2)]))
            beginning = asyncio.create_task(backend.append([append_of("t", 1, 1)]))
            await asyncio.sleep(0.3)
            assert not appending.done()
        for outcomes in await asyncio.gather(appending, beginning):
            assert [outcome.status for outcome in outcomes] == ["stored"]
        assert [one async for one in backend.read("s")] == entries(1, 2)
        assert [head.stream async for head in backend.streams()] == ["s", "t"]
        assert [problem async for problem in backend.check()] == []

    async def run() -> None:
        backend = AsyncRedisBackend(redis_cluster.address())
        try:
            await scenario(backend)
        finally:
            await backend.close()

    asyncio.run(run())


def test_too_few_replicas_leave_an_append_in_doubt_and_a_resend_waits_again(
    redis_cluster: Cluster,
) -> None:
    with opened(redis_cluster, replicas=1, timeout=1) as backend:
        append_all(backend, append_of("s", 1, 1))
        port = redis_cluster.owner(slot_of(backend, "s")).port
        replica = next(
            one
            for one in redis_cluster.servers
            if f"master_port:{port}".encode() in ask(one, "INFO", "replication")
        )
        replica.signal(signal.SIGSTOP)
        try:
            for _ in range(2):
                with pytest.raises(UnavailableError, match="0 of 1 replicas confirmed") as caught:
                    append_all(backend, append_of("s", 2, 2))
                assert "primary has it" in caught.value.reason
        finally:
            replica.signal(signal.SIGCONT)
        await_(lambda: b"master_link_status:up" in ask(replica, "INFO", "replication"))
        assert append_all(backend, append_of("s", 2, 2)) == ["stored"]
        assert list(backend.read("s")) == entries(1, 2)


def test_a_call_waits_no_second_for_disks_of_replicas(redis_cluster: Cluster) -> None:
    """`WAITAOF` alone takes a second; with appends after `WAIT`, a few milliseconds."""
    with opened(redis_cluster, replicas=1) as backend:
        assert backend._pool.confirmation == (1, True)
        append_all(backend, append_of("s", 1, 1))
        started = time.monotonic()
        for position in range(2, 12):
            append_all(backend, append_of("s", position, position))
        assert time.monotonic() - started < 5


def test_a_replica_that_has_less_is_recognized_by_who_wrote_the_rest(tmp_path: Path) -> None:
    """Without waiting for replicas: the promoted one lacks what was acknowledged."""
    primary = Server(tmp_path / "primary", **{"repl-diskless-sync-delay": 0})
    replica = Server(tmp_path / "replica", replicaof=f"127.0.0.1 {primary.port}")
    try:
        await_(lambda: b"master_link_status:up" in ask(replica, "INFO", "replication"))
        store = perdure.open(primary.address(tenant="t"))
        assert store.guarantees().checks[-1].verdict == "weak"
        sessions = [store.session(name) for name in ("short", "other", "same")]
        for session in sessions:
            session.append({"role": "user", "content": "everywhere"})
        await_(lambda: _caught_up(primary))
        ask(replica, "REPLICAOF", "NO", "ONE")  # It believes that the primary is dead.
        sessions[0].append({"role": "user", "content": "only on the primary"})
        sessions[1].append({"role": "user", "content": "only on the primary"})
        primary.kill()
        # The same address leads to the promoted server now.
        _redirect(cast("RedisBackend", store._backend), primary.port, replica.port)
        with perdure.open(replica.address(tenant="t")) as late:
            late.session("other").append({"role": "user", "content": "written by another process"})
        for session in sessions[:2]:
            with pytest.raises(HistoryReplacedError):
                session.append({"role": "user", "content": "next"})
            with pytest.raises(HistoryReplacedError):
                session.append({"role": "user", "content": "next"})
        sessions[2].append({"role": "user", "content": "next"})
        sessions[0].refresh(accept_rollback=True)
        sessions[0].append({"role": "user", "content": "after the loss"})
        texts = [message["content"] for message in sessions[0].messages()]
        assert texts == ["everywhere", "after the loss"]
        store.close()
    finally:
        primary.stop()
        replica.stop()


def _caught_up(primary: Server) -> bool:
    info = ask(primary, "INFO", "replication").decode()
    offset = info.partition("master_repl_offset:")[2].split()[0]
    return f"offset={offset}," in info


def _redirect(backend: RedisBackend, old: int, new: int) -> None:
    topology: Any = backend._pool._topology
    topology._ranges = [
        (start, end, node._replace(port=new) if node.port == old else node)
        for start, end, node in topology._ranges
    ]


def test_clocks_that_differ_do_not_change_the_order_of_a_bucket(
    redis_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover leads to a server whose clock is an hour behind, or ahead."""
    backend = RedisBackend(redis_store)
    append_all(backend, append_of("a", 1, 1))
    append_all(backend, append_of("b", 1, 1))

    def shifted(seconds: int) -> None:
        text = scripts.APPEND.text.replace(
            "tonumber(time[1]) * 1000000", f"(tonumber(time[1]) + {seconds}) * 1000000"
        )
        assert text != scripts.APPEND.text
        digest = sha1(text.encode()).hexdigest()  # noqa: S324 - a server's name for it
        monkeypatch.setattr(scripts, "APPEND", scripts.APPEND._replace(text=text, digest=digest))

    expected = ["b", "a"]
    for number, seconds in enumerate((3600, -3600, -7200, 3600)):
        shifted(seconds)
        for name in ("a", f"new {number}"):
            append_all(backend, append_to(backend, name, _next(backend, name), "x"))
            expected = [name, *(one for one in expected if one != name)]
        monkeypatch.undo()
        assert [head.stream for head in backend.recent()] == expected
    assert positions(backend.read("a")) == [1, 2, 3, 4, 5]
    assert entry(1) == next(backend.read("b"))
    backend.close()


def _next(backend: RedisBackend, stream: str) -> int:
    return max((head.position for head in backend.streams(prefix=stream)), default=0) + 1
