"""Turn an address into a store. This is the only module that knows which backends exist.

Addresses come in as text or paths; stores or backends go out. Backend modules are imported only
when an address needs them. Error texts never repeat an address that may contain a password.
"""

import os
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from perdure import events
from perdure.backends.guarantees import guarantees_of
from perdure.backends.protocol import AsyncBackend, Backend
from perdure.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from perdure.backends.postgres.address import PostgresAddress

# scheme → the module and class of its backend.
SCHEMES = {
    "files": ("perdure.backends.files.backend", "FilesBackend"),
    "memory": ("perdure.backends.memory", "MemoryBackend"),
    "postgresql": ("perdure.backends.postgres.backend", "PostgresBackend"),
    "redis": ("perdure.backends.redis.backend", "RedisBackend"),
    "rediss": ("perdure.backends.redis.backend", "RedisBackend"),
    "sqlite": ("perdure.backends.sqlite.backend", "SqliteBackend"),
}

# Schemes with an async driver; all others run in a thread (`ThreadedBackend`).
ASYNC_SCHEMES = {
    "postgresql": ("perdure.backends.postgres.backend_async", "AsyncPostgresBackend"),
    "redis": ("perdure.backends.redis.backend_async", "AsyncRedisBackend"),
    "rediss": ("perdure.backends.redis.backend_async", "AsyncRedisBackend"),
}

# scheme → the package to install for it.
PACKAGES = {
    "postgresql": "'perdure[postgres]'",
    "redis": "'perdure[redis]'",
    "rediss": "'perdure[redis]'",
    "sqlite": "apsw",
}

# Their classes take the whole address, not just a path.
SERVER_SCHEMES = frozenset({"postgresql", "redis", "rediss"})

ALIASES = {"postgres": "postgresql", "valkey": "redis", "valkeys": "rediss"}

ACCEPT_OPTION = "accept="

COMPRESS_OPTION = "compress="  # of SQLite stores


Address = str | os.PathLike[str]


def require_backend(backend: object) -> None:
    """Raise UsageError unless an object has the methods of a backend."""
    missing = [name for name in ("append", "read", "streams", "drop") if not hasattr(backend, name)]
    if missing:
        kind = type(backend).__name__
        hint = ": pass the address that it was opened with" if kind.endswith("Store") else ""
        raise UsageError(f"an address must be a str, a path or a backend, not {kind}{hint}")


def open_backend(address: Address) -> Backend:
    scheme, rest, accept = _parse_address(address)
    if scheme == "memory":
        if rest or accept:
            what = "a name" if rest else "an accept= option"
            raise UsageError(f"a memory store cannot have {what}: write just 'memory:'")
        return _load(scheme, *SCHEMES[scheme])()  # type: ignore[no-any-return]
    if not rest:
        what = "a directory" if scheme == "files" else "a file, such as 'agents.db'"
        raise UsageError(f"the path is empty: pass the name of {what}")
    cls = _load(scheme, *SCHEMES[scheme])
    options: dict[str, Any] = {"accept": accept} if accept else {}
    if scheme == "sqlite" and isinstance(address, str):
        values = _split_option(address, COMPRESS_OPTION)[1]
        options |= {"compress": values[-1]} if values else {}
    backend: Backend = cls(rest, **options)
    _emit_downgrades(backend)
    return backend


def open_async_backend(address: Address) -> AsyncBackend:
    scheme, rest, accept = _parse_address(address)
    if scheme not in ASYNC_SCHEMES:
        from perdure.backends.offload import ThreadedBackend

        return ThreadedBackend(open_backend(address))
    backend: AsyncBackend = _load(scheme, *ASYNC_SCHEMES[scheme])(rest, accept=accept)
    _emit_downgrades(backend)
    return backend


def _parse_address(address: Address) -> tuple[str, str, frozenset[str]]:
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
    if scheme in SERVER_SCHEMES:
        return scheme, f"{scheme}:{rest}", accept
    _require_plausible_path(scheme, rest)
    return scheme, rest, accept


def _load(scheme: str, module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        reason = f"{scheme}: stores need the package {error.name!r}, which is not installed"
        raise UnsupportedError(reason, f"pip install {PACKAGES.get(scheme, '')}") from error


def scheme_of(address: str) -> tuple[str, str]:
    """Return the canonical scheme of an address, and the rest without the options of a path.

    Raises UsageError for a path that looks like a server's address, perhaps with a password.
    """
    scheme, rest = _split_scheme(split_accept(address)[0])
    scheme = ALIASES.get(scheme, scheme)
    if scheme == "sqlite":
        rest = _split_option(rest, COMPRESS_OPTION)[0]
    _require_plain_path(address, rest if scheme in SCHEMES and scheme not in SERVER_SCHEMES else "")
    return scheme, rest


def path_of(address: Address) -> Path | None:
    """Return the path of a store on disk, None for any other store."""
    if not isinstance(address, str):
        return Path(address)
    scheme, rest = scheme_of(address)
    return Path(rest) if scheme in ("sqlite", "files") and rest else None


def server_name(address: str) -> str | None:
    """Return the name of a store on a server, without its password; None for any other store.

    UnsupportedError if the driver is not installed.
    """
    scheme, rest = scheme_of(address)
    if scheme not in SERVER_SCHEMES:
        return None
    package = "postgres" if scheme == "postgresql" else "redis"
    parse = _load(scheme, f"perdure.backends.{package}.address", "parse_address")
    name: str = parse(f"{scheme}:{rest}").name
    return name


def parse_postgres(address: str) -> "PostgresAddress":
    """Parse the address of a Postgres store; UnsupportedError if the driver is not installed."""
    scheme, rest = scheme_of(address)
    parse = _load(scheme, "perdure.backends.postgres.address", "parse_address")
    parsed: PostgresAddress = parse(f"{scheme}:{rest}")
    return parsed


def split_accept(address: str) -> tuple[str, frozenset[str]]:
    """Remove `accept=word,word` from an address's query; return the rest and the words."""
    rest, texts = _split_option(address, ACCEPT_OPTION)
    words = (word.strip() for word in ",".join(texts).split(","))
    return rest, frozenset(word for word in words if word)


def _split_option(address: str, option: str) -> tuple[str, list[str]]:
    """Remove an option from an address's query; return the rest and its values."""
    base, _, query = address.partition("?")
    pairs = query.split("&")
    values = [unquote(pair.removeprefix(option)) for pair in pairs if pair.startswith(option)]
    if not values:
        return address, []
    rest = "&".join(pair for pair in pairs if not pair.startswith(option))
    return base + (f"?{rest}" if rest else ""), values


def without_migration(address: str) -> str:
    """Return an address that creates no tables, unless it has its own `migrate=` option."""
    scheme, rest = scheme_of(address)
    if scheme != "postgresql" or "migrate=" in rest:
        return address
    return f"{address}{'&' if '?' in address else '?'}migrate=no"


def _emit_downgrades(backend: "Backend | AsyncBackend") -> None:
    for downgrade in guarantees_of(backend).accepted:
        fields = {"store": backend.name, "accepted": downgrade.name, "costs": downgrade.costs}
        events.emit("downgrade", fields)


_SCHEME_HINTS = {
    "file": "; a SQLite file is 'sqlite:path' or just its path",
    **dict.fromkeys(("s3", "gs"), "; object stores are not supported"),
}


# A path that was surely meant as a server's address, perhaps with a password. The patterns are
# anchored: deeper inside a path, `user=42` is a legitimate directory name.
_SERVER_ADDRESS = re.compile(
    r"""://
    | (?:^|[\s:;?&]) (?:host|hostaddr|dbname|user|\w*password) \s* =  # libpq's keywords
    | ^\W* (?:postgres(?:ql)?|rediss?|valkeys?) \W* //                # a colon is missing
    | ^\W* (?:postgres(?:ql)?|rediss?|valkeys?) \W .* : .* @
    | ^/* (?![a-z]:[\\/]) [^/\\:@]+ : .* @                             # user:password@host
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)


# Stricter, for texts that are not paths: a session's name may be some other kind of address.
_STORE_ADDRESS = re.compile(
    r"""(?<!\w) (?: (?:postgres(?:ql)?|rediss?|valkeys?) \W{0,3} // | (?:files|memory|sqlite) :// )
    | (?:^|[\s:;?&'"(]) \w*password \s* =""",
    re.IGNORECASE | re.VERBOSE,
)

_QUOTES = ('"', "'", "`", "\u201c", "\u201d", "\u2018", "\u2019")

_SERVER_SYNTAX = "write 'postgresql://user@host/database' for a server"


def looks_like_address(text: str) -> bool:
    """Return whether a text contains what looks like a store's address, perhaps with a password."""
    return _STORE_ADDRESS.search(text) is not None


def _require_plain_path(address: str, path: str) -> None:
    """Raise UsageError, without repeating the address, if it must not become a file name."""
    remedy = f"{_SERVER_SYNTAX}, or pass a Path if that is the name of a file"
    if address != address.strip() or path != path.strip():
        raise UsageError(f"the address begins or ends with white space: {remedy}")
    if address.startswith(_QUOTES) or path.startswith(_QUOTES) or path.endswith(_QUOTES):
        raise UsageError(f"the address begins or ends with a quote: remove the quotes, {remedy}")
    if _SERVER_ADDRESS.search(path):
        reason = "the path looks like a server's address (not shown, as it may have a password)"
        raise UsageError(f"{reason}: {remedy}")


def _require_plausible_path(scheme: str, rest: str) -> None:
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
        known = "'?accept=…'" + " and '?compress=zstd'" * (scheme == "sqlite")
        reason = f"unknown option {option!r}: a {scheme}: address can only have {known}"
        hint = "; if '?' is part of the file's name, pass a Path" if scheme == "sqlite" else ""
        raise UsageError(f"{reason}{hint}")
    if rest.startswith("~"):
        raise UsageError(f"'~' is not expanded: pass Path({rest!r}).expanduser()")


def _split_scheme(address: str) -> tuple[str, str]:
    """Split an address at its scheme. One letter and a colon is a Windows drive, not a scheme."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", address, re.DOTALL)
    if match is None:
        return "sqlite", address
    scheme, rest = match.groups()
    return scheme.lower(), rest
