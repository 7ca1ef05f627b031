"""Judge what a Postgres server guarantees, from its settings and its tables. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from perdure.backends.guarantees import Acceptance, Check, Guarantees, Survives, weakest
from perdure.backends.postgres.migrations import ServerInfo
from perdure.errors import UnsupportedError

FSYNC = "fsync-off"

FULL_PAGE_WRITES = "full-page-writes-off"

DATA_SYNC_RETRY = "data-sync-retry-on"

UNLOGGED = "unlogged-tables"

ACCEPTABLE = {
    FSYNC: "a crash of the server's machine can lose or damage what was acknowledged",
    FULL_PAGE_WRITES: "a crash of the server's machine can damage what was acknowledged",
    DATA_SYNC_RETRY: "a write that fails once on the server's disk can be lost without an error",
    UNLOGGED: "a crash of the server, even of its process alone, loses every session",
}

"""Weaknesses that the caller of a Postgres store may accept, and what each means."""


class _WeakSetting(NamedTuple):
    """A weak setting: the value that may lose data, the right value, and the word to accept it."""

    value: str
    right: str
    word: str


_WEAK_SETTINGS = {
    "fsync": _WeakSetting("off", "on", FSYNC),
    "full_page_writes": _WeakSetting("off", "on", FULL_PAGE_WRITES),
    "data_sync_retry": _WeakSetting("on", "off", DATA_SYNC_RETRY),
}


def store_guarantees(server: ServerInfo, acceptance: Acceptance, name: str) -> Guarantees:
    """Return a server's guarantees; UnsupportedError if it is too weak and not accepted."""
    _require_durable(server, acceptance, name)
    checks = [
        Check(server.engine, server.release),
        _connection_check(server),
        _synchronous_commit_check(server),
        *(_setting_check(setting, getattr(server, setting), server) for setting in _WEAK_SETTINGS),
        _tables_check(server),
    ]
    survives: Survives = "process death" if weakest(checks) == "weak" else "power loss"
    detail = f"{server.engine}, its log synced before each answer"
    if survives != "power loss":
        detail = f"{server.engine}, without what it needs to survive a crash"
    if server.read_only or server.standby:
        reason = "a standby" if server.standby else "transaction_read_only is on"
        advice = "connect to the primary to write: ?target_session_attrs=read-write"
        checks.append(Check("writing", f"read-only: {reason}", "unknown", advice))
        detail = f"{server.engine}, for reading only"
        if server.standby:
            detail = f"{server.engine}, a standby: it may be behind the primary"
    elif server.missing_privileges:
        advice = "grant it, unless this user is meant to lack it"
        checks.append(
            Check("writing", f"this user lacks {server.missing_privileges}", "unknown", advice)
        )
    return Guarantees(
        survives,
        "many machines",
        detail,
        atomic="one append",
        engine=server.engine,
        version=server.release,
        checks=tuple(checks),
        accepted=acceptance.used,
    )


def _require_durable(server: ServerInfo, acceptance: Acceptance, name: str) -> None:
    """Raise one UnsupportedError about everything that is weak and not accepted."""
    weak = [
        setting
        for setting in _WEAK_SETTINGS
        if not server.neon and getattr(server, setting) == _WEAK_SETTINGS[setting].value
    ]
    words = [_WEAK_SETTINGS[setting].word for setting in weak]
    weaknesses = [f"{setting} = {_WEAK_SETTINGS[setting].value}" for setting in weak]
    advice = [_advice(*weak)] if weak else []
    if server.unlogged:
        words.append(UNLOGGED)
        weaknesses.append(f"unlogged tables ({', '.join(server.unlogged)})")
        advice.append(_set_logged_advice(server.unlogged))
    if words:
        error = UnsupportedError(f"{name} has {' and '.join(weaknesses)}", ", and ".join(advice))
        acceptance.require(words, error)


def _synchronous_commit_check(server: ServerInfo) -> Check:
    """Report the server's default; each write turns it on where it is off."""
    value = server.synchronous_commit
    if not value:
        return Check("synchronous_commit", "unknown to this server", "unknown")
    return Check("synchronous_commit", "off, but on for each write" if value == "off" else value)


def _connection_check(server: ServerInfo) -> Check:
    """Report pooling and TLS: neither is a weakness, but both help to find a cause."""
    through = "to the server itself"
    if server.pooled:
        through = "through a pooler: appends are not prepared"
    return Check("connection", f"{through}, {'with' if server.encrypted else 'without'} TLS")


def _setting_check(setting: str, value: str, server: ServerInfo) -> Check:
    is_weak = value == _WEAK_SETTINGS[setting].value
    if server.neon and is_weak:
        return Check(setting, f"{value}, because other machines keep the log (Neon)")
    if not value:
        return Check(setting, "unknown to this server", "unknown")
    return Check(setting, value, "weak", _advice(setting)) if is_weak else Check(setting, value)


def _tables_check(server: ServerInfo) -> Check:
    """Report unlogged tables: after a crash they are empty, without an error."""
    if server.unlogged is None:
        return Check("tables", "unknown to this server", "unknown")
    if not server.unlogged:
        return Check("tables", "logged")
    description = f"unlogged: {', '.join(server.unlogged)}"
    return Check("tables", description, "weak", _set_logged_advice(server.unlogged))


def _advice(*settings: str) -> str:
    """Return which settings to change, grouped by their right value."""
    by_value = {
        right: [setting for setting in settings if _WEAK_SETTINGS[setting].right == right]
        for right in ("on", "off")
    }
    parts = [f"set {' and '.join(names)} to {right}" for right, names in by_value.items() if names]
    return f"{' and '.join(parts)} in the server's configuration"


def _set_logged_advice(tables: Iterable[str]) -> str:
    return f"run: {'; '.join(f'alter table {table} set logged' for table in tables)}"
