"""What all commands have in common: which store is read, how they end, what help says."""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
from rich.cells import cell_len
from rich.filesize import decimal

import perdure
from perdure.cli.__main__ import main
from perdure.cli.registry import COMMANDS, LazyCommands
from perdure.cli.terminal import (
    first_line,
    plural,
    relative_time,
    wrap_lines,
)
from perdure.safe_text import safe
from tests.cli.support import EVIL, SNEAKY, damage, fill, interrupt, invoke, said, start

READING = ["ls", "show", "tail", "verify", "stats"]
NEEDS_SESSION = {"show", "tail"}
posix = pytest.mark.skipif(os.name != "posix", reason="needs pipes and signals of POSIX")


def words(command: str) -> list[str]:
    return [command, "claim-4711"] if command in NEEDS_SESSION else [command]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return fill(tmp_path / "agents.db")


def test_help_names_every_command_and_every_exit_code() -> None:
    shown = invoke(None, "--help").stdout
    for command, text in COMMANDS.items():
        assert re.search(rf"^  {command} +{re.escape(text)}$", shown, re.MULTILINE)
    for code in range(4):
        assert re.search(rf"^    {code}  \w", shown, re.MULTILINE)
    assert "PERDURE_URL" in shown


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_fits_in_80_columns_and_has_an_example(command: list[str]) -> None:
    done = invoke(None, *command, "--help")
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert re.search(r"^  Examples?:\n    perdure", done.stdout, re.MULTILINE)
    if command and command[0] in READING:
        assert "--store URL" in done.stdout
        assert "--json" in done.stdout


def test_every_command_is_registered_under_its_name() -> None:
    assert list(main.commands) == list(COMMANDS)
    assert len(main.commands) == len(COMMANDS)
    for name, command in main.commands.items():
        assert command.name == name


def test_commands_can_be_added_and_taken_away() -> None:
    commands = LazyCommands()
    commands["more"] = main
    assert commands["more"] is main
    assert "more" in commands
    del commands["more"], commands["ls"]
    assert "more" not in commands
    with pytest.raises(KeyError):
        commands["ls"]


def test_help_imports_no_command_and_no_driver() -> None:
    code = (
        "import sys; from perdure.cli.__main__ import main\n"
        "try: main(['--help'], prog_name='perdure')\n"
        "except SystemExit: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "click" in loaded
    assert (
        not {"apsw", "asyncio", "json", "rich", *(f"perdure.cli.{name}" for name in COMMANDS)}
        & loaded
    )


@pytest.mark.parametrize(("wrong", "right"), [("shwo", "show"), ("verfy", "verify"), ("lss", "ls")])
def test_an_unknown_command_names_the_closest(wrong: str, right: str) -> None:
    done = invoke(None, wrong)
    assert done.exit_code == 2
    assert f"There is no command '{wrong}'. Did you mean '{right}'?" in done.stderr


def test_a_command_like_no_other_lists_all() -> None:
    assert f"Commands: {', '.join(sorted(COMMANDS))}." in invoke(None, "xyzzy").stderr


def test_python_m_perdure_is_the_command(path: Path) -> None:
    with start("ls", folder=path.parent) as process:
        shown, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors == ""
    assert shown.startswith("session ")
    assert "claim-4711" in shown


@pytest.mark.parametrize("command", READING)
def test_the_store_is_the_option_else_the_variable_else_agents_db(
    command: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    by_option = invoke(path, *words(command), "--json")
    assert by_option.exit_code == 0, by_option.output
    monkeypatch.chdir("/")
    by_variable = invoke(None, *words(command), "--json", PERDURE_URL=f"sqlite:{path}")
    assert by_variable.exit_code == 0, by_variable.output
    monkeypatch.chdir(path.parent)
    assert invoke(None, *words(command), "--json").exit_code == 0


@pytest.mark.parametrize("command", READING)
def test_without_a_store_a_command_says_what_to_give(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke(None, *words(command))
    assert done.exit_code == 2
    assert "give --store URL, or set PERDURE_URL" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", READING)
def test_a_file_where_a_session_is_expected_was_meant_as_the_store(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fill(tmp_path / "my demo.db").parent)
    meant = "'my demo.db' is a file: did you mean --store 'my demo.db'?"
    done = invoke(None, command, "my demo.db")
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"Error: {meant}\n")
    done = invoke("my demo.db", *words(command), PERDURE_URL="elsewhere.db")
    assert done.exit_code == 0, done.output
    fill(tmp_path / "agents.db")
    done = invoke(None, command, "my demo.db")
    assert done.exit_code == (2 if command == "stats" else 1)
    assert done.stderr.endswith(f"{meant}\n")
    assert "is a file" not in invoke("agents.db", command, "my demo.db").stderr
    assert "is a file" not in invoke(None, command, "other.db").stderr
    assert "is a file" not in invoke(None, command, "x" * 300, "\0").stderr


SECRET = "sEcReT99"  # noqa: S105 - it is looked for where it must not be
ADDRESSES = [
    f"postgresql://u:{SECRET}@127.0.0.1:1/db",
    f"'postgres://u:{SECRET}@127.0.0.1:1/db'",
    f"postgresql//u:{SECRET}@127.0.0.1:1/db",
    f"host=127.0.0.1 password={SECRET}",
]
CALLS = {
    "approvals": ["{}"],
    "approve": ["{}", "--yes"],
    "chat": ["{}"],
    "compact": ["{}", "--keep", "1"],
    "copy": ["agents.db", "agents.db", "{}"],
    "demo": ["{}"],
    "deny": ["{}", "--yes"],
    "doctor": ["agents.db", "{}"],
    "effects": ["{}"],
    "import": ["{}"],
    "keys": ["list", "{}"],
    "ls": ["{}"],
    "migrate": ["postgresql://127.0.0.1:1/db", "{}"],
    "release": ["{}", "--force"],
    "replay": ["{}", "json:loads"],
    "show": ["{}"],
    "stats": ["{}"],
    "tail": ["{}"],
    "verify": ["{}"],
}


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("store", [None, "agents.db"])
def test_an_address_where_something_else_is_expected_is_not_repeated(
    command: str, address: str, store: str | None, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    before = path.read_bytes()
    has_option = command not in ("copy", "doctor", "migrate")
    done = invoke(
        store if has_option else None, command, *(word.format(address) for word in CALLS[command])
    )
    assert done.exit_code in (1, 2)
    assert SECRET not in f"{done.output}{done.stderr}"
    if command != "ls":
        assert "A store address was given where something else is expected" in done.stderr
        assert ("did you mean --store?" in done.stderr) == has_option
    assert path.read_bytes() == before


@pytest.mark.parametrize("address", ADDRESSES)
def test_nor_is_one_in_the_place_of_the_command_or_of_a_number(address: str) -> None:
    for arguments in ([address], ["ls", "--limit", address], ["replay", "s", address]):
        done = invoke(None, *arguments)
        assert done.exit_code == 2
        assert SECRET not in done.output


@pytest.mark.parametrize("address", ADDRESSES[1:])
@pytest.mark.parametrize(
    "command", [*READING, "chat", "copy", "demo", "doctor", "import", "migrate"]
)
def test_an_address_that_is_none_makes_no_file_and_is_not_repeated(
    command: str, address: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    Path("kept.json").write_text('[{"role": "user", "content": "hi"}]')
    before = {*path.parent.iterdir()}
    more = {"copy": ["agents.db"], "import": ["kept.json"]}.get(command, [])
    if command in ("copy", "doctor", "migrate"):
        done = invoke(None, command, *more, address)
    else:
        done = invoke(address, *words(command), *more)
    assert done.exit_code == 2
    assert "write 'postgresql://user@host/database'" in done.stderr
    assert SECRET not in done.output
    assert {*path.parent.iterdir()} == before


def test_a_session_with_the_name_of_an_address_is_found_and_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["postgresql://of/somebody", "https://example.com/4711", "user=42", "mailto:a@b"]
    with perdure.open("agents.db") as store:
        for name in names:
            store.session(name).append(said("hello"))
    for name in names:
        for command in ("ls", "show", "tail", "verify"):
            assert invoke(None, command, name).exit_code == 0
    for name in names[1:]:
        assert f"There is no session '{name}x'" in invoke(None, "show", f"{name}x").stderr


def test_a_session_with_the_name_of_a_file_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with perdure.open("agents.db") as store:
        store.session("agents.db").append(said("hello"))
    for command in ("ls", "show", "tail", "verify"):
        assert invoke(None, command, "agents.db").exit_code == 0


def test_the_only_store_around_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "my.db")
    done = invoke(None, "ls")
    assert done.exit_code == 2
    assert "no agents.db here, but there is my.db: give --store my.db, or set" in done.stderr
    (tmp_path / "more.db").touch()
    assert "give --store URL, or set PERDURE_URL" in invoke(None, "ls").stderr


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("address", ["missing.db", "sqlite:missing.db", "files:missing", "in/x.db"])
def test_reading_never_makes_a_store(
    command: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke(address, *words(command))
    assert done.exit_code == 3
    assert "nothing was created" in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", READING)
def test_an_empty_file_is_no_store_and_stays_empty(command: str, tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    done = invoke(path, *words(command))
    assert done.exit_code == 3
    assert "an empty file, not a store" in done.stderr
    assert [(one.name, one.stat().st_size) for one in tmp_path.iterdir()] == [("empty.db", 0)]


@pytest.mark.parametrize(
    ("address", "code", "message"),
    [
        ("memory:", 2, "A memory store is empty"),
        ("nosuch:x", 2, "unknown scheme"),
        (".", 3, "it is a directory"),
        ("notes.txt", 1, "not a database"),
    ],
)
def test_what_is_no_store_is_one_line(
    address: str, code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("not a database\n" * 100)
    done = invoke(address, "ls")
    assert done.exit_code == code
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


@pytest.mark.parametrize("command", ["show", "tail", "verify"])
def test_an_unknown_session_names_those_that_begin_alike(command: str, path: Path) -> None:
    done = invoke(path, command, "claim-4712")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "There is no session 'claim-4712'. Close matches: 'claim-4711'." in done.stderr
    assert "Close" not in invoke(path, command, "zzz").stderr
    assert invoke(path, command, "").exit_code == 1


@posix
@pytest.mark.parametrize("command", ["ls", "show", "tail", "verify", "stats"])
def test_a_reader_that_goes_away_ends_a_command_quietly(command: str, path: Path) -> None:
    with start(*words(command), folder=path.parent, bufsize=0) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


@posix
@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_command_needs_no_output(command: str, closed: str, path: Path) -> None:
    called = shlex.join([sys.executable, "-m", "perdure", *words(command), "--store", str(path)])
    shell = ["/bin/sh", "-c", f"{called} {closed}"]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", READING)
def test_commands_read_while_another_process_writes(command: str, path: Path) -> None:
    code = (
        "import perdure, sys, time\n"
        f"session = perdure.open({str(path)!r}).session('claim-4711')\n"
        "print('ready', flush=True)\n"
        "while True: session.append({'role': 'user', 'content': 'more'})"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        try:
            for _ in range(5):
                done = invoke(path, *words(command), "--json")
                assert done.exit_code == 0, done.output
        finally:
            writer.kill()


def test_a_command_changes_nothing(path: Path) -> None:
    before = path.read_bytes()
    for command in READING:
        assert invoke(path, *words(command)).exit_code == 0
    assert path.read_bytes() == before


def test_colours_are_for_terminals_only(path: Path) -> None:
    for command in READING:
        assert "\x1b" not in invoke(path, *words(command)).stdout
        assert "\x1b[" in invoke(path, *words(command), FORCE_COLOR="1").stdout
        assert "\x1b" not in invoke(path, *words(command), FORCE_COLOR="1", NO_COLOR="1").stdout


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_stored_can_reach_the_terminal_unseen(
    command: str, tmp_path: Path, *, as_json: bool
) -> None:
    path = tmp_path / "evil.db"
    name = "claim-\u202etxt\u2066\u200b"
    # Other programs may have written what this one refuses.
    with mock.patch("perdure.core.messages.require_message"), perdure.open(path) as store:
        session = store.session(name)
        with session.turn(EVIL, correlation_id=EVIL, author=EVIL) as turn:
            call = {"id": EVIL, "function": {"name": EVIL, "arguments": EVIL}}
            turn.append({"role": EVIL, "content": [EVIL, {"text": EVIL}], "tool_calls": [call]})
            turn.append({EVIL: EVIL, "content": {EVIL: EVIL}}, recipient=EVIL, channel=EVIL)
        session.set("\u202ekey", {EVIL: EVIL, "long": "x" * 300})
        session.set("\u202ekey", {EVIL: f"{EVIL}{EVIL}", "long": "x" * 300})
        session.note({EVIL: EVIL}, author=EVIL)
        session.label("\u202elabel")
        interrupt(session, EVIL, EVIL)
    for options in ([], ["--records"], ["--at", "5"]) if command == "show" else ([],):
        arguments = [command, name] if command in NEEDS_SESSION else [command]
        done = invoke(path, *arguments, *options, *(["--json"] if as_json else []))
        assert done.exit_code == 0, done.output
        assert not set(done.output) & set(SNEAKY)


def test_errors_are_safe_too(path: Path) -> None:
    assert not set(invoke(path, "show", f"claim-{EVIL}").output) & set(SNEAKY)
    damage(path, "update head set name = 'x' || char(27) || '[2J' where id = :place")
    for command in ("ls", "verify", "stats"):
        assert "\x1b" not in invoke(path, command).output


@pytest.mark.slow
def test_the_first_page_of_a_large_store_comes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "large.db"
    with perdure.open(path) as store:
        for number in range(3000):
            store.session(f"session-{number:05}").append(said("x"))
    for options in ([], ["--recent"], ["--label", "none"], ["session-02999"]):
        spent = []
        for _ in range(5):  # A machine that is busy does not pause each time.
            begun = time.monotonic()
            invoke(path, "ls", "--limit", "5", *options)
            spent.append(time.monotonic() - begun)
        assert min(spent) < 1.0


def test_safe_text_is_left_alone() -> None:
    for text in ("plain", "é and e\u0301", "שלום", "👩\u200d👩\u200d👧", "日本語", "a\\x1b"):
        assert safe(text) == text
    assert safe("\x1b[2J") == "\\x1b[2J"
    assert safe("\u202e\u2028\U000e0041\ud800") == "\\u202e\\u2028\\U000e0041\\ud800"


def test_lines_are_wrapped_to_their_columns_and_lose_nothing() -> None:
    text = "  indented words that go on\n\n" + "x" * 50 + "\tand 日本語日本語日本語日本語 end"
    lines = list(wrap_lines(text, 20))
    assert max(map(cell_len, lines)) <= 20
    assert lines[:4] == ["  indented words", "that go on", "", "x" * 20]
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert list(wrap_lines("", 20)) == [""]


def test_a_cut_line_says_how_much_is_missing() -> None:
    assert first_line("short\nlines", 40) == "short ⏎ lines"
    assert first_line("x" * 100, 30) == "x" * 18 + " … +82"
    assert first_line("x" * 100, None) == "x" * 100


def test_numbers_are_for_people() -> None:
    from datetime import UTC, datetime, timedelta

    now = datetime(2026, 1, 1, tzinfo=UTC)
    spans = {0: "now", 1: "1 second ago", 119: "1 minute ago", 7200: "2 hours ago"}
    spans |= {86_400 * 3: "3 days ago", -90: "in 1 minute"}
    for seconds, text in spans.items():
        assert relative_time(now - timedelta(seconds=seconds), now) == text
    assert [plural(1, "entry"), plural(2, "entry"), plural(0, "branch")] == [
        "1 entry",
        "2 entries",
        "0 branches",
    ]
    sizes = [decimal(number) for number in (999, 1000, 2_500_000, 3 * 10**12)]
    assert sizes == ["999 bytes", "1.0 kB", "2.5 MB", "3.0 TB"]
