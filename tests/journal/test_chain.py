"""Entries: layout, links, batches."""

import json
import random
import time
from base64 import b64encode
from hashlib import sha256

import pytest

from perdure.backends.digests import digest_of
from perdure.backends.protocol import Entry
from perdure.errors import ChainError, PayloadError, UsageError, VersionError
from perdure.journal import chain, codec
from perdure.journal.chain import (
    EMPTY_CHAIN,
    BatchAssembler,
    ChainTip,
    PendingRecord,
    StreamIdentity,
    VerifiedEntry,
)
from perdure.journal.cipher import PlainCipher
from perdure.journal.records import BatchDiscarded, Branched, Content, Deleted, Note

STREAM = StreamIdentity("claim-4711", "abc")
TIME = "2026-11-16T05:15:25.123456Z"


def drafts(*texts: str) -> list[PendingRecord]:
    return [draft(Note(data=text), f".{text}") for text in texts]


def draft(content: Content, record_id: str = ".id") -> PendingRecord:
    return PendingRecord(record_id, content, codec.encode(content))


def linked(*texts: str, tip: ChainTip = EMPTY_CHAIN) -> list[VerifiedEntry]:
    entries, _ = chain.link_entries(STREAM, tip, drafts(*texts), time=TIME, cipher=PlainCipher())
    return [chain.verify_entry("claim-4711", entry) for entry in entries]


def test_a_header_is_a_json_array_of_thirteen_fields_in_the_documented_order() -> None:
    entries, tip = chain.link_entries(
        STREAM, EMPTY_CHAIN, drafts("a", "b"), time=TIME, cipher=PlainCipher()
    )
    first, second = (json.loads(entry.header) for entry in entries)
    body = digest_of(entries[0].body or b"")
    assert first == [1, "plain", "", "abc", 1, "", 1, "note", ".a", TIME, "", "claim-4711", body]
    assert second[4:8] == [2, digest_of(entries[0].header), 0, "note"]
    assert second[11] is None
    assert tip == ChainTip(2, digest_of(entries[1].header))


def test_a_plain_body_is_a_salt_and_the_payload_as_json() -> None:
    entries, _ = chain.link_entries(
        STREAM, EMPTY_CHAIN, drafts("a", "a"), time=TIME, cipher=PlainCipher()
    )
    (salt, payload), (other_salt, _) = (json.loads(entry.body or b"") for entry in entries)
    assert payload == {"data": "a"}
    assert len(salt) == 22
    assert salt != other_salt


def test_what_was_linked_is_accepted_and_opens_to_what_was_given() -> None:
    one, two = linked("a", "b")
    chain.require_follows("claim-4711", EMPTY_CHAIN, one)
    chain.require_follows("claim-4711", one.tip, two)
    chain.require_same_stream(STREAM, two)
    assert chain.decode_content("claim-4711", two, PlainCipher()) == Note(data="b")
    assert chain.to_record("claim-4711", two, Note(data="b")).time.isoformat() == (
        "2026-11-16T05:15:25.123456+00:00"
    )


def test_an_altered_body_is_refused() -> None:
    entry = linked("a")[0].entry
    altered = entry._replace(body=(entry.body or b"").replace(b'"a"', b'"b"'))
    with pytest.raises(ChainError, match=r"entry 1 .* body does not match the digest"):
        chain.verify_entry("claim-4711", altered)


def test_an_altered_header_breaks_the_link_of_the_next_entry() -> None:
    one, two = linked("a", "b")
    header = one.entry.header.replace(b"05:15", b"06:15")
    altered = chain.verify_entry("claim-4711", one.entry._replace(header=header))
    with pytest.raises(ChainError, match=r"entry 1 .* entry 2 links to a different entry"):
        chain.require_follows("claim-4711", altered.tip, two)


def test_a_missing_entry_is_named() -> None:
    one, _, three = linked("a", "b", "c")
    with pytest.raises(ChainError, match=r"entry 2 .* missing"):
        chain.require_follows("claim-4711", one.tip, three)


def test_an_entry_of_another_stream_session_or_tenant_does_not_belong() -> None:
    (one,) = linked("a")
    for other in (
        STREAM._replace(id="xyz"),
        STREAM._replace(tenant="t"),
        StreamIdentity("other", "abc"),
    ):
        with pytest.raises(ChainError, match="belongs to another"):
            chain.require_same_stream(other, one)


def test_an_entry_at_another_position_than_its_own_is_refused() -> None:
    (one,) = linked("a")
    with pytest.raises(ChainError, match="its header says position 1"):
        chain.verify_entry("claim-4711", one.entry._replace(position=2))


@pytest.mark.parametrize("header", [b"", b"{}", b"[]", b"[1]", b"\xff", b"[" * 5000, b"null"])
def test_bytes_that_are_no_header_are_damage(header: bytes) -> None:
    with pytest.raises(ChainError, match="header does not parse"):
        chain.verify_entry("claim-4711", Entry(1, header, b"[]"))


def test_a_newer_format_asks_for_an_upgrade_even_if_its_fields_differ() -> None:
    (one,) = linked("a")
    newer = one.entry._replace(header=b"[2" + one.entry.header[2:])
    for header in (newer.header, b'[2,"other"]'):
        with pytest.raises(VersionError, match="upgrade"):
            chain.verify_entry("claim-4711", newer._replace(header=header))


def test_a_body_of_another_shape_does_not_open() -> None:
    body = b'{"salt":"","payload":{}}'
    (one,) = linked("a")
    header = one.entry.header.replace(one.header.body.encode(), digest_of(body).encode())
    forged = chain.verify_entry("claim-4711", Entry(1, header, body))
    with pytest.raises(PayloadError, match="cannot be decrypted or unwrapped"):
        chain.decode_content("claim-4711", forged, PlainCipher())


def test_a_body_that_was_left_out_is_not_taken_for_an_empty_one() -> None:
    (one,) = linked("a")
    with pytest.raises(PayloadError, match="body is longer than") as caught:
        chain.verify_entry("claim-4711", one.entry._replace(body=None))
    assert caught.value.position == one.entry.position


def test_deletions_and_branches_bind_the_session_too() -> None:
    for content in (Deleted(), Branched(parent="p", stream="s", at=7)):
        entries, _ = chain.link_entries(
            STREAM, ChainTip(7, "d"), [draft(content)], time=TIME, cipher=PlainCipher()
        )
        assert json.loads(entries[0].header)[11] == "claim-4711"


def test_a_batch_is_whole_when_its_last_entry_is_there() -> None:
    batches = BatchAssembler("claim-4711")
    one, two, three = linked("a", "b", "c")
    assert batches.add(one) == []
    assert batches.add(two) == []
    assert batches.torn == (1, 2)
    assert batches.add(three) == [one, two, three]
    assert batches.torn is None


def test_a_torn_batch_is_dropped_whole_when_a_recovered_record_follows() -> None:
    one, two, _ = linked("a", "b", "c")
    recovered = draft(BatchDiscarded(first=1, last=2))
    entries, _ = chain.link_entries(
        STREAM, two.tip, [recovered, *drafts("d")], time=TIME, cipher=PlainCipher()
    )
    notice, after = (chain.verify_entry("claim-4711", entry) for entry in entries)
    batches = BatchAssembler("claim-4711")
    taken = [item for entry in (one, two, notice, after) for item in batches.add(entry)]
    assert taken == [notice, after]
    assert notice.header.remaining == 0


def test_an_entry_that_does_not_continue_its_batch_is_damage() -> None:
    one, _, _ = linked("a", "b", "c")
    (single,) = linked("d", tip=one.tip)
    batches = BatchAssembler("claim-4711")
    batches.add(one)
    with pytest.raises(ChainError, match="does not continue its batch"):
        batches.add(single)


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
