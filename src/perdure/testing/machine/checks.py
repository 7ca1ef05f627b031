"""Compare everything that a session shows with what the model says."""

# ruff: noqa: S101 - a machine asserts
from perdure.errors import NotFoundError
from perdure.sync.session import Session
from perdure.testing.machine.driver import Driving, Opened
from perdure.testing.machine.model import GONE, State


def check_handle(opened: Opened) -> None:
    """What a handle shows without reading is what it has seen."""
    session, state = opened.session, opened.life.seen(opened.session.position)
    assert len(session) == len(state.messages)
    assert session.last == (state.messages[-1] if state.messages else None)
    unborn = session.position == opened.life.begin > 0
    assert session.labels == ({"deleted"} if unborn else _labels(state))
    assert {turn.id for turn in session.interrupted} == set(state.turns) - opened.own
    assert set(session.values.keys()) == {
        key for key in state.values if state.value(key) is not GONE
    }


def _labels(state: State) -> set[str]:
    return state.labels | {"turn-open"} if state.turns else state.labels


def check_session(session: Session, state: State) -> None:
    """What a session reads is what was written, and all of it is in order."""
    assert session.messages() == state.messages
    assert session.messages(last=2) == state.messages[-2:]
    for key in state.values:
        check_value(session, key, state)
    session.verify()


def check_value(session: Session, key: str, state: State) -> None:
    """Each version is what it was."""
    versions = state.values[key]
    newest = state.value(key)
    assert session.get(key, GONE) == newest
    assert session.values.version(key) == len(versions)
    history = [(one.version, one.position, one.deleted) for one in session.values.history(key)]
    assert history == [
        (number, position, value is GONE)
        for number, (position, value) in enumerate(versions, start=1)
    ]
    for number, (_, value) in enumerate(versions, start=1):
        try:
            assert session.get(key, version=number) == value
        except NotFoundError:
            assert value is GONE


def check_listing(driving: Driving) -> None:
    """Sessions are found by prefix and by label, and no others."""
    found = driving.store.sessions(prefix=driving.prefix)
    heads = {head.stream.removeprefix(driving.prefix): head for head in found}
    assert set(heads) == set(driving.lives)
    for name, life in driving.lives.items():
        if not life.torn:  # A torn append has left its labels on the head.
            assert heads[name].labels == _labels(State(life.records))
    for label in {label for head in heads.values() for label in head.labels}:
        listed = driving.store.sessions(prefix=driving.prefix, labels=[label])
        assert [head.stream for head in listed] == [
            head.stream for head in heads.values() if label in head.labels
        ]


def check_touched(driving: Driving) -> None:
    """Every session that something was done with, as somebody sees it who opens it now."""
    for name in sorted(driving.touched & set(driving.lives)):
        session = driving.store.resume(driving.prefix + name)
        state = State(driving.lives[name].records)
        check_session(session, state)
        driving.log.append(f"{name}: {session.messages()} {sorted(session.labels)}")
    driving.touched.clear()
    for opened in driving.handles:
        if driving.joined(opened):
            check_handle(opened)
    check_listing(driving)
