"""Choose the checkpoints that a `Retention` keeps: pure functions from rows to keys.

A checkpoint stays if every limit keeps it. The head of each namespace always stays, unless the
namespace belongs to a subgraph's task whose checkpoint is removed.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from threadkeep._core.engine.context import named
from threadkeep._core.engine.lineage import CheckpointKey, checkpoint_key
from threadkeep._core.engine.model import HIDDEN, OWN_NS, StoredCheckpoint
from threadkeep._core.engine.rows import time_of, visible
from threadkeep._core.engine.thread_summary import waits
from threadkeep._core.policies import Ends, Retention
from threadkeep._core.validation import micros
from threadkeep.errors import CorruptionError

GRACE = 3600 * 1_000_000
"""Microseconds in which a run may still have unsaved checkpoints after this one."""

_NS_SEP, _TASK_SEP = "|", ":"  # LangGraph's separators of namespaces
_NOWHERE: CheckpointKey = ("", "")


class CheckpointFacts(NamedTuple):
    """Facts about a visible checkpoint.

    Attributes:
        is_cut: its parent was removed or is hidden.
        is_tip: it has no child.
        waits: an interrupt waits at it.
        answered_by: the child that ended an interrupt here without an answer.
    """

    key: CheckpointKey
    parent: str | None
    time: int | None
    metadata: Mapping[str, Any]
    is_cut: bool
    is_tip: bool
    waits: bool
    answered_by: CheckpointKey | None


@dataclass(frozen=True, slots=True)
class Choice:
    """The visible checkpoints that stay.

    Args:
        keys: all of them.
        spare: those that only `max_bytes` may remove, oldest first.
        marked: those with a tag or pin, and their subgraphs' parents.
        homes: by task namespace, the checkpoint that it is removed with.
        until: microseconds since 1970 until which the choice is the same if nothing is written.
            None if time doesn't change it.
        ends: by checkpoint, the child that ended its interrupt. It must stay, hidden.
    """

    keys: frozenset[CheckpointKey]
    spare: tuple[CheckpointKey, ...]
    marked: frozenset[CheckpointKey]
    homes: Mapping[str, CheckpointKey]
    until: int | None
    ends: Mapping[CheckpointKey, CheckpointKey]

    def without(self, count: int) -> set[CheckpointKey]:
        """List the checkpoints that stay if the first `count` spare ones are removed too."""
        return _housed(set(self.keys.difference(self.spare[:count])), self.homes, self.marked)


def choose(
    checkpoints: Sequence[StoredCheckpoint],
    policy: Retention,
    marked: Iterable[CheckpointKey],
    now: int,
) -> Choice:
    """Choose the checkpoints of a thread that a policy keeps, without its `max_bytes`.

    `checkpoints` are sorted by namespace and id, with hidden ones. A tag or a pin protects those
    in `marked`.
    """
    flags = {checkpoint_key(stored): stored.row.flags for stored in checkpoints}
    spaces: dict[str, list[CheckpointFacts]] = {}
    own = set()
    for stored in visible(checkpoints):
        if stored.row.ns.startswith(OWN_NS):
            own.add(checkpoint_key(stored))
            continue
        spaces.setdefault(stored.row.ns, []).append(_seen(stored, flags))
    homes = _homes(spaces, flags, now)
    every = [one for seen in spaces.values() for one in seen]
    with_ancestors = frozenset(_with_ancestors(every, marked))
    protected = with_ancestors | {key for seen in spaces.values() for key in _protected(seen, now)}
    keys = {key for seen in spaces.values() for key in _within(policy, seen, now)} | protected
    keys = _housed(keys, homes, with_ancestors) | own
    limits = [GRACE] if policy.max_age is None else [GRACE, micros(policy.max_age) or 0]
    times = [one.time + limit for one in every if one.time and one.key in keys for limit in limits]
    return Choice(
        keys=frozenset(keys),
        spare=tuple(sorted(keys - protected - own, key=lambda key: (key[1], key[0]))),
        marked=with_ancestors,
        homes=homes,
        until=min([time for time in times if time >= now], default=None),
        ends={one.key: one.answered_by for one in every if one.answered_by is not None},
    )


def _seen(stored: StoredCheckpoint, flags: Mapping[CheckpointKey, int]) -> CheckpointFacts:
    row, child, asks = stored.row, stored.child, waits(stored)
    parent = None if row.parent is None else flags.get((row.ns, row.parent))
    return CheckpointFacts(
        key=(row.ns, row.id),
        parent=row.parent,
        time=time_of(row),
        metadata=_metadata(stored),
        is_cut=row.parent is not None and (parent is None or bool(parent & HIDDEN)),
        # (if the parent was removed, children may be too. Without a parent, it began the thread)
        is_tip=child is None and parent is not None,
        waits=asks and child is None,
        answered_by=(row.ns, child.id) if asks and child is not None else None,
    )


def _metadata(stored: StoredCheckpoint) -> dict[str, Any]:
    """Read the metadata from its JSON, which is exact for the keys used here."""
    try:
        found = json.loads(stored.row.metadata)
    except (ValueError, RecursionError) as exc:
        with named(stored):
            raise CorruptionError("A checkpoint's metadata is damaged.") from exc
    return found if isinstance(found, dict) else {}


# -- limits and protection -------------------------------------------------------------


def _within(policy: Retention, seen: Sequence[CheckpointFacts], now: int) -> list[CheckpointKey]:
    """List the checkpoints of one namespace that all limits keep."""
    left = _ends(policy.keep, seen)
    if policy.keep_last is not None:
        left = left[-policy.keep_last :]
    age = micros(policy.max_age)
    return [one.key for one in left if age is None or one.time is None or one.time + age >= now]


def _ends(which: Ends, seen: Sequence[CheckpointFacts]) -> list[CheckpointFacts]:
    """Select all checkpoints, or the last of each run or turn.

    A turn begins with an input, or after a gap if the input was removed, so that the last
    checkpoint of a turn is the last one in the next collection too.
    """
    if which == "all":
        return list(seen)
    last: dict[object, CheckpointFacts] = {}
    turn = 0
    for one in seen:
        turn += one.is_cut or one.metadata.get("source") == "input"
        run = one.metadata.get("run_id") if which == "run_ends" else None
        last[run if isinstance(run, str) else turn] = one
    return sorted(last.values(), key=lambda one: one.key)


def _protected(seen: Sequence[CheckpointFacts], now: int) -> list[CheckpointKey]:
    """List the head, waiting interrupts, and young tips, which a run may be about to continue.

    The parent of a young tip stays too: without it the next collection would not see a tip.
    """
    tips = {one.key: one.parent for one in seen[:-1] if one.is_tip and _young(one, now)}
    parents = set(tips.values())
    return [
        one.key
        for one in seen
        if one is seen[-1] or one.waits or one.key in tips or one.key[1] in parents
    ]


def _young(one: CheckpointFacts, now: int) -> bool:
    return one.time is not None and one.time + GRACE >= now


def _with_ancestors(
    every: Iterable[CheckpointFacts], marked: Iterable[CheckpointKey]
) -> set[CheckpointKey]:
    """List the marked checkpoints that exist, and the parents of marked subgraph checkpoints."""
    there = {one.key: one for one in every}
    found = {key for key in marked if key in there}
    above = {key for one in found for key in _parents(there[one]).items()}
    return found | (above & there.keys())


# -- subgraphs -------------------------------------------------------------------------


def _parents(one: CheckpointFacts) -> dict[str, str]:
    """The parent graphs' checkpoints of a subgraph's checkpoint, by namespace."""
    parents = one.metadata.get("parents")
    if not isinstance(parents, dict):
        return {}
    return {ns: id for ns, id in parents.items() if isinstance(id, str)}


def _homes(
    spaces: Mapping[str, Sequence[CheckpointFacts]], there: Container[CheckpointKey], now: int
) -> dict[str, CheckpointKey]:
    """Find the checkpoint that each task's namespace is removed with.

    If it doesn't exist, it may not have been saved yet: the namespace has no home while it is
    young, and then `_NOWHERE`, which keeps nothing.
    """
    homes = {}
    for ns, seen in spaces.items():
        above = ns.rpartition(_NS_SEP)[0]
        parent = _parents(seen[-1]).get(above)
        if _TASK_SEP not in ns or parent is None:
            continue
        if (above, parent) in there:
            homes[ns] = above, parent
        elif not _young(seen[-1], now):
            homes[ns] = _NOWHERE
    return homes


def _housed(
    keys: set[CheckpointKey],
    homes: Mapping[str, CheckpointKey],
    marked: frozenset[CheckpointKey],
) -> set[CheckpointKey]:
    """Leave out the namespaces whose task's checkpoint is removed."""
    for ns in sorted(homes, key=lambda ns: ns.count(_NS_SEP)):
        if homes[ns] not in keys:
            keys = {key for key in keys if key[0] != ns or key in marked}
    return keys
