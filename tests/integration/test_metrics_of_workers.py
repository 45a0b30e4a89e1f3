"""Metrics of several processes behind one port, with PROMETHEUS_MULTIPROC_DIR."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from threadkeep._core.engine.usage import Counters
from threadkeep.monitor.exports import METRICS

PROGRAM = Path(__file__).parents[1] / "kit" / "workers.py"
TURNS = 24
Samples = dict[tuple[str, ...], float]


def parsed(text: str) -> Samples:
    """The sums of all samples, by name and by each of the labels that tell them apart."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            names = [sample.labels[one] for one in ("backend", "cache") if one in sample.labels]
            if not sample.name.endswith("_bucket"):
                key = (sample.name.removeprefix("threadkeep_"), *names)
                found[key] = found.get(key, 0) + sample.value
                if sample.name.endswith("_count"):
                    found[sample.labels["operation"], *names] = sample.value
    return found


def waited(scrape: Callable[[], Samples], is_there: Callable[[Samples], bool]) -> Samples:
    end = monotonic() + 20
    while not is_there(found := scrape()):
        assert monotonic() < end, found
    return found


@contextmanager
def started(command: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A program, and the end of all that it has started."""
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, env=env, **options) as program:
        try:
            yield program
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)


def test_all_metrics_of_four_workers_under_load(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics")}
    command = [sys.executable, str(PROGRAM), str(tmp_path)]
    with started(command, environment) as server:
        assert server.stdout is not None
        # A worker can be ready before the first process has written the port and the workers' ids.
        *ready, numbers = sorted([server.stdout.readline() for _ in range(5)], reverse=True)
        assert ready == ["ready\n"] * 4
        port, *workers = map(int, numbers.split())

        def get(path: object) -> str:
            with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as answer:
                return str(answer.read().decode())

        def scrape() -> Samples:
            return parsed(get("metrics"))

        with ThreadPoolExecutor(8) as pool:
            turns = [pool.submit(get, n) for n in range(1, TURNS + 1)]
            scrapes = [scrape() for _ in range(5)]
        assert {int(one.result()) for one in turns} <= set(workers)
        for before, after in pairwise(scrapes):
            assert [key for key, value in before.items() if after[key] < value] == []

        def has_all(found: Samples) -> bool:
            kinds = ("cache_hits_total", "cache_misses_total")
            return sum([found[kind, "sqlite", "results"] for kind in kinds]) == TURNS + 1

        found = waited(scrape, has_all)
        assert found["put", "sqlite"] == 3 * (TURNS + 1)
        misses = found["cache_misses_total", "sqlite", "results"]
        assert found["store.put", "sqlite"] == misses

        server.terminate()
        *reports, metrics = map(json.loads, server.stdout)
    assert len(reports) == 5  # (of four workers, and of the first process)
    total = sum([Counters(**one) for one in reports], Counters())
    assert total.written_bytes > 0
    found = parsed(metrics)
    for metric in METRICS:
        for labels, attribute in metric.attributes.items():
            value = found[f"{metric.name}_total", "sqlite", *labels]
            assert value == getattr(total, attribute), attribute
