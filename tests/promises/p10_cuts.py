"""P10 on servers: a line that is cut at any message of the protocol, and an answer that is right.

Each trial runs a short script of appends by two sessions through a proxy, which cuts one line at
one message: of the login, of a statement, of its answer, in either colour. The appends go on by
themselves; whatever was acknowledged is there once, and so is all that was sent.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import perdure
from perdure.errors import PerdureError, UnavailableError
from tests.backends.postgres.server_keeper import running
from tests.backends.redis.server import Server as RedisServer
from tests.promises.places import fast_directory
from tests.promises.promise import Promise, Trial, in_time
from tests.promises.proxy import WAYS, Cut, Proxy

TURNS = 3

_numbers = itertools.count(1)


def said(number: int) -> dict[str, str]:
    return {"role": "user", "content": str(number)}


def script(address: str) -> list[str]:
    """Do everything once, blocking; return what was acknowledged."""
    acknowledged = []
    with perdure.open(address) as store:
        for number in range(TURNS):
            for name in ("a", "b"):
                session = store.session(name)
                with session.turn(said(number)) as turn:
                    turn.append({"role": "assistant", "content": f"{number}!"})
                acknowledged.append(f"{name}{number}")
    return acknowledged


def script_async(address: str) -> list[str]:
    """The same in an event loop, both sessions at once."""

    async def one(store: Any, name: str) -> list[str]:
        acknowledged = []
        session = await store.session(name)
        for number in range(TURNS):
            async with session.turn(said(number)) as turn:
                await turn.append({"role": "assistant", "content": f"{number}!"})
            acknowledged.append(f"{name}{number}")
        return acknowledged

    async def run() -> list[str]:
        async with perdure.open_async(address) as store:
            both = await asyncio.gather(one(store, "a"), one(store, "b"))
        return [*both[0], *both[1]]

    return asyncio.run(run())


def cut_once(
    url: str, proxy: Proxy, cut: Cut, work: Callable[[str], list[str]], port: int
) -> tuple[Trial, bool]:
    """Run a script with one cut; tell also whether there was a message to cut at."""
    tenant = f"cut{next(_numbers)}"
    plain = "&sslmode=disable&gssencmode=disable" if url.startswith("postgres") else ""
    address = f"{url}?tenant={tenant}&timeout=20{plain}"
    perdure.open(address).close()
    proxy.arm(cut)
    failure = ""
    try:
        work(address.replace(f":{port}/", f":{proxy.port}/"))
    except UnavailableError as error:
        # Opening does not wait; everything after it must go on by itself.
        if not proxy.done or _begun(address):
            failure = f"it failed: {error}"
    except PerdureError as error:
        failure = f"it failed: {error!r}"
    finally:
        proxy.disarm()
    hit = bool(proxy.done)
    what = f"{work.__name__}, message {cut.number}, {proxy.done}"
    return Trial(what, failure or "; ".join(_wrong(address, failed=bool(failure)))), hit


def _begun(address: str) -> bool:
    with perdure.open(address) as store:
        return bool(list(store.sessions()))


def _wrong(address: str, *, failed: bool) -> Iterator[str]:
    """Everything that is doubled, lost or out of order."""
    wanted = [text for number in range(TURNS) for text in (str(number), f"{number}!")]
    with perdure.open(address) as store:
        names = [head.id for head in store.sessions()]
        for name in names:
            session = store.session(name)
            session.verify()
            found = [message["content"] for message in session.messages()]
            if found != wanted and not failed:
                yield f"session {name} has {found}"
            if session.interrupted:
                yield f"session {name} has an open turn"


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    with running() as server:
        proxy = Proxy(server.port)
        try:
            yield from _trials(server.url, server.port, proxy, seed, deadline)
        finally:
            proxy.close()


def redis_trials(seed: int, deadline: float) -> Iterator[Trial]:
    with fast_directory() as directory:
        server = RedisServer(directory)
        proxy = Proxy(server.port, "redis")
        try:
            yield from _trials(server.url, server.port, proxy, seed, deadline)
        finally:
            proxy.close()
            server.stop()


def _trials(url: str, port: int, proxy: Proxy, seed: int, deadline: float) -> Iterator[Trial]:
    draw = random.Random(seed)
    while in_time(deadline):
        for work in draw.sample([script, script_async], 2):
            first = draw.randint(1, 3)
            for number in itertools.count(first, 3):  # Every third: another seed has the others.
                trial, hit = cut_once(url, proxy, Cut(number, draw.choice(WAYS)), work, port)
                if not hit or not in_time(deadline):
                    break
                yield trial


SAYS = "an ambiguous commit is resolved: the same entries again give exactly one record each"
PROMISES = [
    Promise("P10", SAYS, 1_000, trials, "postgres"),
    Promise("P10", SAYS, 1_000, redis_trials, "redis"),
]
