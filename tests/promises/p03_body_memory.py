"""P3, memory: a body of 256 MiB is stored and read back in pieces, in a process of its own.

    python -m tests.promises.p03_body_memory ADDRESS MEBIBYTES PART_SIZE

It prints the peak of the memory of that process beyond the bare interpreter, in bytes, as JSON.
"""

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.promises.promise import Promise, Trial, in_time

MEBIBYTES = 256
MOST = 32 * 2**20
CHUNK = 2**16


def peak() -> int:
    """Return the most memory that this process ever had, in bytes."""
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kilobytes) * 1024


def chunks(mebibytes: int) -> Iterator[bytes]:
    """Yield bytes that are not equal to each other; the same each time."""
    draw = random.Random(1)
    for _ in range(mebibytes * 2**20 // CHUNK):
        yield draw.randbytes(CHUNK)


def measure(address: str, mebibytes: int, part_size: int) -> int:
    """Store a body, cite it, read it and verify it in another process; return what it took."""
    program = [sys.executable, "-m", __name__, address, str(mebibytes), str(part_size)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result == {"bytes": result["bytes"], "same": True, "size": mebibytes * 2**20}
    return int(result["bytes"])


def main(address: str, mebibytes: str, part_size: str) -> None:
    bare = peak()  # Before perdure is imported.
    import perdure

    with perdure.open(address, part_size=int(part_size)) as store:
        session = store.session("large")
        body = session.upload(chunks(int(mebibytes)), media_type="video/mp4")
        session.set("video", {"file": body})
        session.append({"role": "user", "content": [{"type": "text", "text": body.as_base64}]})
        session = store.session("large")
        (message,) = session.messages()
        expected, found = sha256(), sha256()
        for chunk in message["content"][0]["text"].chunks():
            found.update(chunk)
        for chunk in chunks(int(mebibytes)):
            expected.update(chunk)
        session.verify()
        taken = peak() - bare
    same = expected.digest() == found.digest()
    print(json.dumps({"bytes": taken, "same": same, "size": body.size}))


def trials(kind: str, _seed: int, deadline: float) -> Iterator[Trial]:
    """Store one after the other, each in a new store."""
    from tests.backends.postgres.server import new_schema
    from tests.backends.postgres.server_keeper import running
    from tests.promises import places

    while in_time(deadline):
        with places.fast_directory() as folder:
            address = {"sqlite": f"sqlite:{folder}/store.db", "files": f"files:{folder}/store"}
            if kind == "postgres":
                with running() as server:
                    url = f"{server.url}?schema={new_schema()}"
                    taken = measure(url, MEBIBYTES, 2**20)
            else:
                taken = measure(address[kind], MEBIBYTES, 2**20)
        more = f"{taken / 2**20:.1f} MiB beyond the interpreter"
        yield Trial(f"{MEBIBYTES} MiB on {kind}: {more}", "" if taken <= MOST else more)


SAYS = f"a body of {MEBIBYTES} MiB takes at most {MOST // 2**20} MiB of memory"
PROMISES = [
    Promise("P3", SAYS, 5, partial(trials, kind), f"{kind}-body-memory")
    for kind in ("sqlite", "files", "postgres")
]


if __name__ == "__main__":
    main(*sys.argv[1:])
