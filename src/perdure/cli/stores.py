"""Which store a command reads, and how it ends: every command but `demo` goes through here.

Reading never makes a store: what is not there is an error. Exit codes are for scripts: 0 all is
well, 1 damage was found or nothing matched, 2 the call is wrong, 3 the store can not be read.
"""

import errno
import os
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from perdure.backend import Backend, Head
from perdure.cli.text import safe
from perdure.codec import Codec
from perdure.errors import DamagedError, NotFoundError, PerdureError, UsageError
from perdure.fold import DELETED
from perdure.opening import (
    backend_of,
    holds_address,
    not_making,
    path_of,
    postgres_of,
    scheme_of,
    settings_of,
)
from perdure.store import Store

BAD_NEWS, WRONG_CALL, UNAVAILABLE = 1, 2, 3
NOBODY_READS = 128 + 13  # What a shell reports of a program that SIGPIPE ended.
DEFAULT = "agents.db"
SUGGESTED = 5  # Ids; more are no help.

F = TypeVar("F", bound=Callable[..., Any])

# Words of a Postgres address that may be repeated beside its name. Who knows what else is secret?
HARMLESS = ("accept=", "migrate=", "patience=", "sslmode=", "sslrootcert=", "target_session_attrs=")


class Trouble(click.ClickException):
    """What was asked for can not be done; the message says why, the exit code which way."""

    def __init__(self, message: str) -> None:
        super().__init__(safe(message))


class NotThereError(Trouble):
    """Nothing matches, or what does is damaged."""

    exit_code = BAD_NEWS


class WrongCallError(Trouble):
    """The call can not work as it is."""

    exit_code = WRONG_CALL


class NoStoreError(WrongCallError):
    """No store was named, and there is none where one would be looked for."""


class UnreadableError(Trouble):
    """The store can not be read."""

    exit_code = UNAVAILABLE


class Reading(click.Command):
    """A command that reads a store. What goes wrong is one line, and an exit code for scripts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, [*args])
        except click.UsageError:
            ctx.allow_extra_args = True  # Only to learn which words were too many.
            if meant := _meant_store(ctx, super().parse_args(ctx, args)):
                raise WrongCallError(meant) from None
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return self._invoke(ctx)
        except (NotThereError, WrongCallError) as error:
            if any(map(holds_address, _words(ctx))):  # It may be repeated, with its password.
                raise type(error)(misplaced(ctx)) from None
            raise

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NoStoreError as error:
            raise WrongCallError(_meant_store(ctx, _words(ctx)) or error.message) from error
        except NotThereError as error:
            if meant := _meant_store(ctx, _words(ctx)):
                raise NotThereError(f"{error.message} {meant}") from error
            raise
        except (DamagedError, NotFoundError) as error:
            raise NotThereError(str(error)) from error
        except UsageError as error:
            raise WrongCallError(str(error)) from error
        except PerdureError as error:
            raise UnreadableError(str(error)) from error
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise UnreadableError(str(error)) from error
            # Whoever read the output has gone. Python would complain when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(NOBODY_READS)


def _words(ctx: click.Context) -> Iterator[str]:
    """Yield what stands where a session, or the beginning of one, is expected."""
    for param in ctx.command.params:
        if isinstance(param, click.Argument) and not isinstance(param.type, click.Path):
            given = ctx.params.get(param.name)
            yield from (given,) if isinstance(given, str) else given or ()


def misplaced(ctx: click.Context | None) -> str:
    """Say that an address stands where none is expected, without repeating it."""
    is_option = ctx is not None and any("--store" in param.opts for param in ctx.command.params)
    hint = ": did you mean --store?" if is_option else "."
    return f"The address of a store stands where something else is expected{hint}"


def _meant_store(ctx: click.Context, words: Iterable[str]) -> str | None:
    """Say what was meant, if a word is a file and no store was named."""
    if ctx.get_parameter_source("address") is ParameterSource.COMMANDLINE:
        return None
    for word in words:
        if os.path.isfile(word):  # noqa: PTH113 - that of a Path raises where a name is too long.
            return f"{word!r} is a file: did you mean --store {shlex.quote(word)}?"
    return None


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

    def unpack(self, tree: Any, **_: object) -> Any:
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
    backend = backend_of(existing(address))
    settings = settings_of(None, time.time, verify_writes=False)._replace(codec=AsStored())
    with Store(backend, settings) as store:
        yield Opened(store, backend)


def existing(address: str | None) -> str:
    if not address:
        if not Path(DEFAULT).exists():
            raise NoStoreError(_which())
        address = DEFAULT
    if scheme_of(address)[0] == "memory":
        raise WrongCallError("A memory store is empty when it is opened: name one on disk.")
    if path := path_of(address):
        _require_there(path, address)
    return not_making(address)  # Tables are not made either.


def _which() -> str:
    reason, url = f"Which store? There is no {DEFAULT} here", "URL"
    found = [path.name for path in Path().glob("*.db") if path.is_file()]
    if len(found) == 1:
        reason, url = f"{reason}, but there is {found[0]}", shlex.quote(found[0])
    return f"{reason}: give --store {url}, or set PERDURE_URL."


def _require_there(path: Path, address: str) -> None:
    if not path.exists():
        raise UnreadableError(f"There is no store {address}: nothing was made.")
    if path.is_file() and path.stat().st_size == 0 and not Path(f"{path}-wal").exists():
        raise UnreadableError(f"{address} is an empty file, not a store: nothing was changed.")


def _is_postgres(address: str) -> bool:
    """Whether an address names a Postgres store, and may hold a password."""
    return scheme_of(address)[0] == "postgresql"


def named(address: str) -> str:
    """Return an address without a password, wherever it stands."""
    return postgres_of(address).name if _is_postgres(address) else address


def without_password(address: str) -> str:
    """Return an address to be typed again, with all that matters but a password."""
    if not _is_postgres(address):
        return address
    words = [word for word in address.partition("?")[2].split("&") if word.startswith(HARMLESS)]
    name = named(address)
    return name + (("&" if "?" in name else "?") + "&".join(words) if words else "")


def head_of(backend: Backend, session: str) -> Head | None:
    """Return the head of a session, deleted or not, or None."""
    found = next(backend.streams(prefix=session, limit=1), None) if session else None
    return found if found is not None and found.stream == session else None


def require_head(source: Opened, session: str) -> Head:
    """Return the head of a session, deleted or not; for an unknown one say which are close.

    One that has entries and no head is damaged, and not unknown.
    """
    head = head_of(source.backend, session)
    if head is not None:
        return head
    if session and next(source.backend.read(session, limit=1), None) is not None:
        # It may have been begun since.
        if (head := head_of(source.backend, session)) is not None:
            return head
        raise DamagedError(session, 0, "it has entries and no head")
    close = _close(source.backend, session)
    hint = f" Close to it: {', '.join(map(repr, close))}." if close else ""
    raise NotThereError(f"There is no session {session!r}.{hint} `perdure ls` lists them.")


def _close(backend: Backend, session: str) -> list[str]:
    """Return the ids that share the longest beginning with a session's."""
    for length in range(len(session), 0, -1):
        heads = backend.streams(prefix=session[:length], without=[DELETED], limit=SUGGESTED)
        if found := [head.stream for head in heads]:
            return found
    return []


def every_head(
    backend: Backend,
    *,
    prefix: str = "",
    after: str = "",
    labels: Collection[str] = (),
    without: Collection[str] = (),
) -> Iterator[Head | DamagedError]:
    """Yield the heads of sessions, deleted ones too; in place of a damaged one, what is wrong.

    A damaged head is stepped over. Where the store can not read its list, it ends there.
    """
    while True:
        try:
            for head in backend.streams(prefix=prefix, after=after, labels=labels, without=without):
                after = head.stream
                yield head
        except DamagedError as error:
            yield error
            if error.stream == backend.name or error.stream <= after:
                return
            after = error.stream
        else:
            return
