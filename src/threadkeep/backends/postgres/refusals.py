"""What the functions of the schema refuse, as our errors.

Only this reading of their answers lives here. Invariant: whatever is refused has changed
nothing (see `migrations/0001_tables.sql`).
"""

from __future__ import annotations

from threadkeep.backends.postgres.statement import Rows
from threadkeep.backends.postgres.text import unpack_text
from threadkeep.engine.model import Change
from threadkeep.errors import (
    ConflictError,
    SegmentTakenError,
    StaleThreadError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadkeepError,
)

_KINDS: dict[str, type[ThreadkeepError]] = {
    "deleted": ThreadDeletedError,
    "stale": StaleThreadError,
    "conflict": ConflictError,
    "taken": SegmentTakenError,
    "exists": ThreadExistsError,
}


def refusal(rows: Rows, change: Change) -> ThreadkeepError | None:
    """The error that an answer means; None where the change was carried out."""
    kind, *place = rows[0][:3]
    if not kind:
        return None
    ns, checkpoint = (unpack_text(text) if text else None for text in place or (None, None))
    return _KINDS[kind](thread=change.thread, namespace=ns, checkpoint=checkpoint)
