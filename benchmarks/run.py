"""perdure beside others: `python benchmarks/run.py --help`.

Needs what requirements/bench.txt pins; whoever is missing there is shown as not installed.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.command import main

if __name__ == "__main__":
    sys.exit(main())
