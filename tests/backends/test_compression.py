"""Bodies come back from a compressed store as they were; dictionaries stay for ever."""

import contextlib
import hashlib
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.conversations import conversations
from benchmarks.workload import turns
from perdure.backends import compression
from perdure.backends.compression import compress, content_size, decompress, load_dictionary
from perdure.errors import UnsupportedError

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"
FOLDER = Path(compression.__file__).parent / "dictionaries"
BODY = b'["Oz_H1t3GcEr5zHk7hYbtLw",{"message":{"role":"user","content":"How are you?"}}]'


@given(st.binary(max_size=70_000) | st.text(max_size=500).map(str.encode))
def test_a_body_comes_back_as_it_was(body: bytes) -> None:
    stored = compress(body)
    assert content_size(stored) == len(body)
    assert decompress(stored, len(body)) == body
    assert not body or decompress(stored, len(body) - 1) is None


def test_a_short_message_gets_shorter() -> None:
    assert len(compress(BODY)) < 0.7 * len(BODY)


@given(st.binary(max_size=200), st.integers(0, 2**24))
def test_damaged_bytes_are_refused_or_differ(noise: bytes, bit: int) -> None:
    stored = bytearray(compress(BODY))
    stored[bit // 8 % len(stored)] ^= 1 << bit % 8
    for data in (bytes(stored), noise, bytes(stored[: bit % len(stored)])):
        with contextlib.suppress(ValueError):
            decompress(data, 2**20)


def test_a_body_that_claims_to_be_huge_is_not_loaded() -> None:
    with pytest.raises(ValueError, match=str(2**40)):
        decompress(b"\1\xe0" + (2**40).to_bytes(8, "little") + b"\0" * 8, 2**63)


def test_every_dictionary_that_was_shipped_is_there_unchanged() -> None:
    digest = "1fbe077efc15cfc5b396a107393da947e0f1c00cfb2abe70419278dc8faa0e8a"
    assert {1: digest} == compression.DIGESTS
    assert {path.stem for path in FOLDER.iterdir()} == {str(one) for one in compression.DIGESTS}
    assert hashlib.sha256(load_dictionary(1)).hexdigest() == digest
    stored = bytes.fromhex(
        "01204f5d0100e34106a756eb7a81a733f15842bb5485b5bd129292c5bc22b238571804fc6c9e78e9ab49b4e52839c4e803"
    )
    assert decompress(stored, 1000) == BODY, "a body that this version wrote"


def test_a_dictionary_that_is_missing_is_told() -> None:
    with pytest.raises(UnsupportedError, match=r"dictionary 9 .* install perdure again"):
        load_dictionary(9)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the standard library has a driver")
def test_a_missing_driver_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setattr(compression, "_drivers", {})
    with pytest.raises(UnsupportedError, match=r"perdure\[zstd\]"):
        compression.require_driver()


def texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    return [text for item in value for text in texts(item)] if isinstance(value, list) else []


def test_the_dictionary_shares_no_text_with_the_workloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do the texts that it was trained on. Names of fields in JSON are everybody's."""
    monkeypatch.syspath_prepend(SCRIPTS)
    import build_dictionary

    trained = b"".join(build_dictionary.Samples().all()) + load_dictionary(1)
    for names in build_dictionary.KEYS:
        trained = trained.replace(f'"{names}'.encode(), b"\0")
    width = 24
    known = {trained[at : at + width] for at in range(len(trained) - width)}
    said = {text for turn in turns(300) + conversations(300) for text in texts(turn)}
    shared = {
        data[at : at + width]
        for text in said
        for data in [text.encode()]
        for at in range(len(data) - width)
        if data[at : at + width] in known
    }
    assert shared == set()
