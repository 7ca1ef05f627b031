"""Judge what Redis or Valkey servers guarantee, from their settings. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from perdure.backends.guarantees import Acceptance, Check, Guarantees, Survives
from perdure.backends.redis.calls import Confirmation
from perdure.backends.redis.survey import NodeInfo
from perdure.errors import UnsupportedError

EVERY_SECOND = "appendfsync-everysec"

NEVER = "appendfsync-no"

NO_FILE = "appendonly-no"

REWRITE = "no-appendfsync-on-rewrite"

UNCHECKED = "unchecked-durability"

ACCEPTABLE = {
    EVERY_SECOND: "a crash of the server's machine can lose the last second before it",
    NEVER: "a crash of the server's machine can lose what was acknowledged, often half a minute",
    NO_FILE: "a crash of the server, even of its process alone, loses all since its last snapshot",
    REWRITE: "a crash of the server's machine during a rewrite can lose what was acknowledged",
    UNCHECKED: "it is unknown whether what was acknowledged survives a crash of the server",
}

"""Weaknesses that the caller of a Redis store may accept, and what each means."""

EVICTION_SAFE = "noeviction"


class _Weakness(NamedTuple):
    """A weak setting of a server: its name, its value, the word to accept it and the remedy."""

    setting: str
    value: str
    word: str
    advice: str


def store_guarantees(
    servers: Sequence[NodeInfo],
    confirmation: Confirmation | None,
    acceptance: Acceptance,
    name: str,
) -> Guarantees:
    """Return the guarantees of a store; UnsupportedError if it is too weak and not accepted.

    Every node counts, replicas too: one of them may be the primary tomorrow.
    """
    for server in servers:
        _refuse_eviction(server, name)
    weaknesses = [weakness for server in servers for weakness in _weaknesses(server)]
    if weaknesses:
        descriptions = dict.fromkeys(f"{each.setting} {each.value}" for each in weaknesses)
        advice = ", and ".join(dict.fromkeys(each.advice for each in weaknesses))
        error = UnsupportedError(f"{name} has {' and '.join(descriptions)}", advice)
        acceptance.require([*dict.fromkeys(each.word for each in weaknesses)], error)
    first = servers[0]
    words = {each.word for each in weaknesses}
    survives: Survives = "power loss"
    detail = f"{first.engine}, its append-only file synced before each answer"
    if words:
        survives = "undeclared" if words == {UNCHECKED} else "process death"
        detail = f"{first.engine}, without what it needs to survive a crash of its machine"
    return Guarantees(
        survives,
        "many machines",
        detail,
        atomic="one append",
        engine=first.engine,
        version=first.version,
        checks=tuple(_checks(servers, confirmation)),
        accepted=acceptance.used,
    )


def _refuse_eviction(server: NodeInfo, name: str) -> None:
    policy = server.settings.get("maxmemory-policy", EVICTION_SAFE)
    if policy != EVICTION_SAFE:
        reason = f"{name} has maxmemory-policy {policy}: it may delete sessions to free memory"
        raise UnsupportedError(reason, f"set it to {EVICTION_SAFE}, or use a server of its own")


def _weaknesses(server: NodeInfo) -> list[_Weakness]:
    settings = server.settings
    if settings.get("appendonly") == "no":
        return [_Weakness("appendonly", "no", NO_FILE, "set appendonly to yes")]
    if "appendfsync" not in settings or "maxmemory-policy" not in settings:
        advice = "allow this user CONFIG GET"
        return [_Weakness("settings", "that cannot be read", UNCHECKED, advice)]
    found = []
    fsync = settings["appendfsync"]
    if fsync != "always":
        word = EVERY_SECOND if fsync == "everysec" else NEVER
        found.append(_Weakness("appendfsync", fsync, word, "set appendfsync to always"))
    if settings.get(REWRITE, "no") == "yes":
        found.append(_Weakness(REWRITE, "yes", REWRITE, f"set {REWRITE} to no"))
    return found


def _checks(servers: Sequence[NodeInfo], confirmation: Confirmation | None) -> list[Check]:
    first = servers[0]
    nodes = "one server" if len(servers) == 1 else f"a cluster of {len(servers)} nodes"
    tls = "with" if first.encrypted else "without"
    checks = [
        Check(first.engine, first.version or "unknown"),
        Check("connection", f"{nodes}, {tls} TLS"),
    ]
    for setting in ("appendonly", "appendfsync", REWRITE, "maxmemory-policy"):
        values = dict.fromkeys(server.settings.get(setting, "") for server in servers)
        advice = [
            weakness.advice
            for server in servers
            for weakness in _weaknesses(server)
            if weakness.setting == setting
        ]
        if "" in values:
            hint = "allow this user CONFIG GET"
            checks.append(Check(setting, "this user may not read it", "unknown", hint))
        elif advice:
            checks.append(Check(setting, " and ".join(values), "weak", advice[0]))
        else:
            checks.append(Check(setting, " and ".join(values)))
    return [*checks, _replicas_check(servers, confirmation)]


def _replicas_check(servers: Sequence[NodeInfo], confirmation: Confirmation | None) -> Check:
    """Report replication: who else has an append when it is acknowledged."""
    fewest = min((server.replicas for server in servers if server.is_primary), default=0)
    if confirmation is None:
        if not fewest:
            return Check("replicas", "none")
        found = f"{fewest} connected, none of which confirms an append"
        advice = "a failover can lose acknowledged records, and says so: add ?replicas=1"
        return Check("replicas", found, "weak", advice)
    where = "on its disk" if confirmation.on_disk else "in its memory"
    found = f"{confirmation.replicas} of {fewest} confirm each append, {where}"
    if fewest < confirmation.replicas:
        return Check("replicas", found, "weak", "connect more replicas: until then appends fail")
    return Check("replicas", found)
