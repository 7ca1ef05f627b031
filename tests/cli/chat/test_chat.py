"""`perdure chat` in a pipe: answers, errors, commands, exit codes, the scripted model."""

import json
import logging
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import perdure
from perdure.cli.__main__ import main
from perdure.cli.chat.model import explain_error
from perdure.cli.chat.view import StreamPrinter
from perdure.testing import ModelServer
from tests.cli.support import EVIL, SNEAKY, interrupt, objects, said

ENDS = {"turn.completed", "turn.failed", "turn.abandoned"}


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agents.db"


def chat(
    path: Path, *arguments: str, say: str = "", server: ModelServer | None = None, **env: str | None
) -> Result:
    """Run the command with lines on standard input, in this process."""
    unset = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "PERDURE_URL", "NO_COLOR", "FORCE_COLOR")
    endpoint = [] if server is None else ["--base-url", server.url]
    result = CliRunner(env={**dict.fromkeys(unset), "COLUMNS": "80", **env}).invoke(
        main, ["chat", *arguments, *endpoint, "--store", str(path)], input=say
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def messages(path: Path, session: str) -> list[tuple[str, str]]:
    with perdure.open(path) as store, store.resume(session) as found:
        return [(message["role"], message["content"]) for message in found.messages()]


def ends(path: Path, session: str) -> list[str]:
    with perdure.open(path) as store, store.resume(session) as found:
        kinds = [record.kind for record in found.records()]
    return [kind for kind in kinds if kind in ENDS]


def sent(server: ModelServer) -> list[list[dict[str, Any]]]:
    return [request.body["messages"] for request in server.requests]


def test_each_line_is_answered_and_kept(path: Path, server: ModelServer) -> None:
    done = chat(path, "s1", say="[[say One, two.]]\n[[say Three.]]\n", server=server)
    assert (done.exit_code, done.stdout) == (0, "One, two.\nThree.\n")
    assert done.stderr == f"s1, a new session, in sqlite:{path}; gpt-4o-mini answers.\n"
    again = chat(path, "s1", say="[[say Four.]]\n", server=server)
    assert again.stdout == "Four.\n"
    said_so_far = [
        ("user", "[[say One, two.]]"),
        ("assistant", "One, two."),
        ("user", "[[say Three.]]"),
        ("assistant", "Three."),
        ("user", "[[say Four.]]"),
        ("assistant", "Four."),
    ]
    assert messages(path, "s1") == said_so_far
    assert ends(path, "s1") == ["turn.completed"] * 3
    assert [[*map(tuple, map(dict.values, one))] for one in sent(server)] == [
        said_so_far[:1],
        said_so_far[:3],
        said_so_far[:5],
    ]


def test_a_local_server_gets_a_key_that_is_none(path: Path, server: ModelServer) -> None:
    chat(path, "s1", "--model", "llama3.2", say="a\n", server=server)
    chat(path, "s1", say="b\n", server=server, OPENAI_API_KEY="sk-1")
    chat(path, "s1", say="c\n", OPENAI_BASE_URL=server.url)
    keys = [request.headers["authorization"] for request in server.requests]
    assert keys == ["Bearer none", "Bearer sk-1", "Bearer none"]
    assert [request.body["model"] for request in server.requests] == [
        "llama3.2",
        "gpt-4o-mini",
        "gpt-4o-mini",
    ]


def test_without_a_key_a_script_answers_and_says_so(path: Path) -> None:
    done = chat(path, "s1", say="Hello\nDraft a claims escalation checklist\n")
    assert done.exit_code == 0
    first, second = done.stderr.splitlines()
    assert first == "There is no OPENAI_API_KEY and no --base-url: a script answers, no LLM."
    assert second.endswith("; scripted answers.")
    assert done.stdout.startswith("[scripted] This is your first message: 'Hello'.")
    assert "\n[scripted]\n1. Confirm that the policy" in done.stdout
    repeated = chat(path, "s2", say="Hello\nDraft a claims escalation checklist\n")
    assert repeated.stdout == done.stdout
    with perdure.open(path) as store:
        spoken = [one for one in store.resume("s1").records() if one.kind == "message"]
    assert spoken[1].content.meta["model"] == "scripted"  # type: ignore[attr-defined]


@pytest.mark.parametrize("with_key", [True, False])
def test_without_the_package_a_model_that_is_named_is_refused_and_nothing_is_recorded(
    path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch, *, with_key: bool
) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    if with_key:
        done = chat(path, "s1", say="Hello\n", OPENAI_API_KEY="sk-1")
    else:
        done = chat(path, "s1", say="Hello\n", server=server)
    assert done.exit_code == 2
    assert "The openai package is not installed: pip install 'perdure[openai]'" in done.stderr
    assert done.stdout == ""
    assert not path.exists()


def test_without_the_package_a_script_answers_who_names_no_model(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    done = chat(path, "s1", say="Hello\n")
    assert done.exit_code == 0
    assert done.stdout.startswith("[scripted]")


def test_json_is_one_object_an_answer(path: Path, server: ModelServer) -> None:
    server.fault(status=400, at=2)
    lines = "[[say Well.]]\nx\n[[refuse]]\n"
    done = chat(path, "s1", "--json", say=lines, server=server)
    assert done.exit_code == 1
    well, failed, refused = objects(done)
    with perdure.open(path) as store:
        records = [*store.resume("s1").records()]
    turns = [one.id for one in records if one.kind == "turn.begun"]
    said_at = [one.position for one in records if one.kind == "message"]
    assert well == {
        "session": "s1",
        "turn": turns[0],
        "position": said_at[1],
        "model": "gpt-4o-mini",
        "content": "Well.",
        "interrupted": False,
        "finish_reason": "stop",
        "error": None,
    }
    assert (failed["turn"], failed["content"], failed["position"]) == (turns[1], None, None)
    assert failed["error"].startswith("400: ")
    assert refused["content"].startswith("refusal: ")


def test_without_a_name_a_new_session_is_named_after_the_date(
    path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (
        objects(chat(path, "--json", say="x\n", server=server))[0]["session"] for _ in "ab"
    )
    assert re.fullmatch(r"chat-\d{4}-\d\d-\d\d-[0-9a-f]{4}", first)
    assert first != second
    taken = iter([first[-4:], second[-4:], "beef"])
    monkeypatch.setattr(secrets, "token_hex", lambda _: next(taken))
    (told,) = objects(chat(path, "--json", say="x\n", server=server))
    assert told["session"].endswith("-beef")


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"status": 401}, r"401: .+: check OPENAI_API_KEY"),
        ({"status": 403}, r"403: .+: check that OPENAI_API_KEY may use --model"),
        ({"status": 429, "times": 3}, r"429: .+: wait a little, or check the limits of your plan"),
        ({"status": 404}, r"404: .+: check --model and --base-url"),
        ({"status": 400}, r"400: .+"),
    ],
)
def test_an_error_of_the_api_is_one_line_and_a_failed_turn(
    path: Path, server: ModelServer, fault: dict[str, Any], told: str
) -> None:
    server.fault(**fault)
    done = chat(path, "s1", say="Hello\n\n", server=server)
    assert done.exit_code == 1
    _, error, hint = done.stderr.splitlines()
    assert re.fullmatch(told, error)
    assert hint == "The turn is recorded as failed."  # In a pipe, nobody presses Enter.
    assert ends(path, "s1") == ["turn.failed", "turn.completed"]
    # The empty line asked again: the same context, and the question is there once.
    assert messages(path, "s1") == [("user", "Hello"), ("assistant", done.stdout.strip())]
    assert {json.dumps(one) for one in sent(server)} == {'[{"role": "user", "content": "Hello"}]'}


def test_an_answer_that_breaks_off_is_kept_as_interrupted(path: Path, server: ModelServer) -> None:
    server.fault("disconnect", after_chunks=3)
    done = chat(path, "s1", say="[[len 20]]\n", server=server)
    assert done.exit_code == 1
    assert "its text so far is kept" in done.stderr
    assert "Enter" not in done.stderr
    with perdure.open(path) as store, store.resume("s1") as session:
        (turn,) = session.interrupted
        (taken,) = turn.partial_messages()
    assert taken.message["content"] == done.stdout.removesuffix("\n")
    assert done.stdout.strip()
    server.fault("disconnect", after_chunks=3)
    (told,) = objects(chat(path, "s1", "--json", say="\n", server=server))
    assert told["interrupted"]
    assert told["content"] == taken.message["content"]
    assert told["error"]
    server.fault(status=400)
    done = chat(path, "s1", say="\n\n\n", server=server)
    assert "400: " in done.stderr
    assert done.stderr.endswith("Every message has an answer: type a new one.\n")
    assert messages(path, "s1") == [("user", "[[len 20]]"), ("assistant", done.stdout.strip())]
    assert len(sent(server)) == 4
    assert {json.dumps(one) for one in sent(server)} == {
        '[{"role": "user", "content": "[[len 20]]"}]'
    }
    assert ends(path, "s1") == ["turn.completed"]


def test_who_says_something_else_after_a_break_gives_the_turn_up(
    path: Path, server: ModelServer
) -> None:
    server.fault("disconnect", after_chunks=3)
    chat(path, "s1", say="[[len 20]]\nNever mind.\n", server=server)
    assert ends(path, "s1") == ["turn.abandoned", "turn.completed"]
    roles = [role for role, _ in messages(path, "s1")]
    assert roles == ["user", "assistant", "user", "assistant"]


@pytest.mark.parametrize("key", ["abc\ndef-secret", "abc def-secret", "abc\u2026def-secret"])
def test_a_key_that_is_none_is_refused_and_not_shown(
    path: Path, server: ModelServer, key: str
) -> None:
    done = chat(path, "s1", say="Hello\n", server=server, OPENAI_API_KEY=key)
    assert (done.exit_code, path.exists(), server.requests) == (2, False, [])
    assert "OPENAI_API_KEY is not a valid key" in done.stderr
    assert "secret" not in done.output


def test_a_key_is_stripped_and_never_shown(
    path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat(path, "s1", say="Hello\n", server=server, OPENAI_API_KEY=" sk-secret\n")
    assert server.requests[0].headers["authorization"] == "Bearer sk-secret"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\n")
    assert explain_error(ValueError("Bearer sk-secret is bad")) == "Bearer [OPENAI_API_KEY] is bad"
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    assert explain_error(ValueError("an example")) == "an example"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"data: {oops\n\n", r"The endpoint did not send JSON \(.+\): check --base-url"),
        (b"<html>Sign in</html>", r"The endpoint's reply is not a completion: check --base-url"),
    ],
)
def test_an_endpoint_that_speaks_otherwise_is_one_line(path: Path, body: bytes, told: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as other:
        threading.Thread(target=other.serve_forever, args=(0.01,)).start()
        try:
            url = f"http://127.0.0.1:{other.server_port}"
            done = chat(path, "s1", "--base-url", url, say="Hello\n")
        finally:
            other.shutdown()
    assert done.exit_code == 1
    assert re.fullmatch(told, done.stderr.splitlines()[1])
    assert ends(path, "s1") == ["turn.failed"]


def test_nobody_there_is_one_line(path: Path) -> None:
    done = chat(path, "s1", "--base-url", "http://127.0.0.1:9/v1", say="Hello\n")
    assert done.exit_code == 1
    assert "is the endpoint up, and is --base-url right?" in done.stderr
    assert "Traceback" not in done.stderr
    assert ends(path, "s1") == ["turn.failed"]


def test_what_is_wrong_with_the_call_is_exit_code_2(path: Path) -> None:
    done = chat(path, "s1", "--base-url", "localhost:1234", say="Hello\n")
    assert (done.exit_code, path.exists()) == (2, False)
    assert "begins with http:// or https://" in done.stderr
    done = chat(path, "", say="Hello\n")  # As when a variable is empty.
    assert (done.exit_code, path.exists()) == (2, False)
    assert "name of the session is empty" in done.stderr
    assert chat(path, "x" * 2000, say="Hello\n").exit_code == 2
    done = chat(Path("memory:"), "s1", say="Hello\n")
    assert done.exit_code == 2
    assert "gone when the command ends" in done.stderr
    assert chat(path, "s1", "--max-tokens", "0", say="Hello\n").exit_code == 2


def test_what_is_no_store_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database\n" * 100)
    done = chat(tmp_path / "notes.txt", "s1", say="Hello\n")
    assert done.exit_code == 1
    assert "not a database" in done.stderr
    assert (tmp_path / "notes.txt").read_text() == "not a database\n" * 100


posix = pytest.mark.skipif(os.name != "posix", reason="needs a shell")


@posix
def test_a_store_that_can_not_be_written_is_exit_code_3(path: Path) -> None:
    chat(path, "s1", say="Hello\n")
    limit = path.stat().st_size // 512 + 8  # What ulimit counts in; room to open, and no more.
    done = process(path, "x" * 20_000 + "\n", f"ulimit -f {limit}; exec")
    assert done.returncode == 3
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert str(path) in error
    assert "Traceback" not in done.stderr
    assert ("user", "Hello") in messages(path, "s1")


def process(path: Path, say: str, before: str = "exec") -> "subprocess.CompletedProcess[str]":
    """Run the command in a process of its own, by a shell."""
    command = [sys.executable, "-P", "-m", "perdure", "chat", "s1", "--store", str(path)]
    return subprocess.run(
        ["/bin/sh", "-c", f"{before} {shlex.join(command)}"],
        input=say,
        capture_output=True,
        text=True,
        encoding="latin-1",
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict", "OPENAI_API_KEY": ""},
        check=False,
    )


@posix
def test_bytes_that_are_no_text_are_refused(path: Path) -> None:
    done = process(path, "caf\xe9\n")
    assert done.returncode == 2
    assert "not text" in done.stderr
    assert "Traceback" not in done.stderr


def test_instructions_are_added_once(path: Path, server: ModelServer) -> None:
    for system in ("Be brief.", "Be brief.", "Be kind."):
        chat(path, "s1", "--system", system, say="x\n", server=server)
    found = [text for role, text in messages(path, "s1") if role == "system"]
    assert found == ["Be brief.", "Be kind."]
    assert [[one["content"] for one in body][:1] for body in sent(server)] == [["Be brief."]] * 3


def test_a_budget_cuts_what_is_sent_and_says_so(path: Path, server: ModelServer) -> None:
    lines = "".join(f"[[say {'word ' * 30}{number}]]\n" for number in range(6))
    done = chat(path, "s1", "--max-tokens", "200", say=lines + "/tokens\n", server=server)
    assert done.exit_code == 0
    assert done.stderr.count("do not fit in 200 tokens and are not sent") == 1
    assert len(messages(path, "s1")) == 12
    assert len(sent(server)[-1]) < 11
    assert re.search(
        r"^\d+ tokens in \d+ messages \(counted by o200k_base\)$", done.stderr, re.MULTILINE
    )
    assert re.search(r"^of 200 \(--max-tokens\); \d+ remain\.$", done.stderr, re.MULTILINE)


def test_a_budget_that_is_too_small_fails_the_turn(path: Path, server: ModelServer) -> None:
    done = chat(path, "s1", "--max-tokens", "5", say="Hello there, how are you?\n", server=server)
    assert done.exit_code == 1
    assert "max_tokens is 5" in done.stderr
    assert server.requests == []
    assert ends(path, "s1") == ["turn.failed"]


def test_undo_goes_on_in_a_branch_from_before_the_turn(path: Path, server: ModelServer) -> None:
    lines = "[[say One.]]\n[[say Two.]]\n/undo\n[[say Three.]]\n/undo\n/undo\n/undo\n"
    done = chat(path, "s1", say=lines, server=server)
    assert "Back before '[[say Two.]]', in the branch s1-undo-1.\n" in done.stderr
    assert "Nothing is erased: s1 still has that turn." in done.stderr
    assert [text for _, text in messages(path, "s1")][1::2] == ["One.", "Two."]
    assert [text for _, text in messages(path, "s1-undo-1")][1::2] == ["One.", "Three."]
    assert [text for _, text in messages(path, "s1-undo-2")][1::2] == ["One."]
    assert [one["content"] for one in sent(server)[2]] == ["[[say One.]]", "One.", "[[say Three.]]"]
    assert done.stderr.endswith("There is no turn to undo\n")
    assert done.exit_code == 1


def test_branch_goes_on_beside_the_session(path: Path, server: ModelServer) -> None:
    lines = "[[say One.]]\n/branch other\n[[say Two.]]\n/branch\n/branch s1\n"
    done = chat(path, "s1", say=lines, server=server)
    assert "You are now in the branch other; s1 is unchanged." in done.stderr
    assert [text for _, text in messages(path, "s1")][1::2] == ["One."]
    assert [text for _, text in messages(path, "other")][1::2] == ["One.", "Two."]
    assert "A branch needs a name: /branch NAME\n" in done.stderr
    assert "session 's1' exists: choose another id\n" in done.stderr.lower()


def test_a_summary_stands_for_older_turns(path: Path, server: ModelServer) -> None:
    lines = "".join(f"[[say {'word ' * 20}{number}]]\n" for number in range(3))
    done = chat(path, "s1", say=f"/summary\n{lines}/summary\n/summary 1\n", server=server)
    assert done.stderr.count("There is no active summary") == 2
    skipped = "there is nothing to summarize yet; the newest 4 turns are never summarized"
    assert skipped in done.stderr
    assert "Active summary of positions 2 to " in done.stderr
    assert len(server.requests) == 4
    chat(path, "s1", say="x\n/summary undo\ny\n", server=server)
    *_, with_summary, without = sent(server)
    assert (len(with_summary), len(without)) == (4, 9)
    server.fault(status=400)
    done = chat(path, "s1", say="/summary 1\n/summary everything\n", server=server)
    assert re.search(r"No summary was made: .+BadRequestError \(400: ", done.stderr)
    assert "Use /summary, /summary N" in done.stderr
    assert "summary_failed" not in done.stderr


def test_the_script_sums_up_too(path: Path) -> None:
    done = chat(path, "s1", say="one\ntwo\nthree\n/summary 1\n")
    assert "\n  [scripted] The user said: one; two\n" in done.stderr
    assert done.exit_code == 0


def test_tokens_without_a_limit(path: Path) -> None:
    done = chat(path, "s1", say="Hello\n/tokens\n")
    assert re.search(
        r"^\d+ tokens in 2 messages \(counted by estimate\)$", done.stderr, re.MULTILINE
    )
    assert "There is no limit: --max-tokens sets one." in done.stderr


def test_commands_and_what_only_looks_like_one(path: Path, server: ModelServer) -> None:
    lines = "/frobnicate\n/help\n//help me\n/etc/hosts is a file\n/quit\nnever said\n"
    done = chat(path, "s1", say=lines, server=server)
    known = "/branch, /undo, /summary, /tokens, /drop, /help, /quit"
    assert f"There is no command /frobnicate. Commands: {known}.\n" in done.stderr
    assert all(name in done.stderr.split("Commands:")[1] for name in known.split(", "))
    assert [text for _, text in messages(path, "s1")][::2] == ["/help me", "/etc/hosts is a file"]


def test_an_interrupted_turn_is_shown_and_given_up(path: Path, server: ModelServer) -> None:
    with perdure.open(path) as store:
        interrupt(store.session("s1"), "Who signs?", "")
    done = chat(path, "s1", say="/drop\n/drop\n", server=server)
    assert (
        "It has 1 message. The last turn was interrupted. The user's message:\n  Who signs?\n"
        in done.stderr
    )
    assert "The assistant had not answered." in done.stderr
    assert "The turn is abandoned." in done.stderr
    assert done.stderr.endswith("There is no interrupted answer to drop\n")
    assert ends(path, "s1") == ["turn.abandoned"]
    assert server.requests == []


def test_who_says_something_else_gives_an_interrupted_turn_up(
    path: Path, server: ModelServer
) -> None:
    with perdure.open(path) as store:
        interrupt(store.session("s1"), "Who signs?", "")
    chat(path, "s1", say="Never mind.\n", server=server)
    assert ends(path, "s1") == ["turn.abandoned", "turn.completed"]
    assert [one["content"] for one in sent(server)[0]] == ["Who signs?", "Never mind."]


def test_a_turn_that_lacks_only_its_end_is_completed(path: Path, server: ModelServer) -> None:
    with perdure.open(path) as store:
        turn = store.session("s1").turn("Who signs?").__enter__()
        turn.append(said("The manager.", "assistant"))
    done = chat(path, "s1", say="\n/drop\nThanks.\n", server=server)
    assert "interrupted." not in done.stderr
    assert "There is no interrupted answer to drop" in done.stderr
    assert ends(path, "s1") == ["turn.completed"] * 2
    assert len(server.requests) == 1


def test_only_the_newest_turn_is_gone_on_with(path: Path, server: ModelServer) -> None:
    with perdure.open(path) as store, store.session("s1") as session:
        interrupt(session, "Who signs?", "")
        with session.turn("Who pays?") as turn:
            turn.append(said("The insurer.", "assistant"))
    done = chat(path, "s1", say="\n/drop\n/undo\n", server=server)
    assert "interrupted. The user" not in done.stderr
    assert "There is no interrupted answer to drop" in done.stderr
    assert "Back before 'Who pays?', in the branch s1-undo-1." in done.stderr
    assert server.requests == []
    with perdure.open(path) as store:
        assert len(store.resume("s1").interrupted) == 1


def test_a_branch_takes_an_interrupted_turn_along(path: Path, server: ModelServer) -> None:
    with perdure.open(path) as store:
        interrupt(store.session("s1"), "Who signs?", "")
    done = chat(path, "s1", say="/branch other\n\n", server=server)
    assert done.exit_code == 0, done.output
    assert messages(path, "s1") == [("user", "Who signs?")]
    assert messages(path, "other") == [("user", "Who signs?"), ("assistant", done.stdout.strip())]
    with perdure.open(path) as store:
        assert len(store.resume("s1").interrupted) == 1
        assert not store.resume("other").interrupted


def test_a_turn_that_another_process_ends_meanwhile_is_told_of(path: Path) -> None:
    def answer(body: Mapping[str, Any]) -> str:
        if body["messages"][-1]["content"] == "Hello":
            with perdure.open(path) as store, store.resume("s1") as session:
                session.interrupted[0].abandon("an operator did")
        return "Well."

    with ModelServer(answer) as server:
        done = chat(path, "s1", say="Hello\nAgain\n", server=server)
    assert done.exit_code == 1
    assert done.stderr.splitlines()[1].startswith(
        "Another process wrote to this session: conflict in session 's1'"
    )
    assert ends(path, "s1") == ["turn.abandoned", "turn.completed"]
    assert messages(path, "s1")[-2:] == [("user", "Again"), ("assistant", "Well.")]


@posix
def test_ctrl_c_in_a_pipe_keeps_what_was_said_and_ends(path: Path, server: ModelServer) -> None:
    server.fault("hang", after_chunks=4)
    command = [sys.executable, "-P", "-m", "perdure", "chat", "s1", "--store", str(path)]
    with subprocess.Popen(
        [*command, "--base-url", server.url],
        bufsize=0,  # What was read ahead would be lost to `communicate`.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        started.stdin.write(b"[[len 30]]\nnever said\n")
        started.stdin.flush()
        shown = started.stdout.read(5)
        started.send_signal(signal.SIGINT)
        rest, errors = started.communicate(timeout=60)
    assert started.returncode == 130
    assert b"(stopped; " in errors
    with perdure.open(path) as store, store.resume("s1") as session:
        (turn,) = session.interrupted
        (taken,) = turn.partial_messages()
    assert taken.message["content"].startswith((shown + rest).decode().strip())
    assert messages(path, "s1") == [("user", "[[len 30]]")]


def test_what_the_endpoint_can_not_be_told_is_said_once(path: Path, server: ModelServer) -> None:
    orphan = {"role": "tool", "tool_call_id": "c1", "content": "5"}
    with perdure.open(path) as store, store.session("s1") as session:
        session.append(said("What is 2 + 3?"), orphan)
    done = chat(path, "s1", say="x\ny\n", server=server)
    assert done.exit_code == 0
    assert len(re.findall(r"^At position 2, .+ left out", done.stderr, re.MULTILINE)) == 1


def test_undo_ends_an_interrupted_turn(path: Path, server: ModelServer) -> None:
    with perdure.open(path) as store:
        session = store.session("s1")
        session.append(said("Be brief.", "system"))
        interrupt(session, "Who signs?", "")
    chat(path, "s1", say="/undo\nAnother.\n", server=server)
    assert ends(path, "s1") == ["turn.abandoned"]
    assert [one["content"] for one in sent(server)[0]] == ["Be brief.", "Another."]


def test_what_a_model_says_can_not_rule_the_terminal(path: Path) -> None:
    with ModelServer([EVIL, "plain\r\n\ttab"]) as server:
        done = chat(path, "s1", say="x\ny\n", server=server)
    assert not {*done.stdout} & {*SNEAKY}
    assert "\\x1b[2J" in done.stdout
    assert done.stdout.endswith("plain\n\ttab\n")


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_words_fill_a_width_however_they_come(
    size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "  a list:\r\n\t- one two three four five six seven\n\n" + "x" * 45 + " end\n \x1b[2J"
    flow = StreamPrinter(20)
    for start in range(0, len(text), size):
        flow.feed(text[start : start + size])
    flow.end()
    shown = capsys.readouterr().out
    assert [line.rstrip() for line in shown.splitlines()] == [
        "  a list:",
        "    - one two three",
        "four five six seven",
        "",
        "x" * 20,
        "x" * 20,
        "xxxxx end",
        " \\x1b[2J",
    ]
    assert shown.endswith("J\n")


def test_an_error_without_words_is_named() -> None:
    assert explain_error(ValueError()) == "ValueError"


def test_summing_up_hides_an_event_only_while_it_does_so(path: Path) -> None:
    logger = logging.getLogger("perdure")
    before = [*logger.filters]
    chat(path, "s1", say="one\ntwo\nthree\n/summary 1\n/summary 9\n")
    assert logger.filters == before
