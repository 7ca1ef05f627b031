"""Copies to Redis, to a cluster and back, and what a doctor says of it."""

import asyncio
from contextlib import closing
from pathlib import Path

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.redis.backend import RedisBackend
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.cli.stores import printable_name, without_password
from tests.backends.redis.cluster import Cluster
from tests.cli.support import invoke, objects
from tests.journal.copying.stores import act, settled, shown
from tests.journal.copying.test_properties import EVERYTHING, LATER, died


def test_a_store_moves_to_a_server_to_a_cluster_and_back(
    redis_store: str, redis_cluster: Cluster, tmp_path: Path
) -> None:
    tenant = redis_store.rpartition("tenant=")[2]
    with (
        closing(SqliteBackend(tmp_path / "one.db")) as one,
        closing(RedisBackend(redis_store)) as server,
        closing(RedisBackend(redis_cluster.address(tenant=tenant))) as cluster,
        closing(SqliteBackend(tmp_path / "two.db")) as two,
    ):
        act(perdure.open(one), EVERYTHING)
        assert perdure.copy(one, server).complete
        assert shown(server) == shown(one)
        act(perdure.open(one), LATER)
        settled(one, server)
        assert perdure.copy(server, cluster).complete
        assert shown(cluster) == shown(server) == shown(one)
        act(perdure.open(cluster), LATER)
        assert perdure.copy(cluster, two, final=True).complete
        assert shown(cluster) == shown(two)


def test_a_copy_to_a_server_that_dies_goes_on(redis_store: str) -> None:
    source = MemoryBackend()
    act(perdure.open(source), EVERYTHING)
    with closing(RedisBackend(redis_store)) as server:
        deaths = sum(
            died(source, server, nth, side="target", after=nth % 2 == 0) for nth in range(1, 14)
        )
        assert deaths > 3
        assert perdure.copy(source, server, final=True).complete
        assert shown(server) == shown(source)


def test_an_event_loop_copies_to_a_server(redis_store: str, tmp_path: Path) -> None:
    with perdure.open(tmp_path / "one.db") as store:
        act(store, EVERYTHING)
    assert asyncio.run(perdure.copy_async(tmp_path / "one.db", redis_store, final=True)).complete


def test_the_doctor_finds_a_server_sound_and_leaves_nothing(redis_store: str) -> None:
    with closing(RedisBackend(redis_store)) as backend:
        act(perdure.open(backend), EVERYTHING)
        before = shown(backend)
        result = invoke(None, "doctor", "--json", "--appends", "5", redis_store)
        (report,) = objects(result)
        assert report["verdict"] == "sound", result.output
        assert shown(backend) == before


def test_commands_print_addresses_without_the_password() -> None:
    address = "rediss://me:secret@host/0?tenant=t&replicas=1&timeout=5"
    assert printable_name(address) == "rediss://me@host:6379/0?tenant=t"
    assert without_password(address) == "rediss://me@host:6379/0?tenant=t&replicas=1&timeout=5"
