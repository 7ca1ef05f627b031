"""P8 with leases, a seeded sample: whoever slept longer than its lease is fenced."""

import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.errors import LeaseHeldError
from perdure.journal.records import LeaseReleased, LeaseRenewed, LeaseTaken, Message, Record
from tests.promises.kinds import FILES, SQLITE, Kind
from tests.promises.p08_leases import believed, happened, held_by_one, history
from tests.promises.p08_processes import Done

pytestmark = pytest.mark.durability


@pytest.mark.slow
def test_workers_hold_a_session_one_after_the_other() -> None:
    counts: Counter[str] = Counter()
    for seed, kind in zip(range(2, 22), cycle((FILES, SQLITE, SQLITE)), strict=False):
        trial, found = history(seed, kind, appends=40)
        assert not trial.failure, f"{trial.what}: {trial.failure}"
        counts.update(found)
        if seed > 3 and counts["released"] > 3 and counts["taken over"] > 2:
            return
    pytest.fail(f"it is no trial when nobody is taken over from: {counts}")


class At:
    """A place where a store is already."""

    def __init__(self, address: str) -> None:
        self._address = address

    def address(self, _: Path) -> str:
        return self._address


@pytest.mark.slow
def test_workers_hold_a_session_on_a_server(postgres_store: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(6, 12):  # On a busy machine one may lose its lease before it gives it back.
        trial, found = history(seed, At(f"{postgres_store}{seed}"), appends=40)
        assert not trial.failure, f"{trial.what}: {trial.failure}"
        counts.update(found)
        if counts["released"] > 3:
            return
    pytest.fail(f"it is no trial when nobody gives a lease back: {counts}")


@pytest.mark.slow
def test_workers_that_are_not_fenced_are_caught() -> None:
    # Whether one sleeps at the wrong moment is a matter of luck; in none of several it is not.
    assert any(history(seed, SQLITE, appends=40, blind=True)[0].failure for seed in range(2, 22))


HOLDER = """
import sys, perdure
session = perdure.open(sys.argv[1]).session("s")
with session.lease(ttl=2, owner="holder") as lease, session.turn("question") as turn:
    print("held", flush=True)
    sys.stdin.readline()
    try:
        turn.append({"role": "assistant", "content": "stale"})
    except perdure.FencedError:
        print("fenced", lease.held, flush=True)
        turn.suspend()
"""


@pytest.fixture(params=[SQLITE, FILES, "postgres"], ids=str)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if isinstance(request.param, Kind):
        return request.param.address(tmp_path)
    return str(request.getfixturevalue("postgres_store"))


@pytest.mark.parametrize("sent", [signal.SIGSTOP, signal.SIGKILL], ids=str)
def test_a_holder_that_is_stopped_or_killed_is_taken_over_from(
    sent: signal.Signals, address: str
) -> None:
    """A real process sleeps longer than its lease lasts, or dies; one that wakes up is fenced."""
    command = [sys.executable, "-c", HOLDER, address]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with (
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, text=True) as holder,
        perdure.open(address) as store,
    ):
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(sent)
        start, session = time.monotonic(), store.session("s")
        with pytest.raises(LeaseHeldError, match="held by 'holder'"):
            session.append({"role": "user", "content": "too early"})
        with session.lease(timeout=60) as lease:
            assert time.monotonic() - start >= 2
            assert lease.epoch == 2
            with session.interrupted[0] as turn:
                turn.append({"role": "assistant", "content": "answer"})
            holder.send_signal(signal.SIGCONT)
            told = holder.communicate("go on\n", timeout=60)[0] if sent is signal.SIGSTOP else ""
        if sent is signal.SIGSTOP:
            assert told == "fenced False\n"
        session.refresh()
        assert [one["content"] for one in session.messages()] == ["question", "answer"]
        session.verify()


def records(*contents: Any) -> list[Record]:
    time = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        Record(position, f"r{position}", content.kind, time, content, "")
        for position, content in enumerate(contents, 1)
    ]


def taken(epoch: int, who: str, *, forced: bool = False) -> LeaseTaken:
    return LeaseTaken(epoch=epoch, owner=who, ttl=1.0, holder=who, forced=forced)


def said(by: str, epoch: int) -> Message:
    return Message(message={"id": "m", "by": by, "epoch": epoch})


def released(epoch: int, who: str) -> LeaseReleased:
    return LeaseReleased(epoch=epoch, owner=who)


GOOD = [taken(1, "a"), said("a", 1), released(1, "a"), said("c", 0), taken(2, "b"), said("b", 2)]


def test_the_checker_accepts_what_can_be() -> None:
    assert list(held_by_one(records(*GOOD))) == []
    assert list(happened(records(*GOOD, taken(3, "a"), taken(4, "b", forced=True)))) == [
        "released",
        "taken over",
        "forced",
    ]


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (said("a", 1), "stale commit"),
        (said("a", 2), "stale commit"),
        (said("c", 0), "without a lease"),
        (taken(2, "c"), "came after 2"),
        (taken(4, "c"), "came after 2"),
        (released(1, "a"), "a lease.released of 1"),
        (LeaseRenewed(epoch=1, owner="a"), "a lease.renewed of 1"),
    ],
)
def test_the_checker_finds_what_can_not_be(wrong: Any, fault: str) -> None:
    (found,) = held_by_one(records(*GOOD, wrong))
    assert fault in found


def test_the_checker_finds_who_believed_for_too_long() -> None:
    final = records(taken(1, "a"), taken(2, "b"), taken(3, "c", forced=True))
    took = [Done("b", "lease", 5, 10, 2, {}), Done("c", "lease", 15, 20, 3, {})]

    def belief(epoch: int, at: int) -> Done:
        return Done("a", "belief", at, at, epoch, {"epoch": epoch, "at": at})

    assert list(believed([*took, belief(1, 9), belief(2, 30), belief(3, 40)], final)) == []
    (found,) = believed([*took, belief(1, 11)], final)
    assert "believed in epoch 1" in found
