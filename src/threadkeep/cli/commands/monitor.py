"""The command that monitors a store."""

from __future__ import annotations

import sys
from contextlib import suppress
from queue import SimpleQueue

import typer

from threadkeep._stores.extras import extra
from threadkeep.cli.app import command
from threadkeep.cli.parameters import URL_ARGUMENT, flag, option, parse_positive, parse_size
from threadkeep.cli.stores import Session, public_name, settings
from threadkeep.cli.terminal import interrupted_by_sigterm, plural
from threadkeep.monitor import Monitor, Snapshot, Thresholds, observe


def _thresholds(
    *,
    max_latency_ms: float = option(
        "--max-latency-ms", "Limit of the 95th percentile. 0: none.", 1000.0, min=0
    ),
    max_error_rate: float = option(
        "--max-error-rate", "Limit of failures, 0 to 1. 1: none.", 0.05, min=0
    ),
    max_thread_bytes: str | None = option(
        "--max-thread-bytes SIZE", "Limit of a thread, such as 10MB. Default: none."
    ),
    max_growth_per_day: str | None = option(
        "--max-growth-per-day SIZE", "Limit of growth, such as 1GB. Default: none."
    ),
) -> Thresholds:
    return Thresholds(
        max_latency_ms=max_latency_ms or None,
        max_error_rate=max_error_rate,
        max_thread_bytes=parse_size("--max-thread-bytes", max_thread_bytes),
        max_growth_per_day=parse_size("--max-growth-per-day", max_growth_per_day),
    )


@command("threadkeep monitor threads.db --alert json://localhost:8080", thresholds=_thresholds)
def monitor(
    session: Session,
    store: str | None = URL_ARGUMENT,
    *,
    interval: str = option("--interval TIME", "Time between two measurements, such as 60s.", "60s"),
    alert: list[str] | None = option(
        "--alert URL",
        "Send alerts to this URL of apprise. Repeatable. Default: TK_ALERTS (JSON), else alerts in"
        " threadkeep.toml.",
    ),
    listen: str = option("--listen HOST:PORT", "Serve /healthz and /metrics.", "127.0.0.1:9464"),
    once: bool = flag("--once", "Measure once, and exit. Exit code 1: unhealthy, or an alert."),
    thresholds: Thresholds,
) -> int:
    """Measure a store until SIGTERM or Ctrl-C; serve its health and metrics."""
    with extra("The monitor", "monitor"):
        from prometheus_client import CollectorRegistry  # noqa: PLC0415 - an extra
    from threadkeep.monitor.service import serve  # noqa: PLC0415 - likewise

    url = session.url(store)
    channels = alert or settings().alerts or ()
    registry = CollectorRegistry()
    unit = "s" if interval.isdecimal() else ""
    seconds = parse_positive("--interval", interval + unit).total_seconds()
    codes: SimpleQueue[int] = SimpleQueue()

    def show(found: Snapshot) -> None:
        if session.as_json or sys.stdout.isatty():
            try:
                session.print(found.as_json(), _line(found))
            except typer.Exit as error:  # (nobody reads the output any more)
                codes.put(error.exit_code)

    with session.open(url) as saver:
        observed = observe(saver, registry=registry)
        if once:
            return _once(session, Monitor(observed, thresholds, alerts=channels, in_a_row=1))
        watch = Monitor(observed, thresholds, seconds, alerts=channels, on_snapshot=show)
        with (
            suppress(KeyboardInterrupt),
            interrupted_by_sigterm(),
            serve(watch, registry, listen) as address,
        ):
            name = public_name(url)
            text = f"Monitoring {name}: {address}/healthz, {address}/metrics"
            session.print({"store": name, "address": address}, text)
            with watch:
                return codes.get()
    return 0


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
