"""The output of `perdure import`: the result for each file, and every repair."""

from typing import Any, NamedTuple

from rich.text import Text

from perdure.cli.import_.encodings import IN_NOTE, Repair
from perdure.cli.import_.plan import ImportPlan
from perdure.cli.stores import DEFAULT_STORE, without_password
from perdure.cli.terminal import echo, plural
from perdure.safe_text import safe, shell_command

REPAIRS_LISTED = 20  # Repairs listed one by one; --json lists all.


class ImportResult(NamedTuple):
    """The result for one file. `state` is imported, already, planned or empty."""

    plan: ImportPlan
    state: str
    added: int = 0
    position: int | None = None

    @property
    def bad_news(self) -> bool:
        """Whether the file has no messages, or content that is not a message."""
        has_leftovers = bool(self.plan.imported.leftovers)
        return self.state == "empty" or (has_leftovers and self.state != "already")


def outcome_json(outcome: ImportResult) -> dict[str, Any]:
    file_plan = outcome.plan
    return {
        "file": file_plan.file,
        "session": file_plan.session,
        "state": outcome.state,
        "messages": len(file_plan.imported.messages),
        "added": outcome.added,
        "position": outcome.position,
        "sha256": file_plan.digest,
        "repairs": [repair.as_dict() for repair in _repairs(outcome)],
        "leftovers": [
            {"element": leftover.element, "byte": leftover.byte, "reason": leftover.reason}
            for leftover in file_plan.imported.leftovers
        ],
    }


def print_outcome(outcome: ImportResult, address: str) -> None:
    file_plan = outcome.plan
    imported = file_plan.imported
    name, session = safe(file_plan.file), safe(file_plan.session)
    messages = plural(len(imported.messages), "message")
    if outcome.state == "empty":
        echo(Text.assemble(("EMPTY", "bold red"), f"  {name}: no messages found"))
    elif outcome.state == "already":
        echo(f"{name}: its {messages} are already in session {session}: nothing was added")
        return
    elif outcome.state == "planned":
        echo(f"{name}: {messages} would go into session {session}; nothing was written")
    else:
        rest = f", {outcome.added:,} of them now" if outcome.added < len(imported.messages) else ""
        echo(f"{name}: {messages} in session {session}{rest}, up to position {outcome.position}")
    repairs = _repairs(outcome)
    for repair in repairs[:REPAIRS_LISTED]:
        echo(f"  {_location(repair):<12} {safe(repair.found)}: {safe(repair.done)}")
    if len(repairs) > REPAIRS_LISTED:
        more = len(repairs) - REPAIRS_LISTED
        echo(f"  and {plural(more, 'more repair')} like these: --json lists all of them")
    if outcome.state == "empty":
        echo("  Nothing was written; keep the file.")
    elif imported.leftovers:
        noted = "is kept in a note" if outcome.state == "imported" else "would be kept in a note"
        echo(f"  Content that is not a message, {len(imported.leftovers):,} in all, {noted}.")
    if outcome.state == "imported":
        options = [] if address == DEFAULT_STORE else ["--store", without_password(address)]
        command = shell_command("perdure", "show", ids=[file_plan.session], options=options)
        echo(f"  Inspect it: {command}")


def _repairs(outcome: ImportResult) -> list[Repair]:
    """Return the repairs, reworded if nothing was written and so nothing was kept."""
    repairs = outcome.plan.imported.repairs
    if outcome.state == "planned":
        return [
            _reworded(repair, repair.done.replace(IN_NOTE, "would be kept in a note"))
            for repair in repairs
        ]
    if outcome.state == "empty":
        return [_reworded(repair, "it stays in the file") for repair in repairs]
    return repairs


def _reworded(repair: Repair, done: str) -> Repair:
    keeps = repair.done.endswith(IN_NOTE) or repair.done.startswith("kept")
    return repair._replace(done=done) if keeps else repair


def _location(repair: Repair) -> str:
    if repair.element is not None:
        return f"element {repair.element:,}"
    return "" if repair.byte is None else f"byte {repair.byte:,}"
