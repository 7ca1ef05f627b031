"""The registry of commands. A command is imported when it is called, so that `--help` is fast."""

from collections.abc import Iterator, MutableMapping
from importlib import import_module

import click

# Name → summary in `perdure --help`. The module of that name defines the command under it.
COMMANDS = {
    "approvals": "List pending approvals.",
    "approve": "Approve a pending call.",
    "chat": "Chat with a model in a durable session.",
    "compact": "Drop the older part of a session.",
    "copy": "Copy sessions to another store.",
    "demo": "Kill an assistant mid-turn and watch it resume.",
    "deny": "Deny a pending call.",
    "doctor": "Check a store and its guarantees.",
    "effects": "List tool and model calls and their outcomes.",
    "import": "Import messages from JSON files.",
    "keys": "Make, list and rotate the keys of encrypted stores.",
    "ls": "List sessions.",
    "migrate": "Create or upgrade the tables of a Postgres store.",
    "release": "Release the lease on a session.",
    "replay": "Replay an agent against a recorded session.",
    "show": "Show a conversation.",
    "stats": "Count sessions, messages, records and bytes.",
    "tail": "Show the last records of a session.",
    "verify": "Check a store and its sessions for damage.",
}


# Commands whose module has another name than the command.
_MODULES = {
    "approve": "approvals",
    "chat": "chat.command",
    "demo": "demo.command",
    "deny": "approvals",
    "doctor": "doctor.command",
    "import": "import_.command",
    "verify": "verify.command",
}


class LazyCommands(MutableMapping[str, click.Command]):
    """Commands by name, imported one by one when they are looked up."""

    def __init__(self) -> None:
        self._imported: dict[str, click.Command] = {}
        self._names = dict.fromkeys(COMMANDS)

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._imported:
            if name not in self._names:
                raise KeyError(name)
            module = _MODULES.get(name, name)
            attribute = "import_" if name == "import" else name  # `import` is a keyword.
            self._imported[name] = getattr(import_module(f"perdure.cli.{module}"), attribute)
        return self._imported[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._names[name] = None
        self._imported[name] = command

    def __delitem__(self, name: str) -> None:
        del self._names[name]
        self._imported.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class LazyGroup(click.Group):
    """Lists commands without importing them, and suggests the closest match for an unknown one."""

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

        names = self.list_commands(ctx)
        matches = get_close_matches(name, names, n=1, cutoff=0.5) or names
        hint = (
            f"Did you mean {matches[0]!r}?"
            if len(matches) == 1
            else f"Commands: {', '.join(matches)}."
        )
        raise click.UsageError(f"There is no command {name!r}. {hint}", ctx)
