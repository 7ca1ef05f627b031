"""The tables of a Postgres store as SQL text: migrations, and row-level security by tenant. Pure.

A schema without tables gets the newest version at once; older tables are migrated version by
version.

With row-level security a tenant is a role of the same name: a client that logs in as `acme` sees
the streams of `?tenant=acme`, whatever its address says. The owner of the tables sees everything,
as owners do.

Editing: add a new version; never change the statements of a released one.
"""

from collections.abc import Sequence

from perdure.backends.postgres.address import quote_identifier

TENANT_TABLES = ("head", "entry", "label", "watch")  # In the order in which an append uses them.

DELETED = """'["deleted"]'::bytea"""  # The labels column of a deleted session's head.


HEAD_CHANGED = """create index head_changed on {schema}.head (tenant, changed, name)
  where changed > 0"""  # Up to version 3.

HEAD_LIVE = f"""create index head_live on {{schema}}.head (tenant, name)
  where labels <> {DELETED}"""

HEAD_LIVE_CHANGED = f"""create index head_live_changed on {{schema}}.head (tenant, changed, name)
  where changed > 0 and labels <> {DELETED}"""

HEAD_DELETED = f"""create index head_deleted on {{schema}}.head (tenant, changed, name)
  where changed > 0 and labels = {DELETED}"""

LABEL_PRESENT = """create index label_present on {schema}.label (tenant, label, name)
  where present"""  # Up to version 4.

LABEL_VALUE = """create index label_value on {schema}.label (tenant, label, value, name)
  where present"""


# A process that was started before the column `present` existed inserts labels without it, and
# would misread marked ones as current. It has to fail, and the constraint's name is the only part
# of the server's message that can say why.
PRESENT_CONSTRAINT = (
    "constraint restart_this_process_with_the_new_perdure check (present is not null)"
)


# `stream` is a digest of the tenant and the name; entries carry it instead of the name. The tenant
# comes first in every key: no tenant can occupy a key that another tenant needs.
#
# Only a table's primary key covers all of its rows. The other indexes serve listings and have a
# condition that only listings mention: whatever the planner's statistics say, it cannot use them
# for a lookup.
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
  snapshot bigint not null default 0,
  primary key (tenant, name))""",
    HEAD_LIVE,
    HEAD_LIVE_CHANGED,
    HEAD_DELETED,
    # `position` is that of the last record, as in `head`; `first` that of the first one.
    """create table {schema}.entry (
  stream bytea not null,
  position bigint not null,
  tenant text not null,
  first bigint not null,
  header bytea not null,
  body bytea not null,
  primary key (tenant, stream, position))""",
    # `present` is false for a label that the stream no longer has. The label of a field ends with
    # its mark, and `value` changes in place: a stream has one row of a field, whatever its values.
    f"""create table {{schema}}.label (
  tenant text not null,
  name bytea not null,
  label bytea not null,
  present boolean,
  {PRESENT_CONSTRAINT},
  value bytea not null default '',
  primary key (tenant, name, label))""",
    LABEL_VALUE,
    # Streams with a waiter: writers notify only these.
    """create table {schema}.watch (
  stream bytea not null,
  tenant text not null,
  until bigint not null,
  primary key (tenant, stream))""",
    # For humans: the tables hold bytes.
    """create view {schema}.session as
select tenant, convert_from(name, 'UTF8') as id, position, digest,
  convert_from(labels, 'UTF8') as labels, to_timestamp(changed / 1000000.0) as changed, stream
from {schema}.head""",
)


# version → statements that migrate from the version before. Never change a released one.
MIGRATIONS: dict[int, tuple[str, ...]] = {
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
  add {PRESENT_CONSTRAINT}""",
    ),
    4: (
        "drop index {schema}.head_changed",
        HEAD_LIVE,
        HEAD_LIVE_CHANGED,
        HEAD_DELETED,
    ),
    5: (
        "alter table {schema}.label add column value bytea not null default ''",
        "drop index {schema}.label_present",
        LABEL_VALUE,
    ),
    6: (
        "alter table {schema}.entry add column first bigint",
        "update {schema}.entry set first = position",
        "alter table {schema}.entry alter column first set not null",
    ),
    # Version 7: a head without a snapshot is read from its beginning.
    7: ("alter table {schema}.head add column snapshot bigint not null default 0",),
}

LATEST_VERSION = max(MIGRATIONS)


def migration_script(schema: str, version: int, *, exists: bool, locks: bool = True) -> list[str]:
    """Return the statements that migrate tables of a version (0: none) to the newest.

    `schema` is its quoted name; `exists` says whether the schema exists, and `locks` whether the
    server supports LOCK TABLE.
    """
    if version == LATEST_VERSION:
        return []
    statements = [] if exists else [f"create schema if not exists {schema}"]
    if version == 0:
        return [
            *statements,
            *(text.format(schema=schema) for text in TABLES),
            _record_version(schema, LATEST_VERSION),
        ]
    if locks:
        # All before changing any, in the order in which an append uses them. Otherwise an append
        # that holds one table and waits for the next would deadlock with a long change.
        tables = ", ".join(f"{schema}.{table}" for table in TENANT_TABLES)
        statements.append(f"lock table {tables}\n  in access exclusive mode")
    for step in range(version + 1, LATEST_VERSION + 1):
        statements += [text.format(schema=schema) for text in MIGRATIONS[step]]
        statements.append(_record_version(schema, step))
    return statements


def _record_version(schema: str, version: int) -> str:
    return f"insert into {schema}.migration (version) values ({version})"  # noqa: S608 - quoted


_SCRIPT_HEADER = """-- Row-level security of the perdure store in the schema {schema}:
-- each role sees and writes only the rows of the tenant that has its name. Create the roles,
-- then run this as the owner of the tables, with psql -v ON_ERROR_STOP=1: without it, psql
-- continues after an error and reports success. Tenants open the store with
-- ?schema=…&tenant=NAME&migrate=no.
-- Do not grant the view `session` to tenants: it shows all rows that its owner may see.
begin;
"""


_POLICY = """alter table {schema}.{table} enable row level security;
drop policy if exists perdure_tenant on {schema}.{table};
create policy perdure_tenant on {schema}.{table}
  using (tenant = current_user) with check (tenant = current_user);
"""


# Each tenant's grants are a transaction of their own: a missing role fails only its own grants,
# and the policies above stay.
_GRANTS = """commit;

-- The tenant {remark}:
begin;
grant usage on schema {schema} to {role};
grant select, insert, update, delete on {tables} to {role};
grant select on {schema}.migration to {role};
"""


def rls_script(schema: str, tenants: Sequence[str]) -> str:
    """Return the script for a schema, with grants for the roles of the given tenants."""
    name = quote_identifier(schema)
    tables = ", ".join(f"{name}.{table}" for table in TENANT_TABLES)
    parts = [_SCRIPT_HEADER.format(schema=_comment_text(name))]
    parts += [_POLICY.format(schema=name, table=table) for table in TENANT_TABLES]
    for tenant in tenants:
        role = quote_identifier(tenant)
        remark = _comment_text(role)
        parts.append(_GRANTS.format(schema=name, tables=tables, role=role, remark=remark))
    return "".join([*parts, "commit;\n"])


def _comment_text(name: str) -> str:
    """Return a name that is safe in an SQL comment, which a line break would end."""
    return name.replace("\n", " ").replace("\r", " ")
