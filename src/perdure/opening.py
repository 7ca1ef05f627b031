"""Turn an address into a store. This is the only module that knows which backends exist.

Addresses come in as text or paths; stores or backends go out. Backend modules are imported only
when an address needs them. Error texts never repeat an address that may contain a password.
"""

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

# scheme → the module and class of its backend, and the package to install for it.
SCHEMES = {
    "files": ("perdure.backends.files", "FilesBackend", ""),
    "memory": ("perdure.backends.memory", "MemoryBackend", ""),
    "postgresql": ("perdure.backends.postgres", "PostgresBackend", "perdure[postgres]"),
    "sqlite": ("perdure.backends.sqlite", "SqliteBackend", "apsw"),
}

# Schemes with an async driver; all others run in a thread (`Offload`).
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
SERVERS = frozenset(("postgresql",))  # Their classes take the whole address, not only a path.
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

    A path is a SQLite file, as is `sqlite:path`; `memory:` is for tests. `types` registers the
    caller's own classes that values may hold: dataclasses, pydantic models, or a TypeCodec. `clock`
    returns the recorded times, in seconds since 1970; nothing else depends on it. With
    `verify_writes` every append is read back and compared before it counts as stored. `tokens`, a
    model's name or a custom Counter, counts the tokens of messages as they are stored, so that
    windows need not count them again.

    A setting that would break a promise of the store raises UnsupportedError, unless the address
    accepts it by name: `sqlite:agents.db?accept=network-filesystem`. `Store.guarantees` lists what
    is guaranteed.
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

    The call itself blocks: it opens the file, or connects to the server, at once. Call it when the
    application starts. The methods of the store are awaited.
    """
    from perdure.store_async import AsyncStore

    settings = settings_of(types, clock, verify_writes=verify_writes, tokens=tokens)
    if isinstance(address, str | os.PathLike):
        return AsyncStore(async_backend_of(address), settings)
    require_backend(address)
    _tell_downgrades(address)
    return AsyncStore(address, settings)


def require_backend(backend: object) -> None:
    """Raise UsageError unless an object has the methods of a backend."""
    missing = [name for name in ("append", "read", "streams", "drop") if not hasattr(backend, name)]
    if missing:
        kind = type(backend).__name__
        hint = ": pass the address that it was opened with" if kind.endswith("Store") else ""
        raise UsageError(f"an address must be a str, a path or a backend, not {kind}{hint}")


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


def _require_counter(counter: "Counter | None") -> "Counter | None":
    if counter is not None and not (hasattr(counter, "name") and hasattr(counter, "count")):
        kind = type(counter).__name__
        raise UsageError(f"tokens must be the name of a model or a Counter, not {kind}")
    return counter


def backend_of(address: Address) -> Backend:
    scheme, rest, accept = _taken_apart(address)
    if scheme == "memory":
        if rest or accept:
            what = "a name" if rest else "an accept= option"
            raise UsageError(f"a memory store cannot have {what}: write just 'memory:'")
        return _class(scheme, SCHEMES)()  # type: ignore[no-any-return]
    if not rest:
        what = "a directory" if scheme == "files" else "a file, such as 'agents.db'"
        raise UsageError(f"the path is empty: pass the name of {what}")
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
    """Split an address into scheme, argument for its backend class, and accepted weaknesses."""
    text = os.fspath(address)
    if isinstance(text, bytes):
        raise UsageError("a path must be a str, not bytes: decode it with os.fsdecode")
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
        hint = f"pip install {shown}"
        reason = f"{scheme}: stores need the package {error.name!r}, which is not installed"
        raise UnsupportedError(reason, hint) from error


def scheme_of(address: str) -> tuple[str, str]:
    """Return the canonical scheme of an address, and the rest without its `accept=` option.

    Raises UsageError for a path that looks like a server's address, perhaps with a password.
    """
    scheme, rest = _parse(split_accept(address)[0])
    scheme = ALIASES.get(scheme, scheme)
    _require_bare(address, rest if scheme in SCHEMES and scheme not in SERVERS else "")
    return scheme, rest


def path_of(address: Address) -> Path | None:
    """Return the path of a store on disk, None for any other store."""
    if not isinstance(address, str):
        return Path(address)
    scheme, rest = scheme_of(address)
    return Path(rest) if scheme in ("sqlite", "files") and rest else None


def postgres_of(address: str) -> "PostgresAddress":
    """Parse the address of a Postgres store; UnsupportedError if the driver is not installed."""
    scheme, rest = scheme_of(address)
    parsed: PostgresAddress = _class(scheme, ADDRESSES)(f"{scheme}:{rest}")
    return parsed


def split_accept(address: str) -> tuple[str, frozenset[str]]:
    """Remove `accept=word,word` from an address's query; return the rest and the words."""
    base, _, query = address.partition("?")
    pairs = query.split("&")
    rest = "&".join(pair for pair in pairs if not pair.startswith(ACCEPT))
    if rest == query:
        return address, frozenset()
    options = [unquote(pair.removeprefix(ACCEPT)) for pair in pairs if pair.startswith(ACCEPT)]
    words = (word.strip() for word in ",".join(options).split(","))
    return base + (f"?{rest}" if rest else ""), frozenset(word for word in words if word)


def not_making(address: str) -> str:
    """Return an address that creates no tables, unless it has its own `migrate=` option."""
    scheme, rest = scheme_of(address)
    if scheme not in SERVERS or "migrate=" in rest:
        return address
    return f"{address}{'&' if '?' in address else '?'}migrate=no"


def _tell_downgrades(backend: "Backend | AsyncBackend") -> None:
    for downgrade in guarantees_of(backend).accepted:
        fields = {"store": backend.name, "accepted": downgrade.name, "costs": downgrade.costs}
        events.tell("downgrade", fields)


_SERVER = "; Postgres is the only supported server, and object stores are not supported"
_SCHEME_HINTS = {
    "file": "; a SQLite file is 'sqlite:path' or just its path",
    **dict.fromkeys(("redis", "rediss", "s3", "gs"), _SERVER),
}


# A path that was surely meant as a server's address, perhaps with a password. The patterns are
# anchored: deeper inside a path, `user=42` is a legitimate directory name.
_FOR_A_SERVER = re.compile(
    r"""://
    | (?:^|[\s:;?&]) (?:host|hostaddr|dbname|user|\w*password) \s* =  # libpq's keywords
    | ^\W* postgres(?:ql)? \W* //                                     # a colon is missing
    | ^\W* postgres(?:ql)? \W .* : .* @
    | ^/* (?![a-z]:[\\/]) [^/\\:@]+ : .* @                             # user:password@host
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)

# Stricter, for texts that are not paths: a session's name may be some other kind of address.
_STORE = re.compile(
    r"""(?<!\w) (?: postgres(?:ql)? \W{0,3} // | (?:files|memory|sqlite) :// )
    | (?:^|[\s:;?&'"(]) \w*password \s* =""",
    re.IGNORECASE | re.VERBOSE,
)
_QUOTES = ('"', "'", "`", "\u201c", "\u201d", "\u2018", "\u2019")
_WRITE = "write 'postgresql://user@host/database' for a server"


def holds_address(text: str) -> bool:
    """Return whether a text contains what looks like a store's address, perhaps with a password."""
    return _STORE.search(text) is not None


def _require_bare(address: str, path: str) -> None:
    """Raise UsageError, without repeating the address, if it must not become a file name."""
    remedy = f"{_WRITE}, or pass a Path if that is the name of a file"
    if address != address.strip() or path != path.strip():
        raise UsageError(f"the address begins or ends with white space: {remedy}")
    if address.startswith(_QUOTES) or path.startswith(_QUOTES) or path.endswith(_QUOTES):
        raise UsageError(f"the address begins or ends with a quote: remove the quotes, {remedy}")
    if _FOR_A_SERVER.search(path):
        reason = "the path looks like a server's address (not shown, as it may have a password)"
        raise UsageError(f"{reason}: {remedy}")


def _require_meant(scheme: str, rest: str) -> None:
    """Raise UsageError for a legal path that was surely meant as something else."""
    if rest in (":memory:", "memory") and scheme == "sqlite":
        raise UsageError("a store in memory is 'memory:'; for a file of that name pass a Path")
    if scheme in ("sqlite", "files") and rest.startswith("//"):
        path = rest.lstrip("/")
        raise UsageError(
            f"{scheme}: addresses have no '//': write {scheme + ':' + path!r} for a relative path,"
            f" {scheme + ':/' + path!r} for an absolute one"
        )
    if "?" in rest:
        option = rest[rest.index("?") :]
        reason = f"unknown option {option!r}: a {scheme}: address can only have '?accept=…'"
        hint = "; if '?' is part of the file's name, pass a Path" if scheme == "sqlite" else ""
        raise UsageError(f"{reason}{hint}")
    if rest.startswith("~"):
        raise UsageError(f"'~' is not expanded: pass Path({rest!r}).expanduser()")


def _parse(address: str) -> tuple[str, str]:
    """Split an address at its scheme. One letter and a colon is a Windows drive, not a scheme."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", address, re.DOTALL)
    if match is None:
        return "sqlite", address
    scheme, rest = match.groups()
    return scheme.lower(), rest
