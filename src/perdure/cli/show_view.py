"""The output of `perdure show`: title, records in order, open turns, values."""

from collections.abc import Iterable, Mapping

import click

from perdure.backend import Head
from perdure.cli.rendering import Said, labels_text, raw, said, turn_name
from perdure.cli.text import (
    columns,
    compact,
    counted,
    exact,
    moment,
    safe,
    say,
    terminal_width,
    wrapped,
)
from perdure.errors import DamagedError
from perdure.fold import DELETED
from perdure.leases.records import LeaseRenewed
from perdure.records import Kept, Message, Piece, Record, Snapshot, TurnBegun
from perdure.session import Session

CUT = 2000  # Characters; a longer text fills more than a screen, and is cut without --full.
COLOURS = {"user": "cyan", "assistant": "green", "tool": "magenta", "system": "yellow"}


class View:
    """Prints a session from its title to its end, and tracks which turns are open."""

    def __init__(self, *, full: bool, raw: bool) -> None:
        self._full = full
        self._raw = raw
        self._width = terminal_width() - 1
        self._indent = 6
        self._turns: dict[str, tuple[int, str]] = {}
        self._needs_gap = False  # Whether to print a blank line before the next record.
        self._hidden = 0
        self._cut = 0

    def title(
        self, store: str, head: Head, state: Session | DamagedError | None, *, at: int | None
    ) -> None:
        self._indent = max(len(str(head.position)) + 2, 6)
        say(click.style(safe(head.stream), bold=True) + f"  in {store}")
        if DELETED in head.labels:
            facts = [f"deleted at position {head.position}"]
        elif isinstance(state, Session):
            facts = [counted(len(state), "message"), f"position {head.position}"]
            if state.interrupted:
                facts.append(click.style(counted(len(state.interrupted), "open turn"), fg="red"))
            if state.holder:
                holder = f"held by {safe(state.holder.who)} (epoch {state.holder.epoch})"
                facts.append(click.style(holder, fg="yellow"))
        else:
            facts = [f"position {head.position}", click.style("DAMAGED", fg="red", bold=True)]
        if head.labels:
            facts.append(f"labels {labels_text(head.labels)}")
        say(", ".join(facts))
        if at is not None and at < head.position:
            say(f"State at position {at}; the counts above are current.", bold=True)

    def earlier(self, upto: int, state: Session | DamagedError | None) -> None:
        """Report the records before the first one shown."""
        for turn in state.interrupted if isinstance(state, Session) else ():
            if turn.start < upto:
                self._turns[turn.id] = (turn.start + 1, turn.correlation_id)
        say()
        what, them = ("Record 1 is", "it") if upto == 1 else (f"Records 1 to {upto} are", "them")
        say(f"{what} not shown: omit --last to see {them}.", dim=True)

    def record(self, record: Record) -> None:
        """Print one record."""
        if self._raw:
            self._print_raw(record)
        elif isinstance(record.content, Snapshot | Piece | LeaseRenewed) or _is_echo(record):
            self._hidden += 1
        elif record.kind.startswith("turn.") or record.kind in {"branched", "deleted"}:
            self._rule(record)
        else:
            self._print(record)
        self._follow(record)

    def _follow(self, record: Record) -> None:
        if isinstance(record.content, TurnBegun):
            self._turns[record.id] = (record.position, record.content.correlation_id)
        elif record.kind in {"turn.completed", "turn.failed", "turn.abandoned"}:
            self._turns.pop(record.content.subject, None)
        elif record.kind == "deleted":
            self._turns.clear()

    def _print_raw(self, record: Record) -> None:
        say()
        kind = click.style(safe(record.kind), bold=True)
        say(f"{self._place(record)}{kind}  {exact(record.time)}")
        pad = " " * self._indent
        say(f"{pad}id {safe(record.id)}", dim=True)
        say(f"{pad}digest {record.digest}", dim=True)
        self._text(raw(record))

    def _rule(self, record: Record) -> None:
        """Print the beginning or end of a turn as a horizontal rule."""
        heading, text = self._named(record)
        colors = {"turn.failed": "red", "turn.abandoned": "yellow", "deleted": "red"}
        line = f"── {heading} ── {moment(record.time)} "
        line += "─" * max(self._width - self._indent - columns(line), 0)
        say()
        bold = record.kind != "turn.completed"
        say(self._place(record) + click.style(line, fg=colors.get(record.kind), bold=bold))
        if text:
            self._text(text)
        self._needs_gap = True

    def _named(self, record: Record) -> Said:
        """Render a record; a turn's heading gets the correlation id that the turn began with."""
        heading, text = said(record.content, record.id)
        _, correlation_id = self._turns.get(record.content.subject, (0, ""))
        if correlation_id and record.kind.startswith("turn."):
            plain = turn_name(record.content.subject)
            heading = turn_name(record.content.subject, correlation_id) + heading[len(plain) :]
        return Said(heading, text)

    def _print(self, record: Record) -> None:
        heading, text = said(record.content, record.id)
        color = None
        if self._needs_gap or isinstance(record.content, Message):
            say()
        self._needs_gap = False
        if isinstance(record.content, Message):
            color = COLOURS.get(str(record.content.message.get("role")))
            heading += self._within(record.content.turn)
        say(self._place(record) + click.style(heading, fg=color, bold=color is not None))
        if text:
            self._text(text)

    def _within(self, turn: str) -> str:
        """Name a message's turn if it is not the only open one."""
        if turn in self._turns and len(self._turns) == 1:
            return ""
        _, correlation_id = self._turns.get(turn, (0, ""))
        name = turn_name(turn, correlation_id) if turn else "turn"
        return "" if name == "turn" else f", in {name}"

    def _place(self, record: Record) -> str:
        return click.style(f"{record.position:>{self._indent - 2}}  ", dim=True)

    def _text(self, text: str) -> None:
        shown = text if self._full else text[:CUT]
        pad = " " * self._indent
        for line in wrapped(shown, self._width - self._indent):
            say(f"{pad}{line}" if line else "")
        if len(shown) < len(text):
            missing = len(text) - len(shown)
            self._cut += missing
            say(f"{pad}… {counted(missing, 'character')} more: --full shows them", fg="yellow")

    def unreadable(self, error: DamagedError) -> None:
        """Print the error of an unreadable record in its place."""
        say()
        where = f"{error.position:>{self._indent - 2}}" if error.position else " " * 4
        say(f"{where}  UNREADABLE: {safe(error.reason)}", fg="red", bold=True)

    def open_turns(self, partial: Mapping[str, str], *, past: bool) -> None:
        """Print the open turns and their partial answers."""
        for turn, (position, correlation_id) in self._turns.items():
            name = turn_name(turn, correlation_id)
            say()
            if past:
                say(f"── {name}, begun at {position}, was open then", fg="yellow", bold=True)
                continue
            say(f"── {name}, begun at {position}: INTERRUPTED", fg="red", bold=True)
            self._text("It has no end: its process died, or is still running.")
            if turn in partial:
                self._text("Its partial answer:")
                self._text(partial[turn])

    def values(self, items: Iterable[tuple[str, int, object]]) -> None:
        """Print the final values."""
        for number, (key, version, value) in enumerate(items):
            if not number:
                say()
                say("Values", bold=True)
            if isinstance(value, DamagedError):
                say(f"  {safe(key)}: UNREADABLE: {safe(value.reason)}", fg="red")
                continue
            say(f"  {safe(key)} (version {version})", fg="blue", bold=True)
            self._text(compact(value))

    def end(self) -> None:
        """Report what was left out."""
        if self._hidden:
            say()
            hidden = counted(self._hidden, "record")
            say(f"{hidden} of bookkeeping not shown: --records shows every record.", dim=True)
        if self._cut:
            say(
                f"{counted(self._cut, 'character')} were cut: --full shows everything.", fg="yellow"
            )


def _is_echo(record: Record) -> bool:
    """Return whether a record only completes a branch whose beginning was shown before."""
    content = record.content
    return isinstance(content, Kept) and bool(content.branch) and content.complete
