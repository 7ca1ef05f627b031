"""The server of the tests is the one that was started."""

import psycopg
import pytest

from tests.backends.postgres import server_keeper as postgres_keeper
from tests.backends.postgres.server_keeper import free_port, running


def test_a_port_that_another_server_took_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as one:
        ports = [one.port]
        monkeypatch.setattr(
            postgres_keeper, "free_port", lambda: ports.pop() if ports else free_port()
        )
        with running() as two:
            assert not ports
            assert two.port != one.port
            psycopg.connect(two.url).close()
