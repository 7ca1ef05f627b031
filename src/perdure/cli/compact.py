"""`perdure compact`: drop the older part of a session and free its space."""

import click

from perdure.cli.stores import StoreCommand, open_store, require_head, store_option
from perdure.cli.terminal import ProgressBar, echo, echo_json, plural
from perdure.core.compaction import CompactResult
from perdure.safe_text import safe

EXAMPLES = """\b
Examples:
  perdure compact claim-4711 --keep 1000 --dry-run   show what would happen
  perdure compact claim-4711 --keep 1000             keep 1000 messages
  perdure compact claim-4711 --before 52000          drop what is before it

\b
Dropped records are gone for good: copy the session first if they may be
needed. The cut is at a safe place, so a little more may be kept. Branches and
holds of the session prevent it. After an interruption, run it again.
With --json, the output is one object: session, complete_from, records,
messages, carried, limited_by.
"""


@click.command(cls=StoreCommand, epilog=EXAMPLES)
@click.argument("session")
@click.option("--keep", type=click.IntRange(min=0), help="Keep this many messages.")
@click.option("--before", type=click.IntRange(min=1), help="Drop what is before a position.")
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would be dropped.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@store_option
def compact(
    address: str | None,
    session: str,
    keep: int | None,
    before: int | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Drop the older records of a session, and free their space.

    Values, pins, labels, instructions, summaries and callers' ids stay. Pass --keep or --before.
    """
    if (keep is None) == (before is None):
        raise click.UsageError("Pass --keep MESSAGES or --before POSITION.")
    with open_store(address) as source:
        head = require_head(source, session)
        bar = ProgressBar("reading", "record", lambda: head.position)

        def show(position: int, _last: int) -> None:
            bar.done = position

        with source.store.resume(head.stream) as opened, bar:
            result = opened.compact(keep=keep, before=before, dry_run=dry_run, progress=show)
    if as_json:
        echo_json(result._asdict())
    else:
        _report(result, dry_run=dry_run)


def _report(result: CompactResult, *, dry_run: bool) -> None:
    name = safe(result.session)
    if not result.records:
        echo(f"{name}: nothing to drop. It is complete from {result.complete_from}.")
    else:
        what = f"{plural(result.records, 'record')} with {plural(result.messages, 'message')}"
        verb = "would be dropped" if dry_run else "dropped"
        kept = f"complete from {result.complete_from}, {plural(result.carried, 'record')} carried"
        echo(f"{name}: {what} {verb}; {kept}.")
    if result.limited_by:
        echo(f"More is kept than asked for, because of {result.limited_by}.")
