# Generated from aio/test_large_body.py by scripts/generate_sync.py: do not edit.
"""LargeBody: bodies that are stored and read piece by piece."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from perdure.errors import NotFoundError, UsageError

PART = 2**14
DATA = bytes(range(256)) * 400


def chunks() -> Iterator[bytes]:
    for at in range(0, len(DATA), 1000):
        yield DATA[at : at + 1000]


def test_an_upload_is_put_into_messages_and_values(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    with perdure.open(tmp_path / "s.db", part_size=PART) as store:
        session = store.session("s")
        body = session.upload(DATA)
        for source in (chunks(), DATA, tmp_path / "file"):
            body = session.upload(source, media_type="image/png")
            assert isinstance(body, perdure.LargeBody)
            assert body.read() == DATA
        session.set("v", {"file": body})
        url = {"type": "image_url", "image_url": {"url": body.as_data_url}}
        session.append({"role": "user", "content": [url]})
        again = store.session("s")
        assert again.get("v") == {"file": DATA}
        (message,) = again.messages()
        found = message["content"][0]["image_url"]["url"]
        assert found == body.as_data_url
        assert found.text().startswith("data:image/png;base64,AAEC")
        pieces = list(found.chunks())
        assert b"".join(pieces) == DATA
        assert max(map(len, pieces)) <= PART
        assert repr(found) == f"<{type(found).__name__}: {len(DATA)} bytes of image/png>"
        with pytest.raises(UsageError, match="bytes, not a text"):
            body.text()
        again.verify()


def test_what_a_store_yields_without_opening_can_be_read() -> None:
    with perdure.open("memory:", part_size=PART) as store:
        session = store.session("s")
        session.note(session.upload(chunks()))
        found = list(store.records("s"))
        note = next(one.content for one in found if one.kind == "note")
        assert note.data.read() == DATA  # type: ignore[attr-defined]
        stored = [one.content for one in found if one.kind == "part"]
        parts = [one.data.read() for one in stored]  # type: ignore[attr-defined]
        assert b"".join(parts) == DATA


def test_a_body_that_was_not_stored_is_not_found() -> None:
    with perdure.open("memory:", part_size=PART) as store:
        session = store.session("s")
        body = session.upload(DATA)
        for number in range(20):
            session.append({"role": "user", "content": str(number)})
        result = session.compact(keep=2)
        assert result.unused_parts == 7
        with pytest.raises(NotFoundError):
            body.read()
