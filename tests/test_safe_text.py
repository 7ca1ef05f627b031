"""Untrusted text is shown without harm, and a printed command runs what it shows."""

import json
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

import perdure
from perdure.errors import ApprovalPendingError
from perdure.safe_text import is_safe, safe, safe_json, shell_command, shell_word

BASH = shutil.which("bash") or ""
SNEAKY = ["\n", "\r", "\x1b[2J", "\x00", "\x85", "\u2028", "\u2029", "\u202e", "\u2066", "\u200b"]
SNEAKY += ["\ufeff", "\u3164", "\U000e0041", "\x7f", "\u061c"]
PLAIN = ["", "claim-4711", "a b", "it's", 'say "hi"', "$HOME `id`", "Zürich", "日本", "👩‍🚒", "\\n"]


@pytest.mark.parametrize("text", SNEAKY)
def test_unsafe_characters_are_escaped(text: str) -> None:
    assert not is_safe(f"a{text}b")
    assert is_safe(safe(f"a{text}b"))
    assert safe(f"a{text}b") not in (f"a{text}b", "ab")


@pytest.mark.parametrize("text", PLAIN)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert safe(text) == text


def test_every_control_and_separator_is_unsafe() -> None:
    kinds = ("Cc", "Zl", "Zp", "Cs")
    characters = [
        chr(code) for code in range(0x11_0000) if unicodedata.category(chr(code)) in kinds
    ]
    assert len(characters) > 2_000
    assert not any(is_safe(character) for character in characters)


def test_every_format_character_is_unsafe_but_the_joiners_and_what_is_seen() -> None:
    formats = {chr(code) for code in range(0x11_0000) if unicodedata.category(chr(code)) == "Cf"}
    # Signs that enclose or precede Arabic, Syriac and Kaithi digits and letters.
    seen = {*"\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"}
    seen |= {*"\U000110bd\U000110cd"}
    assert {character for character in formats if is_safe(character)} <= {*"\u200c\u200d", *seen}


@pytest.mark.parametrize("text", [*SNEAKY, *PLAIN])
def test_a_json_document_means_the_same(text: str) -> None:
    document = json.dumps({"text": text, text: 1}, ensure_ascii=False)
    shown = safe_json(document)
    assert is_safe(shown)
    assert json.loads(shown) == {"text": text, text: 1}


@pytest.mark.skipif(not BASH, reason="there is no bash here")
@pytest.mark.parametrize("word", [text for text in [*SNEAKY, *PLAIN] if "\x00" not in text])
def test_a_shell_reads_the_very_word(word: str) -> None:
    tricky = f"-{word}'\\"
    command = f"printf %s {shell_word(tricky)}"
    assert is_safe(command)
    environment = {"LC_ALL": "C.UTF-8"}
    done = subprocess.run([BASH, "-c", command], capture_output=True, env=environment, check=True)
    assert done.stdout == tricky.encode()


@pytest.mark.parametrize(
    ("ids", "command"),
    [
        (["s"], "perdure show s --store a.db"),
        (["-s"], "perdure show --store a.db -- -s"),
        (["--store=other.db"], "perdure show --store a.db -- --store=other.db"),
        (["s", "-x"], "perdure show --store a.db -- s -x"),
        (["a b"], "perdure show 'a b' --store a.db"),
    ],
)
def test_an_id_that_begins_with_a_dash_is_not_an_option(ids: list[str], command: str) -> None:
    assert shell_command("perdure", "show", ids=ids, options=["--store", "a.db"]) == command


@pytest.mark.skipif(not BASH, reason="there is no bash here")
@pytest.mark.parametrize("name", ["s", "--store=other.db", "--help", "-h", "x\u202ey", "it's -a"])
def test_the_command_to_approve_a_call_approves_that_call(name: str, tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    with perdure.open(path) as store:
        session = store.session(name)
        tool = session.tool(lambda: "paid", name="pay", approval=True, approval_wait=0)
        with pytest.raises(ApprovalPendingError) as caught, session.turn("Pay."):
            tool()
    command = caught.value.command
    assert is_safe(command)
    assert command in str(caught.value)
    program = f"{sys.executable} -m perdure approve --yes --by ada"
    run = [BASH, "-c", command.replace("perdure approve", program, 1)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "Approved, by ada" in done.stdout, done.stderr
    with perdure.open(path) as store:
        assert store.session(name).approvals.list()[0].state == "approved"
