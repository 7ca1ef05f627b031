"""Approvals in words, and how one is decided at a terminal: what is shown is what will be run."""

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


def approval_json(one: Approval) -> dict[str, Any]:
    """Return an approval for programs."""
    return {
        **one._asdict(),
        "time": exact(one.time),
        "expires": exact(one.expires) if one.expires else None,
        "decided": exact(one.decided) if one.decided else None,
    }


def show(one: Approval) -> None:
    """Print an approval, whole: the tool, its version, the arguments, and the digest of them."""
    colour = {"waiting": "yellow", "denied": "red", "used": "green"}.get(one.state)
    state = click.style(one.state, fg=colour, bold=one.state == "waiting")
    say(f"{click.style(safe(one.id), bold=True)}  {state}, asked {ago(one.time)}{_until(one)}")
    _line("session", safe(one.session))
    _line("tool", safe(one.tool))
    _line("version", safe(one.version) or "-")
    if one.actor:
        _line("actor", safe(one.actor))
    for name, value in _arguments(one.arguments):
        _line(name, value)
    _line("digest", one.digest)
    if one.by or one.decided:
        when = f" at {moment(one.decided)}" if one.decided else ""
        _line("decided", f"{'by ' + safe(one.by) if one.by else 'by nobody'}{when}")
    if one.reason:
        _line("reason", one.reason)


def _until(one: Approval) -> str:
    return f", until {moment(one.expires)} UTC" if one.expires else ""


def _arguments(arguments: Any) -> list[tuple[str, str]]:
    """Return the arguments line by line; none is left out, however long it is."""
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
    """What somebody wants to decide, and how."""

    what: Literal["approve", "deny"]
    by: str
    reason: str
    yes: bool
    as_json: bool


def decide(address: str | None, name: str, approval: str | None, wish: Decision) -> None:
    """Show what is to be run, ask, and decide about exactly that."""
    with opened(address) as source:
        head = require_head(source, name)
        with source.store.resume(head.stream) as session:
            one = _wanted(session, approval, yes=wish.yes)
            if not wish.as_json:
                show(one)
            if not wish.yes:
                _ask(wish.what)
            decider = session.approvals
            method = decider.approve if wish.what == "approve" else decider.deny
            try:
                method(one.id, by=wish.by or operator(), reason=wish.reason, digest=one.digest)
            except ApprovalError as error:
                raise NotThereError(str(error)) from error
            (now,) = [found for found in session.approvals.list() if found.id == one.id]
            if wish.as_json:
                say_json(approval_json(now))
            else:
                say(f"{safe(now.state).capitalize()}, by {safe(now.by)}.")


def _wanted(session: Session, approval: str | None, *, yes: bool) -> Approval:
    """Return the approval that is meant: the one that was named, or the only one that waits."""
    if approval is not None:
        found = [one for one in session.approvals.list() if one.id == approval]
        if not found:
            raise NotThereError(f"There is no approval {approval!r} in {session.id!r}.")
        if found[0].state != "waiting":
            by = f" by {found[0].by}" if found[0].by else ""
            raise NotThereError(
                f"Approval {approval} is {found[0].state}{by}: nothing was changed."
            )
        return found[0]
    waiting = session.approvals.pending()
    if not waiting:
        raise NotThereError(f"Nothing waits for an approval in {session.id!r}.")
    if len(waiting) > 1:
        ids = ", ".join(one.id for one in waiting)
        raise WrongCallError(f"Several calls wait in {session.id!r}: say which one of {ids}.")
    if yes:
        raise WrongCallError(f"With --yes, say which one is meant: {waiting[0].id}.")
    return waiting[0]


def _ask(decision: str) -> None:
    question = "Let this happen?" if decision == "approve" else "Have this not made?"
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort:
        say(err=True)
    raise NotThereError("Nothing was decided. Where nobody can be asked, give --yes.")
