"""Parse the address of a Postgres store into libpq options, our options and a name without secrets.

`postgresql://user:password@host:port/database?schema=perdure&sslmode=require`. Parameters not in
`OWN_PARAMETERS` are passed to libpq, which also reads PGHOST, PGPASSWORD, ~/.pgpass and service
files.

Editing: no error text or name may contain a password.
"""

import math
import re
from typing import Any, NamedTuple
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from perdure.errors import UsageError

OWN_PARAMETERS = ("schema", "tenant", "migrate", "timeout", "wait", "connections")


TIMEOUT = 30.0  # seconds that one call waits for an answer or for a restarting server

CONNECTIONS = 8  # per process; one of them writes at a time, the others read

NUMBER_MAX = 86_400  # of any number in an address: a day in seconds, or too many connections

SHORT_PASSWORD = 6  # characters; a shorter password also occurs in unrelated words

IDENTIFIER_BYTES_MAX = 63  # bytes; Postgres silently truncates longer names


# Keepalives detect a server that vanished; with the defaults of Linux that takes two hours.
LIBPQ_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "perdure",
    "client_encoding": "utf8",
}


# The values that libpq accepts: its own error does not list them.
ALLOWED_VALUES = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": (
        "any",
        "read-write",
        "read-only",
        "primary",
        "standby",
        "prefer-standby",
    ),
    "channel_binding": ("disable", "prefer", "require"),
    "gssencmode": ("disable", "prefer", "require"),
    "load_balance_hosts": ("disable", "random"),
}


EXAMPLE = "postgresql://user:password@host:5432/database?schema=perdure"


class HiddenOptions:
    """Connection options for libpq, which may contain a password.

    Not a dict, because error trackers show the local variables of every frame, and look inside
    dicts and tuples.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.reveal = options.copy
        """Return the options."""


class PostgresAddress(NamedTuple):
    """Location of a store and its options. `repr` shows no secret, nor do its fields."""

    options: HiddenOptions

    name: str
    schema: str
    tenant: str
    migrate: bool
    timeout: float
    """Seconds that a call may take, server restarts included."""
    wait: float
    """Seconds that opening waits for a server that is not up yet."""
    connections: int

    def __repr__(self) -> str:
        return f"Address({self.name!r})"

    def hide(self, text: str) -> str:
        """Return a text of the driver with the password masked.

        Neither libpq nor a server repeats a password; this is a second line of defense. A short one
        occurs in unrelated words, so it is masked only where a password can appear.
        """
        secret = str(self.options.reveal().get("password") or "")
        if not secret or len(secret) >= SHORT_PASSWORD:
            return text.replace(secret, "***") if secret else text
        pattern = rf"""(?<=[:='"]){re.escape(secret)}(?=[@&\s'"]|$)"""
        return re.sub(pattern, "***", text)


def parse_address(text: str) -> PostgresAddress:
    """Parse an address; a UsageError about it never repeats a password."""
    base, _, query = text.partition("?")
    own_options: dict[str, str] = {}
    libpq_pairs = []
    for pair in query.split("&") if query else ():
        key, _, value = pair.partition("=")
        if key in OWN_PARAMETERS:
            own_options[key] = unquote(value)
        else:
            libpq_pairs.append(pair)
    try:
        options = conninfo_to_dict(base + ("?" + "&".join(libpq_pairs) if libpq_pairs else ""))
    except psycopg.Error:
        options = {}
    # The driver's error may repeat the password, so it is not even chained as the cause. And a
    # password with a bare @, / or ? must not be parsed as a host, which messages show.
    port = str(options.get("port") or "").replace(",", "")
    names = f"{options.get('host') or ''}{options.get('dbname') or ''}"
    if not options or "@" in names or (port and not port.isdecimal()):
        _require_known_parameters(base, libpq_pairs)
        reason = f"the address of the Postgres store cannot be parsed: write {EXAMPLE!r}"
        raise UsageError(f"{reason}, with special characters percent-encoded")
    _require_valid_values(options)
    schema = _check_identifier(own_options.get("schema", "perdure"))
    tenant, wait = own_options.get("tenant", ""), own_options.get("wait")
    migrate = own_options.get("migrate", "yes")
    if migrate not in ("yes", "no"):
        raise UsageError(f"migrate={migrate!r} in the address must be yes or no")
    if "\0" in tenant:
        raise UsageError("the name of a tenant must not contain NUL")
    return PostgresAddress(
        HiddenOptions({**LIBPQ_DEFAULTS, **options}),
        _display_name(options, schema, tenant),
        schema,
        tenant,
        migrate == "yes",
        _parse_number("timeout", own_options.get("timeout"), TIMEOUT),
        _parse_number("wait", None if wait == "0" else wait, 0.0),
        int(_parse_number("connections", own_options.get("connections"), CONNECTIONS)),
    )


def _require_known_parameters(base: str, pairs: list[str]) -> None:
    """Raise UsageError about an unknown parameter, if the rest of the address can be parsed.

    Text that does not look like a parameter name may be part of a password and is not repeated.
    """
    try:
        conninfo_to_dict(base)
    except psycopg.Error:
        return
    libpq_keywords = {pair.keyword.decode() for pair in Conninfo.get_defaults()}
    keys = [pair.partition("=")[0] for pair in pairs]
    if unknown := [key for key in keys if key not in libpq_keywords and key.isidentifier()]:
        reason = f"the address of a Postgres store has no parameter {unknown[0]!r}"
        raise UsageError(f"{reason}: use {', '.join(OWN_PARAMETERS)}, accept, or those of libpq")


def _require_valid_values(options: dict[str, Any]) -> None:
    """Raise UsageError for a value that libpq would reject, listing the accepted ones."""
    for keyword, allowed in ALLOWED_VALUES.items():
        if (value := options.get(keyword)) and value not in allowed:
            choices = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
            raise UsageError(f"{keyword}={value!r} in the address must be {choices}")
    try:
        int(options.get("connect_timeout") or 0)
    except ValueError:
        value = options["connect_timeout"]
        reason = f"connect_timeout={value!r} in the address must be a whole number of seconds"
        raise UsageError(reason) from None


def _display_name(options: dict[str, Any], schema: str, tenant: str) -> str:
    user, host = options.get("user"), options.get("host") or options.get("hostaddr") or ""
    port, database = options.get("port"), options.get("dbname") or ""
    where = (f"{user}@" if user else "") + str(host) + (f":{port}" if port else "")
    parameters = [f"schema={schema}"] if schema != "perdure" else []
    parameters += [f"tenant={tenant}"] if tenant else []
    # These are part of the location too: two stores with one name count as the same store.
    if options.get("hostaddr") and options.get("host"):
        parameters.append(f"hostaddr={options['hostaddr']}")
    parameters += [f"service={options['service']}"] if options.get("service") else []
    return f"postgresql://{where}/{database}" + ("?" + "&".join(parameters) if parameters else "")


def _check_identifier(name: str) -> str:
    if not name or "\0" in name or len(name.encode()) > IDENTIFIER_BYTES_MAX:
        raise UsageError(f"schema {name!r} must have 1 to {IDENTIFIER_BYTES_MAX} bytes and no NUL")
    if name == "information_schema" or name.startswith("pg_"):
        raise UsageError(f"schema {name!r} belongs to Postgres itself: name one for perdure alone")
    return name


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


def quote_identifier(identifier: str) -> str:
    """Return an identifier quoted for SQL text. Statements with parameters need `%` doubled."""
    return '"' + identifier.replace('"', '""') + '"'
