"""Workflow behind `saver.threads.repair`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from threadkeep import validation
from threadkeep.engine.context import Engine
from threadkeep.engine.operation import Progress
from threadkeep.errors import InvalidArgumentError
from threadkeep.repair import repair as workflow
from threadkeep.repair.repair import RepairReport
from threadkeep.store.driver import Plan
from threadkeep.store.store import LayeredStore


def repair(
    store: LayeredStore,
    engine: Engine,
    threads: str | Iterable[str] | None,
    file: str | os.PathLike[str] | None,
    progress: Progress | None,
    *,
    dry_run: bool,
) -> Plan[RepairReport]:
    """See `Threads.repair`."""
    names, beneath = validation.thread_ids(threads), store.beneath()
    if file is None and not dry_run:
        raise InvalidArgumentError(
            "A quarantine file is needed.",
            hint='Use file="quarantine.tkq", or dry_run=True to see what would be done.',
        )
    path = None if file is None or dry_run else Path(file)
    return workflow.repair(beneath, engine, names, path, progress=progress)
