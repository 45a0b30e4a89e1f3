"""Monitor of a saver: canaries, rates, growth and alerts, at an interval in the background."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import Any, Self

from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep._core import validation
from threadkeep._core.engine.operation import External, Operation
from threadkeep._core.engine.usage import STATUSES, ThreadStatuses
from threadkeep._core.texts import lasting, plural, shown
from threadkeep._run import driver
from threadkeep._run.driver import sync_and_async
from threadkeep.errors import invalid
from threadkeep.monitor.alerts import Alert, Alerts, Reading, Thresholds, channels, is_callback
from threadkeep.monitor.observe import ObservedSaver, observe
from threadkeep.monitor.probes import Canary, Rates, Storage, StorageHistory, Window, statuses_of

_WINDOW = 10  # intervals that the window of operations covers
_STORAGE_EVERY = 10  # intervals between two measurements of sizes
_LEAST_PAUSE = 15.0  # seconds between them: 300 of them must span more than an hour
_CLEAN_EVERY = 3600  # seconds between two searches for abandoned canaries
_RETRY = 10.0  # seconds after a failed measurement
_DOUBLINGS = 8  # of that pause, one for each measurement that hangs
_TIMEOUT = 30.0  # seconds after which a measurement has failed
_STOP = 5.0  # seconds that `stop` waits for a measurement
_LEAST_JUDGED = 20  # least operations for a percentile or an error rate
_HANGS = "The store has not answered for {:g} s."
_MAX_ERROR = 300  # characters of an error
_SHOWN = 5  # threads in a report
_FAULTS = ("max_latency_ms", "max_error_rate", "min_ops_per_second")  # (the last canary decides)
_log = logging.getLogger("threadkeep")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of a monitored saver.

    Args:
        at: the time, in UTC.
        healthy: the last canary succeeded, and no alert of latency, errors or operations is active.
        rates: operations in the sliding window, only the canary's, unless the saver is observed.
        measurements: measurements so far.
        failed: failed measurements so far.
        last_error: the error of the last measurement, or None if it succeeded.
        storage: sizes and growth, or None if they are not known.
        statuses: threads by status, or None if they are not known.
        alerts: active alerts.
    """

    at: datetime
    healthy: bool
    rates: Rates
    measurements: int
    failed: int
    last_error: str | None
    storage: Storage | None
    statuses: ThreadStatuses | None
    alerts: tuple[Alert, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the snapshot as JSON values, with ISO 8601 times."""
        data = asdict(self)
        data["at"] = self.at.isoformat()
        data["rates"]["error_rate"] = self.rates.error_rate
        for alert, one in zip(data["alerts"], self.alerts, strict=True):
            alert["at"] = one.at.isoformat()
        return data

    def report(self) -> str:
        """Return the snapshot as a few lines of text."""
        return "\n".join(_report(self))


class Monitor:
    """Measures a saver at an interval, and sends alerts.

    A measurement writes a canary to a thread of its own, reads it back, compares and deletes it.
    If the saver is observed (`observe`), all of its operations count. `with` measures in a
    background thread, `async with` in a task, for async savers. Neither keeps the process alive,
    and errors of the saver do not end the monitor.

    Args:
        saver: any saver, also an `ObservedSaver`.
        thresholds: limits.
        interval: seconds between two measurements, 10 s after a failure.
        alerts: channels: apprise URLs, and functions of an `Alert` that are not async. Each has a
            thread of its own. An alert is sent when it is raised and when it clears (at 90 % of
            its limit).
        in_a_row: consecutive evaluations that raise or clear an alert. 1 judges each evaluation
            alone. Otherwise percentiles and error rates need 20 operations.
        repeat: seconds between repetitions of an active alert.
        on_snapshot: function of a `Snapshot`, called after each measurement, not async. Its
            errors are logged.

    Raises:
        InvalidArgumentError: an argument is invalid.
        OpenError: `alerts` has a URL, but apprise is not installed.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver[Any],
        thresholds: Thresholds | None = None,
        interval: float = 60,
        *,
        alerts: Sequence[str | Callable[[Alert], object]] = (),
        in_a_row: int = 3,
        repeat: float = 4 * 3600,
        on_snapshot: Callable[[Snapshot], object] | None = None,
    ) -> None:
        if not isinstance(saver, BaseCheckpointSaver):
            raise invalid("saver", saver, "Use a LangGraph saver, such as SqliteSaver(path).")
        self._thresholds = Thresholds() if thresholds is None else thresholds
        if not isinstance(self._thresholds, Thresholds):
            raise invalid("thresholds", thresholds, "Use Thresholds(max_latency_ms=1000).")
        if self._thresholds.min_ops_per_second is not None and not isinstance(saver, ObservedSaver):
            hint = "Use Monitor(observe(saver)), and the observed saver in your program."
            raise invalid("min_ops_per_second", self._thresholds.min_ops_per_second, hint)
        for name, value in (("interval", interval), ("repeat", repeat)):
            if not validation.is_time(value):
                raise invalid(name, value, "Use seconds, more than 0.")
        if not validation.is_count(in_a_row, 1):
            raise invalid("in_a_row", in_a_row, "Use a whole number, 1 or more.")
        if on_snapshot is not None and not is_callback(on_snapshot):
            raise invalid("on_snapshot", on_snapshot, "Use a function that is not async.")
        self._saver = saver if isinstance(saver, ObservedSaver) else observe(saver)
        self._interval = interval
        self._on_snapshot = on_snapshot
        self._channels = channels(alerts)
        self._alerts = Alerts(self._thresholds, in_a_row, repeat)
        self._least_judged = 1 if in_a_row == 1 else _LEAST_JUDGED
        self._canary = Canary(self._saver)
        self._sizes = StorageHistory(self._saver, self._thresholds.max_thread_bytes)
        self._window = Window(_WINDOW * interval, monotonic)
        self._storage: Storage | None = None
        self._statuses: ThreadStatuses | None = None
        self._has_new_sizes = False
        self._measured_sizes_at = self._cleaned_at = float("-inf")
        self._measurements = self._failed = self._failed_in_a_row = 0
        self._last_error: str | None = None
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        self._under_way: list[Any] = []  # futures or tasks of measurements
        self._started_at = 0.0  # when the last one started
        self._show = self._saver._exports.show  # noqa: SLF001 - of this package
        self._saver.add_sink(self._window)
        weakref.finalize(self, self._saver.remove_sink, self._window)
        weakref.finalize(self, self._show, None)

    # -- measuring -------------------------------------------------------------------

    def _measure(self) -> Operation[Snapshot]:
        """Measure once, send alerts, and return the snapshot."""
        self._saver.add_sink(self._window)
        yield from self._probe_in_background()
        return self._evaluate()

    measure, ameasure = sync_and_async(_measure)

    def _probe(self) -> Operation[str | None]:
        """Measure, and return the error or None."""
        now = monotonic()
        try:
            yield from self._canary.probe()
            self._statuses = yield from statuses_of(self._saver)
            self._show(self._statuses)
            pause = max(_STORAGE_EVERY * self._interval, _LEAST_PAUSE)
            if now - self._measured_sizes_at >= pause:
                self._storage = yield from self._sizes.measure(now)
                self._measured_sizes_at, self._has_new_sizes = now, True
        except Exception as error:  # noqa: BLE001 - savers of users may raise any error
            return _text(error)
        if now - self._cleaned_at >= _CLEAN_EVERY:
            yield from self._clean(now)
        return None

    def _clean(self, now: float) -> Operation[None]:
        self._cleaned_at = now  # (also after a failure: try once an hour)
        try:
            yield from self._canary.remove_abandoned()
        except Exception:  # noqa: BLE001 - likewise
            _log.warning("Failed to remove abandoned canaries.", exc_info=True)

    def _evaluate(self) -> Snapshot:
        for alert in self._alerts.evaluate(self._readings(), monotonic(), datetime.now(UTC)):
            _log.warning("%s", alert)
            for channel in self._channels:
                channel.put(alert)
        snapshot = self.snapshot()
        if self._on_snapshot is not None:
            try:
                self._on_snapshot(snapshot)
            except Exception:  # noqa: BLE001 - functions of users may raise any error
                _log.exception("The function on_snapshot of a monitor failed.")
        return snapshot

    def _readings(self) -> Iterator[Reading]:
        """Yield the known values, sizes once per reading."""
        failed, rates = self._failed_in_a_row, self._window.rates()
        text = f"the canary failed {plural(failed, 'time')}: {self._last_error}"
        yield Reading("canary", failed, text if failed else "the canary succeeded")
        if rates.operations >= self._least_judged:
            latency, error_rate = (rates.p95 or 0) * 1000, rates.error_rate or 0.0
            yield Reading("max_latency_ms", latency, f"p95 latency is {latency:,.1f} ms")
            text = f"{error_rate:.1%} of {rates.operations} operations failed"
            yield Reading("max_error_rate", error_rate, text)
        if rates.per_second is not None:
            text = f"{rates.per_second:.2f} operations a second"
            yield Reading("min_ops_per_second", rates.per_second, text)
        if self._has_new_sizes and self._storage is not None:
            self._has_new_sizes = False
            yield from _of_storage(self._storage, self._thresholds.max_thread_bytes or 0)
        if self._last_error is None and self._statuses is not None:
            yield from _of_statuses(self._statuses)

    def snapshot(self) -> Snapshot:
        """Return the current state, without a measurement."""
        active = self._alerts.active
        has_died = not self._is_running and (self._thread is not None or self._task is not None)
        is_working = self._measurements > 0 and self._last_error is None and not has_died
        return Snapshot(
            at=datetime.now(UTC),
            healthy=is_working and all(one.name not in _FAULTS for one in active),
            rates=self._window.rates(),
            measurements=self._measurements,
            failed=self._failed,
            last_error=self._last_error,
            storage=self._storage,
            statuses=self._statuses,
            alerts=active,
        )

    # -- in the background -----------------------------------------------------------

    @property
    def _is_running(self) -> bool:  # (False in a forked child)
        has_thread = self._thread is not None and self._thread.is_alive()
        return has_thread or (self._task is not None and not self._task.done())

    def _start(self) -> Operation[None]:
        """Start measuring in a background thread, or in a task of the event loop. Idempotent."""
        if not self._is_running:
            self._end = threading.Event()
            self._thread = self._task = None
            self._under_way = []
            self._saver.add_sink(self._window)
            yield External(self._start_thread, self._start_task)

    start, astart = sync_and_async(_start)

    def _start_thread(self) -> None:
        cycle = (self._cycle(self._end),)
        name = "threadkeep-monitor"
        self._thread = threading.Thread(target=driver.run, args=cycle, name=name, daemon=True)
        self._thread.start()

    async def _start_task(self) -> None:
        self._task = asyncio.create_task(driver.arun(self._cycle(self._end)))

    def _stop(self) -> Operation[None]:
        """Stop measuring, and send queued alerts. Each takes at most 5 s. Idempotent."""
        self._end.set()
        yield External(lambda: None, self._stop_task)
        yield from driver.external(self._finish)

    stop, astop = sync_and_async(_stop)

    async def _stop_task(self) -> None:
        if self._task is not None:
            tasks = [self._task, *self._under_way]
            if self._under_way:
                await asyncio.wait(self._under_way[-1:], timeout=_STOP)  # (it removes its canary)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_STOP)
            self._task = None

    def _finish(self) -> None:
        self._saver.remove_sink(self._window)
        self._show(None)
        if self._thread is not None:
            self._thread.join(_STOP)
            self._thread = None
        for channel in self._channels:
            channel.close(_STOP)

    def _cycle(self, end: threading.Event) -> Operation[None]:
        while not end.is_set():
            yield from self._probe_in_background()
            self._evaluate()
            pause = self._interval if self._last_error is None else min(_RETRY, self._interval)
            pause = min(pause, threading.TIMEOUT_MAX)
            yield External(partial(end.wait, pause), partial(asyncio.sleep, pause))

    # A measurement that hangs must block neither its report nor the next measurement.

    def _probe_in_background(self) -> Operation[None]:
        """Measure in a thread or task of its own, and note the error."""
        if self._may_probe():
            started = yield External(self._in_thread, self._in_task)
            self._under_way.append(started)
        newest = self._under_way[-1]
        yield External(
            partial(wait, [newest], _TIMEOUT), partial(asyncio.wait, [newest], timeout=_TIMEOUT)
        )
        if not newest.done():
            newest.cancel()  # (a thread continues)
            error: str | None = _HANGS.format(_TIMEOUT)
        else:  # (the saver may have cancelled it)
            error = "CancelledError" if newest.cancelled() else newest.result()
        self._measurements += 1
        self._failed += error is not None
        self._failed_in_a_row = 0 if error is None else self._failed_in_a_row + 1
        self._last_error = error

    def _in_thread(self) -> Future[str | None]:
        future: Future[str | None] = Future()
        future.set_running_or_notify_cancel()
        threading.Thread(
            target=lambda: future.set_result(driver.run(self._probe())),
            name="threadkeep-canary",
            daemon=True,
        ).start()
        return future

    async def _in_task(self) -> asyncio.Task[str | None]:
        return asyncio.create_task(driver.arun(self._probe()))

    def _may_probe(self) -> bool:
        """Return True if a measurement may start. The pause doubles with each one that hangs."""
        self._under_way = [one for one in self._under_way if not one.done()]
        count, now = len(self._under_way), monotonic()
        if count and now - self._started_at < _RETRY * 2 ** min(count, _DOUBLINGS):
            return False
        self._started_at = now
        return True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await self.astart()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.astop()


# -- readings and reports ----------------------------------------------------------------


def _of_storage(storage: Storage, limit: int) -> Iterator[Reading]:
    largest, text = 0, "no threads"
    if storage.threads:
        first, *others = storage.threads
        over = len([one for one in others if one.bytes > limit])
        more = f", {over} more over the limit" if over else ""
        largest, text = first.bytes, f"thread {first.thread!r} holds {first.bytes:,} bytes{more}"
    yield Reading("max_thread_bytes", largest, text)
    if storage.growth_per_day is not None:
        text = f"the store grows by {storage.growth_per_day:,.0f} bytes a day"
        yield Reading("max_growth_per_day", max(storage.growth_per_day, 0.0), text)


def _of_statuses(found: ThreadStatuses) -> Iterator[Reading]:
    count, age = found.failures_per_minute, found.oldest_unfinished
    text = f"{plural(count, 'thread')} failed in the last minute"
    yield Reading("max_failures_per_minute", count, text)
    idle = "" if age is None else f", thread {found.oldest_thread!r} idle for {lasting(age)}"
    text = f"{plural(found.unfinished, 'thread')} unfinished{idle}"
    yield Reading("max_unfinished_seconds", age or 0, text)
    yield Reading("max_held", found.held, f"{plural(found.held, 'thread')} held")


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {shown(' '.join(str(error).split())[:_MAX_ERROR])}"


def _report(found: Snapshot) -> Iterator[str]:
    state = "healthy" if found.healthy else "unhealthy"
    state = state if found.measurements else "not measured yet"
    yield f"{found.at:%Y-%m-%d %H:%M:%S} UTC  {state}"
    rates = found.rates
    if rates.p50 is not None and rates.p95 is not None and rates.p99 is not None:
        times = [f"{one * 1000:,.1f}" for one in (rates.p50, rates.p95, rates.p99)]
        yield f"latency  p50 {times[0]} ms, p95 {times[1]} ms, p99 {times[2]} ms"
        failed = f"{rates.failures} failed" if rates.failures else "none failed"
        rate = "" if rates.per_second is None else f" {rates.per_second:.2f}/s,"
        yield f"operations  {rates.operations} in the window,{rate} {failed}"
    yield f"measurements  {found.measurements}, {found.failed} failed"
    if found.last_error is not None:
        yield f"last error  {found.last_error}"
    if (some := found.statuses) is not None:
        counts = ", ".join([f"{getattr(some, one):,} {one}" for one in STATUSES])
        yield f"threads  {counts}"
    if found.storage is not None:
        yield f"stored  {found.storage.bytes:,} bytes{_growing(found.storage.growth_per_day)}"
        for one in found.storage.threads[:_SHOWN]:
            left = one.days_left
            forecast = "" if left is None else f", max_thread_bytes in {left:.1f} days"
            growth = _growing(one.growth_per_day)
            yield f"thread {shown(one.thread)}  {one.bytes:,} bytes{growth}{forecast}"
    for alert in found.alerts:
        yield str(alert)


def _growing(per_day: float | None) -> str:
    return "" if per_day is None else f", {per_day:+,.0f} a day"
