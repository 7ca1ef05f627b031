"""The `perdure` command group: global options, error handling and exit codes.

An expected error becomes one line on standard error and exit code 2; a traceback is a bug in
perdure. Exit code 1 means that the command ran and has bad news. Exit code 3 means that the store
cannot be read (see `stores`). Command modules are imported only when called: keep it so.
"""

import errno
import os
import sys
from io import TextIOWrapper
from typing import Any

import click

from perdure import __version__
from perdure.cli.registry import LazyCommands, LazyGroup
from perdure.errors import PerdureError


class CommandGroup(LazyGroup):
    """Reports errors of perdure and of the operating system without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (PerdureError, OSError) as error:
            # The reader of the output is gone: click exits quietly.
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise
            from perdure.cli.stores import InvalidCallError

            raise InvalidCallError(str(error)) from error
        except click.UsageError as error:
            from perdure.backends.addresses import looks_like_address
            from perdure.cli.stores import InvalidCallError, misplaced_address

            if not looks_like_address(error.format_message()):
                raise
            # click would print it, password included.
            raise InvalidCallError(misplaced_address(error.ctx)) from None


EPILOG = """\b
Examples:
  perdure demo                      kill an assistant and watch it resume
  perdure ls --recent               list the most recently changed sessions
  perdure show claim-4711           show a conversation
  perdure verify --store agents.db  check every session for damage

\b
A command reads the store named by --store, else by PERDURE_URL, else
agents.db in the current directory. Reading never creates a store.

\b
Exit codes:
  0  success
  1  damage was found, or nothing matched
  2  invalid arguments
  3  the store cannot be read
"""


@click.group(
    cls=CommandGroup,
    commands=LazyCommands(),
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="perdure")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Inspect, verify and copy stores of durable AI agent sessions."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # A path may have characters that it cannot encode.
            stream.reconfigure(errors="backslashreplace")
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        ctx.color = False
    elif os.environ.get("FORCE_COLOR"):
        ctx.color = True


if __name__ == "__main__":
    main(prog_name="perdure")
