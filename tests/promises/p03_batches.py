"""P3, batches on Postgres: the client is killed at any message, or the server is.

What is left of each batch is all of it or none: of one session, of the end of a turn with a value,
of several sessions. The same calls again do what is missing, and nothing twice. On SQLite and files
batches are part of the script that `p03_kills` plays.
"""

from functools import partial

import perdure
from tests.promises import works
from tests.promises.promise import Promise
from tests.promises.works import Work
from tests.support import contents, said

SESSIONS = ("one", "two", "three")


def prepare(store: perdure.Store) -> None:
    for name in SESSIONS[:2]:  # The third is made by the batch.
        store.session(name).append(said("before"), id="before")


def act(store: perdure.Store) -> None:
    """Write a batch, a turn that ends in one, and one of several sessions; again, to no effect."""
    session = store.session("one")
    with session.batch(id="batch") as batch:
        batch.append(said("counted"))
        batch.set("count", 1)
        batch.note({"seen": 1}, topic="seen")
        batch.label("counted")
    with session.turn("question", id="turn") as turn:
        if not turn.ended:
            with turn.batch() as end:
                end.append(said("answer", "assistant"))
                end.set("answers", (session.get("answers") or 0) + 1)
                end.complete()
    with store.batch() as joint:
        for name in SESSIONS:
            joint.session(name).append(said("joint"), id="joint")


def judge(store: perdure.Store) -> str:
    found = [store.session(name) for name in SESSIONS]
    session = found[0]
    texts = contents(session)
    parts = ["counted" in texts, session.get("count") == 1, bool([*session.notes("seen")])]
    parts.append("counted" in session.labels)
    state = session.find_turn("turn").state if "question" in texts else "new"
    ends = ["answer" in texts, session.get("answers") == 1, state == "completed"]
    joint = ["joint" in contents(one) for one in found]
    for what, each in (("batch", parts), ("end of the turn", ends), ("joint batch", joint)):
        if len({*each}) > 1:
            return f"half of the {what} is there: {each}"
    act(store)
    expected = ["before", "counted", "question", "answer", "joint"]
    again = [contents(store.session(name)) for name in SESSIONS]
    if again != [expected, ["before", "joint"], ["joint"]]:
        return f"done again, the sessions have {again}"
    session = store.session("one")
    values = (session.get("count"), session.get("answers"), len([*session.notes("seen")]))
    return "" if values == (1, 1, 1) else f"done again, the values are {values}"


WORK = Work("batches", prepare, act, judge)
SAYS = "kill -9 of the client or the server leaves all of a batch or none of it"
PROMISE = Promise("P3", SAYS, 500, partial(works.postgres_trials, WORK), "postgres-batches")
