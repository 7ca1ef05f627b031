"""Working state: a document that changes a little each time, and what storing that costs."""

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

import perdure
from benchmarks.report import Part, Progress, table
from benchmarks.workload import SEED

SIZES = (1_000, 20_000, 200_000)


def _document(rng: random.Random, size: int) -> dict[str, Any]:
    """A plan with steps of about 200 B each."""
    steps = [
        {"id": number, "done": False, "text": f"{rng.getrandbits(640):x}"}
        for number in range(max(1, size // 200))
    ]
    return {"goal": "settle claim 4711", "steps": steps, "version": 0}


def measure(folder: Path, *, versions: int) -> Part:
    """Store documents of three sizes again and again; each time one step changes."""
    progress = Progress("values", len(SIZES))
    part = Part("values")
    rows = []
    for size in SIZES:
        rng = random.Random(SEED)
        document = _document(rng, size)
        full = len(msgspec.json.encode(document))
        times = []
        with tempfile.TemporaryDirectory(dir=folder) as place:
            path = Path(place) / "perdure.db"
            with perdure.open(path) as store:
                session = store.session("session-00000")
                for version in range(versions):
                    document["version"] = version
                    document["steps"][rng.randrange(len(document["steps"]))]["done"] = version
                    start = time.perf_counter()
                    session.set("plan", document)
                    times.append(time.perf_counter() - start)
            stored = path.stat().st_size / versions
        progress.step(f"{full:,} B, {versions} versions")
        median = statistics.median(times)
        part.data[str(full)] = {"stored_bytes": stored, "set_s": median}
        rows.append(
            [f"{full:,} B of JSON", f"{stored:,.0f}", f"{stored / full:.1%}", f"{1e3 * median:.2f}"]
        )
    head = ["a value, one step changed", "stored B a version", "of its JSON", "set() ms"]
    part.tables.append(table(head, rows))
    return part
