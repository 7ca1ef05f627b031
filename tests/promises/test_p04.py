"""P4, quick: a sample of torn appends, and proof that one that is shown in part is seen."""

from pathlib import Path

import pytest

from perdure.backends.files import recovery
from tests.promises import p04_tears
from tests.promises.kinds import FILES, KINDS, Kind
from tests.promises.p04_tears import FILLINGS, tear, torn
from tests.promises.promise import Promise, sample

pytestmark = [pytest.mark.durability, pytest.mark.slow]

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


@pytest.mark.parametrize("promise", p04_tears.PROMISES, ids=lambda promise: promise.key)
def test_a_torn_append_is_there_as_a_whole_or_not_at_all(promise: Promise) -> None:
    assert sample(promise, seed=1, seconds=0.5, least=60) >= 60


@each_kind
def test_the_whole_append_is_there_and_one_byte_less_is_nothing(
    kind: Kind, directory: Path
) -> None:
    found = torn(kind, directory)
    size = len(found.added)
    assert len(found.later) == len(found.texts) + 5
    for filling in FILLINGS:
        for bytes_left in (0, 1, size - 1, size):
            assert not tear(found, directory, bytes_left, filling).failure
    wrong = found._replace(later=found.texts)
    assert "messages, not" in tear(wrong, directory, size, "nothing").failure


def test_bytes_that_are_torn_are_kept_in_a_file_of_their_own(directory: Path) -> None:
    found = torn(FILES, directory)
    for size in (1, 100, len(found.added) - 1):
        assert not tear(found, directory, size, "nothing").failure
        (aside,) = directory.rglob("*.torn-1")
        assert aside.read_bytes() == found.added[:size]


def test_a_torn_batch_that_is_taken_for_a_whole_one_is_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = torn(FILES, directory)
    monkeypatch.setattr(
        recovery.UnsyncedTail, "_whole", lambda tail, file, *_: file.batch(tail.end)
    )
    assert tear(found, directory, len(found.added) - 9, "zeros").failure
