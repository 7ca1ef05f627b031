"""`perdure approvals`: the calls that wait for somebody's approval."""

from collections.abc import Iterator

import click

from perdure.approvals.views import Approval
from perdure.cli.approval_view import approval_json, show
from perdure.cli.stores import (
    BAD_NEWS,
    Opened,
    Reading,
    every_head,
    opened,
    require_head,
    store_option,
)
from perdure.cli.text import safe, say, say_json
from perdure.errors import DamagedError, NotFoundError
from perdure.fold import APPROVAL_WAITING, DELETED

EXAMPLES = """\b
Examples:
  perdure approvals                    all that wait, in all sessions
  perdure approvals claim-4711         those of a session
  perdure approvals claim-4711 --all   and what became of earlier ones

\b
With --json, each line is an object: session, id, tool, version, arguments,
digest (of tool, version and arguments), state (waiting, approved, denied,
expired, used, void), actor, turn, identity, position, time, expires, by,
reason, decided. What is not there is null.
"""


@click.command(cls=Reading, epilog=EXAMPLES)
@click.argument("session", required=False)
@click.option("--all", "everything", is_flag=True, help="Those that were decided, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@store_option
def approvals(address: str | None, session: str | None, *, everything: bool, as_json: bool) -> None:
    """List the calls that wait for somebody to approve them, with what exactly would be run.

    `perdure approve` and `perdure deny` decide. With --all and no session, every session is read.
    """
    damaged = False
    with opened(address) as source:
        count = 0
        for found in _found(source, session, everything=everything):
            if isinstance(found, DamagedError):
                say(f"{safe(found.stream)}: DAMAGED: {safe(found.reason)}", err=True, fg="red")
                damaged = True
                continue
            if as_json:
                say_json(approval_json(found))
            else:
                if count:
                    say()
                show(found)
            count += 1
        if not count and not as_json:
            say("Nothing waits for an approval." if not everything else "There are no approvals.")
    if damaged:
        raise SystemExit(BAD_NEWS)


def _found(
    source: Opened, session: str | None, *, everything: bool
) -> Iterator[Approval | DamagedError]:
    if session is not None:
        yield from _of(source, require_head(source, session).stream, everything=everything)
        return
    labels = () if everything else (APPROVAL_WAITING,)
    for head in every_head(source.backend, labels=labels, without=[DELETED]):
        if isinstance(head, DamagedError):
            yield head
        else:
            try:
                yield from _of(source, head.stream, everything=everything)
            except NotFoundError:
                continue  # It was deleted meanwhile.
            except DamagedError as error:
                yield error


def _of(source: Opened, name: str, *, everything: bool) -> list[Approval]:
    with source.store.resume(name) as session:
        return session.approvals.list() if everything else session.approvals.pending()
