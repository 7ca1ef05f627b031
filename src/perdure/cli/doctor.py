"""`perdure doctor`: what a store's address means, whether it keeps its promises, what to change."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from perdure import __version__
from perdure.backend import Backend
from perdure.cli.doctor_findings import Finding, Verdict, of_guarantees, unusable, worst
from perdure.cli.doctor_machine import Clock, of_place
from perdure.cli.doctor_scratch import Scratch, left_behind, take_away
from perdure.cli.doctor_trials import trials
from perdure.cli.doctor_view import print_report
from perdure.cli.stores import DEFAULT, Reading, named
from perdure.cli.text import say_json
from perdure.cli.untold import untold
from perdure.errors import PerdureError, UsageError
from perdure.guarantees import NOTHING_DECLARED, Guarantees, guarantees_of
from perdure.opening import backend_of, path_of, scheme_of, split_accept

EXIT: dict[Verdict, int] = {"sound": 0, "weak": 1, "unusable": 2}

EXAMPLES = """\b
Examples:
  perdure doctor agents.db
  perdure doctor files:agent_state
  perdure doctor --appends 1000 agents.db
  perdure doctor --json postgresql://db.example/agents | jq .verdict

\b
What is tried is tried with a session of its own, which is removed again. A
store that is not there yet is not made: its directory is tried with another
one. Only tables in Postgres are made, as opening does; not with ?migrate=no.

\b
With --json, the output is one object: store, verdict (sound, weak, unusable),
exists, perdure (the version), guarantees, and opening, machine and trials,
each a list of findings (name, verdict: sound, note, weak or unusable; text,
advice, data with figures in seconds and bytes).

\b
Exit codes:
  0  sound
  1  weak: it works, and something should be changed
  2  unusable, or the call is wrong
"""


class Report(NamedTuple):
    """Everything that was found."""

    store: str
    exists: bool
    guarantees: Guarantees
    opening: list[Finding]
    machine: list[Finding]
    trials: list[Finding]

    @property
    def findings(self) -> list[Finding]:
        return [*self.opening, *self.machine, *self.trials]

    @property
    def verdict(self) -> Verdict:
        return worst(self.findings)

    def as_data(self) -> dict[str, Any]:
        found = {
            key: [finding.as_data() for finding in getattr(self, key)]
            for key in ("opening", "machine", "trials")
        }
        return {
            "store": self.store,
            "verdict": self.verdict,
            "exists": self.exists,
            "perdure": __version__,
            "guarantees": self.guarantees.as_data(),
            **found,
        }


@click.command(cls=Reading, epilog=EXAMPLES)
@click.argument("url", metavar="[URL]", required=False, envvar="PERDURE_URL", type=click.Path())
@click.option(
    "--appends",
    default=50,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="How many durable appends to time.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def doctor(url: str | None, *, appends: int, as_json: bool) -> None:
    """Explain the store at URL, try it, and say what to change.

    It times durable appends, tries to overwrite, to leave a gap, to send twice and to write from
    several handles at once, and looks at clock, space and permissions. No session but its own is
    written to.
    """
    with untold("downgrade"):  # At each of many openings; the report says it.
        report = examined(url or DEFAULT, appends)
    if as_json:
        say_json(report.as_data())
    else:
        print_report(report)
    raise SystemExit(EXIT[report.verdict])


def examined(address: str, appends: int) -> Report:
    """Open a store, look at it and try it."""
    with ExitStack() as stack:
        clock = Clock()
        try:
            backend, exists, reopen = stack.enter_context(_opened(address))
        except UsageError:
            raise
        except PerdureError as error:
            return _refused(address, error)
        opening = [*of_guarantees(guarantees_of(backend))]
        tried: list[Finding] = []
        machine: list[Finding] = []
        try:
            if not any(finding.name == "writing" for finding in opening):
                opening += _cleaned(backend)
                with Scratch(backend, reopen) as scratch:
                    tried += trials(scratch, appends)
            machine += clock.findings(backend)
        except PerdureError as error:  # It went away meanwhile, or does not remove.
            tried.append(unusable("to the end", error, backend.name))
        machine += of_place(path_of(address))
        name = backend.name if exists else named(address)
        return Report(name, exists, guarantees_of(backend), opening, machine, tried)


def _refused(address: str, error: PerdureError) -> Report:
    name, path = named(address), path_of(address)
    finding = unusable("opening", error, name)
    exists = path is None or os.path.lexists(path)
    return Report(name, exists, NOTHING_DECLARED, [finding], [], [])


def _cleaned(backend: Backend) -> Iterator[Finding]:
    """Take away what doctors left behind who were killed."""
    names = left_behind(backend)
    for name in names:
        take_away(backend, name)
    if names:
        yield Finding("left behind", "note", f"{len(names)} sessions of an earlier doctor, removed")


@contextmanager
def _opened(address: str) -> Iterator[tuple[Backend, bool, Callable[[], Backend]]]:
    """Open a store; one that is not there is tried with another one in its directory."""
    path = path_of(address)
    scheme = scheme_of(address)[0]
    if scheme == "memory":
        backend = backend_of(address)
        yield backend, True, lambda: backend
        return
    if path is None or os.path.lexists(path):
        with closing(backend_of(address)) as backend:
            yield backend, True, lambda: backend_of(address)
        return
    if not path.parent.is_dir():
        with closing(backend_of(address)) as backend:  # It says what is missing.
            yield backend, True, lambda: backend_of(address)
        return
    with tempfile.TemporaryDirectory(prefix=".perdure-doctor-", dir=path.parent) as folder:
        place = f"{scheme}:{Path(folder, 'store')}"
        accepted = split_accept(address)[1]
        place += f"?accept={','.join(sorted(accepted))}" if accepted else ""
        with closing(backend_of(place)) as backend:
            yield backend, False, lambda: backend_of(place)
