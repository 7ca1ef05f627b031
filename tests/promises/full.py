"""Try the promises for as long as is wanted, and add what was found to a results file.

    python -m tests.promises.full --minutes 5 --seed 1 --only P8 --results full-results.json

Every module `pNN_*.py` here that has a `PROMISE`, or `PROMISES` for several kinds of store, takes
part. `--only P8` means all of its kinds, `--only P8-files` one. The time is divided evenly. Counts
accumulate over runs, for each kind by itself; zero failures in n trials bound the chance of one by
3/n (at 95 %).
"""

import argparse
import importlib
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from tests.promises.promise import Promise

PROGRESS_EVERY = 5.0  # Seconds.
KEY = 20  # Columns of the table.
SHOWN = 5  # Failures of one promise that are printed in a run; all are counted.


class ResultsError(Exception):
    """The results file is not one; it has not been touched."""


def promises(folder: Path) -> list[Promise]:
    """Return what the modules in the folder promise, in order of their names."""
    found: list[Promise] = []
    for path in sorted(folder.glob("p[0-9][0-9]_*.py")):
        module = importlib.import_module(f"tests.promises.{path.stem}")
        alone = [module.PROMISE] if hasattr(module, "PROMISE") else []
        found += getattr(module, "PROMISES", alone)  # Some modules only help others.
    return found


def chosen(every: list[Promise], numbers: list[str]) -> list[Promise]:
    """Return the promises of those numbers or keys, all if there are none."""
    known = {promise.key for promise in every}
    if unknown := set(numbers) - known - {promise.number for promise in every}:
        raise SystemExit(f"no trials for {sorted(unknown)}; there are {sorted(known)}")
    return [
        promise for promise in every if not numbers or {promise.number, promise.key} & {*numbers}
    ]


def load(path: Path) -> dict[str, Any]:
    """Read earlier results; none if there is no file."""
    if not path.exists():
        return {}
    try:
        results = json.loads(path.read_text())
        for name, result in results.items():
            _require(name, result)
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        reason = f"{path} holds no results ({type(error).__name__}: {error})"
        raise ResultsError(f"{reason}: move it away or give another --results") from error
    return results  # type: ignore[no-any-return]


def _require(name: str, result: dict[str, Any]) -> None:
    counts = (result["trials"], result["failures"], result["seconds"])
    if not all(isinstance(count, int | float) and count >= 0 for count in counts):
        raise ValueError(f"{name} has counts that are none")
    if not all(isinstance(seed, int) for seed in result["seeds"]):
        raise ValueError(f"{name} has seeds that are none")


def save(path: Path, results: dict[str, Any]) -> None:
    """Replace the file in one step, so that a run that is cut off does not spoil earlier ones."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(results, indent=1) + "\n")
    new.replace(path)


def add(path: Path, run: "Run") -> dict[str, Any]:
    """Add one run of one promise to the results file, as it is now, and return the totals."""
    results = load(path)
    nothing: dict[str, Any] = {"trials": 0, "failures": 0, "seconds": 0.0, "seeds": []}
    total: dict[str, Any] = results.setdefault(run.promise.key, nothing)
    total["trials"] += run.trials
    total["failures"] += run.failures
    total["seconds"] = round(total["seconds"] + run.seconds, 1)
    total["seeds"].append(run.seed)
    save(path, results)
    return total


class Run:
    """The trials of one promise in one run, counted as they happen."""

    def __init__(self, promise: Promise, seed: int) -> None:
        self.promise = promise
        self.seed = seed
        self.trials = 0
        self.failures = 0
        self.start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    def go(self, seconds: float) -> None:
        """Try for some time, and tell how it goes. Trials that break down count as a failure."""
        shown = 0.0
        try:
            for trial in self.promise.trials(self.seed, self.start + seconds):
                self.trials += 1
                if trial.failure:
                    self._fail(f"{trial.what}: {trial.failure}")
                if self.seconds > shown + PROGRESS_EVERY:
                    shown = self.seconds
                    self._tell()
        except Exception as error:  # noqa: BLE001 - the other promises have their turn
            self.trials += 1
            self._fail(f"the trials broke down: {type(error).__name__}: {error}")
        self._tell()
        print()

    def _fail(self, what: str) -> None:
        self.failures += 1
        if self.failures <= SHOWN:
            print(f"\n{self.promise.key} FAILED, seed {self.seed}: {what}")

    def _tell(self) -> None:
        counts = f"{self.trials} trials, {self.failures} failures, {self.seconds:.0f} s"
        print(f"\r{self.promise.key}: {counts:<60}", end="", flush=True)


def row(promise: Promise, total: dict[str, Any]) -> str:
    """Return a line of the table; with no failure, the bound on their share."""
    trials, failures = total["trials"], total["failures"]
    bound = f"{failures / trials:.2%} fail" if failures else f"< {3 / max(trials, 3):.1e}"
    reached = "" if trials >= promise.target else f" of {promise.target}"
    return (
        f"{promise.key:<{KEY}} {trials:>9}{reached:<12} {failures:>8}  {bound:<10} {promise.says}"
    )


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.promises.full", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=5.0, help="for all promises together")
    parser.add_argument("--seed", type=int, help="from the clock if it is not given")
    parser.add_argument("--only", nargs="+", default=[], metavar="P8", help="these alone")
    parser.add_argument("--results", type=Path, default=Path("full-results.json"))
    return parser.parse_args(words)


def main(words: list[str], every: list[Promise] | None = None) -> int:
    """Return 1 if any trial of this run failed, 2 if the results file can not be used."""
    given = arguments(words)
    logging.getLogger("perdure").addHandler(logging.NullHandler())  # Faults are made on purpose.
    seed = time.time_ns() // 1_000_000 if given.seed is None else given.seed
    wanted = chosen(promises(Path(__file__).parent) if every is None else every, given.only)
    print(f"seed {seed}, {given.minutes:g} minutes, {len(wanted)} promises")
    failed, totals = False, []
    try:
        load(given.results)  # A file that can not be used is said now and not after hours.
        for promise in wanted:
            run = Run(promise, seed)
            try:
                run.go(given.minutes * 60 / len(wanted))
            finally:  # What was tried before somebody interrupted counts too.
                totals.append((promise, add(given.results, run)))
            failed = failed or run.failures > 0
    except ResultsError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"\n{'':<{KEY}} {'trials':>9}{'':<12} {'failures':>8}  {'bound':<10} over all runs")
    for promise, total in totals:
        print(row(promise, total))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
