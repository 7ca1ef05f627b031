"""The one command that checks everything runs all tests, and tells of each how it went."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    import check

    return check


@dataclass
class Place:
    """An environment, as the command sees one."""

    name: str
    file: Path
    made: bool = True
    possible: bool = True
    reason: str = ""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", *quickly(self.file)]


def quickly(file: Path) -> list[str]:
    return ["pytest", "-p", "no:cacheprovider", "-c", "/dev/null", str(file)]


def test_what_fails_does_not_hide_what_comes_after_it(
    check: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    good, bad = tmp_path / "test_good.py", tmp_path / "test_bad.py"
    good.write_text("def test_good(): pass\n")
    bad.write_text("def test_bad(): assert False\ndef test_good(): pass\n")
    places = [
        Place("first", good),
        Place("second", bad),
        Place("third", good, made=False),
        Place("fourth", good, possible=False, reason="it has no wheels"),
    ]
    monkeypatch.setattr(check, "ENVIRONMENTS", places)
    monkeypatch.setattr(check, "TESTS", quickly(bad))
    (tmp_path / "reports").mkdir()
    with subprocess.Popen([sys.executable, "-c", ""]) as installing:
        assert check.tests(tmp_path / "reports", installing) == 1
    *_, tests, first, second, third, fourth, last = capfd.readouterr().out.splitlines()
    assert tests == "check: tests: FAILED (status 1): 1 failed, 1 passed"
    assert first == "check: first: 1 passed"
    assert second == "check: second: FAILED (status 1): 1 failed, 1 passed"
    assert third == "check: third: NOT RUN: its environment could not be made (see above)"
    assert fourth == "check: fourth: not run on this Python: it has no wheels"
    assert last.startswith("===== 2 failed, 3 passed in ")
    assert last.endswith("(FAILED: tests, second, third) =====")


def test_what_passes_is_told_with_its_counts(
    check: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    good = tmp_path / "test_good.py"
    good.write_text("def test_good(): pass\n")
    monkeypatch.setattr(check, "ENVIRONMENTS", [Place("first", good)])
    monkeypatch.setattr(check, "TESTS", quickly(good))
    with subprocess.Popen([sys.executable, "-c", ""]) as installing:
        assert check.tests(tmp_path, installing) == 0
    last = capfd.readouterr().out.splitlines()[-1]
    assert last.startswith("===== 2 passed in ")
    assert last.endswith("(of first 1, tests 1) =====")


def test_a_program_that_can_not_be_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    import programs

    monkeypatch.setattr(programs, "PROGRAMS", ())
    assert programs.main() == 0
    monkeypatch.setattr(programs, "PROGRAMS", ("no-such-program",))
    monkeypatch.setattr("os.geteuid", lambda: 1)
    assert programs.main() == 1
    assert "no-such-program: not here, and only root" in capfd.readouterr().out


def test_and_so_is_one_that_no_package_brings(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    import programs

    monkeypatch.setattr(programs, "PROGRAMS", ("no-such-program",))
    monkeypatch.setattr(programs, "PAUSE", 0.0)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name, **_: name if name == "apt-get" else None)
    tried: list[list[str]] = []

    def fail(command: list[str], **_: object) -> "subprocess.CompletedProcess[str]":
        tried.append(command)
        return subprocess.CompletedProcess(command, 100, "", "no such package")

    monkeypatch.setattr("subprocess.run", fail)
    assert programs.main() == 1
    assert len(tried) == programs.ATTEMPTS
    said = capfd.readouterr().out
    assert "no such package" in said
    assert "no-such-program: NOT installed" in said
