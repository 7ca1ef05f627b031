"""Open a store: connect, find the nodes of a cluster, and read the settings of every node.

It blocks, in both colors: a store is opened when the application starts. Nothing is written.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from redis.exceptions import RedisError, ResponseError

from perdure.backends.redis.address import Node, RedisAddress
from perdure.backends.redis.calls import Confirmation
from perdure.backends.redis.connection import Command, NodeConnection
from perdure.backends.redis.errors import CallBudget, raise_translated, translate_error
from perdure.backends.redis.layout import CLUSTER_BUCKETS, LAYOUT, StoreLayout
from perdure.backends.redis.topology import Topology
from perdure.errors import UnsupportedError, UsageError, VersionError

OLDEST = (7, 0)  # of Redis; Valkey began later. Older ones have no EVALSHA_RO, and undo no script.

SETTINGS = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy")


class NodeInfo(NamedTuple):
    """What one node says about itself. A setting that this user may not read is missing."""

    node: Node
    engine: str
    version: str
    is_primary: bool
    replicas: int
    """Connected replicas."""
    settings: dict[str, str]
    has_waitaof: bool
    encrypted: bool


class OpenedStore(NamedTuple):
    """What opening found out."""

    topology: Topology
    servers: list[NodeInfo]
    layout: StoreLayout
    exists: bool


def open_store(address: RedisAddress) -> OpenedStore:
    """Connect to a store; wait for its server as long as the address says."""
    budget = CallBudget(address, address.wait)
    while True:
        try:
            return _survey(address)
        except (RedisError, OSError) as error:
            time.sleep(budget.after(error))


def _survey(address: RedisAddress) -> OpenedStore:
    info, node = _first_answer(address)
    is_cluster = info.get("redis_mode", info.get("server_mode")) == "cluster"
    if not is_cluster and len(address.nodes) > 1:
        reason = f"{node} is no cluster, and the address names several hosts"
        raise UsageError(f"{reason}: name the primary alone")
    topology = Topology(address, is_cluster=is_cluster)
    if is_cluster:
        (slots,) = ask(address, node, [("CLUSTER", "SLOTS")])
        if isinstance(slots, ResponseError):
            raise slots
        topology.update(node, slots)
    servers = []
    for each in topology.nodes if is_cluster else [node]:
        try:
            servers.append(_server_info(address, each))
        except (RedisError, OSError):
            if each in topology.primaries:
                raise
    layout, exists = _stored_layout(address, topology)
    return OpenedStore(topology, servers, layout, exists)


def _first_answer(address: RedisAddress) -> tuple[dict[str, str], Node]:
    failure: Exception | None = None
    for node in address.nodes:
        try:
            (reply,) = ask(address, node, [("INFO", "server")])
        except (RedisError, OSError) as error:
            failure = error
            continue
        if isinstance(reply, ResponseError):  # It may not ask that: then there is no cluster.
            return {}, node
        return _parse_info(reply), node
    raise failure or OSError("the address names no host")


def ask(address: RedisAddress, node: Node, commands: Sequence[Command]) -> list[Any]:
    """Return the replies of a node, on a connection of its own."""
    with connected(address, node) as connection:
        connection.send(commands)
        return connection.receive()


@contextlib.contextmanager
def connected(address: RedisAddress, node: Node) -> Iterator[NodeConnection]:
    """Connect to a node while the block runs."""
    connection = NodeConnection(address, node)
    connection.deadline = time.monotonic() + address.timeout
    try:
        connection.connect()
        yield connection
    finally:
        connection.discard()


def _server_info(address: RedisAddress, node: Node) -> NodeInfo:
    commands: list[Command] = [
        ("INFO",),
        ("CONFIG", "GET", *SETTINGS),
        ("COMMAND", "INFO", "WAITAOF"),
    ]
    info_reply, config, waitaof = ask(address, node, commands)
    info = {} if isinstance(info_reply, ResponseError) else _parse_info(info_reply)
    settings: dict[str, str] = {}
    if isinstance(config, list):
        texts = [text.decode() for text in config]
        settings = dict(zip(texts[::2], texts[1::2], strict=True))
    elif info:
        # What a managed service shows, which allows no CONFIG.
        shown = {"maxmemory-policy": info.get("maxmemory_policy", "")}
        if info.get("aof_enabled") == "0":
            shown["appendonly"] = "no"
        settings = {key: value for key, value in shown.items() if value}
    valkey = info.get("valkey_version")
    return NodeInfo(
        node,
        "Valkey" if valkey or info.get("server_name") == "valkey" else "Redis",
        valkey or info.get("redis_version", ""),
        info.get("role", "master") == "master",
        int(info.get("connected_slaves", 0)),
        settings,
        isinstance(waitaof, list) and bool(waitaof and waitaof[0]),
        address.tls is not None,
    )


def _parse_info(reply: bytes) -> dict[str, str]:
    lines = reply.decode(errors="replace").splitlines()
    return {key: value for key, _, value in (line.partition(":") for line in lines) if value}


def require_version(server: NodeInfo, name: str) -> None:
    """Raise UnsupportedError if a server is too old."""
    numbers = [int(part) for part in server.version.split(".")[:2] if part.isdecimal()]
    if server.engine == "Redis" and numbers and tuple(numbers) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        reason = f"{name} is Redis {server.version}"
        raise UnsupportedError(reason, f"upgrade it to {oldest} or later, or to Valkey")


def _stored_layout(address: RedisAddress, topology: Topology) -> tuple[StoreLayout, bool]:
    """Return the layout of a store, as stored or as it is to be created."""
    layout = StoreLayout(address, CLUSTER_BUCKETS if topology.is_cluster else 1)
    command = ("HMGET", layout.store_key(), "layout", "buckets")
    (reply,) = ask(address, topology.owner(layout.slots[0]), [command])
    if isinstance(reply, ResponseError):
        raise_translated(translate_error(reply, address), reply, address)
    stored, buckets = reply
    if stored is None:
        return layout, False
    if int(stored) > LAYOUT:
        raise VersionError(address.name, stored.decode(), str(LAYOUT))
    return StoreLayout(address, int(buckets)), True


def confirmation_of(address: RedisAddress, servers: Sequence[NodeInfo]) -> Confirmation | None:
    """Return how writes are confirmed; None if the address asks for no replicas."""
    if not address.replicas:
        return None
    on_disk = address.ack == "disk" and all(
        server.has_waitaof and server.settings.get("appendonly", "yes") == "yes"
        for server in servers
    )
    return Confirmation(address.replicas, on_disk)
