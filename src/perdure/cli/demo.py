"""`perdure demo`: an assistant that is killed in mid-turn and goes on, before the user's eyes."""

import secrets
import time
from pathlib import Path

import click

import perdure
from perdure.cli.demo_check import Verdict, compare, judge
from perdure.cli.demo_run import Found, Life, live, moments
from perdure.cli.demo_view import View
from perdure.opening import scheme_of

KILLS_MAX = 20  # Each costs a new Python process; more show nothing that these do not.
INTERRUPTED = 128 + 2  # What a shell reports of a program that SIGINT ended.


class Count(click.IntRange):
    """How many; what is not a number at all is said not to be one, without a word of ranges."""

    name = "integer"


EXAMPLES = """\b
Examples:
  perdure demo
  perdure demo --kills 5 --seed 42 --store tried.db
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--kills",
    type=Count(0, KILLS_MAX),
    default=3,
    show_default=True,
    help="How many times the assistant is killed.",
)
@click.option(
    "--seed",
    type=int,
    help="It chooses when to kill, to some milliseconds; printed, so that you can give it.",
)
@click.option(
    "--store",
    default="perdure-demo.db",
    show_default=True,
    metavar="PATH",
    help="The SQLite file that is left behind; one that exists gets another session.",
)
def demo(kills: int, seed: int | None, store: str) -> None:
    """Kill an assistant in the middle of its turn, and see it go on.

    A small assistant (a scripted model: no LLM, no key, no network) works in a process of its own
    and keeps its state with perdure. It is killed with SIGKILL at random moments and started
    again; what it had been told is stored is compared with what the next process finds.

    Exits with 0 only if everything that was acknowledged was recovered, nothing was doubled and
    the chain verifies; otherwise with 1, and says what is missing; with 130 after Ctrl-C.
    """
    path = _path(store)
    is_new = not Path(path).exists()
    session = _fresh_session(path)
    view = View(path, session, secrets.randbelow(100_000) if seed is None else seed)
    try:
        view.opening(kills, is_new=is_new)
        start = time.perf_counter()
        lives, verdict = _perform(view, path, kills)
        view.closing(lives, verdict, time.perf_counter() - start)
        view.look()
    except KeyboardInterrupt:
        view.interrupted(is_there=_is_there(path, session))
        raise SystemExit(INTERRUPTED) from None
    if verdict.problems:
        raise SystemExit(1)


def _path(store: str) -> str:
    scheme, path = scheme_of(store)
    if scheme != "sqlite" or not path:
        reason = "that is not the path of a file: what is killed must leave something behind"
        raise click.BadParameter(reason, param_hint="'--store'")
    return path


def _fresh_session(path: str) -> str:
    """Return the id of a session that the store does not have. The store is made if need be."""
    with perdure.open(Path(path)) as store:
        while True:
            session = f"claims-{secrets.token_hex(2)}"
            if not _has(store, session):
                return session


def _is_there(path: str, session: str) -> bool:
    with perdure.open(Path(path)) as store:
        return _has(store, session)


def _has(store: perdure.Store, session: str) -> bool:
    return any(head.stream == session for head in store.sessions(prefix=session))


def _perform(view: View, path: str, kills: int) -> tuple[list[Life], Verdict]:
    """Let the assistant live and die as often as was asked for, and once more to the end."""
    lives: list[Life] = []

    def show(pid: int, found: Found) -> None:
        if not lives:
            view.began(pid)
            return
        told = [fact for life in lives for fact in life.acknowledged]
        view.resumed(len(lives) + 1, pid, lives[-1], found, compare(told, found.facts))

    for moment in moments(kills, view.seed):
        lives.append(live(path, view.session, moment, show))
        view.killed(lives[-1])
    lives.append(live(path, view.session, None, show))
    return lives, judge(path, view.session, lives)
