"""`perdure demo`: kill an assistant mid-turn and show that it resumes."""

import secrets
import time
from pathlib import Path

import click

import perdure
from perdure.backends.addresses import scheme_of
from perdure.cli.demo.check import DemoVerdict, check_store, compare_records
from perdure.cli.demo.run import ProcessRun, RecoveredState, choose_kill_points, run_assistant
from perdure.cli.demo.view import DemoView
from perdure.cli.stores import BAD_NEWS, INTERRUPTED

KILLS_MAX = 20  # Each starts a new Python process; more would show nothing new.


class KillCount(click.IntRange):
    """An integer range whose error for a non-number says "integer", without the range."""

    name = "integer"


EXAMPLES = """\b
Examples:
  perdure demo
  perdure demo --kills 5 --seed 42 --store tried.db
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--kills",
    type=KillCount(0, KILLS_MAX),
    default=3,
    show_default=True,
    help="Number of kills.",
)
@click.option(
    "--seed",
    type=int,
    help="Random seed for the kill times. Pass the printed value to repeat a run.",
)
@click.option(
    "--store",
    default="perdure-demo.db",
    show_default=True,
    metavar="PATH",
    help="SQLite file to keep; an existing one gets a new session.",
)
def demo(kills: int, seed: int | None, store: str) -> None:
    """Kill an assistant mid-turn and watch it resume.

    A small assistant (a scripted model: no LLM, no key, no network) runs in its own process and
    stores its state with perdure. It is killed with SIGKILL at random times and started again. The
    records acknowledged before each kill are compared with the records that the next process
    recovers.

    Exits with 0 only if every acknowledged record was recovered, none was duplicated and the chain
    verifies; otherwise with 1, and prints what is missing; with 130 after Ctrl-C.
    """
    path = _require_path(store)
    is_new = not Path(path).exists()
    session = _new_session_id(path)
    view = DemoView(path, session, secrets.randbelow(100_000) if seed is None else seed)
    try:
        view.opening(kills, is_new=is_new)
        start = time.perf_counter()
        runs, verdict = _run_demo(view, path, kills)
        view.closing(runs, verdict, time.perf_counter() - start)
        view.look()
    except KeyboardInterrupt:
        view.interrupted(is_there=_session_exists(path, session))
        raise SystemExit(INTERRUPTED) from None
    if verdict.problems:
        raise SystemExit(BAD_NEWS)


def _require_path(store: str) -> str:
    scheme, path = scheme_of(store)
    if scheme != "sqlite" or not path:
        reason = "not the path of a file: the state must survive the killed process"
        raise click.BadParameter(reason, param_hint="'--store'")
    return path


def _new_session_id(path: str) -> str:
    """Return a session id that the store does not have. Creates the store if it is missing."""
    with perdure.open(Path(path)) as store:
        while True:
            session = f"claims-{secrets.token_hex(2)}"
            if not _has_session(store, session):
                return session


def _session_exists(path: str, session: str) -> bool:
    with perdure.open(Path(path)) as store:
        return _has_session(store, session)


def _has_session(store: perdure.Store, session: str) -> bool:
    return any(head.id == session for head in store.sessions(prefix=session))


def _run_demo(view: DemoView, path: str, kills: int) -> tuple[list[ProcessRun], DemoVerdict]:
    """Run and kill the assistant `kills` times, then run it to the end of the script."""
    runs: list[ProcessRun] = []

    def show(pid: int, recovered: RecoveredState) -> None:
        if not runs:
            view.began(pid)
            return
        acknowledged = [fact for run in runs for fact in run.acknowledged]
        view.resumed(
            len(runs) + 1, pid, runs[-1], recovered, compare_records(acknowledged, recovered.facts)
        )

    for kill_point in choose_kill_points(kills, view.seed):
        runs.append(run_assistant(path, view.session, kill_point, show))
        view.killed(runs[-1])
    runs.append(run_assistant(path, view.session, None, show))
    return runs, check_store(path, view.session, runs)
