"""The monitor as a service: `/healthz` and `/metrics` over HTTP."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from threadkeep._stores.extras import extra
from threadkeep.errors import OpenError, invalid
from threadkeep.monitor.monitor import Monitor

with extra("The service", "monitor"):
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_PREFIX = "threadkeep_monitor_"
_SECONDS = 10  # that a client may take for its request
_MOST_PORT = 65535


class MonitorMetrics:
    """Collector of `prometheus_client`: the snapshot of a monitor. No thread id is a label."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. Those that are not known yet are left out."""
        found = self._monitor.snapshot()
        rates, storage = found.rates, found.storage
        latency = {"50": rates.p50, "95": rates.p95, "99": rates.p99}
        alerts = {one.name: 1 for one in found.alerts}
        healthy = float(found.healthy) if found.measurements else None
        yield _gauge("healthy", "1 if the store is healthy.", healthy)
        yield CounterMetricFamily(f"{_PREFIX}measurements", "Measurements.", found.measurements)
        text = "Measurements that failed."
        yield CounterMetricFamily(f"{_PREFIX}failed_measurements", text, found.failed)
        yield _gauge("error_ratio", "Part of the operations that failed.", rates.error_rate)
        yield _gauge("operations_per_second", "Operations a second.", rates.per_second)
        yield _labelled("latency_seconds", "Latency of operations.", "percentile", latency)
        yield _labelled("alert", "1 for each active alert.", "alert", alerts)
        if storage is not None:
            largest = max([one.bytes for one in storage.threads], default=0)
            yield _gauge("stored_bytes", "Size of the store.", storage.bytes)
            yield _gauge("growth_bytes_per_day", "Growth of the store.", storage.growth_per_day)
            yield _gauge("largest_thread_bytes", "Size of the largest thread.", largest)
            yield _gauge("items", "Items of stores in the same database.", storage.items)
            yield _gauge("item_bytes", "Bytes of items and their vectors.", storage.item_bytes)
            yield _gauge("cache_entries", "Cached results of nodes.", storage.cache_entries)
            yield _gauge("cache_bytes", "Bytes of cached results.", storage.cache_bytes)


def _gauge(name: str, text: str, value: float | None) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}{name}", text, value)


def _labelled(name: str, text: str, label: str, values: Mapping[str, float | None]) -> Metric:
    family = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=[label])
    for at, value in values.items():
        if value is not None:
            family.add_metric([at], value)
    return family


class _Handler(BaseHTTPRequestHandler):
    timeout = _SECONDS
    server: _Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/healthz":
            snapshot = self.server.monitor.snapshot()
            body = json.dumps(snapshot.as_json()).encode()
            self._reply(200 if snapshot.healthy else 503, "application/json", body)
        elif path == "/metrics":
            self._reply(200, CONTENT_TYPE_LATEST, generate_latest(self.server.registry))
        else:
            self._reply(404, "text/plain", b"/healthz or /metrics\n")

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server asks for

    def log_message(self, format: str, *args: object) -> None:  # requests are not logged
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, monitor: Monitor, registry: CollectorRegistry) -> None:
        self.monitor = monitor
        self.registry = registry
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that has gone."""


@contextmanager
def serve(monitor: Monitor, registry: CollectorRegistry, listen: str) -> Iterator[str]:
    """Serve `/healthz` and `/metrics` until the block ends; yields the URL.

    Args:
        monitor: the monitor; its metrics are added to the registry.
        registry: what `/metrics` shows.
        listen: "host:port"; port 0 is any that is free.

    Raises:
        InvalidArgumentError: the address is invalid.
        OpenError: it cannot be listened on.
    """
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > _MOST_PORT:
        raise invalid("listen", listen, "Use a host and a port, such as 127.0.0.1:9464.")
    registry.register(MonitorMetrics(monitor))
    try:
        server = _Server(host, int(port), monitor, registry)
    except OSError as error:
        raise OpenError(f"{listen} cannot be listened on: {error.strerror}.") from error
    thread = threading.Thread(target=server.serve_forever, name="threadkeep-http", daemon=True)
    thread.start()
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
