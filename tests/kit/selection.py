"""Selection of tests: `make test` runs a part, `make test-all` everything.

`make test-all` sets `THREADKEEP_TESTS=full`. Only these rules decide which cases `make test` skips:
variants of a backend run a part of the contract (`kit.contract`), long lists of cases are drawn
from (`drawn`), half of the tests in a browser run (`tests/ui`), and hypothesis tries fewer examples
(`settings_of`).
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


def stores_left_out(items: Iterable[Any], *kinds: Iterable[str]) -> set[Any]:
    """Return the cases that a quick run leaves out of tests that run on three stores or more.

    Of each kind of stores a case runs on one, which is drawn.
    """
    groups: dict[Any, list[Any]] = defaultdict(list)
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        named = [n for n in parameters if any(parameters[n] in kind for kind in map(list, kinds))]
        if len(named) == 1:
            test, _, case = item.nodeid.partition("[")
            rest = test + case.replace(parameters[named[0]], "", 1)
            groups[rest, named[0]].append(item)
    left_out: set[Any] = set()
    for (rest, name), cases in groups.items():
        for kind in kinds if len(cases) > 2 else ():
            own = [item for item in cases if item.callspec.params[name] in kind]
            left_out.update(set(own) - set(drawn(own, 1, rest)))
    return left_out


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
