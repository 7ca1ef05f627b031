"""AsyncLargeBody: bodies that are stored and read piece by piece."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import perdure
from perdure.errors import NotFoundError, UsageError

PART = 2**14
DATA = bytes(range(256)) * 400


async def chunks() -> AsyncIterator[bytes]:
    for at in range(0, len(DATA), 1000):
        yield DATA[at : at + 1000]


async def test_an_upload_is_put_into_messages_and_values(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    async with perdure.open_async(tmp_path / "s.db", part_size=PART) as store:
        session = await store.session("s")
        body = await session.upload(DATA)
        for source in (chunks(), DATA, tmp_path / "file"):
            body = await session.upload(source, media_type="image/png")
            assert isinstance(body, perdure.AsyncLargeBody)
            assert await body.read() == DATA
        await session.set("v", {"file": body})
        url = {"type": "image_url", "image_url": {"url": body.as_data_url}}
        await session.append({"role": "user", "content": [url]})
        again = await store.session("s")
        assert await again.get("v") == {"file": DATA}
        (message,) = await again.messages()
        found = message["content"][0]["image_url"]["url"]
        assert found == body.as_data_url
        assert (await found.text()).startswith("data:image/png;base64,AAEC")
        pieces = [piece async for piece in found.chunks()]
        assert b"".join(pieces) == DATA
        assert max(map(len, pieces)) <= PART
        assert repr(found) == f"<{type(found).__name__}: {len(DATA)} bytes of image/png>"
        with pytest.raises(UsageError, match="bytes, not a text"):
            await body.text()
        await again.verify()


async def test_what_a_store_yields_without_opening_can_be_read() -> None:
    async with perdure.open_async("memory:", part_size=PART) as store:
        session = await store.session("s")
        await session.note(await session.upload(chunks()))
        found = [record async for record in store.records("s")]
        note = next(one.content for one in found if one.kind == "note")
        assert await note.data.read() == DATA  # type: ignore[attr-defined]
        stored = [one.content for one in found if one.kind == "part"]
        parts = [await one.data.read() for one in stored]  # type: ignore[attr-defined]
        assert b"".join(parts) == DATA


async def test_a_body_that_was_not_stored_is_not_found() -> None:
    async with perdure.open_async("memory:", part_size=PART) as store:
        session = await store.session("s")
        body = await session.upload(DATA)
        for number in range(20):
            await session.append({"role": "user", "content": str(number)})
        result = await session.compact(keep=2)
        assert result.unused_parts == 7
        with pytest.raises(NotFoundError):
            await body.read()
