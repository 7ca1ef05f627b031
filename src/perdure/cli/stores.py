"""Open the store of a command, and map errors to exit codes. Every command but `demo` uses it.

Reading never creates a store: a missing store is an error. Exit codes are for scripts: 0 success,
1 damage was found or nothing matched, 2 invalid arguments, 3 the store cannot be read. Addresses
can hold passwords: never print one except through `printable_name` or `without_password`.
"""

import errno
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from perdure.backends.addresses import (
    looks_like_address,
    open_backend,
    path_of,
    scheme_of,
    server_name,
    without_migration,
)
from perdure.backends.protocol import DELETED, Backend, Head
from perdure.cli.terminal import echo
from perdure.core.replay import guard
from perdure.core.settings import Settings, settings_of
from perdure.errors import DamagedError, NotFoundError, PerdureError, UsageError
from perdure.journal.codec import Codec
from perdure.journal.requests import Steps
from perdure.safe_text import safe, shell_command, shell_word
from perdure.sync.session import Session
from perdure.sync.store import Store
from perdure.sync.verify import find_head, list_heads

if TYPE_CHECKING:
    from perdure.keys import MasterKey

BAD_NEWS, INVALID_CALL, UNAVAILABLE = 1, 2, 3

INTERRUPTED = 128 + 2  # The exit code that a shell reports for a program ended by SIGINT.

BROKEN_PIPE = 128 + 13  # The exit code that a shell reports for a program ended by SIGPIPE.

DEFAULT_STORE = "agents.db"

SUGGESTIONS_MAX = 5  # Ids; more are not helpful.


F = TypeVar("F", bound=Callable[..., Any])

T = TypeVar("T")


# Options of a server's address that may be printed. Any other option may be a secret.
PRINTABLE_OPTIONS = (
    "accept=",
    "migrate=",
    "replicas=",
    "ack=",
    "ssl_ca_certs=",
    "timeout=",
    "sslmode=",
    "sslrootcert=",
    "target_session_attrs=",
)


class CommandError(click.ClickException):
    """The command cannot be carried out; the message says why, the exit code of which kind."""

    def __init__(self, message: str) -> None:
        super().__init__(safe(message))


class NoMatchError(CommandError):
    """Nothing matches, or the match is damaged."""

    exit_code = BAD_NEWS


class InvalidCallError(CommandError):
    """The arguments are invalid."""

    exit_code = INVALID_CALL


class NoStoreNamedError(InvalidCallError):
    """No store was named, and there is none at the default path."""


class UnreadableStoreError(CommandError):
    """The store cannot be read."""

    exit_code = UNAVAILABLE


class StoreCommand(click.Command):
    """A command that reads a store. Errors become one line and an exit code for scripts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, [*args])
        except click.UsageError:
            ctx.allow_extra_args = True  # Only to find the surplus arguments.
            if hint := _store_hint(ctx, super().parse_args(ctx, args)):
                raise InvalidCallError(hint) from None
            raise

    def invoke(self, ctx: click.Context) -> Any:
        guard.require_live(f"the command {ctx.command_path!r}")
        try:
            return self._invoke(ctx)
        except (NoMatchError, InvalidCallError) as error:
            if any(
                map(looks_like_address, _session_arguments(ctx))
            ):  # The message may quote it, with its password.
                raise type(error)(misplaced_address(ctx)) from None
            raise

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NoStoreNamedError as error:
            raise InvalidCallError(
                _store_hint(ctx, _session_arguments(ctx)) or error.message
            ) from error
        except NoMatchError as error:
            if hint := _store_hint(ctx, _session_arguments(ctx)):
                raise NoMatchError(f"{error.message} {hint}") from error
            raise
        except (DamagedError, NotFoundError) as error:
            raise NoMatchError(str(error)) from error
        except UsageError as error:
            raise InvalidCallError(str(error)) from error
        except PerdureError as error:
            raise UnreadableStoreError(str(error)) from error
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise UnreadableStoreError(str(error)) from error
            # The reader of the output is gone. Python would report that when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(BROKEN_PIPE)


def _session_arguments(ctx: click.Context) -> Iterator[str]:
    """Yield the arguments given where a session id, or a prefix of one, is expected."""
    for param in ctx.command.params:
        if isinstance(param, click.Argument) and not isinstance(param.type, click.Path):
            value = ctx.params.get(param.name)
            yield from (value,) if isinstance(value, str) else value or ()


def misplaced_address(ctx: click.Context | None) -> str:
    """Return the error text for a misplaced store address, without quoting the address."""
    is_option = ctx is not None and any("--store" in param.opts for param in ctx.command.params)
    hint = ": did you mean --store?" if is_option else "."
    return f"A store address was given where something else is expected{hint}"


def _store_hint(ctx: click.Context, words: Iterable[str]) -> str | None:
    """Return a hint if an argument is a file and no store was named."""
    if ctx.get_parameter_source("address") is ParameterSource.COMMANDLINE:
        return None
    for word in words:
        if os.path.isfile(word):  # noqa: PTH113 - Path.is_file raises if a name is too long
            return f"{word!r} is a file: did you mean {shell_command('--store', word)}?"
    return None


def _remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    ctx.meta[f"perdure.{param.name}"] = value


def keys_option(command: F) -> F:
    """Add `--keys` and `--key-store` to a command; whatever opens a store uses them."""
    command = click.option(
        "--key-store",
        envvar="PERDURE_KEY_STORE",
        metavar="URL",
        expose_value=False,
        callback=_remember,
        help="The store with the keys of an encrypted store, if they are elsewhere.",
    )(command)
    return click.option(
        "--keys",
        envvar="PERDURE_KEYS",
        metavar="SOURCE",
        expose_value=False,
        callback=_remember,
        help="Master key of an encrypted store, such as env:NAME or file:PATH.",
    )(command)


class GivenKeys(NamedTuple):
    """The master key that the command was given, and the backend of its key store, opened."""

    master: "MasterKey | None"
    key_backend: Backend | None

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `perdure.open`."""
        return {"keys": self.master, "key_store": self.key_backend}


def given_keys() -> GivenKeys:
    """Return the keys of `--keys` and `--key-store`; the caller closes the backend."""
    context = click.get_current_context(silent=True)
    options = context.meta if context is not None else {}
    source, address = options.get("perdure.keys"), options.get("perdure.key_store")
    master = None
    if source:
        from perdure.keys import master_key

        master = master_key(source)
    return GivenKeys(master, open_backend(require_existing(address)) if address else None)


def store_option(command: F) -> F:
    """Add `--store` to a command, and the options of encrypted stores."""
    return click.option(
        "--store",
        "address",
        envvar="PERDURE_URL",
        metavar="URL",
        help=f"Path or address of the store, such as sqlite:path. [default: PERDURE_URL, else "
        f"{DEFAULT_STORE} if it exists]",
    )(keys_option(command))


class RawCodec(Codec):
    """Leaves values as stored JSON trees: no application class is needed to show them."""

    def unpack(self, tree: Any, **_: object) -> Any:
        """Return the tree unchanged."""
        return tree


class OpenStore(NamedTuple):
    """A store opened for reading: its sessions, and its streams of entries."""

    store: Store
    backend: Backend

    @property
    def name(self) -> str:
        """The name of the store, safe to print."""
        return safe(self.backend.name)

    @property
    def settings(self) -> Settings:
        """The settings of the store, with its keys."""
        return self.store._unlock()  # noqa: SLF001 - the command lists heads, which a store does too

    def run(self, steps: Steps[T]) -> T:
        """Return the result of steps."""
        return self.store._run(steps)  # noqa: SLF001 - as above

    def reveal(self, head: Head) -> Head:
        """Return a head with its labels as callers gave them."""
        return self.settings.reveal(head)


@contextmanager
def open_store(address: str | None) -> Iterator[OpenStore]:
    """Open an existing store; close it when the block ends."""
    with opened(open_backend(require_existing(address))) as store:
        yield store


@contextmanager
def opened(backend: Backend) -> Iterator[OpenStore]:
    """Open the sessions of a backend; close it when the block ends."""
    settings = settings_of(None, time.time, verify_writes=False)._replace(codec=RawCodec())
    with Store(backend, settings, **given_keys()._asdict()) as store:
        yield OpenStore(store, backend)


def require_existing(address: str | None) -> str:
    if not address:
        if not Path(DEFAULT_STORE).exists():
            raise NoStoreNamedError(_no_store_text())
        address = DEFAULT_STORE
    if scheme_of(address)[0] == "memory":
        raise InvalidCallError("A memory store is empty when it is opened: use one on disk.")
    if path := path_of(address):
        _require_path(path, address)
    return without_migration(address)  # Postgres tables are not created either.


def refuse_memory(address: str) -> None:
    """Raise if an address names a store that does not outlive the command."""
    if scheme_of(address)[0] == "memory":
        raise InvalidCallError("A memory store is gone when the command ends: name one on disk.")


def _no_store_text() -> str:
    reason, url = f"Which store? There is no {DEFAULT_STORE} here", "URL"
    files = [path.name for path in Path().glob("*.db") if path.is_file()]
    if len(files) == 1:
        reason, url = f"{reason}, but there is {files[0]}", shell_word(files[0])
    return f"{reason}: give --store {url}, or set PERDURE_URL."


def _require_path(path: Path, address: str) -> None:
    if not path.exists():
        raise UnreadableStoreError(f"There is no store {address}: nothing was created.")
    if path.is_file() and path.stat().st_size == 0 and not Path(f"{path}-wal").exists():
        raise UnreadableStoreError(f"{address} is an empty file, not a store: nothing was changed.")


def printable_name(address: str) -> str:
    """Return an address without its password, wherever in the address that is."""
    name = server_name(address)
    return address if name is None else name


def without_password(address: str) -> str:
    """Return an address for the user to type again: complete except for the password."""
    name = server_name(address)
    if name is None:
        return address
    options = [
        option
        for option in address.partition("?")[2].split("&")
        if option.startswith(PRINTABLE_OPTIONS)
    ]
    return name + (("&" if "?" in name else "?") + "&".join(options) if options else "")


def require_head(source: OpenStore, session: str) -> Head:
    """Return the head of a session, deleted or not; raise with close matches if there is none.

    A session with entries but no head is damaged, not unknown: DamagedError.
    """
    head = find_head(source.backend, session)
    if head is not None:
        return source.reveal(head)
    if session and next(source.backend.read(session, limit=1, max_body=0), None) is not None:
        # The session may have been created between the two reads.
        if (head := find_head(source.backend, session)) is not None:
            return source.reveal(head)
        raise DamagedError(session, 0, "it has entries and no head")
    close = _close_matches(source.backend, session)
    hint = f" Close matches: {', '.join(map(repr, close))}." if close else ""
    raise NoMatchError(f"There is no session {session!r}.{hint} `perdure ls` lists them.")


def _close_matches(backend: Backend, session: str) -> list[str]:
    """Return the ids that share the longest prefix with a session id."""
    for length in range(len(session), 0, -1):
        heads = backend.streams(prefix=session[:length], without=[DELETED], limit=SUGGESTIONS_MAX)
        if ids := [head.stream for head in heads]:
            return ids
    return []


def read_sessions(
    source: OpenStore,
    session: str | None,
    labels: Collection[str],
    read: Callable[[Session], list[T]],
) -> Iterator[tuple[str, T | DamagedError]]:
    """Yield what `read` returns for one session, or for each with all these labels, by its id.

    If all are read, a damaged session yields its error instead.
    """
    if session is not None:
        with source.store.resume(require_head(source, session).stream) as opened:
            yield from ((session, item) for item in read(opened))
        return
    for head in list_heads(source.backend, labels=labels, without=[DELETED]):
        try:
            if isinstance(head, DamagedError):
                raise head
            with source.store.resume(head.stream) as opened:
                items: list[T | DamagedError] = [*read(opened)]
        except NotFoundError:
            continue  # Deleted since it was listed.
        except DamagedError as error:
            items = [error]
        yield from ((head.stream, item) for item in items)


def print_damage(session: str, error: DamagedError) -> None:
    """Report a damaged session among others."""
    echo(f"{safe(session)}: DAMAGED: {safe(error.reason)}", err=True, style="red")
