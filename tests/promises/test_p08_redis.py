"""P8 and P9 on Redis, a seeded sample: clients and the server are killed in the middle."""

from pathlib import Path

import pytest

from tests.backends.redis.server import Server
from tests.promises.p08_redis import history

pytestmark = pytest.mark.durability


@pytest.mark.slow
def test_processes_that_share_a_session_write_one_history(tmp_path: Path) -> None:
    server = Server(tmp_path)
    try:
        for seed in range(2, 22):  # On a fast machine a history may end before the first kill.
            trial = history(seed, server, appends=800, kills=True)
            assert not trial.failure, f"{trial.what}: {trial.failure}"
            if " 0 kills" not in trial.what:
                return
    finally:
        server.stop()
    pytest.fail("no server was killed in the middle of a history")
