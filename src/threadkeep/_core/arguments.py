"""LangGraph's configs and checkpoints, validated and converted to the engine's records, and back.

Pure functions. Containers of the caller are copied here.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_metadata,
)

from threadkeep._core import validation
from threadkeep._core.engine.calls import Put, PutWrites
from threadkeep._core.engine.listing import Listing
from threadkeep._core.engine.load import Load, Loaded
from threadkeep._core.engine.model import INPUT_KEY
from threadkeep._core.engine.operation import CheckpointRef
from threadkeep._core.engine.snapshots import RUNS
from threadkeep._core.langgraph_internals import RUNTIME, TASK_ID, TASK_NS
from threadkeep.errors import InvalidArgumentError, InvalidConfigError

OWN_RUN = "__threadkeep_run"
"""Key of a config: an object of something other than a graph's run that saves under one life."""
GUARD = "__threadkeep_guard"
"""Key of a config: the guard (`threadkeep.guard`) under which a run saves."""
TAKES = "__threadkeep_takes"
"""Key of a config: the stored input that a run begins with (a `TakenInput`)."""
OWN_RECORD = "__threadkeep_record"
"""Key of a config: the record of layered memory that a save refers to."""


def place(config: RunnableConfig) -> CheckpointRef:
    get = _configurable(config).get
    thread, ns, own_id = get("thread_id"), get("checkpoint_ns", ""), get("checkpoint_id")
    if type(own_id) is not str or not own_id.isascii():  # (the quick way first, as below)
        own_id = None if own_id is None else validation.checkpoint_id(own_id)
    if type(thread) is type(ns) is str and thread.isascii() and ns.isascii():
        return CheckpointRef(thread, ns, own_id or None)
    if thread is None:
        raise InvalidConfigError(
            "The config has no thread_id.", hint='Pass {"configurable": {"thread_id": "..."}}.'
        )
    return CheckpointRef(
        validation.text("thread_id", str(thread)),
        validation.text("checkpoint_ns", str(ns or "")),
        own_id or None,
    )


def head(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": validation.thread_id(thread), "checkpoint_ns": ""}}


def saving_as(run: object, config: RunnableConfig) -> RunnableConfig:
    """Return the config of a call that is not a graph's, and belongs to this run."""
    return {**config, "configurable": {**config["configurable"], OWN_RUN: run}}


def referring_to(record: str, config: RunnableConfig) -> RunnableConfig:
    """Return the config of a save that is refused unless the thread has this record."""
    return {**config, "configurable": {**config["configurable"], OWN_RECORD: record}}


def _configurable(config: RunnableConfig | None) -> Mapping[str, Any]:
    configurable = None
    if type(config) is dict or validation.is_mapping(config):  # (most are a dict)
        configurable = config.get("configurable")
    if type(configurable) is not dict and not validation.is_mapping(configurable):
        raise InvalidConfigError(
            'The config has no "configurable" part.',
            hint='Pass {"configurable": {"thread_id": "..."}}.',
        )
    return configurable


def load(config: RunnableConfig) -> Load:
    configurable = _configurable(config)
    inside = TASK_ID in configurable or TASK_NS in (config.get("metadata") or {})
    run = RUNTIME in configurable and not inside
    return Load(place(config), run, inside, _run_of(configurable))


def _run_of(configurable: Mapping[str, Any]) -> Any:
    """Return an object that belongs to the run whose config this is, or None outside of runs.

    A run's subgraphs have its `control` (since LangGraph 1.2). Before, only the run itself has it.
    """
    runtime = configurable.get(RUNTIME)
    return configurable.get(OWN_RUN) or getattr(runtime, "control", None) or runtime


def put(
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> Put:
    """Return the arguments of `put` as a record. The checkpoint's own versions count.

    A channel that `new_versions` names is new, even if its version is its parent's.
    """
    parent = place(config)
    if type(checkpoint) is not dict:
        validation.mapping("checkpoint", checkpoint, parent)
    copied: dict[str, Any] = dict(checkpoint)
    own_id = copied.get("id")
    if not isinstance(own_id, str) or not own_id:
        raise InvalidConfigError(
            "The checkpoint has no id.",
            hint="Every checkpoint has one: see langgraph.checkpoint.base.empty_checkpoint().",
            thread=parent.thread,
            namespace=parent.ns or None,
        )
    if type(own_id) is not str or not own_id.isascii():
        own_id = validation.text("checkpoint['id']", own_id, parent)
    thread, ns, above = parent
    target = CheckpointRef(thread, ns, own_id)
    values = copied.get("channel_values") or {}
    versions, new = copied.get("channel_versions") or {}, new_versions or {}
    for what, value in (
        ("checkpoint['channel_values']", values),
        ("checkpoint['channel_versions']", versions),
        ("metadata", metadata),
        ("new_versions", new),
    ):
        if type(value) is not dict:
            validation.mapping(what, value, target)
    copied["channel_values"], copied["channel_versions"] = dict(values), dict(versions)
    validation.checkpoint(copied, target)
    given: object = config.get("metadata")
    if type(given) is ChainMap:
        config = {**config, "metadata": _plain(given)}
    merged: Any = get_checkpoint_metadata(config, metadata)
    configurable = config["configurable"]
    by = RUNS.of(_run_of(configurable))
    run, record = RUNTIME in configurable, configurable.get(OWN_RECORD)
    guarded: dict[str, Any] = {}
    if (guard := configurable.get(GUARD)) is not None:  # (LeaseLostError if it knows of a loss)
        guarded["guard"] = guard.holder_of(thread)
        taken = configurable.get(TAKES)
        if taken is not None and guarded["guard"] and not ns and merged.get("source") == "input":
            merged[INPUT_KEY], guarded["takes"] = taken.key, taken
    new_ones = frozenset(new)
    return Put(target, above, copied, merged, new_ones, run=run, record=record, by=by, **guarded)


_PUT = ("config", "checkpoint", "metadata", "new_versions")


def puts(many: Sequence[Sequence[Any]]) -> list[Put]:
    calls = []
    for number, one in enumerate(many):
        if not isinstance(one, tuple | list) or len(one) not in (3, len(_PUT)):
            found = f" of {len(one)}" if isinstance(one, tuple | list) else ""
            raise InvalidArgumentError(
                f"puts[{number}] is a {type(one).__name__}{found}.",
                hint=f"Use a tuple of {len(_PUT)}: {', '.join(_PUT)}, which may be left out.",
            )
        calls.append(put(one[0], one[1], one[2], one[3] if len(one) == len(_PUT) else {}))
    return calls


def _plain(metadata: ChainMap[str, Any]) -> dict[str, Any]:
    """Return a dict instead of LangGraph's `ChainMap`, which iterates slowly."""
    plain: dict[str, Any] = {}
    for each in reversed(metadata.maps):
        plain.update(each)
    return plain


def stored(call: Put) -> RunnableConfig:
    """Return the config that `put` returns."""
    return _config(*call.place)


def put_writes(
    config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str | None
) -> PutWrites:
    """Return the arguments of `put_writes` as a record. No task path is an empty one."""
    target = place(config)
    if target.id is None:
        raise InvalidConfigError(
            "The config has no checkpoint_id, and writes belong to a checkpoint.",
            hint="Pass the config that put() or get_tuple() returned.",
            thread=target.thread,
        )
    pairs = validation.writes(writes, target)
    if type(task_id) is not str or not task_id.isascii():  # (the quick way first)
        task_id = validation.text("task_id", task_id, target)
    if type(task_path) is not str or not task_path.isascii():
        task_path = validation.text("task_path", "" if task_path is None else task_path, target)
    configurable = config["configurable"]
    by, guard = RUNS.of(_run_of(configurable)), configurable.get(GUARD)
    holder = None if guard is None else guard.holder_of(target.thread)
    return PutWrites(target, pairs, task_id, task_path, by=by, guard=holder)


def listing(
    config: RunnableConfig | None,
    filter: Mapping[str, Any] | None,
    before: RunnableConfig | None,
    limit: int | None,
) -> Listing:
    limit = validation.limit(limit)
    older = validation.checkpoint_id(_configurable(before).get("checkpoint_id")) if before else None
    at = CheckpointRef("") if config is None else place(config)
    wanted = dict(validation.mapping("filter", filter or {}, at))
    if config is None:
        return Listing(None, before=older, filter=wanted, limit=limit)
    ns = _configurable(config).get("checkpoint_ns")
    return Listing(at.thread, None if ns is None else str(ns), at.id, older, wanted, limit)


def checkpoint_tuple(loaded: Loaded, config: RunnableConfig | None = None) -> CheckpointTuple:
    """Return LangGraph's tuple, with the caller's config if it named the checkpoint."""
    own = _config(loaded.thread, loaded.ns, loaded.id)
    if config is not None and config["configurable"].get("checkpoint_id"):
        configurable = {**config["configurable"], "checkpoint_id": loaded.id}
        own = {**config, "configurable": configurable}
    parent = None if loaded.parent is None else _config(loaded.thread, loaded.ns, loaded.parent)
    return CheckpointTuple(
        config=own,
        checkpoint=loaded.checkpoint,  # type: ignore[arg-type]  # the engine knows no TypedDict
        metadata=loaded.metadata,  # type: ignore[arg-type]  # likewise
        parent_config=parent,
        pending_writes=loaded.writes,
    )


def _config(thread: str, ns: str, checkpoint_id: str | None) -> RunnableConfig:
    return {
        "configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}
    }
