"""Cost of an observed operation: `python -m bench.monitor`.

In front of a saver that does nothing: the difference is what observing takes. Beside it, turns of a
graph on a saver that stores, observed and not, in turns.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, MessagesState, StateGraph
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry

from threadkeep import SqliteSaver
from threadkeep.monitor import observe

_CALLS = 20_000
_ROUNDS = 15
_TURNS = 200
_TURN: Any = {"messages": [("user", "hello")]}
_CONFIG: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}


class Nothing(BaseCheckpointSaver[Any]):
    """A saver that does nothing."""

    def get_tuple(self, config: Any) -> None:
        del config

    async def aget_tuple(self, config: Any) -> None:
        del config


def exports() -> dict[str, dict[str, Any]]:
    quiet = logging.getLogger("bench.monitor")
    quiet.setLevel(logging.INFO)
    loud = logging.getLogger("bench.monitor.loud")
    loud.setLevel(logging.DEBUG)
    loud.propagate = False
    loud.addHandler(logging.NullHandler())
    meter = MeterProvider([InMemoryMetricReader()]).get_meter("bench")
    return {
        "no export": {},
        "Prometheus": {"registry": CollectorRegistry()},
        "OpenTelemetry, metrics": {"meter": meter},
        "OpenTelemetry, spans": {"tracer": TracerProvider().get_tracer("bench")},
        "a log that is off": {"logger": quiet},
        "a log at level debug": {"logger": loud},
    }


def best(
    measure: Callable[[BaseCheckpointSaver[Any]], float], saver: BaseCheckpointSaver[Any]
) -> float:
    """Return the least of several measurements: what else runs only adds to it."""
    return min(measure(saver) for _ in range(_ROUNDS))


def blocking(saver: BaseCheckpointSaver[Any]) -> float:
    call = saver.get_tuple
    begun = time.perf_counter()
    for _ in range(_CALLS):
        call(_CONFIG)
    return (time.perf_counter() - begun) / _CALLS * 1e6


def awaiting(saver: BaseCheckpointSaver[Any]) -> float:
    async def calls() -> float:
        call = saver.aget_tuple
        begun = time.perf_counter()
        for _ in range(_CALLS):
            await call(_CONFIG)
        return (time.perf_counter() - begun) / _CALLS * 1e6

    return asyncio.run(calls())


def turn_ms(folder: Path, name: str, **export: Any) -> float:
    """Return the median time of a turn of a thread that grows."""
    builder = StateGraph(MessagesState)
    builder.add_node("bot", lambda _: {"messages": [("ai", "so many words " * 10)]})
    builder.add_edge(START, "bot")
    with SqliteSaver(folder / name) as inner:
        saver = observe(inner, **export) if export else inner
        graph = builder.compile(checkpointer=saver)
        times = []
        for _ in range(_TURNS):
            begun = time.perf_counter()
            graph.invoke(_TURN, _CONFIG)
            times.append(time.perf_counter() - begun)
    return median(times) * 1e3


def main() -> None:
    print(f"µs that observing adds to an operation (best of {_ROUNDS} times {_CALLS:,} calls)\n")
    print(f"{'':26}{'sync':>8}{'async':>8}")
    base, abase = best(blocking, Nothing()), best(awaiting, Nothing())
    for name, options in exports().items():
        saver = observe(Nothing(), **options)
        sync = best(blocking, saver) - base
        other = best(awaiting, saver) - abase
        print(f"{name:26}{sync:8.2f}{other:8.2f}")
    with TemporaryDirectory() as folder:
        pairs = []
        for number in range(5):
            plain = turn_ms(Path(folder), f"plain-{number}")
            observed = turn_ms(Path(folder), f"observed-{number}", registry=CollectorRegistry())
            pairs.append((observed / plain, plain, observed))
    ratio, plain, observed = sorted(pairs)[len(pairs) // 2]
    print(
        f"\nms a turn on SQLite: {plain:.2f}, with Prometheus {observed:.2f}:"
        f" {ratio:.2f} times (median of 5 pairs)"
    )


if __name__ == "__main__":
    main()
