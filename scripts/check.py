"""Run every check of the project in order; stop at the first that fails.

The fast checks come first, then the tests, then those of each framework in an environment of its
own, which is installed meanwhile. The last line says how the whole run ended.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree as ET

from environments import ENVIRONMENTS, Environment

ROOT = Path(__file__).resolve().parent.parent

STEPS = {
    "format": ["ruff", "format", "--check", "."],
    "lint": ["ruff", "check", "."],
    "types": ["mypy", "--strict"],
}
# Two workers: the durability tests wait for the disk more than they compute.
TESTS = ["pytest", "-n", "2"]
INSTALL = [sys.executable, str(ROOT / "scripts" / "environments.py")]

COUNTS = ("failures", "errors", "skipped", "tests")


def run(name: str, command: list[str]) -> int:
    print(f"check: {name}: {' '.join(command)}", flush=True)
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False).returncode


def counts(report: Path) -> dict[str, int]:
    """Return what a run of pytest counted; nothing if it did not come to its end."""
    if not report.exists():
        return dict.fromkeys(COUNTS, 0)
    suites = [*ET.parse(report).iter("testsuite")]  # noqa: S314 - pytest's own words
    return {key: sum(int(suite.get(key, 0)) for suite in suites) for key in COUNTS}


def run_framework(environment: Environment, reports: Path) -> tuple[int, str]:
    """Run a framework's tests; return their status and what they printed."""
    command = [*environment.command, f"--junit-xml={reports / environment.name}.xml"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def frameworks(reports: Path) -> list[str]:
    """Run the frameworks' tests, two at a time; return the names of those that failed."""
    failed = []
    possible = [environment for environment in ENVIRONMENTS if environment.possible]
    with ThreadPoolExecutor(2) as pool:
        runs = {one.name: pool.submit(run_framework, one, reports) for one in possible}
        for name, running in runs.items():
            print(f"check: frameworks: {name}", flush=True)
            status, said = running.result()
            print(said, flush=True)
            if status != 0:
                failed.append(f"{name} (status {status})")
    return failed


def closing(reports: Path, seconds: float, failed: list[str]) -> str:
    """Return the last line: what all runs counted together, and what each passed."""
    found = {path.stem: counts(path) for path in sorted(reports.glob("*.xml"))}
    total = {key: sum(one[key] for one in found.values()) for key in COUNTS}
    bad = total["failures"] + total["errors"]
    parts = [f"{total['failures']} failed"] if total["failures"] else []
    parts += [f"{total['tests'] - bad - total['skipped']} passed"]
    parts += [f"{total['skipped']} skipped"] if total["skipped"] else []
    parts += [f"{total['errors']} errors"] if total["errors"] else []
    each = ", ".join(f"{name} {one['tests']}" for name, one in found.items())
    ended = f"FAILED: {', '.join(failed)}" if failed else f"of {each}"
    return f"===== {', '.join(parts)} in {seconds:.2f}s ({ended}) ====="


def tests(reports: Path, installing: "subprocess.Popen[bytes]") -> int:
    """Run all tests; the last line printed tells how that ended."""
    start = time.monotonic()
    status = run("tests", [*TESTS, f"--junit-xml={reports / 'tests'}.xml"])
    if status != 0:
        return status
    if installing.wait() != 0:
        print("check: the frameworks' environments could not be made (see above): FAILED")
        return 1
    failed = frameworks(reports)
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
                print(
                    f"check: {name} FAILED (status {status}) after {seconds:.1f} s; stopped there"
                )
                return 1
            print(f"check: {name} passed in {seconds:.1f} s", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            return tests(Path(folder), installing)
    finally:
        stop(installing)


if __name__ == "__main__":
    sys.exit(main())
