"""P31 on Redis, a sample: weak servers are refused, and a killed one loses nothing."""

import random
from pathlib import Path

import pytest

from tests.backends.redis.server import Server
from tests.promises.p31_redis import WEAK, killed, weak

pytestmark = pytest.mark.durability


@pytest.mark.parametrize("setting", random.Random(31).sample([*WEAK], 3))
def test_a_weak_server_is_refused_or_accepted_by_name(setting: str, tmp_path: Path) -> None:
    trial = weak(setting, tmp_path)
    assert not trial.failure, trial


def test_a_killed_server_has_what_it_acknowledged(tmp_path: Path) -> None:
    draw = random.Random(1)
    server = Server(tmp_path / "sound")
    try:
        for _ in range(8):
            trial = killed(server, draw)
            assert not trial.failure, trial
    finally:
        server.stop()
    forgetful = Server(tmp_path / "weak", appendonly="no")
    try:
        assert killed(forgetful, draw, accept="appendonly-no").failure, "the control"
    finally:
        forgetful.stop()
