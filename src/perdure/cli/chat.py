"""`perdure chat`: an assistant in the terminal whose conversations survive their process."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
from click.core import ParameterSource

import perdure
from perdure.cli.chat_choice import ask_which, new_name
from perdure.cli.chat_commands import Commands
from perdure.cli.chat_model import DEFAULT_MODEL, Chosen, choose
from perdure.cli.chat_stop import Stop
from perdure.cli.chat_talk import Talk
from perdure.cli.chat_view import PROMPT, View
from perdure.cli.stores import (
    BAD_NEWS,
    DEFAULT,
    Opened,
    Reading,
    WrongCallError,
    without_password,
)
from perdure.cli.text import at_terminal, safe, say
from perdure.errors import ConflictError, UnsupportedError, UsageError
from perdure.opening import backend_of, holds_address, scheme_of
from perdure.session import Session
from perdure.tokens import Counter, counter_for

INTERRUPTED = 128 + 2  # The exit code that a shell reports for a program ended by SIGINT.

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


@click.command(cls=Reading, epilog=EXAMPLES)
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
    default=DEFAULT,
    help=f"Store; created if missing. [default: PERDURE_URL, else {DEFAULT}]",
)
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
        raise WrongCallError("The name of the session is empty: give one, or omit it.")
    if session and holds_address(session):
        raise WrongCallError("The name of the session is a store address: did you mean --store?")
    is_terminal = at_terminal(sys.stdin) and at_terminal(sys.stdout) and not as_json
    view = View(is_terminal=is_terminal, as_json=as_json)
    chosen = choose(model, base_url, paced=is_terminal)
    counter = _counter(chosen)
    with Stop() as stop, _opened(address, counter) as source:
        try:
            name = session or (ask_which(source, stop) if is_terminal else new_name(source))
        except (EOFError, KeyboardInterrupt):
            say()
            return
        with source.store.session(name) as session_handle:
            talk = Talk(
                session_handle, chosen.model, view, stop, budget=max_tokens, counter=counter
            )
            _introduce(talk, source, chosen, system)
            prompt = _prompt(is_terminal=is_terminal)
            interrupted = _converse(talk, Commands(source, talk), prompt)
            _goodbye(talk, [*_options(address, model, base_url)])
    if not is_terminal and (interrupted or talk.failures):
        raise SystemExit(INTERRUPTED if interrupted else BAD_NEWS)


def _counter(chosen: Chosen) -> Counter | None:
    """Return the exact token counter for a model, or None if there is none."""
    try:
        return counter_for(chosen.model.name)
    except (UnsupportedError, UsageError):
        return None


@contextmanager
def _opened(address: str, counter: Counter | None) -> Iterator[Opened]:
    if scheme_of(address)[0] == "memory":
        raise WrongCallError("A memory store is gone when the command ends: name one on disk.")
    backend = backend_of(address)
    with perdure.open(backend, tokens=counter) as store:
        yield Opened(store, backend)


def _introduce(talk: Talk, source: Opened, chosen: Chosen, system: str | None) -> None:
    session, view = talk.session, talk.view
    if chosen.notice:
        view.notice(chosen.notice, fg="yellow")
    view.title(session.id, source.name, talk.model.name, is_new=not session.position)
    if talk.open_turn is not None and not talk.is_answered:
        talk.show_open_turn()
    elif len(session) and view.is_terminal:
        view.show_last(len(session), session.last)
    if system and not _instructed(session, system):
        session.append({"role": "system", "content": system})
    if view.is_terminal:
        view.notice("Ctrl-C stops an answer, Ctrl-D leaves, /help lists the commands.")
    view.blank_line()


def _instructed(session: Session, system: str) -> bool:
    instructions = {"role": "system", "content": system}
    return any(message == instructions for message in session.messages())


def _converse(talk: Talk, commands: Commands, prompt: str) -> bool:
    """Read and answer the user's input until it ends; return whether Ctrl-C ended it."""
    while True:
        try:
            line = _read(talk, prompt)
        except KeyboardInterrupt:
            if talk.view.is_terminal and _typed():
                say()  # The line typed so far is dropped, as in a shell.
                continue
            return True
        if line is None or line.strip().lower() in {"/quit", "/exit"}:
            return False
        try:
            _heed(line, talk, commands)
        except ConflictError as error:
            talk.switch_to(talk.session)
            talk.report_error(f"Another process wrote to this session: {error}")
        except UsageError as error:
            talk.report_error(str(error))
        if talk.was_interrupted and not talk.view.is_terminal:
            return True


def _heed(line: str, talk: Talk, commands: Commands) -> None:
    if not line.strip():
        talk.answer_pending()
    elif line.startswith("//"):
        talk.send(line[1:])
    elif not commands.run(line):
        talk.send(line)


def _read(talk: Talk, prompt: str) -> str | None:
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
        raise WrongCallError(f"The input is not text: {error}.") from error


def _typed() -> bool:
    """Return whether the user has typed part of a line."""
    editor = sys.modules.get("readline")
    return editor is not None and bool(editor.get_line_buffer())


def _prompt(*, is_terminal: bool) -> str:
    """Return the prompt, colored only if a line editor is there to measure it correctly."""
    if not is_terminal or click.get_current_context().color is False:
        return PROMPT
    try:
        import readline  # noqa: F401 - importing it gives `input` line editing
    except ImportError:
        return PROMPT
    return f"\001\x1b[36m\x1b[1m\002{PROMPT.rstrip()}\001\x1b[0m\002 "


def _goodbye(talk: Talk, options: Sequence[str]) -> None:
    """Print the command that resumes the session."""
    if talk.view.is_terminal:
        say()
        say(f"To continue: {safe(shlex.join(['perdure', 'chat', talk.session.id, *options]))}")


def _options(address: str, model: str, base_url: str | None) -> Iterator[str]:
    """Yield the options that are needed to resume the conversation."""
    source_of = click.get_current_context().get_parameter_source
    for name, option, value in (
        ("address", "--store", without_password(address)),
        ("base_url", "--base-url", base_url),
        ("model", "--model", model),
    ):
        if value is not None and source_of(name) is ParameterSource.COMMANDLINE:
            yield from (option, value)
