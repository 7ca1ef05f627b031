"""Bodies: what is sealed opens to the same payload."""

import pytest

from perdure.journal.cipher import Place, PlainCipher


def no_place() -> Place:
    return Place(b"", 0, "", "")


@pytest.mark.parametrize("given", [[], ["", "mine"], ["mine", ""]])
def test_bodies_open_to_their_payloads_and_their_callers_ids(given: list[str]) -> None:
    plain = PlainCipher()
    payloads = [b'{"a":1}', b'{"b":2}']
    bodies = plain.seal(payloads, given, ())
    opened = [plain.open(body, no_place) for body in bodies]
    assert opened == [*zip(payloads, given or ["", ""], strict=True)]


@pytest.mark.parametrize("wrong", [b'""', b'".generated"'])
def test_a_body_with_an_id_that_no_caller_can_give_is_refused(wrong: bytes) -> None:
    plain = PlainCipher()
    (body,) = plain.seal([b"{}"], ["mine"], ())
    with pytest.raises(ValueError, match="not a caller's id"):
        plain.open(body.replace(b'"mine"', wrong), no_place)


def test_equal_payloads_of_one_entry_have_different_bodies() -> None:
    bodies = PlainCipher().seal([b"{}"] * 100, (), ())
    assert len({*bodies}) == 100
    assert {*map(len, bodies)} == {len(b'["",{}]') + 22}
