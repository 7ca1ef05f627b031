"""Describe sessions by fields, and list the sessions that have some values. Pure.

In: arguments of `session.describe` and `store.sessions`. Out: a `Plan`, and a `SessionQuery` in the
terms of a backend: labels, and the order of a field. A value that has to be equal is a label.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from perdure.backends.fields import FieldOrder
from perdure.core.plans import Plan, RecordBatch
from perdure.core.replica import Replica
from perdure.core.settings import Settings
from perdure.core.state import fields as values
from perdure.core.state.fields import BOOL, FieldValue, encode_value, require_name
from perdure.core.validation import require_labels, require_str
from perdure.errors import UnsupportedError, UsageError
from perdure.journal import requests
from perdure.journal.records import FieldsChanged
from perdure.journal.requests import Steps

Where = Mapping[str, FieldValue | tuple[FieldValue | None, FieldValue | None]]

RANGE_ENDS = 2  # the lowest and the highest value


def change_fields(replica: Replica, fields: dict[str, Any]) -> Plan[int]:
    """Plan new values of fields; None removes a field."""
    if not fields:
        raise UsageError("describe a session by at least one field: describe(customer='c-17')")
    fields = {require_name(name): value for name, value in fields.items()}
    texts = {
        name: None if value is None else encode_value(value, f"the field {name!r}")
        for name, value in fields.items()
    }
    content = FieldsChanged(fields={name: _pack(replica, fields[name]) for name in texts})
    record_id = replica.new_id()

    def make(batch: RecordBatch) -> int:
        after = {**batch.state.fields, **texts}
        values.require_room(sum(text is not None for text in after.values()))
        return batch.add_content(record_id, content)

    return Plan("describe", "", make)


def _pack(replica: Replica, value: Any) -> Any:
    if isinstance(value, datetime):
        value = values.require_time(value, "a field")
    return replica.settings.codec.pack(value)


class SessionQuery(NamedTuple):
    """The sessions that a listing has, and its order: by id, by last change, or by a field."""

    labels: tuple[str, ...]
    recent: bool = False
    order: FieldOrder | None = None


def parse_query(
    labels: Sequence[str],
    where: Where | None = None,
    order: str | None = None,
    *,
    recent: bool = False,
) -> SessionQuery:
    """Return what a listing asks for; UsageError that says what to write instead."""
    require_labels(labels)
    equal, ranges = _parse_where({} if where is None else where)
    chosen = (*labels, *values.labels_of(equal))
    name = require_str(order, "order") if order is not None else ""
    if recent and name not in {"", "-changed"}:
        raise UsageError("`recent` is the order '-changed': leave one of them out")
    recent = recent or name == "-changed"
    if ranges is not None:
        if recent or name.removeprefix("-") not in {"", ranges.field}:
            reason = f"a range of {ranges.field!r} is listed in its own order"
            raise UsageError(f"{reason}: order={ranges.field!r} or order='-{ranges.field}'")
        return SessionQuery(chosen, order=ranges._replace(reverse=name.startswith("-")))
    if recent or name in {"", "id"}:
        return SessionQuery(chosen, recent)
    if name in {"changed", "-id"}:
        reason = "sessions are listed by id, or the last changed first"
        raise UsageError(f"{reason}: order='id' or order='-changed'")
    field = require_name(name.removeprefix("-"))
    return SessionQuery(chosen, order=FieldOrder(field, reverse=name.startswith("-")))


def seal_query(query: SessionQuery, settings: Settings) -> SessionQuery:
    """Return a query in the terms of the store; UnsupportedError if a sealed one has no such order.

    Equal labels and values are equal when they are encrypted, and nothing else can be compared.
    """
    if not settings.cipher.is_placed:
        return query
    if query.order is not None:
        reason = f"the values of {query.order.field!r} are encrypted: they have no order"
        raise UnsupportedError(reason, "compare the values of the sessions that are listed")
    return query._replace(labels=tuple(settings.head_labels(frozenset(query.labels))))


def _parse_where(where: Where) -> tuple[dict[str, str], FieldOrder | None]:
    """Return fields that must have a value, and the one that must be within a range."""
    if not isinstance(where, Mapping):
        raise UsageError(f"where must be a dict of fields, not {type(where).__name__}")
    equal: dict[str, str] = {}
    ranges: list[FieldOrder] = []
    for name, value in where.items():
        field, what = _require_indexed(name), f"the value of {name!r}"
        if value is None:
            raise UsageError(f"sessions without {name!r} cannot be listed: give the field a value")
        if isinstance(value, tuple):
            ranges.append(_parse_range(field, value))
        elif isinstance(value, Mapping | list):
            reason = f"{what} is a {type(value).__name__}"
            raise UsageError(f"{reason}: give a value, or a range as a tuple (lowest, highest)")
        else:
            equal[field] = encode_value(value, what)
    if len(ranges) > 1:
        raise UsageError(
            "only one field can have a range: compare the others in the sessions that are listed"
        )
    return equal, ranges[0] if ranges else None


def _require_indexed(name: object) -> str:
    if name == "id":
        raise UsageError("where has fields only: choose ids with prefix=, or open the session")
    if name == "changed":
        raise UsageError("where has fields only: list with order='-changed', and stop at a time")
    return require_name(name)


def _parse_range(field: str, ends: tuple[Any, ...]) -> FieldOrder:
    what = f"the range of {field!r}"
    if len(ends) != RANGE_ENDS or ends == (None, None):
        raise UsageError(f"{what} must be (lowest, highest); one of them may be None")
    low, high = [None if end is None else encode_value(end, what) for end in ends]
    kinds = {text[0] for text in (low, high) if text is not None}
    if len(kinds) > 1:
        raise UsageError(f"{what} must have two ends of one type, such as two numbers")
    (kind,) = kinds
    if kind == BOOL:
        raise UsageError(f"{what} has bools: give the one value to find")
    # The highest value is part of the range: its text and a NUL is the first text behind it.
    end = chr(ord(kind) + 1) if high is None else high + "\0"
    return FieldOrder(field, low or kind, end)


def place_after(order: FieldOrder, session: str) -> Steps[FieldOrder]:
    """Return the order, from the place of a session on; UsageError if it has none."""
    if not session:
        return order
    head = yield from requests.head(session)
    key = None if head is None else FieldOrder(order.field).key(session, head.labels)
    if key is None:
        reason = f"session {session!r} has no field {order.field!r}, so nothing comes after it"
        raise UsageError(f"{reason}: give the last session of the page before")
    return order._replace(after=key)
