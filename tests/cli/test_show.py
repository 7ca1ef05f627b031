"""`perdure show`: a conversation as people read it, and every record for programs."""

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from rich.cells import cell_len

import perdure
from perdure.backends.digests import digest_of
from perdure.cli.rendering import ADAPTER_KEYS
from perdure.safe_text import safe
from tests.cli.support import damage, fill, flip, invoke, objects, said

# What a person sees in 80 columns.
SCREEN = """\
claim-4711  in sqlite:{path}
7 messages, position 18, 1 open turn, labels turn-open, vip

   1  system
      You are a claims assistant.

   2  ── turn (req-9) begins ── 2026-01-01 00:02:00 ───────────────────────────

   3  user
      Draft a checklist.

   4  assistant
      → lookup(claim=4711, deep=true) [call_1]

   5  tool [call_1]
      {{"open": true}}

   6  assistant planner to bob
      1. Check coverage.

   7  ── turn (req-9) is complete ── 2026-01-01 00:06:00 ──────────────────────

   8  value plan (version 1)
      {{"step": 1, "why":
      "{x72}
      {x73}
      {x73}
      {x73}
      xxxxxxxxx"}}
   9  value plan (version 2) changes
      .step = 2
  10  note by operator
      checked by phone
  11  labels +vip

  12  ── turn charge (req-10) begins ── 2026-01-01 00:11:00 ───────────────────

  13  user
      Charge it.

  14  ── turn charge (req-10) FAILED: TerminalError ── 2026-01-01 00:12:00 ────
      no answer \\x1b[31m

  15  branch what-if begins

  17  ── turn (req-11) begins ── 2026-01-01 00:17:00 ──────────────────────────

  18  user
      And then?

── turn (req-11), begun at 17: INTERRUPTED
      It has no end: its process died, or is still running.

Values
  plan (version 2)
      {{"step": 2, "why":
      "{x72}
      {x73}
      {x73}
      {x73}
      xxxxxxxxx"}}

1 record of bookkeeping not shown: --records shows every record.
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return fill(tmp_path / "agents.db")


def positions(path: Path, *options: str) -> list[int]:
    done = invoke(path, "show", "claim-4711", "--json", *options)
    assert done.exit_code == 0, done.output
    return [found["position"] for found in objects(done)]


def test_a_conversation_is_shown_as_people_read_it(path: Path) -> None:
    done = invoke(path, "show", "claim-4711")
    assert done.exit_code == 0
    expected = SCREEN.format(path=path, x72="x" * 72, x73="x" * 73)
    assert done.stdout.splitlines() == expected.splitlines()
    body = done.stdout.splitlines()[1:]  # The path in the first line is pytest's.
    assert max(map(cell_len, body)) < 80


def test_json_is_every_record_with_stable_keys(path: Path) -> None:
    found = objects(invoke(path, "show", "claim-4711", "--json"))
    with perdure.open(path) as store:
        records = list(store.records("claim-4711"))
    assert len(found) == len(records) == 18
    for shown, record in zip(found, records, strict=True):
        assert list(shown) == ["session", "position", "id", "kind", "time", "digest", "content"]
        assert shown["session"] == "claim-4711"
        assert (shown["position"], shown["id"]) == (record.position, record.id)
        assert (shown["kind"], shown["digest"]) == (record.kind, record.digest)
        assert shown["content"] == msgspec.json.decode(msgspec.json.encode(record.content))
        assert shown["time"].endswith("Z")


def test_a_position_shows_the_session_as_it_was(path: Path) -> None:
    assert positions(path, "--at", "8") == list(range(1, 9))
    shown = invoke(path, "show", "claim-4711", "--at", "8").stdout
    assert "State at position 8" in shown
    assert '{"step": 1, ' in shown
    assert "step = 2" not in shown
    assert "plan (version 1)" in shown.split("Values")[1]
    assert "Values" not in invoke(path, "show", "claim-4711", "--at", "7").stdout
    shown = invoke(path, "show", "claim-4711", "--at", "5").stdout
    assert "── turn (req-9), begun at 2, was open then" in shown
    assert "INTERRUPTED" not in shown


def test_a_value_that_was_deleted_later_is_shown_as_it_was(path: Path) -> None:
    with perdure.open(path) as store:
        session = store.session("claim-4711")
        position = session.position
        session.delete("plan")
    assert "Values" not in invoke(path, "show", "claim-4711").stdout
    shown = invoke(path, "show", "claim-4711", "--at", str(position)).stdout
    assert "plan (version 2)" in shown.split("Values")[1]


def test_a_position_that_is_not_there_says_which_are(path: Path) -> None:
    done = invoke(path, "show", "claim-4711", "--at", "19")
    assert done.exit_code == 2
    assert "'claim-4711' has positions up to 18, not 19" in done.stderr
    assert invoke(path, "show", "claim-4711", "--at", "0").exit_code == 2


def test_one_record_that_is_left_out_is_one(path: Path) -> None:
    with perdure.open(path) as store:
        store.session("two").append(said("one"), said("two"))
    shown = invoke(path, "show", "two", "--last", "1").stdout
    assert "\nRecord 1 is not shown: omit --last to see it.\n" in shown


def test_the_last_messages_are_shown_with_what_came_among_them(path: Path) -> None:
    assert positions(path, "--last", "1") == [18]
    assert positions(path, "--last", "2") == list(range(13, 19))
    assert positions(path, "--last", "3", "--at", "8") == [4, 5, 6, 7, 8]
    assert positions(path, "--last", "100") == list(range(1, 19))
    shown = invoke(path, "show", "claim-4711", "--last", "1").stdout
    assert "Records 1 to 17 are not shown: omit --last to see them." in shown
    assert "turn (req-11), begun at 17: INTERRUPTED" in shown


def test_the_last_messages_of_a_long_session_are_found_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "long.db"
    with perdure.open(path) as store:
        session = store.session("claim-4711")
        session.append(*(said(f"{number}") for number in range(400)))
        for number in range(300):
            session.note(number)
    found = objects(invoke(path, "show", "claim-4711", "--json", "--last", "2"))
    messages = [one["content"]["message"]["content"] for one in found if one["kind"] == "message"]
    assert messages == ["398", "399"]


def test_records_are_shown_with_all_that_they_hold(path: Path) -> None:
    shown = invoke(path, "show", "claim-4711", "--records").stdout
    with perdure.open(path) as store:
        for record in store.records("claim-4711"):
            assert f"{record.position:>4}  {record.kind}  2026-01-01T00:" in shown
            assert f"id {safe(record.id)}\n" in shown
            assert f"digest {record.digest}\n" in shown
    assert "bookkeeping" not in shown


def test_what_is_long_is_cut_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "long.db"
    with perdure.open(path) as store:
        store.session("s").append(said("y" * 10_000))
    shown = invoke(path, "show", "s").stdout
    assert "… 8,000 characters more: --full shows them" in shown
    assert "8,000 characters were cut: --full shows everything." in shown
    assert "".join(shown.split()).count("y" * 2000) == 1
    assert "".join(shown.split()).count("y" * 2001) == 0
    full = invoke(path, "show", "s", "--full").stdout
    assert "".join(full.split()).count("y" * 10_000) == 1
    assert "--full" not in full
    assert max(map(len, full.splitlines()[1:])) < 80


def test_the_state_of_an_adapter_is_one_line_unless_all_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    state = {"format": 2, "agents": ["a" * 300, "b"], "run": {"method": "initiate_chat"}}
    reply = {"completion": "c" * 500, "cost": 0}
    with perdure.open(path) as store, store.session("s") as session:
        session.set("autogen", state)
        session.set("autogen", {**state, "run": None})
        session.set("own", state)
        with session.turn("Go."):
            session.model(lambda _: reply, name="m")("Go.")
            session.model(lambda _: {"text": "short"}, name="m")("Go.")
            session.tool(lambda: reply, name="t")()
    shown = invoke(path, "show", "s").output
    lines = [line.strip() for line in shown.splitlines() if "characters of JSON" in line]
    sizes = [len(json.dumps(data)) for data in (state, {".run": ["=", None]}, reply)]
    names = ["format, agents, run", ".run", "completion, cost"]
    assert lines[:3] == [
        f"{size} characters of JSON: {named}" for size, named in zip(sizes, names, strict=True)
    ]
    assert '{"text": "short"}' in shown
    assert shown.index(lines[-1]) > shown.index("Values") > shown.index(lines[2])
    assert lines[-1].endswith(names[0])
    assert "value own (version 1)\n      {" in shown, "what an application stores is shown"
    assert "ccc" in shown, "and what its tools returned"
    assert "--full shows everything" in shown
    full = invoke(path, "show", "s", "--full").output
    assert "characters of JSON" not in full
    assert '"run": {"method": "initiate_chat"}' in full.replace("\n      ", " ")


def test_the_keys_of_adapters_are_known_to_show() -> None:
    """The command line may not import adapters, so that it names their keys itself."""
    folder = Path(perdure.__file__).parent / "adapters"
    sources = [folder / "autogen/saved_chat.py", folder / "agentchat/saved_runs.py"]
    text = "".join(path.read_text() for path in sources)
    keys = re.findall(r'^\w*KEY = "(.+?)"', text, re.MULTILINE)
    assert {*keys} == ADAPTER_KEYS


def test_a_branch_shows_the_past_that_it_shares(path: Path) -> None:
    shown = invoke(path, "show", "what-if").stdout
    assert "6  ── branch of claim-4711 at 5: shared up to here ──" in shown
    assert "You are a claims assistant." in shown
    assert "1. Check coverage." not in shown
    assert shown.index("What if?") > shown.index("branch of")


def test_a_deleted_session_shows_what_stays(path: Path) -> None:
    done = invoke(path, "show", "gone")
    assert done.exit_code == 0
    assert "deleted at position 2" in done.stdout
    assert "DELETED: all earlier records are dropped" in done.stdout
    assert "asked for" in done.stdout


def test_an_abandoned_turn_and_one_that_was_taken_over_say_so(path: Path) -> None:
    with perdure.open(path) as store:
        session = store.session("claim-4711")
        (turn,) = session.interrupted
        with turn:
            turn.append(said("Then this.", "assistant"))
            turn.abandon("no longer needed")
    shown = invoke(path, "show", "claim-4711").stdout
    assert "── turn (req-11) is resumed ──" in shown
    assert "── turn (req-11) was abandoned ──" in shown
    assert "no longer needed" in shown
    assert "INTERRUPTED" not in shown


def test_messages_of_turns_side_by_side_name_their_turn(tmp_path: Path) -> None:
    path = tmp_path / "two.db"
    with perdure.open(path) as store:
        session = store.session("s")
        with session.turn("a", id="one") as one, session.turn("b", id="two") as two:
            one.append(said("1", "assistant"))
            two.append(said("2", "assistant"))
    shown = invoke(path, "show", "s").stdout
    assert "assistant, in turn one" in shown
    assert "assistant, in turn two" in shown


MESSAGES: list[tuple[dict[str, Any], list[str]]] = [
    (said([{"type": "text", "text": "Look:"}, {"type": "image_url"}]), ["Look:", '"image_url"']),
    (said([{"type": "tool_use", "name": "f", "id": "i", "input": {}}]), ["→ f({}) [i]"]),
    ({"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}, ["→ f()"]),
    (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
        ["f({)"],
    ),
    ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}, ["[1]"]),
    ({"role": "assistant", "tool_calls": ["odd", {"function": 1}]}, ['→ "odd"', '{"function": 1}']),
    ({"role": "assistant", "tool_calls": {"odd": 1}}, ['→ {"odd": 1}']),
    ({"role": "assistant", "content": None, "refusal": "I can not."}, ["refusal: I can not."]),
    ({"no": "role", "n": 1}, ["message", "no: role", "n: 1"]),
    (said({"price": Decimal("1.50")}), ['{"price": {"$decimal": "1.50"}}']),
    ({"role": 7, "content": 8}, ["7", "8"]),
    (said(["plain", 3]), ["plain", "3"]),
]


@pytest.mark.parametrize(("message", "wanted"), MESSAGES)
def test_messages_of_all_shapes_are_shown_sensibly(
    message: dict[str, Any], wanted: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "shapes.db"
    # Other programs may have written what this one refuses.
    with mock.patch("perdure.core.messages.require_message"), perdure.open(path) as store:
        store.session("s").append(message, channel="team", origin="web")
    shown = invoke(path, "show", "s").stdout
    for text in wanted:
        assert text in shown
    assert "in team from web" in shown


def test_objects_of_unknown_classes_are_shown_as_stored(tmp_path: Path) -> None:
    path = tmp_path / "typed.db"
    codec = perdure.TypeCodec(complex, lambda z: [z.real, z.imag], lambda z: complex(*z))
    with perdure.open(path, types={"complex": codec}) as store:
        session = store.session("s")
        session.append({**said(""), "impedance": 1 + 2j})
        session.set("z", 3j)
    shown = invoke(path, "show", "s").stdout
    assert '{"$type": ["complex", [1.0, 2.0]]}' in shown
    assert invoke(path, "ls").exit_code == 0


@pytest.mark.parametrize("as_json", [False, True])
def test_a_damaged_session_is_shown_as_far_as_it_can_be_read(path: Path, *, as_json: bool) -> None:
    flip(path, b"checked by phone")
    done = invoke(path, "show", "claim-4711", *(["--json"] if as_json else []))
    assert done.exit_code == 1
    if as_json:
        found = objects(done)
        assert [one["position"] for one in found] == list(range(1, 19))
        assert found[9] == {
            "session": "claim-4711",
            "position": 10,
            "unreadable": "its body does not match the digest in its header",
        }
    else:
        assert "  10  UNREADABLE: its body does not match the digest in its header" in done.stdout
        assert "And then?" in done.stdout
        assert "checked" not in done.stdout


def test_a_session_that_can_not_be_opened_is_shown_as_damaged(path: Path) -> None:
    damage(path, "update entry set header = 'x' where stream = :place and position = 18")
    done = invoke(path, "show", "claim-4711")
    assert done.exit_code == 1
    assert "position 18, DAMAGED" in done.stdout
    assert "  18  UNREADABLE: its header does not parse" in done.stdout


def test_a_value_whose_past_is_damaged_says_so(path: Path) -> None:
    with perdure.open(path) as store:
        session = store.session("claim-4711")
        for number in range(300):  # A snapshot, so that the session opens without the damage.
            session.note(number)
    damage(path, "update entry set body = body || ' ' where stream = :place and position = 8")
    done = invoke(path, "show", "claim-4711")
    assert done.exit_code == 1
    assert "plan: UNREADABLE: its body" in done.stdout


def test_pages_of_the_index_are_bookkeeping(path: Path) -> None:
    with perdure.open(path) as store:
        session = store.session("noted")
        for number in range(300):
            session.note(number, id=f"note-{number}")
    shown = invoke(path, "show", "noted").stdout
    assert "page of the index" not in shown
    assert "records of bookkeeping not shown" in shown
    assert "index" in invoke(path, "show", "noted", "--records").stdout.split()


def test_a_result_that_stands_in_a_message_is_not_shown_as_null(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    call = {"id": "c1", "type": "function", "function": {"name": "large", "arguments": "{}"}}

    def large() -> str:
        return "word " * 400

    with perdure.open(path) as store:
        session = store.session("s")
        with session.turn("Look.") as turn:
            turn.append({"role": "assistant", "tool_calls": [call]})
            session.run_tool_calls(None, [large])
    shown = invoke(path, "show", "s").stdout
    assert "the result is in the message above" in shown
    assert "null" not in shown


def test_headers_are_printed_as_they_are_stored(tmp_path: Path) -> None:
    for option in ("", "?compress=zstd"):
        address = f"sqlite:{tmp_path}/store{len(option)}.db{option}"
        with perdure.open(address) as store:
            for text in ("a", "é"):
                store.session("s").append({"role": "user", "content": text})
            store.session("s").note("x")
            digest = store.session("s").verify().digest
        headers = invoke(address, "show", "s", "--headers").stdout_bytes.splitlines()
        assert [json.loads(header)[3] for header in headers] == [1, 2, 3]
        assert digest_of(headers[-1]) == digest
        assert len(invoke(address, "show", "s", "--headers", "--at", "2").stdout.splitlines()) == 2


def test_large_bodies_are_shown_by_their_size(tmp_path: Path) -> None:
    path = tmp_path / "media.db"
    url = "data:image/png;base64," + "QUJD" * 2_000
    with perdure.open(path) as store:
        session = store.session("s")
        image = {"type": "image_url", "image_url": {"url": url}}
        session.append({"role": "user", "content": [image]})
        session.append(said("long text " * 200_000))
        session.set("v", {"file": session.upload(bytes(20_000_000), media_type="video/mp4")})
        session.note({"raw": bytes(5_000)})
    shown = invoke(path, "show", "s").output
    for text in ("[6,000 bytes of image/png]", "[2,000,000 bytes]", "large body, 6,027 bytes"):
        assert text in shown, shown
    assert '{"file": "[20,000,000 bytes of video/mp4]"}' in shown
    assert '{"raw": "[5,000 bytes]"}' in shown
    assert "QUJD" not in shown
    rows = objects(invoke(path, "show", "s", "--json"))
    kinds = {row["kind"]: row["content"] for row in rows}
    assert kinds["message"]["message"]["content"]["$large"]["size"] == 2_000_000
    assert kinds["part"].keys() == {"size"}
