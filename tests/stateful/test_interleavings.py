"""Any two operations, by one process or two, with their requests interleaved in every order.

In every order, nothing breaks, each put that returned is stored as given (unless the other
operation removed it), each load shows a whole checkpoint, and a process that remembers nothing sees
the same as one that does.

`make test` plays some orders of each pair, `make test-all` all of them.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest
from kit.engine import (
    Chain,
    Steps,
    checkpoint,
    config,
    everything,
    exactly,
    fresh,
    get_operation,
    put_operation,
    run_config,
    shown,
)
from kit.selection import drawn
from langchain_core.messages import AIMessage, HumanMessage

from threadkeep import errors
from threadkeep._core import arguments
from threadkeep._core.engine import listing, logs
from threadkeep._core.engine import put as write
from threadkeep._core.engine.load import delta_history
from threadkeep._core.engine.operation import CheckpointRef
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep.savers.saver import Saver
from threadkeep.threads import forks as copying
from threadkeep.threads import statistics
from threadkeep.threads.repair import check as checking
from threadkeep.threads.retention import apply as housekeeping

LONG = "x" * 90
ORDERS = 3


def old_messages(count: int = 8) -> list[Any]:
    return [HumanMessage(f"{i} {LONG}", id=f"m{i}") for i in range(count)]


class Scene:
    """One backend with a thread of four checkpoints and a fork, and two processes on it."""

    def __init__(self, conflicts: Any) -> None:
        self.backend = MemoryBackend()
        self.looks: list[Steps] = []
        self.savers = [Saver(self.backend, conflicts=conflicts) for _ in range(2)]
        chain = Chain(self.savers[0])
        self.places = []
        for i in range(4):
            self.places.append(chain.put(m=old_messages(5 + i), doc=f"{i} {LONG}" * 30, n=i))
        self.fork = checkpoint("00000002 fork", {"m": [LONG, 1]}, {"m": 50})
        self.savers[0].put(self.places[1], self.fork, {"source": "fork", "run_id": "r2"}, {})
        self.head = self.places[-1]
        for saver in self.savers:
            saver.get_tuple(run_config())

    def steps(self, operation: Any) -> Steps:
        return Steps(operation, self.backend)


# -- operations: each gives its steps, and what must be true if it returned --------------

Operation = Callable[[Scene, Saver, str], tuple[Steps, Callable[[Any], None]]]


def put(scene: Scene, saver: Saver, name: str) -> Any:
    """Put the next checkpoint of a run on the head, with one more message."""
    value = [*old_messages(), AIMessage(f"{name} {LONG}", id=name)]
    made = checkpoint(f"00000009 {name}", {"m": value, "n": name}, {"m": 9, "n": 9, "doc": 4})
    steps = scene.steps(put_operation(saver, scene.head, made, {"run_id": "r1"}, {}))
    wanted = {"m": exactly(value), "n": exactly(name)}
    return steps, lambda there: stored(there, made["id"], wanted)


def put_on_old(scene: Scene, saver: Saver, name: str) -> Any:
    """Put a fork of the first checkpoint, which keeps one of its values unread."""
    value = [*old_messages(5), f"{name} {LONG}"]
    made = checkpoint(f"00000001 {name}", {"m": value}, {"m": 60, "doc": 1})
    steps = scene.steps(put_operation(saver, scene.places[0], made, {"source": "fork"}, {}))
    return steps, lambda there: stored(there, made["id"], {"m": exactly(value)})


def put_on_old_cold(scene: Scene, saver: Saver, name: str) -> Any:
    return put_on_old(scene, fresh(saver), name)


def write_on_head(scene: Scene, saver: Saver, name: str) -> Any:
    value = [AIMessage(f"{name} {LONG}", id=name)]
    call = arguments.put_writes(scene.head, [("m", value)], f"task {name}", "")
    steps = scene.steps(write.save(saver._engine, call))

    def check(there: Any) -> None:
        head = there.get(("t", "", "00000004"))
        if head is not None:
            assert (f"task {name}", "m", exactly(value)) in head["writes"]

    return steps, check


def write_cold(scene: Scene, saver: Saver, name: str) -> Any:
    return write_on_head(scene, fresh(saver), name)


def load(scene: Scene, saver: Saver, name: str) -> Any:
    steps = scene.steps(get_operation(saver, run_config()))
    return steps, lambda _: whole(steps.result)


def load_cold(scene: Scene, saver: Saver, name: str) -> Any:
    return load(scene, fresh(saver), name)


def load_old(scene: Scene, saver: Saver, name: str) -> Any:
    steps = scene.steps(get_operation(fresh(saver), scene.places[1]))
    return steps, lambda _: whole(steps.result)


def list_all(scene: Scene, saver: Saver, name: str) -> Any:
    listed = arguments.listing(config(), None, None, 20)
    steps = scene.steps(listing.page(saver._engine, listed))

    def check(there: Any) -> None:
        assert steps.result.found
        for found in map(arguments.checkpoint_tuple, steps.result.found):
            whole(found)

    return steps, check


def history(scene: Scene, saver: Saver, name: str) -> Any:
    """Read the history of `doc`, which is found at the nearest ancestor, and of `none`."""
    call = delta_history(saver._engine, CheckpointRef("t", "", "00000004"), ["doc", "none"])
    steps = scene.steps(call)

    def check(there: Any) -> None:
        assert steps.result == {
            "doc": {"writes": [], "seed": f"2 {LONG}" * 30},
            "none": {"writes": []},
        }

    return steps, check


def look(scene: Scene, saver: Saver, name: str) -> Any:
    steps = scene.steps(checking.check_thread(saver._engine, "t"))
    scene.looks.append(steps)
    return steps, lambda there: None


def count(scene: Scene, saver: Saver, name: str) -> Any:
    return scene.steps(statistics.count(0, counts_usage=False)), lambda there: None


def prune(scene: Scene, saver: Saver, name: str) -> Any:
    steps = scene.steps(housekeeping.prune(saver._engine, ["t"], "keep_latest"))
    return steps, lambda there: None


def delete_for_runs(scene: Scene, saver: Saver, name: str) -> Any:
    steps = scene.steps(housekeeping.delete_for_runs(saver._engine, ["r2"]))
    return steps, lambda there: None


def delete(scene: Scene, saver: Saver, name: str) -> Any:
    steps = scene.steps(housekeeping.delete_thread(saver._engine, "t"))
    return steps, lambda there: None


def copy(scene: Scene, saver: Saver, name: str) -> Any:
    steps = scene.steps(copying.copy_thread(saver._engine, "t", f"copy {name}"))
    return steps, lambda there: None


OPERATIONS: list[Operation] = [
    put,
    put_on_old,
    put_on_old_cold,
    write_on_head,
    write_cold,
    load,
    load_cold,
    load_old,
    list_all,
    history,
    look,
    count,
    prune,
    delete_for_runs,
    delete,
    copy,
]
REMOVING = {prune, delete, delete_for_runs}


def stored(there: Any, checkpoint_id: str, wanted: dict[str, Any]) -> None:
    """Check that the checkpoint is stored as given."""
    found = there[("t", "", checkpoint_id)]
    assert {c: found["values"][c] for c in wanted} == wanted
    if checkpoint_id.startswith("00000009"):
        assert found["values"]["doc"] == exactly(f"3 {LONG}" * 30)


def whole(found: Any) -> None:
    """Check that a loaded checkpoint has everything that was put."""
    if found is not None:
        values = shown(found)["values"]
        assert values["m"] != exactly([])
        assert set(values) >= {"m"}


# -- playing ---------------------------------------------------------------------------


def orders(first: int, second: int) -> Iterator[list[int]]:
    """Return the orders of so many steps of the first and of the second operation."""
    total = first + second
    places = list(combinations(range(total), first))
    for chosen in drawn(places, ORDERS, (first, second)):
        yield [0 if i in chosen else 1 for i in range(total)]


def play(scene: Scene, made: list[Any], order: list[int]) -> list[bool]:
    """Take steps in this order, then to the end; return which operations returned."""
    done = [True, True]
    for which in [*order, *([0] * 20), *([1] * 20)]:
        steps = made[which][0]
        if steps.request is None:
            continue
        try:
            steps.step()
        except (errors.ConflictError, errors.ThreadDeletedError, errors.ThreadExistsError):
            steps.request, done[which] = None, False
    return done


def lengths(conflicts: str, operations: Any, processes: Any) -> list[int]:
    """Return the number of requests of each operation alone."""
    found = []
    for operation, process in zip(operations, processes, strict=True):
        scene = Scene(conflicts)
        steps, _ = operation(scene, scene.savers[process], "alone")
        count = 0
        while steps.request is not None:
            steps.step()
            count += 1
        found.append(count)
    return found


def check(scene: Scene, made: list[Any], done: list[bool], operations: Any) -> None:
    report = fresh(scene.savers[0]).check()
    assert report.ok, report.findings
    assert all(steps.result == ([], []) for steps in scene.looks)
    there = everything(fresh(scene.savers[0]))
    for saver in scene.savers:
        assert everything(saver) == there
        found = saver.get_tuple(run_config())
        head = saver.get_tuple(config())
        assert (found is None) == (head is None)
        if found is not None:
            assert shown(found) == shown(head) == there[shown(found)["place"]]
    if not REMOVING & set(operations):
        for (_, promise), returned in zip(made, done, strict=True):
            if returned:
                promise(there)


PAIRS = [(a, b) for i, a in enumerate(OPERATIONS) for b in OPERATIONS[i:]]


@pytest.fixture(autouse=True)
def small_seals(monkeypatch):
    """Seal segments early, so that the operations do it."""
    monkeypatch.setattr(logs, "SEAL_COUNT", 3)
    monkeypatch.setattr(logs, "SEAL_KEYFRAMES", 2)


@pytest.mark.parametrize(
    ("conflicts", "processes"),
    [("fork", (0, 0)), ("fork", (0, 1)), ("raise", (0, 1))],
    ids=["one process", "two processes", "two fenced processes"],
)
@pytest.mark.parametrize("operations", PAIRS, ids=lambda pair: "-".join(op.__name__ for op in pair))
def test_any_two(operations, processes, conflicts):
    counts = lengths(conflicts, operations, processes)
    for order in orders(*counts):
        scene = Scene(conflicts)
        made = [
            operation(scene, scene.savers[process], f"{name}")
            for operation, process, name in zip(operations, processes, "ab", strict=True)
        ]
        done = play(scene, made, order)
        check(scene, made, done, operations)


def test_orders():
    assert sorted(orders(1, 2)) == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
