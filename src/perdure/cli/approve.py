"""`perdure approve`: let a call happen that waits for an approval."""

import click

from perdure.cli.approval_view import Decision, decide
from perdure.cli.stores import Reading, store_option

EXAMPLES = """\b
Examples:
  perdure approve claim-4711         the only one that waits there
  perdure approve claim-4711 .wJ8lVtS1k2mZq0Yx4hT --by ada
  perdure approve claim-4711 .wJ8lVtS1k2mZq0Yx4hT --reason "invoice seen"

\b
With --json it prints the approval as `perdure approvals --json` does. Exits
with 1 if it does not wait (any more): the first decision counts.
"""


@click.command(cls=Reading, epilog=EXAMPLES)
@click.argument("session")
@click.argument("approval", metavar="[ID]", required=False)
@click.option("--by", default="", help="Who decides, for the record. [default: user and machine]")
@click.option("--reason", default="", help="Why, for the record.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; needs --yes.")
@store_option
def approve(
    address: str | None,
    session: str,
    approval: str | None,
    by: str,
    reason: str,
    *,
    yes: bool,
    as_json: bool,
) -> None:
    """Let a call happen that waits for an approval.

    Shows the tool, its version, its arguments and the digest of them all, and asks. The decision is
    about exactly that: a call that differs in anything needs another approval.
    """
    if as_json and not yes:
        raise click.UsageError("--json asks nobody: give --yes.")
    wish = Decision("approve", by, reason, yes, as_json)
    decide(address, session, approval, wish)
