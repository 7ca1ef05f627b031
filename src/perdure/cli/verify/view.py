"""The results of `perdure verify`, for a session and for the store, and how they are printed."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from rich.text import Text

from perdure.cli.terminal import echo, plural
from perdure.core.verify import VerifyResult
from perdure.errors import DamagedError
from perdure.safe_text import safe

RANGES_LISTED = 10  # Ranges of unreadable entries listed one by one; --json lists all.


class SessionResult(NamedTuple):
    """The result for one session."""

    session: str
    state: str
    verified: VerifyResult | None = None
    problems: tuple[DamagedError, ...] = ()
    saved: int = 0
    reason: str = ""

    @property
    def first_bad(self) -> int | None:
        return min((error.position for error in self.problems if error.position), default=None)


def result_json(result: SessionResult) -> dict[str, Any]:
    verified = result.verified
    return {
        "session": result.session,
        "state": result.state,
        "records": verified.records if verified else None,
        "position": verified.position if verified else None,
        "digest": verified.digest if verified else None,
        "half_copied": verified.half_copied if verified else None,
        "complete_from": verified.complete_from if verified else None,
        "first_bad": result.first_bad,
        "problems": [
            {"position": error.position, "reason": error.reason} for error in result.problems
        ],
    }


def print_result(result: SessionResult) -> None:
    name = safe(result.session)
    if result.state == "ok":
        size = plural(result.verified.records, "record") if result.verified else "deleted"
        half = result.verified is not None and result.verified.half_copied
        missing = "; an incomplete copy: copy it again" if half else ""
        if result.verified is not None and result.verified.complete_from > 1:
            missing = f", complete from {result.verified.complete_from}{missing}"
        echo(Text.assemble(("OK", "green"), f"       {name}  {size}{missing}"))
        return
    if result.state == "newer":
        echo(Text.assemble(("NEWER", "yellow"), f"    {name}  {safe(result.reason)}"))
        return
    first = result.first_bad
    where = f"first bad position {first}" if first else "not in one entry"
    if result.state == "salvaged":
        echo(Text.assemble(("SAVED", "yellow"), f"    {name}  {plural(result.saved, 'record')}"))
    else:
        echo(Text.assemble(("DAMAGED", "bold red"), f"  {name}  {where}"))
    ranges = list(_damaged_ranges(result.problems))
    for damaged_range in ranges[:RANGES_LISTED]:
        echo(f"         {safe(damaged_range)}")
    if len(ranges) > RANGES_LISTED:
        more = plural(len(ranges) - RANGES_LISTED, "more range")
        echo(f"         and {more} like these: --json lists all of them")
    if result.state != "salvaged":
        echo(f"         {plural(result.saved, 'record')} can be read")


def _damaged_ranges(problems: tuple[DamagedError, ...]) -> Iterator[str]:
    """Yield positions with reasons; adjacent positions with the same reason are merged."""
    first = last = 0
    reason = ""
    for error in sorted(problems, key=lambda error: error.position):
        if reason and (error.reason != reason or error.position > last + 1):
            yield _range_text(first, last, reason)
            reason = ""
        first = first if reason else error.position
        last, reason = error.position, error.reason
    if reason:
        yield _range_text(first, last, reason)


def _range_text(first: int, last: int, reason: str) -> str:
    if not first:
        return reason
    return f"{first}: {reason}" if first == last else f"{first} to {last}: {reason}"


class StoreResult(NamedTuple):
    """The result for the store itself. `problems` is None if it cannot compare itself."""

    store: str
    problems: list[DamagedError] | None

    @property
    def state(self) -> str:
        return "unchecked" if self.problems is None else "damaged" if self.problems else "ok"

    def as_data(self) -> dict[str, Any]:
        return {
            "store": self.store,
            "state": self.state,
            "problems": [
                {
                    "session": None if problem.stream == self.store else problem.stream,
                    "reason": problem.reason,
                }
                for problem in self.problems or ()
            ],
        }


def print_store_result(result: StoreResult) -> None:
    if result.problems is None:
        echo("The store cannot compare itself with its list of sessions: some may be missing.")
    elif not result.problems:
        echo("The store itself is intact.")
    else:
        echo("The store itself is damaged: sessions may be missing above.", style="bold red")
    for problem in (result.problems or ())[:RANGES_LISTED]:
        session = "" if problem.stream == result.store else f"{safe(problem.stream)}: "
        echo(f"         {session}{safe(problem.reason)}")
    if len(result.problems or ()) > RANGES_LISTED:
        echo(f"         and {len(result.problems or ()) - RANGES_LISTED} more: --json lists all")


def print_summary(
    checked: int, results: list[SessionResult], store: StoreResult | None, target: str | None
) -> None:
    damaged = [result for result in results if result.state == "damaged"]
    newer = sum(result.state == "newer" for result in results)
    parts = [f"{plural(checked, 'session')} checked"]
    parts.append(f"{len(damaged)} damaged" if damaged else "none damaged")
    if newer:
        parts.append(f"{newer} of a newer version")
    if checked or store is None or not store.problems:
        echo(", ".join(parts) + ".", style="bold red" if damaged else "bold")
    if store is not None:
        print_store_result(store)
    # If the pages of the store were read, all that was saved comes from there.
    sources = [result for result in results if result.state == "salvaged"] or damaged
    if sources and target is not None:
        saved = sum(result.saved for result in sources)
        lost = sum(len(result.problems) for result in sources)
        echo(f"{plural(saved, 'record')} saved to {safe(target)}, {lost} could not be read.")
    elif damaged or (store is not None and store.problems):
        hint = "--salvage FILE saves the readable records."
        echo(f"Keep a copy of the store. {hint if target is None else 'Nothing could be saved.'}")
