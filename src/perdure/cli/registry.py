"""Which commands there are. A command is imported when it is called, so that `--help` is fast."""

from collections.abc import Iterator, MutableMapping
from importlib import import_module

import click

# Name → what `perdure --help` says of it. Its module defines it under the same name.
COMMANDS = {
    "approvals": "List the calls that wait for somebody's approval.",
    "approve": "Let a call happen that waits for an approval.",
    "chat": "Talk with a model; the conversation survives the process.",
    "copy": "Copy sessions to another store, while others write to them.",
    "demo": "Kill an assistant in the middle of its turn, and see it go on.",
    "deny": "Have a call not made that waits for an approval.",
    "doctor": "Explain a store, try its promises, and say what to change.",
    "effects": "List tool and model calls, and what became of them.",
    "import": "Take messages out of JSON files that a script kept.",
    "ls": "List sessions.",
    "migrate": "Bring the tables of a Postgres store up to date.",
    "release": "Take a session from a worker that holds it.",
    "replay": "Run an agent again on a session's record, and compare.",
    "show": "Show a conversation, how its turns ended, and what was known.",
    "stats": "Count what a store holds.",
    "tail": "Show the last records of a session, and follow new ones.",
    "verify": "Check sessions for damage, and save what can be read.",
}


class Later(MutableMapping[str, click.Command]):
    """Commands by name, imported one by one when they are looked up."""

    def __init__(self) -> None:
        self._found: dict[str, click.Command] = {}
        self._names = dict.fromkeys(COMMANDS)

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._found:
            if name not in self._names:
                raise KeyError(name)
            defined = "import_" if name == "import" else name  # A word that Python keeps.
            self._found[name] = getattr(import_module(f"perdure.cli.{defined}"), defined)
        return self._found[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._names[name] = None
        self._found[name] = command

    def __delitem__(self, name: str) -> None:
        del self._names[name]
        self._found.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class LazyGroup(click.Group):
    """Lists its commands without importing them, and suggests the closest for an unknown one."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in names if name in COMMANDS])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in self.commands or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches

        known = self.list_commands(ctx)
        close = get_close_matches(name, known, n=1, cutoff=0.5) or known
        meant = (
            f"Did you mean {close[0]!r}?" if len(close) == 1 else f"There are {', '.join(close)}."
        )
        raise click.UsageError(f"There is no command {name!r}. {meant}", ctx)
