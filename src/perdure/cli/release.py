"""`perdure release`: end the lease of a worker that is dead or must stop."""

import getpass

import click

from perdure.cli.stores import BAD_NEWS, StoreCommand, open_store, require_head, store_option
from perdure.cli.terminal import echo
from perdure.safe_text import safe
from perdure.sync.lease import this_process

EXAMPLES = """\b
Examples:
  perdure release claim-4711                      show the lease holder
  perdure release claim-4711 --force              end the lease
  perdure release claim-4711 --force --owner ops  record who did it

\b
A worker whose lease was ended is fenced: its later writes are refused. Stop
it first if it may still act outside the store. The lease of a dead worker
also expires by itself: session.lease(timeout=True) takes it over.
"""


@click.command(cls=StoreCommand, epilog=EXAMPLES)
@click.argument("session")
@click.option("--force", is_flag=True, help="End the lease, whichever worker holds it.")
@click.option("--owner", default="", help="Name to record. [default: user and machine]")
@store_option
def release(address: str | None, session: str, owner: str, *, force: bool) -> None:
    """Release the lease on a session, so that any worker can take it.

    Without --force it only prints the lease holder and exits with 1. The name of the caller is
    recorded.
    """
    with open_store(address) as source:
        head = require_head(source, session)
        with source.store.resume(head.stream) as held:
            holder = held.lease_holder
            if holder is None:
                echo(f"No worker holds {safe(session)}.")
                return
            name = f"{safe(holder.name)} (epoch {holder.epoch}, {holder.ttl:g} s)"
            if not force:
                echo(f"{safe(session)} is held by {name}: --force ends the lease.", err=True)
                raise SystemExit(BAD_NEWS)
            with held.lease(force=True, owner=owner or current_operator()) as lease:
                pass
            echo(f"{safe(session)} was held by {name}; taken as epoch {lease.epoch}, and released.")


def current_operator() -> str:
    """Return the user and process that run this command, to be recorded."""
    try:
        return f"{getpass.getuser()} at {this_process()}"
    except (ImportError, KeyError, OSError):  # The user has no name.
        return this_process()
