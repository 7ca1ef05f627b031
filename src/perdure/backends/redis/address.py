"""Parse the address of a Redis or Valkey store into connection options and a name without secrets.

`redis://user:password@host:6379/0?tenant=acme&replicas=1`; `rediss://` is the same with TLS.
Several hosts, separated by commas, are nodes of one cluster: it is enough to reach one of them. A
host that begins with `/` (percent-encoded) is the path of a Unix socket.

Editing: no error text or name may contain a password.
"""

import math
import re
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

from perdure.errors import UsageError

PORT = 6379

TIMEOUT = 30.0  # seconds that one call waits for an answer or for a failover

CONNECTIONS = 8  # per process and node

CONNECT_TIMEOUT = 10.0  # seconds; a server that accepts no connection for longer counts as down

NUMBER_MAX = 86_400  # of any number in an address: a day in seconds, or too many connections

REPLICAS_MAX = 16  # more than any primary has

DATABASE_MAX = 10_000

OWN_OPTIONS = ("prefix", "tenant", "timeout", "wait", "connections", "replicas", "ack")

TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")  # as in redis-py

EXAMPLE = "redis://user:password@host:6379/0?tenant=acme"


class Node(NamedTuple):
    """A server process: a host and a port, or the path of a socket and 0."""

    host: str
    port: int

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class HiddenLogin:
    """The user and the password. Not a dict: error trackers look inside of those."""

    def __init__(self, user: str, password: str) -> None:
        self.reveal = {"username": user or None, "password": password or None}.copy
        """Return the options of the login."""


class RedisAddress(NamedTuple):
    """Location of a store and its options. `repr` shows no secret, nor do its fields."""

    login: HiddenLogin
    nodes: tuple[Node, ...]
    """Where to connect first; the nodes of a cluster name the others."""
    database: int
    tls: dict[str, Any] | None
    name: str
    prefix: str
    tenant: str
    timeout: float
    """Seconds that a call may take, failovers included."""
    wait: float
    """Seconds that opening waits for a server that is not up yet."""
    connections: int
    replicas: int
    """Replicas that confirm each write."""
    ack: Literal["disk", "memory"]
    """Where a replica has a write when it confirms it; `disk` needs `WAITAOF`."""

    def __repr__(self) -> str:
        return f"Address({self.name!r})"

    def hide(self, text: str) -> str:
        """Return a text of the driver with the password masked; servers do not repeat it."""
        secret = self.login.reveal()["password"]
        return text.replace(secret, "***") if secret else text


def parse_address(text: str) -> RedisAddress:
    """Parse an address; a UsageError about it never repeats a password."""
    match = re.fullmatch(r"(rediss?)://(?:([^@/?]*)@)?([^@/?]*)(?:/([^@/?]*))?(?:\?(.*))?", text)
    if match is None:
        raise _unreadable()
    scheme, login, hosts, path, query = match.groups(default="")
    user, _, password = login.partition(":")
    options = _parse_options(query)
    nodes = tuple(_parse_node(host) for host in hosts.split(","))
    if path and not (path.isdecimal() and int(path) <= DATABASE_MAX):
        raise UsageError(f"the database of a Redis store must be a number: write {EXAMPLE!r}")
    prefix = options.get("prefix", "perdure")
    if not re.fullmatch(r"[\w.-]{1,64}", prefix, re.ASCII):
        raise UsageError(
            f"prefix={prefix!r} in the address may have letters, digits, '_', '-', '.'"
        )
    ack = options.get("ack", "disk")
    if ack not in ("disk", "memory"):
        raise UsageError(f"ack={ack!r} in the address must be disk or memory")
    wait = options.get("wait")
    return RedisAddress(
        HiddenLogin(unquote(user), unquote(password)),
        nodes,
        int(path or 0),
        _tls_options(scheme, options),
        _display_name(scheme, unquote(user), nodes, int(path or 0), options),
        prefix,
        options.get("tenant", ""),
        _parse_number("timeout", options.get("timeout"), TIMEOUT),
        _parse_number("wait", None if wait == "0" else wait, 0.0),
        int(_parse_number("connections", options.get("connections"), CONNECTIONS)),
        _parse_replicas(options.get("replicas", "0")),
        "memory" if ack == "memory" else "disk",
    )


def _unreadable() -> UsageError:
    reason = f"the address of the Redis store cannot be parsed: write {EXAMPLE!r}"
    return UsageError(f"{reason}, with special characters percent-encoded")


def _parse_options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        key, _, value = pair.partition("=")
        if key not in (*OWN_OPTIONS, *TLS_OPTIONS):
            # It may be the rest of a password with a bare `?`, which no message repeats.
            what = f"no option {key!r}" if key.isidentifier() and value else "an unknown option"
            known = ", ".join((*OWN_OPTIONS, "accept", *TLS_OPTIONS))
            raise UsageError(f"the address of a Redis store has {what}: use {known}")
        options[key] = unquote(value)
    return options


def _parse_node(text: str) -> Node:
    host = unquote(text)
    if host.startswith("/"):
        return Node(host, 0)
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]*)(?::(\d{1,5}))?", host)
    if match is None:
        raise _unreadable()
    name, port = match.groups()
    return Node(name.strip("[]") or "localhost", int(port or PORT))


def _tls_options(scheme: str, options: dict[str, str]) -> dict[str, Any] | None:
    given = {key: value for key, value in options.items() if key in TLS_OPTIONS}
    if scheme == "redis":
        if given:
            raise UsageError(f"{min(given)} needs TLS: write rediss:// in place of redis://")
        return None
    if given.get("ssl_cert_reqs", "required") not in ("required", "optional", "none"):
        raise UsageError("ssl_cert_reqs in the address must be required, optional or none")
    if given.get("ssl_cert_reqs") == "none":
        return {**given, "ssl_check_hostname": False}
    return given


def _display_name(
    scheme: str, user: str, nodes: tuple[Node, ...], database: int, options: dict[str, str]
) -> str:
    where = (f"{user}@" if user else "") + ",".join(map(str, nodes))
    parameters = [f"{key}={options[key]}" for key in ("prefix", "tenant") if options.get(key)]
    return f"{scheme}://{where}/{database}" + ("?" + "&".join(parameters) if parameters else "")


def _parse_replicas(value: str) -> int:
    if not value.isdecimal() or int(value) > REPLICAS_MAX:
        raise UsageError(f"replicas={value!r} in the address must be 0 to {REPLICAS_MAX}")
    return int(value)


def _parse_number(key: str, value: str | None, default: float) -> float:
    if value is None:
        return default
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number <= NUMBER_MAX or (key == "connections" and number != int(number)):
        raise UsageError(f"{key}={value!r} in the address must be a positive number")
    return number
