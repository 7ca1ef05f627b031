"""`perdure stats`: count the contents of a store exactly, by reading all of it."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import click
from rich.filesize import decimal
from rich.text import Text

from perdure.backends.protocol import DELETED, Entry, Head
from perdure.cli.stores import (
    BAD_NEWS,
    OpenStore,
    StoreCommand,
    open_store,
    store_option,
)
from perdure.cli.terminal import ProgressBar, echo, echo_json, plural
from perdure.core.state.session_state import TURN_OPEN
from perdure.errors import ChainError, DamagedError, NotFoundError, VersionError
from perdure.journal import chain
from perdure.safe_text import safe
from perdure.sync.verify import list_heads

LARGEST_LISTED = 5  # Sessions.


EXAMPLES = """\b
Examples:
  perdure stats
  perdure stats --json | jq .records.message

\b
With --json, the output is one object: store; sessions (live, deleted,
branches, damaged); messages; records (by kind); bytes; largest (session,
records, bytes); interrupted (session, turn, position, correlation_id);
guarantees (survives, shared_by, detail, atomic, engine, version,
capabilities, checks, accepted).
"""


FOOTNOTE = """\
Every record in the store is counted, in the session where it was written: a
branch adds its own records, not those it shares with its parent. A deleted
session keeps one record. Bytes are stored headers and bodies, without the
overhead of the store. An interrupted turn has no end: its process died, or is
still running."""


@click.command(cls=StoreCommand, epilog=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@store_option
def stats(address: str | None, *, as_json: bool) -> None:
    """Count sessions, messages, records and bytes; list large sessions and interrupted turns.

    The whole store is read, so the numbers are exact; records written meanwhile may or may not be
    counted. Exits with 1 if damage prevents an exact count.
    """
    with open_store(address) as source:
        tally = StoreCounts()
        with ProgressBar("counting", "record", lambda: _estimate_records(source)) as progress:
            for head in list_heads(source.backend):
                if isinstance(head, DamagedError):
                    tally.damaged.add(head.stream)
                    continue
                progress.at = head.stream
                for _ in tally.count(source, head):
                    progress.done += 1
        result = tally.result(source)
    if as_json:
        echo_json(result)
    else:
        _print_counts(result)
    if tally.damaged:
        echo(
            "Some sessions are damaged and not fully counted: run `perdure verify`.",
            err=True,
            style="red",
        )
        raise SystemExit(BAD_NEWS)


def _estimate_records(source: OpenStore) -> int:
    """Estimate the number of records; the positions of a branch include its parent's records."""
    heads = list_heads(source.backend)
    return sum(head.position for head in heads if isinstance(head, Head))


class StoreCounts:
    """The counts so far."""

    def __init__(self) -> None:
        self.sessions: Counter[str] = Counter()
        self.records: Counter[str] = Counter()
        self.bytes = 0
        self.largest: list[tuple[int, int, str]] = []
        self.interrupted: list[dict[str, Any]] = []
        self.damaged: set[str] = set()

    def count(self, source: OpenStore, head: Head) -> Iterator[None]:
        """Count one session; yields at each entry, so that the caller can update its progress."""
        self.sessions["deleted" if DELETED in head.labels else "live"] += 1
        kinds: Counter[str] = Counter()
        size = 0
        try:
            for entry in source.backend.read(head.stream, max_body=chain.BODY_MAX):
                size += len(entry.header) + len(entry.body or b"")
                kinds.update(self._kinds(head.stream, entry))
                yield
        except DamagedError:
            self.damaged.add(head.stream)
        self.sessions["branches"] += kinds["branched"]
        self.records += kinds
        self.bytes += size
        self.largest.append((size, kinds.total(), head.stream))
        self.largest = sorted(self.largest, key=lambda item: (-item[0], item[2]))[:LARGEST_LISTED]
        if TURN_OPEN in head.labels:
            self._interrupted(source, head.stream)

    def _kinds(self, name: str, entry: Entry) -> list[str]:
        """Return the kinds of the records in an entry that can be read."""
        damage: list[ChainError] = []
        try:
            records = chain.verify_entry(name, entry, damage.append).records
        except (DamagedError, VersionError):
            self.damaged.add(name)
            return []
        if damage:
            self.damaged.add(name)
        return [record.kind for record in records]

    def _interrupted(self, source: OpenStore, name: str) -> None:
        try:
            with source.store.resume(name) as session:
                self.interrupted += [
                    {
                        "session": name,
                        "turn": turn.id,
                        "position": turn.branch_point + 1,
                        "correlation_id": turn.correlation_id,
                    }
                    for turn in session.interrupted
                ]
        except NotFoundError:
            pass  # Deleted since it was listed.
        except (DamagedError, VersionError):
            self.damaged.add(name)

    def result(self, source: OpenStore) -> dict[str, Any]:
        return {
            "store": source.backend.name,
            "sessions": {
                **{key: self.sessions[key] for key in ("live", "deleted", "branches")},
                "damaged": len(self.damaged),
            },
            "messages": self.records["message"],
            "records": dict(sorted(self.records.items())),
            "bytes": self.bytes,
            "largest": [
                {"session": name, "records": records, "bytes": size}
                for size, records, name in self.largest
            ],
            "interrupted": self.interrupted,
            "guarantees": source.store.guarantees().as_data(),
        }


def _print_counts(result: dict[str, Any]) -> None:
    echo(safe(result["store"]), style="bold")
    sessions = result["sessions"]
    branches = f" ({plural(sessions['branches'], 'branch')})" if sessions["branches"] else ""
    parts = [f"{sessions['live']:,}{branches}"]
    parts += [f"{sessions[key]:,} {key}" for key in ("deleted", "damaged") if sessions[key]]
    _print_fact("sessions", ", ".join(parts))
    _print_fact("messages", f"{result['messages']:,}")
    _print_fact("records", f"{sum(result['records'].values()):,}")
    for kind, count in sorted(result["records"].items(), key=lambda item: (-item[1], item[0])):
        _print_fact("", f"{count:>10,}  {safe(kind)}")
    exact_bytes = "" if result["bytes"] < 1000 else f" ({result['bytes']:,})"  # noqa: PLR2004 - as in decimal
    _print_fact("bytes", f"{decimal(result['bytes'])}{exact_bytes}")
    for number, session in enumerate(result["largest"]):
        label = "" if number else "largest"
        records = plural(session["records"], "record")
        _print_fact(
            label, f"{decimal(session['bytes']):>10}  {safe(session['session'])}, {records}"
        )
    _print_fact("interrupted", plural(len(result["interrupted"]), "turn"))
    for turn in result["interrupted"]:
        correlation = f" ({safe(turn['correlation_id'])})" if turn["correlation_id"] else ""
        _print_fact("", f"{safe(turn['session'])}, begun at {turn['position']}{correlation}")
    guarantees = result["guarantees"]
    _print_fact("guarantees", f"stored records survive {guarantees['survives']}")
    _print_fact("", f"shared by {guarantees['shared_by']}")
    _print_fact("", guarantees["detail"])
    echo()
    echo(FOOTNOTE, style="dim")


def _print_fact(label: str, text: str) -> None:
    echo(Text.assemble((f"  {label:<12}", "dim"), text))
