"""Windows, growth, hysteresis and alerts of a monitor, on a clock of the tests."""

import threading
from datetime import UTC, datetime
from functools import partial

import pytest

from threadkeep import MemorySaver
from threadkeep.errors import ConflictError, InvalidArgumentError
from threadkeep.monitor import Monitor, Thresholds
from threadkeep.monitor.alerts import Alerts, Reading, _used, channels
from threadkeep.monitor.monitor import _text
from threadkeep.monitor.probes import DAY, SAMPLES, Window, days_until, growth_per_day


class Clock:
    """A clock that tests move."""

    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


# -- a window --------------------------------------------------------------------------


def test_a_window_has_rates_and_percentiles(clock):
    window = Window(600, clock)
    for number in range(100):
        clock.now += 1
        window.record("put", number + 1, OSError() if number < 5 else None)
    rates = window.rates()
    assert (rates.operations, rates.failures, rates.error_rate) == (100, 5, 0.05)
    assert (rates.p50, rates.p95, rates.p99) == (50, 95, 99)
    assert rates.per_second == 1


def test_a_window_lets_go_of_what_is_old_and_of_what_is_too_much(clock):
    window = Window(60, clock)
    for _ in range(SAMPLES):
        window.record("put", 9, OSError())
    clock.now += 10
    for _ in range(SAMPLES):
        window.record("put", 1, None)
    clock.now += 10
    assert (window.rates().operations, window.rates().failures) == (SAMPLES, 0)
    assert window.rates().per_second == SAMPLES / 10
    clock.now += 60
    assert (window.rates().operations, window.rates().per_second) == (0, 0)
    assert window.rates().p95 is None


def test_a_rate_is_known_after_a_second_or_300_operations(clock):
    window = Window(60, clock)
    window.record("put", 1, None)
    clock.now += 0.5
    assert (window.rates().operations, window.rates().per_second) == (1, None)
    for _ in range(SAMPLES):
        window.record("put", 1, None)
    clock.now += 0.5
    assert window.rates().per_second == 2 * SAMPLES


def test_mistakes_of_callers_and_cancellations_are_no_failures(clock):
    window = Window(60, clock)
    for error in (ConflictError(), InvalidArgumentError(), KeyboardInterrupt(), OSError()):
        window.record("put", 1, error)
    assert (window.rates().operations, window.rates().failures) == (4, 1)


# -- growth ----------------------------------------------------------------------------


def test_growth_is_told_after_an_hour_with_a_forecast():
    sizes = [(minute * 60, 1000 + 10 * minute) for minute in range(61)]
    assert growth_per_day(sizes[:-1]) is None
    assert growth_per_day(sizes) == pytest.approx(10 * DAY / 60)
    assert days_until(1600, 100, 2000) == 4
    assert days_until(1600, 100, 1000) == 0
    assert days_until(1600, -5, 2000) is days_until(1600, 100, None) is None


# -- alerts ----------------------------------------------------------------------------


def test_an_alert_rises_and_clears_the_third_time_and_well_within_its_limit():
    alerts, sent = Alerts(Thresholds(max_latency_ms=1), 3, repeat=100), {}
    ratios = (2, 2, 1, 2, 2, 2, 2, 0.95, 0.9, 0.9, 1.1, 0.9, 0.9, 0.9, 2)
    for at, ratio in enumerate(ratios):
        for one in alerts.evaluate([Reading("max_latency_ms", ratio, "")], 0, datetime.now(UTC)):
            sent[at] = one.state
    assert sent == {5: "raised", 13: "cleared"}


@pytest.mark.parametrize(
    ("name", "value", "limit", "ratio"),
    [("max", 50, 100, 0.5), ("min_", 50, 100, 2), ("max", 0, 0, 0), ("max", 1, 0, float("inf"))],
)
def test_how_much_of_a_limit_is_used_up(name, value, limit, ratio):
    assert _used(name, value, limit) == ratio


def test_an_alert_is_sent_when_it_rises_again_after_a_while_and_when_it_clears():
    alerts = Alerts(Thresholds(), 3, repeat=100)

    def sent(value, now):
        reading = Reading("max_latency_ms", value, f"p95 latency is {value} ms")
        at = datetime.fromtimestamp(now, UTC)
        return [one.state for one in alerts.evaluate([reading], now, at)]

    assert [sent(1500, now) for now in (0, 1)] == [[], []]
    assert sent(1500, 2) == ["raised"]
    assert (
        str(alerts.active[0])
        == "raised: p95 latency is 1500 ms (max_latency_ms=1000) at 1970-01-01 00:00:02 UTC"
    )
    assert [sent(1500, now) for now in (3, 101)] == [[], []]
    assert sent(1600, 102) == ["repeated"]
    assert alerts.evaluate([], 150, datetime.now(UTC)) == []  # (nothing was measured: it stays)
    assert len(alerts.active) == 1
    assert [sent(10, now) for now in (251, 252, 253)] == [[], [], ["cleared"]]  # (not repeated)
    assert alerts.active == ()


def test_percentiles_and_errors_are_judged_from_20_operations():
    judged = {"max_latency_ms", "max_error_rate"}
    with MemorySaver() as saver:
        watch = Monitor(saver)
        for _ in range(20):
            assert not judged & {one.name for one in watch._readings()}
            watch._window.record("put", 5.0, None)
        assert judged < {one.name for one in watch._readings()}


def test_an_error_cannot_control_a_terminal():
    assert _text(OSError("down\n\x1b[31m")) == r"OSError: 'down \x1b[31m'"


# -- channels --------------------------------------------------------------------------


def test_a_channel_that_hangs_or_fails_stops_no_other(caplog):
    hung, sent = threading.Event(), []

    def fails(alert):
        raise OSError("no route")

    hanging, failing, working = channels([lambda alert: hung.wait(60), fails, sent.append])
    for number in range(300):
        for channel in (hanging, failing):
            channel.put(number)
    working.put("news")
    working.close(60)
    assert sent == ["news"]
    hung.set()
    for channel in (hanging, failing):
        channel.close(60)
    said = [one.getMessage() for one in caplog.records]
    assert "Failed to send an alert to fails (channel 2): OSError: no route" in said
    assert "Dropped the oldest alert to <lambda> (channel 1): the queue is full." in said


# -- arguments -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits",
    [
        {"max_latency_ms": 0},
        {"max_latency_ms": True},
        {"max_error_rate": 1.1},
        {"max_error_rate": "0.1"},
        {"max_thread_bytes": -1},
        {"max_growth_per_day": float("nan")},
        {"max_failures_per_minute": -1},
        {"max_unfinished_seconds": 0},
        {"max_held": -1},
    ],
)
def test_invalid_thresholds_are_refused(limits):
    with pytest.raises(InvalidArgumentError, match=f"Invalid {next(iter(limits))}"):
        Thresholds(**limits)


async def asynchronous(*_):
    """An async function, which a channel would not await."""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"interval": 0}, "interval"),
        ({"repeat": None}, "repeat"),
        ({"in_a_row": 0}, "in_a_row"),
        ({"thresholds": 5}, "thresholds"),
        ({"thresholds": Thresholds(min_ops_per_second=1)}, "min_ops_per_second"),
        ({"alerts": "json://localhost"}, "alerts"),
        ({"alerts": [5]}, "alert"),
        ({"alerts": [asynchronous]}, "alert"),
        ({"alerts": [partial(asynchronous, 1)]}, "alert"),
        ({"on_snapshot": asynchronous}, "on_snapshot"),
        ({"on_snapshot": 5}, "on_snapshot"),
    ],
)
def test_invalid_arguments_of_a_monitor_are_refused(options, told):
    with MemorySaver() as saver, pytest.raises(InvalidArgumentError, match=f"Invalid {told}"):
        Monitor(saver, **options)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # (apprise's, as it loads its plugins)
def test_an_invalid_url_is_not_repeated():
    with pytest.raises(InvalidArgumentError, match=r"Invalid alert: 'nonsense://\.\.\.'") as error:
        channels(["nonsense://user:hunter2@host"])
    assert "hunter2" not in str(error.value)
