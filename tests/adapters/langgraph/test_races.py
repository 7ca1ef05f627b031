"""Two runs on one thread at the same time: one is told that it lost; nothing is lost in silence.

`python -m tests.adapters.langgraph.test_races 100` tries that often, in every mode, on both.
"""

import random
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

import perdure
from perdure.adapters.langgraph import PerdureSaver
from tests.adapters.langgraph.graphs import chat, config, human, texts

MODES = ("sync", "async", "exit")
KINDS = ("first turn", "existing thread", "newest by its id", "earlier by its id")


class Together:
    """Lets two runs go on once both have read the thread."""

    def __init__(self, saver: Any, barrier: threading.Barrier) -> None:
        self._saver, self._barrier = saver, barrier
        self._met: set[int] = set()

    def __call__(self, config: Any) -> Any:
        found = type(self._saver).get_tuple(self._saver, config)
        if threading.get_ident() not in self._met:
            self._met.add(threading.get_ident())
            self._barrier.wait(30)
        return found


def race(graphs: list[Any], savers: list[Any], thread: Any, mode: str) -> dict[str, str]:
    """Run two turns at once; return how each ended."""
    ends: dict[str, str] = {}
    barrier = threading.Barrier(2)
    for saver in savers:
        saver.get_tuple = Together(saver, barrier)

    def turn(graph: Any, name: str) -> None:
        try:
            graph.invoke(human(name), thread, durability=mode)
            ends[name] = "done"
        except perdure.ConflictError:
            ends[name] = "told"

    runs = [
        threading.Thread(target=turn, args=(graphs[at % len(graphs)], name))
        for at, name in enumerate("AB")
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join(60)
    for saver in savers:
        del saver.get_tuple
    return ends


def prepare(graph: Any, kind: str, thread: str) -> Any:
    """Return the configuration that both runs use."""
    if kind == "first turn":
        return config(thread)
    graph.invoke(human("zero"), config(thread))
    if kind == "existing thread":
        return config(thread)
    read = graph.get_state(config(thread)).config
    if kind == "earlier by its id":
        graph.invoke(human("more"), config(thread))
    return read


def count(savers: list[Any], mode: str, kind: str, times: int, seed: int) -> Counter[str]:
    """Race many times; count how the races ended."""
    chance = random.Random(seed)
    ends: Counter[str] = Counter()

    def node(state: Any) -> Any:
        threading.Event().wait(chance.random() * 0.003)
        return {"messages": [AIMessage(f"re:{state['messages'][-1].content}")]}

    graphs = [chat(saver, node) for saver in savers]
    for number in range(times):
        thread = f"{mode} {kind} {number}"
        used = prepare(graphs[0], kind, thread)
        told = race(graphs, savers, used, mode)
        final = texts(graphs[0].get_state(config(thread)).values)
        done = [name for name, end in told.items() if end == "done"]
        lost = [name for name in done if f"re:{name}" not in final]
        ends["silent loss" if lost else f"{len(done)} done, {len(told) - len(done)} told"] += 1
        assert len(told) == 2
    return ends


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_of_two_runs_that_read_the_same_one_is_told(
    kind: str, mode: str, processes: int, path: Path
) -> None:
    savers: list[Any] = [PerdureSaver(path) for _ in range(processes)]
    assert count(savers, mode, kind, 1, seed=1) == {"1 done, 1 told": 1}
    for saver in savers:
        saver.close()


def main() -> None:
    times = int(sys.argv[1])
    for mode in MODES:
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "a.db"
                kinds: dict[str, list[Any]] = {
                    "official": [InMemorySaver()],
                    "one saver": [PerdureSaver(path)],
                    "two savers": [PerdureSaver(path), PerdureSaver(path)],
                }
                for name, savers in kinds.items():
                    print(mode, kind, name, dict(count(savers, mode, kind, times, 7)), flush=True)


if __name__ == "__main__":
    main()
