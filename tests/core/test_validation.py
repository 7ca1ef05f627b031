"""Ids from any text: valid everywhere, readable, the same again, never those of another text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure.core.validation import require_record_id, require_session_id
from perdure.errors import UsageError

EMPTY = "~e3b0c44298fc1c149afbf4c8996fb924"
TEXTS = st.text(st.characters(exclude_categories=[]), max_size=300)  # Surrogates and controls too.


@pytest.mark.parametrize("text", ["claim-4711", "x/../y z", "user@example.org/chat", "é" * 64])
def test_a_valid_id_stays_as_it_is(text: str) -> None:
    assert perdure.safe_id(text) == text


@pytest.mark.parametrize(
    ("text", "readable"),
    [
        ("", ""),
        ("line one\nline two", "line one_line two"),
        ("nul\0", "nul_"),
        (".generated", "generated"),
        ("...", ""),
        ("lone \ud800", "lone _"),
        ("x" * 1000, "x" * 95),
        ("é" * 1000, "é" * 47),
        ("looks done" + EMPTY, "looks done" + EMPTY),
    ],
)
def test_any_other_text_is_made_readable_and_gets_a_digest(text: str, readable: str) -> None:
    made = perdure.safe_id(text)
    assert made[:-33] == readable
    assert made[-33] == "~"
    assert made != text
    assert require_record_id(made) == require_session_id(made) == made


def test_it_never_changes() -> None:
    """Sessions are found again under these ids by later versions."""
    assert perdure.safe_id("") == EMPTY
    assert perdure.safe_id("a\0b") == "a_b~59b271ae1bbcb1d31d41929817f4b16f"


@given(TEXTS)
def test_every_text_has_a_valid_id(text: str) -> None:
    made = perdure.safe_id(text)
    assert require_record_id(made) == require_session_id(made) == made == perdure.safe_id(text)


@given(st.lists(TEXTS, max_size=20))
def test_two_texts_have_two_ids(texts: list[str]) -> None:
    given_and_made = {*texts, *map(perdure.safe_id, texts)}  # Ids that were made, as texts again.
    assert len({*map(perdure.safe_id, given_and_made)}) == len(given_and_made)


def test_only_a_text_has_an_id() -> None:
    with pytest.raises(UsageError, match="must be str, not int"):
        perdure.safe_id(5)  # type: ignore[arg-type]
