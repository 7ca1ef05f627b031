"""What `perdure import` prints: where the messages went, and every repair."""

import shlex
from typing import Any, NamedTuple

import click

from perdure.cli.import_plan import Plan
from perdure.cli.stores import DEFAULT, without_password
from perdure.cli.text import counted, safe, say
from perdure.importing.messages import IN_NOTE, Repair

TOLD = 20  # Repairs that are told one by one; more of them are told by --json.


class Outcome(NamedTuple):
    """What became of one file. `state` is imported, already, planned or empty."""

    plan: Plan
    state: str
    added: int = 0
    position: int | None = None

    @property
    def bad_news(self) -> bool:
        """Whether there was nothing to import, or something that could not be a message."""
        has_leftovers = bool(self.plan.imported.leftovers)
        return self.state == "empty" or (has_leftovers and self.state != "already")


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    made = outcome.plan
    return {
        "file": made.file,
        "session": made.session,
        "state": outcome.state,
        "messages": len(made.imported.messages),
        "added": outcome.added,
        "position": outcome.position,
        "sha256": made.digest,
        "repairs": [repair.as_dict() for repair in _repairs(outcome)],
        "leftovers": [
            {"element": left.element, "byte": left.byte, "reason": left.reason}
            for left in made.imported.leftovers
        ],
    }


def print_outcome(outcome: Outcome, address: str) -> None:
    made = outcome.plan
    imported = made.imported
    name, session = safe(made.file), safe(made.session)
    messages = counted(len(imported.messages), "message")
    if outcome.state == "empty":
        say(f"{click.style('EMPTY', fg='red', bold=True)}  {name}: no message was found in it")
    elif outcome.state == "already":
        say(f"{name}: its {messages} are in session {session} already: nothing was added")
        return
    elif outcome.state == "planned":
        say(f"{name}: {messages} would go into session {session}; nothing was written")
    else:
        rest = f", of which {outcome.added:,} now" if outcome.added < len(imported.messages) else ""
        say(f"{name}: {messages} in session {session}{rest}, up to position {outcome.position}")
    repairs = _repairs(outcome)
    for repair in repairs[:TOLD]:
        say(f"  {_where(repair):<12} {safe(repair.found)}: {safe(repair.done)}")
    if len(repairs) > TOLD:
        more = len(repairs) - TOLD
        say(f"  and {counted(more, 'more repair')} like these: --json lists all of them")
    if outcome.state == "empty":
        say("  Nothing was written; keep the file.")
    elif imported.leftovers:
        noted = "is kept in a note" if outcome.state == "imported" else "would be kept in a note"
        say(f"  What can not be a message, {len(imported.leftovers):,} in all, {noted}.")
    if outcome.state == "imported":
        say(safe(f"  Look: perdure show {_words(made.session, address)}"))


def _words(session: str, address: str) -> str:
    words = [] if address == DEFAULT else ["--store", without_password(address)]
    dashed = session.startswith("-")  # Else it would be read as an option.
    return shlex.join([*words, "--", session] if dashed else [session, *words])


def _repairs(outcome: Outcome) -> list[Repair]:
    """Return the repairs, none of which says that something is kept if nothing was written."""
    repairs = outcome.plan.imported.repairs
    if outcome.state == "planned":
        return [
            _instead(repair, repair.done.replace(IN_NOTE, "would be kept in a note"))
            for repair in repairs
        ]
    if outcome.state == "empty":
        return [_instead(repair, "it stays in the file") for repair in repairs]
    return repairs


def _instead(repair: Repair, done: str) -> Repair:
    keeps = repair.done.endswith(IN_NOTE) or repair.done.startswith("kept")
    return repair._replace(done=done) if keeps else repair


def _where(repair: Repair) -> str:
    if repair.element is not None:
        return f"element {repair.element:,}"
    return "" if repair.byte is None else f"byte {repair.byte:,}"
