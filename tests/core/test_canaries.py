"""Nothing of the content is on disk, in logs or in errors of an encrypted store: canaries."""

import base64
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

import perdure
from perdure.backends.addresses import open_backend
from perdure.errors import PerdureError
from tests.sealing import KEY
from tests.support import said

PLACES = (
    "message", "value", "key", "note", "id", "turn", "correlation", "label", "field", "name",
    "argument", "result", "failure", "approval", "owner", "deleted",
    "author", "topic",
)  # fmt: skip


def canary(place: str) -> str:
    return f"canary{PLACES.index(place):02}{place}"


def boom(text: str) -> str:
    raise ValueError(f"{canary('failure')} {text}")


def answer(text: str) -> str:
    return canary("result")


def live(store: perdure.Store, errors: list[BaseException]) -> None:
    """Write a canary into every place of a session that takes content."""
    session = store.session("clear-id")
    session.append(said(canary("message")), id=canary("id"), author=canary("author"))
    with session.turn("Go.", id=canary("turn"), correlation_id=canary("correlation")):
        session.tool(answer)(canary("argument"))
        try:
            session.tool(boom)(canary("argument"))
        except ValueError as error:
            errors.append(PerdureError(type(error).__name__))
    for _ in range(2):
        session.set(canary("key"), {"plan": canary("value")})
    session.note({"text": canary("note")}, topic=canary("topic"))
    session.label(canary("label"))
    session.describe(**{canary("name"): canary("field")})
    try:
        with session.turn("Ask.", id="t2"):
            session.tool(answer, name="pay", approval=True, approval_wait=0)(canary("approval"))
    except PerdureError as error:
        errors.append(error)
    with session.lease(owner=canary("owner")):
        session.append(said("x"))
    for number in range(300):
        session.append(said(f"{canary('message')} {number}"))
    session.branch("clear-branch").append(said(canary("message")))
    session.copy("clear-copy")
    try:
        session.append(said(f"other {canary('message')}"), id=canary("id"))
    except PerdureError as error:
        errors.append(error)
    other = store.session("clear-deleted")
    other.append(said(canary("message")))
    store.delete("clear-deleted", reason=canary("deleted"))


def forms(text: str) -> Iterator[bytes]:
    yield text.encode()
    yield text.encode("utf-16-le")
    yield text.encode().hex().encode()
    for shift in range(3):  # Wherever in a longer text it begins.
        encoded = base64.b64encode(b"\0" * shift + text.encode())
        yield encoded[4:-4]


def found(data: bytes) -> set[str]:
    return {place for place in PLACES if any(form in data for form in forms(canary(place)))}


def bytes_of(address: str, tmp_path: Path) -> bytes:
    """Return all that a store has on disk, or all that a server returns."""
    if not address.startswith("postgres"):
        return b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    backend: Any = open_backend(address)
    parts = []
    for head in backend.streams():
        parts += [head.stream.encode(), *(label.encode() for label in head.labels)]
        for entry in backend.read(head.stream):
            parts += [entry.header, entry.body]
    backend.close()
    return b"\n".join(parts)


@pytest.mark.parametrize("kind", ["sqlite", "files", "postgres"])
@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "plain"])
def test_no_canary_is_found_outside_of_a_sealed_store_and_all_in_a_plain_one(
    kind: str,
    *,
    sealed: bool,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = f"{kind}:{tmp_path}/store"
    if kind == "postgres":
        address = request.getfixturevalue("postgres_store")
    caplog.set_level(logging.DEBUG)
    errors: list[BaseException] = []
    with perdure.open(address, keys=KEY if sealed else None) as store:
        live(store, errors)
        running = bytes_of(address, tmp_path)  # With the write-ahead log.
    data = running + bytes_of(address, tmp_path)
    assert b"clear-id" in data
    if sealed:
        assert found(data) == set()
    else:
        assert found(data) == {*PLACES}
    texts = "".join(f"{error} {error!r}" for error in errors)
    assert errors
    assert found(texts.encode()) - {"id"} == set()
    # Correlation ids and ids of turns are for logs; the documentation says so.
    assert found(caplog.text.encode()) - {"turn", "correlation", "owner"} == set()
