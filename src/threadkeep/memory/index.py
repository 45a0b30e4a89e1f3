"""Temporary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from threadkeep.memory.summaries import text_of


class Hit(NamedTuple):
    record: str
    position: int
    id: str | None


def tokens(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


class ArchiveIndex:
    def __init__(self) -> None:
        self.d: dict[str, dict[str, list[tuple[Hit, list[str]]]]] = {}

    def add(self, thread: str, record: str, start: int, messages: Sequence[Any]) -> None:
        self.d.setdefault(thread, {})[record] = [
            (Hit(record, start + i, m.id), tokens(text_of(m))) for i, m in enumerate(messages)
        ]

    def search(
        self, thread: str, query: str, *, after: int | None = None, limit: int | None = None
    ) -> list[Hit]:
        w = set(tokens(query))
        return sorted(
            [h for hs in self.d.get(thread, {}).values() for h, t in hs if w <= set(t)],
            key=lambda h: -h.position,
        )[:limit]

    def find(self, thread: str, ids: Sequence[str]) -> dict[str, list[Hit]]:
        out: dict[str, list[Hit]] = {}
        for hs in self.d.get(thread, {}).values():
            for h, _ in hs:
                if h.id in ids:
                    out.setdefault(h.id, []).append(h)
        return out

    def records(self, thread: str) -> set[str]:
        return set(self.d.get(thread, {}))

    def remove(self, thread: str) -> None:
        self.d.pop(thread, None)

    def close(self) -> None:
        pass


def open_index(saver: Any) -> ArchiveIndex:
    return ArchiveIndex()
