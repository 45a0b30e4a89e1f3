"""The form of every value while it was saved.

A node edits values under the journal's lock, step by step, and after each step the journal records
the form of the values that are being saved. A call begins and ends under the same lock, so its
stored value must be among the recorded forms.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kit.engine import difference, exactly
from langgraph.checkpoint.base import BaseCheckpointSaver

_UNSEEN = ("__error__", "__no_writes__", "__error_source_node__")


class Journal:
    """The forms of all saved values, by the key they were saved under."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._saving: list[Mapping[Any, Any]] = []
        self._forms: dict[Any, dict[str, Any]] = {}

    @contextmanager
    def edit(self) -> Iterator[None]:
        """Carry out one step of an edit, during which no value is seen."""
        with self._lock:
            yield
            for parts in self._saving:
                self._note(parts)

    @contextmanager
    def saving(self, parts: Mapping[Any, Any]) -> Iterator[None]:
        with self._lock:
            self._note(parts)
            self._saving.append(parts)
        try:
            yield
        finally:
            with self._lock:
                self._saving = [p for p in self._saving if p is not parts]

    def _note(self, parts: Mapping[Any, Any]) -> None:
        for key, value in parts.items():
            form = exactly(value)
            self._forms.setdefault(key, {})[repr(form)] = form

    def check(self, key: Any, value: Any) -> None:
        """Fail if the value never existed while it was saved under this key."""
        forms, form = self._forms.get(key), exactly(value)
        if forms is not None and repr(form) not in forms:
            beside = "\n".join(difference(form, one) for one in forms.values())
            msg = f"{key} never was like that:\n{beside}"
            raise AssertionError(msg)


class Journaled(BaseCheckpointSaver[Any]):
    """A saver whose saves are in a journal.

    `unsure` are channels that LangGraph itself changes in place, unseen by the journal.
    """

    def __init__(self, inner: Any, journal: Journal, unsure: frozenset[str]) -> None:
        super().__init__()
        self.inner, self.journal, self._unsure = inner, journal, unsure

    def _values(self, config: Any, checkpoint: Any, versions: Any) -> Mapping[Any, Any]:
        place = _place(config)
        values = checkpoint["channel_values"]
        return {(place, c, versions[c]): values[c] for c in versions if self._sure(c, values)}

    def _writes(self, config: Any, writes: Any, task: str) -> Mapping[Any, Any]:
        place = (*_place(config), config["configurable"]["checkpoint_id"], task)
        count: Counter[str] = Counter()
        found = {}
        for channel, value in list(writes):
            if self._sure(channel, (channel,)):
                found[(place, channel, count[channel])] = value
            count[channel] += 1
        return found

    def _sure(self, channel: str, among: Any) -> bool:
        return channel in among and channel not in self._unsure and not channel.startswith("join:")

    def verify(self, reader: Any) -> None:
        """Fail if a reader of the store finds a value that never existed."""
        for entry in reader.list(None):
            place = _place(entry.config)
            versions = entry.checkpoint["channel_versions"]
            for channel, value in entry.checkpoint["channel_values"].items():
                self.journal.check((place, channel, versions.get(channel)), value)
            count: Counter[Any] = Counter()
            for task, channel, value in entry.pending_writes or ():
                at = (*place, entry.config["configurable"]["checkpoint_id"], task)
                if channel not in _UNSEEN:
                    self.journal.check((at, channel, count[task, channel]), value)
                count[task, channel] += 1

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        with self.journal.saving(self._values(config, checkpoint, new_versions)):
            return self.inner.put(config, checkpoint, metadata, new_versions)

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        with self.journal.saving(self._values(config, checkpoint, new_versions)):
            return await self.inner.aput(config, checkpoint, metadata, new_versions)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        with self.journal.saving(self._writes(config, writes, task_id)):
            self.inner.put_writes(config, writes, task_id, task_path)

    async def aput_writes(
        self, config: Any, writes: Any, task_id: str, task_path: str = ""
    ) -> None:
        with self.journal.saving(self._writes(config, writes, task_id)):
            await self.inner.aput_writes(config, writes, task_id, task_path)

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self.inner.get_next_version(current, channel)

    def get_tuple(self, config: Any) -> Any:
        return self.inner.get_tuple(config)

    async def aget_tuple(self, config: Any) -> Any:
        return await self.inner.aget_tuple(config)

    def list(self, config: Any, **options: Any) -> Any:
        return self.inner.list(config, **options)

    def alist(self, config: Any, **options: Any) -> Any:
        return self.inner.alist(config, **options)

    def get_delta_channel_history(self, *, config: Any, channels: Any) -> Any:
        return self.inner.get_delta_channel_history(config=config, channels=channels)

    async def aget_delta_channel_history(self, *, config: Any, channels: Any) -> Any:
        return await self.inner.aget_delta_channel_history(config=config, channels=channels)


def _place(config: Any) -> tuple[str, str]:
    named = config["configurable"]
    return (str(named["thread_id"]), named.get("checkpoint_ns", ""))
