"""`perdure release`, and how the other commands tell who holds a session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from perdure.errors import FencedError
from perdure.sync.lease import Lease
from tests.cli.support import SNEAKY, fill, invoke, objects, said


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return fill(tmp_path / "agents.db")


@pytest.fixture
def lease(path: Path) -> Iterator[tuple[perdure.Session, Lease]]:
    with perdure.open(path) as store:
        session = store.resume("claim-4711")
        lease = session.lease(owner="worker 7")
        lease.__enter__()
        yield session, lease
        lease.release()


def test_without_force_it_only_says_who_holds_it(
    path: Path, lease: tuple[perdure.Session, Lease]
) -> None:
    done = invoke(path, "release", "claim-4711")
    assert done.exit_code == 1
    assert "held by worker 7 (epoch 1, 30 s): --force" in done.stderr
    lease[0].append(said("still here"))


def test_with_force_it_is_taken_and_recorded(
    path: Path, lease: tuple[perdure.Session, Lease]
) -> None:
    done = invoke(path, "release", "claim-4711", "--force", "--owner", "ops")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == (
        "claim-4711 was held by worker 7 (epoch 1, 30 s); taken as epoch 2, and released.\n"
    )
    with pytest.raises(FencedError, match="'ops' took over with epoch 2"):
        lease[0].append(said("stale"))
    shown = invoke(path, "show", "claim-4711").stdout
    assert "lease 2 is taken by ops for 30 s, by force" in shown
    assert "lease 2 is released" in shown
    assert invoke(path, "release", "claim-4711").stdout == "No worker holds claim-4711.\n"


def test_whoever_did_it_is_recorded_without_being_told(
    path: Path, lease: tuple[perdure.Session, Lease]
) -> None:
    assert invoke(path, "release", "claim-4711", "--force").exit_code == 0
    with pytest.raises(FencedError, match=r"pid \d+' took over"):
        lease[0].append(said("stale"))


def test_a_session_that_is_not_there_is_said(path: Path) -> None:
    done = invoke(path, "release", "claim-1", "--force")
    assert done.exit_code == 1
    assert "There is no session 'claim-1'" in done.stderr


def test_ls_and_show_say_who_holds_a_session(
    path: Path, lease: tuple[perdure.Session, Lease]
) -> None:
    (line,) = [
        line for line in invoke(path, "ls").stdout.splitlines() if line.startswith("claim-4711")
    ]
    assert "leased by worker 7, turn-open, vip" in line
    (found,) = objects(invoke(path, "ls", "--label", "leased", "--json"))
    assert found["holder"] == {"epoch": 1, "name": "worker 7", "ttl": 30.0}
    lease[1]._renew()
    shown = invoke(path, "show", "claim-4711").stdout
    assert "held by worker 7 (epoch 1)" in shown
    assert "lease 1 is taken by worker 7 for 30 s" in shown
    assert "renewed" not in shown
    assert "lease 1 is renewed" in invoke(path, "tail", "claim-4711").stdout


def test_what_a_holder_calls_itself_does_no_harm(path: Path) -> None:
    with perdure.open(path) as store, store.resume("claim-4711").lease(owner=f"w{SNEAKY}"):
        for command in ("ls", "show", "tail", "release"):
            done = invoke(path, command, *(["claim-4711"] if command != "ls" else []))
            assert "\x1b" not in done.output.replace("\n", "")
