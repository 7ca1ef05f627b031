"""P28: a clock that jumps, stops or runs backwards changes nothing but the recorded times.

One script is run under an even clock and under a mad one, with the same random ids. What is read
afterwards must be the same but for times, and for the digests that cover them. A clock that tells
no time at all is refused, with nothing written.
"""

import math
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import perdure
from perdure.core.state import session_state
from perdure.errors import UsageError
from perdure.journal import ids
from tests.promises import places
from tests.promises.kinds import KINDS, SQLITE, Kind
from tests.promises.promise import Promise, Trial, in_time

Clock = Callable[[], float]

START = 1_700_000_000.0
YEARS_10 = 10 * 365.25 * 86_400
FIRST, LAST = -62_135_596_800.0, 253_402_300_799.0  # The years 1 and 9999, what a datetime holds.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LOOKS = (
    START,
    START + YEARS_10,
    START - YEARS_10,
    0.0,
    -1.0,
    1e-9,
    0.9999999,
    START + 0.9999995,
    (datetime(9000, 1, 1, tzinfo=UTC) - EPOCH).total_seconds(),
    FIRST,
    LAST,
    2**31 - 0.5,
    2**32,
    True,
)


def _none() -> float:
    return None  # type: ignore[return-value]


def _raises() -> float:
    raise RuntimeError("no time")


# What tells no time: not a number, no number, none at all, and years that no calendar has.
BROKEN: tuple[Clock, ...] = (
    lambda: math.nan,
    lambda: math.inf,
    lambda: -math.inf,
    lambda: LAST + 1,
    lambda: LAST + 0.9999999,
    lambda: FIRST - 1,
    lambda: 1e300,
    _none,
    _raises,
)


def mad(draw: random.Random) -> Clock:
    """A clock that is at one of many times each time one looks, or runs from there, or stands."""
    kind = draw.choice(("jumps", "backwards", "stands", "drifts"))
    now = draw.choice(LOOKS[:9])

    def tell() -> float:
        nonlocal now
        if kind == "jumps":
            now = draw.choice(LOOKS)
        elif kind == "backwards":
            now -= draw.choice((1e-7, 1.0, 3_600.0))
        elif kind == "drifts":
            now += draw.uniform(-YEARS_10, YEARS_10) / 100
        return min(max(now, FIRST), LAST)

    return tell


def even() -> Clock:
    """A clock as it should be."""
    ticks = iter(range(10**9))
    return lambda: START + next(ticks)


def script(address: str, clock: Clock, seed: int) -> list[Any]:
    """Use a store in ways drawn from the seed; return what is read, without what tells a time."""
    draw = random.Random(seed)
    with (
        mock.patch.object(ids, "_random_bytes", random.Random(seed).randbytes),
        mock.patch.object(session_state, "SNAPSHOT_EVERY", 8),
        perdure.open(address, clock=clock) as store,
    ):
        names = ["one", "two"]
        sessions = [store.session(name) for name in names]
        for number in range(24):
            act(draw, number, draw.choice(sessions))
        sessions[0].branch("three", at=max(1, sessions[0].position - 2)).append(
            {"role": "user", "content": "", "late": True}
        )
        return [read(store.session(name)) for name in [*names, "three"]]


def act(draw: random.Random, number: int, session: perdure.Session) -> None:
    """Do one thing."""
    match draw.randrange(6):
        case 0:
            with session.turn(f"turn {number}", id=f"turn-{number}") as turn:
                turn.append(
                    {"role": "user", "content": "", "answer": number},
                    {"role": "user", "content": "", "more": number},
                )
        case 1:
            session.set("plan", {"step": number, "text": "long enough for a delta " * 20})
        case 2:
            session.label(f"label-{number % 5}")
        case 3:
            session.append(
                {"role": "user", "content": "", "n": number},
                id=f"id-{number // 2}-{session.position}",
            )
            session.append({"role": "user", "content": "", "n": number}, id=f"id-{number}")
            session.append(
                {"role": "user", "content": "", "n": number}, id=f"id-{number}"
            )  # Once more: recognised by its id.
        case 4:
            session.note({"n": number})
        case _:
            session.append({"role": "user", "content": "", "n": number})


def read(session: perdure.Session) -> Any:
    """Everything but times and digests."""
    verified = session.verify()
    records = [
        (record.position, record.id, record.kind, repr(record.content))
        for record in session.records()
    ]
    key = "plan" in session.values.keys()  # noqa: SIM118 - not a dict
    history = session.values.history("plan") if key else []
    values = [session.get("plan", version=one.version) for one in history]
    return (session.messages(), session.labels, verified[1:3], verified[4:], records, values)


def times(address: str) -> list[datetime]:
    """The recorded times of a session, in order of position."""
    with perdure.open(address) as store:
        return [record.time for record in store.session("one").records()]


def mad_trial(seed: int, kind: Kind, directory: Path) -> Trial:
    """The same script under both clocks; three of four that count for SQLite are in memory."""
    draw = random.Random(seed)
    addresses = ["memory:", "memory:"]
    if seed % 4 == 0 or kind is not SQLITE:
        addresses = [fresh(kind, directory / clock) for clock in ("even", "mad")]
    good = script(addresses[0], even(), seed)
    read_under_mad_clock = script(addresses[1], mad(draw), seed)
    differs = [a for a, b in zip(good, read_under_mad_clock, strict=True) if a != b]
    return Trial(
        f"script {seed} on {addresses[1]}", f"differs: {differs}"[:2000] if differs else ""
    )


def broken_trial(seed: int, clock: Clock, address: str = "memory:") -> Trial:
    """A clock breaks in the middle of a script and is repaired."""
    draw = random.Random(seed)
    broken = False
    good = even()
    with perdure.open(address, clock=lambda: clock() if broken else good()) as store:
        session, failure = store.session("one"), ""
        for number in range(draw.randrange(3)):
            session.append({"role": "user", "content": "", "n": number})
        before = session.position
        broken = True
        try:
            session.append({"role": "user", "content": "", "n": "lost"})
            failure = "it was taken"
        except UsageError:
            pass
        except Exception as error:  # noqa: BLE001 - an error of another kind is the finding
            failure = f"raised {error!r}"
        if store.session("one").position != before or session.position != before:
            failure += "; something was written"
        broken = False
        if session.append({"role": "user", "content": "", "n": "kept"}) != before + 1:
            failure += "; the session did not go on where it was"
        session.verify()
    return Trial(f"broken clock {seed % len(BROKEN)}", failure)


def fresh(kind: Kind, directory: Path) -> str:
    """Return the address of a store that is not there yet."""
    directory.mkdir(exist_ok=True)
    kind.clear(directory)
    return kind.address(directory)


def recorded_trial(seconds: float, kind: Kind, directory: Path) -> Trial:
    """What the clock tells is what is recorded, to the microsecond."""
    address = fresh(kind, directory / "recorded")
    with perdure.open(address, clock=lambda: seconds) as store:
        store.session("one").append({"role": "user", "content": "", "a": 1})
    (found,) = times(address)
    far = abs(found - (EPOCH + timedelta(seconds=seconds)))
    return Trial(f"clock at {seconds}", "" if far <= timedelta(microseconds=1) else f"{found}")


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    """Yield trials with clocks that differ each time."""
    with places.fast_directory() as directory:
        for seconds in LOOKS:
            yield recorded_trial(seconds, kind, directory)
        number = seed * 1_000_000
        while in_time(deadline):
            yield mad_trial(number, kind, directory)
            broken = BROKEN[number % len(BROKEN)]
            yield broken_trial(number, broken, fresh(kind, directory / "broken"))
            number += 1


SAYS = "Clock jumps change nothing but the recorded time"
PROMISES = [Promise("P28", SAYS, 10_000, partial(trials, kind), kind.name) for kind in KINDS]
