"""A packed header gives the same bytes back, or there is none."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure.backends import packed_header
from perdure.backends.packed_header import pack, unpack
from perdure.journal.kinds import KINDS
from perdure.sync.store import Store

STREAM = "KZrdN3QEnI9wxK37pbTiPg"
DIGEST = "7q9RW50c8jd1fz0/OluuxK9Q58JPWDtEhURu0dH+a5I="
RECORD = ["message", ".hJ0pZk3Vw1uXy2Qb5aTfCe", 61, DIGEST]


def header(**fields: object) -> bytes:
    usual = {"format": 1, "suite": "plain", "stream": STREAM, "position": 7, "previous": DIGEST}
    usual |= {"time": "2026-11-16T00:00:00.250000Z", "key": "", "bound": None, "records": [RECORD]}
    return json.dumps([*(usual | fields).values()], separators=(",", ":")).encode()


def test_the_usual_header_takes_less_than_half_the_space() -> None:
    packed = pack(header(), 7, STREAM)
    assert packed is not None
    assert len(packed) == 92
    assert len(header()) > 2 * 92
    assert unpack(packed, 7, STREAM.encode()) == header()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 255])
def test_several_records_are_packed(count: int) -> None:
    records = [
        [kind, f".{number:022}", 1000 + number, DIGEST]
        for number, kind in zip(range(count), [*packed_header.KINDS] * 8, strict=False)
    ]
    data = header(records=records)
    packed = pack(data, 7, STREAM)
    assert packed is not None
    assert unpack(packed, 6 + count, STREAM.encode()) == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"h1",
        b"[1]",
        b"\xff",
        header().replace(b",7,", b", 7,"),
        header(format=2),
        header(suite="sealed"),
        header(stream="x" * 22),
        header(position=8),
        header(previous=""),
        header(previous="x"),
        header(previous=DIGEST.replace("/", "-")),
        header(time="2026-11-16T00:00:00.25Z"),
        header(time="2026-11-16 00:00:00.250000Z"),
        header(time="2026-13-16T00:00:00.250000Z"),
        header(time="1969-11-16T00:00:00.250000Z"),
        header(time="2026-11-16T00:00:00.+50000Z"),
        header(key="k"),
        header(bound=["", "s"]),
        header(records=[]),
        header(records=[RECORD] * 256),
        header(records=[["~unknown", *RECORD[1:]]]),
        header(records=[[*RECORD, "key"]]),
        header(records=[["message", "hJ0pZk3Vw1uXy2Qb5aTfCe", 61, DIGEST]]),
        header(records=[["message", ".hJ0pZk3Vw1uXy2Qb5aTf+e", 61, DIGEST]]),
        header(records=[["message", ".hJ0pZk3Vw1uXy2Qb5aTfC", 61, DIGEST + "="]]),
        header().replace(b",61,", b",061,"),
        header().replace(b",61,", b",6e1,"),
        header().replace(b"message", b"mess\\u0061ge"),
        header() + b" ",
    ],
)
def test_any_other_header_is_stored_as_it_is(data: bytes) -> None:
    assert pack(data, 7, STREAM) is None


@given(st.data())
def test_a_changed_header_is_restored_exactly_or_not_packed(data: st.DataObject) -> None:
    text = bytearray(header(records=[RECORD] * data.draw(st.integers(1, 3))))
    for _ in range(data.draw(st.integers(0, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    packed = pack(bytes(text), 7, STREAM)
    assert packed is None or unpack(packed, 6 + packed[0], STREAM.encode()) == text


@given(st.binary(max_size=300))
def test_bytes_that_are_no_packed_header_are_refused_or_give_one(data: bytes) -> None:
    try:
        restored = unpack(data, 9, STREAM.encode())
    except ValueError:
        return
    assert restored.startswith(b"[1,")


def test_every_kind_has_a_number_that_never_changes() -> None:
    assert {*KINDS} <= {*packed_header.KINDS}
    assert len({*packed_header.KINDS}) == len(packed_header.KINDS) <= 256
    assert packed_header.KINDS[:3] == ("message", "message.chunk", "messages.retracted")
    assert packed_header.KINDS[-2:] == ("heads", "checkpoint")
    assert packed_header.KINDS.index("turn.completed") == 19


def test_the_headers_of_a_session_are_packed(tmp_path: Path) -> None:
    with perdure.open(tmp_path / "s.db") as store:
        session = store.session("s")
        with session.turn("Hello.") as turn:
            turn.append({"role": "assistant", "content": "Hi."})
        assert isinstance(store, Store)
        first, *others = store._backend.read("s")
        stream = json.loads(first.header)[2]
        assert pack(first.header, 1, stream) is None, "it names its session"
        for entry in others:
            packed = pack(entry.header, entry.position, stream)
            assert packed is not None
            assert unpack(packed, entry.last, stream.encode()) == entry.header
