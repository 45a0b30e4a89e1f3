"""Selection of tests: `make test` runs a part, `make test-all` everything.

`make test-all` sets `THREADKEEP_TESTS=full`. Only these rules decide which cases `make test` skips:
variants of a backend run a part of the contract (`kit.contract`), a case runs on one of the stores
(`stores_left_out`), a test that needs a store or a process runs a few of its cases
(`cases_left_out`), a fifth of the tests in a browser run (`tests/ui`), and hypothesis tries fewer
examples (`settings_of`). What runs is drawn by the seed: each run draws other cases.
"""

import os
import random
from collections import defaultdict
from collections.abc import Iterable
from math import isqrt
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings

T = TypeVar("T")

FULL = os.environ.get("THREADKEEP_TESTS") == "full"

# In the environment, so that pytest's workers draw the same cases as the process that starts them.
SEED = int(os.environ.setdefault("THREADKEEP_SEED", str(random.randrange(10**6))))

EXAMPLES = int(os.environ.get("THREADKEEP_EXAMPLES", "0"))
"""So many new random examples in every test of hypothesis; 0: the same few in every run."""

FOLDERS = tuple(f"tests/{it}/" for it in ("cli", "contract", "crash", "integration", "stateful"))
"""Folders whose tests need a store or a process."""


def drawn(cases: Iterable[T], count: int, about: object = "") -> list[T]:
    """Return `count` of the cases, in their order, drawn by the seed; all of them in a full run.

    `about` tells lists of one length apart: each has a draw of its own.
    """
    every = list(cases)
    if FULL or len(every) <= count:
        return every
    chosen = sorted(random.Random(f"{SEED} {about}").sample(range(len(every)), count))
    return [every[number] for number in chosen]


def cases_left_out(items: Iterable[Any]) -> set[Any]:
    """Return the cases that a quick run leaves out of tests with many.

    A test runs the number that its mark says. Without a mark, a test in one of `FOLDERS` runs the
    square root of its number of cases, and any other all.
    """
    groups: dict[Any, list[Any]] = defaultdict(list)
    for item in items:
        test, mark = item.nodeid.partition("[")[0], item.get_closest_marker("drawn")
        if mark or test.startswith(FOLDERS):
            groups[test, mark and mark.args[0]].append(item)
    left_out: set[Any] = set()
    for (test, count), cases in groups.items():
        number = isqrt(len(cases)) if count is None else count
        left_out.update(set(cases) - set(drawn(cases, number, test)))
    return left_out


def stores_left_out(items: Iterable[Any], stores: Iterable[str]) -> set[Any]:
    """Return the cases that a quick run leaves out of tests that run on three stores or more.

    A case runs on one of them, which is drawn. (The contract of the stores runs on each of them.)
    """
    groups: dict[Any, list[Any]] = defaultdict(list)
    names = tuple(stores)
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        named = [name for name, value in parameters.items() if value in names]
        if len(named) == 1:
            test, _, case = item.nodeid.partition("[")
            rest = test + case.replace(parameters[named[0]], "", 1)
            groups[rest, named[0]].append(item)
    return {
        item
        for key, cases in groups.items()
        if len(cases) > 2
        for item in set(cases) - set(drawn(cases, 1, key[0]))
    }


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
