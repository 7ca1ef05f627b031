"""LangGraph's own conformance package: all tests of all capabilities, on every backend."""

import asyncio
from collections.abc import AsyncIterator

from langgraph.checkpoint.conformance import checkpointer_test, validate

from perdure.adapters.langgraph import PerdureSaver

TESTS = 81
CAPABILITIES = 8


def test_every_capability_passes_every_test(any_address: str) -> None:
    with PerdureSaver(any_address) as saver:

        @checkpointer_test(name="perdure")  # type: ignore[untyped-decorator]
        async def make() -> AsyncIterator[PerdureSaver]:
            yield saver

        report = asyncio.run(validate(make))
    results = report.results
    assert {name: result.failures for name, result in results.items() if result.failures} == {}
    assert sum(result.tests_passed for result in results.values()) == TESTS
    assert len([result for result in results.values() if result.tests_passed]) == CAPABILITIES
