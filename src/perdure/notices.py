"""Say through `logging` what a person should know although nothing failed.

Imported only when there is something to say: `logging` is not needed to use perdure.
"""

import logging

from perdure.replica import Replica

logger = logging.getLogger("perdure")


def report_skipped(replica: Replica) -> None:
    """Tell of fold snapshots that opening could not use, and read past."""
    for error in replica.skipped:
        logger.warning("%s: opening read further back; the records themselves are whole", error)
