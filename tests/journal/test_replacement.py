"""Another history, or damage: what a store that lost the tip of a session looks like."""

import contextlib
from collections.abc import Callable

import pytest

import perdure
from perdure.backends.digests import digest_of
from perdure.backends.memory import MemoryBackend
from perdure.errors import DamagedError, HistoryReplacedError
from perdure.journal.chain import ChainTip, StreamIdentity
from perdure.journal.replacement import find_replacement
from tests.support import said

TIP = 5


class History:
    """A store with a session of five records, and what was known of it."""

    def __init__(self) -> None:
        self.backend = MemoryBackend()
        self.store = perdure.open(self.backend)
        self._write("mine", TIP)
        session = self.store.session("s")
        self.tip, self.stream = session._replica.tip, session._replica.history.stream

    def _write(self, who: str, number: int) -> None:
        session = self.store.session("s")
        for at in range(number):
            session.append(said(f"{who} {at}"))

    def cut(self, last: int) -> None:
        stream = self.backend._streams["s"]
        del stream.entries[last:]
        stream.digest = digest_of(stream.entries[-1].header)

    def continue_by_others(self, number: int) -> None:
        self._write("theirs", number)

    def find(self) -> HistoryReplacedError | None:
        session = self.store.session("other")
        return session._handle.driver.run(find_replacement(self.stream, self.tip))


@pytest.fixture
def history() -> History:
    return History()


@pytest.mark.parametrize(("last", "more"), [(4, 0), (1, 0), (4, 1), (2, 3), (4, 2), (1, 9)])
def test_a_store_that_was_put_back_has_another_history(
    history: History, last: int, more: int
) -> None:
    history.cut(last)
    history.continue_by_others(more)
    error = history.find()
    assert error is not None
    assert (error.stream, error.position, error.head) == ("s", TIP, last + more)


def test_a_store_without_the_session_has_another_history(history: History) -> None:
    assert history.backend.remove("s", digest=history.backend._streams["s"].digest)
    error = history.find()
    assert error is not None
    assert error.head == 0


@pytest.mark.parametrize("more", [0, 1, 9])
def test_a_store_that_has_the_tip_has_the_same_history(history: History, more: int) -> None:
    history.continue_by_others(more)
    assert history.find() is None


def test_a_deletion_is_part_of_the_history(history: History) -> None:
    history.store.delete("s")
    assert history.find() is None
    history.continue_by_others(2)
    assert history.find() is None


def test_a_deletion_in_another_stream_is_not(history: History) -> None:
    history.stream = StreamIdentity("s", "another stream")
    history.store.delete("s")
    assert history.find() is not None


def alter_tip(history: History) -> None:
    entries = history.backend._streams["s"].entries
    entries[TIP - 1] = entries[TIP - 1]._replace(header=b"x" + entries[TIP - 1].header)


def alter_head(history: History) -> None:
    history.backend._streams["s"].digest = "A" * 43 + "="


def lose_tip(history: History) -> None:
    del history.backend._streams["s"].entries[TIP - 1]


def lose_beginning(history: History) -> None:
    del history.backend._streams["s"].entries[:TIP]


def alter_successor(history: History) -> None:
    entries = history.backend._streams["s"].entries
    entries[TIP] = entries[TIP]._replace(header=b"x" + entries[TIP].header)


@pytest.mark.parametrize(
    ("damage", "more"),
    [
        (alter_tip, 0),
        (alter_tip, 3),
        (alter_head, 0),
        (lose_tip, 0),
        (lose_beginning, 3),
        (alter_successor, 3),
    ],
)
def test_a_store_that_contradicts_itself_is_damaged_and_has_no_other_history(
    history: History, damage: Callable[[History], None], more: int
) -> None:
    history.continue_by_others(more)
    damage(history)
    with contextlib.suppress(DamagedError):  # As whoever asks does: the first error says more.
        assert history.find() is None


def test_entries_without_a_head_are_damage(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history.backend, "streams", lambda **_: iter(()))
    assert history.find() is None


def test_a_tip_of_which_only_the_position_is_known_is_another_one(history: History) -> None:
    history.tip = ChainTip(TIP, "A" * 43 + "=")
    assert history.find() is not None
