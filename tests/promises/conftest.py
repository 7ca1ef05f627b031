"""A place for trials that is empty and fast."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.promises import places


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a busy machine time: what hangs is noticed by the trials themselves."""
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture
def directory() -> Iterator[Path]:
    with places.fast_directory() as found:
        yield found
