"""Bodies: what is sealed opens to the same payload."""

import pytest

from perdure.journal.cipher import NO_PLACE, PlainCipher


@pytest.mark.parametrize("given", ["", "mine"])
def test_a_body_opens_to_its_payload_and_its_callers_id(given: str) -> None:
    plain = PlainCipher()
    body = plain.seal(b'{"a":1}', given, NO_PLACE)
    assert plain.open(body, lambda: NO_PLACE) == (b'{"a":1}', given)
