"""Channels that a program has renamed or changed: reading the data of older releases.

A checkpoint or a row of pending writes whose channels have a shape of 2 or more is marked with it:
a checkpoint in the manifest's `extra`, a row of writes in front of the writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

from threadkeep._core.codec.format import MARKED, OWN, describe
from threadkeep._core.codec.frame import pack_varint, read_varint
from threadkeep._core.codec.migrations import ChannelStep, Migrations
from threadkeep._core.codec.registry import imported, newer_shape
from threadkeep._core.engine.refs import Changed, ChannelEntry, Manifest, Ref, Versions
from threadkeep._core.engine.rows import Write
from threadkeep._core.langgraph_internals import BRANCH, JOIN, START, TASKS
from threadkeep.errors import StateMigrationError

_CHANNELS = "the channels"


class ChannelShapes(NamedTuple):
    """The shape in which a program stores channels, and the steps that led there, in order."""

    shape: int
    steps: tuple[ChannelStep, ...]
    least: int = 1  # the oldest shape that the steps lead from

    @staticmethod
    def of(migrations: Migrations | None) -> ChannelShapes | None:
        """Return the shapes of a program, or None if it has never changed a channel."""
        if migrations is None:
            return None
        shape, steps, least = migrations._channel_plan()  # noqa: SLF001 - ours
        return ChannelShapes(shape, steps, least) if shape > 1 else None

    # -- writing ---------------------------------------------------------------------

    def marked(self, manifest: Manifest) -> Manifest:
        """Return a manifest of this program as it is stored."""
        return manifest._replace(extra=MARKED + pack_varint(self.shape) + (manifest.extra or b""))

    # -- reading ---------------------------------------------------------------------

    def manifest(self, stored: Manifest) -> Manifest:
        """Return a stored manifest with the channels that the program knows."""
        shape, extra = divided(stored.extra)
        steps = self._after(shape)
        if not steps:
            return stored if extra is stored.extra else stored._replace(extra=extra)
        entries: dict[str, ChannelEntry] = {}
        for old, entry in stored.entries.items():
            name = _renamed(steps, old)
            if name in entries:
                raise StateMigrationError(
                    f"The checkpoint has a channel {name!r} and another that was renamed to it.",
                    hint="Rename one of them to another name in your Migrations.",
                    channel=name,
                )
            entries[name] = entry._replace(ref=entry.ref and _changed(steps, old, entry.ref))
        updated = stored.updated
        if isinstance(updated, list):
            updated = [_renamed(steps, name) for name in updated]
        seen = {
            _of_node(steps, node): _keys(steps, versions) for node, versions in stored.seen.items()
        }
        return Manifest(stored.v, entries, seen, updated, extra)

    def writes(self, stored: Iterable[Write]) -> list[Write]:
        """Return pending writes with the channels that the program knows, as of shape 1."""
        return [self._write(write) for write in stored]

    def _write(self, write: Write) -> Write:
        steps = self._after(write.shape)
        if not steps:
            return write if write.shape == 1 else write._replace(shape=1)
        ref = _changed(steps, write.channel, write.ref)
        return write._replace(channel=_renamed(steps, write.channel), ref=ref, shape=1)

    def _after(self, shape: int) -> tuple[ChannelStep, ...]:
        """Return the steps after a stored shape."""
        if shape == self.shape:
            return ()
        if shape > self.shape:
            raise newer_shape(_CHANNELS, shape, self.shape)
        if shape < self.least:
            raise StateMigrationError(
                f"No migration leads from shape {shape} of the channels to shape {self.least}.",
                hint="Register the migrations again that you have removed, and run: threadkeep"
                " upgrade",
            )
        return _steps_after(self.steps, shape)


AS_STORED = ChannelShapes(1 << 31, (), 0)
"""For readers that show channels as they are stored."""


@lru_cache(maxsize=64)
def _steps_after(steps: tuple[ChannelStep, ...], shape: int) -> tuple[ChannelStep, ...]:
    return tuple([step for step in steps if step.shape > shape])


def divided(extra: bytes | None) -> tuple[int, bytes | None]:
    """Return the shape of a stored manifest's channels, and its `extra` without the mark."""
    if extra is None or not extra.startswith(MARKED):
        return 1, extra
    shape, end = read_varint(extra, len(MARKED))
    return shape, extra[end:] or None


def refuse_marked(writes: Iterable[Write]) -> None:
    """Refuse writes of a newer release, in a program that has changed no channels."""
    for write in writes:
        if write.shape != 1:
            raise newer_shape(_CHANNELS, write.shape, 1)


def settled(manifest: Manifest) -> Manifest:
    """Return a manifest without the values that must be stored again."""
    entries = manifest.entries.items()
    kept = {name: entry for name, entry in entries if not isinstance(entry.ref, Changed)}
    return manifest if len(kept) == len(entries) else manifest._replace(entries=kept)


# -- names -----------------------------------------------------------------------------


def _renamed(steps: Iterable[ChannelStep], name: str) -> str:
    for step in steps:
        if step.is_node:
            name = _with_node(step, name)
        elif step.new and name == step.old:
            name = step.new
    return name


def _of_node(steps: Iterable[ChannelStep], node: str) -> str:
    for step in steps:
        if step.is_node and node == step.old:
            node = step.new
    return node


def _with_node(step: ChannelStep, name: str) -> str:
    """Rename a channel that starts a node, or waits for some."""
    if name == BRANCH + step.old:
        return BRANCH + step.new
    if name.startswith(JOIN):
        starts, _, end = name.removeprefix(JOIN).rpartition(":")
        nodes = [step.new if node == step.old else node for node in starts.split("+")]
        return f"{JOIN}{'+'.join(nodes)}:{step.new if end == step.old else end}"
    return name


def _keys(steps: Iterable[ChannelStep], versions: Versions) -> Versions:
    return {_renamed(steps, name): version for name, version in versions.items()}


# -- values ----------------------------------------------------------------------------


def _changed(steps: tuple[ChannelStep, ...], name: str, ref: Ref) -> Ref:
    """Return a reference to the result of the steps on a channel's value."""
    functions: list[partial[Any]] = []
    for step in steps:
        if name == START:
            functions.append(partial(_input, step))
        elif step.function is not None and name == step.old:
            functions.append(partial(_apply, step))
        elif step.is_node and (name == TASKS or name.startswith(JOIN)):
            functions.append(partial(_nodes, step))
        name = _renamed((step,), name)
    return cast("Ref", Changed(ref, tuple(functions))) if functions else ref


def _apply(step: ChannelStep, value: Any) -> Any:
    assert step.function is not None  # noqa: S101 - as the caller found
    try:
        return step.function(value)
    except OWN:
        raise
    except Exception as error:
        raise StateMigrationError(
            f"The migration of channel {step.old!r} to shape {step.shape} failed:"
            f" {describe(error)}.",
            hint="Correct the function. The stored value is unchanged: read it with"
            " saver.raw(config), or threadkeep state --raw.",
        ) from error


def _input(step: ChannelStep, value: Any) -> Any:
    """Change the input of a graph: a dict of channels."""
    if type(value) is not dict or step.old not in value or step.is_node:
        return value
    if step.function is not None:
        return {**value, step.old: _apply(step, value[step.old])}
    return {step.new if name == step.old else name: part for name, part in value.items()}


def _nodes(step: ChannelStep, value: Any) -> Any:
    """Rename a node in sent tasks, and among the nodes that a join has met."""
    if type(value) is list:
        return [_nodes(step, one) for one in value]
    if type(value) is set:
        return {step.new if one == step.old else one for one in value}
    send: Any = imported("langgraph.types:Send")
    if send is not None and isinstance(value, send) and value.node == step.old:
        value.node = step.new  # (it was just decoded)
    return step.new if isinstance(value, str) and value == step.old else value
