"""What is restored, as a table in a page: each row names the test that tries it.

    python -m tests.adapters.restored     write the tables into the pages

Imports no framework: the pages are checked where none is installed.
"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
EXACT = "exact"
SHOWN = re.compile(r"(?<=<!-- restored -->\n\n).*(?=\n\n<!-- /restored -->)", re.DOTALL)


class Row(NamedTuple):
    """A line of a table."""

    what: str
    finished: str
    killed: str
    test: str

    @property
    def function(self) -> str:
        return self.test.partition("[")[0]

    @property
    def case(self) -> str:
        """What the test is parametrised with; "" if it is not."""
        return self.test.partition("[")[2].removesuffix("]")


class Table(NamedTuple):
    """The rows of a framework, the page that shows them, and the folder that has their tests."""

    page: Path
    tests: Path
    period: str
    rows: list[Row]

    def text(self) -> str:
        """Return the table as the page has to have it."""
        heads = ["What", f"After a finished {self.period}", "After a kill", "Tried by"]
        lines = [heads, ["---"] * len(heads), *([*row[:3], f"`{row.test}`"] for row in self.rows)]
        return "\n".join(f"| {' | '.join(cells)} |".replace(" --- ", "---") for cells in lines)

    def shown(self) -> str | None:
        """Return the table that the page has; None if it has none."""
        found = SHOWN.search(self.page.read_text("utf-8"))
        return found[0] if found else None

    def functions(self) -> set[str]:
        """Return the names of the tests that there are."""
        trees = [ast.parse(path.read_text("utf-8")) for path in self.tests.glob("test_*.py")]
        kinds = ast.FunctionDef | ast.AsyncFunctionDef
        return {node.name for tree in trees for node in tree.body if isinstance(node, kinds)}

    def write(self) -> None:
        text = self.page.read_text("utf-8")
        self.page.write_text(SHOWN.sub(lambda _: self.text(), text), "utf-8")


def tables() -> list[Table]:
    from tests.adapters.agentchat import restored as agentchat
    from tests.adapters.autogen import restored as autogen

    return [agentchat.TABLE, autogen.TABLE]


def table(page: str, folder: str, period: str, rows: list[Row]) -> Table:
    tests = ROOT / "tests" / "adapters" / folder
    return Table(ROOT / "docs" / "how-to" / page, tests, period, rows)


if __name__ == "__main__":
    for one in tables():
        one.write()
