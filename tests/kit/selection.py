"""Selection of tests: `make test` runs a part, `make test-all` everything.

`make test-all` sets `THREADKEEP_TESTS=full`. Only these rules decide which cases `make test` skips:
variants of a backend run a part of the contract (`kit.contract`), tests on all stores run on some
(`stores_left_out`), long lists of cases are drawn from (`drawn`), a third of the tests in a browser
run (`tests/ui`), and hypothesis tries fewer examples (`settings_of`).
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings

T = TypeVar("T")

FULL = os.environ.get("THREADKEEP_TESTS") == "full"

# In the environment, so that pytest's workers draw the same cases as the process that starts them.
SEED = int(os.environ.setdefault("THREADKEEP_SEED", str(random.randrange(10**6))))

EXAMPLES = int(os.environ.get("THREADKEEP_EXAMPLES", "0"))
"""So many new random examples in every test of hypothesis; 0: the same few in every run."""


def drawn(cases: Iterable[T], count: int, about: object = "") -> list[T]:
    """Return `count` of the cases, in their order, drawn by the seed; all of them in a full run.

    `about` tells lists of one length apart: each has a draw of its own.
    """
    every = list(cases)
    if FULL or len(every) <= count:
        return every
    chosen = sorted(random.Random(f"{SEED} {about}").sample(range(len(every)), count))
    return [every[number] for number in chosen]


def stores_left_out(items: Iterable[Any], here: Iterable[str], servers: Iterable[str]) -> set[Any]:
    """Return the cases that a quick run leaves out of tests that run on three stores or more.

    A case runs on one of the stores in this process, and every second case on one of the servers,
    too; all are drawn. (The contract of the stores runs on each of them.)
    """
    groups: dict[Any, list[Any]] = defaultdict(list)
    kinds = tuple(here), tuple(servers)
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        named = [n for n in parameters if any(parameters[n] in kind for kind in map(list, kinds))]
        if len(named) == 1:
            test, _, case = item.nodeid.partition("[")
            rest = test + case.replace(parameters[named[0]], "", 1)
            groups[rest, named[0]].append(item)
    several = {key: cases for key, cases in groups.items() if len(cases) > 2}
    on_servers = set(drawn(several, (len(several) + 1) // 2))
    left_out: set[Any] = set()
    for key, cases in several.items():
        for kind in kinds:
            own = [item for item in cases if item.callspec.params[key[1]] in kind]
            count = 0 if kind == kinds[1] and key not in on_servers else 1
            left_out.update(set(own) - set(drawn(own, count, key[0])))
    return set() if FULL else left_out


def some(quick: int, full: int) -> int:
    """Return the number of repetitions: `full` in a full run."""
    return full if FULL else quick


def settings_of(quick: int, full: int, **more: object) -> settings:
    """Return hypothesis settings with so many examples in a quick run and in a full one."""
    if os.environ.get("THREADKEEP_NO_SHRINK"):
        more["phases"] = [Phase.reuse, Phase.generate]
    return settings(
        max_examples=EXAMPLES or some(quick, full),
        derandomize=not EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        **more,
    )
