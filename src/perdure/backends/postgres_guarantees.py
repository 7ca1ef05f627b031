"""What a Postgres server keeps, judged by its settings and its tables. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from perdure.backends.postgres_schema import Server
from perdure.errors import UnsupportedError
from perdure.guarantees import Acceptance, Check, Guarantees, Survives, weakest

FSYNC = "fsync-off"
PAGES = "full-page-writes-off"
RETRY = "data-sync-retry-on"
UNLOGGED = "unlogged-tables"
ACCEPTABLE = {
    FSYNC: "a crash of the server's machine can lose or damage what was acknowledged",
    PAGES: "a crash of the server's machine can damage what was acknowledged",
    RETRY: "a write that fails once on the server's disk can be lost with nobody being told",
    UNLOGGED: "a crash of the server, of its process alone too, loses every session",
}
"""What a Postgres store knows to accept."""


class _Weak(NamedTuple):
    """A setting with which a server may lose something: how it is set then, and how it should."""

    value: str
    right: str
    word: str


_WEAK = {
    "fsync": _Weak("off", "on", FSYNC),
    "full_page_writes": _Weak("off", "on", PAGES),
    "data_sync_retry": _Weak("on", "off", RETRY),
}


def promised(server: Server, acceptance: Acceptance, name: str) -> Guarantees:
    """Return what a server guarantees; UnsupportedError if that is too little and not accepted."""
    _require_sound(server, acceptance, name)
    checks = [
        Check(server.engine, server.release),
        _connection(server),
        _synchronous_commit(server),
        *(_setting(one, getattr(server, one), server) for one in _WEAK),
        _tables(server),
    ]
    survives: Survives = "process death" if weakest(checks) == "weak" else "power loss"
    detail = f"{server.engine}, its log synced before each answer"
    if survives != "power loss":
        detail = f"{server.engine}, without what it needs to survive a crash"
    if server.read_only or server.standby:
        why = "a standby" if server.standby else "transaction_read_only is on"
        advice = "connect to the primary to write: ?target_session_attrs=read-write"
        checks.append(Check("writing", f"only reading: {why}", "unknown", advice))
        detail = f"{server.engine}, for reading only"
        if server.standby:
            detail = f"{server.engine}, a standby: it may be behind what the primary answered with"
    elif server.lacking:
        advice = "grant that, unless this user is to do without"
        checks.append(Check("writing", f"this user lacks {server.lacking}", "unknown", advice))
    return Guarantees(
        survives,
        "many machines",
        detail,
        atomic="one append",
        engine=server.engine,
        version=server.release,
        checks=tuple(checks),
        accepted=acceptance.taken,
    )


def _require_sound(server: Server, acceptance: Acceptance, name: str) -> None:
    """Raise UnsupportedError about all that is weak at once, unless it is accepted."""
    weak = [one for one in _WEAK if not server.neon and getattr(server, one) == _WEAK[one].value]
    words = [_WEAK[one].word for one in weak]
    found = [f"{one} = {_WEAK[one].value}" for one in weak]
    advice = [_advice(*weak)] if weak else []
    if server.unlogged:
        words.append(UNLOGGED)
        found.append(f"unlogged tables ({', '.join(server.unlogged)})")
        advice.append(_logging(server.unlogged))
    if words:
        what = UnsupportedError(f"{name} has {' and '.join(found)}", ", and ".join(advice))
        acceptance.require_all(words, what)


def _synchronous_commit(server: Server) -> Check:
    """Whatever the server's default is, each write raises it where it is off."""
    found = server.synchronous_commit
    if not found:
        return Check("synchronous_commit", "unknown to this server", "unknown")
    return Check("synchronous_commit", "off, but on for each write" if found == "off" else found)


def _connection(server: Server) -> Check:
    """Neither is a weakness; whoever looks for the cause of something wants to know."""
    through = "to the server itself"
    if server.pooled:
        through = "through a pooler: appends are not prepared"
    return Check("connection", f"{through}, {'with' if server.encrypted else 'without'} TLS")


def _setting(setting: str, found: str, server: Server) -> Check:
    is_weak = found == _WEAK[setting].value
    if server.neon and is_weak:
        return Check(setting, f"{found}, because other machines keep the log (Neon)")
    if not found:
        return Check(setting, "unknown to this server", "unknown")
    return Check(setting, found, "weak", _advice(setting)) if is_weak else Check(setting, found)


def _tables(server: Server) -> Check:
    """Logged tables are what Postgres makes; others are empty after a crash, without an error."""
    if server.unlogged is None:
        return Check("tables", "unknown to this server", "unknown")
    if not server.unlogged:
        return Check("tables", "logged")
    found = f"unlogged: {', '.join(server.unlogged)}"
    return Check("tables", found, "weak", _logging(server.unlogged))


def _advice(*settings: str) -> str:
    """Return what to set, those together that are to be alike."""
    alike = {
        right: [one for one in settings if _WEAK[one].right == right] for right in ("on", "off")
    }
    parts = [f"set {' and '.join(names)} to {right}" for right, names in alike.items() if names]
    return f"{' and '.join(parts)} in the server's configuration"


def _logging(tables: Iterable[str]) -> str:
    return f"run: {'; '.join(f'alter table {table} set logged' for table in tables)}"
