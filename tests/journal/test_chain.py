"""Entries: layout, links, bodies."""

import json
import random
import time
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256

import pytest

from perdure.backends.digests import digest_of
from perdure.backends.protocol import Entry
from perdure.errors import ChainError, MissingKeyError, PayloadError, UsageError, VersionError
from perdure.journal import chain, codec
from perdure.journal.chain import (
    EMPTY_CHAIN,
    ChainTip,
    PendingRecord,
    StreamIdentity,
    VerifiedEntry,
)
from perdure.journal.cipher import Place, PlainCipher
from perdure.journal.records import Branched, Content, Deleted, EmptiedContent, Note, Snapshot

STREAM = StreamIdentity("claim-4711", "abc")
TIME = "2026-11-16T05:15:25.123456Z"


def drafts(*texts: str) -> list[PendingRecord]:
    return [draft(Note(data=text), f".{text}") for text in texts]


def draft(content: Content, record_id: str = ".id") -> PendingRecord:
    return PendingRecord(record_id, content, codec.encode(content))


def link(*records: PendingRecord, tip: ChainTip = EMPTY_CHAIN) -> Entry:
    return chain.link_entry(STREAM, tip, records, time=TIME, cipher=PlainCipher())[0]


def linked(*texts: str, tip: ChainTip = EMPTY_CHAIN) -> list[VerifiedEntry]:
    """Verified entries with one record each."""
    entries = []
    for text in texts:
        entries.append(chain.verify_entry("claim-4711", link(*drafts(text), tip=tip)))
        tip = entries[-1].tip
    return entries


def verify(entry: Entry) -> VerifiedEntry:
    return chain.verify_entry("claim-4711", entry)


def test_a_header_is_a_json_array_of_nine_fields_in_the_documented_order() -> None:
    entry, tip = chain.link_entry(
        STREAM, ChainTip(4, "previous"), drafts("a", "b"), time=TIME, cipher=PlainCipher()
    )
    *shared, records = json.loads(entry.header)
    assert shared == [1, "plain", "abc", 5, "previous", TIME, "", None]
    assert [record[:2] for record in records] == [["note", ".a"], ["note", ".b"]]
    start, body = 0, entry.body or b""
    for _, _, length, digest in records:
        assert digest == digest_of(body[start : start + length])
        start += length
    assert start == len(body)
    assert (entry.position, entry.records, entry.last) == (5, 2, 6)
    assert tip == ChainTip(6, digest_of(entry.header))


def test_the_first_entry_names_tenant_and_session() -> None:
    stream = STREAM._replace(tenant="acme")
    entry, _ = chain.link_entry(stream, EMPTY_CHAIN, drafts("a"), time=TIME, cipher=PlainCipher())
    assert json.loads(entry.header)[7] == ["acme", "claim-4711"]


@pytest.mark.parametrize(
    ("content", "bound"),
    [
        (Deleted(), ["", "claim-4711"]),
        (Snapshot(state_version=1, facts={}), ["", "claim-4711"]),
        (Branched(parent="p", stream="s", at=7), ["", "claim-4711", "p", "s"]),
        (Note(data=1), None),
    ],
)
def test_an_entry_that_opening_may_rely_on_names_its_session(
    content: Content, bound: list[str] | None
) -> None:
    entry = link(draft(content), tip=ChainTip(7, "d"))
    assert json.loads(entry.header)[7] == bound
    verify(entry)


def test_an_entry_that_should_name_its_session_and_does_not_is_damage() -> None:
    entry = link(draft(Deleted()), tip=ChainTip(7, "d"))
    header = entry.header.replace(b'["","claim-4711"]', b"null")
    with pytest.raises(ChainError, match="not in the form of a header"):
        verify(entry._replace(header=header))


def test_a_plain_body_is_a_salt_and_the_payload_as_json() -> None:
    one, two = (record.body for record in verify(link(*drafts("a", "a"))).records)
    (salt, payload), (other_salt, _) = json.loads(one or b""), json.loads(two or b"")
    assert payload == {"data": "a"}
    assert len(salt) == 22
    assert salt != other_salt


@pytest.mark.parametrize("given", ["mine", 'a"},"b', "\\", "ünï\tcode", "]", '"'])
def test_a_callers_id_is_in_the_body_and_never_in_the_header(given: str) -> None:
    entry = link(draft(Note(data={"x": '},"'}), given))
    (record,) = verify(entry).records
    assert given.encode() not in entry.header or given in '"]'
    assert record.id.startswith(".")
    decoded = chain.decode_record("claim-4711", record, PlainCipher())
    assert (decoded.id, decoded.content) == (given, Note(data={"x": '},"'}))
    assert json.loads(record.body or b"")[2] == given


def test_what_was_linked_is_accepted_and_opens_to_what_was_given() -> None:
    one, two = linked("a", "b")
    chain.require_follows("claim-4711", EMPTY_CHAIN, one)
    chain.require_follows("claim-4711", one.tip, two)
    chain.require_same_stream(STREAM, two)
    record = chain.decode_record("claim-4711", two.records[0], PlainCipher())
    assert record.content == Note(data="b")
    assert chain.to_record("claim-4711", two.records[0], record).time.isoformat() == (
        "2026-11-16T05:15:25.123456+00:00"
    )


def test_an_altered_body_is_refused_at_the_position_of_its_record() -> None:
    entry = link(*drafts("a", "b", "c"))
    altered = entry._replace(body=(entry.body or b"").replace(b'"b"', b'"d"'))
    with pytest.raises(ChainError, match=r"entry 2 .* body does not match the digest"):
        verify(altered)
    damage: list[ChainError] = []
    rest = chain.verify_entry("claim-4711", altered, damage.append)
    assert [record.position for record in rest.records] == [1, 3]
    assert [error.position for error in damage] == [2]


@pytest.mark.parametrize("more", [1, -1])
@pytest.mark.parametrize("texts", ["a", "ab"])
def test_bodies_of_another_length_are_damage(more: int, texts: str) -> None:
    entry = link(*drafts(*texts))
    body = (entry.body or b"") + b" " if more > 0 else (entry.body or b"")[:-1]
    with pytest.raises(ChainError, match=r"body|bodies"):
        verify(entry._replace(body=body))


def test_an_erased_body_is_as_many_spaces_and_its_neighbors_stay_readable() -> None:
    entry = link(*drafts("a", "b", "c"))
    one, _, three = verify(entry).records
    body, start = entry.body or b"", len(one.body or b"")
    end = len(body) - len(three.body or b"")
    erased = verify(entry._replace(body=body[:start] + b" " * (end - start) + body[end:]))
    assert [record.body for record in erased.records] == [one.body, None, three.body]
    middle = chain.decode_record("claim-4711", erased.records[1], PlainCipher())
    assert (middle.id, middle.content, middle.payload) == (".b", EmptiedContent(), b"")
    assert erased.digest == verify(entry).digest


def test_an_altered_header_breaks_the_link_of_the_next_entry() -> None:
    one, two = linked("a", "b")
    header = one.entry.header.replace(b"05:15", b"06:15")
    altered = verify(one.entry._replace(header=header))
    with pytest.raises(ChainError, match=r"entry 1 .* entry 2 links to a different entry"):
        chain.require_follows("claim-4711", altered.tip, two)


def test_a_missing_entry_is_named() -> None:
    one, _, three = linked("a", "b", "c")
    with pytest.raises(ChainError, match=r"entry 2 .* missing"):
        chain.require_follows("claim-4711", one.tip, three)


def test_an_entry_of_another_stream_session_or_tenant_does_not_belong() -> None:
    acme = STREAM._replace(tenant="acme")
    entry, _ = chain.link_entry(acme, EMPTY_CHAIN, drafts("a"), time=TIME, cipher=PlainCipher())
    for other in (
        acme._replace(id="xyz"),
        acme._replace(tenant="t"),
        StreamIdentity("other", "abc"),
    ):
        with pytest.raises(ChainError, match="belongs to another"):
            chain.require_same_stream(other, verify(entry))
    for same in (acme, acme._replace(tenant="")):  # A store without tenants takes any stream.
        chain.require_same_stream(same, verify(entry))


def test_an_entry_at_another_position_than_its_own_is_refused() -> None:
    (one,) = linked("a")
    with pytest.raises(ChainError, match="its header says position 1"):
        verify(one.entry._replace(position=2))


def test_an_entry_with_another_number_of_records_is_refused() -> None:
    with pytest.raises(ChainError, match="its header has 2 records, not 3"):
        verify(link(*drafts("a", "b"))._replace(records=3))


@pytest.mark.parametrize("header", [b"", b"{}", b"[]", b"[1]", b"\xff", b"[" * 5000, b"null"])
def test_bytes_that_are_no_header_are_damage(header: bytes) -> None:
    with pytest.raises(ChainError, match="header does not parse"):
        verify(Entry(1, header, b"[]"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"[1,", b"[1, "),
        (b",1,", b",1.0,"),
        (b'"plain"', b'"pl\\u0061in"'),
        (b"]]", b"]]\n"),
        (b"]]", b"] ]"),
        (b'["","claim-4711"]', b'["","claim-4711","more"]'),
        (b'["","claim-4711"]', b"[]"),
    ],
)
def test_a_header_has_exactly_one_form(old: bytes, new: bytes) -> None:
    (one,) = linked("a")
    header = one.entry.header.replace(old, new, 1)
    assert header != one.entry.header
    with pytest.raises(ChainError, match="header"):
        verify(one.entry._replace(header=header))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"]]]", b']],"more"]'),
        (b"]]]", b"]],null]"),
        (b"]]]", b',"","more"]]]'),
        (b"]]]", b',"k",1]]]'),
    ],
)
def test_a_header_with_further_fields_is_a_newer_version_and_not_damage(
    old: bytes, new: bytes
) -> None:
    (one,) = linked("a")
    header = one.entry.header.replace(old, new, 1)
    assert header != one.entry.header
    with pytest.raises(VersionError, match=r"a header with further fields .* upgrade perdure"):
        verify(one.entry._replace(header=header))
    with pytest.raises(ChainError, match="header does not parse"):  # And spaces are no version.
        verify(one.entry._replace(header=header.replace(b"[1,", b"[1, ", 1)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((0, '"1"'), (0, "true"), (1, "7"), (2, "null"), (3, '"1"'), (4, "[]"), (5, "0")),
        *((6, "{}"), (7, '""'), (8, "null"), (8, "[]"), (8, '["message"]')),
        (8, '[["message",".id",1]]'),
    ],
)
def test_a_header_with_a_field_of_another_type_is_damage(field: int, value: str) -> None:
    (one,) = linked("a")
    fields = [json.dumps(item, separators=(",", ":")) for item in json.loads(one.entry.header)]
    fields[field] = value
    header = f"[{','.join(fields)}]".encode()
    with pytest.raises(ChainError, match=r"its header (does not parse|has \d records)"):
        verify(one.entry._replace(header=header))


def test_a_record_may_have_a_key_of_its_own() -> None:
    (one,) = linked("a")
    assert one.records[0].key == ""
    header = one.entry.header[:-3] + b',"k2"]]]'
    assert verify(one.entry._replace(header=header)).records[0].key == "k2"


def test_a_newer_format_asks_for_an_upgrade_even_if_its_fields_differ() -> None:
    (one,) = linked("a")
    newer = one.entry._replace(header=b"[2" + one.entry.header[2:])
    for header in (newer.header, b'[2,"other"]'):
        with pytest.raises(VersionError, match="upgrade"):
            verify(newer._replace(header=header))


def test_a_suite_that_is_not_known_asks_for_an_upgrade() -> None:
    (one,) = linked("a")
    newer = verify(one.entry._replace(header=one.entry.header.replace(b"plain", b"glued")))
    with pytest.raises(VersionError, match="glued"):
        chain.decode_content("claim-4711", newer.records[0], PlainCipher())


def test_a_sealed_body_asks_for_the_keys_that_were_not_given() -> None:
    (one,) = linked("a")
    sealed = verify(one.entry._replace(header=one.entry.header.replace(b"plain", b"sealed")))
    with pytest.raises(MissingKeyError, match="opened without keys"):
        chain.decode_content("claim-4711", sealed.records[0], PlainCipher())


def test_a_body_of_another_shape_does_not_open() -> None:
    body = b'{"salt":"","payload":{}}'
    (one,) = linked("a")
    record = one.header.records[0]
    header = one.entry.header.replace(record.digest.encode(), digest_of(body).encode())
    header = header.replace(b",%d," % record.length, b",%d," % len(body))
    (forged,) = verify(Entry(1, header, body)).records
    with pytest.raises(PayloadError, match="cannot be decrypted or unwrapped"):
        chain.decode_content("claim-4711", forged, PlainCipher())


def test_a_body_that_was_left_out_is_not_taken_for_an_empty_one() -> None:
    (one,) = linked("a")
    with pytest.raises(PayloadError, match="body is longer than") as caught:
        verify(one.entry._replace(body=None))
    assert caught.value.position == one.entry.position


def test_a_body_is_bound_to_the_same_place_when_it_is_sealed_and_when_it_is_opened() -> None:
    places: list[Place] = []

    class Noting(PlainCipher):
        is_placed = True

        def key_for(self, stream: str) -> str:
            return "k1"

        def seal(
            self, payloads: Sequence[bytes], given_ids: Sequence[str], at: Sequence[Place]
        ) -> list[bytes]:
            places.extend(at)
            return super().seal(payloads, given_ids, at)

    entry, _ = chain.link_entry(
        STREAM, ChainTip(2, "d"), drafts("a", "b"), time=TIME, cipher=Noting()
    )
    assert [record.place() for record in verify(entry).records] == places
    assert [place.position for place in places] == [3, 4]
    assert entry.header.startswith(places[0].entry + b",[")


def test_a_timestamp_is_utc_to_the_microsecond() -> None:
    assert chain.timestamp(0) == "1970-01-01T00:00:00.000000Z"
    assert chain.timestamp(1.5) == "1970-01-01T00:00:01.500000Z"


@pytest.mark.parametrize("own", [True, False])
def test_errors_while_the_time_is_read_are_only_those_of_a_callers_own_clock(
    monkeypatch: pytest.MonkeyPatch, *, own: bool
) -> None:
    """The system's clock has none: a signal handler raised, and its caller waits for its error."""

    def interrupt(_: float) -> str:
        raise TimeoutError

    monkeypatch.setattr(chain, "timestamp", interrupt)
    with pytest.raises(UsageError if own else TimeoutError):
        chain.now((lambda: 0.0) if own else time.time)


@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 4094, 4095, 32 * 1024, 32 * 1024 + 1, 100_000])
def test_a_digest_is_that_of_all_bytes_whether_or_not_they_are_hashed_in_pieces(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert digest_of(data) == b64encode(sha256(data).digest()).decode()
