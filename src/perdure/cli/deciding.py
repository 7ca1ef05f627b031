"""Build the commands `approve` and `deny`, which differ only in their texts."""

from typing import Literal

import click

from perdure.cli.approval_view import Decision, decide
from perdure.cli.registry import COMMANDS
from perdure.cli.stores import Reading, store_option

HELP = """{summary}

Shows the tool, its version, its arguments and their digest, and asks for confirmation. The decision
applies to exactly that call: a call that differs in anything {otherwise}.
"""

BY = "Name of the person who decides; recorded. [default: user and machine]"

EXAMPLES = """\b
Examples:
  perdure {command} claim-4711         the only pending call of the session
  perdure {command} claim-4711 .wJ8lVtS1k2mZq0Yx4hT --by ada
  perdure {command} claim-4711 .wJ8lVtS1k2mZq0Yx4hT --reason "{example}"

\b
With --json, the output is the approval as `perdure approvals --json` prints
it. Exits with 1 if the call is no longer pending: the first decision counts.
"""


def deciding(
    choice: Literal["approve", "deny"], *, otherwise: str, why: str, example: str
) -> click.Command:
    """Return the command. `why` is the help of --reason, `example` a sample reason."""

    @click.command(
        choice,
        cls=Reading,
        help=HELP.format(summary=COMMANDS[choice], otherwise=otherwise),
        epilog=EXAMPLES.format(command=choice, example=example),
    )
    @click.argument("session")
    @click.argument("approval", metavar="[ID]", required=False)
    @click.option("--by", default="", help=BY)
    @click.option("--reason", default="", help=why)
    @click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object; needs --yes.")
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
            raise click.UsageError("--json cannot ask for confirmation: give --yes.")
        decide(address, session, approval, Decision(choice, by, reason, yes, as_json))

    return command
