"""Children that run a script and may die at a place, and what the model server was sent."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.adapters.autogen.scripts import SCRIPTS, Scene
from tests.adapters.openai import killing
from tests.adapters.openai.killing import Killer, prompts

__all__ = ["prompts", "run", "scene", "serving", "told"]

COMMAND = [sys.executable, "-m", "tests.adapters.autogen.server"]


@contextmanager
def serving() -> Iterator[str]:
    """Run the model server in a process of its own; give its address."""
    pipe = subprocess.PIPE
    with subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield process.stdout.readline().strip()
        process.stdin.close()
        assert process.wait(60) == 0


def scene(folder: Path, effect: str = "idempotent", url: str = "") -> Scene:
    folder.mkdir(exist_ok=True)
    return Scene(url, folder, effect, lambda _: None)


def run(name: str, effect: str, url: str, folder: Path, *, what: str = "", at: int = 0) -> Any:
    """Run a script in a child; return what it counted, or None if it was killed."""

    def script(form: str, url: str, folder: Path, killer: Any) -> None:
        assert isinstance(killer, Killer)
        sys.stdout.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        place = Scene(url, folder, effect, killer._reach)
        result = SCRIPTS[form](place)
        (folder / "told.json").write_text(json.dumps(result))

    folder.mkdir(exist_ok=True)
    return killing.child(script, name, url, folder, what=what, at=at)


def told(folder: Path) -> Any:
    return json.loads((folder / "told.json").read_text())
