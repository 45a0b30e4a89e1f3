"""The command that monitors a store."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress

from threadkeep.backends.open import extra
from threadkeep.cli.app import command
from threadkeep.cli.parameters import URL_ARGUMENT, flag, option, parse_size
from threadkeep.cli.stores import Session, public_name, settings
from threadkeep.cli.terminal import interrupted_by_sigterm, plural
from threadkeep.monitor import Monitor, Snapshot, Thresholds, observe


def _thresholds(
    *,
    max_latency_ms: float = option("--max-latency-ms", "Limit of the 95th percentile.", 1000.0),
    max_error_rate: float = option("--max-error-rate", "Limit of failures, 0 to 1.", 0.05),
    max_thread_bytes: str | None = option(
        "--max-thread-bytes SIZE", "Limit of a thread, such as 10MB. Default: none."
    ),
    max_growth_per_day: str | None = option(
        "--max-growth-per-day SIZE", "Limit of growth, such as 1GB. Default: none."
    ),
) -> Thresholds:
    return Thresholds(
        max_latency_ms=max_latency_ms,
        max_error_rate=max_error_rate,
        max_thread_bytes=parse_size("--max-thread-bytes", max_thread_bytes),
        max_growth_per_day=parse_size("--max-growth-per-day", max_growth_per_day),
    )


@command("threadkeep monitor threads.db --alert json://localhost:8080", thresholds=_thresholds)
def monitor(
    session: Session,
    store: str | None = URL_ARGUMENT,
    *,
    interval: float = option("--interval SECONDS", "Time between two measurements.", 60.0),
    alert: list[str] | None = option(
        "--alert URL",
        "Send alerts to this URL of apprise. Repeatable. Default: TK_ALERTS (JSON), else alerts in"
        " threadkeep.toml.",
    ),
    listen: str = option("--listen HOST:PORT", "Serve /healthz and /metrics.", "127.0.0.1:9464"),
    once: bool = flag("--once", "Measure once, and exit. Exit code 1: unhealthy."),
    thresholds: Thresholds,
) -> int:
    """Measure a store until SIGTERM or Ctrl-C; serve its health and metrics."""
    with extra("The monitor", "monitor"):
        from prometheus_client import CollectorRegistry  # noqa: PLC0415 - an extra
    from threadkeep.monitor.service import serve  # noqa: PLC0415 - likewise

    url = session.url(store)
    channels = alert or settings().alerts or ()
    registry = CollectorRegistry()

    def show(found: Snapshot) -> None:
        if session.as_json or sys.stdout.isatty():
            session.print(found.as_json(), _line(found))

    with session.open(url) as saver:
        observed = observe(saver, registry=registry)
        watch = Monitor(
            observed, thresholds, interval, alerts=channels, on_snapshot=None if once else show
        )
        if once:
            found = watch.measure()
            session.print(found.as_json(), found.report())
            return 0 if found.healthy else 1
        with (
            suppress(KeyboardInterrupt),
            interrupted_by_sigterm(),
            serve(watch, registry, listen) as address,
        ):
            _run(session, watch, public_name(url), address)
    return 0


def _run(session: Session, watch: Monitor, store: str, address: str) -> None:
    """Measure until a signal comes."""
    document = {"store": store, "address": address}
    session.print(document, f"Monitoring {store}: {address}/healthz, {address}/metrics")
    with watch:
        threading.Event().wait()


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
