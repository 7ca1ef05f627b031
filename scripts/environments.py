"""Make the environments that the frameworks' tests run in, one for each requirements file.

    python scripts/environments.py            make all of them
    python scripts/environments.py ag2        make one
    python scripts/environments.py --paths    say which interpreter belongs to which tests

The frameworks' dependencies conflict with each other's and with perdure's tests. An environment is
made when it is missing, was not finished, or its file has changed. It holds what the file pins, and
finds perdure in `src`, as an editable installation does.
"""

import argparse
import hashlib
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ATTEMPTS = 3  # What a package index can not give now, it may in a while.
PAUSE = 10.0  # Seconds before the next one.


@dataclass(frozen=True)
class Environment:
    """A requirements file, the folder of tests that run with it, and the Pythons that can.

    `only` selects some of the tests, where others that run have the same code to try.
    """

    name: str
    tests: str
    before: tuple[int, int] | None = None
    reason: str = ""
    only: str = ""

    @property
    def requirements(self) -> Path:
        return ROOT / "requirements" / f"{self.name}.txt"

    @property
    def folder(self) -> Path:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return ROOT / ".venvs" / f"{self.name}-{version}"

    @property
    def python(self) -> Path:
        return self.folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"

    @property
    def possible(self) -> bool:
        return self.before is None or sys.version_info[:2] < self.before

    @property
    def mark(self) -> Path:
        return self.folder / "finished"

    @property
    def wanted(self) -> str:
        """What the mark of the finished environment must say."""
        digest = hashlib.sha256(self.requirements.read_bytes()).hexdigest()
        return f"{digest} {sys.version.split()[0]} {ROOT}\n"

    @property
    def made(self) -> bool:
        return self.mark.exists() and self.mark.read_text("utf-8") == self.wanted

    @property
    def command(self) -> list[str]:
        only = ["-k", self.only] if self.only else []
        return [str(self.python), "-m", "pytest", f"tests/adapters/{self.tests}", *only]


NO_WHEELS = "its numpy has no wheels for later Pythons"

ENVIRONMENTS = [
    Environment("autogen", "autogen"),
    Environment("ag2", "autogen"),
    Environment("pyautogen", "autogen", (3, 13), NO_WHEELS),
    # It differs from the one before in what async code is hooked to.
    Environment("autogen-0.2", "autogen", (3, 13), NO_WHEELS, "two_agents_async or test_persist"),
    Environment("agentchat", "agentchat"),
    Environment("openai-agents", "openai_agents"),
    Environment("langgraph", "langgraph"),
]


def say(text: str) -> None:
    print(f"environments: {text}", flush=True)


def make(environment: Environment) -> None:
    """Return when the environment is as its file says; raise if pip could not make it so."""
    name, folder = environment.name, environment.folder
    if not environment.possible:
        say(f"{name}: not on this Python: {environment.reason}")
        return
    if environment.made:
        say(f"{name}: as wanted")
        return
    start = time.monotonic()
    say(f"{name}: installing {environment.requirements.relative_to(ROOT)}")
    shutil.rmtree(folder, ignore_errors=True)
    # Sharing pip with this interpreter saves a copy in each environment.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(environment.python)]
    options = ["--disable-pip-version-check", "--no-compile", "--require-hashes"]
    command = [*pip, "install", *options, "-r", str(environment.requirements)]
    for attempt in range(1, ATTEMPTS + 1):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode == 0:
            break
        say(f"{name}: pip said, at attempt {attempt} of {ATTEMPTS}:\n{done.stdout}{done.stderr}")
        if attempt == ATTEMPTS:
            raise subprocess.CalledProcessError(done.returncode, "pip install")
        time.sleep(PAUSE)
    (site_packages(environment) / "perdure.pth").write_text(f"{ROOT / 'src'}\n", "utf-8")
    environment.mark.write_text(environment.wanted, "utf-8")
    say(f"{name}: made in {time.monotonic() - start:.0f} s")


def site_packages(environment: Environment) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    command = [str(environment.python), "-c", code]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Path(said.strip())


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the environments of the frameworks' tests.")
    parser.add_argument("names", nargs="*", help="which ones; all if none is named")
    parser.add_argument("--paths", action="store_true", help="only say how their tests are run")
    options = parser.parse_args()
    known = {environment.name: environment for environment in ENVIRONMENTS}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"no environment is called {unknown[0]}: {', '.join(known)}")
    failed = False
    for environment in [known[name] for name in options.names] or ENVIRONMENTS:
        if options.paths:
            print(shlex.join(environment.command))
            continue
        try:
            make(environment)
        except (OSError, subprocess.CalledProcessError) as error:
            say(f"{environment.name}: FAILED: {error}")
            failed = True  # The others can be made, and tested in.
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
