"""Row-level security for tenants of one Postgres store, as SQL to read and to run. Pure.

A tenant is a role that is named like it: whoever logs in as `acme` sees the streams of
`?tenant=acme`, whatever the address says. The owner of the tables sees everything, as owners do.
"""

from collections.abc import Sequence

from perdure.backends.postgres_address import quoted

TABLES = ("head", "entry", "label", "watch")

_INTRODUCTION = """-- Row-level security of the perdure store in the schema {schema}:
-- each role sees and writes only the rows of the tenant that bears its name. Create the roles,
-- then run it as the owner of the tables, with psql -v ON_ERROR_STOP=1: without that word psql
-- goes on after an error, and reports success. Tenants open the store with
-- ?schema=…&tenant=NAME&migrate=no.
-- Do not grant the view `session` to tenants: it shows what its owner may see.
begin;
"""

_POLICY = """alter table {schema}.{table} enable row level security;
drop policy if exists perdure_tenant on {schema}.{table};
create policy perdure_tenant on {schema}.{table}
  using (tenant = current_user) with check (tenant = current_user);
"""

# Whatever becomes of a grant, the rows are guarded: a role that is missing takes nothing back.
_GRANTS = """commit;

-- The tenant {remark}:
begin;
grant usage on schema {schema} to {role};
grant select, insert, update, delete on {tables} to {role};
grant select on {schema}.migration to {role};
"""


def rls_script(schema: str, tenants: Sequence[str]) -> str:
    """Return the script for a schema, with the grants for some tenants' roles."""
    name = quoted(schema).replace("%%", "%")
    tables = ", ".join(f"{name}.{table}" for table in TABLES)
    parts = [_INTRODUCTION.format(schema=_remark(name))]
    parts += [_POLICY.format(schema=name, table=table) for table in TABLES]
    for tenant in tenants:
        role = quoted(tenant).replace("%%", "%")
        grants = _GRANTS.format(schema=name, tables=tables, role=role, remark=_remark(role))
        parts.append(grants)
    return "".join([*parts, "commit;\n"])


def _remark(name: str) -> str:
    """Return a name for a comment, which the end of a line would end."""
    return name.replace("\n", " ").replace("\r", " ")
