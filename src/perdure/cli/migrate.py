"""`perdure migrate`: make the tables of a Postgres store, or bring them up to date."""

import click

from perdure.cli.stores import Reading, WrongCallError
from perdure.cli.text import safe
from perdure.opening import postgres_of, scheme_of

EPILOG = """\b
Examples:
  perdure migrate postgresql://admin@host/database --dry-run
  perdure migrate postgresql://admin@host/database?schema=agents
  perdure migrate postgresql:///?schema=agents --print-rls --tenant acme

\b
Applications open the store with ?migrate=no where they may not create tables.
"""


@click.command(cls=Reading, epilog=EPILOG)
@click.argument("address", metavar="URL", envvar="PERDURE_URL", type=click.Path())
@click.option("--dry-run", is_flag=True, help="Only print the statements, and change nothing.")
@click.option(
    "--print-rls",
    is_flag=True,
    help="Print a script for row-level security of tenants; nothing is connected to.",
)
@click.option(
    "--tenant", "tenants", multiple=True, help="With --print-rls: a role to grant rights to."
)
def migrate(address: str, *, dry_run: bool, print_rls: bool, tenants: tuple[str, ...]) -> None:
    """Make the tables of a Postgres store, or bring them up to date.

    Any number of processes may do so at the same time. Opening a store does the same, unless its
    address says migrate=no.
    """
    if scheme_of(address)[0] != "postgresql":
        reason = "Only a Postgres store is migrated by hand; others bring themselves up to date."
        raise WrongCallError(reason)
    if tenants and not print_rls:
        raise WrongCallError("--tenant goes with --print-rls.")
    parsed = postgres_of(address)
    from perdure.backends.postgres_rls import rls_script
    from perdure.backends.postgres_schema import bring_up

    if print_rls:
        click.echo(rls_script(parsed.schema, tenants), nl=False)
        return
    done = bring_up(parsed, dry_run=dry_run)
    where = f"The schema {parsed.schema!r} of {safe(parsed.name)}"
    if not done.statements:
        click.echo(f"{where} is up to date: version {done.after}.")
    elif dry_run:
        click.echo(";\n".join(["begin", *done.statements, "commit"]) + ";")
    else:
        was = f"from {done.before} " if done.before else ""
        click.echo(f"{where} was brought {was}to version {done.after}.")
