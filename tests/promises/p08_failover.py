"""Failovers of a Redis cluster: nothing acknowledged is lost, or every loss is reported.

Eight writers have a session each, on all primaries. One primary is killed, its replica takes over,
and the killed one comes back as a replica. If replicas confirm each append, every acknowledged
message is there once. If not, the replica is cut off from its primary for a moment before the kill,
so that it has less when it is promoted: then whoever lost a message gets HistoryReplacedError.
"""

import random
import signal
import threading
import time
from collections.abc import Iterator

import perdure
from perdure.errors import HistoryReplacedError, UnavailableError
from perdure.sync.session import Session
from tests.backends.redis.cluster import Cluster, ask, await_
from tests.backends.redis.server import Server
from tests.promises.places import fast_directory
from tests.promises.promise import Promise, Trial, in_time

WRITERS = 8
PATIENCE = 60.0


class Writer:
    """Appends to its session until it is told to end; knows what was acknowledged."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ending = threading.Event()
        self.acknowledged: list[str] = []
        self.reports = 0
        self.longest = 0.0
        self.failure = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                self._append(f"{self._session.id} {len(self.acknowledged)}")
                time.sleep(0.002)
        except perdure.PerdureError as error:
            self.failure = repr(error)

    def _append(self, text: str) -> None:
        began = time.monotonic()
        while True:
            try:
                self._session.append({"role": "user", "content": text}, id=text)
            except UnavailableError:
                if time.monotonic() > began + PATIENCE:
                    raise
                continue
            except HistoryReplacedError:
                self.reports += 1
                self._session.refresh(accept_rollback=True)
                continue
            break
        self.longest = max(self.longest, time.monotonic() - began)
        self.acknowledged.append(text)

    def end(self) -> None:
        self._ending.set()
        self._thread.join(2 * PATIENCE)
        if self._thread.is_alive():
            self.failure = "it hangs"

    def wrong(self, stored: list[str], *, confirmed: bool) -> Iterator[str]:
        """Yield what is doubled, lost, or lost without a report."""
        if self.failure:
            yield self.failure
        if len({*stored}) != len(stored):
            yield f"{len(stored) - len({*stored})} are doubled"
        missing = {*self.acknowledged} - {*stored}
        if missing and confirmed:
            yield f"{len(missing)} acknowledged messages are lost"
        if bool(missing) != bool(self.reports):
            yield f"{len(missing)} are lost, and {self.reports} losses were reported"


def failover(cluster: Cluster, draw: random.Random, *, confirmed: bool) -> Trial:
    """Kill a primary under writers, and judge."""
    address = cluster.address(replicas=1 if confirmed else "", timeout=20)
    with perdure.open(address) as store:
        writers = [Writer(store.session(f"w{number}")) for number in range(WRITERS)]
        await_(lambda: all(len(one.acknowledged) > 3 for one in writers))
        time.sleep(draw.uniform(0, 0.2))
        victim = draw.choice(cluster.primaries())
        if not confirmed:
            _cut_off(cluster, victim, draw)
        victim.kill()
        for server in cluster.servers:
            if server is not victim:
                server.signal(signal.SIGCONT)
        await_(lambda: victim not in cluster.primaries() and len(cluster.primaries()) == 3)
        victim.start()
        cluster.wait()
        time.sleep(0.3)
        for writer in writers:
            writer.end()
    wrong, lost, longest = [], 0, max(writer.longest for writer in writers)
    with perdure.open(address) as store:
        for number, writer in enumerate(writers):
            session = store.session(f"w{number}")
            session.verify()
            stored = [message["content"] for message in session.messages()]
            lost += len({*writer.acknowledged} - {*stored})
            wrong += [f"w{number}: {text}" for text in writer.wrong(stored, confirmed=confirmed)]
    count = sum(len(writer.acknowledged) for writer in writers)
    how = "confirmed by a replica" if confirmed else "confirmed by the primary alone"
    what = f"{count} appends, {how}: {lost} lost, the longest took {longest:.1f} s"
    return Trial(what, "; ".join(wrong[:5]))


def _cut_off(cluster: Cluster, victim: Server, draw: random.Random) -> None:
    """Let a primary go on without its replica for a moment."""
    mark = f"master_port:{victim.port}".encode()
    for server in cluster.servers:
        if mark in ask(server, "INFO", "replication"):
            server.signal(signal.SIGSTOP)
    ask(victim, "CLIENT", "KILL", "TYPE", "replica")
    time.sleep(draw.uniform(0.02, 0.2))


def _trials(seed: int, deadline: float, *, confirmed: bool) -> Iterator[Trial]:
    draw = random.Random(seed)
    with fast_directory() as directory:
        cluster = Cluster(directory)
        try:
            while in_time(deadline):
                yield failover(cluster, draw, confirmed=confirmed)
        finally:
            cluster.stop()


def confirmed_trials(seed: int, deadline: float) -> Iterator[Trial]:
    return _trials(seed, deadline, confirmed=True)


def unconfirmed_trials(seed: int, deadline: float) -> Iterator[Trial]:
    return _trials(seed, deadline, confirmed=False)


PROMISES = [
    Promise("P8-failover", "a failover loses nothing", 20, confirmed_trials, "redis-replicas"),
    Promise("P8-failover", "a failover's losses are reported", 20, unconfirmed_trials, "redis"),
]
