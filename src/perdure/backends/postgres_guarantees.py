"""What a Postgres server keeps, judged by its settings. Pure."""

from perdure.backends.postgres_schema import Server
from perdure.errors import UnsupportedError
from perdure.guarantees import Acceptance, Check, Guarantees, Survives, weakest

FSYNC = "fsync-off"
PAGES = "full-page-writes-off"
ACCEPTABLE = {
    FSYNC: "a crash of the server's machine can lose or damage what was acknowledged",
    PAGES: "a crash of the server's machine can damage what was acknowledged",
}
"""What a Postgres store knows to accept."""

_WORDS = {"fsync": FSYNC, "full_page_writes": PAGES}


def promised(server: Server, acceptance: Acceptance, name: str) -> Guarantees:
    """Return what a server guarantees; UnsupportedError if that is too little and not accepted."""
    off = [] if server.neon else [one for one in _WORDS if getattr(server, one) == "off"]
    if off:
        what = UnsupportedError(f"{name} has {' = off and '.join(off)} = off", _advice(*off))
        acceptance.require_all([_WORDS[one] for one in off], what)
    checks = [
        Check(server.engine, server.release),
        _connection(server),
        _synchronous_commit(server),
        *(_setting(one, getattr(server, one), server) for one in _WORDS),
    ]
    survives: Survives = "process death" if weakest(checks) == "weak" else "power loss"
    detail = f"{server.engine}, its log synced before each answer"
    if survives != "power loss":
        detail = f"{server.engine}, without what it needs to survive a crash of its machine"
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
    if server.neon and found == "off":
        return Check(setting, "off, because other machines keep the log (Neon)")
    if not found:
        return Check(setting, "unknown to this server", "unknown")
    return (
        Check(setting, found, "weak", _advice(setting)) if found == "off" else Check(setting, found)
    )


def _advice(*settings: str) -> str:
    return f"set {' and '.join(settings)} to on in the server's configuration"
