"""Statistics of a store as a record, as JSON, and as text in English and Chinese."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from threadkeep._core import texts
from threadkeep._core.engine.thread_sizes import ChannelStats, ThreadStats
from threadkeep._core.engine.usage import STATUSES, Hour, ThreadUsage
from threadkeep._core.texts import shown
from threadkeep._core.validation import MICROSECOND
from threadkeep.errors import invalid
from threadkeep.threads.registry import EPOCH

MOST = 10
_STATUS = "Status: {:,} running, {:,} waiting, {:,} failed, {:,} held, {:,} unfinished{}"
DERIVED = (
    *("growth_per_hour", "growth_per_day", "checkpoint_bytes"),
    *("writes_per_superstep", "deltas_saved"),
)


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of a store. Bytes are bytes of contents, without the store's own overhead.

    If `estimated`, channels, parts and full copies are extrapolated from a sample of threads,
    `by_thread`. All other fields are counted. For other LangGraph savers, the first listed
    checkpoints are counted.

    Attributes:
        at: time of the statistics.
        threads: the number of threads with checkpoints, without archived threads.
        checkpoints: the number of checkpoints.
        writes: rows of pending writes: one per call of `put_writes`.
        bytes: the sum of all parts.
        bytes_on_disk: bytes with the store's overhead and free space, or None if unknown.
        full_copy_bytes: bytes of one full, uncompressed copy of the state per checkpoint, in
            threadkeep's encoding.
        compression_saved: bytes of stored values that compression has saved.
        channels: channels, largest first.
        parts: bytes of `manifests`, `pending_writes`, `metadata`, `unreferenced` values, and
            `unread` threads, whose channels are unknown.
        hours: checkpoints and bytes of the last 24 hours, oldest first, that are still stored.
        largest: the ten largest threads.
        busiest: the ten threads with the most checkpoints in the last 24 hours.
        idle_threads: threads without writes for 30 days.
        idle_bytes: their bytes.
        by_thread: the threads whose parts were counted.
        estimated: True if not all threads were counted.
        note: which fields are estimated, and from which data, "" for none.
        missing_indexes: statements that create missing indexes of the store's tables.
        items: items of stores in the same database, including expired items.
        item_bytes: bytes of their values and earlier versions.
        expired_items: items that have expired and are still stored.
        waiting_items: items without vectors, as the embedding model failed.
        vector_bytes: bytes of vectors.
        cache_entries: cached results of nodes in the same database.
        cache_bytes: their bytes.
        items_sampled: True if bytes of items and results are extrapolated from a sample.
        key_bytes: with `exact`, bytes of encrypted values by the id of their key, "" for values
            that are not encrypted, without the cold store's, empty if the saver has no keys,
            or a tenant.
        statuses: threads that are running, waiting, failed, held and unfinished. All others are
            done. Empty for other LangGraph savers.
        oldest_unfinished: seconds since the last write of the unfinished thread that is idle
            longest, or None without one.
    """

    at: datetime = field(compare=False)
    threads: int
    checkpoints: int
    writes: int
    bytes: int
    bytes_on_disk: int | None
    full_copy_bytes: int
    compression_saved: int
    channels: tuple[ChannelStats, ...]
    parts: dict[str, int]
    hours: tuple[Hour, ...]
    largest: tuple[ThreadUsage, ...]
    busiest: tuple[ThreadUsage, ...]
    idle_threads: int = 0
    idle_bytes: int = 0
    by_thread: tuple[ThreadStats, ...] = ()
    estimated: bool = False
    note: str = ""
    missing_indexes: tuple[str, ...] = ()
    items: int = 0
    item_bytes: int = 0
    expired_items: int = 0
    waiting_items: int = 0
    vector_bytes: int = 0
    cache_entries: int = 0
    cache_bytes: int = 0
    items_sampled: bool = False
    key_bytes: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    oldest_unfinished: float | None = field(default=None, compare=False)

    @property
    def growth_per_hour(self) -> int:
        """Bytes added in the last hour."""
        return self.hours[-1].bytes

    @property
    def growth_per_day(self) -> int:
        """Bytes added in the last 24 hours."""
        return sum([hour.bytes for hour in self.hours])

    @property
    def checkpoint_bytes(self) -> float:
        """Bytes of an average checkpoint, with its share of values and writes."""
        return self.bytes / self.checkpoints if self.checkpoints else 0.0

    @property
    def writes_per_superstep(self) -> float:
        """Average number of `put_writes` calls per checkpoint."""
        return self.writes / self.checkpoints if self.checkpoints else 0.0

    @property
    def deltas_saved(self) -> int:
        """Bytes saved by storing changes instead of full copies of values."""
        parts = [self.parts.get(name, 0) for name in ("manifests", "unread")]
        stored = sum([one.bytes for one in self.channels]) + sum(parts)
        return max(self.full_copy_bytes - stored - self.compression_saved, 0)

    @property
    def hour_starts(self) -> tuple[datetime, ...]:
        """The beginning of each of `hours`, in UTC."""
        count = len(self.hours)
        return tuple([self.at - timedelta(hours=count - number) for number in range(count)])

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, times as ISO 8601. Each hour has its `start`."""
        found = asdict(self)
        for name in ("hours", "largest", "busiest"):
            found[name] = [one._asdict() for one in getattr(self, name)]
        for hour, start in zip(found["hours"], self.hour_starts, strict=True):
            hour["start"] = start.isoformat()
        for one in (*found["largest"], *found["busiest"]):
            one["updated_at"] = (EPOCH + one["updated_at"] * MICROSECOND).isoformat()
        found |= {name: getattr(self, name) for name in DERIVED}
        return {**found, "at": self.at.isoformat()}

    def report(self, language: str = "en") -> str:
        """Return the statistics as text, in English ("en") or Chinese ("zh").

        Raises:
            InvalidArgumentError: the language is neither.
        """
        words, lines = ReportTexts(language), self.summary(language)
        hours = zip(self.hour_starts, self.hours, strict=True)
        counts = ", ".join([f"{start:%H:%M} {hour.checkpoints:,}" for start, hour in hours])
        lines.append(words.say("Checkpoints by hour (UTC): {}", counts))
        for title, threads in (("Largest", self.largest), ("Busiest", self.busiest)):
            lines += [words.say(f"{title} threads:")] if threads else []
            for one in threads:
                total = words.plural(one.checkpoints, "checkpoint")
                known = (shown(one.thread), words.size(one.bytes), total, one.recent)
                lines.append(words.say("  {}: {}, {}, {:,} in the last 24 hours", *known))
        lines += [words.say("Channels:")] if self.channels else []
        for channel in self.channels[:MOST]:
            changes = words.plural(channel.changes, "change")
            values = (shown(channel.name), words.size(channel.bytes), changes)
            lines.append(words.say("  {}: {}, {}", *values))
        return "\n".join(lines)

    def summary(self, language: str = "en") -> list[str]:
        """Return the totals as lines of text (see `report`)."""
        words = ReportTexts(language)
        say, size, plural = words.say, words.size, words.plural
        about = say("about ") if self.estimated else ""
        copies, deltas = size(self.full_copy_bytes), size(self.deltas_saved)
        disk = "" if self.bytes_on_disk is None else say("; {} on disk", size(self.bytes_on_disk))
        day = plural(sum([hour.checkpoints for hour in self.hours]), "checkpoint")
        counts, age = [self.statuses.get(name, 0) for name in STATUSES], self.oldest_unfinished
        idle = "" if age is None else say(", the oldest idle for {}", words.lasting(age))
        grown, hour = size(self.growth_per_day), self.hours[-1].checkpoints
        lines = [
            say(
                "{}, {}, {:.1f} writes per superstep",
                *(plural(self.threads, "thread"), plural(self.checkpoints, "checkpoint")),
                self.writes_per_superstep,
            ),
            *([say(_STATUS, *counts, idle)] if any(counts) else []),
            say("{}, {} a checkpoint", size(self.bytes), size(self.checkpoint_bytes)) + disk,
            say(
                "Full copies: {}{}. Saved: {} by deltas, {} by compression",
                *(about, copies, deltas, size(self.compression_saved)),
            ),
            say(
                "Last 24 hours: {}, {}; last hour: {:,}, {}",
                *(day, grown, hour, size(self.growth_per_hour)),
            ),
            *self._items_and_results(words),
        ]
        return [*lines, say("Estimates: {}", self.note)] if self.note else lines

    def _items_and_results(self, words: ReportTexts) -> Iterator[str]:
        """Yield lines about items and cached results, if the database has any."""
        say, size = words.say, words.size
        if self.items:
            counts = (
                (self.expired_items, "; {:,} expired"),
                (self.waiting_items, "; {:,} without vectors yet"),
            )
            some = [say(text, number) for number, text in counts if number]
            about = say("about ") if self.items_sampled else ""
            vectors = say(", vectors {}", size(self.vector_bytes)) if self.vector_bytes else ""
            values = (words.plural(self.items, "item"), f"{about}{size(self.item_bytes)}{vectors}")
            yield say("Store: {}, {}{}", *values, "".join(some))
        if self.cache_entries:
            results = words.plural(self.cache_entries, "result")
            yield say("Cache: {}, {}", results, size(self.cache_bytes))
        for key, count in sorted(self.key_bytes.items()):
            if key:
                yield say("Encrypted with key {}: {}", key, size(count))
            else:
                yield say("Not encrypted: {}", size(count))


# -- phrases -----------------------------------------------------------------------------

_CHINESE = {
    "thread": "{:,} 个线程",
    "checkpoint": "{:,} 个检查点",
    "change": "{:,} 次更改",
    "item": "{:,} 个条目",
    "result": "{:,} 个结果",
    "about ": "约 ",
    "{}, {}, {:.1f} writes per superstep": "{}，{}，每个超步 {:.1f} 次写入",
    _STATUS: "状态：{:,} 个运行中，{:,} 个待答复，{:,} 个失败，{:,} 个已搁置，{:,} 个未完成{}",
    ", the oldest idle for {}": "，其中最久的已 {}没有写入",
    **dict(zip(("ms", "s", "min", "h", "d"), ("毫秒", "秒", "分钟", "小时", "天"), strict=True)),
    "{}, {} a checkpoint": "{}，每个检查点 {}",
    "; {} on disk": "；磁盘上 {}",
    "Full copies: {}{}. Saved: {} by deltas, {} by compression": "完整副本：{}{}。"
    "节省：增量 {}，压缩 {}",
    "Last 24 hours: {}, {}; last hour: {:,}, {}": "最近 24 小时：{}，{}；最近一小时：{:,}，{}",
    "Estimates: {}": "估计值：{}",
    "Store: {}, {}{}": "长期记忆：{}，{}{}",
    ", vectors {}": "，向量 {}",
    "; {:,} expired": "；{:,} 个已过期",
    "; {:,} without vectors yet": "；{:,} 个还没有向量",
    "Cache: {}, {}": "缓存：{}，{}",
    "Encrypted with key {}: {}": "用密钥 {} 加密：{}",
    "Not encrypted: {}": "未加密：{}",
    "Checkpoints by hour (UTC): {}": "每小时的检查点（UTC）：{}",
    "Largest threads:": "最大的线程：",
    "Busiest threads:": "最忙的线程：",
    "  {}: {}, {}, {:,} in the last 24 hours": "  {}：{}，{}，最近 24 小时 {:,} 个",
    "Channels:": "通道：",
    "  {}: {}, {}": "  {}：{}，{}",
}
_PHRASES: Mapping[str, Mapping[str, str]] = {"en": {}, "zh": _CHINESE}


class ReportTexts:
    """The texts of a report in a language.

    Raises:
        InvalidArgumentError: the language is unknown.
    """

    def __init__(self, language: str) -> None:
        if language not in _PHRASES:
            raise invalid("language", language, 'Use "en" or "zh".')
        self._phrases = _PHRASES[language]

    def say(self, phrase: str, *values: object) -> str:
        """Return a phrase with its values."""
        return self._phrases.get(phrase, phrase).format(*values)

    def plural(self, count: int, noun: str) -> str:
        """Return a count with its noun."""
        return self.say(noun, count) if noun in self._phrases else texts.plural(count, noun)

    def lasting(self, seconds: float) -> str:
        """Return a duration with its unit."""
        count, unit = texts.lasting(seconds).split()
        return f"{count} {self.say(unit)}"

    def size(self, count: float) -> str:
        """Return a number of bytes with its unit."""
        shown = texts.size(count)
        return shown.replace("bytes", "字节") if self._phrases else shown
