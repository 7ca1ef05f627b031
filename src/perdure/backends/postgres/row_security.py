"""Generate the SQL script for row-level security between tenants of one store. Pure.

A tenant is a role with the same name: a client that logs in as `acme` sees the streams of
`?tenant=acme`, whatever its address says. The owner of the tables sees everything, as owners do.
"""

from collections.abc import Sequence

from perdure.backends.postgres.address import quote_identifier

TENANT_TABLES = ("head", "entry", "label", "watch")


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
    name = quote_identifier(schema).replace("%%", "%")
    tables = ", ".join(f"{name}.{table}" for table in TENANT_TABLES)
    parts = [_SCRIPT_HEADER.format(schema=_comment_text(name))]
    parts += [_POLICY.format(schema=name, table=table) for table in TENANT_TABLES]
    for tenant in tenants:
        role = quote_identifier(tenant).replace("%%", "%")
        grants = _GRANTS.format(schema=name, tables=tables, role=role, remark=_comment_text(role))
        parts.append(grants)
    return "".join([*parts, "commit;\n"])


def _comment_text(name: str) -> str:
    """Return a name that is safe in an SQL comment, which a line break would end."""
    return name.replace("\n", " ").replace("\r", " ")
