"""Code that agents run for each other, as effects: what was run is not run again."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from perdure.adapters.autogen_tools import Effects

NAME = "code"  # What it is called in `tools=` and in the record.


def blocks_run(effects: Effects, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the agent's own way of running blocks: of a language and a text each."""
    durable = effects.tool(NAME, _plainly(lambda blocks: run([tuple(one) for one in blocks])))

    def call(code_blocks: Any) -> tuple[Any, ...]:
        result = durable(code_blocks=[list(one) for one in code_blocks])
        return (1, result) if isinstance(result, str) else tuple(result)

    return call


def executed(effects: Effects, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a code executor's way of running blocks."""
    kinds: list[Any] = []

    def again(blocks: list[dict[str, Any]]) -> list[Any]:
        result = run([kinds[0](**one) for one in blocks])
        return [result.exit_code, result.output]

    durable = effects.tool(NAME, _plainly(again))

    def call(code_blocks: Any) -> Any:
        kinds[:] = [type(one) for one in code_blocks]
        blocks = [{"code": one.code, "language": one.language} for one in code_blocks]
        result = durable(code_blocks=blocks)
        code, output = (1, result) if isinstance(result, str) else result
        return SimpleNamespace(exit_code=code, output=output)

    return call


def _plainly(run: Callable[[Any], Any]) -> Callable[..., list[Any]]:
    def code(code_blocks: list[Any]) -> list[Any]:
        return [*run(code_blocks)]

    return code
