"""The command line: one file per command, put together here.

What perdure refuses is one line on standard error and exit code 2; a traceback is a mistake in
perdure. Exit code 1 is for a command that ran and has bad news.
"""

import errno
import os
from typing import Any

import click

from perdure import PerdureError, __version__
from perdure.cli.demo import demo
from perdure.cli.demo_run import AssistantError


class Trouble(click.ClickException):
    """What was asked for can not be done; the message says why."""

    exit_code = 2


class Commands(click.Group):
    """Shows perdure's own errors, and those of the system, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (PerdureError, AssistantError) as error:
            raise Trouble(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # Whoever read the output has gone: click ends quietly.
                raise
            raise Trouble(str(error)) from error


EXAMPLE = """\b
Example:
  perdure demo      kill an assistant in mid-turn, and see it go on
"""


@click.group(cls=Commands, epilog=EXAMPLE, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="perdure")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Keep what an AI agent said, knew and did, so that it survives its process."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        ctx.color = False
    elif os.environ.get("FORCE_COLOR"):
        ctx.color = True


main.add_command(demo)

if __name__ == "__main__":
    main(prog_name="perdure")
