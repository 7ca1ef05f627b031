"""Print approvals, and decide one at a terminal. The call shown is the call that will run."""

import json
from typing import Any, Literal, NamedTuple

import click

from perdure.approvals.views import Approval
from perdure.cli.release import operator
from perdure.cli.stores import NotThereError, WrongCallError, opened, require_head
from perdure.cli.text import ago, exact, moment, safe, say, say_json, terminal_width, wrapped
from perdure.errors import ApprovalError
from perdure.session import Session

INDENT = "  "


def approval_json(approval: Approval) -> dict[str, Any]:
    """Return the JSON object of an approval."""
    return {
        **approval._asdict(),
        "time": exact(approval.time),
        "expires": exact(approval.expires) if approval.expires else None,
        "decided": exact(approval.decided) if approval.decided else None,
    }


def show(approval: Approval) -> None:
    """Print an approval in full: the tool, its version, the arguments, and their digest."""
    color = {"waiting": "yellow", "denied": "red", "used": "green"}.get(approval.state)
    state = click.style(approval.state, fg=color, bold=approval.state == "waiting")
    heading = click.style(safe(approval.id), bold=True)
    say(f"{heading}  {state}, requested {ago(approval.time)}{_until(approval)}")
    _line("session", safe(approval.session))
    _line("tool", safe(approval.tool))
    _line("version", safe(approval.version) or "-")
    if approval.actor:
        _line("actor", safe(approval.actor))
    for name, value in _arguments(approval.arguments):
        _line(name, value)
    _line("digest", approval.digest)
    if approval.by or approval.decided:
        when = f" at {moment(approval.decided)}" if approval.decided else ""
        _line("decided", f"{'by ' + safe(approval.by) if approval.by else 'automatically'}{when}")
    if approval.reason:
        _line("reason", approval.reason)


def _until(approval: Approval) -> str:
    return f", until {moment(approval.expires)} UTC" if approval.expires else ""


def _arguments(arguments: Any) -> list[tuple[str, str]]:
    """Return the arguments line by line; none is omitted, however long."""
    if not isinstance(arguments, dict) or not arguments:
        return [("arguments", json.dumps(arguments, ensure_ascii=False))]
    return [
        ("arguments" if not number else "", f"{key} = {json.dumps(value, ensure_ascii=False)}")
        for number, (key, value) in enumerate(arguments.items())
    ]


def _line(name: str, text: str) -> None:
    label = f"{INDENT}{name:<10}"
    for number, line in enumerate(wrapped(text, terminal_width() - 1 - len(label))):
        say(f"{label if not number else ' ' * len(label)}{line}")


class Decision(NamedTuple):
    """A decision to record, and how to report it."""

    what: Literal["approve", "deny"]
    by: str
    reason: str
    yes: bool
    as_json: bool


def decide(
    address: str | None, session_id: str, approval_id: str | None, decision: Decision
) -> None:
    """Show the call, ask for confirmation, and record the decision about exactly that call.

    The digest of the call that was shown is sent with the decision, so that the decision cannot
    apply to any other call.
    """
    with opened(address) as source:
        head = require_head(source, session_id)
        with source.store.resume(head.stream) as session:
            pending = _wanted(session, approval_id, yes=decision.yes)
            if not decision.as_json:
                show(pending)
            if not decision.yes:
                _ask(decision.what)
            approvals = session.approvals
            record_decision = approvals.approve if decision.what == "approve" else approvals.deny
            try:
                record_decision(
                    pending.id,
                    by=decision.by or operator(),
                    reason=decision.reason,
                    digest=pending.digest,
                )
            except ApprovalError as error:
                raise NotThereError(str(error)) from error
            (decided,) = [item for item in session.approvals.list() if item.id == pending.id]
            if decision.as_json:
                say_json(approval_json(decided))
            else:
                say(f"{safe(decided.state).capitalize()}, by {safe(decided.by)}.")


def _wanted(session: Session, approval_id: str | None, *, yes: bool) -> Approval:
    """Return the named approval, or the only pending one. Raise if it is not pending."""
    if approval_id is not None:
        approval = next((item for item in session.approvals.list() if item.id == approval_id), None)
        if approval is None:
            raise NotThereError(f"There is no approval {approval_id!r} in {session.id!r}.")
        if approval.state != "waiting":
            by = f" by {approval.by}" if approval.by else ""
            raise NotThereError(
                f"Approval {approval_id} is {approval.state}{by}: nothing was changed."
            )
        return approval
    pending = session.approvals.pending()
    if not pending:
        raise NotThereError(f"No call is pending approval in {session.id!r}.")
    if len(pending) > 1:
        ids = ", ".join(item.id for item in pending)
        raise WrongCallError(f"Several calls are pending in {session.id!r}: give one of {ids}.")
    if yes:
        raise WrongCallError(f"--yes needs the id of the approval: {pending[0].id}.")
    return pending[0]


def _ask(choice: str) -> None:
    question = "Approve this call?" if choice == "approve" else "Deny this call?"
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort:
        say(err=True)
    raise NotThereError("Nothing was decided. Without a terminal, give --yes.")
