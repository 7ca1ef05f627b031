from perdure.backends.protocol import DELETED, HALF_COPIED

TURN_OPEN = "turn-open"

UNKNOWN_EFFECT = "unknown-effect"

LEASED = "leased"

APPROVAL_WAITING = "approval-waiting"

RESERVED_LABELS = frozenset(
    {TURN_OPEN, DELETED, UNKNOWN_EFFECT, LEASED, APPROVAL_WAITING, HALF_COPIED}
)
