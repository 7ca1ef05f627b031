"""P8 and P9 on Postgres, a seeded sample: clients and the server are killed in the middle."""

from collections.abc import Iterator

import pytest

from tests.backends.postgres.server_keeper import Server, running
from tests.promises.p08_postgres import history

pytestmark = pytest.mark.durability


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running("max_connections=300") as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "kills"), [(1, False), (2, True)])
def test_processes_that_share_a_session_write_one_history(
    server: Server, seed: int, *, kills: bool
) -> None:
    trial = history(seed, server, appends=120, kills=kills)
    assert not trial.failure, f"{trial.what}: {trial.failure}"
