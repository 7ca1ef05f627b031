"""The command: choose the parts, measure them, print, draw, and say whether everything holds."""

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import apsw

from benchmarks import (
    adapter,
    agents_sdk,
    effects,
    figures,
    imports,
    postgres,
    reading,
    redis_turns,
    sessions,
    speed,
    storage,
    values,
)
from benchmarks.report import Part
from benchmarks.workload import SEED

PARTS = (
    *("speed", "reading", "storage", "import", "values", "adapter", "effects"),
    *("agents", "postgres", "redis", "sessions"),
)
RESULTS = Path(__file__).resolve().parent / "results"


def main() -> int:
    """Run the benchmark; 1 if something that must hold is broken."""
    arguments = _arguments()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix="stores-") as folder:
        parts = _parts(Path(folder), arguments)
        chosen = [arguments.only] if arguments.only else list(parts)
        done = []
        for name in chosen:
            done.append(parts[name]())
            _show(done[-1])
    data = {part.name: part.data for part in done}
    results = {"machine": _machine(), "seed": SEED, **data}
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print(figures.draw(data, out / "results.png"))
    print(f"the figures are in {out / 'results.json'}\n")
    lines = [line for part in done for line in part.lines]
    print(*lines, sep="\n")
    return 1 if any(line.holds is False for line in lines) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/run.py",
        description="Measure perdure beside others, on this machine and this disk.",
    )
    parser.add_argument("--quick", action="store_true", help="a minute, with less to trust")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument(
        "--sessions",
        type=int,
        metavar="N",
        help="of the part `sessions`: how many the largest store holds [1,000,000; quick: 10,000]",
    )
    parser.add_argument(
        "--url",
        help="of the part `sessions`: the stores, with {size} in it; those that are there are used",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=RESULTS,
        metavar="DIR",
        help="where results go, and while it runs the stores: this folder's disk is measured",
    )
    return parser.parse_args()


def _parts(folder: Path, arguments: argparse.Namespace) -> dict[str, Callable[[], Part]]:
    quick: bool = arguments.quick
    return {
        "speed": lambda: speed.measure(
            folder,
            rounds=5 if quick else 15,
            seconds=0.5 if quick else 1.0,
            pairs=500 if quick else 3_000,
        ),
        "reading": lambda: reading.measure(
            folder, long=50_000 if quick else 1_000_000, repeats=15 if quick else 60
        ),
        "storage": lambda: storage.measure(folder, count=1_000),
        "import": lambda: imports.measure(folder, repeats=9 if quick else 31),
        "values": lambda: values.measure(folder, versions=100 if quick else 500),
        "adapter": lambda: adapter.measure(folder, repeats=100 if quick else 1_000),
        "agents": lambda: agents_sdk.measure(folder, repeats=5 if quick else 20),
        "effects": lambda: effects.measure(
            folder, rounds=2 if quick else 5, steps=10 if quick else 15
        ),
        "postgres": lambda: postgres.measure(
            folder,
            rounds=3 if quick else 9,
            seconds=0.7 if quick else 2.0,
            pairs=150 if quick else 1_800,
        ),
        "redis": lambda: redis_turns.measure(
            folder,
            rounds=3 if quick else 9,
            seconds=0.7 if quick else 2.0,
            pairs=300 if quick else 1_800,
        ),
        "sessions": lambda: sessions.measure(
            folder,
            largest=arguments.sessions or (10_000 if quick else 1_000_000),
            repeats=10 if quick else 40,
            url=arguments.url,
        ),
    }


def _show(part: Part) -> None:
    print(f"\n{part.name}\n")
    for text in part.tables:
        print(text, end="\n\n")
    sys.stdout.flush()


def _machine() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "sqlite": apsw.sqlite_lib_version(),
    }
