"""Alerts: thresholds, active alerts, and the channels that send them."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from inspect import iscoroutinefunction
from typing import Any, Literal, NamedTuple

from threadkeep._stores.external import extra
from threadkeep.errors import ThreadkeepError, invalid

_CLEARS_BELOW = 0.9  # of the threshold
_QUEUED = 100  # alerts that wait for one channel
_PAUSES = (2, 4)  # seconds before each further attempt
_log = logging.getLogger("threadkeep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Limits that raise an alert when crossed. None turns a limit off.

    Args:
        max_latency_ms: limit of the 95th percentile of latencies, in milliseconds.
        max_error_rate: limit of the part of operations that fail, 0 to 1.
        min_ops_per_second: least number of operations per second. Needs an observed saver.
        max_thread_bytes: limit of the size of a thread.
        max_growth_per_day: limit of the growth of the store in a day, in bytes.
        max_failures_per_minute: limit of the threads that failed in the last minute.
        max_unfinished_seconds: limit of the seconds since the last write of an unfinished thread.
        max_held: limit of the held threads.

    Raises:
        InvalidArgumentError: a limit is invalid.
    """

    max_latency_ms: float | None = 1000
    max_error_rate: float | None = 0.05
    min_ops_per_second: float | None = None
    max_thread_bytes: int | None = None
    max_growth_per_day: int | None = None
    max_failures_per_minute: float | None = None
    max_unfinished_seconds: float | None = None
    max_held: int | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            is_number = isinstance(value, int | float) and type(value) is not bool
            is_valid, hint = is_number and 0 < value < float("inf"), "more than 0"
            if name == "max_error_rate":
                is_valid, hint = is_number and 0 <= value <= 1, "from 0 to 1"
            elif name == "max_held":
                is_valid, hint = is_number and 0 <= value < float("inf"), "0 or more"
            if value is not None and not is_valid:
                raise invalid(name, value, f"Use a number, {hint}, or None.")


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that was raised, repeated or cleared.

    Args:
        name: the threshold, such as "max_latency_ms", or "canary".
        state: "raised", "repeated" while it stays raised, or "cleared".
        value: the measured value.
        threshold: the limit.
        at: the time, in UTC.
        text: the alert as a sentence.
    """

    name: str
    state: Literal["raised", "repeated", "cleared"]
    value: float
    threshold: float
    at: datetime
    text: str

    def __str__(self) -> str:
        """Return the text."""
        return self.text


class Reading(NamedTuple):
    """A measured value, by the name of its limit."""

    name: str
    value: float
    text: str  # "p95 latency is 1,532.0 ms"


class Alerts:
    """State of all alerts. An alert clears at 90 % of its limit.

    Args:
        limits: the limits. "Canary" has the limit 0.
        in_a_row: consecutive readings that raise or clear an alert.
        repeat: seconds between repetitions of an active alert.
    """

    def __init__(self, limits: Thresholds, in_a_row: int, repeat: float) -> None:
        self._limits = {**asdict(limits), "canary": 0}
        self._in_a_row = in_a_row
        self._repeat = repeat
        self._counts: dict[str, int] = {}  # consecutive readings that call for the other state
        self._sent: dict[str, float] = {}
        self._active: dict[str, Alert] = {}

    @property
    def active(self) -> tuple[Alert, ...]:
        """Alerts that are raised and not cleared."""
        return tuple(self._active.values())

    def evaluate(self, readings: Iterable[Reading], now: float, at: datetime) -> list[Alert]:
        """Return the alerts to send. An alert without a reading keeps its state.

        Args:
            readings: measured values. Values without a limit are ignored.
            now: monotonic seconds.
            at: the time of day.
        """
        found = [self._evaluate(*one, now, at) for one in readings]
        return [alert for alert in found if alert is not None]

    def _evaluate(
        self, name: str, value: float, text: str, now: float, at: datetime
    ) -> Alert | None:
        limit = self._limits[name]
        if limit is None:
            return None
        named = f" ({name}={limit:g})" if limit else ""

        def alert(state: Literal["raised", "repeated", "cleared"]) -> Alert:
            sentence = f"{state}: {text}{named} at {at:%Y-%m-%d %H:%M:%S} UTC"
            return Alert(name, state, value, limit, at, sentence)

        used, is_active = _used(name, value, limit), name in self._active
        calls_for_change = used <= _CLEARS_BELOW if is_active else used > 1
        count = self._counts.get(name, 0) + 1 if calls_for_change else 0
        has_changed = count == self._in_a_row
        self._counts[name] = 0 if has_changed else count
        if has_changed and is_active:
            del self._active[name]
            return alert("cleared")
        if used <= 1 or not (has_changed or is_active):
            return None
        self._active[name] = alert("raised")
        if not has_changed and now - self._sent[name] < self._repeat:
            return None
        self._sent[name] = now
        return alert("raised" if has_changed else "repeated")


def _used(name: str, value: float, limit: float) -> float:
    """Return the used part of a limit. Above 1 the limit is crossed."""
    part, whole = (limit, value) if name.startswith("min_") else (value, limit)
    if whole:
        return part / whole
    return float("inf") if part else 0.0


# -- channels ----------------------------------------------------------------------------


def channels(targets: Sequence[str | Callable[[Alert], object]]) -> list[Channel]:
    """Return the channels of apprise URLs and of functions.

    Raises:
        InvalidArgumentError: a target is neither.
        OpenError: apprise is not installed.
    """
    if isinstance(targets, str) or not isinstance(targets, Iterable):
        raise invalid("alerts", targets, "Use a list of URLs and functions, also for a single one.")
    senders = [_sender(target) for target in targets]
    return [Channel(f"{name} (channel {n})", send) for n, (name, send) in enumerate(senders, 1)]


def is_callback(value: object) -> bool:
    """Return True for a function that is not async."""
    variants = (value, getattr(value, "__call__", None))  # noqa: B004 - the method itself
    return callable(value) and not any(map(iscoroutinefunction, variants))


def _sender(target: Any) -> tuple[str, Callable[[Alert], object]]:
    if callable(target):
        if not is_callback(target):
            raise invalid("alert", target, "Use a function that is not async.")
        return getattr(target, "__name__", type(target).__name__), target
    with extra("An alert by URL", "monitor"):
        import apprise  # noqa: PLC0415 - an extra, only when it is used
    service = apprise.Apprise()
    # (errors must not show the URL: it may hold a password)
    scheme = target.partition("://")[0] if isinstance(target, str) and "://" in target else ""
    name = f"{scheme}://..." if scheme.isalnum() else "..."
    if not isinstance(target, str) or not service.add(target):
        hint = "Use a URL of apprise (slack://..., mailto://..., json://host), or a function."
        raise invalid("alert", name if isinstance(target, str) else target, hint)

    def send(alert: Alert) -> None:
        kind = (
            apprise.NotifyType.SUCCESS if alert.state == "cleared" else apprise.NotifyType.FAILURE
        )
        title = f"threadkeep: {alert.name} {alert.state}"
        if not service.notify(body=alert.text, title=title, notify_type=kind):
            raise ThreadkeepError(f"{name} did not accept an alert.")

    return name, send


class Channel:
    """Sender of alerts in a thread of its own, so that a slow channel delays no other one.

    A failed alert is sent again twice, then logged. A full queue drops its oldest alert.
    """

    def __init__(self, name: str, send: Callable[[Alert], object]) -> None:
        self._name = name
        self._send = send
        self._queue: queue.Queue[Alert | None] = queue.Queue(_QUEUED)
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, alert: Alert | None) -> None:
        """Queue an alert without waiting."""
        is_running = self._thread is not None and self._thread.is_alive()
        if not is_running and alert is not None:
            self._end.clear()
            self._thread = threading.Thread(target=self._run, name="threadkeep-alerts", daemon=True)
            self._thread.start()
        while True:
            with suppress(queue.Full):
                self._queue.put_nowait(alert)
                return
            with suppress(queue.Empty):
                self._queue.get_nowait()
                _log.warning("Dropped the oldest alert to %s: the queue is full.", self._name)

    def close(self, timeout: float) -> None:
        """Send the queued alerts, for at most these seconds, without pauses between attempts."""
        if self._thread is not None:
            self._end.set()
            self.put(None)
            self._thread.join(timeout)
            self._thread = None

    def _run(self) -> None:
        while (alert := self._queue.get()) is not None:
            self._deliver(alert)

    def _deliver(self, alert: Alert) -> None:
        for pause in (*_PAUSES, None):
            try:
                self._send(alert)
            except Exception as error:  # noqa: BLE001 - functions of users may raise any error
                if pause is not None:
                    self._end.wait(pause)
                else:
                    kind = type(error).__name__
                    _log.warning("Failed to send an alert to %s: %s: %s", self._name, kind, error)
            else:
                return
