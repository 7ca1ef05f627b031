"""Run every check of the project in order; stop at the first that fails.

The fast checks come first. pytest comes last, and nothing is printed after its closing line:
whoever reads only the last line learns how the whole run ended.
"""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

STEPS = {
    "format": ["ruff", "format", "--check", "."],
    "lint": ["ruff", "check", "."],
    "types": ["mypy", "--strict"],
}
# Two workers: the durability tests wait for the disk more than they compute.
TESTS = ["pytest", "-n", "2"]


def run(name: str, command: list[str]) -> int:
    print(f"check: {name}: {' '.join(command)}", flush=True)
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False).returncode


def main() -> int:
    for name, command in STEPS.items():
        start = time.monotonic()
        status = run(name, command)
        seconds = time.monotonic() - start
        if status != 0:
            print(f"check: {name} FAILED (status {status}) after {seconds:.1f} s; stopped there")
            return 1
        print(f"check: {name} passed in {seconds:.1f} s", flush=True)
    return run("tests", TESTS)


if __name__ == "__main__":
    sys.exit(main())
