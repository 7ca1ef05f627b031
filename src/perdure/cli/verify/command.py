"""`perdure verify`: check a store and its sessions for damage, and salvage readable records."""

from collections.abc import Iterator
from pathlib import Path

import click

from perdure.backends.protocol import Head
from perdure.cli.salvage import sqlite_path
from perdure.cli.stores import (
    BAD_NEWS,
    UNAVAILABLE,
    InvalidCallError,
    OpenStore,
    StoreCommand,
    open_store,
    printable_name,
    require_existing,
    require_head,
    store_option,
)
from perdure.cli.terminal import ProgressBar, echo, echo_json
from perdure.cli.verify.salvage import SalvageFile, examine_damage, salvage_pages
from perdure.cli.verify.view import (
    SessionResult,
    StoreResult,
    print_result,
    print_summary,
    result_json,
)
from perdure.core.verify import VerifyResult
from perdure.errors import DamagedError, VersionError
from perdure.sync.verify import find_problems, list_heads, verify_head

EXAMPLES = """\b
Examples:
  perdure verify                      every session of the store
  perdure verify claim-4711           one, or several, by their ids
  perdure verify --salvage saved.jsonl
                                      save readable records of damaged ones

\b
With --json, each line is an object: session, state (ok, damaged, or newer if
a newer perdure wrote it), records, position, digest, half_copied (an
incomplete copy), first_bad (a position, or null if the damage is not in one
entry) and problems, each with position and reason. The state is salvaged for
what --salvage read from the pages of a damaged SQLite file. Unless ids are
given, the last line is about the store itself: store, state (ok, damaged, or
unchecked if it cannot compare itself with its list of sessions) and problems,
each with session (or null) and reason. In FILE, a line is a record as
`perdure show --json` prints it, or session, position and unreadable.
"""

# In the error of a store that cannot be opened, which would otherwise say to run this command.
SALVAGE_HINT = "copy the store, then run `perdure verify --salvage FILE`"


@click.command(cls=StoreCommand, epilog=EXAMPLES)
@click.argument("sessions", nargs=-1, metavar="[SESSION]...")
@click.option("--prefix", default="", help="Only sessions whose id has this prefix.")
@click.option(
    "--salvage", "target", metavar="FILE", help="Save the readable records of damaged sessions."
)
@click.option("-q", "--quiet", is_flag=True, help="Print only damaged sessions and the summary.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per session.")
@store_option
def verify(
    address: str | None,
    sessions: tuple[str, ...],
    prefix: str,
    target: str | None,
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Check the store and its sessions for damage: chain, bodies, snapshots, labels.

    Sessions are read in full. Unless ids are given, the store is compared with its list of
    sessions first, in the time that it takes to read it once (with --prefix, to list it). Exits
    with 1 if anything is damaged. Salvaging writes every readable record to a new file, as JSON
    lines; the store itself is never changed.
    """
    if sessions and prefix:
        raise InvalidCallError("Give ids or --prefix, not both.")
    if target is not None and Path(target).exists():
        raise click.BadParameter(f"{target} exists: name a new file.", param_hint="'--salvage'")
    address = require_existing(address)
    checking = Checking(address, sessions, prefix, target, quiet=quiet, as_json=as_json)
    with SalvageFile(target) as salvage:
        checking.run(salvage)
    checking.finish()


class Checking:
    """One run of the command: the results so far, and how they are printed."""

    def __init__(
        self,
        address: str,
        sessions: tuple[str, ...],
        prefix: str,
        target: str | None,
        *,
        quiet: bool,
        as_json: bool,
    ) -> None:
        self._address = address
        self._sessions = sessions
        self._prefix = prefix
        self._target = target
        self._quiet = quiet
        self._as_json = as_json
        self._checked = 0
        self._bad: list[SessionResult] = []
        self._intact: set[str] = set()
        self._store: StoreResult | None = None

    def run(self, salvage: SalvageFile) -> None:
        """Check everything; save records of damaged sessions."""
        with ProgressBar("checking the store", "session", lambda: 0) as progress:
            try:
                with open_store(self._address) as source:
                    self._check(source, salvage, progress)
            except DamagedError as error:
                wants_more = self._target is not None or self._as_json
                if self._sessions or self._store is not None or not wants_more:
                    if not wants_more and self._store is None and not error.position:
                        error.hint = SALVAGE_HINT
                    raise
                name = printable_name(self._address)  # It cannot even be opened.
                self._store = StoreResult(name, [DamagedError(name, error.position, error.reason)])
            path = sqlite_path(self._address)
            if path is None or self._target is None or not self._is_store_damaged:
                return
            # Its tables cannot be trusted: read the bare pages, now that the file is closed.
            progress.begin("salvaging", "session", lambda: 0)
            for result in salvage_pages(path, salvage, self._target, self._intact):
                progress.done += 1
                self._report(result, progress)

    @property
    def _is_store_damaged(self) -> bool:
        return self._store is not None and bool(self._store.problems)

    def _check(self, source: OpenStore, salvage: SalvageFile, progress: ProgressBar) -> None:
        if not self._sessions:
            problems = find_problems(source.backend, deep=not self._prefix)
            self._store = StoreResult(source.backend.name, problems)
        if self._is_store_damaged and sqlite_path(self._address) is not None:
            salvage = SalvageFile(None)  # What the pages hold is saved instead, and is more.
        progress.begin("verifying", "session", lambda: self._count(source))
        for head in self._select(source):
            progress.at = head.stream
            result = _verify_session(source, head, salvage)
            progress.done += 1
            self._checked += 1
            if self._is_store_damaged and result.state == "ok":
                self._intact.add(result.session)
            self._report(result, progress)

    def _report(self, result: SessionResult, progress: ProgressBar) -> None:
        if result.state != "ok":
            self._bad.append(result)
        if self._as_json:
            echo_json(result_json(result))
        elif result.state != "ok" or not self._quiet:
            progress.hide()
            print_result(result)

    def _select(self, source: OpenStore) -> Iterator[Head | DamagedError]:
        if self._sessions:
            yield from [_named_head(source, session) for session in dict.fromkeys(self._sessions)]
            return
        name, problems = source.backend.name, (self._store and self._store.problems) or ()
        unlisted = {problem.stream: problem for problem in problems if problem.stream != name}
        for head in list_heads(source.backend, prefix=self._prefix):
            unlisted.pop(head.stream, None)
            yield head
        for session, problem in unlisted.items():  # The store knows them, but does not list them.
            if session.startswith(self._prefix):
                yield problem

    def _count(self, source: OpenStore) -> int:
        return len(self._sessions) or sum(
            1 for _ in list_heads(source.backend, prefix=self._prefix)
        )

    def finish(self) -> None:
        """Print the summary, and end with the exit code of the results."""
        if not self._as_json:
            print_summary(self._checked, self._bad, self._store, self._target)
        elif self._store is not None:
            echo_json(self._store.as_data())
        if self._is_store_damaged or any(result.state == "damaged" for result in self._bad):
            raise SystemExit(BAD_NEWS)
        if self._bad:
            raise SystemExit(UNAVAILABLE)
        if self._prefix and not self._checked:
            echo("No session matches.", err=True)
            raise SystemExit(BAD_NEWS)


def _named_head(source: OpenStore, session: str) -> Head | DamagedError:
    try:
        return require_head(source, session)
    except DamagedError as error:
        return error


def _verify_session(
    source: OpenStore, head: Head | DamagedError, salvage: SalvageFile
) -> SessionResult:
    name = head.stream
    result: VerifyResult | DamagedError | VersionError | None
    if isinstance(head, DamagedError):
        result = head
    else:
        result = verify_head(source.store, source.backend, head)
    if isinstance(result, DamagedError):
        return examine_damage(source.store, name, result, salvage)
    if isinstance(result, VersionError):
        return SessionResult(name, "newer", reason=str(result))
    return SessionResult(name, "ok", result)  # None if it was deleted since it was listed.
