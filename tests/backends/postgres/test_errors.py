"""Errors of the driver lead to no password, whatever an error tracker keeps of them."""

import traceback
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.postgres.backend_async import AsyncPostgresBackend
from perdure.errors import PerdureError, UnavailableError
from tests.backends.postgres.server_keeper import free_port

SECRET = "s3cr3t-p4ssw0rd"  # noqa: S105 - it is looked for where it must not be
TYPED_IN = ("address", "text", "base")  # Parameters that hold the address as the caller gave it.


def seen_by_a_tracker(error: BaseException) -> str:
    """Everything that an error tracker may keep: attributes and local variables of the chain."""
    seen: list[object] = []
    waiting: list[Any] = [error]
    while waiting:
        thing = waiting.pop()
        if not any(one is thing for one in seen):
            seen.append(thing)
            waiting += inside(thing)
    return " ".join(map(repr, seen))


def inside(thing: Any) -> Iterator[Any]:
    """Yield what is inside a thing, if a tracker looks there."""
    if isinstance(thing, dict):
        yield from thing.values()
    elif isinstance(thing, list | tuple | set):
        yield from thing
    elif isinstance(thing, BaseException):
        yield from (vars(thing), thing.__cause__, thing.__context__)
        for frame, _ in traceback.walk_tb(thing.__traceback__):
            if frame.f_globals["__name__"].startswith(("perdure", "psycopg")):
                yield {k: v for k, v in frame.f_locals.items() if k not in TYPED_IN}
    else:
        yield getattr(thing, "password", None)  # Of a connection of libpq.


def with_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    user, _, place = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}:{SECRET}@{place}"


def with_port(url: str, port: int) -> str:
    start, _, rest = url.rpartition(":")
    return f"{start}:{port}/{rest.partition('/')[2]}"


@pytest.mark.parametrize("open_backend", [PostgresBackend, AsyncPostgresBackend])
@pytest.mark.parametrize("passed", ["address", "environment"])
def test_the_cause_of_an_error_does_not_lead_to_a_password(
    postgres_url: str, open_backend: type, passed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = with_port(with_password(postgres_url), free_port())
    if passed == "environment":
        address = address.replace(f":{SECRET}@", "@")
        monkeypatch.setenv("PGPASSWORD", SECRET)
    with pytest.raises(UnavailableError) as caught:
        open_backend(f"{address}?timeout=0.2")
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)
    assert "refused" in str(caught.value.__cause__)
    assert SECRET not in seen_by_a_tracker(caught.value)
    with pytest.raises(psycopg.OperationalError) as raw:
        psycopg.connect(address)
    assert SECRET in seen_by_a_tracker(raw.value), "the tracker of this test sees nothing"


def test_a_driver_s_error_without_a_connection_stays_what_it_was(postgres_url: str) -> None:
    backend = PostgresBackend(postgres_url)
    with pytest.raises(PerdureError) as caught:
        backend._pool.run(lambda connection: connection.execute(b"select 1/0"))
    cause = caught.value.__cause__
    assert isinstance(cause, psycopg.errors.DivisionByZero)
    assert (cause.sqlstate, cause.diag.message_primary) == ("22012", "division by zero")
    assert caught.value.__context__ is None
    backend.close()
