"""The names of LangGraph's internals that threadkeep relies on, each with its reason.

Everything else goes through LangGraph's public contract. If one of these changes its
name, what follows is a lost optimisation or a fence that forks, never a wrong value.
"""

from __future__ import annotations

RUNTIME = "__pregel_runtime"
"""In `configurable` when a run (not a state read) loads its checkpoint: it may be lent
the objects of the last run. (`langgraph._internal._constants.CONFIG_KEY_RUNTIME`)"""

TASK_ID = "__pregel_task_id"
"""In `configurable` of what runs inside a task, as a subgraph does.
(`langgraph._internal._constants.CONFIG_KEY_TASK_ID`)"""

TASK_NS = "langgraph_checkpoint_ns"
"""In a config's metadata inside a running task: a state update from there belongs to the
run around it. (`langgraph.pregel._algo`)"""

START = "__start__"
"""The channel of a graph's input: a dict of updates to other channels.
(`langgraph.constants.START`)"""

DELTA_COUNTERS = "counters_since_delta_snapshot"
"""The metadata key that names a thread's DeltaChannels between two snapshots.
(`langgraph.checkpoint.base.CheckpointMetadata`, public but in beta)"""

TASKS = "__pregel_tasks"
"""The channel of tasks that were sent: empty again one step later.
(`langgraph.checkpoint.serde.types.TASKS`)"""

NO_TASK = "00000000-0000-0000-0000-000000000000"
"""The task of writes that are a step's input, as an answer that names no interrupt.
(`langgraph._internal._constants.NULL_TASK_ID`)"""

ERROR_SOURCE = "__error_source_node__"
"""A write that says which node a task's error came from.
(`langgraph._internal._constants.ERROR_SOURCE_NODE`)"""

BRANCH = "branch:to:"
"""Prefix of the channels that start a node: empty again one step later.
(`langgraph.graph.state`)"""

HAS_TASK_PATH = "_has_task_path"
"""Attribute of LangGraph's SqliteSaver: its table has the column `writes.task_path`. `setup()`,
which would write, sets it. Set to verify what was adopted. (`langgraph.checkpoint.sqlite`)"""


def is_internal(channel: str) -> bool:
    """Return True for a channel that LangGraph makes by itself. None is a DeltaChannel."""
    return channel in (START, TASKS) or channel.startswith(BRANCH)
