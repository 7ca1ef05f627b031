"""Compare everything that a session shows with the predictions of the model."""

# ruff: noqa: S101 - a state machine asserts
from perdure.errors import NotFoundError
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
    assert session.messages() == state.messages
    assert session.messages(last=2) == state.messages[-2:]
    for key in state.values:
        check_value(session, key, state)
    session.verify()


def check_value(session: Session, key: str, state: ModelState) -> None:
    """Check every version of a value."""
    versions = state.values[key]
    newest = state.value(key)
    assert session.get(key, DELETED_VALUE) == newest
    assert session.values.version(key) == len(versions)
    history = [
        (version.version, version.position, version.deleted)
        for version in session.values.history(key)
    ]
    assert history == [
        (number, position, value is DELETED_VALUE)
        for number, (position, value) in enumerate(versions, start=1)
    ]
    for number, (_, value) in enumerate(versions, start=1):
        try:
            assert session.get(key, version=number) == value
        except NotFoundError:
            assert value is DELETED_VALUE


def check_listing(driver: SessionDriver) -> None:
    """Check that listings by prefix and by label return exactly the expected sessions."""
    listed = driver.store.sessions(prefix=driver.prefix)
    heads = {head.stream.removeprefix(driver.prefix): head for head in listed}
    assert set(heads) == set(driver.lives)
    for name, life in driver.lives.items():
        if not life.torn:  # a torn append leaves its labels on the head
            assert heads[name].labels == _labels(ModelState(life.records))
    for label in {label for head in heads.values() for label in head.labels}:
        listed = driver.store.sessions(prefix=driver.prefix, labels=[label])
        assert [head.stream for head in listed] == [
            head.stream for head in heads.values() if label in head.labels
        ]


def check_touched(driver: SessionDriver) -> None:
    """Check every touched session as a newly opened handle sees it, and all open handles."""
    for name in sorted(driver.touched & set(driver.lives)):
        session = driver.store.resume(driver.prefix + name)
        state = ModelState(driver.lives[name].records)
        check_session(session, state)
        driver.log.append(f"{name}: {session.messages()} {sorted(session.labels)}")
    driver.touched.clear()
    for handle in driver.handles:
        if driver.is_current(handle):
            check_handle(handle)
    check_listing(driver)
