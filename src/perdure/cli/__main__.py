"""The command line: one file per command, put together here.

What perdure refuses is one line on standard error and exit code 2; a traceback is a mistake in
perdure. Exit code 1 is for a command that ran and has bad news. Commands that read a store say
with exit code 3 that it can not be read (see `stores`).
"""

import errno
import os
from typing import Any

import click

from perdure import PerdureError, __version__
from perdure.cli.registry import Later, LazyGroup


class Trouble(click.ClickException):
    """What was asked for can not be done; the message says why."""

    exit_code = 2


class Commands(LazyGroup):
    """Shows perdure's own errors, and those of the system, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PerdureError as error:
            raise Trouble(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # Whoever read the output has gone: click ends quietly.
                raise
            raise Trouble(str(error)) from error
        except click.UsageError as error:
            from perdure.cli.stores import misplaced
            from perdure.opening import holds_address

            if not holds_address(error.format_message()):
                raise
            raise Trouble(misplaced(error.ctx)) from None  # click repeats it, with its password.
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            from perdure.cli.demo_run import AssistantError

            if not isinstance(error, AssistantError):
                raise
            raise Trouble(str(error)) from error


EPILOG = """\b
Examples:
  perdure demo                      kill an assistant, and see it go on
  perdure ls --recent               what changed last
  perdure show claim-4711           a conversation
  perdure verify --store agents.db  is everything whole?

\b
A command reads the store that --store names, else PERDURE_URL, else agents.db
in the current directory. Reading never makes a store.

\b
Exit codes:
  0  all is well
  1  damage was found, or nothing matched what was asked for
  2  the call is wrong
  3  the store can not be read
"""


@click.group(
    cls=Commands,
    commands=Later(),
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="perdure")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Keep what an AI agent said, knew and did, so that it survives its process."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        ctx.color = False
    elif os.environ.get("FORCE_COLOR"):
        ctx.color = True


if __name__ == "__main__":
    main(prog_name="perdure")
