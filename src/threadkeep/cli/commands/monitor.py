"""Commands that measure a store: stats, advise, monitor."""

from __future__ import annotations

import itertools
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from queue import Empty, SimpleQueue
from typing import Any

import typer
from rich.cells import cell_len

from threadkeep._core.engine.usage import ThreadUsage
from threadkeep._core.texts import shown, size
from threadkeep._stores.external import extra
from threadkeep.cli.app import command
from threadkeep.cli.ids import whole_thread
from threadkeep.cli.parameters import (
    flag,
    option,
    parse_positive,
    parse_size,
    thread_argument,
)
from threadkeep.cli.stores import Session, public_name, settings, word_of
from threadkeep.cli.terminal import (
    ID,
    Drawn,
    bar,
    columns,
    interrupted_by_sigterm,
    line,
    moment,
    plural,
    table,
    text,
    thread_table,
    width,
)
from threadkeep.errors import InvalidArgumentError
from threadkeep.monitor import Monitor, Snapshot, Thresholds, observe
from threadkeep.monitor.advice import Advice
from threadkeep.monitor.advice import advise as advise_on
from threadkeep.threads.statistics_report import Stats
from threadkeep.threads.transfer.reading import LangGraphReader

_LABELS = {
    "manifests": "(manifests)",
    "pending_writes": "(pending writes)",
    "metadata": "(checkpoint metadata)",
    "unreferenced": "(unreferenced)",
    "unread": "(threads not read)",
}
_TABLES, _OTHER_LINES = 3, 32
_GAP = 2  # columns
_NAME = 20  # characters of a channel beside others
_RANGES = 16  # of a thread's checkpoints
_BARS = (24, 8)  # their longest, if there is room
_NEW = timedelta(seconds=1)
_TOP = 10  # largest threads
_SECONDS = 1  # between two looks for a signal


@command("threadkeep stats threads.db --watch")
def stats(
    session: Session,
    thread: str | None = thread_argument("Show only the growth of this thread.", None),
    *,
    top: int = option("--top N", "Show N channels, and N threads (at most 10).", 10, min=1),
    exact: bool = flag("--exact", "Read every thread instead of a sample."),
    max_age: str | None = option(
        "--max-age TIME",
        "Accept statistics stored at most this long ago, such as 10m. Otherwise count, and store.",
    ),
    watch: bool = flag("--watch", "Refresh until interrupted, and show rates."),
    every: str = option("--every TIME", "Interval of --watch, such as 10s.", "2s"),
) -> None:
    """Show totals, growth, and the largest threads and channels, or the growth of a thread."""
    if thread is not None:
        if watch or exact or max_age is not None:
            hint = "Leave out --watch, --exact and --max-age."
            raise InvalidArgumentError("The growth of a thread is always counted.", hint=hint)
        _show_growth(session, thread)
        return
    name = public_name(session.store_url())
    seconds = min(parse_positive("--every", every).total_seconds(), threading.TIMEOUT_MAX)
    if max_age is not None and exact:
        raise InvalidArgumentError("--exact always counts.", hint="Leave out --max-age.")
    age = None if max_age is None else parse_positive("--max-age", max_age)
    if not watch:
        with (
            session.open_any(read_only=age is None) as saver,
            session.progress() as progress,
        ):
            progress("reading threads", 0, 0)
            if isinstance(saver, LangGraphReader):
                document, lines = _of_langgraph(name, saver, top)
            else:
                found = saver.stats(exact=exact, max_age=age)
                document, lines = found.as_json(), _lines(name, found, None, top)
        session.print({"store": name, **document}, *lines)
        return
    looks = _looks(session, exact=exact, max_age=age)
    if session.as_json:
        timer = threading.Event()
        for found, _ in looks:
            session.print({"store": name, **found.as_json()})
            timer.wait(seconds)
    else:
        session.watch(lambda: _fitting(name, *next(looks), top), seconds)


def _of_langgraph(
    name: str, reader: LangGraphReader, top: int
) -> tuple[dict[str, Any], list[Drawn]]:
    """Return statistics of a database of LangGraph's own savers, as JSON and as lines."""
    counts, bytes = reader.threads.checkpoint_counts(), reader.total_bytes()
    largest = list(reader.threads.search(order="-bytes", limit=min(top, _TOP)))
    checkpoints = sum(counts.values())
    document = {
        "kind": "langgraph",
        "threads": len(counts),
        "checkpoints": checkpoints,
        "bytes": bytes,
        "largest": [one.as_json() for one in largest],
    }
    counted = f"{plural(len(counts), 'thread')}, {plural(checkpoints, 'checkpoint')}"
    lines: list[Drawn] = [
        line((name, "bold"), "of LangGraph's own savers"),
        f"{counted}, {size(bytes)} on the disk",
        "" if largest else None,
        thread_table(largest),
    ]
    return document, lines


def _looks(
    session: Session, *, exact: bool, max_age: timedelta | None
) -> Iterator[tuple[Stats, Stats | None]]:
    """Yield statistics, each with those before."""
    before = None
    while True:
        # (opened each time: a file that is open read-only shows no later saves)
        with session.open(read_only=max_age is None) as saver:
            found = saver.stats(exact=exact, max_age=max_age)
        yield found, before
        before = found


def _lines(
    name: str, found: Stats, before: Stats | None, top: int, *, is_small: bool = False
) -> list[Drawn]:
    more = [] if is_small else [_threads("busiest threads", found.busiest[:top])]
    return [
        text(name, "bold"),
        *map(text, found.summary()),
        _age(found),
        _rates(found, before),
        "",
        *([] if is_small else _chart(found)),
        _threads("largest threads", found.largest[:top]),
        "",
        *more,
        "" if found.busiest else None,
        _channels(found, top),
    ]


def _fitting(name: str, found: Stats, before: Stats | None, top: int) -> list[Drawn]:
    """Return the lines that fit the terminal, without empty ones.

    A small terminal shows no chart and no busiest threads.
    """
    room = (shutil.get_terminal_size().lines - _OTHER_LINES) // _TABLES
    lines = _lines(name, found, before, min(top, max(room, 1)), is_small=room < 1)
    return [line for line in lines if line != ""]


def _chart(found: Stats) -> Iterator[Drawn]:
    """Yield a chart of the checkpoints of each hour, or nothing without checkpoints."""
    if any(counts := [hour.checkpoints for hour in found.hours]):
        yield columns(counts, "UTC", [f"{start:%H}" for start in found.hour_starts])
        yield ""


def _age(found: Stats) -> str | None:
    """Return the time of the count, if that was a while ago (`--max-age`)."""
    is_new = datetime.now(UTC) - found.at < _NEW
    return None if is_new else f"As of {found.at:%Y-%m-%d %H:%M:%S} UTC"


def _rates(found: Stats, before: Stats | None) -> str | None:
    if before is None:
        return None
    seconds = max((found.at - before.at).total_seconds(), 1e-6)
    checkpoints = (found.checkpoints - before.checkpoints) / seconds
    writes = (found.writes - before.writes) / seconds
    growth = size((found.bytes - before.bytes) / seconds)
    return f"Now: {checkpoints:,.1f} checkpoints/s, {writes:,.1f} writes/s, {growth}/s"


def _threads(title: str, threads: Sequence[ThreadUsage]) -> Drawn:
    rows = [(one.thread, one.bytes, f"{one.checkpoints:,}", f"{one.recent:,}") for one in threads]
    return _sizes((title, "checkpoints>", "24 h>"), rows)


def _channels(found: Stats, top: int) -> Drawn:
    """Return channels and other parts of the bytes, down to their sum, small ones in one row."""
    rows = [
        (one.name, one.bytes, f"{one.changes:,}", size(one.full_copy_bytes))
        for one in found.channels[:top]
        if one.bytes
    ]
    rest = found.channels[top:]
    if any(one.bytes for one in rest):
        others = plural(len(rest), "more channel")
        rows.append((f"... {others} (--top)", sum([one.bytes for one in rest]), "", ""))
    rows += [
        (label, found.parts[name], "", "")
        for name, label in _LABELS.items()
        if found.parts.get(name)
    ]
    total = sum([count for _, count, *_ in rows])
    return _sizes(("channel", "changes>", "full copies>"), rows, total)


def _show_growth(session: Session, thread: str) -> None:
    """Print the bytes that a thread's checkpoints added, in ranges of as many."""
    with session.open(read_only=True) as saver, session.progress() as progress:
        thread = whole_thread(saver, thread)
        found = saver.threads.growth(thread, progress=progress)
    count = len(found.steps)
    lengths = (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))
    length = next(one for one in lengths if one * _RANGES >= count)
    ranges, rows = [], []
    for first in range(0, count, length):
        steps = found.steps[first : first + length]
        channels = sum([Counter(one.channels) for one in steps], Counter[str]())
        last, added = first + len(steps), sum([one.bytes for one in steps])
        place = {"first": first + 1, "last": last, "time": steps[0].time, "bytes": added}
        ranges.append({**place, "channels": dict(channels)})
        most = "".join([name for name, _ in channels.most_common(1)])
        most = most if len(most) <= _NAME else f"{most[: _NAME - 3]}..."
        numbers = f"{first + 1:,} - {last:,}" if len(steps) > 1 else f"{last:,}"
        rows.append((numbers, added, moment(steps[0].time), shown(most)))
    full = sum([one.full_copy_bytes for one in found.steps])
    counted = {"checkpoints": count, "bytes": found.bytes, "full_copy_bytes": full}
    document = {"thread": thread, **counted, "ranges": ranges}
    counts = plural(count, "checkpoint"), size(found.bytes), f"full copies: {size(full)}"
    head = line((f"thread {thread}", "bold"), *counts)
    session.print(document, head, "", _sizes(("checkpoints", "from", "mostly"), rows))


def _sizes(
    columns: Sequence[str], rows: Sequence[tuple[str, int, str, str]], total: int = 0
) -> Drawn:
    """Return a table of names and bytes, with bars if there is room for them."""
    names = [shown(name) for name, *_ in rows]
    titles = ["bytes", *[one.removesuffix(">") for one in columns[1:]]]
    parts = [titles, *[(size(count), *others) for _, count, *others in rows]]
    room = width() - sum([max(map(cell_len, each)) + _GAP for each in zip(*parts, strict=True)])
    most = max([count for _, count, *_ in rows], default=0)
    widest = min(max(map(cell_len, names), default=0), ID)  # (others have lines of their own)
    longest = next((n for n in _BARS if n + _GAP + widest <= room), 0)
    cells: list[Any] = [
        (name, *others, size(count), bar(count, most, longest))
        for name, (_, count, *others) in zip(names, rows, strict=True)
    ]
    if total:
        cells.append(("total", "", "", size(total), text("")))
    return table((*columns, "bytes>", ""), cells)


# -- advise ------------------------------------------------------------------------------


@command("threadkeep advise threads.db")
def advise(session: Session) -> None:
    """Propose settings and commands from the statistics."""
    url = session.store_url()
    name = public_name(url)
    with session.open(read_only=True) as saver, session.progress() as progress:
        progress("reading threads", 0, 0)
        found = advise_on(saver, url=word_of(url))
    document = {"store": name, "advice": [asdict(one) for one in found]}
    lines = [line for one in found for line in _advice_lines(one)]
    if any(one.frees for one in found):
        lines.append("Try commands with --dry-run first. Several may free the same bytes.")
    session.print(document, *(lines or ["No advice: nothing stands out."]))


def _advice_lines(one: Advice) -> Iterator[Drawn]:
    frees = f" Frees about {size(one.frees)}." if one.frees else ""
    yield text(f"{one.topic}: {one.text}{frees}", "bold")
    yield f"  {one.command or one.code}"
    if one.command and one.code:
        yield f"  {one.code}"


# -- monitor -----------------------------------------------------------------------------


def _thresholds(
    *,
    max_latency_ms: float = option(
        "--max-latency-ms MS", "Limit of the 95th percentile. 0: none.", 1000.0, min=0
    ),
    max_error_rate: float = option(
        "--max-error-rate RATE", "Limit of failures, 0 to 1. 1: none.", 0.05, min=0
    ),
    max_thread_bytes: str | None = option(
        "--max-thread-bytes SIZE", "Limit of a thread, such as 10MB. Default: none."
    ),
    max_growth_per_day: str | None = option(
        "--max-growth-per-day SIZE", "Limit of growth, such as 1GB. Default: none."
    ),
    max_failures_per_minute: float = option(
        "--max-failures-per-minute N", "Limit of threads that fail in a minute. 0: none.", 0, min=0
    ),
    max_unfinished_seconds: float = option(
        "--max-unfinished-seconds S",
        "Limit of an unfinished thread's idle time. 0: none.",
        0,
        min=0,
    ),
    max_held: int | None = option("--max-held N", "Limit of held threads. Default: none.", min=0),
) -> Thresholds:
    return Thresholds(
        max_latency_ms=max_latency_ms or None,
        max_error_rate=max_error_rate,
        max_thread_bytes=parse_size("--max-thread-bytes", max_thread_bytes),
        max_growth_per_day=parse_size("--max-growth-per-day", max_growth_per_day),
        max_failures_per_minute=max_failures_per_minute or None,
        max_unfinished_seconds=max_unfinished_seconds or None,
        max_held=max_held,
    )


@command(
    "threadkeep monitor threads.db --alert json://localhost:8080",
    thresholds=_thresholds,
)
def monitor(
    session: Session,
    *,
    interval: str = option("--interval TIME", "Time between two measurements, such as 60s.", "60s"),
    alert: list[str] | None = option(
        "--alert URL",
        "Send alerts to this apprise URL. Repeatable. Default: THREADKEEP_ALERTS (JSON),"
        " else alerts in threadkeep.toml.",
    ),
    listen: str = option("--listen HOST:PORT", "Serve /healthz and /metrics.", "127.0.0.1:9464"),
    once: bool = flag("--once", "Measure once, and exit. Exit code 1: unhealthy, or an alert."),
    thresholds: Thresholds,
) -> int:
    """Measure a store, send alerts, and serve health and metrics.

    Runs until SIGTERM or Ctrl-C.
    """
    with extra("The monitor", "monitor"):
        from prometheus_client import CollectorRegistry  # noqa: PLC0415 - an extra
    from threadkeep.monitor.service import serve  # noqa: PLC0415 - likewise

    name = public_name(session.store_url())
    channels = alert or settings().alerts or ()
    registry = CollectorRegistry()
    unit = "s" if interval.isdecimal() else ""
    seconds = parse_positive("--interval", interval + unit).total_seconds()
    codes: SimpleQueue[int] = SimpleQueue()

    def show(found: Snapshot) -> None:
        if session.as_json or sys.stdout.isatty():
            try:
                session.print(found.as_json(), _line(found))
            except typer.Exit as error:  # (the reader of the output is gone)
                codes.put(error.exit_code)

    with session.open() as saver:
        observed = observe(saver, registry=registry)
        if once:
            return _once(session, Monitor(observed, thresholds, alerts=channels, in_a_row=1))
        watch = Monitor(observed, thresholds, seconds, alerts=channels, on_snapshot=show)
        with (
            suppress(KeyboardInterrupt),
            interrupted_by_sigterm(),
            serve(watch, registry, listen) as address,
        ):
            text = f"Monitoring {name}: {address}/healthz, {address}/metrics"
            session.print({"store": name, "address": address}, text)
            with watch:
                return _wait(codes)
    return 0


def _wait(codes: SimpleQueue[int]) -> int:
    """Wait for an exit code, or a signal. One that reaches another thread does not end a wait."""
    while True:
        with suppress(Empty):
            return codes.get(timeout=_SECONDS)


def _once(session: Session, watch: Monitor) -> int:
    """Measure once, print it, and return the exit code."""
    found = watch.measure()
    watch.stop()
    session.print(found.as_json(), found.report())
    return 0 if found.healthy and not found.alerts else 1


def _line(found: Snapshot) -> str:
    """Return a snapshot in one line."""
    state = "healthy" if found.healthy else "unhealthy"
    p95, rate = found.rates.p95, found.rates.error_rate
    parts = [
        f"{found.at:%Y-%m-%d %H:%M:%S}  {state}",
        "" if p95 is None else f"p95 {p95 * 1000:,.1f} ms",
        "" if rate is None else f"{rate:.1%} failed",
        "" if found.storage is None else plural(found.storage.bytes, "byte"),
        found.last_error or "",
    ]
    return "  ".join([part for part in parts if part])
