"""`perdure doctor`: explain a store, test its guarantees, and recommend changes."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from perdure import __version__
from perdure.backends.addresses import open_backend, path_of, scheme_of, split_accept
from perdure.backends.guarantees import NOTHING_DECLARED, Guarantees, guarantees_of
from perdure.backends.protocol import Backend
from perdure.cli.doctor.environment import ClockCheck, path_findings
from perdure.cli.doctor.findings import (
    StoreFinding,
    StoreVerdict,
    guarantee_findings,
    unusable_finding,
    worst_verdict,
)
from perdure.cli.doctor.scratch import ScratchSession, find_leftovers, remove_stream
from perdure.cli.doctor.trials import run_trials
from perdure.cli.doctor.view import print_report
from perdure.cli.stores import DEFAULT_STORE, StoreCommand, printable_name
from perdure.cli.terminal import echo_json, muted_event
from perdure.errors import PerdureError, UsageError
from perdure.sync.verify import find_problems

EXIT_CODES: dict[StoreVerdict, int] = {"sound": 0, "weak": 1, "unusable": 2}


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


class DoctorReport(NamedTuple):
    """All findings about a store."""

    store: str
    exists: bool
    guarantees: Guarantees
    opening: list[StoreFinding]
    machine: list[StoreFinding]
    trials: list[StoreFinding]

    @property
    def findings(self) -> list[StoreFinding]:
        return [*self.opening, *self.machine, *self.trials]

    @property
    def verdict(self) -> StoreVerdict:
        return worst_verdict(self.findings)

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


@click.command(cls=StoreCommand, epilog=EXAMPLES)
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
    with muted_event("downgrade"):  # Logged at every opening; the report has it already.
        report = examine_store(url or DEFAULT_STORE, appends)
    if as_json:
        echo_json(report.as_data())
    else:
        print_report(report)
    raise SystemExit(EXIT_CODES[report.verdict])


def examine_store(address: str, appends: int) -> DoctorReport:
    """Open a store, inspect it and run the trials."""
    with ExitStack() as stack:
        clock = ClockCheck()
        try:
            backend, exists, reopen = stack.enter_context(_open_backend(address))
        except UsageError:
            raise
        except PerdureError as error:
            return _open_failed(address, error)
        opening = [*guarantee_findings(guarantees_of(backend))]
        trial_findings: list[StoreFinding] = []
        environment: list[StoreFinding] = []
        try:
            opening += _check_lists(backend)
            if not any(finding.name == "writing" for finding in opening):
                opening += _remove_leftovers(backend)
                with ScratchSession(backend, reopen) as scratch:
                    trial_findings += run_trials(scratch, appends)
            environment += clock.findings(backend)
        except PerdureError as error:  # The store became unavailable, or cannot remove streams.
            trial_findings.append(unusable_finding("completion", error, backend.name))
        environment += path_findings(path_of(address))
        name = backend.name if exists else printable_name(address)
        return DoctorReport(
            name, exists, guarantees_of(backend), opening, environment, trial_findings
        )


def _check_lists(backend: Backend) -> Iterator[StoreFinding]:
    """Compare the store with its lists of sessions, as far as that is quick."""
    problems = find_problems(backend, deep=False)
    if problems:
        own = backend.name
        reasons = [f"{one.stream!r}: " * (one.stream != own) + one.reason for one in problems]
        more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        advice = "keep a copy of the store, then run `perdure verify`"
        yield StoreFinding("lists", "unusable", f"damaged: {reasons[0]}{more}", advice)
    elif problems is not None:
        yield StoreFinding("lists", "sound", "every session is in every list that it belongs to")


def _open_failed(address: str, error: PerdureError) -> DoctorReport:
    name, path = printable_name(address), path_of(address)
    finding = unusable_finding("opening", error, name)
    exists = path is None or os.path.lexists(path)
    return DoctorReport(name, exists, NOTHING_DECLARED, [finding], [], [])


def _remove_leftovers(backend: Backend) -> Iterator[StoreFinding]:
    """Remove the sessions that killed doctor runs left behind."""
    names = find_leftovers(backend)
    for name in names:
        remove_stream(backend, name)
    if names:
        yield StoreFinding(
            "left behind", "note", f"removed {len(names)} sessions of an earlier doctor run"
        )


@contextmanager
def _open_backend(address: str) -> Iterator[tuple[Backend, bool, Callable[[], Backend]]]:
    """Open a store; in place of a missing one, open a temporary store in its directory."""
    path = path_of(address)
    scheme = scheme_of(address)[0]
    if scheme == "memory":
        backend = open_backend(address)
        yield backend, True, lambda: backend
        return
    if path is None or os.path.lexists(path):
        with closing(open_backend(address)) as backend:
            yield backend, True, lambda: open_backend(address)
        return
    if not path.parent.is_dir():
        with closing(
            open_backend(address)
        ) as backend:  # Raises an error that says what is missing.
            yield backend, True, lambda: open_backend(address)
        return
    with tempfile.TemporaryDirectory(prefix=".perdure-doctor-", dir=path.parent) as folder:
        temporary = f"{scheme}:{Path(folder, 'store')}"
        accepted = split_accept(address)[1]
        temporary += f"?accept={','.join(sorted(accepted))}" if accepted else ""
        with closing(open_backend(temporary)) as backend:
            yield backend, False, lambda: open_backend(temporary)
