"""P4: an append of several records is torn at every byte; it is there as a whole or not at all.

The append also has pages of the index and a snapshot, because it is time for one. What it added to
a file is cut off at every byte, and what is missing is nothing, zeros, or what other files left on
the disk. Whoever opens the store finds it as it was before, and goes on.
"""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import perdure
from perdure.core import index
from perdure.core.state import session_state
from tests.promises import places
from tests.promises.disk import Crash
from tests.promises.kinds import KINDS, Kind
from tests.promises.p06_damage import scattered
from tests.promises.promise import Promise, Trial, in_time
from tests.support import forgotten

FILLINGS = ("nothing", "zeros", "remains")
TURN = "turn-1"
NOTES = 5  # With the turn, six ids in four pages.

Contents = dict[str, bytes]


class Torn(NamedTuple):
    """A store before an append, and what the append added to one of its files."""

    kind: Kind
    before: Contents
    name: str
    added: bytes
    texts: list[str]
    """What was said before."""
    later: list[str]
    """And what is said if the append is whole."""

    def state(self, size: int, filling: str) -> Contents:
        """Return the files with the first bytes of what was added, and something for the rest."""
        missing = len(self.added) - size
        rest = {
            "nothing": b"",
            "zeros": bytes(missing),
            "remains": random.Random(size).randbytes(missing),
        }
        content = self.before[self.name] + self.added[:size] + rest[filling]
        return {**self.before, self.name: content}


def torn(kind: Kind, directory: Path) -> Torn:
    """Append once more to a store, and keep what that changed."""
    kind.clear(directory)
    store = perdure.open(kind.opener(directory)())
    session = store.session("main")
    session.append(_say("Before."))
    for number in range(NOTES):
        session.note(number, id=f"note-{number}")
    session.turn("Question?", id=TURN).__enter__()
    texts, before = _texts(session), _contents(directory)
    with (
        mock.patch.object(session_state, "SNAPSHOT_EVERY", 1),
        mock.patch.object(index, "PAGE_ROWS", 2),
    ):
        session.append(*(_say(f"Part {part}. " * 9) for part in range(5)))
    later, after = _texts(session), _contents(directory)
    (name,) = (one for one in after if len(after[one]) != len(before[one]))
    store.close()
    return Torn(kind, before, name, after[name][len(before[name]) :], texts, later)


def _contents(directory: Path) -> Contents:
    """Return the files as they are now; shared memory does not survive."""
    return {
        one.relative_to(directory).as_posix() + "/" * one.is_dir(): (
            b"" if one.is_dir() else one.read_bytes()
        )
        for one in directory.rglob("*")
        if not one.name.endswith("-shm")
    }


def _say(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _texts(session: perdure.Session) -> list[str]:
    return [message["content"] for message in session.messages()]


def tear(found: Torn, directory: Path, size: int, filling: str) -> Trial:
    """Open a store whose last append was torn, read it, and go on."""
    state = found.state(size, filling)
    found.kind.lay_out(directory, Crash(state, ()))
    what = f"{size} of {len(found.added)} bytes, then {filling}"
    try:
        with perdure.open(found.kind.address(directory)) as store:
            return Trial(what, _judge(found, store.session("main"), state))
    except perdure.PerdureError as error:
        return Trial(what, f"{type(error).__name__}: {error}")


def _judge(found: Torn, session: perdure.Session, state: Contents) -> str:
    is_whole = state[found.name].startswith(found.before[found.name] + found.added)
    wanted = found.later if is_whole else found.texts
    if _texts(session) != wanted:
        return f"{len(_texts(session))} messages, not {len(wanted)}"
    if [turn.id for turn in session.interrupted] != [TURN]:
        return f"{session.interrupted} are shown as interrupted"
    session.append(_say("Afterwards."))
    session.verify()
    if lost := forgotten(session):
        return f"ids {lost} are stored, and not known"
    return "" if _texts(session) == [*wanted, "Afterwards."] else "it did not go on"


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    with places.fast_directory() as directory:
        found = torn(kind, directory)
        for number in scattered(len(FILLINGS) * (len(found.added) + 1), seed):
            if not in_time(deadline):
                return
            size, filling = divmod(number, len(FILLINGS))
            yield tear(found, directory, size, FILLINGS[filling])


SAYS = "an append is all or nothing, torn at any byte"
PROMISES = [Promise("P4", SAYS, 5_000, partial(trials, kind), kind.name) for kind in KINDS]
