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

_ADVICE = "set it to on in the server's configuration"


def promised(server: Server, acceptance: Acceptance, name: str) -> Guarantees:
    """Return what a server guarantees; UnsupportedError if that is too little and not accepted."""
    checks = [
        Check(server.engine, server.release),
        _synchronous_commit(server),
        _setting("fsync", server.fsync, FSYNC, server, acceptance, name),
        _setting("full_page_writes", server.full_page_writes, PAGES, server, acceptance, name),
    ]
    survives: Survives = "process death" if weakest(checks) == "weak" else "power loss"
    detail = f"{server.engine}, its log synced before each answer"
    if survives != "power loss":
        detail = f"{server.engine}, without what it needs to survive a crash of its machine"
    if server.read_only or server.standby:
        why = "a standby, whose state may be older" if server.standby else "read-only"
        advice = "connect to the primary to write: ?target_session_attrs=read-write"
        checks.append(Check("writing", f"only reading: {why}", "unknown", advice))
        detail = f"{server.engine}, {why} than what the primary answered with"
        detail = detail if server.standby else why
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


def _setting(
    setting: str, found: str, word: str, server: Server, acceptance: Acceptance, name: str
) -> Check:
    if server.neon and found == "off":
        return Check(setting, "off, because other machines keep the log (Neon)")
    if not found:
        return Check(setting, "unknown to this server", "unknown")
    if found == "off":
        acceptance.require(word, UnsupportedError(f"{name} has {setting} = off", _ADVICE))
        return Check(setting, found, "weak", _ADVICE)
    return Check(setting, found)
