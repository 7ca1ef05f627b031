"""Stores full of everything that a store can hold, made by short scripts, and what they show."""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st

import perdure
from perdure.backends.files.backend import FilesBackend
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Backend, Entry, Head
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.errors import InUseError, NotFoundError, UsageError
from perdure.journal.copying.plan import Problem
from perdure.journal.copying.rounds import CopyResult
from tests.support import said

NAMES = ("a", "a/1", "b", "c", "é")
LONG = "a long sentence, " * 40


class Action(NamedTuple):
    """One thing that somebody does with a store."""

    kind: str
    which: int
    number: int


def _say(store: perdure.Store, name: str, number: int) -> None:
    store.session(name).append(said(f"message {number}"))


def _batch(store: perdure.Store, name: str, number: int) -> None:
    store.session(name).append(*[said(f"{number}.{part} {LONG}") for part in range(1 + number % 5)])


def _value(store: perdure.Store, name: str, number: int) -> None:
    store.session(name).set("plan", {"step": number, "why": LONG})


def _turn(store: perdure.Store, name: str, number: int) -> None:
    with store.session(name).turn(f"question {number}") as turn:
        turn.append(said("an answer", "assistant"))


def _cut_turn(store: perdure.Store, name: str, number: int) -> None:
    store.session(name).turn(f"question {number}").__enter__()


def _label(store: perdure.Store, name: str, number: int) -> None:
    session = store.session(name)
    if len(session):
        session.label(f"tag{number % 3}")


def _branch(store: perdure.Store, name: str, number: int) -> None:
    session = store.session(name)
    if session.position:
        session.branch(f"{name}>{number % 3}").append(said(f"what if {number}"))


def _delete(store: perdure.Store, name: str, number: int) -> None:
    store.delete(name, reason=f"reason {number}")


def _many(store: perdure.Store, name: str, number: int) -> None:
    """More than a page, and a fold snapshot."""
    session = store.session(name)
    for part in range(3):
        session.append(*[said(f"{number}.{part}.{one}") for one in range(110)])


ACTIONS: dict[str, Callable[[perdure.Store, str, int], None]] = {
    "say": _say,
    "batch": _batch,
    "value": _value,
    "turn": _turn,
    "cut turn": _cut_turn,
    "label": _label,
    "branch": _branch,
    "delete": _delete,
    "many": _many,
}

REFUSED: dict[str, tuple[type[Exception], ...]] = {
    "branch": (UsageError, NotFoundError),
    "delete": (InUseError, NotFoundError),
}

actions = st.builds(Action, st.sampled_from([*ACTIONS]), st.integers(0, 7), st.integers(0, 99))
scripts = st.lists(actions, min_size=1, max_size=25)


def act(store: perdure.Store, script: Sequence[Action]) -> None:
    """Carry out a script; what is refused (a taken name, a parent in use) is left out."""
    for kind, which, number in script:
        names = sorted({*NAMES, *(head.id for head in store.sessions())})
        with contextlib.suppress(*REFUSED.get(kind, ())):
            ACTIONS[kind](store, names[which % len(names)], number)


class Shown(NamedTuple):
    """Everything that a store shows of a session."""

    head: Head
    entries: list[Entry]
    public: Any


def shown(backend: Backend) -> dict[str, Shown]:
    """Return what a store shows, byte by byte and through the public views."""
    store = perdure.open(backend)
    found = {}
    for head in list(backend.streams()):
        found[head.stream] = Shown(head, list(backend.read(head.stream)), _public(store, head))
    return found


def stored(backend: Backend) -> dict[str, tuple[Head, list[Entry]]]:
    """Return what a store holds, byte by byte: all that it can show is made of it."""
    return {head.stream: (head, list(backend.read(head.stream))) for head in backend.streams()}


def _public(store: perdure.Store, head: Head) -> Any:
    try:
        records = [*store.records(head.stream, on_damage=lambda _: None)]
    except NotFoundError:
        return None
    if "deleted" in head.labels:
        return records
    session = store.resume(head.stream)
    keys = session.values.keys()
    values = {key: session.get(key) for key in keys}
    return (
        records,
        session.messages(),
        values,
        session.labels,
        repr(session.interrupted),
        session.verify(),
    )


def foreseen(copied: CopyResult) -> Sequence[Problem]:
    """Return the problems of a copy: nothing but deletions, and branches that wait for one."""
    for problem in copied.problems:
        assert problem.kind in {"conflict", "past"}, problem
        assert problem.kind == "past" or "the source has deleted it" in problem.reason, problem
    return copied.problems


def obey(target: Backend, copied: CopyResult) -> None:
    """Delete in the target by hand what a copy says that can not be compared any more."""
    store = perdure.open(target)
    named = set[str]()
    for problem in foreseen(copied):
        named |= {*re.findall(r"perdure\.open\(TARGET\)\.delete\('(.*?)'\)", problem.reason)}
    for name in named:
        with contextlib.suppress(InUseError):  # A branch's turn comes before.
            store.delete(name)


def settled(source: Backend | str, target: Backend) -> CopyResult:
    """Copy for the last time, and do what it says until nothing is left."""
    for _ in range(len(NAMES) * 2):
        copied = perdure.copy(source, target, final=True)
        if copied.complete:
            return copied
        obey(target, copied)
    raise AssertionError("what a copy says does not help")


@contextlib.contextmanager
def opened(kind: str, path: Path) -> Iterator[Backend]:
    """Open a store of a kind for a test."""
    backend: Backend
    if kind == "sqlite":
        backend = SqliteBackend(path / "store.db")
    elif kind == "files":
        backend = FilesBackend(path / "store")
    else:
        backend = MemoryBackend()
    try:
        yield backend
    finally:
        backend.close()


KINDS = ("memory", "sqlite", "files")
__all__ = [
    "ACTIONS",
    "KINDS",
    "Action",
    "act",
    "actions",
    "foreseen",
    "obey",
    "opened",
    "scripts",
    "settled",
    "shown",
    "stored",
]
