"""The tables of a Postgres store as text, and how those of older versions become them. Pure.

A schema without tables gets the newest at once; others are changed version by version.
"""

DELETED = """'["deleted"]'::bytea"""  # The labels of the head of a deleted session.

HEAD_CHANGED = """create index head_changed on {schema}.head (tenant, changed, name)
  where changed > 0"""  # Up to version 3.
HEAD_LIVE = f"""create index head_live on {{schema}}.head (tenant, name)
  where labels <> {DELETED}"""
HEAD_LIVE_CHANGED = f"""create index head_live_changed on {{schema}}.head (tenant, changed, name)
  where changed > 0 and labels <> {DELETED}"""
HEAD_DELETED = f"""create index head_deleted on {{schema}}.head (tenant, changed, name)
  where changed > 0 and labels = {DELETED}"""
LABEL_PRESENT = """create index label_present on {schema}.label (tenant, label, name)
  where present"""

# A process that was started before `present` came writes labels without it. What it took for a
# label would be one that its stream bore once: it has to fail, and the server's message has only
# this name to say why.
SAYS_PRESENT = "constraint restart_this_process_with_the_new_perdure check (present is not null)"

# `stream` is a digest of the tenant and the name, which entries carry in its place. The tenant
# comes first in every key: nobody can take a place that another tenant needs.
#
# Only the key of a table holds all of its rows. The other indexes are for listings and have a
# condition that only those mention: whatever the planner believes of the tables, it can not take
# them to look something up.
TABLES = (
    """create table {schema}.migration (
  version integer primary key,
  applied timestamptz not null default now())""",
    """create table {schema}.head (
  tenant text not null,
  name bytea not null,
  stream bytea not null,
  position bigint not null,
  digest text not null,
  labels bytea not null,
  changed bigint not null,
  primary key (tenant, name))""",
    HEAD_LIVE,
    HEAD_LIVE_CHANGED,
    HEAD_DELETED,
    """create table {schema}.entry (
  stream bytea not null,
  position bigint not null,
  tenant text not null,
  header bytea not null,
  body bytea not null,
  primary key (tenant, stream, position))""",
    # `present` is false of a label that the stream bore once.
    f"""create table {{schema}}.label (
  tenant text not null,
  name bytea not null,
  label bytea not null,
  present boolean,
  {SAYS_PRESENT},
  primary key (tenant, name, label))""",
    LABEL_PRESENT,
    # Streams that somebody waits for, so that writers tell only then.
    """create table {schema}.watch (
  stream bytea not null,
  tenant text not null,
  until bigint not null,
  primary key (tenant, stream))""",
    # For people: the tables hold bytes.
    """create view {schema}.session as
select tenant, convert_from(name, 'UTF8') as id, position, digest,
  convert_from(labels, 'UTF8') as labels, to_timestamp(changed / 1000000.0) as changed, stream
from {schema}.head""",
)

# version → what makes it of the version before. What was released is never changed.
CHANGES: dict[int, tuple[str, ...]] = {
    2: (
        """alter table {schema}.entry drop constraint entry_pkey,
  add constraint entry_pkey primary key (tenant, stream, position)""",
        """alter table {schema}.watch drop constraint watch_pkey,
  add constraint watch_pkey primary key (tenant, stream)""",
        "alter table {schema}.label add column present boolean not null default true",
        "drop index {schema}.label_name",
        "create index label_present on {schema}.label (tenant, label, present, name)",
    ),
    3: (
        "drop index {schema}.head_changed",
        HEAD_CHANGED,
        "drop index {schema}.label_present",
        LABEL_PRESENT,
        f"""alter table {{schema}}.label
  alter column present drop default,
  alter column present drop not null,
  add {SAYS_PRESENT}""",
    ),
    4: (
        "drop index {schema}.head_changed",
        HEAD_LIVE,
        HEAD_LIVE_CHANGED,
        HEAD_DELETED,
    ),
}
NEWEST = max(CHANGES)

# All of them before anything is changed, in the order in which an append needs them: whoever has
# one of them while a change takes long, and waits for another, would have to be waited for.
LOCK = """lock table {schema}.head, {schema}.entry, {schema}.label, {schema}.watch
  in access exclusive mode"""


def script(schema: str, have: int, *, exists: bool, locks: bool = True) -> list[str]:
    """Return the statements that bring tables of a version, 0 for none, to the newest.

    `schema` is its quoted name; `exists` says whether it is there, and `locks` whether the server
    knows how to lock tables.
    """
    if have == NEWEST:
        return []
    statements = [] if exists else [f"create schema if not exists {schema}"]
    if have == 0:
        return [
            *statements,
            *(text.format(schema=schema) for text in TABLES),
            _done(schema, NEWEST),
        ]
    if locks:
        statements.append(LOCK.format(schema=schema))
    for version in range(have + 1, NEWEST + 1):
        statements += [text.format(schema=schema) for text in CHANGES[version]]
        statements.append(_done(schema, version))
    return statements


def _done(schema: str, version: int) -> str:
    return f"insert into {schema}.migration (version) values ({version})"  # noqa: S608 - quoted
