"""`perdure approvals`, `approve` and `deny`: list pending calls, and decide one at a terminal.

The call that is shown is the call that will run.
"""

import json
from typing import Any, Literal, NamedTuple

import click
from rich.text import Text

from perdure.cli.registry import COMMANDS
from perdure.cli.release import current_operator
from perdure.cli.stores import (
    BAD_NEWS,
    InvalidCallError,
    NoMatchError,
    StoreCommand,
    open_store,
    print_damage,
    read_sessions,
    require_head,
    store_option,
)
from perdure.cli.terminal import (
    echo,
    echo_json,
    echo_table,
    grid,
    relative_time,
    safe_lines,
    timestamp,
    timestamp_seconds,
)
from perdure.core.effects.listing import Approval
from perdure.core.state.session_state import APPROVAL_WAITING
from perdure.errors import ApprovalError, DamagedError
from perdure.safe_text import safe
from perdure.sync.session import Session

LABEL_WIDTH = 12  # Columns.


def approval_json(approval: Approval) -> dict[str, Any]:
    """Return the JSON object of an approval."""
    return {
        **approval._asdict(),
        "time": timestamp(approval.time),
        "expires": timestamp(approval.expires) if approval.expires else None,
        "decided": timestamp(approval.decided) if approval.decided else None,
    }


def print_approval(approval: Approval) -> None:
    """Print an approval in full: the tool, its version, the arguments, and their digest."""
    style = {"waiting": "bold yellow", "denied": "red", "used": "green"}.get(approval.state, "")
    until = f", until {timestamp_seconds(approval.expires)} UTC" if approval.expires else ""
    asked = f", requested {relative_time(approval.time)}{until}"
    echo(Text.assemble((safe(approval.id), "bold"), "  ", (approval.state, style), asked))
    decided = f"by {approval.by}" if approval.by else "automatically" if approval.decided else ""
    decided += f" at {timestamp_seconds(approval.decided)}" if approval.decided else ""
    table = grid(LABEL_WIDTH, None)
    for name, text in (
        ("session", approval.session),
        ("tool", approval.tool),
        ("version", approval.version or "-"),
        ("actor", approval.actor),
        *_argument_lines(approval.arguments),
        ("digest", approval.digest),
        ("decided", decided),
        ("reason", approval.reason),
    ):
        if text:  # Only a reason has lines of its own: one in a name could pose as an argument.
            table.add_row(f"  {name}", safe_lines(text) if name == "reason" else safe(text))
    echo_table(table)


def _argument_lines(arguments: Any) -> list[tuple[str, str]]:
    """Return the arguments line by line; none is omitted, however long."""
    if not isinstance(arguments, dict) or not arguments:
        return [("arguments", json.dumps(arguments, ensure_ascii=False))]
    return [
        ("arguments" if not number else "", f"{key} = {json.dumps(value, ensure_ascii=False)}")
        for number, (key, value) in enumerate(arguments.items())
    ]


class ApprovalDecision(NamedTuple):
    """A decision to record, and how to report it."""

    what: Literal["approve", "deny"]
    by: str
    reason: str
    yes: bool
    as_json: bool


def decide_approval(
    address: str | None, session_id: str, approval_id: str | None, decision: ApprovalDecision
) -> None:
    """Show the call, ask for confirmation, and record the decision about exactly that call.

    The digest of the call that was shown is sent with the decision, so that the decision cannot
    apply to any other call.
    """
    with open_store(address) as source:
        head = require_head(source, session_id)
        with source.store.resume(head.stream) as session:
            pending = _select_pending(session, approval_id, yes=decision.yes)
            if not decision.as_json:
                print_approval(pending)
            if not decision.yes:
                _confirm(decision.what)
            approvals = session.approvals
            record_decision = approvals.approve if decision.what == "approve" else approvals.deny
            try:
                record_decision(
                    pending.id,
                    by=decision.by or current_operator(),
                    reason=decision.reason,
                    digest=pending.digest,
                )
            except ApprovalError as error:
                raise NoMatchError(str(error)) from error
            (decided,) = [item for item in session.approvals.list() if item.id == pending.id]
            if decision.as_json:
                echo_json(approval_json(decided))
            else:
                echo(f"{safe(decided.state).capitalize()}, by {safe(decided.by)}.")


def _select_pending(session: Session, approval_id: str | None, *, yes: bool) -> Approval:
    """Return the named approval, or the only pending one. Raise if it is not pending."""
    if approval_id is not None:
        approval = next((item for item in session.approvals.list() if item.id == approval_id), None)
        if approval is None:
            raise NoMatchError(f"There is no approval {approval_id!r} in {session.id!r}.")
        if approval.state != "waiting":
            by = f" by {approval.by}" if approval.by else ""
            raise NoMatchError(
                f"Approval {approval_id} is {approval.state}{by}: nothing was changed."
            )
        return approval
    pending = session.approvals.pending()
    if not pending:
        raise NoMatchError(f"No call is pending approval in {session.id!r}.")
    if len(pending) > 1:
        ids = ", ".join(item.id for item in pending)
        raise InvalidCallError(f"Several calls are pending in {session.id!r}: give one of {ids}.")
    if yes:
        raise InvalidCallError(f"--yes needs the id of the approval: {pending[0].id}.")
    return pending[0]


def _confirm(choice: str) -> None:
    question = "Approve this call?" if choice == "approve" else "Deny this call?"
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort:
        echo(err=True)
    raise NoMatchError("Nothing was decided. Without a terminal, give --yes.")


LIST_EXAMPLES = """\b
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


@click.command(cls=StoreCommand, epilog=LIST_EXAMPLES)
@click.argument("session", required=False)
@click.option("--all", "everything", is_flag=True, help="Include decided approvals.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@store_option
def approvals(address: str | None, session: str | None, *, everything: bool, as_json: bool) -> None:
    """List pending approvals, with the exact call that each would run.

    `perdure approve` and `perdure deny` decide them. With --all and no session, every session is
    read.
    """

    def read(opened: Session) -> list[Approval]:
        return opened.approvals.list() if everything else opened.approvals.pending()

    damaged = False
    with open_store(address) as source:
        count = 0
        labels = () if everything else (APPROVAL_WAITING,)
        for name, item in read_sessions(source, session, labels, read):
            if isinstance(item, DamagedError):
                print_damage(name, item)
                damaged = True
                continue
            if as_json:
                echo_json(approval_json(item))
            else:
                if count:
                    echo()
                print_approval(item)
            count += 1
        if not count and not as_json:
            echo("There are no pending approvals." if not everything else "There are no approvals.")
    if damaged:
        raise SystemExit(BAD_NEWS)


DECIDE_HELP = """{summary}

Shows the tool, its version, its arguments and their digest, and asks for confirmation. The decision
applies to exactly that call: a call that differs in anything {otherwise}.
"""


BY_HELP = "Name of the person who decides; recorded. [default: user and machine]"


DECIDE_EXAMPLES = """\b
Examples:
  perdure {command} claim-4711         the only pending call of the session
  perdure {command} claim-4711 .wJ8lVtS1k2mZq0Yx4hT --by ada
  perdure {command} claim-4711 .wJ8lVtS1k2mZq0Yx4hT --reason "{example}"

\b
With --json, the output is the approval as `perdure approvals --json` prints
it. Exits with 1 if the call is no longer pending: the first decision counts.
"""


def decision_command(
    choice: Literal["approve", "deny"], *, otherwise: str, why: str, example: str
) -> click.Command:
    """Return the command. `why` is the help of --reason, `example` a sample reason."""

    @click.command(
        choice,
        cls=StoreCommand,
        help=DECIDE_HELP.format(summary=COMMANDS[choice], otherwise=otherwise),
        epilog=DECIDE_EXAMPLES.format(command=choice, example=example),
    )
    @click.argument("session")
    @click.argument("approval", metavar="[ID]", required=False)
    @click.option("--by", default="", help=BY_HELP)
    @click.option("--reason", default="", help=why)
    @click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object; needs --yes.")
    @store_option
    def command(
        address: str | None,
        session: str,
        approval: str | None,
        by: str,
        reason: str,
        *,
        yes: bool,
        as_json: bool,
    ) -> None:
        if as_json and not yes:
            raise click.UsageError("--json cannot ask for confirmation: give --yes.")
        decide_approval(
            address, session, approval, ApprovalDecision(choice, by, reason, yes, as_json)
        )

    return command


approve = decision_command(
    "approve",
    otherwise="needs another approval",
    why="Reason for the decision; recorded.",
    example="invoice seen",
)


deny = decision_command(
    "deny",
    otherwise="needs another approval",
    why="Reason for the denial; the model receives it.",
    example="not this year",
)
