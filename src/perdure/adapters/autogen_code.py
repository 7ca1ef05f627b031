"""Record code that agents execute for each other as effects: no block is executed twice."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from perdure.adapters.autogen_tools import Effects

NAME = "code"  # Tool name in `tools=` and in the record.


def blocks_run(effects: Effects, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a durable version of an agent's `execute_code_blocks`: pairs of language and code."""
    durable = effects.tool(NAME, _plainly(lambda blocks: run([tuple(block) for block in blocks])))

    def call(code_blocks: Any) -> tuple[Any, ...]:
        result = durable(code_blocks=[list(block) for block in code_blocks])
        return (1, result) if isinstance(result, str) else tuple(result)

    return call


def executed(effects: Effects, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a durable version of a code executor's `execute_code_blocks`."""
    block_types: list[Any] = []

    def run_data(blocks: list[dict[str, Any]]) -> list[Any]:
        result = run([block_types[0](**block) for block in blocks])
        return [result.exit_code, result.output]

    durable = effects.tool(NAME, _plainly(run_data))

    def call(code_blocks: Any) -> Any:
        # The record holds plain dicts: the executor gets back the block class it was called with.
        block_types[:] = [type(block) for block in code_blocks]
        blocks = [{"code": block.code, "language": block.language} for block in code_blocks]
        result = durable(code_blocks=blocks)
        code, output = (1, result) if isinstance(result, str) else result
        return SimpleNamespace(exit_code=code, output=output)

    return call


def _plainly(run: Callable[[Any], Any]) -> Callable[..., list[Any]]:
    """Return a function with a storable result and a recorded `code_blocks` argument."""

    def code(code_blocks: list[Any]) -> list[Any]:
        return [*run(code_blocks)]

    return code
