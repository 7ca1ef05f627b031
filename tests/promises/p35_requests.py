"""P35: a request that is tried again under its id ends, whatever happened to it, and is done once.

Each row: a form of the program, a scenario, something that happens, and a point where it happens.
In a long run, the second attempt is sometimes disturbed too.
"""

import random
import time
from collections.abc import Iterator
from functools import partial

from tests.promises import places
from tests.promises.kinds import KINDS, Kind
from tests.promises.promise import Promise, Trial, in_time
from tests.promises.request_forms import FORMS
from tests.promises.request_judge import Table
from tests.promises.requests import SCENARIOS, Disturbance

LONG_RUN = 60.0  # Seconds; shorter runs are samples, of what happens once.
AGAIN = 0.25  # How often the second attempt is disturbed too, in a long run.


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    draw = random.Random(seed)
    again = AGAIN if deadline - time.monotonic() > LONG_RUN else 0.0
    with places.fast_directory() as directory:
        opener, clear = kind.opener(directory), partial(kind.clear, directory)
        tables = [
            Table(form, scenario, directory, opener, clear)
            for form in FORMS
            for scenario in SCENARIOS
        ]
        for table, disturbance in rows(tables, draw):
            if not in_time(deadline):
                return
            second = None
            if draw.random() < again:
                second = table.any_point(draw)
            what = f"{table}: {disturbance}" + (f", then {second}" if second else "")
            yield Trial(what, table.failure(disturbance, second))


def rows(tables: list[Table], draw: random.Random) -> Iterator[tuple[Table, Disturbance]]:
    """Yield every row once, then all again: of each table and kind one, then another of each."""
    while True:
        groups: dict[tuple[str, str], list[tuple[Table, Disturbance]]] = {}
        for table in tables:
            for disturbance in table.disturbances():
                groups.setdefault((str(table), disturbance.kind), []).append((table, disturbance))
        for group in groups.values():
            draw.shuffle(group)
        while left := [group for group in groups.values() if group]:
            draw.shuffle(left)
            for group in left:
                yield group.pop()


SAYS = "a request that is tried again under its id ends, and is done once"
PROMISES = [Promise("P35", SAYS, 4_000, partial(trials, kind), kind.name) for kind in KINDS]
