"""P26, a sample of hostile ids, and proof that one that makes a file elsewhere is seen."""

import hashlib
from pathlib import Path

import pytest

import perdure
from perdure.backends.files import stream_file
from tests.promises import p26_names, places
from tests.promises.kinds import FILES
from tests.promises.p26_names import Look, block
from tests.promises.promise import Promise, sample

pytestmark = [pytest.mark.durability, pytest.mark.slow]


@pytest.mark.parametrize("promise", p26_names.PROMISES, ids=lambda promise: promise.key)
def test_any_text_is_an_id_and_makes_no_file_outside(promise: Promise) -> None:
    assert sample(promise, seed=1, seconds=0.5, least=100) >= 100


def test_a_file_that_does_not_belong_there_is_seen() -> None:
    with places.fast_directory() as directory:
        here = directory / "here"
        here.mkdir()
        look = Look(FILES, directory)
        with perdure.open(FILES.address(here)) as store:
            store.session("a").append({"role": "user", "content": "a"})
        assert look.strange() == ""
        (here / "store" / "strange").touch()
        assert "strange" in look.strange()
        (directory / "outside").touch()
        assert "outside" in look.strange()


def test_ids_that_are_taken_for_each_other_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def folded(name: bytes) -> str:
        return hashlib.sha256(name.decode().casefold().encode()).hexdigest()

    with places.fast_directory() as directory:
        with perdure.open(FILES.address(directory)) as store:
            assert [wrong for _, wrong in block(store, ["a", "A"], set()) if wrong] == []
        monkeypatch.setattr(stream_file, "file_stem", folded)
        other = Path(directory, "other")
        other.mkdir()
        with (
            perdure.open(FILES.address(other)) as store,
            pytest.raises(perdure.PerdureError, match="names another stream"),
        ):
            list(block(store, ["a", "A"], set()))
