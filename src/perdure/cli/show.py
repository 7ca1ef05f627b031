"""`perdure show`: print a session's title, its records in order, open turns and values."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import click
from rich.cells import cell_len
from rich.text import Text

from perdure.backends.protocol import DELETED, Head
from perdure.cli.rendering import (
    ADAPTER_KEYS,
    RenderedRecord,
    damage_json,
    data_summary,
    fields_text,
    labels_text,
    messages_text,
    raw_json,
    record_json,
    render_record,
    state_summary,
    turn_name,
    without_media,
)
from perdure.cli.stores import (
    BAD_NEWS,
    OpenStore,
    StoreCommand,
    open_store,
    require_head,
    store_option,
)
from perdure.cli.terminal import (
    compact_json,
    echo,
    echo_json,
    first_line,
    plural,
    terminal_width,
    timestamp,
    timestamp_seconds,
    wrap_lines,
)
from perdure.core.state.fields import split_labels
from perdure.errors import DamagedError, NotFoundError
from perdure.journal.records import (
    BranchKept,
    EffectIntent,
    EffectOutcome,
    IndexPage,
    LeaseRenewed,
    Message,
    MessageChunk,
    Record,
    Snapshot,
    TurnBegun,
    Value,
)
from perdure.safe_text import safe
from perdure.sync.session import Session
from perdure.sync.store import Store

TEXT_MAX = 2000  # Characters; a longer text fills more than a screen, and is cut without --full.

ANSWER_MAX = 400  # Characters; a longer answer of a model, stored as data, is one line.

ROLE_COLORS = {"user": "cyan", "assistant": "green", "tool": "magenta", "system": "yellow"}


class SessionView:
    """Prints a session from its title to its end, and tracks which turns are open."""

    def __init__(self, *, full: bool, raw: bool) -> None:
        self._full = full
        self._raw = raw
        self._width = terminal_width() - 1
        self._indent = 6
        self._turns: dict[str, tuple[int, str]] = {}
        self._needs_gap = False  # Whether to print a blank line before the next record.
        self._model_calls: set[str] = set()
        self._hidden = 0
        self._cut = 0

    def title(
        self, store: str, head: Head, state: Session | DamagedError | None, *, at: int | None
    ) -> None:
        self._indent = max(len(str(head.position)) + 2, 6)
        echo(Text.assemble((safe(head.stream), "bold"), f"  in {store}"))
        if DELETED in head.labels:
            facts = [Text(f"deleted at position {head.position}")]
        elif isinstance(state, Session):
            facts = [Text(plural(len(state), "message")), Text(f"position {head.position}")]
            if state.interrupted:
                facts.append(Text(plural(len(state.interrupted), "open turn"), "red"))
            if state.lease_holder:
                holder = (
                    f"held by {safe(state.lease_holder.name)} (epoch {state.lease_holder.epoch})"
                )
                facts.append(Text(holder, "yellow"))
        else:
            facts = [Text(f"position {head.position}"), Text("DAMAGED", "bold red")]
        labels, fields = split_labels(head.stream, head.labels)
        if labels:
            facts.append(Text(f"labels {labels_text(labels)}"))
        if fields:
            facts.append(Text(fields_text(fields)))
        echo(Text(", ").join(facts))
        if at is not None and at < head.position:
            echo(f"State at position {at}; the counts above are current.", style="bold")

    def earlier(self, upto: int, state: Session | DamagedError | None) -> None:
        """Report the records before the first one shown."""
        for turn in state.interrupted if isinstance(state, Session) else ():
            if turn.branch_point < upto:
                self._turns[turn.id] = (turn.branch_point + 1, turn.correlation_id)
        echo()
        what, them = ("Record 1 is", "it") if upto == 1 else (f"Records 1 to {upto} are", "them")
        echo(f"{what} not shown: omit --last to see {them}.", style="dim")

    def record(self, record: Record) -> None:
        """Print one record."""
        if self._raw:
            self._print_raw(record)
        elif isinstance(
            record.content, IndexPage | Snapshot | MessageChunk | LeaseRenewed
        ) or _is_branch_completion(record):
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
        echo()
        kind = safe(record.kind), "bold"
        echo(Text.assemble(self._place(record), kind, f"  {timestamp(record.time)}"))
        pad = " " * self._indent
        echo(f"{pad}id {safe(record.id)}", style="dim")
        echo(f"{pad}digest {record.digest}", style="dim")
        self._text(raw_json(record))

    def _rule(self, record: Record) -> None:
        """Print the beginning or end of a turn as a horizontal rule."""
        heading, text = self._named(record)
        colors = {"turn.failed": "red", "turn.abandoned": "yellow", "deleted": "red"}
        style = "" if record.kind == "turn.completed" else f"bold {colors.get(record.kind, '')}"
        line = f"── {heading} ── {timestamp_seconds(record.time)} "
        line += "─" * max(self._width - self._indent - cell_len(line), 0)
        echo()
        echo(Text.assemble(self._place(record), (line, style)))
        if text:
            self._text(text)
        self._needs_gap = True

    def _named(self, record: Record) -> RenderedRecord:
        """Render a record; a turn's heading gets the correlation id that the turn began with."""
        heading, text = render_record(record.content, record.id)
        _, correlation_id = self._turns.get(record.content.subject, (0, ""))
        if correlation_id and record.kind.startswith("turn."):
            plain = turn_name(record.content.subject)
            heading = turn_name(record.content.subject, correlation_id) + heading[len(plain) :]
        return RenderedRecord(heading, text)

    def _print(self, record: Record) -> None:
        heading, text = render_record(record.content, record.id)
        style = ""
        if self._needs_gap or isinstance(record.content, Message):
            echo()
        self._needs_gap = False
        if isinstance(record.content, Message):
            color = ROLE_COLORS.get(str(record.content.message.get("role")))
            style = f"bold {color}" if color else ""
            heading += self._within(record.content.turn)
        echo(Text.assemble(self._place(record), (heading, style)))
        summary = "" if self._full else self._summary(record, text)
        if summary:
            self._summarized(summary, len(text))
        elif text:
            self._text(text)

    def _summary(self, record: Record, text: str) -> str:
        """Return a line for data that a framework stores for itself, or "" for other records."""
        match record.content:
            case Value(key=key) as content if key in ADAPTER_KEYS and text:
                return state_summary(content)
            case EffectIntent(call_type="model"):
                self._model_calls.add(record.id)
            case EffectOutcome(effect=effect, result=result) if effect in self._model_calls:
                # The answer is in the messages. Adapters store the provider's whole reply.
                return data_summary(result) if len(text) > ANSWER_MAX else ""
        return ""

    def _summarized(self, summary: str, length: int) -> None:
        """Print one line in the place of a text, and count the text as cut."""
        self._cut += length
        echo(" " * self._indent + first_line(summary, self._width - self._indent), style="dim")

    def _within(self, turn: str) -> str:
        """Name a message's turn if it is not the only open one."""
        if turn in self._turns and len(self._turns) == 1:
            return ""
        _, correlation_id = self._turns.get(turn, (0, ""))
        name = turn_name(turn, correlation_id) if turn else "turn"
        return "" if name == "turn" else f", in {name}"

    def _place(self, record: Record) -> tuple[str, str]:
        return f"{record.position:>{self._indent - 2}}  ", "dim"

    def _text(self, text: str) -> None:
        shown = text if self._full else text[:TEXT_MAX]
        pad = " " * self._indent
        for line in wrap_lines(shown, self._width - self._indent):
            echo(f"{pad}{line}" if line else "")
        if len(shown) < len(text):
            missing = len(text) - len(shown)
            self._cut += missing
            echo(f"{pad}… {plural(missing, 'character')} more: --full shows them", style="yellow")

    def unreadable(self, error: DamagedError) -> None:
        """Print the error of an unreadable record in its place."""
        echo()
        where = f"{error.position:>{self._indent - 2}}" if error.position else " " * 4
        echo(f"{where}  UNREADABLE: {safe(error.reason)}", style="bold red")

    def open_turns(self, partial: Mapping[str, str], *, past: bool) -> None:
        """Print the open turns and their partial answers."""
        for turn, (position, correlation_id) in self._turns.items():
            name = turn_name(turn, correlation_id)
            echo()
            if past:
                echo(f"── {name}, begun at {position}, was open then", style="bold yellow")
                continue
            echo(f"── {name}, begun at {position}: INTERRUPTED", style="bold red")
            self._text("It has no end: its process died, or is still running.")
            if turn in partial:
                self._text("Its partial answer:")
                self._text(partial[turn])

    def values(self, items: Iterable[tuple[str, int, object]]) -> None:
        """Print the final values."""
        for number, (key, version, value) in enumerate(items):
            if not number:
                echo()
                echo("Values", style="bold")
            if isinstance(value, DamagedError):
                echo(f"  {safe(key)}: UNREADABLE: {safe(value.reason)}", style="red")
                continue
            echo(f"  {safe(key)} (version {version})", style="bold blue")
            shown = without_media(value)
            text = compact_json(shown)
            if key in ADAPTER_KEYS and not self._full:
                self._summarized(data_summary(shown), len(text))
            else:
                self._text(text)

    def end(self) -> None:
        """Report what was left out."""
        if self._hidden:
            echo()
            hidden = plural(self._hidden, "record")
            echo(f"{hidden} of bookkeeping not shown: --records shows every record.", style="dim")
        if self._cut:
            echo(
                f"{plural(self._cut, 'character')} were cut: --full shows everything.",
                style="yellow",
            )


def _is_branch_completion(record: Record) -> bool:
    """Return whether a record only completes a branch whose beginning was shown before."""
    content = record.content
    return isinstance(content, BranchKept) and bool(content.branch) and content.complete


LOOK_BACK = 64  # Records; the first step back, which grows until enough messages are found.


EXAMPLES = """\b
Examples:
  perdure show claim-4711             the whole conversation
  perdure show claim-4711 --last 4    its last four messages
  perdure show claim-4711 --at 12     its state when record 12 was the newest
  perdure show claim-4711 --records   every record with all its content
  perdure show claim-4711 --json      the same for a program
  perdure show claim-4711 --headers   the headers of its entries, as stored

\b
With --json, each line is an object: session, position, id, kind, time,
digest, content; or session, position, unreadable for a record that cannot
be read.
"""


@click.command(cls=StoreCommand, epilog=EXAMPLES)
@click.argument("session")
@click.option(
    "--at", type=click.IntRange(min=1), metavar="POSITION", help="Show the state at this position."
)
@click.option(
    "--last",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the last N messages, and the records between them.",
)
@click.option("--records", is_flag=True, help="Show every record with id, digest and content.")
@click.option("--headers", is_flag=True, help="Print the stored headers, one on each line.")
@click.option("--full", is_flag=True, help="Show long texts and adapters' state whole.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per record.")
@store_option
def show(  # noqa: PLR0913 - one for each option
    address: str | None,
    session: str,
    at: int | None,
    last: int | None,
    *,
    records: bool,
    headers: bool,
    full: bool,
    as_json: bool,
) -> None:
    """Show a conversation: its messages, how turns ended, and which values changed.

    The state that an adapter of a framework stores is shown in one line; --full shows it whole.

    The readable part of a damaged session is shown, with a line for each unreadable record. Exits
    with 1 then, and if there is no such session.
    """
    with open_store(address) as source:
        head = require_head(source, session)
        if at is not None and at > head.position:
            reason = f"{session!r} has positions up to {head.position}, not {at}."
            raise click.BadParameter(reason, param_hint="'--at'")
        if headers:
            _print_headers(source, head, at)
            return
        span = _select_span(source.store, head, at, last)
        if as_json:
            damaged = _print_json(source.store, head, span)
        else:
            view = SessionView(full=full, raw=records)
            damaged = _print_session(source, head, span, view, at=at)
    if damaged:
        raise SystemExit(BAD_NEWS)


def _print_headers(source: OpenStore, head: Head, at: int | None) -> None:
    """Print the headers of a session's own entries: the exact bytes, except on a terminal."""
    is_terminal = sys.stdout.isatty()
    for entry in source.backend.read(head.stream, max_body=0):
        if at is not None and entry.position > at:
            break
        click.echo(safe(entry.header.decode("utf-8", "replace")) if is_terminal else entry.header)


class PositionSpan(NamedTuple):
    """The positions to show: after `after`, up to `upto`. `hidden` if earlier ones are left out."""

    after: int
    upto: int
    hidden: bool


def _select_span(store: Store, head: Head, at: int | None, last: int | None) -> PositionSpan:
    upto = head.position if at is None else at
    if last is None:
        return PositionSpan(0, upto, hidden=False)
    step = LOOK_BACK
    while True:
        after = max(upto - step, 0)
        messages = [
            item.position
            for item in read_span(store, head.stream, PositionSpan(after, upto, hidden=False))
            if isinstance(item, Record) and isinstance(item.content, Message)
        ]
        if len(messages) >= last or after == 0:
            start = messages[-last] if len(messages) >= last else 1
            return PositionSpan(start - 1, upto, hidden=start > 1)
        step *= 4


def read_span(store: Store, session: str, span: PositionSpan) -> Iterator[Record | DamagedError]:
    """Yield the records of a span; an unreadable record yields its error in its place."""
    damage: list[DamagedError] = []

    def due(before: int | None) -> Iterator[DamagedError]:
        damage.sort(key=lambda error: error.position)
        while damage and (before is None or damage[0].position < before):
            yield damage.pop(0)

    try:
        for record in store.records(session, after=span.after, on_damage=damage.append):
            if record.position > span.upto:
                break
            yield from due(record.position)
            yield record
    except DamagedError as error:
        damage.append(error)
    yield from due(span.upto + 1)


def _print_json(store: Store, head: Head, span: PositionSpan) -> bool:
    damaged = False
    for item in read_span(store, head.stream, span):
        if isinstance(item, Record):
            echo_json(record_json(head.stream, item))
        else:
            damaged = True
            echo_json(damage_json(head.stream, item))
    return damaged


def _print_session(
    source: OpenStore, head: Head, span: PositionSpan, view: SessionView, *, at: int | None
) -> bool:
    state = _open_session(source.store, head.stream)
    view.title(source.name, head, state, at=at)
    if span.hidden:
        view.earlier(span.after, state)
    damaged = isinstance(state, DamagedError)
    for item in read_span(source.store, head.stream, span):
        if isinstance(item, Record):
            view.record(item)
        else:
            damaged = True
            view.unreadable(item)
    view.open_turns(_partial_answers(state), past=at is not None and at < head.position)
    if isinstance(state, Session):
        with state:
            view.values(_values_at(state, span.upto))
    view.end()
    return damaged


def _open_session(store: Store, session: str) -> Session | DamagedError | None:
    """Open a session; return the error if it is damaged, None if it is deleted."""
    try:
        return store.resume(session)
    except NotFoundError:
        return None
    except DamagedError as error:
        return error


def _partial_answers(state: Session | DamagedError | None) -> dict[str, str]:
    """Return the readable text of the partial answers of open turns, by turn id."""
    texts = {}
    for turn in state.interrupted if isinstance(state, Session) else ():
        if turn.is_partial:
            try:
                texts[turn.id] = messages_text(turn.partial_messages())
            except DamagedError as error:
                texts[turn.id] = f"UNREADABLE: {error.reason}"
    return texts


def _values_at(session: Session, upto: int) -> Iterator[tuple[str, int, object]]:
    """Yield the values of a session at a position: key, version, value."""
    for key in _keys_at(session, upto):
        try:
            version, value = _value_at(session, key, upto)
        except NotFoundError:
            continue
        except DamagedError as error:
            version, value = 0, error
        yield key, version, value


def _keys_at(session: Session, upto: int) -> list[str]:
    if upto >= session.position:
        return session.values.keys()
    # A key deleted since may have had a value then.
    changes = session.records(on_damage=lambda _: None)
    keys = dict.fromkeys(
        record.content.subject
        for record in changes
        if record.kind == "value" and record.position <= upto
    )
    return list(keys)


def _value_at(session: Session, key: str, upto: int) -> tuple[int, object]:
    if upto >= session.position:
        return session.values.version(key), session.get(key)
    history = [item for item in session.values.history(key) if item.position <= upto]
    if not history or history[-1].deleted:
        raise NotFoundError(f"value {key!r}")
    return history[-1].version, session.get(key, version=history[-1].version)
