"""P16 on Postgres, a seeded sample."""

import pytest

from perdure.backends.postgres.backend import PostgresBackend
from tests.promises import p16_machine as machine

pytestmark = [pytest.mark.durability, pytest.mark.slow]


def test_sessions_on_postgres_behave_as_the_model(postgres_store: str) -> None:
    address = f"{postgres_store}&connections=2"
    assert len(machine.run(lambda: PostgresBackend(address), seed=6, runs=3)) == 3
