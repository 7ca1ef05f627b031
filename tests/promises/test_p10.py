"""P10, a seeded sample: a line that is cut at any message loses and doubles nothing."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from perdure.backends.postgres.pool import PostgresPool
from perdure.backends.protocol import STORED
from tests.backends.postgres.server_keeper import Server, running
from tests.promises.p10_cuts import PROMISE, cut_once, script, script_async
from tests.promises.promise import sample
from tests.promises.proxy import Cut, Proxy

pytestmark = pytest.mark.durability


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.mark.slow
def test_a_cut_line_loses_and_doubles_nothing() -> None:
    assert sample(PROMISE, seed=1, seconds=4, least=12) >= 12


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
