"""What the wrapper of an OpenAI client adds to a call, beyond the appends that it makes.

Each call is made twice, in turns: through the wrapper, and by the bare client with the same turn,
window and appends by hand. The store is in memory, so that no disk hides the difference. On a busy
machine the server's pauses are most of a call: the processor time beside it says what is ours.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import perdure
from benchmarks.report import Line, Part, Progress, table

MOST = 0.001
WINDOW = 8
SERVER = [sys.executable, "-m", "perdure.testing.model_server", "--until-eof"]

Call = Callable[[str], object]


def _by_hand(client: Any, session: perdure.Session) -> dict[str, Call]:
    def create(text: str) -> None:
        with session.turn(text) as turn:
            messages = session.messages(format="openai.chat", max_messages=WINDOW)
            turn.append(client.chat.completions.create(model="m", messages=messages))

    def stream(text: str) -> None:
        with session.turn(text) as turn:
            messages = session.messages(format="openai.chat", max_messages=WINDOW)
            chunks = client.chat.completions.create(model="m", messages=messages, stream=True)
            for _ in turn.stream(chunks):
                pass

    def respond(text: str) -> None:
        with session.turn(text) as turn:
            items = session.messages(format="openai.responses", max_messages=WINDOW)
            turn.append(client.responses.create(model="m", input=list(items)))

    return {"chat": create, "chat, streamed": stream, "responses": respond}


def _wrapped(client: Any, session: perdure.Session) -> dict[str, Call]:
    from perdure.adapters.openai import wrap

    wrapped: Any = wrap(client, session, max_messages=WINDOW)

    def create(text: str) -> None:
        messages = [{"role": "user", "content": text}]
        wrapped.chat.completions.create(model="m", messages=messages)

    def stream(text: str) -> None:
        messages = [{"role": "user", "content": text}]
        for _ in wrapped.chat.completions.create(model="m", messages=messages, stream=True):
            pass

    def respond(text: str) -> None:
        wrapped.responses.create(model="m", input=text)

    return {"chat": create, "chat, streamed": stream, "responses": respond}


def _seconds(call: Call, text: str) -> tuple[float, float]:
    """Return the seconds and the processor seconds of a call."""
    start, before = time.perf_counter(), time.thread_time()
    call(text)
    return time.perf_counter() - start, time.thread_time() - before


def measure(_folder: Path, *, repeats: int) -> Part:
    """Make the calls in turns, on a model server in a process of its own."""
    import openai

    pipe = subprocess.PIPE
    part = Part("adapter")
    rows = []
    with (
        subprocess.Popen(SERVER, stdin=pipe, stdout=pipe, text=True) as process,
        perdure.open("memory:") as store,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with openai.OpenAI(base_url=url, api_key="test") as client:
            ways = _by_hand(client, store.session("hand")), _wrapped(client, store.session("wrap"))
            progress = Progress("adapter", len(ways[0]))
            for name in ways[0]:
                pairs = _pairs(ways[0][name], ways[1][name], repeats)
                hand, wrapped = (statistics.median(one[way][0] for one in pairs) for way in (0, 1))
                elapsed, added = (
                    statistics.median(two[kind] - one[kind] for one, two in pairs)
                    for kind in (0, 1)
                )
                part.data[name] = {"pairs_s": pairs, "added_s": elapsed, "added_cpu_s": added}
                figures = [f"{1e3 * one:.2f}" for one in (hand, wrapped, elapsed, added)]
                rows.append([name, *figures])
                says = f"the wrapper adds to a call ({name})"
                figure = f"{1e3 * elapsed:.2f} ms"
                part.lines.append(Line(says, figure, "at most 1 ms, median", elapsed <= MOST))
                progress.step(f"{name}: {figure}")
        process.stdin.close()
    head = ["medians, ms", "by hand", "wrapped", "added", "of processor time"]
    part.tables.append(table(head, rows))
    return part


def _pairs(
    hand: Call, wrapped: Call, repeats: int
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    for number in range(10):
        hand(f"warm {number}")
        wrapped(f"warm {number}")
    return [
        (_seconds(hand, f"hello {number}"), _seconds(wrapped, f"hello {number}"))
        for number in range(repeats)
    ]
