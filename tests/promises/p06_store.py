"""The stores that P6 and P7 damage, and everything that can be read from one, call by call.

The clean store is a file of 68 KB: four sessions, one of them a branch, with turns, labels, values
as deltas, and a fold snapshot in the middle of one. The killed store is the same with a write-ahead
log that a killed process left behind, and a copy of every state that it had acknowledged.
"""

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import perdure
from perdure.core.state import session_state
from perdure.errors import DamagedError, PerdureError, UnavailableError, UsageError, VersionError
from perdure.journal import ids
from perdure.journal.records import Record

ROOT = Path(__file__).parents[2]
SNAPSHOT_EVERY = 4  # Small, so that a store of 68 KB holds snapshots. Readers do not care.
TEXT = "What was said must come back as it was said, or not at all. "
STEPS = [{"step": number, "text": TEXT} for number in range(6)]
LABEL = "tag"
KEY = "plan"
LISTINGS = ("sessions", "labelled")
SALVAGED = "salvaged"
READS = ("resume", "messages", "records", "verify")
DAMAGE = (DamagedError, VersionError, UnavailableError)
"""What reading a damaged store may raise. Opening one that is no store any more: UsageError too."""


class Wrong(NamedTuple):
    """An exception that no caller could expect."""

    error: str


class Salvaged(NamedTuple):
    """What `on_damage` reading gave, and what it said."""

    records: list[Record]
    reported: list[DamagedError]


Answer = Any
"""What a call returned, the PerdureError that it raised, or Wrong."""

Answers = dict[str, Answer]


def build(address: str | Path) -> None:
    """Write the clean store, the same to the byte each time, so that a trial can be repeated."""
    with (
        mock.patch.object(session_state, "SNAPSHOT_EVERY", SNAPSHOT_EVERY),
        mock.patch.object(ids, "_random_bytes", random.Random(6).randbytes),
        perdure.open(address, clock=itertools.count(1_700_000_000).__next__) as store,
    ):
        _fill(store)


def _fill(store: perdure.Store) -> None:
    alpha = store.session("alpha")
    beta = store.session("beta ∂")
    for number, session in enumerate((alpha, beta)):
        # Two values at one position, before a snapshot: only the stream tells whose they are.
        session.append({"role": "user", "content": f"{number} " + TEXT * 38})
        session.set(KEY, {"steps": STEPS, "done": number})
    with alpha.turn("Draft a checklist.", id="turn-1", correlation_id="req-9") as turn:
        turn.append({"role": "assistant", "content": TEXT * 38})
    alpha.set(KEY, {"steps": STEPS, "done": 2})
    alpha.set(KEY, {"steps": STEPS, "done": 3})
    alpha.append({"role": "user", "content": "more"}, {"role": "user", "content": TEXT * 38})
    alpha.label(LABEL, "red")
    branch = alpha.branch("alpha/what-if", at=alpha.position - 2)
    branch.append({"role": "user", "content": "another way " + TEXT * 38}, id="other")
    branch.set(KEY, {"steps": STEPS, "done": True})
    for number in range(SNAPSHOT_EVERY):
        beta.append({"role": "user", "content": f"{number} " + TEXT * 38})
    beta.label(LABEL)
    store.session("gamma").turn("never answered").__enter__()


def build_killed(directory: Path) -> int:
    """Write a store whose last commits are in the log only, as a killed process leaves it.

    Returns how many states it had acknowledged; `acked(n)` names their copies.
    """
    build(directory / "store.db")
    code = f"from tests.promises import p06_store as s; s.die_writing({str(directory)!r})"
    paths = os.pathsep.join(map(str, (ROOT, Path(perdure.__file__).parents[1])))
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, check=False
    )
    if done.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the writer ended by itself: {done.returncode}")
    return next(n for n in itertools.count() if not acked(directory, n).exists())


def die_writing(name: str) -> None:
    """Append, keep a copy of the files after each answer, and die."""
    directory = Path(name)
    store = perdure.open(directory / "store.db")
    _keep_copy(directory, 0)
    session = store.session("alpha")
    session.append({"role": "user", "content": "late"}, {"role": "user", "content": "later"})
    _keep_copy(directory, 1)
    session.set(KEY, "short")
    _keep_copy(directory, 2)
    store.session("late").append({"role": "user", "content": TEXT})
    _keep_copy(directory, 3)
    os.kill(os.getpid(), signal.SIGKILL)


def acked(directory: Path, number: int) -> Path:
    """The copy of a killed store as it was when an append had returned."""
    return directory / f"acked-{number}" / "store.db"


def _keep_copy(directory: Path, number: int) -> None:
    to = acked(directory, number).parent
    to.mkdir()
    for file in directory.glob("store.db*"):
        shutil.copy(file, to)


@contextlib.contextmanager
def opened(address: str | Path) -> Iterator[perdure.Store]:
    """Open a store for reading; what closing a damaged one raises does not hide the rest."""
    store = perdure.open(address)
    try:
        yield store
    finally:
        with contextlib.suppress(*DAMAGE):
            store.close()


def names(address: str | Path) -> list[str]:
    """The sessions of a good store."""
    with opened(address) as store:
        return [head.id for head in store.sessions()]


def read_all(address: str | Path, sessions: Sequence[str]) -> Answers:
    """Ask a store everything it can be asked, and return the answer to each question."""
    answers: Answers = {}
    try:
        with opened(address) as store:
            _ask(answers, "sessions", lambda: list(store.sessions()))
            _ask(answers, "labelled", lambda: list(store.sessions(labels=[LABEL])))
            for name in sessions:
                _read_session(store, name, answers)
                _ask(answers, f"{name}: {SALVAGED}", lambda name=name: _salvage(store, name))  # type: ignore[misc]
    except (*DAMAGE, UsageError) as error:
        answers["open"] = error
    except Exception as error:  # noqa: BLE001 - a driver's error that escaped is the finding
        answers["open"] = Wrong(repr(error))
    return answers


def _salvage(store: perdure.Store, name: str) -> Salvaged:
    reported: list[DamagedError] = []
    return Salvaged(list(store.records(name, on_damage=reported.append)), reported)


def _read_session(store: perdure.Store, name: str, answers: Answers) -> None:
    session = _ask(answers, f"{name}: resume", lambda: store.resume(name))
    if not isinstance(session, perdure.Session):
        return
    answers[f"{name}: resume"] = (
        session.position,
        len(session),
        session.last_message,
        session.labels,
        [turn.id for turn in session.interrupted],
        session.values.keys(),
    )
    _ask(answers, f"{name}: messages", session.messages)
    _ask(answers, f"{name}: records", lambda: list(session.records()))
    _ask(answers, f"{name}: verify", session.verify)
    if KEY in session.values.keys():  # noqa: SIM118 - not a dict
        _ask(answers, f"{name}: value", lambda: session.get(KEY))
        _ask(answers, f"{name}: first", lambda: session.get(KEY, version=1))


def _ask(answers: Answers, question: str, ask: Callable[[], Any]) -> Any:
    try:
        answer = ask()
    except DAMAGE as error:
        answer = error
    except Exception as error:  # noqa: BLE001 - an error of another kind is the finding
        answer = Wrong(repr(error))
    answers[question] = answer
    return answer


def faults(answers: Answers, good: Answers) -> list[str]:
    """Return what is neither the good answer nor a typed error.

    A listing is an index, and says nothing of what is in a session. It may be wrong about one only
    if opening, reading or verifying that one raises.
    """
    if "open" in answers:
        error = answers["open"]
        return [f"open: {error.error}"] if isinstance(error, Wrong) else []
    return [
        f"{question}: {_short(answer)} instead of {_short(good.get(question))}"
        for question, answer in answers.items()
        if not isinstance(answer, PerdureError)
        and not isinstance(answer, Salvaged)
        and answer != good.get(question)
        and not (question in LISTINGS and _found_out(answers, answer, good[question]))
    ]


def _found_out(answers: Answers, listed: Answer, good: Answer) -> bool:
    if isinstance(listed, Wrong):
        return False
    concerned = {head.id for head in listed if head not in good}
    concerned |= {head.id for head in good if head not in listed}
    return all(
        any(isinstance(answers.get(f"{name}: {question}"), PerdureError) for question in READS)
        for name in concerned
    )


def silent(answers: Answers) -> bool:
    """Whether nothing was raised at all."""
    return not any(isinstance(answer, PerdureError) for answer in answers.values())


def _short(answer: Answer) -> str:
    text = repr(answer)
    return text if len(text) < 300 else text[:300] + "…"
