"""P3, copies within a store: the copying process is killed at any call that changes a file.

What is left is the source as it was, and either no copy, or a hidden one that the same call
finishes, or a whole one. A finished copy has the content of its source and is verified.
"""

import itertools
import random
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import perdure
from perdure.errors import NotFoundError, UsageError
from tests.promises import places
from tests.promises.calls import LOOKS, Call, Watcher
from tests.promises.children import End, collect, fork
from tests.promises.kinds import KINDS, Kind
from tests.promises.p03_kills import Killer, Point
from tests.promises.promise import Promise, Trial, in_time
from tests.support import contents, forgotten, said

MESSAGES = 300  # Three pages of a copy, with a snapshot and a page of the index.


def prepare(kind: Kind, directory: Path) -> None:
    """Make a store with one session to be copied."""
    with perdure.open(kind.address(directory)) as store:
        session = store.session("source")
        for number in range(0, MESSAGES, 10):
            texts = [said(str(n)) for n in range(number, number + 10)]
            session.append(*texts, id=f"m-{number}")


def restore(kind: Kind, prepared: Path, directory: Path) -> None:
    """Put the prepared store in the place of the one that a trial left."""
    kind.clear(directory)
    shutil.copytree(prepared, directory, dirs_exist_ok=True)


def copy(kind: Kind, directory: Path, watcher: Watcher) -> None:
    """Copy the session on a file system that somebody watches."""
    with kind.watched(directory, watcher) as open_backend:
        perdure.open(open_backend()).resume("source").copy("copy")


def points(kind: Kind, directory: Path) -> list[Point]:
    """Return every point of a copy, counted in one that nobody kills."""
    ops: list[str] = []

    def count(call: Call) -> Any:
        if call.op not in LOOKS:
            ops.append(call.op)
        return call.do(call.data)

    copy(kind, directory, count)
    return [
        Point(number, how)
        for number, op in enumerate(ops, 1)
        for how in ("before", "half of", "after")
        if how != "half of" or op == "write"
    ]


def killed_at(kind: Kind, directory: Path, point: Point) -> End:
    return collect(*fork(lambda _pipe: copy(kind, directory, Killer(point))))


def judge(kind: Kind, directory: Path) -> str:
    """Look at what a killed process left, and finish the copy."""
    expected = [*map(str, range(MESSAGES))]
    try:
        with perdure.open(kind.address(directory)) as store:
            source = store.resume("source")
            listed = {info.id for info in store.sessions()}
            try:
                store.resume("copy")
                is_whole = True
            except NotFoundError:
                is_whole = False
            if is_whole != ("copy" in listed):
                return f"the copy is listed: {'copy' in listed}, it opens: {is_whole}"
            try:
                source.copy("copy")
            except UsageError:
                if not is_whole:
                    raise
            copied = store.resume("copy")
            for session in (source, copied):
                if contents(session) != expected or forgotten(session):
                    return f"{session.id!r} has lost messages or ids"
                session.verify()
            return "" if store.verify().ok else "the store is damaged"
    except perdure.PerdureError as error:
        return f"{type(error).__name__}: {error}"


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    draw = random.Random(seed)
    with places.fast_directory() as place:
        prepared, directory = place / "prepared", place / "store"
        for each in (prepared, directory):
            each.mkdir()
        prepare(kind, prepared)
        restore(kind, prepared, directory)
        every = points(kind, directory)
        for point in itertools.chain.from_iterable(
            draw.sample(every, len(every)) for _ in itertools.count()
        ):
            if not in_time(deadline):
                return
            restore(kind, prepared, directory)
            end = killed_at(kind, directory, point)
            what = f"a copy killed {point.how} call {point.number}"
            if end.code == -signal.SIGKILL:
                yield Trial(what, judge(kind, directory))
            elif end.code:
                yield Trial(what, f"the child ended with {end.code}")


SAYS = "kill -9 while a session is copied leaves no half copy that can be seen, and nothing is lost"
PROMISES = [
    Promise("P3", SAYS, 500, partial(trials, kind), f"{kind.name}-copies") for kind in KINDS
]
