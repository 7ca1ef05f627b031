"""A place for trials that is empty and fast."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durability import places


@pytest.fixture
def directory() -> Iterator[Path]:
    with places.fast_directory() as found:
        yield found
