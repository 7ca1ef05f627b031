"""`perdure approve`: let a call happen that waits for an approval."""

from perdure.cli.deciding import deciding

approve = deciding(
    "approve",
    otherwise="needs another approval",
    why="Why, for the record.",
    example="invoice seen",
)
