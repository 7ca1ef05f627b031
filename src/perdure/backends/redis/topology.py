"""Which node of a store has which slot. Pure; the pool asks the nodes.

A single server has all slots.
"""

from typing import Any

from perdure.backends.redis.address import Node, RedisAddress
from perdure.backends.redis.layout import SLOTS


class Topology:
    """The primaries of a cluster, or the one server of a store."""

    def __init__(self, address: RedisAddress, *, is_cluster: bool) -> None:
        self._address = address
        self._ranges: list[tuple[int, int, Node]] = [(0, SLOTS, address.nodes[0])]
        self.is_cluster = is_cluster

    def owner(self, slot: int) -> Node:
        """Return the node that has a slot, as far as known."""
        for start, end, node in self._ranges:
            if start <= slot < end:
                return node
        return self._address.nodes[0]  # It knows better, or says CLUSTERDOWN.

    @property
    def primaries(self) -> list[Node]:
        """The nodes that have slots."""
        return sorted({node for _, _, node in self._ranges})

    def candidates(self) -> list[Node]:
        """Return the nodes to ask for the slots; none if there is no cluster."""
        if not self.is_cluster:
            return []
        return [*dict.fromkeys((*self.primaries, *self._replicas, *self._address.nodes))]

    def update(self, asked: Node, slots: list[Any]) -> None:
        """Keep the answer of a node to `CLUSTER SLOTS`."""
        ranges, replicas = [], []
        for start, end, primary, *others in slots:
            ranges.append((start, end + 1, _node(asked, primary)))
            replicas += [_node(asked, other) for other in others]
        self._replicas = tuple(dict.fromkeys(replicas))
        self._ranges = ranges

    def move(self, slot: int, node: Node) -> None:
        """Keep that a node said another one has a slot."""
        host = node.host or self.owner(slot).host
        self._ranges = [(slot, slot + 1, Node(host, node.port)), *self._ranges]

    _replicas: tuple[Node, ...] = ()

    @property
    def nodes(self) -> list[Node]:
        """All nodes, replicas too."""
        return [*dict.fromkeys((*self.primaries, *self._replicas))]


def _node(asked: Node, described: list[Any]) -> Node:
    host = (described[0] or b"").decode()
    return Node(asked.host if host in ("", "?") else host, described[1])
