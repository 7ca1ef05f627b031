"""`perdure show`: show a conversation, or every record of it."""

from collections.abc import Iterator
from typing import NamedTuple

import click

from perdure.backend import Head
from perdure.cli.rendering import damage_json, record_json, said_by
from perdure.cli.show_view import View
from perdure.cli.stores import BAD_NEWS, Opened, Reading, opened, require_head, store_option
from perdure.cli.text import say_json
from perdure.errors import DamagedError, NotFoundError, TornError
from perdure.records import Message, Record
from perdure.session import Session
from perdure.store import Store

LOOK_BACK = 64  # Records; the first step back, which grows until enough messages are found.

EXAMPLES = """\b
Examples:
  perdure show claim-4711             the whole conversation
  perdure show claim-4711 --last 4    its last four messages
  perdure show claim-4711 --at 12     its state when record 12 was the newest
  perdure show claim-4711 --records   every record with all its content
  perdure show claim-4711 --json      the same for a program

\b
With --json, each line is an object: session, position, id, kind, time,
digest, content; or session, position, unreadable for a record that cannot
be read.
"""


@click.command(cls=Reading, epilog=EXAMPLES)
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
@click.option("--full", is_flag=True, help="Do not cut long texts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per record.")
@store_option
def show(
    address: str | None,
    session: str,
    at: int | None,
    last: int | None,
    *,
    records: bool,
    full: bool,
    as_json: bool,
) -> None:
    """Show a conversation: its messages, how turns ended, and which values changed.

    The readable part of a damaged session is shown, with a line for each unreadable record. Exits
    with 1 then, and if there is no such session.
    """
    with opened(address) as source:
        head = require_head(source, session)
        if at is not None and at > head.position:
            reason = f"{session!r} has positions up to {head.position}, not {at}."
            raise click.BadParameter(reason, param_hint="'--at'")
        span = _span(source.store, head, at, last)
        if as_json:
            damaged = _print_json(source.store, head, span)
        else:
            view = View(full=full, raw=records)
            damaged = _print(source, head, span, view, at=at)
    if damaged:
        raise SystemExit(BAD_NEWS)


class Span(NamedTuple):
    """The positions to show: after `after`, up to `upto`. `hidden` if earlier ones are left out."""

    after: int
    upto: int
    hidden: bool


def _span(store: Store, head: Head, at: int | None, last: int | None) -> Span:
    upto = head.position if at is None else at
    if last is None:
        return Span(0, upto, hidden=False)
    step = LOOK_BACK
    while True:
        after = max(upto - step, 0)
        messages = [
            item.position
            for item in read(store, head.stream, Span(after, upto, hidden=False))
            if isinstance(item, Record) and isinstance(item.content, Message)
        ]
        if len(messages) >= last or after == 0:
            start = messages[-last] if len(messages) >= last else 1
            return Span(start - 1, upto, hidden=start > 1)
        step *= 4


def read(store: Store, session: str, span: Span) -> Iterator[Record | DamagedError]:
    """Yield the records of a span; an unreadable record yields its error in its place.

    A batch that a crash cut off was never stored: it is not damage, and is not shown.
    """
    damage: list[DamagedError] = []

    def due(before: int | None) -> Iterator[DamagedError]:
        damage.sort(key=lambda error: error.position)
        while damage and (before is None or damage[0].position < before):
            error = damage.pop(0)
            if not isinstance(error, TornError):
                yield error

    try:
        for record in store.records(session, after=span.after, on_damage=damage.append):
            if record.position > span.upto:
                break
            yield from due(record.position)
            yield record
    except DamagedError as error:
        damage.append(error)
    yield from due(span.upto + 1)


def _print_json(store: Store, head: Head, span: Span) -> bool:
    damaged = False
    for item in read(store, head.stream, span):
        if isinstance(item, Record):
            say_json(record_json(head.stream, item))
        else:
            damaged = True
            say_json(damage_json(head.stream, item))
    return damaged


def _print(source: Opened, head: Head, span: Span, view: View, *, at: int | None) -> bool:
    state = _opened(source.store, head.stream)
    view.title(source.name, head, state, at=at)
    if span.hidden:
        view.earlier(span.after, state)
    damaged = isinstance(state, DamagedError)
    for item in read(source.store, head.stream, span):
        if isinstance(item, Record):
            view.record(item)
        else:
            damaged = True
            view.unreadable(item)
    view.open_turns(_partial(state), past=at is not None and at < head.position)
    if isinstance(state, Session):
        with state:
            view.values(_values(state, span.upto))
    view.end()
    return damaged


def _opened(store: Store, session: str) -> Session | DamagedError | None:
    """Open a session; return the error if it is damaged, None if it is deleted."""
    try:
        return store.resume(session)
    except NotFoundError:
        return None
    except DamagedError as error:
        return error


def _partial(state: Session | DamagedError | None) -> dict[str, str]:
    """Return the readable text of the partial answers of open turns, by turn id."""
    texts = {}
    for turn in state.interrupted if isinstance(state, Session) else ():
        if turn.partial:
            try:
                texts[turn.id] = said_by(turn.said())
            except DamagedError as error:
                texts[turn.id] = f"UNREADABLE: {error.reason}"
    return texts


def _values(session: Session, upto: int) -> Iterator[tuple[str, int, object]]:
    """Yield the values of a session at a position: key, version, value."""
    for key in _keys(session, upto):
        try:
            version, value = _value(session, key, upto)
        except NotFoundError:
            continue
        except DamagedError as error:
            version, value = 0, error
        yield key, version, value


def _keys(session: Session, upto: int) -> list[str]:
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


def _value(session: Session, key: str, upto: int) -> tuple[int, object]:
    if upto >= session.position:
        return session.values.version(key), session.get(key)
    history = [item for item in session.values.history(key) if item.position <= upto]
    if not history or history[-1].deleted:
        raise NotFoundError(f"value {key!r}")
    return history[-1].version, session.get(key, version=history[-1].version)
