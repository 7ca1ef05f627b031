"""Bodies: what is sealed opens to the same payload."""

from perdure.journal.cipher import PlainCipher


def test_a_body_opens_to_its_payload() -> None:
    plain = PlainCipher()
    assert plain.open(plain.seal(b'{"a":1}', b""), b"") == b'{"a":1}'
