"""Install the programs that tests use and no wheel brings, where this machine lets us.

    python scripts/programs.py

That is as root, with Debian's `apt-get`. Elsewhere it says what is missing: the tests that need it
are skipped and say so, but fail where CI is set. A service that comes along is not started.
"""

import os
import shutil
import subprocess
import sys
import time

PROGRAMS = ("pgbouncer", "strace")
"""Each is in a package of its own name."""
PLACES = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
ATTEMPTS = 3  # What a package index can not give now, it may in a while.
PAUSE = 10.0  # Seconds before the next one.


def say(text: str) -> None:
    print(f"programs: {text}", flush=True)


def missing() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name, path=PLACES) is None]


def install(names: list[str]) -> bool:
    """Return whether apt-get could install these packages; what it said is shown if not."""
    # At runlevel 1, packages start no service.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    commands = (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-qq", "--no-install-recommends", *names],
    )
    for command in commands:
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            say(f"{' '.join(command)} said:\n{done.stdout}{done.stderr}")
            return False
    return True


def main() -> int:
    """Return 0 if all programs are there."""
    if not (names := missing()):
        return 0
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("apt-get") is None:
        say(f"{', '.join(names)}: not here, and only root can install them, with apt-get")
        return 1
    say(f"{', '.join(names)}: installing")
    for attempt in range(1, ATTEMPTS + 1):
        if install(names):
            break
        if attempt < ATTEMPTS:
            time.sleep(PAUSE)
    say(f"{', '.join(names)}: {'NOT installed' if missing() else 'installed'}")
    return 1 if missing() else 0


if __name__ == "__main__":
    sys.exit(main())
