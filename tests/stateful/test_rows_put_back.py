"""Rows go back to an earlier state behind living savers, between any two requests of a run.

As after a crash of a server that had not written its last seconds, after a failover to a standby
that lacked them, or after somebody restored a backup below a running service.
"""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit.backends import BACKENDS, open_backend
from kit.losses import Workers
from kit.put_back import copy_rows
from kit.selection import SEED, some

from threadkeep import KeyRing
from threadkeep.savers.saver import Saver

FRONTS: dict[str, dict[str, Any]] = {
    "default": {},
    "fenced": {"conflicts": "raise"},
    "forgetful": {"working_set_bytes": 0},
    "layered": {},
    "keys": {"keys": KeyRing([b"k" * 32])},
}
CASES = [(name, front) for name in BACKENDS for front in FRONTS]
PLACES = 8
"""About the number of requests of a turn (layers need twice as many); after the last one, the loss
is between two turns."""


@pytest.fixture
def workers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Workers]]:
    """Makes workers on one empty store after the other; closes them in the end."""
    name, front = request.param
    with ExitStack() as stack:
        numbers = iter(range(1000))

        def make() -> Workers:
            stack.close()
            folder = tmp_path / str(next(numbers))
            folder.mkdir()
            options = dict(FRONTS.get(front, {}))
            saver = stack.enter_context(open_backend(name, folder, **options))
            keys = {key: value for key, value in options.items() if key == "keys"}
            opened = partial(open_backend, name, folder, **keys)
            if name == "memory":
                opened = partial(_beside, copy.copy(saver.backend))
            made = Workers(
                saver, opened, partial(copy_rows, name, folder, saver), layered=front == "layered"
            )
            stack.callback(made.other.close)
            return made

        yield make


def _beside(backend: Any) -> Saver:
    """A saver of the same rows in memory, which stay when it is closed."""
    backend = copy.copy(backend)
    backend.close = int
    return Saver(backend)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("turns", range(3))
@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaiting"])
@pytest.mark.parametrize("workers", CASES, ids=" ".join, indirect=True)
async def test_rows_put_back_between_two_requests(
    workers: Any, turns: int, awaited: bool, request: pytest.FixtureRequest
) -> None:
    chance = random.Random(f"{SEED} {request.node.name}")
    places = 2 * PLACES if "layered" in request.node.name else PLACES
    for _ in range(some(1, 3)):
        copied = chance.choice((-1, chance.randrange(places)))
        back = chance.randrange(copied + 1, places + 1)
        await workers().play(copied=copied, back=back, turns=turns, awaited=awaited)
