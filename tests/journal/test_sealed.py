"""The suite `sealed`, by vectors and by its definition, computed another way."""

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from perdure.errors import ErasedError, MissingKeyError, WrongKeyError
from perdure.journal.cipher import Place
from perdure.journal.sealed import SealedCipher, StoreKeys, open_bytes, seal_bytes

VECTORS = json.loads(Path(__file__).with_name("sealed-vectors.json").read_bytes())
STREAM, KEY_ID = "KZrdN3QEnI9wxK37pbTiPg", "k7q9RW50c8jd1fz0OluuxK"
PLACE = Place(b'[1,"sealed"', 3, "message", ".id", "claim-4711", STREAM, KEY_ID)


def hkdf(key: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869, 64 bytes: two blocks of SHA-256."""
    secret = hmac.digest(salt, key, hashlib.sha256)
    first = hmac.digest(secret, info + b"\x01", hashlib.sha256)
    return first + hmac.digest(secret, first + info + b"\x02", hashlib.sha256)


@pytest.mark.parametrize("vector", VECTORS["bodies"], ids=lambda vector: str(vector["name"]))
def test_a_vector_seals_and_opens_as_the_format_says(vector: dict[str, Any]) -> None:
    key, nonce, body = (bytes.fromhex(vector[name]) for name in ("key", "nonce", "body"))
    plain, associated = vector["plain"].encode(), vector["associated"].encode()
    assert seal_bytes(key, nonce, plain, associated) == body
    assert open_bytes(key, body, associated) == plain
    derived = hkdf(key, nonce, b"perdure 1 entry" + associated)
    sealed = AESGCM(derived[:32]).encrypt(bytes(12), plain, associated)
    assert body == nonce + derived[32:] + sealed


@pytest.mark.parametrize("vector", VECTORS["labels"], ids=lambda vector: str(vector["label"]))
def test_a_vector_of_a_label_is_blinded_and_revealed(vector: dict[str, str]) -> None:
    keys = StoreKeys("store", "w", {"w": bytes(32)}, bytes.fromhex(vector["key"]), "memory:")
    assert keys.blind(vector["label"]) == vector["blinded"]
    assert keys.reveal(vector["blinded"]) == vector["label"]


def cipher(tenant: str = "", key: bytes | None = bytes(range(32))) -> SealedCipher:
    keys = StoreKeys("store", "w", {"w": bytes(32)}, bytes(range(64)), "memory:")
    own = SealedCipher(keys, tenant, {"leased"})
    own.add_key(STREAM, KEY_ID, key)
    return own


def sealed(payload: bytes, given: str = "", tenant: str = "") -> bytes:
    (body,) = cipher(tenant).seal([payload], [given] if given else [], [PLACE])
    return body


@pytest.mark.parametrize("given", ["", "mine", 'a "quoted" id', 'ü},"'])
def test_a_body_opens_to_its_payload_and_its_callers_id(given: str) -> None:
    body = sealed(b'{"a":"}"}', given)
    assert cipher().open(body, lambda: PLACE) == (b'{"a":"}"}', given)
    assert body != sealed(b'{"a":"}"}', given)


def test_a_body_that_was_padded_opens_without_its_padding() -> None:
    associated = b'[1,"sealed",[3,"message",".id","","claim-4711"]'
    body = seal_bytes(bytes(range(32)), bytes(24), b'["",{"a":1}]    ', associated)
    assert cipher().open(body, lambda: PLACE) == (b'{"a":1}', "")


@pytest.mark.parametrize(
    "other",
    [
        {"entry": b'[1,"sealed2"'},
        {"position": 4},
        {"kind": "note"},
        {"id": ".id2"},
        {"session": "claim-4712"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_body_opens_in_its_place_only(other: dict[str, Any]) -> None:
    body = sealed(b'{"a":1}')
    with pytest.raises(ValueError, match="place"):
        cipher().open(body, lambda: PLACE._replace(**other))


def test_a_body_opens_for_its_tenant_only() -> None:
    body = sealed(b"{}", tenant="acme")
    assert cipher("acme").open(body, lambda: PLACE) == (b"{}", "")
    for other in ("", "rival"):
        with pytest.raises(ValueError, match="place"):
            cipher(other).open(body, lambda: PLACE)


def test_no_flipped_bit_and_no_shorter_body_opens() -> None:
    body = sealed(b'{"a":1}', "mine")
    for index in range(len(body)):
        altered = body[:index] + bytes([body[index] ^ 1]) + body[index + 1 :]
        with pytest.raises(ValueError, match=r"altered|place"):
            cipher().open(altered, lambda: PLACE)
        with pytest.raises(ValueError, match=r"altered|short"):
            cipher().open(body[:index], lambda: PLACE)


def test_a_key_that_is_not_there_and_one_that_was_destroyed_are_two_errors() -> None:
    body = sealed(b"{}")
    with pytest.raises(ErasedError):
        cipher(key=None).open(body, lambda: PLACE)
    with pytest.raises(MissingKeyError):
        cipher().fresh().open(body, lambda: PLACE)


def test_a_data_key_is_wrapped_for_its_stream_and_id() -> None:
    keys = cipher().store
    wrapped = keys.wrap(b"k" * 32, STREAM, KEY_ID)
    assert keys.unwrap(wrapped, "w", STREAM, KEY_ID) == b"k" * 32
    for by, stream, key_id in [("w", STREAM, "x"), ("w", "x", KEY_ID), ("v", STREAM, KEY_ID)]:
        with pytest.raises(WrongKeyError):
            keys.unwrap(wrapped, by, stream, key_id)


def test_labels_of_perdures_own_stay_clear_and_no_other_is_taken_for_one() -> None:
    blinded = cipher().blind({"leased", "vip", "customer\tsc-17"})
    assert "leased" in blinded
    assert not any("vip" in label or "customer" in label for label in blinded)
    assert cipher().reveal("s", blinded) == {"leased", "vip", "customer\tsc-17"}
    one, other = (cipher().blind({f"customer\t{value}"}) for value in ("sa", "sb"))
    names = [next(iter(labels)).partition("\t")[0] for labels in (one, other)]
    assert names[0] == names[1]
    assert one != other
    assert "0123" not in repr(cipher().store)
