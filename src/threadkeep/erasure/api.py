"""Workflow behind `saver.threads.erase`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from threadkeep import validation
from threadkeep.engine.context import Engine
from threadkeep.engine.operation import Progress
from threadkeep.erasure import erase as workflow
from threadkeep.erasure.erase import EraseReport
from threadkeep.errors import InvalidArgumentError, invalid
from threadkeep.layers.driver import Workflow
from threadkeep.registry import filters
from threadkeep.store import LayeredStore


def erase(
    store: LayeredStore,
    engine: Engine,
    thread: str | None,
    metadata: Mapping[str, Any] | None,
    progress: Progress | None,
    **flags: bool,
) -> Workflow[EraseReport]:
    """See `Threads.erase`. The flags are `forks`, `rewrite` and `dry_run`."""
    for name, value in flags.items():
        validation.flag(name, value)
    if (thread is None) == (metadata is None):
        raise InvalidArgumentError(
            "Threads to erase are not named, or named twice.",
            hint='Use a thread\'s name, or metadata={"user_id": ...}.',
        )
    own = None if thread is None else validation.thread_id(thread)
    labels = _labels(metadata) if thread is None else ()
    return workflow.erase(store, engine, own, labels, progress=progress, **flags)


def _labels(metadata: object) -> tuple[str, ...]:
    """Return the labels of one piece of metadata at least."""
    if not metadata or not isinstance(metadata, Mapping):
        raise invalid("metadata", metadata, 'Name the threads: {"user_id": "u1"}.')
    return filters.metadata_labels(metadata)
