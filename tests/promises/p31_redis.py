"""P31 on Redis: a server that could lose what it acknowledges is refused, or named as weak.

A server that is set as it must be is killed after appends, drops, removals and resends: all of them
are there when it is started again. The control is one with `appendonly no`, which loses them.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import perdure
from perdure.backends.redis.backend import RedisBackend
from perdure.errors import UnsupportedError
from perdure.testing.contract.samples import append_of, entries
from tests.backends.redis.server import Server
from tests.promises.places import fast_directory
from tests.promises.promise import Promise, Trial, in_time

WEAK = {
    "appendfsync everysec": "appendfsync-everysec",
    "appendfsync no": "appendfsync-no",
    "appendonly no": "appendonly-no",
    "no-appendfsync-on-rewrite yes": "no-appendfsync-on-rewrite",
    "maxmemory-policy allkeys-lru": "",
    "maxmemory-policy allkeys-lfu": "",
    "maxmemory-policy allkeys-random": "",
    "maxmemory-policy volatile-lru": "",
    "maxmemory-policy volatile-ttl": "",
}


def weak(setting: str, directory: Path) -> Trial:
    """Open a store of a server with one setting that is weak."""
    name, value = setting.split()
    server = Server(directory / value / name, **{name: value})
    try:
        address = server.address()
        word = WEAK[setting]
        try:
            perdure.open(address).close()
        except UnsupportedError as error:
            if setting not in str(error) or (f"?accept={word}" not in str(error)) != (not word):
                return Trial(setting, f"the refusal does not say what to do: {error}")
        else:
            return Trial(setting, "it was opened as if nothing were wrong")
        with server.client() as client:
            if client.dbsize():
                return Trial(setting, "keys were made on a server that was refused")
        if word:
            with perdure.open(f"{address}&accept={word}") as store:
                found = store.guarantees()
            if found.survives == "power loss" or [one.name for one in found.accepted] != [word]:
                return Trial(setting, f"it was accepted, and still promises {found.survives}")
    finally:
        server.stop()
    return Trial(setting)


def killed(server: Server, draw: random.Random, *, accept: str = "") -> Trial:
    """Append, drop, remove and resend; kill the server after what comes last, and look."""
    count = draw.randint(2, 40)
    backend = RedisBackend(server.address(timeout=30), accept=[accept] if accept else [])
    for position in range(1, count + 1):
        backend.append([append_of("s", position, position, "l"), append_of(f"s{position}", 1, 2)])
    last = draw.choice(["append", "drop", "remove", "resend"])
    first, others = 1, {f"s{position}" for position in range(1, count + 1)}
    if last == "drop":
        first = draw.randint(1, count)
        backend.drop("s", before=first)
    elif last == "remove":
        (head,) = backend.streams(prefix="s1", limit=1)
        assert backend.remove("s1", digest=head.digest)
        others.remove("s1")
    elif last == "resend":
        backend.append([append_of("s", count, count, "l")])
    server.stop()
    server.start()
    wrong = []
    if list(backend.read("s")) != entries(first, count):
        wrong.append("the entries are not those that were acknowledged")
    if {head.stream for head in backend.streams()} != others | {"s"}:
        wrong.append("the streams are not those that were acknowledged")
    if [head.stream for head in backend.streams(labels=["l"])] != ["s"]:
        wrong.append("the label is not listed")
    wrong += [str(problem) for problem in backend.check()]
    backend.close()
    return Trial(f"{count} appends, {last}, then kill -9 of the server", "; ".join(wrong))


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    draw = random.Random(seed)
    with fast_directory() as directory:
        for setting in WEAK:
            yield weak(setting, directory)
        server = Server(directory / "sound")
        try:
            while in_time(deadline):
                yield killed(server, draw)
        finally:
            server.stop()


SAYS = "weak servers are refused or named; a killed server has what it acknowledged"
PROMISE = Promise("P31", SAYS, 100, trials, "redis")
