"""Workflow behind `saver.threads.repair`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from threadkeep import validation
from threadkeep.engine.context import Engine
from threadkeep.errors import InvalidArgumentError, ThreadNotFoundError
from threadkeep.progress import Progress, no_progress
from threadkeep.repair import workflow
from threadkeep.repair.check import threads_to_check
from threadkeep.repair.quarantine import QuarantineFile
from threadkeep.repair.workflow import RepairReport
from threadkeep.store.store import LayeredStore
from threadkeep.store.workflows import Plan, aside, on


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
    if names is not None:
        there, _ = yield from on(beneath, threads_to_check())
        for name in names:
            if name not in there:
                raise ThreadNotFoundError(hint="Nothing was changed.", thread=name)
    path = None if file is None or dry_run else Path(file)
    quarantine = None
    if path is not None:
        quarantine = yield from aside(lambda: QuarantineFile(path))
    tell = progress or no_progress
    return (yield from workflow.repair(beneath, engine, names, quarantine, tell))
