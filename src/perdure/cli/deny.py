"""`perdure deny`: deny a pending call."""

from perdure.cli.deciding import deciding

deny = deciding(
    "deny",
    otherwise="asks for approval again",
    why="Reason for the denial; the model receives it.",
    example="not this year",
)
