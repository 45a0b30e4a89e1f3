"""Names that people know from elsewhere, and the hints of the errors that they lead to."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

_BATCHES = "Saves that wait at the same time share a transaction: see put_many."
_CODEC = "No serializer is needed: savers store only changes. See Compression and register."
_LAYERED = "Use LayeredCheckpointSaver(saver, Layers())."
_MONITOR = "Use Monitor(saver), observe(saver) or saver.stats()."
_REGISTER = "Use threadkeep.register(cls) or register_module(name)."
_STREAMS = "Use StreamingCheckpointSaver(saver), or astream_saved(graph, ...)."
_SHALLOW = "Use PostgresSaver(url, retention=Retention(keep_last=1), gc_every=3600)."

HINTS = {
    "ARCHIVE_THRESHOLD": "Use Layers(archive_threshold=100).",
    "AdvancedPostgresSaver": "Use PostgresSaver(url).",
    "AsyncShallowPostgresSaver": _SHALLOW,
    "BatchingCheckpointer": _BATCHES,
    "CachedCheckpointer": "Leave it out: a saver keeps the values of recent turns in memory.",
    "CheckpointPerformanceMonitor": _MONITOR,
    "CheckpointStats": _MONITOR,
    "EncryptedSerializer": "Use the option keys=KeyRing(...), or LangGraph's class as serde=.",
    "FULL_WINDOW": "Use Layers(full_window=20).",
    "ICheckpointManager": "Use threadkeep.CheckpointManager.",
    "ICheckpointStore": "Use threadkeep.sessions.CheckpointStore.",
    "IncrementalSerializer": _CODEC,
    "LazyChannelValues": 'Use saver.list(config, values="lazy").',
    "MAX_PENDING_CHECKPOINTS": "Use StreamingCheckpointSaver(saver, max_pending=5).",
    "OptimizedJsonPlusSerializer": _CODEC,
    "ProductionCheckpointOptimizer": "Use the options of a saver: see docs/production.md.",
    "ProductionMetrics": _MONITOR,
    "SAVE_INTERVAL": "Use StreamingCheckpointSaver(saver, interval=3), or for sessions"
    " CheckpointConfig(save_interval=5).",
    "SQLiteSaver": "Use SqliteSaver(path).",
    "SUMMARY_WINDOW": "Use Layers(summary_window=50).",
    "ShallowPostgresSaver": _SHALLOW,
    "TypeRegistry": _REGISTER,
    "TypeRegistryManager": _REGISTER,
    "VersionManager": "Use saver.get_next_version and compare_versions; for changed classes and"
    " channels, Migrations.",
    "archive_thread": "Use saver.threads.archive(thread_id).",
    "create_thread": "Use saver.threads.create(thread_id); the first save of a thread does it too.",
    "fork_checkpoint": "Use saver.threads.fork(thread_id, checkpoint_id).",
    "get_version_history": "Use saver.threads.versions(thread_id, channel).",
    "message_groups": "Use LayeredCheckpointSaver(saver).groups.",
    "put_with_batching": _BATCHES,
    "start_streaming": _STREAMS,
    "stop_streaming": _STREAMS,
    "trim_messages": _LAYERED,
}
"""For each name, its replacement here."""


class KnownNames:
    """A class whose missing attributes name their replacement, if it is known."""

    _hints: ClassVar[Mapping[str, str]] = HINTS

    if not TYPE_CHECKING:  # type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            hint = self._hints.get(name) or _awaited(type(self), name)
            if hint is None:
                return super().__getattribute__(name)  # raises the usual error
            text = f"{type(self).__name__!r} object has no attribute {name!r}. {hint}"
            raise AttributeError(text, name=name, obj=self)


def _awaited(cls: type, name: str) -> str | None:
    """Return the hint for `async_put` or `put_async`, if `aput` is a method."""
    own = f"a{name.removeprefix('async_').removesuffix('_async')}"
    return f"Use {own}." if own != f"a{name}" and hasattr(cls, own) else None


def missing(module: str, name: str) -> AttributeError | ImportError:
    """Return the error for a name that a module does not have. Called by its `__getattr__`.

    `from threadkeep import name` would replace an AttributeError by an ImportError without the
    hint, so the import raises its own.
    """
    text = f"module {module!r} has no attribute {name!r}"
    if name not in HINTS:
        return AttributeError(text)
    asks = sys._getframe(2).f_code.co_name  # noqa: SLF001 - the caller of `__getattr__`
    kind = ImportError if asks == "_handle_fromlist" else AttributeError
    return kind(f"{text}. {HINTS[name]}", name=name)
