"""P10, a seeded sample: a line that is cut at any message loses and doubles nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from perdure.backends.postgres.pool import PostgresPool
from perdure.backends.protocol import STORED
from perdure.backends.redis import scripts
from perdure.backends.redis.errors import CallBudget
from perdure.backends.redis.pool import RedisPool
from tests.backends.postgres.server_keeper import Server, running
from tests.backends.redis.server import Server as RedisServer
from tests.promises.p10_cuts import PROMISES, cut_once, script, script_async
from tests.promises.promise import Promise, sample
from tests.promises.proxy import Cut, Proxy

pytestmark = pytest.mark.durability


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.key)
def test_a_cut_line_loses_and_doubles_nothing(promise: Promise) -> None:
    assert sample(promise, seed=1, seconds=3, least=12) >= 12


def test_a_redis_store_that_only_says_that_it_stored_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control, with its positive twin."""
    server = RedisServer(tmp_path)
    proxy = Proxy(server.port, "redis")
    real = RedisPool.run

    def lying(pool: RedisPool, calls: Any, *rest: Any, **more: Any) -> Any:
        if calls[0].script is not scripts.APPEND:
            return real(pool, calls, *rest, **more)
        monkeypatch.setattr(CallBudget, "after", refuse)
        try:
            return real(pool, calls, *rest, **more)
        except LostError:
            return [[1]]
        finally:
            monkeypatch.setattr(CallBudget, "after", after)

    class LostError(Exception):
        pass

    after = CallBudget.after

    def refuse(*_: object) -> float:
        raise LostError

    def failures() -> int:
        # The first messages open the store; every third is one of an append, or its answer.
        cuts = [Cut(number, "before") for number in range(40, 70, 3)]
        found = [cut_once(server.url, proxy, cut, script, server.port) for cut in cuts]
        assert any(hit for _, hit in found)
        return sum(bool(trial.failure) for trial, _ in found)

    try:
        assert failures() == 0
        monkeypatch.setattr(RedisPool, "run", lying)
        assert failures() > 0
    finally:
        proxy.close()
        server.stop()


def test_a_store_that_only_says_that_it_stored_is_caught(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control, with its positive twin."""
    real = PostgresPool._attempt

    def lying(pool: PostgresPool, operation: Any, deadline: float) -> Any:
        try:
            return real(pool, operation, deadline)
        except psycopg.OperationalError:
            if getattr(operation, "func", operation).__name__ != "append":
                raise
            return [STORED]

    assert cuts(server) == 0
    monkeypatch.setattr(PostgresPool, "_attempt", lying)
    assert cuts(server) > 0


def cuts(server: Server) -> int:
    """Cut at some messages of the appends; return how many trials failed."""
    proxy = Proxy(server.port)
    try:
        found = [
            cut_once(server.url, proxy, Cut(number, "before"), script, server.port)
            for number in range(100, 180, 7)
        ]
    finally:
        proxy.close()
    assert any(hit for _, hit in found)
    return sum(bool(trial.failure) for trial, _ in found)


@pytest.mark.parametrize("work", [script, script_async])
def test_the_login_may_be_cut_too(server: Server, work: object) -> None:
    assert callable(work)
    proxy = Proxy(server.port)
    try:
        for number in (1, 6, 15):
            trial, hit = cut_once(server.url, proxy, Cut(number, "half"), work, server.port)
            assert hit
            assert not trial.failure, trial
    finally:
        proxy.close()
