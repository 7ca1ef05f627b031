"""`python -m perdure` is the command `perdure`."""

from perdure.cli.__main__ import main

if __name__ == "__main__":
    main(prog_name="perdure")
