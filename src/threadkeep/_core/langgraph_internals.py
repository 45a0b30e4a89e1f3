"""The names of LangGraph's internals that threadkeep relies on, each with its reason.

Everything else uses LangGraph's public contract. If any of these names changes, an optimization is
lost or a fence forks, but no value is wrong.
"""

from __future__ import annotations

from contextlib import suppress

from langgraph.checkpoint.base import id as ids

RUNTIME = "__pregel_runtime"
"""In `configurable` if a run (not a state read) loads its checkpoint, and so may be lent the
objects of the last run. (`langgraph._internal._constants.CONFIG_KEY_RUNTIME`)"""

TASK_ID = "__pregel_task_id"
"""In `configurable` of calls from inside a task, such as a subgraph's.
(`langgraph._internal._constants.CONFIG_KEY_TASK_ID`)"""

TASK_NS = "langgraph_checkpoint_ns"
"""In a config's metadata inside a running task, whose state updates belong to the run around it.
(`langgraph.pregel._algo`)"""

START = "__start__"
"""The channel of a graph's input: a dict of updates to other channels.
(`langgraph.constants.START`)"""

DELTA_COUNTERS = "counters_since_delta_snapshot"
"""The metadata key that names a thread's DeltaChannels between two snapshots.
(`langgraph.checkpoint.base.CheckpointMetadata`, public but in beta)"""

TASKS = "__pregel_tasks"
"""The channel of sent tasks, which is empty again one step later.
(`langgraph.checkpoint.serde.types.TASKS`)"""

NO_TASK = "00000000-0000-0000-0000-000000000000"
"""The task of writes that are a step's input, such as a resume value that names no interrupt.
(`langgraph._internal._constants.NULL_TASK_ID`)"""

ERROR_SOURCE = "__error_source_node__"
"""A write that names the node of a task's error.
(`langgraph._internal._constants.ERROR_SOURCE_NODE`)"""

PULL = "~__pregel_pull, "
"""Beginning of the path of a node's task, before the node's name. (`langgraph.pregel._algo`)"""

BRANCH = "branch:to:"
"""Prefix of the channels that start a node, which are empty again one step later.
(`langgraph.graph.state`)"""

JOIN = "join:"
"""Prefix of the channels that wait for several nodes: "join:a+b:c" starts node c after a and b.
(`langgraph.graph.state`)"""

HAS_TASK_PATH = "_has_task_path"
"""Attribute of LangGraph's SqliteSaver, if its table has the column `writes.task_path`. Its
`setup()` would write, so adoption sets the attribute itself. (`langgraph.checkpoint.sqlite`)"""


LAST_ID = "_last_v6_timestamp"
"""The time of the last id that LangGraph made, which the next one is after.
(`langgraph.checkpoint.base.id`)"""


def follow_ids(checkpoint_id: str) -> None:
    """Let the next ids that LangGraph makes come after an id of a worker whose clock is ahead.

    Otherwise the checkpoints of a run would come before the one that it continues.
    """
    if len(checkpoint_id) == _UUID_LENGTH and checkpoint_id[14] == "6":
        with suppress(ValueError):
            digits = checkpoint_id[:8] + checkpoint_id[9:13] + checkpoint_id[15:18]
            setattr(ids, LAST_ID, max(getattr(ids, LAST_ID, None) or 0, int(digits, 16)))


_UUID_LENGTH = 36


def is_internal(channel: str) -> bool:
    """Return True for a channel that LangGraph creates itself. None of them is a DeltaChannel."""
    return channel in (START, TASKS) or channel.startswith(BRANCH)


NO_VERSION = f"{0:032}.{0:016}"
"""Comes before the first version of a channel, as LangGraph's savers write versions.
(`langgraph.checkpoint.memory.InMemorySaver.get_next_version`)"""
