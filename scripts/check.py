"""Run every check of the project: first the fast ones, which stop the rest if they fail.

Then come the tests, and those of each framework in an environment of its own, which is installed
meanwhile; all of them are run, whatever fails. At the end a line says of each how it went, and the
last line how the whole run ended.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree as ET

from environments import ENVIRONMENTS, Environment

ROOT = Path(__file__).resolve().parent.parent

STEPS = {
    "generated": ["scripts.generate_sync", "--check"],
    "format": ["ruff", "format", "--check", "."],
    "lint": ["ruff", "check", "."],
    "types": ["mypy", "--strict"],
}
# Two workers: the durability tests wait for the disk more than they compute.
TESTS = ["pytest", "-n", "2"]
INSTALL = [sys.executable, str(ROOT / "scripts" / "environments.py")]
PROGRAMS = [sys.executable, str(ROOT / "scripts" / "programs.py")]

COUNTS = ("failures", "errors", "skipped", "tests")
NOT_MADE = -1  # The status of tests whose environment is not there.


def run(name: str, command: list[str]) -> int:
    print(f"check: {name}: {' '.join(command)}", flush=True)
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False).returncode


def counts(report: Path) -> dict[str, int]:
    """Return what a run of pytest counted; nothing if it did not come to its end."""
    if not report.exists():
        return dict.fromkeys(COUNTS, 0)
    suites = [*ET.parse(report).iter("testsuite")]  # noqa: S314 - pytest's own words
    return {key: sum(int(suite.get(key, 0)) for suite in suites) for key in COUNTS}


def in_words(found: dict[str, int]) -> str:
    bad = found["failures"] + found["errors"]
    parts = [f"{found['failures']} failed"] if found["failures"] else []
    parts += [f"{found['tests'] - bad - found['skipped']} passed"]
    parts += [f"{found['skipped']} skipped"] if found["skipped"] else []
    parts += [f"{found['errors']} errors"] if found["errors"] else []
    return ", ".join(parts)


def run_framework(environment: Environment, reports: Path) -> tuple[int, str]:
    """Run a framework's tests; return their status and what they printed."""
    command = [*environment.command, f"--junit-xml={reports / environment.name}.xml"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def frameworks(reports: Path, environments: Iterable[Environment]) -> dict[str, int]:
    """Run the frameworks' tests, two at a time; return the status of each."""
    statuses = {}
    with ThreadPoolExecutor(2) as pool:
        runs = {one.name: pool.submit(run_framework, one, reports) for one in environments}
        for name, running in runs.items():
            print(f"check: frameworks: {name}", flush=True)
            statuses[name], said = running.result()
            print(said, flush=True)
    return statuses


def summary(statuses: dict[str, int], reports: Path) -> list[str]:
    """Return a line for the tests and for each environment: what came of it, or why it did not."""
    lines = []
    for name in ("tests", *(one.name for one in ENVIRONMENTS)):
        said = in_words(counts(reports / f"{name}.xml"))
        reason = next((one.reason for one in ENVIRONMENTS if one.name == name), "")
        if name not in statuses:
            lines.append(f"check: {name}: not run on this Python: {reason}")
        elif statuses[name] == NOT_MADE:
            lines.append(f"check: {name}: NOT RUN: its environment could not be made (see above)")
        elif statuses[name] != 0:
            lines.append(f"check: {name}: FAILED (status {statuses[name]}): {said}")
        else:
            lines.append(f"check: {name}: {said}")
    return lines


def closing(reports: Path, seconds: float, failed: list[str]) -> str:
    """Return the last line: what all runs counted together, and what each passed."""
    found = {path.stem: counts(path) for path in sorted(reports.glob("*.xml"))}
    total = {key: sum(one[key] for one in found.values()) for key in COUNTS}
    each = ", ".join(f"{name} {one['tests']}" for name, one in found.items())
    ended = f"FAILED: {', '.join(failed)}" if failed else f"of {each}"
    return f"===== {in_words(total)} in {seconds:.2f}s ({ended}) ====="


def tests(reports: Path, installing: "subprocess.Popen[bytes]") -> int:
    """Run all tests; the last lines printed tell how that ended."""
    start = time.monotonic()
    statuses = {"tests": run("tests", [*TESTS, f"--junit-xml={reports / 'tests'}.xml"])}
    installing.wait()
    possible = [one for one in ENVIRONMENTS if one.possible]
    statuses |= {one.name: NOT_MADE for one in possible}
    statuses |= frameworks(reports, [one for one in possible if one.made])
    print("\n".join(summary(statuses, reports)))
    failed = [name for name, status in statuses.items() if status != 0]
    print(closing(reports, time.monotonic() - start, failed), flush=True)
    return 1 if failed else 0


def stop(installing: "subprocess.Popen[bytes]") -> None:
    """End the installation with the pip that it runs: one left alone would spoil the next."""
    if installing.poll() is None:
        os.killpg(installing.pid, signal.SIGTERM)
        installing.wait()


def main() -> int:
    installing = subprocess.Popen(INSTALL, cwd=ROOT, start_new_session=True)
    try:
        for name, command in STEPS.items():
            start = time.monotonic()
            status = run(name, command)
            seconds = time.monotonic() - start
            if status != 0:
                ended = f"check: {name} FAILED (status {status}) after {seconds:.1f} s"
                print(f"{ended}; stopped there: no test was run")
                return 1
            print(f"check: {name} passed in {seconds:.1f} s", flush=True)
        subprocess.run(PROGRAMS, cwd=ROOT, check=False)  # Tests that miss one say so.
        with tempfile.TemporaryDirectory() as folder:
            return tests(Path(folder), installing)
    finally:
        stop(installing)


if __name__ == "__main__":
    sys.exit(main())
