"""`perdure compact`: what it drops, and what it says."""

from pathlib import Path

import pytest

import perdure
from tests.cli.support import invoke, objects, said


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with perdure.open(tmp_path / "agents.db") as store:
        session = store.session("long")
        for number in range(30):
            session.append(said(str(number)))
    return tmp_path / "agents.db"


def test_it_drops_what_a_dry_run_announced(path: Path) -> None:
    trial = invoke(path, "compact", "long", "--keep", "5", "--dry-run")
    assert "25 records with 25 messages would be dropped; complete from 26" in trial.stdout
    with perdure.open(path) as store:
        assert len(store.resume("long")) == 30
    assert "messages dropped" in invoke(path, "compact", "long", "--keep", "5").stdout
    assert "nothing to drop" in invoke(path, "compact", "long", "--keep", "5").stdout
    with perdure.open(path) as store:
        assert len(store.resume("long")) == 5
    assert "complete from 26" in invoke(path, "verify").stdout
    assert objects(invoke(path, "verify", "--json"))[0]["complete_from"] == 26
    (shown,) = objects(invoke(path, "compact", "long", "--before", "28", "--json"))
    assert shown["complete_from"] == 28
    assert shown["session"] == "long"


def test_it_says_what_prevents_more(path: Path) -> None:
    with perdure.open(path) as store:
        store.resume("long").turn("open").__enter__()
    done = invoke(path, "compact", "long", "--keep", "0")
    assert "because of a turn" in done.stdout


@pytest.mark.parametrize("wrong", [[], ["--keep", "1", "--before", "2"], ["--keep", "-1"]])
def test_it_needs_one_of_two_options(path: Path, wrong: list[str]) -> None:
    assert invoke(path, "compact", "long", *wrong).exit_code == 2
