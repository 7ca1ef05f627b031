"""Which store a command reads, and how it ends: every command but `demo` goes through here.

Reading never makes a store: what is not there is an error. Exit codes are for scripts: 0 all is
well, 1 damage was found or nothing matched, 2 the call is wrong, 3 the store can not be read.
"""

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from perdure.backend import Backend, Head
from perdure.cli.text import safe
from perdure.codec import Codec
from perdure.errors import DamagedError, NotFoundError, PerdureError, UsageError
from perdure.opening import _backend, _parse, _settings
from perdure.store import Store

BAD_NEWS, WRONG_CALL, UNAVAILABLE = 1, 2, 3
NOBODY_READS = 128 + 13  # What a shell reports of a program that SIGPIPE ended.
DEFAULT = "agents.db"
SUGGESTED = 5  # Ids; more are no help.
PAGE = 256

F = TypeVar("F", bound=Callable[..., Any])


class Trouble(click.ClickException):
    """What was asked for can not be done; the message says why."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(safe(message))
        self.exit_code = exit_code


class Reading(click.Command):
    """A command that reads a store. What goes wrong is one line, and an exit code for scripts."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (DamagedError, NotFoundError) as error:
            raise Trouble(str(error), BAD_NEWS) from error
        except UsageError as error:
            raise Trouble(str(error), WRONG_CALL) from error
        except PerdureError as error:
            raise Trouble(str(error), UNAVAILABLE) from error
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise Trouble(str(error), UNAVAILABLE) from error
            # Whoever read the output has gone. Python would complain when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(NOBODY_READS)


def store_option(command: F) -> F:
    """Add `--store` to a command."""
    return click.option(
        "--store",
        "address",
        envvar="PERDURE_URL",
        metavar="URL",
        help=f"The store: a path, or an address such as sqlite:path. [default: PERDURE_URL, else "
        f"{DEFAULT} if it is here]",
    )(command)


class AsStored(Codec):
    """Leaves values as the JSON trees that are stored: nobody's classes are needed to show them."""

    def unpack(self, tree: Any, *, stream: str = "", position: int = 0) -> Any:
        """Return the tree."""
        return tree


class Opened(NamedTuple):
    """A store for reading: as sessions, and as streams of entries."""

    store: Store
    backend: Backend

    @property
    def name(self) -> str:
        """Which store it is, safe to print."""
        return safe(self.backend.name)


@contextmanager
def opened(address: str | None) -> Iterator[Opened]:
    """Open a store that exists, and close it in the end."""
    backend = _backend(_existing(address))
    settings = _settings(None, time.time, verify_writes=False)._replace(codec=AsStored())
    with Store(backend, settings) as store:
        yield Opened(store, backend)


def _existing(address: str | None) -> str:
    if not address:
        if not Path(DEFAULT).exists():
            reason = f"Which store? There is no {DEFAULT} here"
            raise Trouble(f"{reason}: give --store URL, or set PERDURE_URL.", WRONG_CALL)
        address = DEFAULT
    scheme, rest = _parse(address)
    if scheme == "memory":
        raise Trouble("A memory store is empty when it is opened: name one on disk.", WRONG_CALL)
    if scheme in {"sqlite", "files"} and rest:
        _require_there(Path(rest), address)
    return address


def _require_there(path: Path, address: str) -> None:
    if not path.exists():
        raise Trouble(f"There is no store {address}: nothing was made.", UNAVAILABLE)
    if path.is_file() and path.stat().st_size == 0 and not Path(f"{path}-wal").exists():
        raise Trouble(f"{address} is an empty file, not a store: nothing was changed.", UNAVAILABLE)


def head_of(store: Store, session: str) -> Head | None:
    """Return the head of a session, deleted or not, or None."""
    if not session:
        return None
    found = next(store.sessions(prefix=session, deleted=True), None)
    return found if found is not None and found.stream == session else None


def require_head(store: Store, session: str) -> Head:
    """Return the head of a session, deleted or not; for an unknown one say which are close."""
    head = head_of(store, session)
    if head is not None:
        return head
    close = _close(store, session)
    hint = f" Close to it: {', '.join(map(repr, close))}." if close else ""
    raise Trouble(f"There is no session {session!r}.{hint} `perdure ls` lists them.", BAD_NEWS)


def _close(store: Store, session: str) -> list[str]:
    """Return the ids that share the longest beginning with a session's."""
    for length in range(len(session), 0, -1):
        found = []
        for head in store.sessions(prefix=session[:length]):
            found.append(head.stream)
            if len(found) == SUGGESTED:
                break
        if found:
            return found
    return []


def every_head(backend: Backend, prefix: str = "") -> Iterator[Head | DamagedError]:
    """Yield the heads of all sessions, deleted ones too, and what is wrong with those that are not.

    A damaged head is stepped over. Where the store can not read its list, it ends there.
    """
    after = ""
    while True:
        try:
            page = list(backend.streams(prefix=prefix, after=after, limit=PAGE))
        except DamagedError:
            # One by one, to lose no more than is damaged.
            try:
                page = list(backend.streams(prefix=prefix, after=after, limit=1))
            except DamagedError as error:
                yield error
                if error.stream == backend.name or error.stream <= after:
                    return
                after = error.stream
                continue
        if not page:
            return
        yield from page
        after = page[-1].stream
