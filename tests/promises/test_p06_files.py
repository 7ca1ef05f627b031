"""P6 and P7 for files, a seeded sample: damage is never returned as data, the rest can be read."""

import random
from collections.abc import Iterator
from unittest import mock

import pytest

from perdure.backends.files import stream_file
from perdure.backends.files.format import EntryLayout
from perdure.journal import chain
from tests.promises import p06_files, places
from tests.promises import p06_store as stores
from tests.promises.p06_files import Bytes, Directory, Mutation
from tests.promises.promise import Trial, sample
from tests.promises.test_p06 import _unchecked

pytestmark = [pytest.mark.durability, pytest.mark.slow]


@pytest.fixture(scope="module")
def damaged() -> Iterator[Directory]:
    with places.fast_directory() as directory:
        yield Directory(directory)


def require(trial: Trial) -> None:
    assert not trial.failure, f"{trial.what}: {trial.failure}"


def test_a_sample_of_everything_holds() -> None:
    sample(p06_files.PROMISE, seed=6, seconds=1, least=30)


def test_the_store_holds_what_the_trials_are_about(damaged: Directory) -> None:
    """The twin: undamaged, nothing is raised, and there is something of each sort to damage."""
    assert stores.silent(damaged.answers)
    require(damaged.trial(Mutation("nothing", {}, told=False, whole=True)))
    assert [len(lines) > 2 for lines in damaged.lines.values()] == [True] * 4
    *files, moves, losses = damaged.mutations()
    assert sum(map(len, files)) > 30_000
    assert len(moves) > 200
    assert len(losses) == 2 * len(damaged.content)


def test_a_damaged_first_line_costs_nothing_that_is_read_by_choice(damaged: Directory) -> None:
    draw = random.Random(1)
    for sort in damaged.mutations():
        if isinstance(sort, Bytes):
            first = [sort[3 * at] for at in range(min(len(sort) // 3, 250))]
            some = [mutation for mutation in first if mutation.whole and mutation.told]
            for mutation in draw.sample(some, min(4, len(some))):
                require(damaged.trial(mutation))


def test_a_file_that_is_cut_gives_back_all_that_is_whole(damaged: Directory) -> None:
    name, lines = max(damaged.lines.items(), key=lambda one: len(one[1]))
    content = damaged.content[name]
    mutations = Bytes(name, content, lines)
    for line in random.Random(2).sample(lines[1:], 6):
        require(damaged.trial(mutations[3 * (line.at + len(line.text) // 2) + 2]))


def test_whole_files_that_are_lost_or_emptied_are_told_of(damaged: Directory) -> None:
    for mutation in damaged.mutations()[-1]:  # type: ignore[union-attr]
        require(damaged.trial(mutation))


def test_a_reader_that_does_not_check_is_found(damaged: Directory) -> None:
    """The twin: were digests taken for right, changed bytes would come through."""

    def unchecked(_: EntryLayout, stored: bytes) -> bytes:
        return stored

    draw, failures = random.Random(6), 0
    files = [sort for sort in damaged.mutations() if isinstance(sort, Bytes)]
    with (
        mock.patch.object(stream_file, "decode_body", unchecked),
        mock.patch.object(stream_file, "decode_header", unchecked),
        mock.patch.object(chain, "verify_entry", _unchecked),
    ):
        for _ in range(40):
            sort = draw.choice(files)
            failures += bool(damaged.trial(sort[3 * draw.randrange(len(sort) // 3)]).failure)
    assert failures > 5
