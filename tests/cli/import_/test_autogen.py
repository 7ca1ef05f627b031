"""`perdure import --autogen`: whoever spoke is known, from whichever side the list was kept."""

import json
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.journal.records import Message
from tests.cli.support import invoke, objects

CALLS = [{"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}]
RESULTS = [{"tool_call_id": "call_1", "role": "tool", "content": "in force"}]


def heard(text: str, name: str = "user_proxy", role: str = "user") -> dict[str, Any]:
    return {"content": text, "role": role, "name": name}


def answered(text: str, name: str = "assistant", role: str = "assistant") -> dict[str, Any]:
    return heard(text, name, role)


CHAT = [
    heard("Draft a claims escalation checklist."),
    {"content": None, "tool_calls": CALLS, "role": "assistant"},
    {"content": "in force", "tool_responses": RESULTS, "role": "tool", "name": "user_proxy"},
    answered("1. Confirm the policy."),
]
SPOKEN = [("user_proxy", "assistant"), ("assistant", "user_proxy")] * 2


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def keep(messages: object, name: str = "chat_state.json") -> str:
    Path(name).write_text(json.dumps(messages, indent=2), encoding="utf-8")
    return name


def contents(session: str = "chat_state") -> list[Message]:
    with perdure.open("agents.db") as store:
        found = [record.content for record in store.records(session)]
    return [content for content in found if isinstance(content, Message)]


def spoken(session: str = "chat_state") -> list[tuple[str, str]]:
    return [(content.author, content.recipient) for content in contents(session)]


def test_each_message_has_its_speaker_and_is_as_it_was() -> None:
    done = invoke(None, "import", "--autogen", keep(CHAT))
    assert (done.exit_code, done.stderr) == (0, "")
    assert spoken() == SPOKEN
    assert [content.message for content in contents()] == CHAT
    assert {content.channel for content in contents()} == {"autogen"}
    assert {content.origin for content in contents()} == {"import:chat_state.json"}


def test_the_other_side_s_list_gives_the_same_and_says_what_was_repaired() -> None:
    other = [
        heard("Draft a claims escalation checklist.", role="assistant"),
        *CHAT[1:3],
        answered("1. Confirm the policy.", role="user"),
    ]
    done = invoke(None, "import", "--autogen", "--json", keep(other))
    assert done.exit_code == 0
    assert [content.message for content in contents()] == CHAT
    assert spoken() == SPOKEN
    (told,) = objects(done)
    assert [repair["element"] for repair in told["repairs"]] == [1, 4]
    assert "the role 'assistant' in a message of user_proxy" in told["repairs"][0]["found"]


def test_a_list_that_was_copied_into_both_agents_is_told_apart_by_names() -> None:
    mixed = [*CHAT, heard("Refine that.", role="assistant"), answered("Refined.", role="user")]
    invoke(None, "import", "--autogen", keep(mixed))
    assert [content.message["role"] for content in contents()][-2:] == ["user", "assistant"]
    assert spoken() == [*SPOKEN, *SPOKEN[:2]]


def test_names_that_are_not_in_the_file_are_the_tutorial_s_or_those_given() -> None:
    bare = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    invoke(None, "import", "--autogen", keep(bare))
    assert spoken() == SPOKEN[:2]
    words = ("--session", "named", "--between", "me", "clerk")
    invoke(None, "import", "--autogen", *words, keep(bare))
    assert spoken("named") == [("me", "clerk"), ("clerk", "me")]


def test_calls_without_a_name_are_those_of_the_one_who_was_spoken_to() -> None:
    results = {"role": "tool", "content": "in force", "tool_responses": RESULTS}
    invoke(None, "import", "--autogen", keep([*CHAT[:2], results, CHAT[3]]))
    assert spoken() == SPOKEN


def test_importing_again_adds_nothing_and_goes_on_after_a_crash() -> None:
    from perdure.cli.import_.plan import find_existing, plan_import, run_import

    data = Path(keep(CHAT)).read_bytes()
    made = plan_import("chat_state.json", data, "chat_state", autogen=True)
    with perdure.open("agents.db") as store:
        next(
            run_import(store, made, find_existing(store, made))
        )  # It dies after the first message.
    assert len(contents()) == 1
    invoke(None, "import", "--autogen", "chat_state.json")
    assert [content.message for content in contents()] == CHAT
    done = invoke(None, "import", "--autogen", "chat_state.json")
    assert "nothing was added" in done.stdout
    assert len(contents()) == len(CHAT)


def test_a_recovered_list_may_have_messages_without_content() -> None:
    listed = [{"role": "user"}, {"role": "user", "content": None}, CHAT[0]]
    done = invoke(None, "import", keep(listed))
    assert done.exit_code == 0
    assert [content.message for content in contents()] == listed


def test_the_same_file_as_a_plain_list_is_not_mistaken_for_a_chat() -> None:
    invoke(None, "import", keep(CHAT))
    done = invoke(None, "import", "--autogen", "chat_state.json")
    assert done.exit_code != 0
    assert "has 4 other messages" in done.stderr
    assert {content.channel for content in contents()} == {""}


@pytest.mark.parametrize(
    ("words", "messages", "reason"),
    [
        ((), [heard("a", "x"), heard("b", "y"), heard("c", "z")], "it has messages of 3 agents"),
        (("--between", "me", "clerk"), CHAT, "it has messages of 'assistant'"),
    ],
)
def test_what_is_not_a_chat_of_two_is_refused(
    words: tuple[str, ...], messages: object, reason: str
) -> None:
    done = invoke(None, "import", "--autogen", *words, keep(messages))
    assert done.exit_code != 0
    assert reason in done.stderr
    assert not Path("agents.db").exists()


def test_between_needs_autogen() -> None:
    done = invoke(None, "import", "--between", "a", "b", keep(CHAT))
    assert done.exit_code != 0
    assert "--autogen as well" in done.stderr


def test_instructions_are_kept_in_a_note_and_told() -> None:
    done = invoke(
        None, "import", "--autogen", keep([{"role": "system", "content": "Be brief."}, *CHAT])
    )
    assert done.exit_code == 1
    assert "instructions" in done.stdout
    assert [content.message for content in contents()] == CHAT


def test_what_no_agent_could_be_given_is_kept_in_a_note_and_told() -> None:
    silent = {"role": "assistant", "name": "assistant", "content": None}
    orphan = {"role": "tool", "content": "paid", "tool_responses": RESULTS}
    done = invoke(None, "import", "--autogen", keep([orphan, *CHAT, silent]))
    assert done.exit_code == 1
    assert "a tool result without its call" in done.stdout
    assert "a message without content" in done.stdout
    assert [content.message for content in contents()] == CHAT
