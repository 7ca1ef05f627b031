"""`perdure doctor`: explain a store, test its guarantees, and recommend changes."""

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
The tests write only to a session of their own, which is removed afterwards. A
missing store is not created: its directory is tested with a temporary one.
Postgres tables are created, as by opening, but not with ?migrate=no.

\b
With --json, the output is one object: store, verdict (sound, weak, unusable),
exists, perdure (the version), guarantees, and opening, machine and trials,
each a list of findings (name, verdict: sound, note, weak or unusable; text,
advice, data with figures in seconds and bytes).

\b
Exit codes:
  0  sound
  1  weak: it works, but something should be changed
  2  unusable, or invalid arguments
"""


class Report(NamedTuple):
    """All findings about a store."""

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
        sections = {
            key: [finding.as_data() for finding in getattr(self, key)]
            for key in ("opening", "machine", "trials")
        }
        return {
            "store": self.store,
            "verdict": self.verdict,
            "exists": self.exists,
            "perdure": __version__,
            "guarantees": self.guarantees.as_data(),
            **sections,
        }


@click.command(cls=Reading, epilog=EXAMPLES)
@click.argument("url", metavar="[URL]", required=False, envvar="PERDURE_URL", type=click.Path())
@click.option(
    "--appends",
    default=50,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="Number of durable appends to time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(url: str | None, *, appends: int, as_json: bool) -> None:
    """Check the store at URL and its guarantees, and recommend changes.

    It times durable appends; tries to overwrite, to leave a gap, to resend and to write from
    several handles at once; and checks clock, free space and permissions. It writes only to its
    own session.
    """
    with untold("downgrade"):  # Logged at every opening; the report has it already.
        report = examined(url or DEFAULT, appends)
    if as_json:
        say_json(report.as_data())
    else:
        print_report(report)
    raise SystemExit(EXIT[report.verdict])


def examined(address: str, appends: int) -> Report:
    """Open a store, inspect it and run the trials."""
    with ExitStack() as stack:
        clock = Clock()
        try:
            backend, exists, reopen = stack.enter_context(_opened(address))
        except UsageError:
            raise
        except PerdureError as error:
            return _refused(address, error)
        opening = [*of_guarantees(guarantees_of(backend))]
        trial_findings: list[Finding] = []
        environment: list[Finding] = []
        try:
            if not any(finding.name == "writing" for finding in opening):
                opening += _cleaned(backend)
                with Scratch(backend, reopen) as scratch:
                    trial_findings += trials(scratch, appends)
            environment += clock.findings(backend)
        except PerdureError as error:  # The store became unavailable, or cannot remove streams.
            trial_findings.append(unusable("completion", error, backend.name))
        environment += of_place(path_of(address))
        name = backend.name if exists else named(address)
        return Report(name, exists, guarantees_of(backend), opening, environment, trial_findings)


def _refused(address: str, error: PerdureError) -> Report:
    name, path = named(address), path_of(address)
    finding = unusable("opening", error, name)
    exists = path is None or os.path.lexists(path)
    return Report(name, exists, NOTHING_DECLARED, [finding], [], [])


def _cleaned(backend: Backend) -> Iterator[Finding]:
    """Remove the sessions that killed doctor runs left behind."""
    names = left_behind(backend)
    for name in names:
        take_away(backend, name)
    if names:
        yield Finding(
            "left behind", "note", f"removed {len(names)} sessions of an earlier doctor run"
        )


@contextmanager
def _opened(address: str) -> Iterator[tuple[Backend, bool, Callable[[], Backend]]]:
    """Open a store; in place of a missing one, open a temporary store in its directory."""
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
        with closing(backend_of(address)) as backend:  # Raises an error that says what is missing.
            yield backend, True, lambda: backend_of(address)
        return
    with tempfile.TemporaryDirectory(prefix=".perdure-doctor-", dir=path.parent) as folder:
        temporary = f"{scheme}:{Path(folder, 'store')}"
        accepted = split_accept(address)[1]
        temporary += f"?accept={','.join(sorted(accepted))}" if accepted else ""
        with closing(backend_of(temporary)) as backend:
            yield backend, False, lambda: backend_of(temporary)
