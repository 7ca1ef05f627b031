"""A command in a terminal of its own: what is typed, what is shown, Ctrl-C and kills."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cli.support import ESCAPES

# As in a shell, the terminal is the process's own, so that Ctrl-C is a signal.
START = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, '-P', '-m', 'perdure', *sys.argv[1:]])"
)
UNWANTED = re.compile(r"COLUMNS|NO_COLOR|FORCE_COLOR|OPENAI_\w+|PERDURE_URL")
PATIENCE = 60.0  # Seconds; a busy machine may need some of them.


class Terminal:
    """Runs perdure. Ends it in the end, however the test ends."""

    def __init__(
        self, folder: Path, *arguments: str, columns: int = 80, **environment: str
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        kept = {name: value for name, value in os.environ.items() if not UNWANTED.fullmatch(name)}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", START, *arguments],
            cwd=folder,
            env={**kept, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.raw = b""
        self._seen = 0

    @property
    def shown(self) -> str:
        """Everything so far, without colours."""
        return ESCAPES.sub("", self.raw.decode(errors="replace")).replace("\r\n", "\n")

    def wait_for(self, text: str) -> str:
        """Read until a text was shown, after what was waited for before; return what came."""
        end = time.monotonic() + PATIENCE
        while text not in self.shown[self._seen :]:
            if not self._read(end):
                raise AssertionError(f"{text!r} was not shown, but:\n{self.shown[self._seen :]}")
        before, self._seen = self._seen, self.shown.index(text, self._seen) + len(text)
        return self.shown[before : self._seen]

    def _read(self, end: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(end - time.monotonic(), 0))
        try:
            data = os.read(self._ours, 65536) if ready else b""
        except OSError:  # Linux says so when the other end is closed.
            data = b""
        self.raw += data
        return bool(data)

    def write(self, text: str) -> None:
        """Type a text and Enter."""
        os.write(self._ours, text.encode() + b"\r")

    def press(self, key: bytes) -> None:
        """Press a key, such as Ctrl-C."""
        os.write(self._ours, key)

    def rest(self) -> None:
        """Let the process come to wait for a key: readline loses a signal just before it does."""
        state = Path(f"/proc/{self.process.pid}/stat")
        if not state.exists():
            time.sleep(0.5)
            return
        end, asleep = time.monotonic() + PATIENCE, 0
        while asleep < 10 and time.monotonic() < end:  # It may have slept for something else.
            time.sleep(0.02)
            is_asleep = state.read_text().rpartition(")")[2].split()[0] == "S"
            asleep = asleep + 1 if is_asleep else 0

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        """Read to the end, and return the exit code."""
        end = time.monotonic() + PATIENCE
        while self._read(end):
            pass
        return self.process.wait(timeout=PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        os.close(self._ours)


CTRL_C, CTRL_D = b"\x03", b"\x04"
