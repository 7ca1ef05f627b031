"""`perdure approvals`: list the calls that wait for approval."""

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
  perdure approvals                    pending approvals of all sessions
  perdure approvals claim-4711         pending approvals of one session
  perdure approvals claim-4711 --all   decided ones too

\b
With --json, each line is an object: session, id, tool, version, arguments,
digest (of tool, version and arguments), state (waiting, approved, denied,
expired, used, void), actor, turn, identity, position, time, expires, by,
reason, decided. Missing values are null.
"""


@click.command(cls=Reading, epilog=EXAMPLES)
@click.argument("session", required=False)
@click.option("--all", "everything", is_flag=True, help="Include decided approvals.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@store_option
def approvals(address: str | None, session: str | None, *, everything: bool, as_json: bool) -> None:
    """List pending approvals, with the exact call that each would run.

    `perdure approve` and `perdure deny` decide them. With --all and no session, every session is
    read.
    """
    damaged = False
    with opened(address) as source:
        count = 0
        for item in _found(source, session, everything=everything):
            if isinstance(item, DamagedError):
                say(f"{safe(item.stream)}: DAMAGED: {safe(item.reason)}", err=True, fg="red")
                damaged = True
                continue
            if as_json:
                say_json(approval_json(item))
            else:
                if count:
                    say()
                show(item)
            count += 1
        if not count and not as_json:
            say("There are no pending approvals." if not everything else "There are no approvals.")
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
                continue  # Deleted since it was listed.
            except DamagedError as error:
                yield error


def _of(source: Opened, name: str, *, everything: bool) -> list[Approval]:
    with source.store.resume(name) as session:
        return session.approvals.list() if everything else session.approvals.pending()
