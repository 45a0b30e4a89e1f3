"""Values of a thread that a process still has, lent to the next run of the thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from threadkeep._core.engine import model, refs
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.elements import Elements
from threadkeep._core.engine.refs import Manifest, Run
from threadkeep._core.engine.shadow import Shadow, disjoint
from threadkeep._core.engine.snapshots import (
    CellValue,
    ChannelValue,
    CheckpointSnapshot,
    RunValue,
)


def _lendable(engine: Engine, state: CheckpointSnapshot) -> dict[str, ChannelValue]:
    """Return the values of a checkpoint that was taken (see `ThreadMemory.take`) and are intact."""
    if state.codec != engine.codec:
        return {}
    intact: list[tuple[str, ChannelValue]] = []
    shadows: list[Shadow] = []
    for name, held in state.values.items():
        shadow = held.seen.shadow if isinstance(held, RunValue) else held.shadow
        if shadow.holds():
            intact.append((name, held))
            shadows.append(shadow)
    # An object in two places is stored twice: a change must not show in both.
    return {
        name: held for (name, held), alone in zip(intact, disjoint(shadows), strict=True) if alone
    }


def in_fresh_container(held: ChannelValue) -> Any:
    """Return a value in a fresh container."""
    if isinstance(held, CellValue):
        return held.value
    if held.seen.keys is not None:
        return dict(zip(held.seen.keys, held.seen.items, strict=True))
    items = held.seen.items
    return tuple(items) if held.kind == refs.TUPLE else items


class Grown(NamedTuple):
    """A list that has grown since it was seen: its record, its spans now, and the new ones."""

    was: RunValue
    spans: tuple[model.Span, ...]
    rest: tuple[model.Span, ...]


def to_lend(
    engine: Engine,
    state: CheckpointSnapshot | None,
    last: CheckpointSnapshot | None,
    read: Manifest,
) -> tuple[dict[str, ChannelValue], dict[str, Grown]]:
    """Return values to lend to a run, and lists to lend that have grown.

    They belong to `state`, or (None) to the last checkpoint that is remembered: others may have
    continued from it.
    """
    if state is not None:
        return _lendable(engine, state), {}
    return ({}, {}) if last is None else _still(_lendable(engine, last), last.manifest, read)


def _still(
    lendable: Mapping[str, ChannelValue], before: Manifest, now: Manifest
) -> tuple[dict[str, ChannelValue], dict[str, Grown]]:
    """Return the values of an older checkpoint that a newer one has as well, and grown lists."""
    lent: dict[str, ChannelValue] = {}
    grown: dict[str, Grown] = {}
    for name, held in lendable.items():
        entry = now.entries.get(name)
        ref = None if entry is None else entry.ref
        if ref is None:
            continue
        if ref == before.entries[name].ref:
            lent[name] = held
        elif isinstance(held, RunValue) and isinstance(ref, Run) and ref.kind == held.kind:
            rest = refs.after(held.spans, ref.spans) if held.kind == refs.LIST else ()
            if rest:
                grown[name] = Grown(held, ref.spans, rest)
    return lent, grown


def longer(found: Elements, name: str, part: Grown) -> RunValue:
    """Return the record of a list with the elements that it has got since."""
    was, spans, rest = part
    found.reader = name
    new = found.value(Run(refs.LIST, rest))
    shadow = Shadow.of(new)
    size = was.seen.size
    raws = {size + i: found.raw(*refs.cut(rest, i, i + 1)[0][:2]) for i in shadow.opaque}
    weight = was.weight + sum([found.size(span) for span in rest])
    seen = was.seen.followed(new, shadow)
    return RunValue(refs.LIST, spans, seen, weight, {**was.raws, **raws})
