"""`perdure ls`: list sessions by id or by recency, a page at a time."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

import click
import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from perdure.backends.fields import FIELD_MARK, FieldOrder
from perdure.backends.protocol import DELETED, Head, arrange, require_order, require_recent
from perdure.cli.rendering import fields_text, labels_text
from perdure.cli.stores import (
    BAD_NEWS,
    UNAVAILABLE,
    NoMatchError,
    OpenStore,
    StoreCommand,
    open_store,
    require_head,
    store_option,
)
from perdure.cli.terminal import (
    ProgressBar,
    echo,
    echo_json,
    first_line,
    relative_time,
    terminal_width,
    timestamp,
)
from perdure.core.fields import Where, parse_query, seal_query
from perdure.core.leases import LeaseHolder
from perdure.core.state.fields import split_labels
from perdure.core.state.session_state import LEASED
from perdure.errors import (
    DamagedError,
    NotFoundError,
    UnsupportedError,
    UsageError,
    VersionError,
)
from perdure.journal.key_store import is_own
from perdure.safe_text import safe
from perdure.sync.store import Store
from perdure.sync.verify import list_heads

PAGE_SIZE = 50  # Sessions; two screens, and each session shown costs a few reads.

TITLES = ("messages", "position", "last role", "last change", "labels")

# Columns: between id and labels; minimum for labels and id.
CELLS_WIDTH, LABELS_MIN, ID_MIN = 48, 6, 12

HOLDER_WIDTH = 24  # Columns for the name of the lease holder.


_NEVER = datetime.min.replace(tzinfo=UTC)


EXAMPLES = """\b
Examples:
  perdure ls                       the first sessions by id
  perdure ls claim- --recent       ids with a prefix, last changed first
  perdure ls --label turn-open     sessions with an unfinished turn
  perdure ls --label leased        sessions that a worker holds
  perdure ls --where customer=c-17 --order=-amount
                                   by fields, highest amount first
  perdure ls --json --limit 0      all sessions, for a program

\b
With --json, each line is an object: id, messages, position, last_role,
changed (ISO 8601, UTC), labels, fields, state (live, deleted, damaged, or
newer if a newer perdure wrote it), damage (null, or why it cannot be read)
and holder (null, or epoch, name and ttl of the lease). What is not known is
null.
"""


class SessionRow(NamedTuple):
    """One line of the list."""

    head: Head
    state: str
    messages: int | None
    last_role: str | None
    changed: datetime | None
    damage: str | None = None
    holder: LeaseHolder | None = None
    fields: dict[str, Any] | None = None


WHERE_HELP = """Only sessions whose field has this value, or one in the range LOW..HIGH; LOW or
HIGH may be left out. Numbers, true, false and times with a zone are read as such; quote a text
that looks like one: 'zip="12345"'. Repeatable."""


@click.command(cls=StoreCommand, epilog=EXAMPLES)
@click.argument("prefix", default="")
@click.option("--label", "labels", multiple=True, help="Only sessions with this label. Repeatable.")
@click.option("--where", multiple=True, metavar="FIELD=VALUE", help=WHERE_HELP)
@click.option(
    "--order",
    metavar="FIELD",
    help="Sort by a field, -FIELD for the highest first. Sessions without it are left out. "
    "-changed: as --recent.",
)
@click.option("--recent", is_flag=True, help="Sort by last change, newest first.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=PAGE_SIZE,
    show_default=True,
    help="Maximum number of sessions; 0 for all.",
)
@click.option("--after", default="", metavar="SESSION", help="Start after this id.")
@click.option("--deleted", is_flag=True, help="Include deleted sessions.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@store_option
def ls(address: str | None, *, as_json: bool, limit: int, **filters: Any) -> None:
    """List sessions: id, messages, position, last role, last change, labels.

    Only listed sessions are opened, so the first page of a large store is fast. Exits with 1 if no
    session matches, or if a listed session is damaged.
    """
    with open_store(address) as source:
        heads = _revealed(source, _heads(source, **filters))
        shown = list(islice(heads, limit)) if limit else heads
        rows = (row for head in shown if (row := read_row(source.store, head)) is not None)
        count = 0
        states: set[str] = set()
        last = ""
        width = _id_width([head for head in shown if isinstance(head, Head)] if limit else [])
        for row in rows:
            if as_json:
                echo_json(_row_json(row))
            else:
                if not count:
                    echo(f"{'session':<{width}}  {_cells(*TITLES)}", style="dim")
                _print_row(row, width)
            count += 1
            states.add(row.state)
            last = row.head.stream
        _report_empty(source, filters, count, as_json=as_json)
        if limit and next(heads, None) is not None:
            recent = filters["recent"] or filters["order"] == "-changed"
            _report_more(count, last, recent=recent)
    if "damaged" in states:
        echo("Some of these sessions are damaged: run `perdure verify`.", err=True, style="red")
        raise SystemExit(BAD_NEWS)
    if "newer" in states:
        raise SystemExit(UNAVAILABLE)


def _heads(  # noqa: PLR0913 - each is an option
    source: OpenStore,
    *,
    prefix: str,
    labels: tuple[str, ...],
    where: tuple[str, ...],
    order: str | None,
    recent: bool,
    after: str,
    deleted: bool,
) -> Iterator[Head | DamagedError]:
    try:
        query = parse_query(labels, parse_where(where), order, recent=recent)
    except UsageError as error:
        raise click.UsageError(str(error)) from error
    query = seal_query(query, source.settings)
    if query.recent:
        if after:
            raise click.UsageError("--after is an id: with --recent, use a larger --limit.")
        return most_recent(source, prefix, query.labels, deleted=deleted)
    without = () if deleted else (DELETED,)
    options: Any = {"prefix": prefix, "labels": query.labels, "without": without}
    if query.order is None:
        return list_heads(source.backend, after=after, **options)
    place = query.order
    if after:
        key = FieldOrder(place.field).key(after, require_head(source, after).labels)
        if key is None:
            raise click.UsageError(f"--after: {safe(after)!r} has no field {place.field!r}.")
        place = place._replace(after=key)
    return _by_field(source, place, options)


def _revealed(
    source: OpenStore, heads: Iterator[Head | DamagedError]
) -> Iterator[Head | DamagedError]:
    """Yield heads with their labels as callers gave them."""
    for head in heads:
        try:
            yield head if isinstance(head, DamagedError) else source.reveal(head)
        except DamagedError as error:
            yield error


def parse_where(texts: tuple[str, ...]) -> Where:
    """Return the fields of `--where` options, each with a value or a range."""
    where: dict[str, Any] = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or name in where:
            raise click.UsageError("--where needs FIELD=VALUE, once for each field.")
        low, is_range, high = value.partition("..")
        if is_range and not value.startswith('"'):
            where[name] = tuple(parse_value(end) if end else None for end in (low, high))
        else:
            where[name] = parse_value(value)
    return where


def parse_value(text: str) -> Any:
    """Return the value that a text on the command line means: JSON, a time, or the text itself."""
    try:
        value = json.loads(text)
    except ValueError:
        pass
    else:
        if isinstance(value, str | int | float):
            return value
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return text
    return text if time.tzinfo is None else time


def _by_field(source: OpenStore, order: FieldOrder, options: Any) -> Iterator[Head | DamagedError]:
    """List sessions in the order of a field; a store that cannot is read in full and sorted."""
    try:
        yield from require_order(source.backend).ordered(order, **options)
    except UnsupportedError:
        found = list(list_heads(source.backend, **options))
        yield from (head for head in found if isinstance(head, DamagedError))
        yield from arrange(order, (head for head in found if isinstance(head, Head)))
    except DamagedError as error:
        yield error


def most_recent(
    source: OpenStore, prefix: str, labels: tuple[str, ...], *, deleted: bool
) -> Iterator[Head | DamagedError]:
    without = () if deleted else (DELETED,)
    try:
        backend = require_recent(source.backend)
        heads = backend.recent(prefix=prefix, labels=labels, without=without)
        yield from (head for head in heads if not is_own(head.stream))
    except UnsupportedError:
        yield from _by_last_record(source, prefix, labels, without)
    except DamagedError as error:
        yield error


def _by_last_record(
    source: OpenStore, prefix: str, labels: tuple[str, ...], without: tuple[str, ...]
) -> Iterator[Head | DamagedError]:
    """Sort by the last record of every session, for a store that keeps no order of changes."""
    dated_heads: list[tuple[datetime, Head]] = []
    heads = list(list_heads(source.backend, prefix=prefix, labels=labels, without=without))
    with ProgressBar("sorting", "session", lambda: len(heads)) as progress:
        for head in heads:
            progress.done += 1
            if isinstance(head, DamagedError):
                yield head
                continue
            records = source.store.records(head.stream, after=head.position - 1, on_damage=_ignore)
            dated_heads.append((next((record.time for record in records), _NEVER), head))
    yield from (head for _, head in sorted(dated_heads, key=lambda item: item[0], reverse=True))


def _ignore(_: DamagedError) -> None:
    """Ignore damage here: the line of the session reports it."""


def _report_empty(source: OpenStore, filters: dict[str, Any], count: int, *, as_json: bool) -> None:
    """Report an empty list; it is an error only if there was a filter."""
    if count:
        return
    if any(filters[key] for key in ("prefix", "labels", "where", "order", "after")):
        raise NoMatchError(f"No session in {source.name} matches.")
    if not as_json:
        echo(f"{source.name} has no sessions.")


def _report_more(count: int, last: str, *, recent: bool) -> None:
    option = f"--limit {count * 4}" if recent else f"--after {safe(last)!r}"
    echo(f"There are more: use {option}, or --limit 0 for all.", err=True, style="dim")


def read_row(store: Store, head: Head | DamagedError) -> SessionRow | None:
    """Open a session and return its line; None if it was deleted since it was listed."""
    if isinstance(head, DamagedError):
        return SessionRow(
            Head(head.stream, 0, "", frozenset()), "damaged", None, None, None, head.reason
        )
    # The line has what was read from the session: a label of the head may be a field.
    head = head._replace(labels=frozenset(text for text in head.labels if FIELD_MARK not in text))
    try:
        if DELETED in head.labels:
            (record, *_) = store.records(head.stream, after=head.position - 1)
            return SessionRow(head, "deleted", 0, None, record.time)
        with store.resume(head.stream) as session:
            role = (session.last_message or {}).get("role")
            (record,) = islice(session.records(after=session.position - 1), 1)
            current = head._replace(position=session.position, labels=session.labels)
            facts = (len(session), role and str(role), record.time)
            return SessionRow(
                current, "live", *facts, holder=session.lease_holder, fields=session.fields
            )
    except NotFoundError:
        return None
    except DamagedError as error:
        return SessionRow(head, "damaged", None, None, None, error.reason)
    except VersionError as error:
        return SessionRow(head, "newer", None, None, None, str(error))


def _row_json(row: SessionRow) -> dict[str, Any]:
    return {
        "id": row.head.stream,
        "messages": row.messages,
        "position": row.head.position,
        "last_role": row.last_role,
        "changed": timestamp(row.changed) if row.changed else None,
        "labels": sorted(row.head.labels),
        "fields": msgspec.to_builtins(row.fields or {}),
        "state": row.state,
        "damage": row.damage,
        "holder": _holder_json(row.holder) if row.holder else None,
    }


def _holder_json(holder: LeaseHolder) -> dict[str, Any]:
    return {"epoch": holder.epoch, "name": holder.name, "ttl": holder.ttl}


def _labels_cell(row: SessionRow) -> str:
    """Return the labels and fields of a session; the lease label names the lease holder."""
    texts = [labels_text(row.head.labels - {LEASED}), fields_text(row.fields or {})]
    if row.holder is not None:
        texts.insert(0, f"leased by {first_line(row.holder.name, HOLDER_WIDTH)}")
    return ", ".join(text for text in texts if text)


def _listed_row(head: Head) -> SessionRow:
    """Return the line of a session as far as the list has it."""
    try:
        labels, fields = split_labels(head.stream, head.labels)
    except DamagedError:
        labels, fields = frozenset(), {}
    return SessionRow(head._replace(labels=labels), "live", None, None, None, fields=fields)


def _id_width(heads: list[Head]) -> int:
    """Return the width of the column of ids: the longest id, unless labels need the room."""
    labels = max((cell_len(_labels_cell(_listed_row(head))) for head in heads), default=0)
    room = max(terminal_width() - 1 - CELLS_WIDTH - max(labels, LABELS_MIN), ID_MIN)
    longest = max((cell_len(safe(head.stream)) for head in heads), default=room)
    return min(max(longest, len("session")), room)


def _print_row(row: SessionRow, id_width: int) -> None:
    """Print the line of a session. An id that is too long for its column gets its own line."""
    name = safe(row.head.stream)
    if cell_len(name) > id_width:
        echo(name)
        name = ""
    style = {"live": "", "deleted": "dim"}.get(row.state, "red")
    if row.damage is not None:
        text = f"{row.state.upper()}: {safe(row.damage)}"
    else:
        text = _cells(
            "-" if row.messages is None else f"{row.messages:,}",
            f"{row.head.position:,}",
            first_line(row.last_role or "-", 10),
            relative_time(row.changed) if row.changed else "-",
            _labels_cell(row),
        )
    echo(Text.assemble(f"{set_cell_size(name, id_width)}  ", (text, style)))


def _cells(messages: str, position: str, role: str, changed: str, labels: str) -> str:
    cells = f"{messages:>8} {position:>8}  {set_cell_size(role, 10)} {changed:<14}  {labels}"
    return cells.rstrip()
