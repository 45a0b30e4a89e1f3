"""The monitor as a service: `/healthz` and `/metrics` over HTTP."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from threadkeep._stores.external import extra
from threadkeep.errors import OpenError, invalid
from threadkeep.monitor.monitor import Monitor

with extra("The service", "monitor"):
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_SECONDS = 10  # for a client to send its request
_MOST_PORT = 65535


class MonitorMetrics:
    """Collector of `prometheus_client` for the snapshot of a monitor. No thread id is a label."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. A metric that is not known yet has no sample."""
        found = self._monitor.snapshot()
        rates, storage = found.rates, found.storage
        latency = {"50": rates.p50, "95": rates.p95, "99": rates.p99}
        alerts = {one.name: 1.0 for one in found.alerts}
        name = "threadkeep_monitor_measurements"
        yield CounterMetricFamily(name, "Measurements.", found.measurements)
        name = "threadkeep_monitor_failed_measurements"
        yield CounterMetricFamily(name, "Measurements that failed.", found.failed)
        yield _labelled("latency_seconds", "Latency of operations.", "percentile", latency)
        yield _labelled("alert", "1 for each active alert.", "alert", alerts)
        healthy = float(found.healthy) if found.measurements else None
        yield _gauge("healthy", "1 if the store is healthy.", healthy)
        yield _gauge("error_ratio", "Part of the operations that failed.", rates.error_rate)
        yield _gauge("operations_per_second", "Operations per second.", rates.per_second)
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
    return GaugeMetricFamily(f"threadkeep_monitor_{name}", text, value)


def _labelled(name: str, text: str, label: str, values: Mapping[str, float | None]) -> Metric:
    family = GaugeMetricFamily(f"threadkeep_monitor_{name}", text, labels=[label])
    for at, value in values.items():
        if value is not None:
            family.add_metric([at], value)
    return family


def _application(monitor: Monitor, registry: CollectorRegistry) -> WSGIApplication:
    """Return a WSGI application of `/healthz` and `/metrics`."""
    metrics = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        is_head = environ["REQUEST_METHOD"] == "HEAD"
        if environ["PATH_INFO"] == "/metrics":
            wanted = {**environ, "REQUEST_METHOD": "GET"} if is_head else environ
            body: Iterable[bytes] = metrics(wanted, start)
        else:
            status, kind, body = HTTPStatus.NOT_FOUND, "text/plain", [b"/healthz or /metrics\n"]
            if environ["PATH_INFO"] == "/healthz":
                found = monitor.snapshot()
                status = HTTPStatus.OK if found.healthy else HTTPStatus.SERVICE_UNAVAILABLE
                kind, body = "application/json", [json.dumps(found.as_json()).encode()]
            start(f"{status.value} {status.phrase}", [("Content-Type", kind)])
        return [] if is_head else body

    return answer


class _Handler(WSGIRequestHandler):
    timeout = _SECONDS

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that left or timed out."""


class _ServerOnIPv6(_Server):
    address_family = socket.AF_INET6


@contextmanager
def serve(monitor: Monitor, registry: CollectorRegistry, listen: str) -> Iterator[str]:
    """Serve `/healthz` and `/metrics` until the block ends, and yield the URL.

    Args:
        monitor: the monitor. Its metrics are added to the registry.
        registry: the registry that `/metrics` shows.
        listen: "host:port". Port 0 takes a free port.

    Raises:
        InvalidArgumentError: the address is invalid.
        OpenError: the address is not available.
    """
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > _MOST_PORT:
        raise invalid("listen", listen, "Use a host and a port, such as 127.0.0.1:9464.")
    registry.register(MonitorMetrics(monitor))
    kind, name = (_ServerOnIPv6, f"[{host}]") if ":" in host else (_Server, host)
    try:
        server = make_server(host, int(port), _application(monitor, registry), kind, _Handler)
    except OSError as error:
        hint = "Choose another port: 127.0.0.1:0 takes a free one."
        raise OpenError(f"Cannot listen on {listen}: {error.strerror}.", hint=hint) from error
    with server:
        thread = threading.Thread(target=server.serve_forever, name="threadkeep-http", daemon=True)
        thread.start()
        try:
            yield f"http://{name}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
