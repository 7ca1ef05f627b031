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

INTERRUPTED = 128 + 2  # What a shell reports of a program that SIGINT ended.

EXAMPLES = """\b
Examples:
  perdure chat                            choose a session, or begin one
  perdure chat claim-4711 --model gpt-4o
  perdure chat --base-url http://localhost:11434/v1 --model llama3.2
  echo "Who signs it?" | perdure chat claim-4711 --json

\b
OPENAI_API_KEY is used if it is set; it and --base-url need the openai package
(pip install 'perdure[openai]'). With neither, a script answers, so that it
can be tried.

\b
Ctrl-C stops an answer and keeps what was said; at the prompt it leaves.
/help lists the commands: /branch, /undo, /summary, /tokens, /drop, /quit.

\b
Lines that come from a pipe are answered one by one; exits with 1 if one was
not. With --json, each answer is an object: session, turn, position, model,
content, interrupted, finish_reason, error.
"""


@click.command(cls=Reading, epilog=EXAMPLES)
@click.argument("session", required=False)
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="Which model answers.")
@click.option(
    "--base-url",
    envvar="OPENAI_BASE_URL",
    metavar="URL",
    help="An OpenAI-compatible endpoint, such as a local server. [default: OpenAI]",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="Send the model no more than the newest turns that fit. [default: all]",
)
@click.option("--system", metavar="TEXT", help="Instructions, added unless they are there.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each answer.")
@click.option(
    "--store",
    "address",
    envvar="PERDURE_URL",
    metavar="URL",
    default=DEFAULT,
    help=f"The store; it is made if need be. [default: PERDURE_URL, else {DEFAULT}]",
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
    """Talk with a model; the conversation survives the process.

    What you say is durable before the model is asked, and its answer while it comes. After Ctrl-C,
    a crash or a kill, the same command shows what was last said and goes on.
    """
    if session == "":
        raise WrongCallError("The name of the session is empty: give one, or leave it out.")
    if session and holds_address(session):
        raise WrongCallError("The name of the session is an address: did you mean --store?")
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
        with source.store.session(name) as opened:
            talk = Talk(opened, chosen.model, view, stop, budget=max_tokens, counter=counter)
            _introduce(talk, source, chosen, system)
            prompt = _prompt(is_terminal=is_terminal)
            stopped = _converse(talk, Commands(source, talk), prompt)
            _goodbye(talk, [*_options(address, model, base_url)])
    if not is_terminal and (stopped or talk.failures):
        raise SystemExit(INTERRUPTED if stopped else BAD_NEWS)


def _counter(chosen: Chosen) -> Counter | None:
    """Return the exact counter for a model, or None where there is none."""
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
    if talk.open is not None and not talk.answered:
        talk.show_open()
    elif len(session) and view.is_terminal:
        view.last(len(session), session.last)
    if system and not _instructed(session, system):
        session.append({"role": "system", "content": system})
    if view.is_terminal:
        view.notice("Ctrl-C stops an answer, Ctrl-D leaves, /help lists the commands.")
    view.space()


def _instructed(session: Session, system: str) -> bool:
    wanted = {"role": "system", "content": system}
    return any(message == wanted for message in session.messages())


def _converse(talk: Talk, commands: Commands, prompt: str) -> bool:
    """Read what the user says until there is no more; say whether Ctrl-C ended it."""
    while True:
        try:
            line = _read(talk, prompt)
        except KeyboardInterrupt:
            if talk.view.is_terminal and _typed():
                say()  # What was typed is dropped, as in a shell.
                continue
            return True
        if line is None or line.strip().lower() in {"/quit", "/exit"}:
            return False
        try:
            _heed(line, talk, commands)
        except ConflictError as error:
            talk.move(talk.session)
            talk.trouble(f"Another process writes here: {error}")
        except UsageError as error:
            talk.trouble(str(error))
        if talk.stopped and not talk.view.is_terminal:
            return True


def _heed(line: str, talk: Talk, commands: Commands) -> None:
    if not line.strip():
        talk.go_on()
    elif line.startswith("//"):
        talk.say(line[1:])
    elif not commands.run(line):
        talk.say(line)


def _read(talk: Talk, prompt: str) -> str | None:
    """Return what the user says next, or None if that was all."""
    try:
        if not talk.view.is_terminal:
            with talk.stop.waiting():
                line = sys.stdin.readline() if sys.stdin else ""
            return line.rstrip("\n") if line else None
        talk.stop.forget()
        with talk.stop.waiting():
            return input(prompt)
    except EOFError:
        return None
    except UnicodeDecodeError as error:
        raise WrongCallError(f"What was given is not text: {error}.") from error


def _typed() -> bool:
    """Whether the user was in the middle of a line."""
    editor = sys.modules.get("readline")
    return editor is not None and bool(editor.get_line_buffer())


def _prompt(*, is_terminal: bool) -> str:
    """Return what stands before the user's words; with colours only where a line editor knows."""
    if not is_terminal or click.get_current_context().color is False:
        return PROMPT
    try:
        import readline  # noqa: F401 - from here on, `input` lets the user edit.
    except ImportError:
        return PROMPT
    return f"\001\x1b[36m\x1b[1m\002{PROMPT.rstrip()}\001\x1b[0m\002 "


def _goodbye(talk: Talk, more: Sequence[str]) -> None:
    """Say how to come back."""
    if talk.view.is_terminal:
        say()
        say(f"To go on: {safe(shlex.join(['perdure', 'chat', talk.session.id, *more]))}")


def _options(address: str, model: str, base_url: str | None) -> Iterator[str]:
    """Yield the options that the same conversation needs again."""
    source = click.get_current_context().get_parameter_source
    for name, option, value in (
        ("address", "--store", without_password(address)),
        ("base_url", "--base-url", base_url),
        ("model", "--model", model),
    ):
        if value is not None and source(name) is ParameterSource.COMMANDLINE:
            yield from (option, value)
