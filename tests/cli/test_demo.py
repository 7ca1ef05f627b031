"""`perdure demo`, run for real: what it shows, what it leaves behind, and what it does not hide."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

import perdure
from perdure.cli.__main__ import main
from perdure.cli.demo import check as check_module
from perdure.cli.demo import command
from perdure.cli.demo import run as run_module
from perdure.cli.demo.assistant import SCRIPT
from perdure.cli.demo.check import DemoVerdict, compare_records
from perdure.cli.demo.run import ProcessRun, RecordFact, RecoveredState
from perdure.cli.demo.view import DemoView

PERDURE = [sys.executable, "-P", "-m", "perdure.cli"]
posix = pytest.mark.skipif(os.name != "posix", reason="needs signals and terminals of POSIX")


def run(
    folder: Path, *arguments: str, check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM"}
    }
    done = subprocess.run(
        [*PERDURE, *arguments],
        cwd=folder,
        env={**kept, "PYTHONIOENCODING": "utf-8", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert "Traceback" not in done.stderr
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def session_in(output: str) -> str:
    found = re.search(r"^  session +(\S+)$", output, re.MULTILINE)
    assert found is not None
    return found[1]


def rows(output: str) -> list[tuple[str, str]]:
    """The numbered rows of all tables: what was acknowledged, what was recovered."""
    found = re.findall(r"^ +\d+ (.+?) +│ (.+)$", output, re.MULTILINE)
    assert all(
        right.startswith("as before") for left, right in found if left == "records before these"
    )
    return [(left, right) for left, right in found if left != "records before these"]


def test_the_demo_shows_both_sides_and_leaves_a_store_that_verifies(tmp_path: Path) -> None:
    start = time.monotonic()
    done = run(tmp_path, "demo", "--seed", "7")
    assert time.monotonic() - start < 90  # Five seconds on an idle machine; this one may be busy.
    assert "scripted model, no LLM, no network" in done.stdout
    assert "--seed 7" in done.stdout
    assert done.stdout.count("SIGKILL in the middle of turn") == 3
    shown = rows(done.stdout)
    assert ("turn 'draft' begun",) * 2 in shown
    assert ('plan: {"step": 1}',) * 2 in shown
    assert any(left.startswith("user: Draft a claims") for left, _ in shown)
    assert all(left in {right, "(not acknowledged)"} for left, right in shown)
    for line in ("lost          none", "duplicated    none", "chain         verified, "):
        assert line in done.stdout
    assert re.search(r"resuming      [\d.]+ (to [\d.]+ )?ms", done.stdout)

    with perdure.open(tmp_path / "perdure-demo.db") as store:
        session = store.resume(session_in(done.stdout))
        said = [message["content"] for message in session.messages()]
        assert said == [text for scene in SCRIPT for text in (scene.prompt, *scene.parts)]
        assert session.get("plan") == {"step": 11}
        assert not session.interrupted
        verified = session.verify()
    assert f"{verified.records} records, head {verified.digest[:8]}" in done.stdout


def test_a_killed_process_died_in_the_middle_of_its_turn(tmp_path: Path) -> None:
    path, lives = str(tmp_path / "store.db"), []
    for moment in (*run_module.choose_kill_points(3, seed=5), None):
        lives.append(run_module.run_assistant(path, "s", moment, lambda pid, found: None))
        if moment is not None:
            with perdure.open(path) as store, store.resume("s") as session:
                assert [turn.id for turn in session.interrupted] == [moment.turn]
                assert "turn-open" in session.labels
    killed = -signal.SIGKILL if os.name == "posix" else 1
    assert [life.returncode for life in lives] == [killed, killed, killed, 0]
    for turn in {life.killed_in for life in lives[:-1]}:
        facts = [fact for life in lives if life.killed_in == turn for fact in life.acknowledged]
        assert any(fact.text.startswith("assistant:") for fact in facts)
    assert check_module.check_store(path, "s", lives).problems == ()


@pytest.mark.parametrize("kills", [0, 1, 5])
def test_it_kills_as_often_as_it_is_told(tmp_path: Path, kills: int) -> None:
    done = run(tmp_path, "demo", "--kills", str(kills))
    assert done.stdout.count("SIGKILL") == kills
    assert done.stdout.count("resumes in") == kills
    assert f"Process {kills + 1} completes the conversation." in done.stdout
    assert ("resuming" in done.stdout) == bool(kills)


def test_a_store_that_exists_gets_another_session(tmp_path: Path) -> None:
    first = session_in(run(tmp_path, "demo", "--kills", "0", "--store", "mine.db").stdout)
    before = _facts(tmp_path / "mine.db", first)
    done = run(tmp_path, "demo", "--kills", "1", "--store", "mine.db")
    second = session_in(done.stdout)
    assert "mine.db (existing; a session is added)" in done.stdout
    with perdure.open(tmp_path / "mine.db") as store:
        assert {head.id for head in store.sessions()} == {first, second}
    assert first != second
    assert _facts(tmp_path / "mine.db", first) == before


def test_what_is_counted_is_what_is_shown(tmp_path: Path) -> None:
    for seed in range(4):
        shown = run(tmp_path, "demo", "--seed", str(seed)).stdout
        lives = re.split(r"^Process \d+ .*$", shown, flags=re.MULTILINE)[1:]
        earlier = 0
        for before, after in pairwise(lives):
            told = re.search(r"SIGKILL .*, (\d+) records? acknowledged", before)
            assert told is not None
            hidden = re.search(r"^ +(\d+) records? before these", after, re.MULTILINE)
            table = rows(after)
            answered = [left for left, _ in table if left != "(not acknowledged)"]
            more = int(hidden[1]) - earlier if hidden else 0
            assert int(told[1]) == len(answered) + more
            earlier += len(table) + more


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        (0, "30 records"),
        (1, "30 records (1 more was stored, its acknowledgement did not arrive)"),
        (2, "30 records (2 more were stored, their acknowledgements did not arrive)"),
    ],
)
def test_what_was_stored_without_an_answer_is_told(more: int, shown: str) -> None:
    assert DemoView("d.db", "s", 1)._acknowledged(DemoVerdict(30, more)) == shown


def test_a_record_that_is_sent_again_is_not_new() -> None:
    found = RecoveredState(0, TOLD[:3], ("draft",), None)
    life = ProcessRun(2, found, (TOLD[2], TOLD[3], TOLD[3]), 1, -9, "draft")
    assert life.new == (TOLD[3],)
    assert check_module.compare_records(life.new, TOLD).unacknowledged == TOLD[:3]


@pytest.mark.parametrize("columns", [40, 63, 64])
def test_a_narrow_terminal_gets_both_sides_cut_alike(tmp_path: Path, columns: int) -> None:
    shown = run(tmp_path, "demo", "--kills", "1", COLUMNS=str(columns)).stdout
    table = shown[shown.index("resumes in") : shown.index("It finds")]
    assert max(map(len, table.splitlines()[1:])) < columns
    pairs = [pair for pair in rows(table) if not pair[0].startswith("record")]
    assert pairs
    for left, right in pairs:
        assert left == right or "(not acknowledged)".startswith(left.removesuffix("…"))


def _facts(path: Path, session: str) -> list[perdure.Record]:
    with perdure.open(path) as store:
        return list(store.resume(session).records())


def test_what_it_says_about_looking_works(tmp_path: Path) -> None:
    done = run(tmp_path, "demo", "--kills", "1", "--store", "it's mine.db")
    for look in re.findall(r"^  perdure (.+)$", done.stdout, re.MULTILINE):
        shown = run(tmp_path, *shlex.split(look)).stdout
        assert ("Refine that" in shown) == look.startswith("show")
    assert done.stdout.index("perdure verify") < done.stdout.index("import perdure")
    snippet = "\n".join(
        re.findall(r"^  (import perdure|session = .+|print\(.+\))$", done.stdout, re.MULTILINE)
    )
    shown = subprocess.run(
        [sys.executable, "-c", snippet], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert "Refine that for high-value policies only." in shown
    assert "{'step': 11}" in shown
    assert "VerifyResult(" in shown


@posix
def test_the_query_for_the_sqlite3_shell_works(tmp_path: Path) -> None:
    if shutil.which("sqlite3") is None:
        pytest.skip("there is no sqlite3 shell here")
    done = run(tmp_path, "demo", "--kills", "1", "--store", "it's mine.db")
    query = done.stdout[done.stdout.index("  sqlite3 ") :]
    shown = subprocess.run(
        ["/bin/sh", "-c", query], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert shown[0].startswith("1|turn.begun|")
    assert shown[1].startswith('2|message|{"message":{"role":"user"')
    assert len(shown) == len(_facts(tmp_path / "it's mine.db", session_in(done.stdout)))


def test_a_pipe_gets_plain_text_of_80_columns(tmp_path: Path) -> None:
    done = run(tmp_path, "demo", "--kills", "1")
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_colours_can_be_forced_and_forbidden(tmp_path: Path) -> None:
    assert "\x1b[32m" in run(tmp_path, "demo", "--kills", "1", FORCE_COLOR="1").stdout
    both = run(tmp_path, "demo", "--kills", "1", FORCE_COLOR="1", NO_COLOR="1")
    assert "\x1b" not in both.stdout


def test_an_ascii_output_gets_ascii(tmp_path: Path) -> None:
    done = run(tmp_path, "demo", "--kills", "1", "--store", "é.db", PYTHONIOENCODING="ascii")
    assert done.stdout.isascii()
    assert " | " in done.stdout
    assert "\\xe9.db" in done.stdout
    assert "\\u" not in done.stdout


@posix
@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_gets_colours_and_lines_that_fit(tmp_path: Path, columns: int) -> None:
    shown = _in_terminal(tmp_path, columns)
    assert "\x1b[32m" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    lengths = [len(line.rstrip()) for line in plain.splitlines()]
    assert columns - 20 < max(lengths) <= columns


def _in_terminal(folder: Path, columns: int) -> str:
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {
        name: value for name, value in os.environ.items() if name not in {"COLUMNS", "NO_COLOR"}
    }
    with subprocess.Popen(
        [*PERDURE, "demo", "--kills", "1"],
        cwd=folder,
        env={**kept, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"},
        stdin=theirs,
        stdout=theirs,
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 65536):
                shown += data
        except OSError:
            pass  # Linux says so when the other end is closed.
        assert process.wait() == 0
    os.close(ours)
    return shown.decode()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kills", "-1"], "not in the range"),
        (["--kills", "three"], "'three' is not a valid integer."),
        (["--seed", "x"], "not a valid integer"),
        (["--store", "memory:"], "not the path of a file"),
        (["--store", "redis://here"], "not the path of a file"),
        (["--store", ""], "not the path of a file"),
        (["--store", "missing/demo.db"], "there is no directory"),
        (["--store", "."], "it is a directory"),
        (["--store", "notes.txt"], "not a database"),
        (["more"], "unexpected extra argument"),
    ],
)
def test_what_can_not_work_is_one_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "notes.txt").write_text("not a database\n" * 100)
    done = run(tmp_path, "demo", *arguments, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    (last,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert message in last
    assert (tmp_path / "notes.txt").read_text() == "not a database\n" * 100
    assert [found.name for found in tmp_path.iterdir()] == ["notes.txt"]


@posix
def test_a_disk_that_is_full_on_the_way_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    import resource

    perdure.open(tmp_path / "empty.db").close()
    limit = (tmp_path / "empty.db").stat().st_size + 8192  # Not enough for the conversation.
    done = subprocess.run(
        [*PERDURE, "demo"],
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stderr
    assert re.fullmatch(r"Error: sqlite:\S+: .+\n", done.stderr)


@posix
def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*PERDURE, "demo", "--kills", "20"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "SIGKILL" in line:
                break
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        said = re.fullmatch(
            r"Interrupted\. The session is in (\S+): perdure (show \S+ --store \1)\n", errors
        )
        assert said is not None, errors
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    assert "Draft a claims" in run(tmp_path, *said[2].split()).stdout


def test_an_interrupt_before_the_first_record_promises_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> ProcessRun:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_assistant", interrupted)
    done = CliRunner().invoke(main, ["demo", "--store", str(tmp_path / "d.db")])
    assert done.exit_code == 130
    assert "Interrupted. Nothing was stored in " in done.stderr


TOLD = (
    RecordFact(1, "turn.begun", "turn 'draft' begun"),
    RecordFact(2, "message", "user: Draft"),
    RecordFact(3, "message", "assistant: 1."),
    RecordFact(4, "value", 'plan: {"step": 1}'),
)


def test_nothing_is_missing_where_everything_was_recovered() -> None:
    more = RecordFact(5, "message", "assistant: 2.")
    assert compare_records(TOLD, TOLD) == ((), (), ())
    assert compare_records(TOLD, (*TOLD, more)) == ((), (), (more,))
    assert compare_records((*TOLD, TOLD[2]), TOLD) == ((), (), ()), "one may be acknowledged twice"


def test_a_record_that_is_missing_changed_or_doubled_is_found() -> None:
    assert compare_records(TOLD, TOLD[:3]).lost == (TOLD[3],)
    changed = TOLD[1]._replace(text="user: Daft")
    assert compare_records(TOLD, (TOLD[0], changed, *TOLD[2:])).lost == (TOLD[1],)
    moved = tuple(fact._replace(position=fact.position + 1) for fact in TOLD)
    assert compare_records(TOLD, moved).lost == TOLD
    doubled = (*TOLD, TOLD[2]._replace(position=5))
    assert compare_records(TOLD, doubled).doubled == ("assistant: 1.",)
    again = [RecordFact(number, "turn.continued", "turn 'draft' continued") for number in (5, 6)]
    assert compare_records(TOLD, (*TOLD, *again)).doubled == ()


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_lost_record_is_shown_and_the_exit_code_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    monkeypatch.setattr(command, "run_assistant", _doctored(is_lost=is_lost))
    monkeypatch.setattr(command, "check_store", _judged)
    done = CliRunner().invoke(main, ["demo", "--kills", "1", "--store", str(tmp_path / "d.db")])
    assert done.exit_code == (1 if is_lost else 0), done.output
    assert ("MISSING" in done.output) == is_lost
    assert ("FAILED: acknowledged, but not recovered: 4 plan" in done.output) == is_lost
    assert ("lost          none" in done.output) == (not is_lost)


def _doctored(*, is_lost: bool):  # type: ignore[no-untyped-def] # noqa: ANN202 - a stand-in for `live`
    nothing = RecoveredState(0.001, (), (), None)
    found = RecoveredState(0.001, TOLD[:3] if is_lost else TOLD, ("draft",), {"step": 1})
    lives = iter([ProcessRun(1, nothing, TOLD, 0, -9, "draft"), ProcessRun(2, found, (), 0, 0, "")])

    def live(path, session, moment, on_found):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        life = next(lives)
        on_found(life.pid, life.found)
        return life

    return live


def _judged(path: str, session: str, lives: list[ProcessRun]) -> DemoVerdict:
    lost = check_module.unrecovered(lives)
    problems = check_module._comparison_problems(compare_records(TOLD, lives[-1].found.facts))
    verified = perdure.VerifyResult(session, 4, 4, "0" * 64, 0)
    return DemoVerdict(4, 0, len(lost), 0, 2, {"step": 1}, verified, tuple(problems))


def test_what_one_process_missed_stays_lost_whatever_the_next_ones_find() -> None:
    nothing, less, all_of_it = (
        RecoveredState(0, facts, ("draft",), None) for facts in ((), TOLD[:3], TOLD)
    )
    first, last = (
        ProcessRun(1, nothing, TOLD, 0, -9, "draft"),
        ProcessRun(3, all_of_it, (), 0, 0, ""),
    )
    assert check_module.unrecovered([first, ProcessRun(2, less, (), 0, -9, "draft"), last]) == [
        TOLD[3]
    ]
    assert (
        check_module.unrecovered([first, ProcessRun(2, all_of_it, (), 0, -9, "draft"), last]) == []
    )


def test_a_process_that_did_not_die_in_its_turn_is_a_failure() -> None:
    nothing, after = RecoveredState(0, (), (), None), RecoveredState(0, TOLD, (), None)
    lives = [ProcessRun(1, nothing, TOLD, 0, -9, "draft"), ProcessRun(2, after, (), 0, 0, "")]
    assert list(check_module._kill_problems(lives)) == [
        "process 1 was not killed in the middle of a turn"
    ]
    lives[1] = lives[1]._replace(found=after._replace(interrupted=("draft",)))
    assert list(check_module._kill_problems(lives)) == []


def test_a_store_that_is_damaged_afterwards_is_a_failure(tmp_path: Path) -> None:
    import apsw

    path = str(tmp_path / "store.db")
    life = run_module.run_assistant(path, "s", None, lambda pid, found: None)
    assert check_module.check_store(path, "s", [life]).problems == ()
    apsw.Connection(path).execute("update entry set body = replace(body, 'broker', 'breaker')")
    verdict = check_module.check_store(path, "s", [life])
    assert verdict.verified is None
    assert "damaged" in verdict.problems[0]


def test_an_assistant_that_can_not_work_says_why(tmp_path: Path) -> None:
    path = str(tmp_path / "gone" / "store.db")
    with pytest.raises(run_module.AssistantError, match="there is no directory"):
        run_module.run_assistant(path, "s", None, lambda pid, found: None)


@pytest.mark.skipif(os.name != "posix", reason="a shell closes the output")
def test_the_demo_needs_no_output(tmp_path: Path) -> None:
    words = shlex.join([*PERDURE, "demo", "--kills", "1"])
    done = subprocess.run(
        ["/bin/sh", "-c", f"{words} >&-"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert run(tmp_path, "verify", "--store", "perdure-demo.db").stdout.startswith("OK ")


def test_the_command_line_has_help_and_a_version(tmp_path: Path) -> None:
    assert run(tmp_path, "--version").stdout == f"perdure, version {perdure.__version__}\n"
    assert "perdure demo" in run(tmp_path, "--help").stdout
    assert "no LLM, no key, no network" in run(tmp_path, "demo", "--help").stdout
