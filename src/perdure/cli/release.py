"""`perdure release`: end the lease of a worker that is gone, or that must go."""

import getpass

import click

from perdure.cli.stores import BAD_NEWS, Reading, opened, require_head, store_option
from perdure.cli.text import safe, say
from perdure.leases.lease import this_process

EXAMPLES = """\b
Examples:
  perdure release claim-4711                     who holds it?
  perdure release claim-4711 --force             take it from them
  perdure release claim-4711 --force --who ops   and say who did

\b
A worker whose lease is taken is fenced: what it writes from then on is
refused. Where it may still be at work outside, stop it first. A lease of a
dead worker runs out by itself, too: session.lease(wait=True) takes it over.
"""


@click.command(cls=Reading, epilog=EXAMPLES)
@click.argument("session")
@click.option("--force", is_flag=True, help="Take the session from whoever holds it.")
@click.option("--who", default="", help="Who does it, for the record. [default: user and machine]")
@store_option
def release(address: str | None, session: str, who: str, *, force: bool) -> None:
    """Take a session from the worker that holds its lease, so that anybody may take it.

    Without --force it only says who that is, and exits with 1. Who took it is recorded.
    """
    with opened(address) as source:
        head = require_head(source, session)
        with source.store.resume(head.stream) as held:
            holder = held.holder
            if holder is None:
                say(f"Nobody holds {safe(session)}.")
                return
            name = f"{safe(holder.who)} (epoch {holder.epoch}, {holder.ttl:g} s)"
            if not force:
                say(f"{safe(session)} is held by {name}: --force takes it from them.", err=True)
                raise SystemExit(BAD_NEWS)
            with held.lease(force=True, who=who or operator()) as lease:
                pass
            say(f"{safe(session)} was held by {name}; taken as epoch {lease.epoch}, and released.")


def operator() -> str:
    """Return who runs this command, for the record."""
    try:
        return f"{getpass.getuser()} at {this_process()}"
    except (ImportError, KeyError, OSError):  # A user without a name.
        return this_process()
