"""A real cluster on loopback: three primaries, each with a replica."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import redis

from tests.backends.redis.server import PATIENCE, Server, address

SLOTS = 16_384
PRIMARIES = 3
NODE_TIMEOUT = 600  # milliseconds; a primary that is silent for as long is replaced


class Cluster:
    """Six servers; the first three begin as primaries, the others as replicas of them."""

    def __init__(self, place: Path) -> None:
        settings = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": NODE_TIMEOUT,
            "cluster-replica-validity-factor": 0,
            "repl-diskless-sync-delay": 0,
            "repl-ping-replica-period": 1,
        }
        self.servers = [Server(place / str(n), **settings) for n in range(2 * PRIMARIES)]
        first = self.servers[0]
        for number, server in enumerate(self.servers[:PRIMARIES]):
            start, end = SLOTS * number // PRIMARIES, SLOTS * (number + 1) // PRIMARIES - 1
            ask(server, "CLUSTER", "ADDSLOTSRANGE", start, end)
        for server in self.servers[1:]:
            ask(server, "CLUSTER", "MEET", "127.0.0.1", first.port)
        await_(lambda: all(len(self.nodes(server)) == 6 for server in self.servers))
        for number, server in enumerate(self.servers[PRIMARIES:]):
            primary = ask(self.servers[number], "CLUSTER", "MYID")
            await_(lambda: _replicate(server, primary))  # noqa: B023 - called at once
        self.wait()

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        return f"redis://{hosts}/0"

    def address(self, **options: object) -> str:
        """Return the address of an empty store."""
        return address(self.url, **options)

    def nodes(self, server: Server) -> list[list[str]]:
        """Return the lines of CLUSTER NODES, as one server sees them."""
        return [line.split() for line in ask(server, "CLUSTER", "NODES").decode().splitlines()]

    def primaries(self) -> list[Server]:
        """Return the servers that are primaries, as the first that answers sees it."""
        ports = set()
        for line in self._answer():
            if "master" in line[2] and "fail" not in line[2]:
                ports.add(int(line[1].partition("@")[0].rpartition(":")[2]))
        return [server for server in self.servers if server.port in ports]

    def _answer(self) -> list[list[str]]:
        for server in self.servers:
            try:
                return self.nodes(server)
            except (redis.RedisError, OSError):
                continue
        raise AssertionError("no node answers")

    def owner(self, slot: int) -> Server:
        """Return the server that has a slot."""
        for server in self.servers:
            try:
                ranges = ask(server, "CLUSTER", "SLOTS")
            except (redis.RedisError, OSError):
                continue
            for start, end, primary, *_ in ranges:
                if start <= slot <= end:
                    return next(one for one in self.servers if one.port == primary[1])
        raise AssertionError("no node has the slot")

    def wait(self) -> None:
        """Wait until all slots are served, and every primary has a replica that follows it."""
        await_(self._is_whole)

    def _is_whole(self) -> bool:
        for server in self.servers:
            if b"cluster_state:ok" not in ask(server, "CLUSTER", "INFO"):
                return False
            info = ask(server, "INFO", "replication").decode()
            if "role:master" in info and "state=online" not in info:
                return False
            if "role:slave" in info and "master_link_status:up" not in info:
                return False
        return True

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


def ask(server: Server, *command: object) -> Any:
    """Return a server's raw reply, on a connection of its own."""
    options = {"port": server.port, "socket_timeout": 5, "protocol": 2}
    connection: Any = cast("Any", redis.Connection)(**options)
    try:
        connection.connect()
        connection.send_command(*command)
        return connection.read_response()
    finally:
        connection.disconnect()


def _replicate(server: Server, primary: object) -> bool:
    try:
        ask(server, "CLUSTER", "REPLICATE", primary)
    except redis.ResponseError:  # It does not know the primary yet.
        return False
    return True


def await_(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if condition():
                return
        except (redis.RedisError, OSError):
            pass
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
