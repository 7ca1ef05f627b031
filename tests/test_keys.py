"""Master keys: where they come from, and what is refused without ever showing one."""

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

import perdure
from perdure import keys
from perdure.errors import MissingKeyError, PerdureError, UsageError, WrongKeyError
from perdure.keys import KeySource, Passphrase, SecretKey, master_key, new_key, unwrap_key
from tests.support import said

TEXT = new_key()
RAW = base64.b64decode(TEXT)


class Custody:
    """A key somewhere else: the two methods of the protocol."""

    def __init__(self) -> None:
        self.contexts: list[str] = []

    def wrap(self, key: bytes, *, store: str) -> bytes:
        self.contexts.append(store)
        return bytes(byte ^ 0x55 for byte in key)

    def unwrap(self, wrapped: bytes, *, store: str) -> bytes:
        self.contexts.append(store)
        return bytes(byte ^ 0x55 for byte in wrapped)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, KeySource]:
    """The same key in every place that a key can be read from."""
    monkeypatch.setenv("A_KEY", TEXT)
    monkeypatch.setenv("A_HEX_KEY", RAW.hex())
    (tmp_path / "key").write_text(f"{TEXT}\n")
    return {
        "env": "env:A_KEY",
        "hex": "env:A_HEX_KEY",
        "file": f"file:{tmp_path / 'key'}",
        "bytes": RAW,
        "callable": lambda: RAW,
        "callable of a text": lambda: TEXT,
        "object": SecretKey(RAW),
        "callable of an object": lambda: SecretKey(RAW),
    }


def test_the_same_key_opens_the_store_from_wherever_it_is_read(
    places: dict[str, KeySource], tmp_path: Path
) -> None:
    with perdure.open(tmp_path / "s.db", keys=RAW) as store:
        store.session("s").append(said("x"))
    for source in places.values():
        with perdure.open(tmp_path / "s.db", keys=source) as store:
            assert len(store.resume("s")) == 1


def test_any_object_that_wraps_and_unwraps_is_a_key(tmp_path: Path) -> None:
    custody = Custody()
    with perdure.open(tmp_path / "s.db", keys=custody) as store:
        store.session("s").append(said("x"))
    with perdure.open(tmp_path / "s.db", keys=lambda: custody) as store:
        assert len(store.resume("s")) == 1
    assert len({*custody.contexts}) == 1
    assert len(custody.contexts) == 3  # Wrapped and unwrapped once, then unwrapped: no more calls.


def test_a_passphrase_opens_the_store_and_another_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHRASE", "correct horse battery")
    monkeypatch.setattr(keys, "_ARGON_KIB", 64)  # The real one takes a tenth of a second.
    with perdure.open(tmp_path / "s.db", keys="passphrase:env:PHRASE") as store:
        store.session("s").append(said("x"))
    with perdure.open(tmp_path / "s.db", keys=Passphrase("correct horse battery")) as store:
        assert len(store.resume("s")) == 1
    wrong = perdure.open(tmp_path / "s.db", keys=Passphrase("correct horse buttery"))
    with wrong as store, pytest.raises(WrongKeyError):
        store.resume("s")
    first, second = (Passphrase("the same phrase").wrap(RAW, store="s") for _ in range(2))
    assert first[:16] != second[:16]  # Each has a salt of its own.


SHORT = base64.b64encode(b"k" * 16).decode()

REFUSED: dict[str, tuple[KeySource | Any, str]] = {
    "too short": (b"k" * 16, "32 bytes, not 16"),
    "too long": (bytes(range(33)), "32 bytes, not 33"),
    "not random": (b"0123456789" * 3 + b"01", "not random"),
    "all zeros": (bytes(32), "not random"),
    "a key as text": (TEXT, "a key itself is passed as bytes"),
    "no scheme": ("PERDURE_KEY", "must be 'env:NAME'"),
    "no name": ("env:", "is read from"),
    "nothing": (17, "not int"),
    "a callable of nothing": (lambda: 17, "not int"),
    "a short text": (lambda: SHORT, "no key of 32 bytes"),
    "no base64": (lambda: "x" * 43 + "!", "no key of 32 bytes"),
    "a short passphrase": ("passphrase:env:SHORT", "at least 12 characters"),
    "a passphrase itself": ("passphrase:correct horse battery", "is read from"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_key_is_refused_without_showing_it(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHORT", "horse")
    source, text = REFUSED[case]
    with pytest.raises(UsageError, match=text) as caught:
        perdure.open("memory:", keys=source)
    for secret in (TEXT, SHORT, "correct horse"):
        assert secret not in str(caught.value)


@pytest.mark.parametrize("source", ["env:NO_SUCH_KEY", "file:/no/such/key"])
def test_a_key_that_is_not_there_is_missing(source: str) -> None:
    with pytest.raises(MissingKeyError, match=r"no variable|cannot be read"):
        perdure.open("memory:", keys=source)


def test_errors_of_a_key_far_away_are_those_of_the_store() -> None:
    class Away(Custody):
        def unwrap(self, wrapped: bytes, *, store: str) -> bytes:
            raise perdure.UnavailableError("kms", "it did not respond")

    class Other(Custody):
        def unwrap(self, wrapped: bytes, *, store: str) -> bytes:
            return b"short"

    class Refusing(Custody):
        def unwrap(self, wrapped: bytes, *, store: str) -> bytes:
            raise ValueError(store)

    expected: list[tuple[Custody, type[PerdureError]]] = [
        (Away(), perdure.UnavailableError),
        (Other(), UsageError),
        (Refusing(), WrongKeyError),
    ]
    for key, error in expected:
        with perdure.open("memory:", keys=key) as store, pytest.raises(error):
            store.session("s")


def test_no_key_is_in_a_repr() -> None:
    store = perdure.open("memory:", keys=RAW)
    session = store.session("s")
    session.append(said("x"))
    cipher: Any = session._replica.settings.cipher
    parts = [store, session, SecretKey(RAW), Passphrase("correct horse battery"), cipher]
    texts = "".join(repr(part) for part in (*parts, cipher.store, session._replica.settings))
    for secret in (RAW, *cipher._keys.values(), *cipher.store._wrapping.values()):
        assert repr(secret)[2:-1] not in texts
        assert secret.hex() not in texts


def test_a_wrapped_key_is_bound_to_its_store() -> None:
    wrapped = SecretKey(RAW).wrap(b"w" * 32, store="one")
    assert unwrap_key(SecretKey(RAW), wrapped, store="one", name="memory:") == b"w" * 32
    with pytest.raises(WrongKeyError):
        unwrap_key(SecretKey(RAW), wrapped, store="two", name="memory:")


def test_without_the_package_the_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "import perdure\n"
        "assert perdure.open('memory:').session('s').position == 0\n"
        "try: perdure.open('memory:', keys='env:A_KEY')\n"
        "except perdure.UnsupportedError as error: assert 'perdure[crypto]' in str(error)\n"
        "else: raise SystemExit(1)\n"
    )
    environment = {**os.environ, "A_KEY": TEXT}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_the_master_key_is_read_when_the_store_is_opened() -> None:
    calls = []

    def read() -> bytes:
        calls.append(1)
        return RAW

    perdure.open("memory:", keys=read)
    assert calls == [1]
    assert isinstance(master_key(RAW), SecretKey)
