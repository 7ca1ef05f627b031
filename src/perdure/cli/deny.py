"""`perdure deny`: have a call not made that waits for an approval."""

import click

from perdure.cli.approval_view import Decision, decide
from perdure.cli.stores import Reading, store_option

EXAMPLES = """\b
Examples:
  perdure deny claim-4711         the only one that waits there
  perdure deny claim-4711 .wJ8lVtS1k2mZq0Yx4hT --by ada
  perdure deny claim-4711 .wJ8lVtS1k2mZq0Yx4hT --reason "not this year"

\b
With --json it prints the approval as `perdure approvals --json` does. Exits
with 1 if it does not wait (any more): the first decision counts.
"""


@click.command(cls=Reading, epilog=EXAMPLES)
@click.argument("session")
@click.argument("approval", metavar="[ID]", required=False)
@click.option("--by", default="", help="Who decides, for the record. [default: user and machine]")
@click.option("--reason", default="", help="Why not: the model is told.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; needs --yes.")
@store_option
def deny(
    address: str | None,
    session: str,
    approval: str | None,
    by: str,
    reason: str,
    *,
    yes: bool,
    as_json: bool,
) -> None:
    """Have a call not made that waits for an approval.

    Shows the tool, its version, its arguments and the digest of them all, and asks. The decision is
    about exactly that: a call that differs in anything asks anew.
    """
    if as_json and not yes:
        raise click.UsageError("--json asks nobody: give --yes.")
    wish = Decision("deny", by, reason, yes, as_json)
    decide(address, session, approval, wish)
