"""P35: a request that is tried again under its id ends, whatever happened to it, and is done once.

Each row: a form of the program, a scenario, something that happens, and a point where it happens.
After every row was tried, all are tried again, with the second attempt disturbed in some of them.
"""

import itertools
import random
from collections.abc import Iterator
from functools import partial

from tests.promises import places
from tests.promises.kinds import KINDS, Kind
from tests.promises.promise import Promise, Trial, in_time
from tests.promises.request_forms import FORMS, warm_up
from tests.promises.request_judge import Table
from tests.promises.requests import SCENARIOS, Disturbance

AGAIN = 0.5  # How often the second attempt is disturbed too, once every row was tried alone.


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    draw = random.Random(seed)
    warm_up()
    with places.fast_directory() as directory:
        opener, clear = kind.opener(directory), partial(kind.clear, directory)
        tables = [
            Table(form, scenario, directory, opener, clear)
            for form in FORMS
            for scenario in SCENARIOS
        ]
        for table, disturbance, is_first_pass in rows(tables, draw):
            if not in_time(deadline):
                return
            second = None
            if not is_first_pass and draw.random() < AGAIN:
                second = table.any_point(draw)
            what = f"{table}: {disturbance}" + (f", then {second}" if second else "")
            yield Trial(what, table.failure(disturbance, second))


def rows(tables: list[Table], draw: random.Random) -> Iterator[tuple[Table, Disturbance, bool]]:
    """Yield every row once, then all again: of each table and kind one, then another of each."""
    for number in itertools.count():
        groups: dict[tuple[str, str], list[tuple[Table, Disturbance]]] = {}
        for table in tables:
            for disturbance in table.disturbances():
                groups.setdefault((str(table), disturbance.kind), []).append((table, disturbance))
        for group in groups.values():
            draw.shuffle(group)
        while left := [group for group in groups.values() if group]:
            draw.shuffle(left)
            for group in left:
                yield *group.pop(), number == 0


SAYS = "a request that is tried again under its id ends, and is done once"
PROMISES = [Promise("P35", SAYS, 4_000, partial(trials, kind), kind.name) for kind in KINDS]
