"""An address comes in, a store goes out: the one place that knows which backends there are."""

import os
import re
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from perdure import events
from perdure.backend import AsyncBackend, Backend
from perdure.cipher import Plain, random_text
from perdure.codec import Codec
from perdure.errors import UnsupportedError, UsageError
from perdure.guarantees import guarantees_of
from perdure.settings import Settings
from perdure.store import Store
from perdure.tokens import counter_for
from perdure.typed import TypeCodec

if TYPE_CHECKING:
    from perdure.backends.postgres_address import Address as PostgresAddress
    from perdure.store_async import AsyncStore
    from perdure.tokens import Counter

# scheme → the module and class that serve it, and the package that they need.
SCHEMES = {
    "files": ("perdure.backends.files", "FilesBackend", ""),
    "memory": ("perdure.backends.memory", "MemoryBackend", ""),
    "postgresql": ("perdure.backends.postgres", "PostgresBackend", "perdure[postgres]"),
    "sqlite": ("perdure.backends.sqlite", "SqliteBackend", "apsw"),
}

# Of these the driver is async by itself; the others get a thread.
ASYNC = {
    "postgresql": (
        "perdure.backends.postgres_async",
        "AsyncPostgresBackend",
        "perdure[postgres]",
    ),
}
ADDRESSES = {
    "postgresql": ("perdure.backends.postgres_address", "parse", "perdure[postgres]"),
}
SERVERS = frozenset(("postgresql",))  # Their classes are given the whole address.
ALIASES = {"postgres": "postgresql"}
ACCEPT = "accept="

Address = str | os.PathLike[str]
Types = Mapping[str, type | TypeCodec]


def open(
    address: "Address | Backend",
    *,
    types: Types | None = None,
    clock: Callable[[], float] = time.time,
    verify_writes: bool = False,
    tokens: "str | Counter | None" = None,
) -> Store:
    """Open a store: a path, `files:directory`, `postgresql://…`, `memory:`, or a backend.

    A path is a SQLite file, as `sqlite:path` is; `memory:` is for tests. `types` names the caller's
    own classes that values may hold: dataclasses, pydantic models, or a TypeCodec. `clock` is where
    recorded times come from; nothing else depends on it. With `verify_writes` every append is read
    back and compared before it counts as stored. `tokens`, the name of a model or a Counter of
    one's own, has the tokens of messages counted as they are stored, so that windows need not count
    them again.

    What would break a promise of the store is UnsupportedError, unless the address accepts it by
    name: `sqlite:agents.db?accept=network-filesystem`. `Store.guarantees` tells what holds.
    """
    settings = settings_of(types, clock, verify_writes=verify_writes, tokens=tokens)
    if isinstance(address, str | os.PathLike):
        return Store(backend_of(address), settings)
    require_backend(address)
    _tell_downgrades(address)
    return Store(address, settings)


def open_async(
    address: "Address | AsyncBackend",
    *,
    types: Types | None = None,
    clock: Callable[[], float] = time.time,
    verify_writes: bool = False,
    tokens: "str | Counter | None" = None,
) -> "AsyncStore":
    """Open a store for code in an event loop; otherwise the same as `open`.

    It opens the file, or asks the server, at once: call it when the application starts. The methods
    of the store are awaited.
    """
    from perdure.store_async import AsyncStore

    settings = settings_of(types, clock, verify_writes=verify_writes, tokens=tokens)
    if isinstance(address, str | os.PathLike):
        return AsyncStore(async_backend_of(address), settings)
    require_backend(address)
    _tell_downgrades(address)
    return AsyncStore(address, settings)


def require_backend(given: object) -> None:
    missing = [name for name in ("append", "read", "streams", "drop") if not hasattr(given, name)]
    if missing:
        kind = type(given).__name__
        hint = ": give the address that it was opened with" if kind.endswith("Store") else ""
        raise UsageError(f"an address must be str, a path or a backend, not {kind}{hint}")


def settings_of(
    types: Types | None,
    clock: Callable[[], float],
    *,
    verify_writes: bool,
    tokens: "str | Counter | None" = None,
) -> Settings:
    return Settings(
        clock=clock,
        token=random_text,
        cipher=Plain(),
        codec=Codec(types),
        verify_writes=verify_writes,
        counter=counter_for(tokens) if isinstance(tokens, str) else _require_counter(tokens),
    )


def _require_counter(given: "Counter | None") -> "Counter | None":
    if given is not None and not (hasattr(given, "name") and hasattr(given, "count")):
        kind = type(given).__name__
        raise UsageError(f"tokens must be the name of a model or a counter, not {kind}")
    return given


def backend_of(address: Address) -> Backend:
    scheme, rest, accept = _taken_apart(address)
    if scheme == "memory":
        if rest or accept:
            what = repr(rest) if rest else "something to accept"
            raise UsageError(f"a memory store has no name, {what} was given: use 'memory:'")
        return _class(scheme, SCHEMES)()  # type: ignore[no-any-return]
    if not rest:
        what = "a directory" if scheme == "files" else "a file, such as 'agents.db'"
        raise UsageError(f"the path is empty: give the name of {what}")
    cls = _class(scheme, SCHEMES)
    backend: Backend = cls(rest, accept=accept) if accept else cls(rest)
    _tell_downgrades(backend)
    return backend


def async_backend_of(address: Address) -> AsyncBackend:
    scheme, rest, accept = _taken_apart(address)
    if scheme not in ASYNC:
        from perdure.backends.offload import Offload

        return Offload(backend_of(address))
    backend: AsyncBackend = _class(scheme, ASYNC)(rest, accept=accept)
    _tell_downgrades(backend)
    return backend


def _taken_apart(address: Address) -> tuple[str, str, frozenset[str]]:
    """Return a known scheme, what its class is given, and which weaknesses are accepted."""
    text = os.fspath(address)
    if isinstance(text, bytes):
        raise UsageError("a path must be str, not bytes: decode it with os.fsdecode")
    if not isinstance(address, str):
        return "sqlite", text, frozenset()
    scheme, rest = scheme_of(text)
    accept = split_accept(text)[1]
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}:" for name in SCHEMES)
        hint = _SCHEME_HINTS.get(scheme, "")
        raise UsageError(
            f"unknown scheme {scheme + ':'!r}: perdure knows {known} and plain paths{hint}"
        )
    if scheme in SERVERS:
        return scheme, f"{scheme}:{rest}", accept
    _require_meant(scheme, rest)
    return scheme, rest, accept


def _class(scheme: str, classes: Mapping[str, tuple[str, str, str]]) -> Any:
    module, name, package = classes[scheme]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        shown = repr(package) if "[" in package else package
        hint = f"they need the package {error.name!r}: pip install {shown}"
        raise UnsupportedError(f"{scheme}: stores", hint) from error


def scheme_of(address: str) -> tuple[str, str]:
    """Return the scheme of an address, by its usual name, and the rest but for what it accepts.

    UsageError for what is no address of a file, and perhaps one of a server with its password.
    """
    scheme, rest = _parse(split_accept(address)[0])
    scheme = ALIASES.get(scheme, scheme)
    _require_bare(address, rest if scheme in SCHEMES and scheme not in SERVERS else "")
    return scheme, rest


def path_of(address: Address) -> Path | None:
    """Return the path of a store on disk, None for any other."""
    if not isinstance(address, str):
        return Path(address)
    scheme, rest = scheme_of(address)
    return Path(rest) if scheme in ("sqlite", "files") and rest else None


def postgres_of(address: str) -> "PostgresAddress":
    """Take the address of a Postgres store apart; UnsupportedError without its driver."""
    scheme, rest = scheme_of(address)
    found: PostgresAddress = _class(scheme, ADDRESSES)(f"{scheme}:{rest}")
    return found


def split_accept(address: str) -> tuple[str, frozenset[str]]:
    """Take `accept=word,word` out of the query of an address: which weaknesses are accepted."""
    base, _, query = address.partition("?")
    pairs = query.split("&")
    rest = "&".join(pair for pair in pairs if not pair.startswith(ACCEPT))
    if rest == query:
        return address, frozenset()
    given = [unquote(pair.removeprefix(ACCEPT)) for pair in pairs if pair.startswith(ACCEPT)]
    words = (word.strip() for word in ",".join(given).split(","))
    return base + (f"?{rest}" if rest else ""), frozenset(word for word in words if word)


def not_making(address: str) -> str:
    """Return an address that makes no tables, unless it says itself that it may."""
    scheme, rest = scheme_of(address)
    if scheme not in SERVERS or "migrate=" in rest:
        return address
    return f"{address}{'&' if '?' in address else '?'}migrate=no"


def _tell_downgrades(backend: "Backend | AsyncBackend") -> None:
    for one in guarantees_of(backend).accepted:
        fields = {"store": backend.name, "accepted": one.name, "costs": one.costs}
        events.tell("downgrade", fields)


_SERVER = "; Postgres is the only server so far, and there are no object stores"
_SCHEME_HINTS = {
    "file": "; a SQLite file is 'sqlite:path' or just its path",
    **dict.fromkeys(("redis", "rediss", "s3", "gs"), _SERVER),
}


# What stands in the place of a path and was surely meant for a server, perhaps with a password.
# Further inside, `user=42` is the name of a directory.
_FOR_A_SERVER = re.compile(
    r"""://
    | (?:^|[\s:;?&]) (?:host|hostaddr|dbname|user|\w*password) \s* =  # as libpq takes it
    | ^\W* postgres(?:ql)? \W* //                                     # a colon was forgotten
    | ^\W* postgres(?:ql)? \W .* : .* @
    | ^/* (?![a-z]:[\\/]) [^/\\:@]+ : .* @                             # user:password@host
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)

# The same where a path is not expected: the names of sessions may be addresses of something else.
_STORE = re.compile(
    r"""(?<!\w) (?: postgres(?:ql)? \W{0,3} // | (?:files|memory|sqlite) :// )
    | (?:^|[\s:;?&'"(]) \w*password \s* =""",
    re.IGNORECASE | re.VERBOSE,
)
_QUOTES = ('"', "'", "`", "\u201c", "\u201d", "\u2018", "\u2019")
_WRITE = "write 'postgresql://user@host/database' for a server"


def holds_address(text: str) -> bool:
    """Whether a text holds what looks like the address of a store, perhaps with a password."""
    return _STORE.search(text) is not None


def _require_bare(address: str, path: str) -> None:
    """Raise UsageError, which repeats nothing, for what must not become the name of a file."""
    remedy = f"{_WRITE}, or give a Path if that is the name of a file"
    if address != address.strip() or path != path.strip():
        raise UsageError(f"the address begins or ends with white space: {remedy}")
    if address.startswith(_QUOTES) or path.startswith(_QUOTES) or path.endswith(_QUOTES):
        raise UsageError(f"the address begins or ends with a quote: without quotes, {remedy}")
    if _FOR_A_SERVER.search(path):
        reason = "the address looks like that of a server, so it is not repeated here"
        raise UsageError(f"{reason}: {remedy}")


def _require_meant(scheme: str, rest: str) -> None:
    """Refuse what is legal as a path, but surely meant as something else."""
    if rest in (":memory:", "memory") and scheme == "sqlite":
        raise UsageError("a store in memory is 'memory:'; for a file of that name give a Path")
    if scheme in ("sqlite", "files") and rest.startswith("//"):
        path = rest.lstrip("/")
        raise UsageError(
            f"write {scheme + ':' + path!r}, or {scheme + ':/' + path!r} from the root"
        )
    if "?" in rest:
        option = rest[rest.index("?") :]
        reason = f"unknown option {option!r}: the address of a {scheme} store knows '?accept=…'"
        hint = "; if that is its name, give a Path" if scheme == "sqlite" else ""
        raise UsageError(f"{reason} only{hint}")
    if rest.startswith("~"):
        raise UsageError(f"'~' is not expanded: give Path({rest!r}).expanduser()")


def _parse(address: str) -> tuple[str, str]:
    """Split an address. One letter and a colon is a drive, not a scheme."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", address, re.DOTALL)
    if match is None:
        return "sqlite", address
    scheme, rest = match.groups()
    return scheme.lower(), rest
