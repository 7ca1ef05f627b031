"""The address of a Postgres store: what libpq is told, what is ours, and a name without secrets.

`postgresql://user:password@host:port/database?schema=perdure&sslmode=require`. What is not in
`OURS` is passed on to libpq, which also knows PGHOST, PGPASSWORD, ~/.pgpass and service files.
"""

import math
import re
from typing import Any, NamedTuple
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from perdure.errors import UsageError

OURS = ("schema", "tenant", "migrate", "patience", "wait", "connections")

PATIENCE = 30.0  # Seconds that one call waits, for a server that restarts or for an answer.
CONNECTIONS = 8  # One of them writes at a time; the others read.
LARGEST = 86_400  # Of any number in an address: a day, or more connections than a server has.
SHORT = 6  # Characters: a password of fewer is found in words that have nothing to do with it.
IDENTIFIER_BYTES_MAX = 63  # Postgres cuts longer names without a word.

# A server that vanished without a word is noticed: the defaults of Linux wait for two hours.
DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "perdure",
    "client_encoding": "utf8",
}

# What libpq takes; it would say no more than that it does not take another.
CHOICES = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": (
        *("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    ),
    "channel_binding": ("disable", "prefer", "require"),
    "gssencmode": ("disable", "prefer", "require"),
    "load_balance_hosts": ("disable", "random"),
}

EXAMPLE = "postgresql://user:password@host:5432/database?schema=perdure"


class Address(NamedTuple):
    """Where a store is and how it is to be used."""

    options: dict[str, Any]
    """What libpq is given; it may hold a password."""

    name: str
    schema: str
    tenant: str
    migrate: bool
    patience: float
    """Seconds that a call may take, server restarts included."""
    wait: float
    """Seconds that opening waits for a server that is not there yet."""
    connections: int

    def __repr__(self) -> str:
        return f"Address({self.name!r})"

    def hide(self, text: str) -> str:
        """Return a text of the driver's without the password.

        Neither libpq nor a server repeats one; should they ever do, it is not shown. A short one is
        part of many words, so it is looked for only where a password can stand.
        """
        secret = str(self.options.get("password") or "")
        if not secret or len(secret) >= SHORT:
            return text.replace(secret, "***") if secret else text
        place = rf"""(?<=[:='"]){re.escape(secret)}(?=[@&\s'"]|$)"""
        return re.sub(place, "***", text)


def parse(text: str) -> Address:
    """Return what an address says, or raise UsageError, which repeats nothing of a password."""
    base, _, query = text.partition("?")
    given: dict[str, str] = {}
    others = []
    for pair in query.split("&") if query else ():
        key, _, value = pair.partition("=")
        if key in OURS:
            given[key] = unquote(value)
        else:
            others.append(pair)
    try:
        options = conninfo_to_dict(base + ("?" + "&".join(others) if others else ""))
    except psycopg.Error:
        options = {}
    # The driver's own text may repeat the password, so it is not even kept as the cause. Nor is a
    # password with a bare @, / or ? in it taken for a host that is shown in messages.
    port = str(options.get("port") or "").replace(",", "")
    names = f"{options.get('host') or ''}{options.get('dbname') or ''}"
    if not options or "@" in names or (port and not port.isdecimal()):
        _require_known(base, others)
        reason = f"the address of the Postgres store can not be understood: write {EXAMPLE!r}"
        raise UsageError(f"{reason}, with special characters percent-encoded")
    _require_taken(options)
    schema = _identifier(given.get("schema", "perdure"))
    tenant = given.get("tenant", "")
    if "\0" in tenant:
        raise UsageError("a tenant has no NUL in its name")
    return Address(
        {**DEFAULTS, **options},
        _name(options, schema, tenant),
        schema,
        tenant,
        _choice("migrate", given.get("migrate", "yes"), {"yes": True, "no": False}),
        _number("patience", given.get("patience"), PATIENCE),
        0.0 if given.get("wait") == "0" else _number("wait", given.get("wait"), 0.0),
        int(_number("connections", given.get("connections"), CONNECTIONS)),
    )


def _require_known(base: str, words: list[str]) -> None:
    """Raise UsageError about a word that libpq does not know, if all else can be understood.

    What does not look like one may be a piece of a password.
    """
    try:
        conninfo_to_dict(base)
    except psycopg.Error:
        return
    known = {word.keyword.decode() for word in Conninfo.get_defaults()}
    keys = [word.partition("=")[0] for word in words]
    if strange := [key for key in keys if key not in known and key.isidentifier()]:
        reason = f"the address of a Postgres store has no word {strange[0]!r}"
        raise UsageError(f"{reason}: there are {', '.join(OURS)}, accept, and those of libpq")


def _require_taken(options: dict[str, Any]) -> None:
    """Raise UsageError about a value that libpq would not take, with those that it does."""
    for word, known in CHOICES.items():
        if (found := options.get(word)) and found not in known:
            values = f"{', '.join(known[:-1])} or {known[-1]}"
            raise UsageError(f"{word}={found!r} in the address must be {values}")
    try:
        int(options.get("connect_timeout") or 0)
    except ValueError:
        found = options["connect_timeout"]
        reason = f"connect_timeout={found!r} in the address must be a whole number of seconds"
        raise UsageError(reason) from None


def _name(options: dict[str, Any], schema: str, tenant: str) -> str:
    user, host = options.get("user"), options.get("host") or options.get("hostaddr") or ""
    port, database = options.get("port"), options.get("dbname") or ""
    where = (f"{user}@" if user else "") + str(host) + (f":{port}" if port else "")
    words = [f"schema={schema}"] if schema != "perdure" else []
    words += [f"tenant={tenant}"] if tenant else []
    # These say where it is as well: two stores of one name are taken for the same.
    if options.get("hostaddr") and options.get("host"):
        words.append(f"hostaddr={options['hostaddr']}")
    words += [f"service={options['service']}"] if options.get("service") else []
    return f"postgresql://{where}/{database}" + ("?" + "&".join(words) if words else "")


def _identifier(name: str) -> str:
    if not name or "\0" in name or len(name.encode()) > IDENTIFIER_BYTES_MAX:
        raise UsageError(f"schema {name!r} must have 1 to {IDENTIFIER_BYTES_MAX} bytes and no NUL")
    if name == "information_schema" or name.startswith("pg_"):
        raise UsageError(f"schema {name!r} belongs to Postgres itself: name one for perdure alone")
    return name


def _choice(key: str, given: str, known: dict[str, bool]) -> bool:
    if given not in known:
        raise UsageError(f"{key}={given!r} in the address must be {' or '.join(known)}")
    return known[given]


def _number(key: str, given: str | None, default: float) -> float:
    if given is None:
        return default
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    if not 0 < number <= LARGEST or (key == "connections" and number != int(number)):
        raise UsageError(f"{key}={given!r} in the address must be a positive number")
    return number


def quoted(identifier: str) -> str:
    """Return an identifier as SQL text."""
    return '"' + identifier.replace('"', '""').replace("%", "%%") + '"'
