"""`perdure approve`: approve a pending call."""

from perdure.cli.deciding import deciding

approve = deciding(
    "approve",
    otherwise="needs another approval",
    why="Reason for the decision; recorded.",
    example="invoice seen",
)
