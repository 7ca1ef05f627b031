"""P3, compactions: the process is killed at any call that changes a file, or at any message.

What is left is a session that is not compacted yet, or one that is: with its messages, values,
notes, labels, fields, ids, outcomes of keyed calls and calls of unknown outcome. The same call
again finishes it. Entries are dropped, and pages returned, a few at a time: so there are many
points.
"""

from functools import partial
from typing import Any
from unittest import mock

import perdure
from perdure.backends.sqlite import backend as sqlite
from perdure.core.compaction import CompactResult
from tests.promises import works
from tests.promises.kinds import KINDS
from tests.promises.promise import Promise
from tests.promises.works import Work
from tests.support import contents, forgotten, said

MESSAGES = 100
KEPT = 20
TEXTS = [f"{number} " + "x" * 600 for number in range(MESSAGES)]
OTHER = ["before", "other"]


def prepare(store: perdure.Store) -> None:
    """Make a session with something of everything that has to outlast its records."""
    session = store.session("long")
    with session.turn("pay", id="paid"):
        session.tool(_pay).keyed("p-1")("Ada")
    try:
        with session.turn("pay", id="failed"):
            session.tool(_pay)("Bob")
    except KeyboardInterrupt:
        pass
    session.set("plan", {"step": 1})
    session.note({"seen": 1}, topic="seen", id="note")
    session.label("urgent")
    session.describe(owner="Ada", cost=3)
    for start in range(0, MESSAGES, 5):
        session.append(*map(said, TEXTS[start : start + 5]), id=f"m-{start}")
    store.session("other").append(*map(said, OTHER))


_paid: list[str] = []


def _pay(who: str) -> str:
    _paid.append(who)
    if who == "Bob":
        raise KeyboardInterrupt
    return f"paid {who}"


def act(store: perdure.Store) -> CompactResult:
    with (
        mock.patch.object(sqlite, "DROP_ENTRIES", 40),
        mock.patch.object(sqlite, "VACUUM_PAGES", 4),
    ):
        return store.resume("long").compact(keep=KEPT)


def judge(store: perdure.Store) -> str:
    session = store.resume("long")
    is_whole = session.complete_from == 1
    if failure := _judge(store, session, MESSAGES if is_whole else KEPT):
        return f"{'not yet' if is_whole else 'already'} compacted: {failure}"
    result = act(store)
    again = store.resume("long")
    first = next(store._backend.read("long", limit=1)).position
    if not 1 < first == again.complete_from == result.complete_from:
        return f"compacted again, it begins at {first}, and says {again.complete_from}"
    if failure := _judge(store, again, KEPT):
        return f"compacted again: {failure}"
    if again.compact(keep=KEPT).records:
        return "there is always more to drop"
    before = len(_paid)
    with again.turn("pay again"):
        paid = again.tool(_pay).keyed("p-1")("Ada")
    return "" if (paid, len(_paid)) == ("paid Ada", before) else "a keyed call was made again"


def _judge(store: perdure.Store, session: perdure.Session, count: int) -> str:
    """Say what was lost, given how many of the long messages there should be."""
    session.verify()
    if (found := contents(session)[-count:]) != TEXTS[-count:]:
        return f"{len(found)} messages, not {count}, or others"
    if count == KEPT and len(session) != KEPT:
        return f"{len(session)} messages are left"
    (note,) = session.notes("seen")
    fields = {"owner": "Ada", "cost": 3}
    listed = store.sessions(labels=["urgent"], where={"owner": "Ada"})
    shown = [(one.id, one.fields) for one in listed]
    facts: Any = (session.get("plan"), note.id, {*session.labels}, shown)
    if facts != ({"step": 1}, "note", {"urgent", "unknown-effect"}, [("long", fields)]):
        return f"its state is {facts}"
    if [effect.tool for effect in session.effects.unknown()] != ["_pay"]:
        return f"calls of unknown outcome: {session.effects.unknown()}"
    end = session.position
    for start in range(0, MESSAGES, 5):
        session.append(*map(said, TEXTS[start : start + 5]), id=f"m-{start}")
    if session.note({"seen": 1}, topic="seen", id="note") != note.position:
        return "ids are not known: that of the note"
    if session.position != end or forgotten(session):
        return f"ids are not known: {forgotten(session)}"
    if contents(store.resume("other")) != OTHER:
        return "another session has lost messages"
    return ""


WORK = Work("compact", prepare, act, judge)
SAYS = "kill -9 while a session is compacted leaves it whole or compacted, and loses nothing"
PROMISES = [
    Promise("P3", SAYS, 500, partial(works.file_trials, WORK, kind), f"{kind.name}-compact")
    for kind in KINDS
]
PROMISES += [Promise("P3", SAYS, 500, partial(works.postgres_trials, WORK), "postgres-compact")]
