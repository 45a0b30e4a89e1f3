"""Relaxed saves that wait while other processes change their thread: none is lost."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.engine import Chain, checkpoint, config, exactly, run_config
from langchain_core.messages import HumanMessage

from threadkeep import Retention, WriteBehind, errors
from threadkeep._core.engine import logs
from threadkeep._core.langgraph_internals import DELTA_COUNTERS
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep.savers.saver import Saver

SELDOM = WriteBehind(flush_interval=60)
LONG = "x" * 90


class Pair:
    """Two savers on one store that share nothing else: one is relaxed, the other is durable."""

    def __init__(self, cold: str) -> None:
        self.store = MemoryBackend()
        self.cold = cold
        self.relaxed = Saver(self.store, write_behind=SELDOM, cold=cold)
        self.other = Saver(self.store, cold=cold)

    def values(self, number: int) -> Any:
        """The values of a checkpoint, as a saver reads them that remembers nothing."""
        found = self.other.get_tuple(config(checkpoint_id=f"{number:08d}"))
        return None if found is None else found.checkpoint["channel_values"]

    def overtake(self) -> None:
        """Let another run put the head, and keep nothing else."""
        head = self.other.get_tuple(run_config())
        assert head is not None
        self.other.put(head.config, checkpoint("1", {"theirs": 1}, {"theirs": 9}), {}, {})
        self.other.prune(["t"])


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path.as_uri())
    yield made
    assert made.other.check().ok


def archive_and_restore(saver: Saver) -> None:
    saver.threads.archive("t")
    saver.threads.restore("t")


CHANGES: dict[str, Callable[[Saver], object]] = {
    "prune": lambda saver: saver.prune(["t"]),
    "gc": lambda saver: saver.threads.gc(Retention(keep_last=1, channels={"doc": "latest"})),
    "delete_for_runs": lambda saver: saver.delete_for_runs(["r"]),
    "archive": lambda saver: saver.threads.archive("t"),
    "archive and restore": archive_and_restore,
    "fork": lambda saver: saver.threads.fork("t"),
    "erase a fork": lambda saver: saver.threads.erase("fork"),
    "delete a fork": lambda saver: saver.delete_thread("fork"),
    "archive a fork": lambda saver: saver.threads.discard_fork("fork"),
    "discard a fork": lambda saver: saver.threads.discard_fork("fork", delete=True),
    "prune a fork": lambda saver: saver.prune(["fork"]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("waits_in", ["the origin", "a fork"])
def test_what_others_change_loses_nothing(pair: Pair, change: str, waits_in: str) -> None:
    chain = Chain(pair.relaxed)
    for number in range(4):
        messages = [*chain.values.get("m", []), f"{number} {LONG}"]
        chain.put(m=messages, doc=f"{number} {LONG}" * 20, n=number)
    pair.relaxed.flush()
    if "fork" in change or waits_in == "a fork":
        pair.other.threads.fork("t", new_thread_id="fork")
    if waits_in == "a fork":  # both threads get the same changes
        pair.other.threads.fork("fork", new_thread_id="t2")
        chain.at["configurable"]["thread_id"] = "t2"
    pair.relaxed.get_tuple(chain.at)
    chain.put(m=[*chain.values["m"], f"waits {LONG}"], n=77)
    pair.relaxed.put_writes(chain.at, [("m", chain.values["m"]), ("n", 78)], "late")
    CHANGES[change](pair.other)
    chain.put(m=[*chain.values["m"], f"goes on {LONG}"], n=79)
    pair.relaxed.flush()
    thread = chain.at["configurable"]["thread_id"]
    head, before = list(pair.other.list(config(thread), limit=2))
    assert head.checkpoint["channel_values"] == chain.values
    assert before.checkpoint["channel_values"]["n"] == 77
    assert [value for *_, value in before.pending_writes] == [chain.values["m"][:-1], 78]
    assert pair.relaxed.get_tuple(config(thread)) == pair.other.get_tuple(config(thread))


def test_what_another_process_deletes_stays_deleted(pair: Pair) -> None:
    chain = Chain(pair.relaxed)
    chain.put(m=[LONG])
    pair.relaxed.flush()
    chain.put(m=[LONG, LONG])
    pair.other.delete_thread("t")
    with pytest.raises(errors.LostSavesError) as caught:
        pair.relaxed.flush()
    assert isinstance(caught.value.__cause__, errors.ThreadDeletedError)
    assert pair.other.get_tuple(config()) is None


VALUES = {
    "list": ([LONG, {"a": LONG}], [LONG, {"a": LONG}, HumanMessage(LONG, id="1")]),
    "tuple": ((LONG, 1), (LONG, 1, 2)),
    "dict": ({"a": LONG, "b": [LONG]}, {"a": LONG, "b": [LONG], "c": 1}),
    "text": (LONG * 30, LONG * 30 + "."),
    "message": (HumanMessage(LONG * 30, id="1"), HumanMessage(LONG * 30 + ".", id="1")),
    "unchanged": ([LONG, LONG], [LONG, LONG]),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("is_read", [False, True])
def test_what_was_removed_is_stored_anew(pair: Pair, kind: str, *, is_read: bool) -> None:
    before, after = VALUES[kind]
    chain = Chain(pair.relaxed)
    chain.put(v=before, same=[LONG, LONG])
    pair.relaxed.flush()
    if is_read:
        pair.relaxed.clear_cache()
    changed = {} if kind == "unchanged" else {"v": after}
    chain.put(**changed, n=1)
    pair.relaxed.put_writes(chain.at, [("v", after)], "task")
    pair.overtake()
    pair.relaxed.flush()
    assert exactly(pair.values(2)) == exactly({"v": after, "same": [LONG, LONG], "n": 1})
    found = pair.other.get_tuple(chain.at)
    assert found is not None
    assert found.pending_writes == [("task", "v", after)]


@pytest.mark.parametrize("is_loaded", [False, True])
def test_what_cannot_be_watched_is_stored_anew(pair: Pair, *, is_loaded: bool) -> None:
    arrays = [np.arange(50), np.arange(60)]
    chain = Chain(pair.relaxed)
    chain.put(v=arrays)
    pair.relaxed.flush()
    if is_loaded:
        pair.relaxed.clear_cache()
    chain.put(v=[*arrays, LONG])
    pair.overtake()
    pair.relaxed.flush()
    assert exactly(pair.values(2)) == exactly({"v": [*arrays, LONG]})


def test_what_is_stored_is_the_value_as_it_was_saved(pair: Pair) -> None:
    """Its stored bytes count, not later changes of the objects."""
    notes = [{"text": f"{number} {LONG}"} for number in range(3)]
    chain = Chain(pair.relaxed)
    chain.put(notes=notes)
    pair.relaxed.flush()
    notes[1]["text"] = "as it is saved"
    chain.put(notes=notes)
    saved = copy.deepcopy(notes)
    for note in notes:
        note["text"] = "as nobody saved it"
    pair.other.threads.fork("t")
    pair.relaxed.flush()
    assert pair.values(2) == {"notes": saved}


def test_what_is_nowhere_any_more_is_lost_and_told(pair: Pair) -> None:
    note = {"text": LONG}
    chain = Chain(pair.relaxed)
    chain.put(n=0)
    chain.put(notes=[note])
    pair.relaxed.flush()
    chain.put(n=1)
    pair.overtake()
    note["text"] = "as nobody saved it"
    with pytest.raises(errors.LostSavesError, match="changed in place"):
        pair.relaxed.flush()
    assert pair.values(3) is None


def test_a_delta_channel_is_not_stored_without_what_it_is_rebuilt_through(pair: Pair) -> None:
    chain = Chain(pair.relaxed)
    chain.put(n=1)
    pair.relaxed.flush()
    at, made, metadata, new = chain.arguments(n=2)
    pair.relaxed.put(at, made, {**metadata, DELTA_COUNTERS: {"d": [1, 1]}}, new)
    pair.overtake()
    with pytest.raises(errors.LostSavesError):
        pair.relaxed.flush()
    assert pair.values(2) is None


def test_a_position_that_was_given_again_is_not_taken_for_the_old_one(pair: Pair) -> None:
    """The other process continues after the removed checkpoint's log."""
    first = pair.other.put(config(), checkpoint(1, {"m": [LONG] * 2}, {"m": 1}), {}, {})
    old = ["ours", LONG * 2]
    pair.other.put(first, checkpoint(2, {"m": [LONG, LONG, *old]}, {"m": 2}), {"run_id": "r"}, {})
    found = pair.relaxed.get_tuple(run_config())
    assert found is not None
    mine = [*found.checkpoint["channel_values"]["m"], "waits"]
    pair.relaxed.put(found.config, checkpoint(3, {"m": mine}, {"m": 3}), {}, {})
    pair.other.delete_for_runs(["r"])
    again = Saver(pair.store)
    head = again.get_tuple(run_config())
    assert head is not None
    theirs = [LONG, LONG, "theirs", LONG * 3]
    again.put(head.config, checkpoint(4, {"m": theirs}, {"m": 2}), {}, {})
    pair.relaxed.flush()
    assert pair.values(3) == {"m": [LONG, LONG, *old, "waits"]}
    assert pair.values(4) == {"m": theirs}


def test_one_that_is_archived_where_we_cannot_reach_it_is_kept(pair: Pair) -> None:
    relaxed = Saver(pair.store, write_behind=SELDOM)
    chain = Chain(relaxed)
    chain.put(n=1)
    relaxed.flush()
    chain.put(n=2)
    pair.other.threads.archive("t")
    with pytest.raises(errors.ThreadArchivedError):
        relaxed.flush()
    pair.other.threads.restore("t")
    relaxed.flush()
    assert pair.values(2) == {"n": 2}


def test_values_that_wait_count_in_what_may_wait() -> None:
    saver = Saver(MemoryBackend(), write_behind=SELDOM)
    chain = Chain(saver)
    for number in range(10):
        chain.put(text=f"{number}" * 100_000)
    queue = saver._store._write_behind.queue
    assert 1_000_000 < queue._size < 2_000_000
    saver.close()
    assert queue._size == 0


# -- anything in any order ---------------------------------------------------------------


def by_channel(values: Any) -> Any:
    return {channel: exactly(value) for channel, value in values.items()}


class Story:
    """A relaxed run beside another process that does anything; it remembers its saves."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair = pair
        self.random = random.Random(seed)
        self.saved: dict[str, Any] = {}
        self.written: dict[str, Any] = {}
        self.at = config()
        self.start()

    def start(self) -> None:
        self.values: dict[str, Any] = {"m": [], "doc": "d" * 2000, "d": {}, "one": None, "t": ()}
        self.versions = dict.fromkeys(self.values, 1)

    def text(self) -> str:
        return f"{self.random.random()} {LONG}"

    def put(self) -> None:
        for channel in self.random.choices([*self.values], k=2):
            self.values[channel] = self.changed(channel, self.values[channel])
            self.versions[channel] += 1
        self.at = self.save(self.pair.relaxed, self.at, self.values, self.versions)

    def changed(self, channel: str, value: Any) -> Any:
        new, at = self.text(), self.random.random()
        if channel == "m" and value and at < 0.3:
            cut = self.random.randrange(len(value))
            return [*value[:cut], *value[cut + 1 :]]
        if channel == "one":
            return self.random.choice([None, new, {"k": [new] * 5}, HumanMessage(new * 9, id="1")])
        more: dict[str, Any] = {
            "m": lambda: [*value, self.random.choice([new, {"a": new}, HumanMessage(new, id=new)])],
            "doc": lambda: value[: int(len(value) * at)] + new + value[900:],
            "d": lambda: {**value, new[:5]: [new]},
            "t": lambda: (*value, new),
        }
        return more[channel]()

    def save(self, saver: Saver, at: Any, values: Any, versions: Any) -> Any:
        made = checkpoint(len(self.saved) + 1, dict(values), dict(versions))
        run = "r" if saver is self.pair.relaxed else "other"
        stored = saver.put(at, made, {"run_id": run}, {})
        self.saved[made["id"]] = by_channel(values)
        return stored

    def write(self) -> None:
        if "checkpoint_id" in self.at["configurable"]:
            task = f"task {len(self.written)}"
            writes = [("m", self.values["m"]), ("d", self.values["d"]), ("new", [self.text()])]
            self.pair.relaxed.put_writes(self.at, writes, task)
            self.written[task] = exactly([value for _, value in writes])

    def load(self) -> None:
        found = self.pair.relaxed.get_tuple(run_config())
        if found is not None:
            self.at, made = found.config, found.checkpoint
            self.values = {"doc": "", **made["channel_values"]}
            self.versions = dict(made["channel_versions"])

    def put_beside(self) -> None:
        head = self.pair.other.get_tuple(run_config())
        if head is not None:
            values = head.checkpoint["channel_values"]
            versions = head.checkpoint["channel_versions"]
            values = {**values, "m": [*values["m"], f"theirs {self.text()}"]}
            self.save(self.pair.other, head.config, values, {**versions, "m": versions["m"] + 1})

    def change(self) -> None:
        saver = self.pair.other
        more: list[Callable[[Saver], object]] = [
            lambda saver: saver.threads.fork("t", new_thread_id="fork"),
            lambda saver: saver.threads.restore("t"),
            lambda saver: saver.threads.offload("t", over=1024),
            lambda saver: saver.delete_for_runs(["other"]),
        ]
        with suppress(errors.StateError, errors.ThreadNotFoundError, errors.ThreadExistsError):
            self.random.choice([*CHANGES.values(), *more])(saver)

    def flush(self) -> None:
        self.pair.relaxed.flush()

    def play(self, steps: int) -> None:
        can = [self.put] * 6 + [self.write] * 2 + [self.load, self.flush, self.put_beside]
        for _ in range(steps):
            self.random.choice([*can, *[self.change] * 8])()
        self.put()
        self.flush()

    def verify(self) -> None:
        for saver in (self.pair.relaxed, Saver(self.pair.store, cold=self.pair.cold)):
            for one in saver.list(config()):
                values, writes = one.checkpoint["channel_values"], dict[str, list[Any]]()
                if "doc" in values:  # (else a policy has removed it)
                    assert by_channel(values) == self.saved[one.checkpoint["id"]]
                for task, _, value in one.pending_writes or ():
                    writes.setdefault(task, []).append(value)
                assert all(exactly(found) == self.written[task] for task, found in writes.items())
        last = f"{len(self.saved):08d}"
        assert self.pair.other.get_tuple(config(checkpoint_id=last)) is not None


@pytest.mark.drawn(20)
@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_what_was_saved_is_what_is_stored(
    pair: Pair, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        monkeypatch.setattr(logs, "SEAL_COUNT", 4)
        monkeypatch.setattr(logs, "SEAL_KEYFRAMES", 2)
    story = Story(pair, seed)
    story.play(30)
    story.verify()
