"""Reading back what was written: what a user can switch up."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Append, Entry, Outcome
from perdure.errors import DamagedError
from tests.support import contents, said


class Lying(MemoryBackend):
    """Says *stored* and stores something else, from the second append on."""

    def __init__(self, lie: Callable[["Lying"], None]) -> None:
        super().__init__()
        self.lie = lie
        self.calls = 0

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        outcomes = super().append(appends)
        self.calls += 1
        if self.calls > 1:
            self.lie(self)
        return outcomes

    @property
    def entries(self) -> list[Entry]:
        return self._streams["s"].entries


def lose(store: Lying) -> None:
    store.entries.pop()


def alter(store: Lying) -> None:
    store.entries[-1] = store.entries[-1]._replace(body=b"other")


def forget_head(store: Lying) -> None:
    store._streams["s"].digest = "other"


@pytest.mark.parametrize("lie", [lose, alter, forget_head])
def test_a_store_that_does_not_keep_what_it_stored_is_found_out_at_once(
    lie: Callable[[Lying], None],
) -> None:
    session = perdure.open(Lying(lie), verify_writes=True).session("s")
    session.append(said("first"))
    with pytest.raises(DamagedError, match="'s' entry 3"):
        session.append(said("a"), said("b"))
    careless = perdure.open(Lying(lie)).session("s")
    careless.append(said("first"))
    careless.append(said("a"), said("b"))


def test_an_honest_store_passes(tmp_path: Path) -> None:
    with perdure.open(tmp_path / "a.db", verify_writes=True) as store:
        session = store.session("s")
        with session.turn("question") as turn:
            turn.append(said("answer", "assistant"), said("more", "assistant"))
        session.set("plan", {"step": 1})
        assert contents(store.session("s")) == ["question", "answer", "more"]
