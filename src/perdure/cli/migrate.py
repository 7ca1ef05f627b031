"""`perdure migrate`: create or upgrade the tables of a Postgres store."""

import click

from perdure.backends.addresses import parse_postgres, scheme_of
from perdure.cli.stores import InvalidCallError, StoreCommand
from perdure.safe_text import safe

EXAMPLES = """\b
Examples:
  perdure migrate postgresql://admin@host/database --dry-run
  perdure migrate postgresql://admin@host/database?schema=agents
  perdure migrate postgresql:///?schema=agents --print-rls --tenant acme

\b
Applications without the right to create tables open it with ?migrate=no.
"""


@click.command(cls=StoreCommand, epilog=EXAMPLES)
@click.argument("address", metavar="URL", envvar="PERDURE_URL", type=click.Path())
@click.option("--dry-run", is_flag=True, help="Print the statements; change nothing.")
@click.option(
    "--print-rls",
    is_flag=True,
    help="Print a script for row-level security of tenants, without connecting.",
)
@click.option(
    "--tenant", "tenants", multiple=True, help="With --print-rls: role of a tenant. Repeatable."
)
def migrate(address: str, *, dry_run: bool, print_rls: bool, tenants: tuple[str, ...]) -> None:
    """Create or upgrade the tables of a Postgres store.

    Several processes can run this at the same time. Opening a store does the same, unless its
    address has migrate=no.
    """
    if scheme_of(address)[0] != "postgresql":
        reason = "Only a Postgres store needs this; other stores upgrade themselves on opening."
        raise InvalidCallError(reason)
    if tenants and not print_rls:
        raise InvalidCallError("--tenant needs --print-rls.")
    parsed = parse_postgres(address)
    from perdure.backends.postgres.migrations import migrate_if_needed
    from perdure.backends.postgres.schema import rls_script

    if print_rls:
        click.echo(rls_script(parsed.schema, tenants), nl=False)
        return
    migration = migrate_if_needed(parsed, dry_run=dry_run)
    where = f"The schema {parsed.schema!r} of {safe(parsed.name)}"
    if not migration.statements:
        click.echo(f"{where} is up to date: version {migration.after}.")
    elif dry_run:
        click.echo(";\n".join(["begin", *migration.statements, "commit"]) + ";")
    else:
        origin = f"from {migration.before} " if migration.before else ""
        click.echo(f"{where} was migrated {origin}to version {migration.after}.")
