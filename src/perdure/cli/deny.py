"""`perdure deny`: have a call not made that waits for an approval."""

from perdure.cli.deciding import deciding

deny = deciding(
    "deny", otherwise="asks anew", why="Why not: the model is told.", example="not this year"
)
