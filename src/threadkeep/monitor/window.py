"""Measurements over time: a sliding window of operations, and growth. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from statistics import linear_regression

from threadkeep.errors import ConflictError, InvalidArgumentError, InvalidConfigError

SAMPLES = 300
_CALLERS_OWN = (ConflictError, InvalidArgumentError, InvalidConfigError)
_LEAST_SPAN = 3600  # seconds of sizes from which growth is known
DAY = 86400


@dataclass(frozen=True, slots=True)
class Rates:
    """Operations in a window; times in seconds, None where there were none.

    `per_second` is None within the first second.
    """

    operations: int = 0
    failures: int = 0
    per_second: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None

    @property
    def error_rate(self) -> float | None:
        """The part of the operations that failed, 0 to 1."""
        return self.failures / self.operations if self.operations else None


class Window:
    """The newest 300 operations, without those that are too old. A `Sink`, which takes no lock.

    Args:
        seconds: the age at which an operation leaves the window.
        clock: returns seconds that never go back.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._began = clock()
        self._samples: deque[tuple[float, float, bool]] = deque(maxlen=SAMPLES)

    def record(self, operation: str, seconds: float, error: BaseException | None) -> None:
        """Add an operation. Mistakes of callers, conflicts and cancellations are no failures."""
        del operation
        has_failed = isinstance(error, Exception) and not isinstance(error, _CALLERS_OWN)
        self._samples.append((self._clock(), seconds, has_failed))

    def rates(self) -> Rates:
        """Return what the window holds now."""
        now = self._clock()
        since = max(now - self._seconds, self._began)
        # (a copy: other threads go on recording)
        samples = [one for one in self._samples.copy() if one[0] >= since]
        if len(samples) == SAMPLES:
            since = samples[0][0]
        passed = now - since
        is_known = passed > 0 and (passed >= 1 or len(samples) == SAMPLES)
        times = sorted([one[1] for one in samples])
        return Rates(
            operations=len(samples),
            failures=sum([one[2] for one in samples]),
            per_second=len(samples) / passed if is_known else None,
            p50=_percentile(times, 0.50),
            p95=_percentile(times, 0.95),
            p99=_percentile(times, 0.99),
        )


def _percentile(ordered: list[float], part: float) -> float | None:
    """Return the smallest value that is not less than this part of all; None if there is none."""
    return ordered[ceil(part * len(ordered)) - 1] if ordered else None


def growth_per_day(sizes: Iterable[tuple[float, int]]) -> float | None:
    """Return the growth of sizes at times in seconds, in bytes a day (least squares).

    None within the first hour.
    """
    times, values = zip(*sizes, strict=True)
    if times[-1] - times[0] < _LEAST_SPAN:
        return None
    return linear_regression(times, values).slope * DAY


def days_until(size: int, per_day: float | None, limit: int | None) -> float | None:
    """Return the days until a size reaches a limit; None if it does not grow, or has no limit."""
    if limit is None or not per_day or per_day <= 0:
        return None
    return max(limit - size, 0) / per_day
