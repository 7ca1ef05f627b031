"""`perdure chat`: an assistant in the terminal whose conversations survive their process.

It opens the store, lets the user choose a session, and reads lines until the user leaves.
"""

import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice

import click
from click.core import ParameterSource
from rich.table import Table

import perdure
from perdure.backends.addresses import looks_like_address, open_backend
from perdure.backends.protocol import Head
from perdure.cli.chat.conversation import ChatSession
from perdure.cli.chat.interrupts import InterruptGuard
from perdure.cli.chat.model import DEFAULT_MODEL, ModelChoice, choose_model
from perdure.cli.chat.slash_commands import SlashCommands
from perdure.cli.chat.view import PROMPT, ChatView
from perdure.cli.ls import most_recent, read_row
from perdure.cli.stores import (
    BAD_NEWS,
    DEFAULT_STORE,
    INTERRUPTED,
    InvalidCallError,
    OpenStore,
    StoreCommand,
    given_keys,
    keys_option,
    refuse_memory,
    without_password,
)
from perdure.cli.terminal import echo, echo_table, is_tty, plural, relative_time
from perdure.errors import ConflictError, UnsupportedError, UsageError
from perdure.formats.tokens import Counter, counter_for
from perdure.safe_text import safe, shell_command
from perdure.sync.session import Session
from perdure.sync.verify import find_head

SESSIONS_LISTED = 8  # Sessions; a short list fits above the prompt.


def new_session_name(source: OpenStore) -> str:
    """Return a session name, made from the date, that the store does not have yet."""
    while True:
        name = f"chat-{datetime.now(UTC):%Y-%m-%d}-{secrets.token_hex(2)}"
        if find_head(source.backend, name) is None:
            return name


def choose_session(source: OpenStore, stop: InterruptGuard) -> str:
    """Let the user choose a recent session, or name one. Enter starts a new session."""
    new_session = new_session_name(source)
    rows = []
    for head in islice(most_recent(source, "", (), deleted=False), SESSIONS_LISTED * 2):
        row = read_row(source.store, head) if isinstance(head, Head) else None
        if row is not None and row.state == "live":
            rows.append(row)
    rows = rows[:SESSIONS_LISTED]
    if not rows:
        return new_session
    echo(f"Sessions in {source.name}:", style="bold")
    names = [row.head.stream for row in rows]
    table = Table.grid(padding=(0, 2))
    for number, row in enumerate(rows, start=1):
        when = relative_time(row.changed) if row.changed else ""
        count = plural(row.messages or 0, "message")
        table.add_row("", str(number), safe(row.head.stream), count, when)
    echo_table(table)
    while True:
        with stop.interruptible():
            typed = input(
                f"Which session? A number, a name, or Enter for a new one ({new_session}): "
            ).strip()
        if not typed:
            return new_session
        if not typed.isdecimal() or typed in names:
            return typed
        if 1 <= int(typed) <= len(names):
            return names[int(typed) - 1]
        echo(f"Choose a number from 1 to {len(names)}.", style="red")


EXAMPLES = """\b
Examples:
  perdure chat                            choose a session, or start one
  perdure chat claim-4711 --model gpt-4o
  perdure chat --base-url http://localhost:11434/v1 --model llama3.2
  echo "Who signs it?" | perdure chat claim-4711 --json

\b
OPENAI_API_KEY is used if set; it and --base-url need the openai package (pip
install 'perdure[openai]'). Without both, a built-in script answers, so that
you can try the command.

\b
Ctrl-C stops an answer and keeps its text so far; at the prompt it exits.
/help lists the commands: /branch, /undo, /summary, /tokens, /drop, /quit.

\b
Lines from a pipe are answered one by one; exits with 1 if one of them fails.
With --json, each answer is an object: session, turn, position, model,
content, interrupted, finish_reason, error.
"""


@click.command(cls=StoreCommand, epilog=EXAMPLES)
@click.argument("session", required=False)
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="Model to ask.")
@click.option(
    "--base-url",
    envvar="OPENAI_BASE_URL",
    metavar="URL",
    help="OpenAI-compatible endpoint, such as a local server. [default: OpenAI]",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="Send only the newest turns that fit. [default: all]",
)
@click.option("--system", metavar="TEXT", help="Add instructions, unless the session has them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per answer.")
@click.option(
    "--store",
    "address",
    envvar="PERDURE_URL",
    metavar="URL",
    default=DEFAULT_STORE,
    help=f"Store; created if missing. [default: PERDURE_URL, else {DEFAULT_STORE}]",
)
@keys_option
def chat(
    address: str,
    session: str | None,
    model: str,
    base_url: str | None,
    max_tokens: int | None,
    system: str | None,
    *,
    as_json: bool,
) -> None:
    """Chat with a model in a durable session.

    Your message is durable before the model is asked; the answer becomes durable while it streams.
    After Ctrl-C, a crash or a kill, the same command shows the last message and continues.
    """
    if session == "":
        raise InvalidCallError("The name of the session is empty: give one, or omit it.")
    if session and looks_like_address(session):
        raise InvalidCallError("The name of the session is a store address: did you mean --store?")
    is_terminal = is_tty(sys.stdin) and is_tty(sys.stdout) and not as_json
    view = ChatView(is_terminal=is_terminal, as_json=as_json)
    chosen = choose_model(model, base_url, paced=is_terminal)
    counter = _exact_counter(chosen)
    with InterruptGuard() as stop, _open_store(address, counter) as source:
        try:
            name = session or (
                choose_session(source, stop) if is_terminal else new_session_name(source)
            )
        except (EOFError, KeyboardInterrupt):
            echo()
            return
        with source.store.session(name) as session_handle:
            talk = ChatSession(
                session_handle, chosen.model, view, stop, budget=max_tokens, counter=counter
            )
            _introduce(talk, source, chosen, system)
            prompt = _prompt_text(is_terminal=is_terminal)
            interrupted = _converse(talk, SlashCommands(source, talk), prompt)
            _print_resume_command(talk, [*_resume_options(address, model, base_url)])
    if not is_terminal and (interrupted or talk.failures):
        raise SystemExit(INTERRUPTED if interrupted else BAD_NEWS)


def _exact_counter(chosen: ModelChoice) -> Counter | None:
    """Return the exact token counter for a model, or None if there is none."""
    try:
        return counter_for(chosen.model.name)
    except (UnsupportedError, UsageError):
        return None


@contextmanager
def _open_store(address: str, counter: Counter | None) -> Iterator[OpenStore]:
    refuse_memory(address)
    backend = open_backend(address)
    with perdure.open(backend, tokens=counter, **given_keys().options) as store:
        yield OpenStore(store, backend)


def _introduce(
    talk: ChatSession, source: OpenStore, chosen: ModelChoice, system: str | None
) -> None:
    session, view = talk.session, talk.view
    if chosen.notice:
        view.notice(chosen.notice, style="yellow")
    view.title(session.id, source.name, talk.model.name, is_new=not session.position)
    if talk.open_turn is not None and not talk.is_answered:
        talk.show_open_turn()
    elif len(session) and view.is_terminal:
        view.show_last(len(session), session.last_message)
    if system and not _has_instructions(session, system):
        session.append({"role": "system", "content": system})
    if view.is_terminal:
        view.notice("Ctrl-C stops an answer, Ctrl-D leaves, /help lists the commands.")
    view.blank_line()


def _has_instructions(session: Session, system: str) -> bool:
    instructions = {"role": "system", "content": system}
    return any(message == instructions for message in session.messages())


def _converse(talk: ChatSession, commands: SlashCommands, prompt: str) -> bool:
    """Read and answer the user's input until it ends; return whether Ctrl-C ended it."""
    while True:
        try:
            line = _read_line(talk, prompt)
        except KeyboardInterrupt:
            if talk.view.is_terminal and _has_typed():
                echo()  # The line typed so far is dropped, as in a shell.
                continue
            return True
        if line is None or line.strip().lower() in {"/quit", "/exit"}:
            return False
        try:
            _handle_line(line, talk, commands)
        except ConflictError as error:
            talk.switch_to(talk.session)
            talk.report_error(f"Another process wrote to this session: {error}")
        except UsageError as error:
            talk.report_error(str(error))
        if talk.was_interrupted and not talk.view.is_terminal:
            return True


def _handle_line(line: str, talk: ChatSession, commands: SlashCommands) -> None:
    if not line.strip():
        talk.answer_pending()
    elif line.startswith("//"):
        talk.send(line[1:])
    elif not commands.run(line):
        talk.send(line)


def _read_line(talk: ChatSession, prompt: str) -> str | None:
    """Return the user's next line, or None at the end of the input."""
    try:
        if not talk.view.is_terminal:
            with talk.stop.interruptible():
                line = sys.stdin.readline() if sys.stdin else ""
            return line.rstrip("\n") if line else None
        talk.stop.clear()
        with talk.stop.interruptible():
            return input(prompt)
    except EOFError:
        return None
    except UnicodeDecodeError as error:
        raise InvalidCallError(f"The input is not text: {error}.") from error


def _has_typed() -> bool:
    """Return whether the user has typed part of a line."""
    editor = sys.modules.get("readline")
    return editor is not None and bool(editor.get_line_buffer())


def _prompt_text(*, is_terminal: bool) -> str:
    """Return the prompt, colored only if a line editor is there to measure it correctly."""
    if not is_terminal or click.get_current_context().color is False:
        return PROMPT
    try:
        import readline  # noqa: F401 - importing it gives `input` line editing
    except ImportError:
        return PROMPT
    return f"\001\x1b[36m\x1b[1m\002{PROMPT.rstrip()}\001\x1b[0m\002 "


def _print_resume_command(talk: ChatSession, options: Sequence[str]) -> None:
    """Print the command that resumes the session."""
    if talk.view.is_terminal:
        echo()
        command = shell_command("perdure", "chat", ids=[talk.session.id], options=options)
        echo(f"To continue: {command}")


def _resume_options(address: str, model: str, base_url: str | None) -> Iterator[str]:
    """Yield the options that are needed to resume the conversation."""
    source_of = click.get_current_context().get_parameter_source
    for name, option, value in (
        ("address", "--store", without_password(address)),
        ("base_url", "--base-url", base_url),
        ("model", "--model", model),
    ):
        if value is not None and source_of(name) is ParameterSource.COMMANDLINE:
            yield from (option, value)
