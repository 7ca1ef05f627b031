"""Compare what sessions, handles and listings show with the model."""

from typing import Any

from perdure.errors import CompactedError, NotFoundError
from perdure.sync.session import Session
from perdure.testing.machine.driver import OpenHandle, SessionDriver
from perdure.testing.machine.model import DELETED_VALUE, ModelState


def check_handle(handle: OpenHandle) -> None:
    """Check that the properties of a handle match the records it has seen."""
    session, state = handle.session, handle.life.seen(handle.session.position)
    assert len(session) == len(state.messages)
    assert session.last_message == (state.messages[-1] if state.messages else None)
    not_begun = session.position == handle.life.begin > 0
    assert session.labels == ({"deleted"} if not_begun else _labels(state))
    assert {turn.id for turn in session.interrupted} == set(state.turns) - handle.own_turns
    assert set(session.values.keys()) == {
        key for key in state.values if state.value(key) is not DELETED_VALUE
    }


def _labels(state: ModelState) -> set[str]:
    return state.labels | {"turn-open"} if state.turns else state.labels


def check_session(session: Session, state: ModelState) -> None:
    """Check that a session reads back everything that was written, and verify its chain."""
    assert state.first in (0, session.complete_from)
    assert session.messages() == state.messages
    assert session.messages(last=2) == state.messages[-2:]
    for key in state.values:
        check_value(session, key, state)
    for topic, notes in state.topics.items():
        if not topic:
            continue
        contents: list[tuple[int, Any]] = [
            (one.position, one.content) for one in session.notes(topic)
        ]
        dropped = sum(position < state.first for position, _ in notes)
        kept = notes[max(dropped - 1, 0) :]  # The newest one before the cut is carried.
        assert [(position, note.data) for position, note in reversed(contents)] == kept
    session.verify()


def check_value(session: Session, key: str, state: ModelState) -> None:
    """Check every version of a value."""
    versions = state.values[key]
    assert session.get(key, DELETED_VALUE) == state.value(key)
    assert session.values.version(key) == len(versions)
    history = list(session.values.history(key))
    kept = [number for number, one in enumerate(versions, 1) if one[0] >= state.first]
    assert [version.version for version in history][-len(kept) :] == kept or not kept
    for version in history:
        position, value = versions[version.version - 1]
        assert version.position == position
        assert version.deleted == (value is DELETED_VALUE)
    for number, (position, value) in enumerate(versions, 1):
        try:
            assert session.get(key, version=number) == value
        except CompactedError:
            assert position < state.first
        except NotFoundError:
            assert value is DELETED_VALUE


def check_listing(driver: SessionDriver) -> None:
    """Check that listings by prefix and by label return exactly the expected sessions."""
    heads = driver.heads()
    assert set(heads) == set(driver.lives)
    for name, life in driver.lives.items():
        assert heads[name].labels == _labels(life.state)
        assert heads[name].fields == life.state.fields
    for label in {label for head in heads.values() for label in head.labels}:
        listed = driver.store.sessions(prefix=driver.prefix, labels=[label])
        assert [head.id for head in listed] == [
            head.id for head in heads.values() if label in head.labels
        ]
    for field in {field for head in heads.values() for field in head.fields.items()}:
        listed = driver.store.sessions(prefix=driver.prefix, where=dict([field]))
        assert [head.id for head in listed] == [
            head.id for head in heads.values() if field in head.fields.items()
        ]


def check_touched(driver: SessionDriver) -> None:
    """Check every touched session as a newly opened handle sees it, and all open handles."""
    for name in sorted(driver.touched & set(driver.lives)):
        session = driver.store.resume(driver.prefix + name)
        state = driver.lives[name].state
        check_session(session, state)
        driver.log.append(f"{name}: {session.messages()} {sorted(session.labels)}")
    driver.touched.clear()
    for handle in driver.handles:
        if driver.is_current(handle):
            check_handle(handle)
    check_listing(driver)
