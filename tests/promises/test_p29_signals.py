"""P29, a seeded sample: a signal handler may raise anywhere inside a store."""

import sys
from pathlib import Path

import pytest

import perdure
from tests.promises import p29_signals as signals
from tests.promises import p29_storm
from tests.promises.kinds import FILES, SQLITE, Kind

pytestmark = pytest.mark.durability

SAMPLE = 100

each_mode = pytest.mark.parametrize("mode", p29_storm.MODES)


@pytest.mark.slow
@each_mode
@pytest.mark.parametrize("kind", [FILES, SQLITE], ids=str)
def test_interrupts_lose_lock_and_hang_nothing(kind: Kind, mode: str, directory: Path) -> None:
    assert signals.storm(kind.address(directory), mode, 1, SAMPLE) == []


@pytest.mark.slow
@each_mode
def test_interrupts_lose_and_hang_nothing_in_memory(mode: str) -> None:
    assert signals.storm("memory:", mode, 1, SAMPLE) == []


@pytest.mark.slow
@each_mode
def test_interrupts_lose_lock_and_hang_nothing_on_a_server(mode: str, postgres_store: str) -> None:
    assert signals.storm(f"{postgres_store}&connections=4", mode, 1, SAMPLE) == []


def test_a_hang_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the watchdog barks."""
    code = (
        "import time; from tests.promises import p29_storm as storm;"
        "storm.PATIENCE = 1; storm.sys.argv = ['', 'memory:', 'sync', '1', '5'];"
        "storm.Storm.begin = lambda self: (storm.Work.watched(self), time.sleep(60));"
        "storm.main()"
    )
    monkeypatch.setattr(signals, "program", lambda *_: [sys.executable, "-c", code])
    (wrong,) = signals.storm("memory:", "sync", 1)
    assert "exit 1: Timeout" in wrong


def test_what_is_lost_repeated_or_not_listed_is_seen(tmp_path: Path) -> None:
    """The twin: the judge finds it."""
    address = SQLITE.address(tmp_path)
    with perdure.open(address) as store:
        store.session("a").append(
            {"role": "user", "content": "one"}, {"role": "user", "content": "one"}
        )
    assert signals.missing_or_repeated(address, [("a", "two"), ("b", "one")]) == [
        "not listed: ['b']",
        "a: lost ['two']",
        "a: repeated",
        "b: lost ['one']",
    ]


def test_a_lock_that_is_held_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a session that cannot be written at once is named."""
    address = FILES.address(tmp_path)
    with perdure.open(address) as store:
        store.session("a").note("It is there.")
    assert signals.written_beside(address) == []
    monkeypatch.setattr(signals, "AT_ONCE", -1)
    assert "s to write" in signals.written_beside(address)[0]
