"""The commands `approve` and `deny`, which differ in their words only."""

from typing import Literal

import click

from perdure.cli.approval_view import Decision, decide
from perdure.cli.registry import COMMANDS
from perdure.cli.stores import Reading, store_option

HELP = """{does}

Shows the tool, its version, its arguments and the digest of them all, and asks. The decision is
about exactly that: a call that differs in anything {otherwise}.
"""

BY = "Who decides, for the record. [default: user and machine]"

EXAMPLES = """\b
Examples:
  perdure {what} claim-4711         the only one that waits there
  perdure {what} claim-4711 .wJ8lVtS1k2mZq0Yx4hT --by ada
  perdure {what} claim-4711 .wJ8lVtS1k2mZq0Yx4hT --reason "{example}"

\b
With --json it prints the approval as `perdure approvals --json` does. Exits
with 1 if it does not wait (any more): the first decision counts.
"""


def deciding(
    what: Literal["approve", "deny"], *, otherwise: str, why: str, example: str
) -> click.Command:
    """Return the command that decides so; `why` is the help of --reason, `example` one."""

    @click.command(
        what,
        cls=Reading,
        help=HELP.format(does=COMMANDS[what], otherwise=otherwise),
        epilog=EXAMPLES.format(what=what, example=example),
    )
    @click.argument("session")
    @click.argument("approval", metavar="[ID]", required=False)
    @click.option("--by", default="", help=BY)
    @click.option("--reason", default="", help=why)
    @click.option("--yes", is_flag=True, help="Do not ask.")
    @click.option("--json", "as_json", is_flag=True, help="One JSON object; needs --yes.")
    @store_option
    def command(
        address: str | None,
        session: str,
        approval: str | None,
        by: str,
        reason: str,
        *,
        yes: bool,
        as_json: bool,
    ) -> None:
        if as_json and not yes:
            raise click.UsageError("--json asks nobody: give --yes.")
        decide(address, session, approval, Decision(what, by, reason, yes, as_json))

    return command
