"""What other programs left in JSON files: everything readable is taken, nothing goes in silence."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.cli.import_.encodings import DecodedFile
from perdure.cli.import_.json_recovery import read_elements
from perdure.cli.import_.messages import ImportedMessages, parse_file
from perdure.errors import UsageError
from perdure.formats.intake import require_role
from perdure.journal.codec import Codec

HELLO: dict[str, Any] = {"role": "user", "content": "Hello, how are you?"}
REPLY: dict[str, Any] = {
    "role": "assistant",
    "content": "I'm doing well, thank you! How can I assist you today?",
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLING: dict[str, Any] = {"content": None, "role": "assistant", "tool_calls": [CALL]}
# As AutoGen keeps the messages of an assistant that talks with a user proxy.
AUTOGEN: list[dict[str, Any]] = [
    {"content": "Draft a claims escalation checklist.", "role": "user", "name": "user_proxy"},
    {"content": "1. Bestätige die Police 📋", "role": "assistant", "name": "assistant"},
    {"content": "", "role": "assistant", "tool_calls": [CALL], "name": "assistant"},
    {
        "content": "42",
        "tool_responses": [{"tool_call_id": "call_1", "role": "tool", "content": "42"}],
        "role": "tool",
        "name": "user_proxy",
    },
    {"content": "TERMINATE", "role": "assistant", "name": "assistant"},
]


def chat_state(messages: list[dict[str, Any]], folder: Path) -> bytes:
    """Keep messages as the tutorial on AutoGen does."""
    state_file = folder / "chat_state.json"
    state_file.write_text(json.dumps(messages, indent=2), encoding="utf-8")
    return state_file.read_bytes()


def agent_memory(memory: list[dict[str, Any]], folder: Path) -> bytes:
    """Keep messages as the tutorial on OpenAI does."""
    memory_file = str(folder / "agent_memory.json")
    with open(memory_file, "w") as f:  # noqa: PTH123 - what the tutorial does.
        json.dump(memory, f, indent=2)
    return Path(memory_file).read_bytes()


def told(imported: ImportedMessages) -> list[tuple[int | None, str]]:
    return [(repair.element, repair.found) for repair in imported.repairs]


def dumped(*elements: object) -> bytes:
    return json.dumps(elements).encode()


def test_the_files_of_both_tutorials_are_taken_as_they_are(tmp_path: Path) -> None:
    for data, messages in (
        (chat_state(AUTOGEN, tmp_path), AUTOGEN),
        (agent_memory([HELLO, REPLY] * 3, tmp_path), [HELLO, REPLY] * 3),
    ):
        assert parse_file(data) == ImportedMessages(messages, [], [], {})


@pytest.mark.parametrize("indent", [None, 2])
def test_a_cut_file_gives_every_message_before_the_cut(indent: int | None) -> None:
    data = json.dumps(AUTOGEN, indent=indent, ensure_ascii=False).encode()
    counts = []
    for length in range(len(data)):
        imported = parse_file(data[:length])
        count = len(imported.messages)
        counts.append(count)
        assert imported.messages == AUTOGEN[:count]
        assert imported.repairs
        rest = data[:length].decode("utf-8", "replace").rstrip().rstrip(",")
        whole = json.dumps(AUTOGEN[:count], indent=indent, ensure_ascii=False)[:-1].rstrip()
        left = "".join(leftover.raw for leftover in imported.leftovers)
        assert rest.removeprefix(whole).lstrip(", \n") == left.rstrip(",") or count == 0
    assert counts == sorted(counts)
    assert counts[-1] == len(AUTOGEN)


def test_what_is_cut_off_is_named_by_its_byte_and_kept() -> None:
    data = b'[{"role": "user", "content": "one"}, {"role": "assi'
    imported = parse_file(data)
    assert imported.messages == [{"role": "user", "content": "one"}]
    (leftover,) = imported.leftovers
    assert leftover.raw == '{"role": "assi'
    assert data[leftover.byte :].decode() == leftover.raw
    (repair,) = imported.repairs
    assert (repair.element, repair.byte) == (2, data.index(b'"assi'))
    assert repair.found == "truncated, or damaged from here on: unterminated string"
    assert repair.done == "its text is kept in a note"


@pytest.mark.parametrize("layout", ["indented", "lines", "a line each"])
def test_damage_in_the_middle_costs_one_element(layout: str) -> None:
    messages = [{**HELLO, "content": f"message {number}"} for number in range(9)]
    if layout == "indented":
        data = json.dumps(messages, indent=2)
    else:
        data = (",\n" if layout == "a line each" else "\n").join(map(json.dumps, messages))
        data = f"[\n{data}\n]" if layout == "a line each" else data
    broken = data.replace('"message 4"', '"message 4', 1)
    imported = parse_file(broken.encode())
    assert imported.messages == messages[:4] + messages[5:]
    (leftover,) = imported.leftovers
    assert '"message 4' in leftover.raw
    assert "message 5" not in leftover.raw
    assert leftover.element == 5
    assert [repair.element for repair in imported.repairs] == [5]


@pytest.mark.parametrize(
    ("role", "known"),
    [
        ("human", "user"),
        ("ai", "assistant"),
        ("bot", "assistant"),
        ("model", "assistant"),
        ("User", "user"),
        (" ASSISTANT ", "assistant"),
    ],
)
def test_what_others_call_a_role_is_translated_and_told(role: str, known: str) -> None:
    imported = parse_file(dumped({"role": role, "content": "x"}))
    assert imported.messages == [{"role": known, "content": "x"}]
    assert told(imported) == [(1, f"the role {role!r}")]
    assert imported.repairs[0].done == f"read as {known!r}"


def test_the_roles_that_providers_know_are_left_alone() -> None:
    parts: dict[str, Any] = {"role": "model", "parts": [{"text": "x"}]}
    messages = [{"role": role, "content": "x"} for role in ("system", "developer", "user")]
    assert parse_file(dumped(*messages, parts)) == ImportedMessages([*messages, parts], [], [], {})


def test_an_unknown_speaker_becomes_a_user_of_that_name() -> None:
    imported = parse_file(dumped({"role": "Claims Desk", "content": "x"}))
    assert imported.messages == [{"role": "user", "name": "Claims_Desk", "content": "x"}]
    assert told(imported) == [(1, "the role 'Claims Desk'")]
    named = {"role": "moderator", "name": "ann", "content": "x"}
    assert parse_file(dumped(named)).messages == [{**named, "role": "user"}]


def test_what_langchain_and_others_make_of_a_message_is_taken() -> None:
    data = dumped(
        {"from": "human", "value": "one"},
        {"from": "gpt", "value": "two"},
        {"type": "human", "id": "run-1", "data": {"content": "three", "additional_kwargs": {}}},
        {"type": "ai", "content": "four"},
    )
    imported = parse_file(data)
    assert [message["role"] for message in imported.messages] == ["user", "assistant"] * 2
    said = [message["content"] for message in imported.messages]
    assert said == ["one", "two", "three", "four"]
    assert imported.messages[2] == {
        "role": "user",
        "content": "three",
        "additional_kwargs": {},
        "id": "run-1",
    }
    assert {repair.element for repair in imported.repairs} == {1, 2, 3, 4}


def test_items_of_openai_responses_are_taken_as_they_are() -> None:
    items: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": "x"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ]
    assert parse_file(dumped(*items)) == ImportedMessages(items, [], [], {})


@pytest.mark.parametrize(
    "element",
    [
        None,
        3,
        "hello",
        True,
        [HELLO],
        {},
        {"content": "who said this?"},
        {"role": 3, "content": "x"},
        {"role": " ", "content": "x"},
        {"type": "function", "function": {"name": "look"}, "id": "call_1"},
        {"type": "function_call_output", "output": "of which call?"},
        {"messages": [HELLO]},
    ],
)
def test_what_is_no_message_is_kept_and_told(element: object) -> None:
    imported = parse_file(dumped(HELLO, element, REPLY))
    assert imported.messages == [HELLO, REPLY]
    (leftover,) = imported.leftovers
    assert (leftover.element, json.loads(leftover.raw)) == (2, element)
    assert leftover.reason
    (repair,) = imported.repairs
    assert repair.found == f"not a message: {leftover.reason}"


def test_orphan_results_are_kept_and_told() -> None:
    orphan = {"role": "tool", "tool_call_id": "call_9", "content": "x"}
    imported = parse_file(dumped(HELLO, orphan, REPLY))
    assert imported.messages == [HELLO, orphan, REPLY]
    assert told(imported) == [(2, "a result for the unknown call 'call_9'")]


def test_calls_without_a_result_are_kept_and_told() -> None:
    imported = parse_file(dumped(HELLO, CALLING, REPLY))
    assert imported.messages == [HELLO, CALLING, REPLY]
    assert told(imported) == [(2, "the call 'call_1' has no result")]
    answered = {"role": "tool", "tool_call_id": "call_1", "content": "x"}
    assert parse_file(dumped(HELLO, CALLING, answered)).repairs == []


def test_a_result_that_names_no_call_is_given_to_the_only_open_one() -> None:
    nameless = {"role": "tool", "content": "x"}
    imported = parse_file(dumped(CALLING, nameless))
    assert imported.messages == [CALLING, {**nameless, "tool_call_id": "call_1"}]
    assert told(imported) == [(2, "a tool result without a call id")]
    for before in ([], [{**CALLING, "tool_calls": [CALL, {**CALL, "id": "call_2"}]}]):
        imported = parse_file(dumped(*before, nameless))
        assert imported.messages == before
        assert len(imported.leftovers) == 1


def test_a_reply_whose_calls_were_dropped_is_told() -> None:
    """The tutorial on OpenAI keeps only the content of a message, which is null for a call."""
    imported = parse_file(dumped(HELLO, {"role": "assistant", "content": None}, {"role": "user"}))
    assert len(imported.messages) == 3
    assert told(imported) == [
        (2, "a message without content"),
        (3, "a message without content"),
    ]
    refused = {"role": "assistant", "content": None, "refusal": "I can not."}
    assert parse_file(dumped(refused)) == ImportedMessages([refused], [], [], {})


@pytest.mark.parametrize(
    ("content", "text"), [({"a": [1]}, '{"a":[1]}'), (42, "42"), (True, "true"), (1.5, "1.5")]
)
def test_content_of_another_type_becomes_its_json(content: object, text: str) -> None:
    imported = parse_file(dumped({"role": "user", "content": content}))
    assert imported.messages == [{"role": "user", "content": text}]
    assert len(imported.repairs) == 1


def test_json_lines_and_concatenated_objects_are_read() -> None:
    for between in ("\n", "\r\n", "\n\n", " ", ""):
        text = between.join(map(json.dumps, [HELLO, REPLY]))
        assert parse_file(text.encode()) == ImportedMessages([HELLO, REPLY], [], [], {})


@pytest.mark.parametrize("key", ["messages", "history", "memory"])
def test_an_object_that_holds_messages_is_read_with_what_stands_beside_them(key: str) -> None:
    data = json.dumps({"model": "gpt-4o", key: [HELLO, REPLY], "at": [1, {"x": None}]}).encode()
    about = {"model": "gpt-4o", "at": [1, {"x": None}]}
    assert parse_file(data) == ImportedMessages([HELLO, REPLY], [], [], about)
    for length in range(data.index(b"Hello"), len(data)):
        cut = parse_file(data[:length])
        assert cut.messages == [HELLO, REPLY][: len(cut.messages)]
        assert cut.repairs
        assert len(cut.messages) == 2 or length <= data.index(b'"at"')


def test_damage_before_the_messages_does_not_hide_them() -> None:
    imported = parse_file(b'{"model": gpt-4o, "messages": [{"role": "user", "content": "x"}]}')
    assert imported.messages == [{"role": "user", "content": "x"}]
    assert imported.leftovers[0].raw == '"model": gpt-4o,'


def test_a_single_message_is_a_file_too() -> None:
    assert parse_file(json.dumps(HELLO).encode()) == ImportedMessages([HELLO], [], [], {})


@pytest.mark.parametrize(
    ("data", "found", "byte"),
    [
        (b'\xef\xbb\xbf[{"role": "user", "content": "x"}]', "a byte order mark", 0),
        ("\ufeff" + '[{"role": "user", "content": "x"}]', "a byte order mark", 0),
        (b'[{"role": "user", "content": "x"},]', "an extra comma", 33),
        (b'[,{"role": "user", "content": "x"}]', "an extra comma", 1),
        (b'[{"role": "user", "content": "x"}', "the file ends before its list does", 33),
        (b'[{"role": "user", "content": "x"}]]', "text after the end", 34),
        (b'[{"role": "user", "content": "x"}]\0\0', "2 zero bytes at the end, as a ", 34),
    ],
)
def test_what_is_wrong_around_the_messages_is_told_with_its_byte(
    data: bytes | str, found: str, byte: int
) -> None:
    imported = parse_file(data if isinstance(data, bytes) else data.encode("utf-16-le"))
    assert imported.messages == [{"role": "user", "content": "x"}]
    assert imported.repairs[0].found.startswith(found)
    assert imported.repairs[0].byte == byte


@pytest.mark.parametrize(
    ("element", "content", "found"),
    [
        ('{"role": "user", "content": "x, ]",}', "x, ]", "a comma before a closing bracket"),
        ('{"role": "user", "content": "a\tb"}', "a\tb", "an unescaped control character"),
        ('{"role": "user", "content": "x", "n": NaN}', "x", "NaN, which is not valid JSON"),
        ('{"role": "user", "content": "x", "n": -Infinity}', "x", "-Infinity, which is not"),
        ('{"role": "user", "content": "x", "n": 1e999}', "x", "1e999, which is not valid JSON"),
        (
            '{"role": "user", "content": "x", "n": ' + "7" * 5_000 + "}",
            "x",
            "an integer of 5,000 digits",
        ),
        ('{"role": "user", "content": "a\\ud83d"}', "a\ufffd", "a lone surrogate"),
    ],
)
def test_what_is_wrong_within_a_message_is_told_with_its_number(
    element: str, content: str, found: str
) -> None:
    imported = parse_file(f"[{json.dumps(REPLY)}, {element}]".encode())
    assert imported.messages[0] == REPLY
    assert imported.messages[1]["content"] == content
    (repair,) = imported.repairs
    assert repair.element == 2
    assert repair.found.startswith(found)
    Codec().pack(imported.messages)


def test_of_a_key_that_stands_twice_both_values_are_kept() -> None:
    imported = parse_file(b'[{"role": "user", "content": "first", "content": "last"}]')
    assert imported.messages == [{"role": "user", "content": "last"}]
    assert '"first"' in imported.leftovers[0].raw
    assert told(imported) == [(1, "the key 'content' 2 times in one object")]


def test_a_file_of_windows_is_read_as_such() -> None:
    data = '[{"role": "user", "content": "café “x”"}]'.encode("cp1252")
    imported = parse_file(data)
    assert imported.messages == [{"role": "user", "content": "café “x”"}]
    assert [(r.found, r.byte) for r in imported.repairs] == [
        ("not UTF-8 from here on", data.index(b"\xe9"))
    ]


def test_a_damaged_byte_costs_one_letter() -> None:
    data = '[{"role": "user", "content": "né ❌ né"}]'.encode().replace(b"\x9d\x8c", b"\xff\x8c")
    imported = parse_file(data)
    assert imported.messages[0]["content"].startswith("né \ufffd")
    assert imported.messages[0]["content"].endswith(" né")
    assert imported.repairs[0].byte == data.index(b"\xe2\xff")


@pytest.mark.parametrize("data", [b"", b"  \n ", b"\xef\xbb\xbf", b"\0\0\0"])
def test_an_empty_file_says_so(data: bytes) -> None:
    imported = parse_file(data)
    assert imported.messages == []
    assert imported.leftovers == []
    assert imported.repairs[-1].found == "an empty file"


@pytest.mark.parametrize("depth", [100, 450, 900, 5_000, 200_000])
def test_deep_nesting_is_kept_as_text(depth: int) -> None:
    tree = '{"x":' * depth + "1" + "}" * depth
    deep = f'{{"role": "user", "content": "x", "n": {tree}}}'
    imported = parse_file(f"[\n{json.dumps(HELLO)},\n{deep},\n{json.dumps(REPLY)}\n]".encode())
    assert imported.messages == [HELLO, REPLY]
    assert [left.raw.rstrip(",") for left in imported.leftovers] == [deep]
    said = f'{{"role": "user", "content": {tree}}}'
    imported = parse_file(f"[\n{said},\n{json.dumps(REPLY)}\n]".encode())
    if imported.leftovers:
        assert imported.messages == [REPLY]
        assert imported.leftovers[0].raw.rstrip(",") == said
    else:
        assert imported.messages == [{"role": "user", "content": tree}, REPLY]


def test_what_stands_beside_the_messages_is_kept_as_text_if_it_is_too_deep() -> None:
    imported = parse_file(b'{"deep": ' + b"[" * 100 + b"]" * 100 + b', "messages": []}')
    assert imported.about == {"deep": "[" * 100 + "]" * 100}
    assert any("nested" in repair.found for repair in imported.repairs)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("value", [[HELLO], HELLO, {"messages": [HELLO]}, "text", random.Random(1)])
def test_a_pickle_is_refused(value: object, protocol: int) -> None:
    import pickle

    data = pickle.dumps(value, protocol)
    if (value, protocol) != ("text", 1):  # It begins as any binary file may.
        with pytest.raises(UsageError, match="a pickle is not read"):
            parse_file(data)


MANY = 20_000  # So many would take minutes if each cost as much as all before it.


def test_a_cut_string_of_quotes_is_gone_through_once() -> None:
    (left,) = parse_file(b'[{"role":"user","content":"' + b'\\"' * 1_000_000).leftovers
    assert len(left.raw) == 2_000_026
    for end in (b"\\", b"x", b""):
        assert parse_file(b'[{"role":"user","content":"x",},{"a":"' + end).messages == [
            {"role": "user", "content": "x"}
        ]


@pytest.mark.parametrize(
    ("line", "messages"),
    [
        (b'{"role":"user","content":"%s",},\n', MANY),
        (b'{"role":"user" "content":"%s"}\n', 0),
        (b'{"role":"user","content":"%s\n', 0),
        (b'{"content":"%s","calls":[\n{"b" 1\n', 0),
    ],
)
@pytest.mark.timeout(60)
def test_damage_on_each_line_costs_what_the_line_does(line: bytes, messages: int) -> None:
    imported = parse_file(b"[\n" + line % (b"x" * 1_500) * MANY)
    assert len(imported.messages) == messages
    assert len(imported.leftovers) == (0 if messages else MANY * line.count(b"\n"))


def test_offsets_are_right_whichever_way_they_are_asked_for() -> None:
    text = "aé€😀" * 5
    for data, width in [(text.encode(), "utf-8"), (text.encode("utf-16"), "utf-16-le")]:
        source, draw = DecodedFile(data), random.Random(7)
        mark = 2 if width != "utf-8" else 0
        for _ in range(100):
            index = draw.randrange(len(text) + 1)
            assert source.byte_at(index) == mark + len(text[:index].encode(width))


@pytest.mark.timeout(60)
def test_many_keys_that_stand_twice_are_each_told() -> None:
    pairs = ",".join(f'"k{number}":1,"k{number}":2' for number in range(100_000))
    imported = parse_file(f'[{{"role":"user","content":"x",{pairs}}}]'.encode())
    assert len(imported.repairs) == 100_000
    assert imported.repairs[0].found == "the key 'k0' 2 times in one object"


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"[]", "an empty list"),
        (b'{"messages": []}', "no message under 'messages', 'history', "),
        (
            b'{"state": {"messages": [{"role": "user", "content": "x"}]}}',
            "; other keys: 'state'",
        ),
    ],
)
def test_why_there_is_no_message_is_told(data: bytes, found: str) -> None:
    (repair,) = parse_file(data).repairs
    assert found in repair.found
    assert repair.done == "no message was found"


@given(
    st.binary(max_size=200) | st.text("[]{}\",:\\ \n0truefalsn-.eE'é", max_size=200).map(str.encode)
)
def test_whatever_a_file_holds_nothing_is_lost_and_nothing_raised(data: bytes) -> None:
    try:
        imported = parse_file(data)
    except UsageError:
        assert data[:1] in b"\x80]}(VSc"  # As only a pickle begins.
    else:
        check(data, imported)


def test_a_changed_file_loses_nothing_in_silence() -> None:
    untouched = 0
    for seed in range(1_000):
        draw = random.Random(seed)
        messages = [draw.choice([HELLO, REPLY, *AUTOGEN]) for _ in range(draw.randrange(1, 8))]
        data = changed(json.dumps(messages, indent=draw.choice([None, 2])).encode(), draw)
        imported = parse_file(data)
        check(data, imported)
        untouched += sum(message in messages for message in imported.messages)
    assert untouched > 1_500  # Most of them, that is: damage costs little.


def test_every_letter_of_a_damaged_list_is_in_an_element() -> None:
    tried = 0
    for seed in range(1_000):
        draw = random.Random(seed)
        data = changed(json.dumps(AUTOGEN, indent=draw.choice([None, 2])).encode(), draw)
        text = data.rstrip(b"\0").decode("utf-8", "replace")
        if "\ufffd" in text:
            continue
        at = 0
        for element in read_elements(data).elements:
            assert text[at : element.byte].strip(" \t\r\n,[]") == "", seed
            assert text.startswith(element.raw, element.byte)
            at = element.byte + len(element.raw)
        assert text[at:].strip(" \t\r\n,[]") == "", seed
        tried += 1
    assert tried > 500


def changed(data: bytes, draw: random.Random) -> bytes:
    """Damage a file in one to three places."""
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(1, len(data) + 1)
        start, end = data[:at], data[at:]
        gone = draw.randrange(30)
        put = draw.choice([b",", b"}", b"\0", b'"', b"\xff", b"NaN", draw.randbytes(1)])
        data = draw.choice([start + put + end, start + put + end[1:], start + end[gone:], start])
    return data


def check(data: bytes, imported: ImportedMessages) -> None:
    """Each message can be appended, and each leftover stands in the file."""
    for message in imported.messages:
        require_role(message)
        Codec().pack(message)
    for leftover in imported.leftovers:
        assert leftover.reason
        Codec().pack(leftover.raw)
    if imported.leftovers:
        assert imported.repairs
    if data.strip(b"\0 \t\r\n[]{},") and not imported.messages:
        assert imported.repairs or imported.about or not data.strip(b"\xef\xbb\xbf\xff\xfe")
