"""Threads of LangGraph on perdure and on LangGraph's own SQLite saver, side by side.

    .venvs/langgraph-3.11/bin/python benchmarks/threads.py [TURNS]

An unmodified `add_messages` graph of one node: 200 bytes of a user and 400 of an assistant a turn,
durability "sync". The two take turns in one process, so that both meet the same noise. Times are
CPU time: of the calling thread for a saver's method, of the process for a whole turn.
"""

import os
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

from perdure.adapters.langgraph import PerdureSaver

MARKS = (10, 100, 500, 1000)
THREAD = {"configurable": {"thread_id": "t"}}
chance = random.Random(1)


class State(TypedDict):
    """A conversation."""

    messages: Annotated[list[Any], add_messages]


def text(size: int) -> str:
    return chance.randbytes(size // 2).hex()


def build(saver: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("chat", lambda _: {"messages": [AIMessage(text(400))]})
    builder.add_edge(START, "chat")
    return builder.compile(checkpointer=saver)


def median(times: list[float], last: int) -> float:
    return statistics.median(times[-last:]) * 1e3


def size(path: Path) -> float:
    """Return the megabytes of a file and its write-ahead log."""
    files = [path, Path(f"{path}-wal")]
    return sum(file.stat().st_size for file in files if file.exists()) / 1e6


class Contender:
    """A saver, the CPU times of its methods, and those of whole turns."""

    def __init__(self, name: str, path: Path, saver: Any) -> None:
        self.name, self.path, self.saver = name, path, saver
        self.times: dict[str, list[float]] = {"put": [], "get_tuple": [], "turn": []}
        for method in ("put", "get_tuple"):
            setattr(saver, method, self._timed(method, getattr(saver, method)))
        self.graph = build(saver)

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.thread_time()
            result = method(*args)
            self.times[name].append(time.thread_time() - start)
            return result

        return call

    def turn(self, question: str, thread: Any = THREAD) -> float:
        start = time.process_time()
        self.graph.invoke({"messages": [HumanMessage(question)]}, thread, durability="sync")
        self.times["turn"].append(time.process_time() - start)
        return self.times["turn"][-1]

    def line(self, turn: int) -> str:
        put, get = median(self.times["put"], 24), median(self.times["get_tuple"], 8)
        whole = median(self.times["turn"], 8)
        sizes = f"{size(self.path):8.2f} MB"
        return (
            f"{turn:5} {self.name:9} {sizes}  put {put:6.3f}  get {get:6.3f}  turn {whole:6.2f} ms"
        )


def open_official(path: Path) -> Any:
    return SqliteSaver(sqlite3.connect(path, check_same_thread=False))


def early_turns(folder: Path, threads: int = 12) -> None:
    """Print what the ninth to twelfth turns of fresh threads cost: one thread is too noisy."""
    both = [
        Contender("perdure", folder / "p10.db", PerdureSaver(folder / "p10.db")),
        Contender("official", folder / "o10.db", open_official(folder / "o10.db")),
    ]
    times: dict[str, list[float]] = {each.name: [] for each in both}
    for number in range(threads):
        for turn in range(12):
            for each in both:
                cpu = each.turn(text(200), {"configurable": {"thread_id": f"t{number}"}})
                if turn >= 8 and number > 1:
                    times[each.name].append(cpu)
    medians = {name: statistics.median(each) * 1e3 for name, each in times.items()}
    ratio = medians["perdure"] / medians["official"]
    print(f"turn 10, {threads} threads: {medians} ms, perdure : official {ratio:.2f}")
    both[0].saver.close()


def grow(folder: Path, turns: int) -> None:
    """Print sizes and times as a thread grows."""
    both = [
        Contender("perdure", folder / "p.db", PerdureSaver(folder / "p.db")),
        Contender("official", folder / "o.db", open_official(folder / "o.db")),
    ]
    for turn in range(1, turns + 1):
        question = text(200)
        for each in both:
            each.turn(question)
        if turn in MARKS or turn == turns:
            for each in both:
                print(each.line(turn), flush=True)
    own = both[0]
    own.saver.close()
    print(f"closed: perdure {size(own.path):.2f} MB")


def open_cold(folder: Path) -> None:
    """Print what the first reading of a thread costs in a new process, the two in turns."""
    opened, first, official = [], [], []
    for _ in range(7):
        start = time.process_time()
        saver = PerdureSaver(folder / "p.db")
        saver.thread("t")
        opened.append(time.process_time() - start)
        start = time.process_time()
        found = saver.get_tuple(THREAD)
        first.append(time.process_time() - start)
        saver.close()
        other = open_official(folder / "o.db")
        start = time.process_time()
        same = other.get_tuple(THREAD)
        official.append(time.process_time() - start)
        assert found is not None
        assert len(found.checkpoint["channel_values"]["messages"]) == len(
            same.checkpoint["channel_values"]["messages"]
        )
    ms = [median(times, 7) for times in (opened, first, official)]
    print(f"cold: open {ms[0]:.1f} ms, get_tuple {ms[1]:.1f} ms, official {ms[2]:.1f} ms", end=" ")
    print(f"(x {ms[1] / ms[2]:.1f})")


def shrink(folder: Path) -> None:
    """Print what pruning and deleting free."""
    with PerdureSaver(folder / "p.db") as saver:
        saver.prune(["t"])
    pruned = size(folder / "p.db")
    with PerdureSaver(folder / "p.db") as saver:
        saver.delete_thread("t")
    print(f"pruned: {pruned:.2f} MB, deleted: {size(folder / 'p.db'):.2f} MB")


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        early_turns(folder)
        grow(folder, turns)
        open_cold(folder)
        shrink(folder)


if __name__ == "__main__":
    main()
