"""Archived messages of layered memory that a thread has lost."""

from __future__ import annotations

import json
from collections.abc import Iterator

from threadkeep._core.engine.lineage import CheckpointKey, Lineage
from threadkeep._core.engine.model import LAYERS_KEY, LAYERS_NS, ThreadRows


def lost_records(rows: ThreadRows, lineage: Lineage) -> Iterator[tuple[CheckpointKey, str]]:
    """Yield the readable checkpoints whose archived messages are missing, and the problems."""
    there = {stored.row.id for stored in rows.checkpoints if stored.row.ns == LAYERS_NS}
    for (ns, id), stored in lineage.stored.items():
        row = stored.row
        if ns == LAYERS_NS:
            record = row.parent
        elif not ns and LAYERS_KEY in row.metadata:
            record = json.loads(row.metadata).get(LAYERS_KEY)
        else:
            continue
        if record and record not in there:
            yield (ns, id), f"archived messages are missing: there is no record {record}"
