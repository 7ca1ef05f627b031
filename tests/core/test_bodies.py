"""Large bodies: texts, bytes and media that are kept in parts before the record that cites them."""

import base64
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perdure
from perdure.backends.addresses import open_backend
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Backend, Entry
from perdure.errors import (
    ChainError,
    DamagedError,
    DivergenceError,
    NotFoundError,
    PayloadError,
    UsageError,
)
from perdure.formats.bodies import decode_base64
from perdure.journal import chain
from tests.promises.p03_body_memory import measure
from tests.support import said

PART = 2**14
WIDE = 2**17  # Parts that pages of entries leave out.
KIB = 1024


@pytest.fixture(params=["memory:", "files", "store.db", "postgres"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    address: Any = tmp_path / request.param
    if request.param == "memory:":
        yield MemoryBackend()
        return
    if request.param == "postgres":
        address = request.getfixturevalue("postgres_store")
    elif request.param == "files":
        address = f"files:{address}"
    opened = open_backend(address)
    yield opened
    opened.close()


def opened(backend: Backend, name: str = "s") -> perdure.Session:
    return perdure.open(backend, part_size=PART).session(name)


def in_memory() -> perdure.Session:
    return opened(MemoryBackend())


def again(session: perdure.Session) -> perdure.Session:
    return opened(session._handle.driver._backend, session.id)


def noise(size: int, seed: int = 1) -> bytes:
    return (seed.to_bytes(4) * (size // 4 + 1))[: size - 8] + os.urandom(8)


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def picture(data: bytes) -> dict[str, Any]:
    parts = [{"type": "text", "text": "look"}]
    image = {"type": "image_url", "image_url": {"url": data_url(data), "detail": "low"}}
    return {"role": "user", "content": [*parts, image]}


def stored_bytes(session: perdure.Session) -> int:
    entries = session._handle.driver._backend.read(session.id)
    return sum(entry.size for entry in entries)


def parts_of(session: perdure.Session) -> list[int]:
    return [record.position for record in session.records(kinds=["part"])]


# Messages.


def test_a_large_text_is_read_when_it_is_asked_for(backend: Backend) -> None:
    session, text = opened(backend), "wörld " * 20_000
    session.append(said(text))
    session.append(said("next"))
    for one in (session, again(session)):
        body = one.messages()[0]["content"]
        assert isinstance(body, perdure.LargeBody)
        assert (body.size, body.media_type) == (len(text.encode()), "")
        assert body.text() == text
        assert b"".join(body.chunks()) == body.read() == text.encode()
        assert max(map(len, body.chunks())) <= PART
        assert one.messages(format="openai.chat")[0]["content"] == text
        content: Any = one.record(parts_of(one)[-1] + 1).content
        assert content.message["content"] == body
        one.verify()


@pytest.mark.parametrize("size", [5 * KIB, 100 * KIB])
@pytest.mark.parametrize("kind", ["image_url", "input_image", "file", "input_audio", "image"])
def test_media_are_kept_as_bytes_and_rendered_exactly(kind: str, size: int) -> None:
    session, data = in_memory(), noise(size)
    text, url = base64.b64encode(data).decode(), data_url(data)
    media: Any = {
        "image_url": {"image_url": {"url": url}},
        "input_image": {"image_url": url, "detail": "auto"},
        "file": {"file": {"file_data": data_url(data, "application/pdf"), "filename": "a.pdf"}},
        "input_audio": {"input_audio": {"data": text, "format": "wav"}},
        "image": {"source": {"type": "base64", "media_type": "image/jpeg", "data": text}},
    }[kind]
    message = {"role": "user", "content": [{"type": kind, **media}]}
    session.append(message)
    taken = stored_bytes(session)
    assert taken < size * 1.02 + 2 * KIB
    one = again(session)
    home = {"image": "anthropic", "input_image": "openai.responses"}.get(kind, "openai.chat")
    assert one.messages(format=home) == in_memory_rendering(message, home)
    plain = one.messages()
    if size < PART:
        assert plain == [message]
    else:
        (found,) = _bodies_in(plain[0])
        assert found.media_type.partition("/")[0] in ("image", "audio", "application")
        assert found.read() == data


def in_memory_rendering(message: Any, format: str) -> list[Any]:
    """Return what a session gives that keeps the same message as text."""
    session = perdure.open("memory:").session("s")
    session.append(message)
    return [*session.messages(format=format)]


def _bodies_in(value: Any) -> list[perdure.LargeBody]:
    if isinstance(value, perdure.LargeBody):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [body for item in items for body in _bodies_in(item)]


def test_gemini_media_keep_their_alphabet() -> None:
    session = in_memory()
    data = base64.urlsafe_b64encode(b"\xff\xfe" * 5 * KIB).decode()
    message = {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": data}}]}
    session.append(message)
    assert stored_bytes(session) < len(data)
    assert again(session).messages() == [message]


@pytest.mark.parametrize(
    "text",
    [
        "A" * 8191,  # Not a multiple of four.
        "A" * 8189 + "B==",  # Bits that are not zero.
        ("A" * 76 + "\n") * 200,
        "A" * 8000 + "+_-/" * 48,
        "data:image/png;base64," + "=" * 8192,
        "data:image/png," + "A" * 8192,
        "word " * 2000,
    ],
)
def test_a_text_that_is_not_canonical_base64_stays_a_text(text: str) -> None:
    assert decode_base64(text) is None
    session = in_memory()
    session.append(said(text))
    assert again(session).messages() == [said(text)]
    assert not parts_of(session)


def test_canonical_base64_is_told_apart() -> None:
    for data in (b"\0" * 6000, os.urandom(6001), b"\xff" * 6002):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            decoded = decode_base64(encode(data).decode())
            assert decoded is not None
            assert decoded.data == data


def test_the_input_of_a_turn_and_the_results_of_its_tools_may_be_large() -> None:
    session, text = in_memory(), "result " * 10_000
    calls = 0

    def fetch() -> str:
        nonlocal calls
        calls += 1
        return text

    call = {"id": "c1", "type": "function", "function": {"name": "fetch", "arguments": "{}"}}
    for _ in range(2):  # The second one serves what is recorded.
        with again(session) as one, one.turn(picture(noise_50), id="t") as turn:
            if not turn.ended:
                tool = one.tool(fetch)
                turn.append({"role": "assistant", "content": None, "tool_calls": [call]})
                one.run_tool_calls(tools=[tool])
                assert tool.keyed("k")() == text
                turn.append(said("done", "assistant"))
    session = again(session)
    assert calls == 2
    shown = session.messages(format="openai.chat")
    assert shown[0] == picture(noise_50)
    assert shown[2]["content"] == text
    assert [effect.result for effect in session.effects.list()] == [text, text]
    session.verify()


noise_50 = noise(50 * KIB)


def test_a_replay_serves_and_compares_large_bodies() -> None:
    session, text = in_memory(), "answer " * 10_000

    def agent(session: perdure.Session) -> None:
        with session.turn(picture(noise_50), id="t") as turn:
            answer = session.tool(lambda: text, name="ask").keyed("k")()
            turn.append(said(answer, "assistant"))

    agent(session)
    assert perdure.replay(again(session), agent).identical


# Where payloads go.


def test_values_and_notes_come_back_as_they_were_set(backend: Backend) -> None:
    session = opened(backend)
    value = {"text": "long " * 20_000, "data": noise_50, "url": data_url(noise_50), "n": 1}
    for number in range(3):
        session.set("v", {**value, "n": number})
    session.note({"seen": value}, topic="t", id="note")
    session.note({"seen": value}, topic="t", id="note")
    one = again(session)
    for number in range(3):
        assert one.get("v", version=number + 1) == {**value, "n": number}
    (note,) = one.notes("t")
    content: Any = note.content
    assert content.data["seen"]["text"].text() == value["text"]
    assert content.data["seen"]["data"].read() == noise_50
    # The text, and the bytes once: they are equal to those of the URL.
    assert stored_bytes(one) < 175 * KIB
    one.verify()


def test_a_batch_and_a_replacement_may_have_large_bodies() -> None:
    session = in_memory()
    for _ in range(2):
        with session.batch(id="b") as batch:
            batch.append(picture(noise_50), said("x" + "y z" * 20_000))
            batch.set("v", {"data": noise_50})
    assert len(session) == 2
    first = session._replica.state.last_message - 1
    session.replace(first, first, picture(noise(60 * KIB)), id="r")
    shown = again(session).messages(format="openai.chat")
    assert len(shown) == 2
    assert session.get("v") == {"data": noise_50}
    session.verify()


def test_what_one_append_cannot_hold_says_how_to_upload() -> None:
    session = perdure.open("memory:").session("s")
    text = "ab " * (6 * 2**20)
    stores: list[Callable[[], object]] = [
        lambda: session.append(said(text)),
        lambda: session.set("v", text),
        lambda: session.note(text),
        lambda: session.append(*(said(f"{number} " * 2**20) for number in range(10, 16))),
    ]
    for store in stores:
        with pytest.raises(UsageError, match=r"session\.upload"):
            store()
    assert session.position == 0


# Uploads.


@pytest.mark.parametrize("size", [0, 1, 100, PART, 10 * PART + 7])
def test_an_upload_is_read_back_in_pieces(backend: Backend, size: int, tmp_path: Path) -> None:
    session, data = opened(backend), os.urandom(size)
    path = tmp_path / "file"
    path.write_bytes(data)
    body = session.upload(data)
    sources: list[Any] = [data, bytearray(data), memoryview(data), path, io.BytesIO(data)]
    sources += [iter([data[:10], b"", data[10:]])]
    for source in sources:
        body = session.upload(source, media_type="video/mp4")
        assert (body.size, body.media_type, body.read()) == (size, "video/mp4", data)
    assert len(session) == 0
    session.set("v", {"video": body})
    session.append({"role": "user", "content": [{"type": "text", "text": body.as_base64}]})
    one = again(session)
    assert one.get("v") == {"video": data}
    if size:
        text = one.messages(format="openai.chat")[0]["content"][0]["text"]
        assert text == base64.b64encode(data).decode()
    with path.open("rb") as file:
        assert session.upload(file).citation.parts == body.citation.parts
    one.verify()


def test_uploads_of_several_writers_may_be_interleaved() -> None:
    session = in_memory()
    other = again(session)
    data = os.urandom(5 * PART)

    def chunks() -> Iterator[bytes]:
        for at in range(0, len(data), PART):
            other.refresh()
            other.append(said(str(at)))
            yield data[at : at + PART]

    body = session.upload(chunks())
    assert len(body.citation.parts) > 2
    session.refresh()
    session.set("v", body)
    assert again(session).get("v") == data
    assert len(again(session)) == 5
    session.verify()


def test_a_source_that_fails_leaves_nothing_and_can_be_repeated(backend: Backend) -> None:
    session, data = opened(backend), os.urandom(4 * PART)

    def broken() -> Iterator[bytes]:
        yield data[: 2 * PART]
        raise ConnectionError

    with pytest.raises(ConnectionError):
        session.upload(broken())
    assert len(session) == 0
    assert session.messages() == []
    session.set("v", session.upload(iter([data])))
    assert again(session).get("v") == data
    again(session).verify()


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    session, path = in_memory(), tmp_path / "file"
    for change in (b"", os.urandom(20 * PART)):
        path.write_bytes(os.urandom(10 * PART))

        class Changing(io.FileIO):
            content = change

            def read(self, size: int | None = -1) -> bytes:
                piece = super().read(size)
                path.write_bytes(self.content)
                return piece

        with pytest.raises(UsageError, match="bytes, and has"), Changing(str(path)) as file:
            session.upload(file)
    assert len(session) == 0


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("file.txt", "pathlib.Path"),
        (io.StringIO("text"), "'rb'"),
        (iter(["text"]), "yield bytes, not str"),
        (7, "iterator of chunks"),
    ],
)
def test_a_source_that_is_none_is_refused(source: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        in_memory().upload(source)


def test_bodies_stay_in_their_session() -> None:
    session = in_memory()
    other = opened(session._handle.driver._backend, "other")
    body = session.upload(noise_50, media_type="image/png")
    stores: list[Callable[[], object]] = [
        lambda: other.append({"role": "user", "content": body.as_text}),
        lambda: other.set("v", body),
    ]
    for store in stores:
        with pytest.raises(UsageError, match="its own session only"):
            store()
    copy = other.upload(body)
    assert copy == body
    assert copy.media_type == "image/png"
    other.set("v", copy)
    assert again(other).get("v") == noise_50


def test_a_body_of_bytes_is_no_text_of_a_message() -> None:
    session = in_memory()
    body = session.upload(noise_50)
    for content in (body, [{"type": "text", "text": body}]):
        with pytest.raises(UsageError, match="as_base64"):
            session.append({"role": "user", "content": content})


# Equal bodies.


def test_equal_bodies_of_a_session_are_stored_once(backend: Backend) -> None:
    session, data = opened(backend), noise(100 * KIB)
    for number in range(10):
        session.append(picture(data), id=f"m-{number}")
        session = again(session) if number % 3 == 0 else session
        session.append(picture(noise(100 * KIB, 3)))  # Others of the same size.
    session.upload(data)
    taken = stored_bytes(session)
    assert taken < 11.5 * 100 * KIB
    assert session.messages(format="openai.chat")[0] == picture(data)
    session.verify()
    again(session).verify()


def test_a_hundred_equal_images_of_a_mebibyte_take_two() -> None:
    session = perdure.open("memory:").session("s")
    message = picture(os.urandom(2**20))
    for _ in range(100):
        session.append(message)
    assert stored_bytes(session) < 2 * 2**20
    assert session.messages(format="openai.chat")[99] == message


def test_tasks_that_store_equal_bodies_at_once_store_one() -> None:
    session, message = in_memory(), picture(noise_50)
    with session.batch() as batch:
        for _ in range(20):
            batch.append(message)
    assert len(parts_of(session)) == len(range(0, 50 * KIB, PART - 256))


def test_a_repeated_append_is_recognized_and_another_is_not() -> None:
    session, data = in_memory(), noise(50 * KIB)
    text = "long text " * 5_000
    at = session.append(picture(data), said(text), id="m")
    end = session.position  # A snapshot follows.
    for one in (session, again(session)):
        assert one.append(picture(data), said(text), id="m") == at
        assert one.position == end
        with pytest.raises(DivergenceError):
            one.append(picture(noise(50 * KIB, 2)), said(text), id="m")
        with pytest.raises(DivergenceError):
            one.append(picture(data), said(text + "."), id="m")
    wide = perdure.open(session._handle.driver._backend).session("s")  # Another part size.
    assert wide.append(picture(data), said(text), id="m") == at


def test_the_state_holds_no_digest_of_a_body() -> None:
    session = in_memory()
    for number in range(300):
        session.append(picture(noise(5 * KIB, number)))
    facts = msgspec.json.encode(session._replica.state.facts())
    for record in session.records(kinds=["message"], limit=3, reverse=True):
        payload = msgspec.json.encode(record.content.parts)
        assert payload
    assert b"digest" not in facts
    assert len(session._replica.state.bodies) == 128
    assert len(facts) < 6_000


# The life of a session.


def test_branches_and_copies_have_the_bodies(backend: Backend) -> None:
    session = opened(backend)
    session.append(picture(noise_50))
    session.set("v", session.upload(noise(100 * KIB)))
    store = perdure.open(backend, part_size=PART)
    branch, copy = session.branch("branch"), session.copy("copy")
    branch.append(picture(noise_50))
    assert stored_bytes(branch) < 10 * KIB
    for name in ("branch", "copy"):
        one = store.session(name)
        assert one.messages(format="openai.chat")[0] == picture(noise_50)
        assert one.get("v") == session.get("v")
        one.verify()
    session._handle.driver._backend.drop("s", before=0)
    assert store.session("copy").append(picture(noise_50)) > copy.position
    assert stored_bytes(store.session("copy")) < 170 * KIB


@pytest.mark.parametrize("times", [1, 2])
def test_a_compaction_keeps_the_parts_that_are_cited(backend: Backend, times: int) -> None:
    session = opened(backend)
    pinned = session.append(picture(noise(50 * KIB, 7)))
    session.pin(pinned)
    session.append(picture(noise_50))
    session.append(picture(noise(200 * KIB)))
    session.upload(noise(90 * KIB))  # Nothing cites it.
    session.set("v", session.upload(noise(100 * KIB, 9)))
    value = session.get("v")
    first = session.messages(format="openai.chat")[0]
    for number in range(40):
        session.append(said(str(number)))
    session.append(picture(noise_50))
    for number in range(times):
        result = session.compact(keep=5, dry_run=True)
        assert session.compact(keep=5) == result
        assert result.unused_parts == (6 if number == 0 else 0)
        for text in range(10):
            session.append(said(str(text)))
        session.append(picture(noise_50))
    assert stored_bytes(session) < 225 * KIB
    for one in (session, again(session)):
        assert one.messages(format="openai.chat", max_messages=10)[0] == first
        assert one.messages(format="openai.chat")[-1] == picture(noise_50)
        assert one.get("v") == value
        one.verify()
    copy = session.copy("copy")
    assert copy.get("v") == value
    copy.verify()


def test_a_body_that_was_compacted_before_it_was_cited_is_refused() -> None:
    session = in_memory()
    body = session.upload(noise_50)
    for number in range(20):
        session.append(said(str(number)))
    session.compact(keep=2)
    with pytest.raises(NotFoundError, match="upload it again"):
        session.set("v", body)
    session.set("v", session.upload(noise_50))
    assert session.get("v") == noise_50


def test_a_body_that_is_cited_while_a_compaction_runs_is_not_lost() -> None:
    session = in_memory()
    session.append(picture(noise_50))
    for number in range(20):
        session.append(said(str(number)))
    other = again(session)
    from perdure.core import compaction

    cut = session._handle.run(
        compaction.find_cut(session._replica, compaction.CompactRequest(keep=2))
    )
    other.append(picture(noise_50))
    with pytest.raises(perdure.ConflictError, match="cites a body"):
        session._handle.write(compaction.plan_compaction(session._replica, cut, {}))
    session.refresh()
    session.compact(keep=2)
    assert again(session).messages(format="openai.chat")[-1] == picture(noise_50)


def test_opening_and_listing_do_not_read_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend()
    session = perdure.open(backend, part_size=WIDE).session("s")
    session.set("v", session.upload(os.urandom(20 * WIDE)))
    read = 0
    whole = MemoryBackend.read

    def counted(self: MemoryBackend, *args: Any, **options: Any) -> Iterator[Entry]:
        nonlocal read
        for entry in whole(self, *args, **options):
            read += entry.size
            yield entry

    monkeypatch.setattr(MemoryBackend, "read", counted)
    one = again(session)
    assert [record.kind for record in one.records()] == ["part"] * 21 + ["value"]
    assert one.messages() == []
    assert read < 50 * KIB


# Damage.


@pytest.mark.parametrize("how", ["altered", "short", "emptied"])
def test_a_damaged_part_is_found_with_its_position(how: str) -> None:
    backend = MemoryBackend()
    session = perdure.open(backend, part_size=WIDE).session("s")
    session.append(said("before"))
    session.append(said("long " * 100_000))
    part = parts_of(session)[2]
    entry = next(iter(backend.read("s", after=part - 1, limit=1)))
    assert entry.body is not None
    body = {
        "altered": entry.body[:100] + b"?" + entry.body[101:],
        "short": entry.body[:-5],
        "emptied": b" " * len(entry.body),
    }[how]
    put_body(backend, part, body)
    one = opened(backend)
    large = one.messages()[1]["content"]
    for use in (large.read, lambda: one.messages(format="openai.chat"), one.verify):
        with pytest.raises(ChainError) as caught:
            use()
        assert caught.value.position == part
    damage: list[DamagedError] = []
    records = [*perdure.open(backend).records("s", on_damage=damage.append)]
    assert [record.kind for record in records if record.kind != "part"] == ["message"] * 2


def put_body(backend: MemoryBackend, position: int, body: bytes) -> None:
    stream = backend._streams["s"]
    for index, entry in enumerate(stream.entries):
        if entry.position == position:
            stream.entries[index] = entry._replace(body=body)


def test_parts_of_another_body_are_found() -> None:
    backend = MemoryBackend()
    session = opened(backend)
    body, other = session.upload(noise(50 * KIB)), session.upload(noise(50 * KIB))
    wrong = msgspec.structs.replace(body.citation, parts=other.citation.parts)
    long = msgspec.structs.replace(body.citation, size=1)
    none = msgspec.structs.replace(body.citation, parts=((session.position, session.position),))
    for citation in (wrong, long, none):
        cited = session._handle.make_body(citation)
        with pytest.raises(PayloadError):
            cited.read()
    session.set("v", session._handle.make_body(wrong))
    with pytest.raises(PayloadError):
        again(session).verify()


def test_a_record_that_cites_what_is_no_part_is_found() -> None:
    session = in_memory()
    session.append(said("no part"))
    body = session.upload(noise(10 * KIB))
    wrong = msgspec.structs.replace(body.citation, parts=((1, 1),))
    session.set("v", session._handle.make_body(wrong))
    with pytest.raises(ChainError) as caught:
        again(session).verify()
    assert caught.value.position == 1
    later = session._handle.make_body(msgspec.structs.replace(body.citation, parts=((99, 99),)))
    with pytest.raises(UsageError, match="another session"):
        session.set("v", later)


def test_a_citation_that_does_not_parse_is_damage() -> None:
    session = in_memory()
    tags: list[Any] = [{"size": 1}, {"form": "zip"}, [], {"form": "text", "size": 1, "x": 1}]
    for tag in tags:
        with pytest.raises(PayloadError):
            session._replica.settings.codec.unpack({"$large": tag})
    session.set("v", {"$large": {"form": "text"}})  # A caller's own object of that shape.
    assert again(session).get("v") == {"$large": {"form": "text"}}


def test_a_part_may_end_with_any_bytes() -> None:
    session = in_memory()
    for end in (b'"', b'},"x"', b"]", b" ", b""):
        session.set("v", session.upload(noise(5 * KIB) + end))
        assert again(session).get("v")[-len(end) :][:1] == end[:1] or not end
    session.verify()


def test_part_size_is_checked() -> None:
    for size in (0, 2**14 - 1, 2**24, "1", 1.5):
        with pytest.raises(UsageError, match="part_size"):
            perdure.open("memory:", part_size=size)  # type: ignore[arg-type]


def test_no_entry_with_a_part_is_longer_than_the_part_size() -> None:
    session = in_memory()
    session.append(picture(noise(100 * KIB)), said("long " * 30_000))
    session.set("v", session.upload(noise(100 * KIB)))
    for entry in session._handle.driver._backend.read("s"):
        kinds = [record.kind for record in chain.verify_entry("s", entry).records]
        assert "part" not in kinds or len(entry.body or b"") <= PART, kinds


@pytest.mark.slow
@pytest.mark.parametrize("address", ["sqlite:{}/store.db", "files:{}/store"])
def test_a_body_is_stored_and_read_in_little_memory(address: str, tmp_path: Path) -> None:
    # The interpreter takes 20 MiB for the library alone. The Full command tries 256 MiB.
    taken = measure(address.format(tmp_path), 24, 2**17)
    assert taken < 28 * 2**20
