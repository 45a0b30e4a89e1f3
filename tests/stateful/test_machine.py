"""Any sequence of calls, on two savers of one store, shows the answers of the model.

`THREADKEEP_EXAMPLES=20000` plays about that many new sequences.
"""

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from kit import redis as redis_kit
from kit.engine import difference, exactly, shown
from kit.postgres import empty_schema, url
from kit.selection import settings_of, some
from kit.values import VALUES, Plain, changes
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import get_checkpoint_metadata

from threadkeep import PostgresSaver, RedisSaver, Retention, SqliteSaver, errors
from threadkeep._core.engine.model import HIDDEN, ReadThread
from threadkeep._core.engine.thread_sizes import usage
from threadkeep._core.engine.usage import ReadUsage
from threadkeep._run import driver
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep.savers.saver import Saver
from threadkeep.threads.archives import offload
from threadkeep.threads.retention import choose

from .model import EMPTY, Conflict, Model, load_of

THREADS = st.sampled_from(["a", "b", "c"])
SPACES = st.sampled_from(["", "", "", "sub:1"])
_HOW = ["value"] * 6 + ["empty", "no version", "same version"]
HOW = {False: _HOW, True: ["empty"] * 12 + _HOW}  # of a DeltaChannel: mostly empty
HOUR = timedelta(hours=1)
LIMITS = st.sampled_from([None, 0, 1, 2, 5])
CHANNELS = ["messages", "files", "doc", "__start__", "n", "delta", "delta"]
COUNTERS = "counters_since_delta_snapshot"
TASKS = st.sampled_from(["task 1", "task 2"])
PATHS = st.sampled_from(["", "~__pull, 1", "~__pull, 2"])
ODD_TIMES = st.sampled_from(["2024-05-01T10:20:30.123456+00:00", "2024-05-01", ""])


@dataclass(frozen=True)
class Recipe:
    """A recipe for a large value; short to print if a sequence fails."""

    kind: str
    form: str
    count: int
    seed: int

    def make(self) -> Any:
        rng = random.Random(self.seed)
        items = [_PARTS[self.kind](i, rng) for i in range(self.count)]
        match self.form:
            case "dict":
                return {f"key {i}": item for i, item in enumerate(items)}
            case "tuple":
                return tuple(items)
            case "text":
                return "".join(f"{i} {rng.random()}\n" for i in range(2 * self.count))
            case "bytes":
                return rng.randbytes(30 * self.count)
        return items


_PARTS: dict[str, Callable[[int, random.Random], Any]] = {
    "text": lambda i, rng: f"{i} {rng.random()}",
    "dict": lambda i, rng: {"i": i, "text": "x" * 60, "more": [rng.random()]},
    "message": lambda i, rng: HumanMessage(f"text {rng.random()}", id=f"m{i}"),
    "no id": lambda i, rng: AIMessage(f"text {rng.random()}"),
    "plain": lambda i, rng: Plain(i, {"k": [i]}),
    "bytearray": lambda i, rng: bytearray(rng.randbytes(30)),
}
RECIPES = st.builds(
    Recipe,
    st.sampled_from(sorted(_PARTS)),
    st.sampled_from(["list", "list", "list", "tuple", "dict", "text", "bytes"]),
    st.integers(1, 90),
    st.integers(0, 5),
)
ANY_VALUE = st.one_of(VALUES, RECIPES)


class Run:
    """A live run: its place, its newest config and its values."""

    def __init__(self, saver: Saver, thread: str, ns: str, found: Any) -> None:
        self.saver = saver
        self.thread = thread
        self.ns = ns
        self.at = None if found is None else found.config["configurable"]["checkpoint_id"]
        self.values = {} if found is None else found.checkpoint["channel_values"]


class Machine(RuleBasedStateMachine):
    """Two savers on one store, and the model."""

    conflicts = "fork"

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(fenced=self.conflicts == "raise")
        self.savers: list[Saver] = []
        self.runs: list[Run] = []
        self.pool: list[Any] = []
        self.clock = 100
        self.version = 0
        self.touched = ("a", "")
        self.offloaded = 0
        self.folder = Path(tempfile.mkdtemp(prefix="threadkeep-"))
        self.cold = (self.folder / "cold").as_uri()

    # -- the stores --------------------------------------------------------------------

    def open(self, number: int) -> Saver:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.savers = [self.open(0), self.open(1)]

    def teardown(self) -> None:
        try:
            if self.savers:
                self.check_everything()
        finally:
            for saver in self.savers:
                self.shut(saver)
            shutil.rmtree(self.folder)

    @rule(number=st.integers(0, 1))
    def reopen(self, number: int) -> None:
        """Open another process, which remembers nothing."""
        old = self.savers[number]
        self.runs = [run for run in self.runs if run.saver is not old]
        self.savers[number] = self.open(number)
        self.shut(old)

    def shut(self, saver: Saver) -> None:
        """Close; the rows stay."""
        saver.close()

    # -- drawing -----------------------------------------------------------------------

    def saver(self, data: Any) -> Saver:
        return self.savers[data.draw(st.integers(0, 1), label="saver")]

    def some_id(self, data: Any, thread: str, ns: str, *, absent: bool = True) -> str | None:
        """The head, any old checkpoint, or a missing one."""
        ids = sorted(self.model.space(thread, ns).visible(), reverse=True)
        choices = ids[:1] * 3 + ids + ([None, "000050", "999999"] if absent else [])
        return data.draw(st.sampled_from(choices), label="checkpoint") if choices else None

    def value(self, data: Any, current: Any) -> Any:
        """A new value, the current one after a change, or a previous one."""
        how = data.draw(st.sampled_from(["new", "grow", "grow", "edit", "in place", "met", "copy"]))
        if how == "met" and self.pool:
            return self.pool[data.draw(st.integers(0, len(self.pool) - 1))]
        if how == "in place":
            self.change_in_place(data, current)
            return current
        if isinstance(current, list | tuple) and how in ("grow", "edit", "copy"):
            parts = list(current)
            if how == "edit" and parts:
                at = data.draw(st.integers(0, len(parts)))
                to = data.draw(st.integers(0, len(parts)))
                parts[at:to] = reversed(parts[at:to]) if data.draw(st.booleans()) else []
            if how != "copy":
                at = len(parts) if how == "grow" else data.draw(st.integers(0, len(parts)))
                parts[at:at] = data.draw(st.lists(VALUES, max_size=3))
            return type(current)(parts) if type(current) in (list, tuple) else parts
        if type(current) is dict and how in ("grow", "edit"):
            return current | data.draw(st.dictionaries(st.text(max_size=3), VALUES, max_size=2))
        if isinstance(current, str | bytes) and how in ("grow", "edit"):
            at = len(current) if how == "grow" else data.draw(st.integers(0, len(current)))
            new = data.draw(st.text(max_size=9))
            return current[:at] + (new if isinstance(current, str) else new.encode()) + current[at:]
        new = data.draw(ANY_VALUE)
        return new.make() if isinstance(new, Recipe) else new

    def change_in_place(self, data: Any, value: Any) -> None:
        ways = changes(value)
        if ways:
            ways[data.draw(st.integers(0, len(ways) - 1))].made()

    def remember(self, value: Any) -> None:
        self.pool = [*self.pool[-9:], value]

    def new_version(self, data: Any) -> Any:
        self.version += 1
        kind = data.draw(st.sampled_from(["int", "int", "int", "float", "text", "digits"]))
        number = self.version
        kinds = {"int": number, "float": float(number), "digits": str(number)}
        return kinds.get(kind, f"{number:032}.0.25")

    # -- writing -----------------------------------------------------------------------

    def checkpoint_for(
        self, data: Any, thread: str, ns: str, parent: Any, values: dict[str, Any]
    ) -> dict[str, Any]:
        """A checkpoint whose channels continue the parent's, a few of them changed."""
        above = self.model.space(thread, ns).rows.get(str(parent))
        versions = {}
        if above is not None:
            versions = {c: v for c, (v, _) in above.entries.items() if v is not None}
        values = {c: v for c, v in values.items() if c in versions}
        for channel in data.draw(st.lists(st.sampled_from(CHANNELS), unique=True, max_size=3)):
            how = data.draw(st.sampled_from(HOW[channel == "delta"]))
            if how == "empty":
                values.pop(channel, None)
                versions[channel] = self.new_version(data)
                continue
            values[channel] = self.value(data, values.get(channel))
            self.remember(values[channel])
            if how == "value":
                versions[channel] = self.new_version(data)
            elif how == "no version":
                versions.pop(channel, None)
        seen = data.draw(
            st.dictionaries(st.sampled_from(["node", "agent"]), st.just(dict(versions)), max_size=2)
        )
        return {
            "v": data.draw(st.sampled_from([4, 4, 1])),
            "id": self.new_id(data, thread, ns),
            "ts": data.draw(ODD_TIMES),
            "channel_values": values,
            "channel_versions": versions,
            "versions_seen": seen,
            "updated_channels": data.draw(st.sampled_from([None, [], list(versions)])),
        }

    def new_id(self, data: Any, thread: str, ns: str) -> str:
        ids = self.model.space(thread, ns).visible()
        how = data.draw(st.sampled_from(["next"] * 8 + ["older", "replace"]))
        if how == "replace" and ids:
            return data.draw(st.sampled_from(ids))
        self.clock += 10
        return f"{self.clock - (data.draw(st.integers(1, 60)) if how == 'older' else 0):06d}"

    def put(self, data: Any, saver: Saver, thread: str, ns: str, parent: Any, values: Any) -> Any:
        """Put on both; return the new config's id, or None if the put was refused."""
        made = self.checkpoint_for(data, thread, ns, parent, values)
        if made["id"] == str(parent):
            return parent
        configurable = {"thread_id": thread, "checkpoint_ns": ns}
        if parent is not None:
            configurable["checkpoint_id"] = parent
        metadata = data.draw(
            st.fixed_dictionaries(
                {
                    "source": st.sampled_from(["loop", "input", "loop", "fork"]),
                    "step": st.sampled_from([1, 2, -1, True, 1.0, None]),
                    "run_id": st.sampled_from(["r1", "r2", "r3"]),
                },
                optional={"odd": VALUES, "a'b\"c": st.just("quoted")},
            )
        )
        if self.model.entries(thread, ns, parent, made).get("delta", (0, 0))[1] is EMPTY:
            # LangGraph names the channels that are to be rebuilt, until their next snapshot.
            metadata[COUNTERS] = {"delta": [1, 1]}
        config = {"configurable": configurable}
        merged = get_checkpoint_metadata(config, metadata)
        self.touched = (thread, ns)
        replaced = made["id"] in self.model.space(thread, ns).rows
        if self.model.is_refused(thread, ns, parent):
            self.refuses(thread, ns, parent, lambda: saver.put(config, made, metadata, {}))
            return None
        try:
            self.model.put(thread, ns, parent, made, merged)
        except Conflict:
            with pytest.raises(errors.ConflictError):
                saver.put(config, made, metadata, {})
            return None
        after = saver.put(config, made, metadata, {})
        assert after["configurable"]["checkpoint_id"] == made["id"]
        if replaced:
            self.forget_replaced(saver, thread, ns, made["id"])
        return made["id"]

    def refuses(self, thread: str, ns: str, at: Any, save: Callable[[], Any]) -> None:
        """Save beside a checkpoint that a deletion has removed, or that never was.

        (Of a checkpoint that was pruned, a saver may still know enough.)
        """
        if (thread, ns, str(at)) not in self.model.pruned:
            with pytest.raises(errors.ThreadDeletedError):
                save()

    def forget_replaced(self, saver: Saver, thread: str, ns: str, checkpoint_id: str) -> None:
        """LangGraph puts an id again only with the same content: others need not notice."""
        replaced = (thread, ns, checkpoint_id)
        self.runs = [run for run in self.runs if (run.thread, run.ns, str(run.at)) != replaced]
        for other in self.savers:
            if other is not saver:
                other._engine.working_set.forget(thread)

    @rule(data=st.data(), thread=THREADS, ns=SPACES)
    def put_anywhere(self, data: Any, thread: str, ns: str) -> None:
        """Put a child of the head, of any old checkpoint, of none, or of a missing one."""
        parent = self.some_id(data, thread, ns)
        self.put(data, self.saver(data), thread, ns, parent, {})

    @rule(data=st.data(), thread=THREADS, ns=SPACES, explicit=st.booleans())
    def load(self, data: Any, thread: str, ns: str, explicit: bool) -> None:
        """A run loads a checkpoint, or finds none."""
        saver = self.saver(data)
        configurable = {"thread_id": thread, "checkpoint_ns": ns, "__pregel_runtime": object()}
        at = self.some_id(data, thread, ns, absent=False) if explicit else None
        if at is not None:
            configurable["checkpoint_id"] = at
        found = saver.get_tuple({"configurable": configurable})
        self.compare(found, thread, ns, at or self.model.head(thread, ns))
        self.runs = [*self.runs[-3:], Run(saver, thread, ns, found)]

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def step(self, data: Any) -> None:
        """A live run puts its next checkpoint, with the values it was lent."""
        run = self.runs[data.draw(st.integers(0, len(self.runs) - 1), label="run")]
        after = self.put(data, run.saver, run.thread, run.ns, run.at, dict(run.values))
        if after is None:
            self.runs.remove(run)
        run.at = after

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def write_in_run(self, data: Any) -> None:
        """A task of a live run stores its writes, which its next checkpoint may hold."""
        run = self.runs[data.draw(st.integers(0, len(self.runs) - 1), label="run")]
        if run.at is not None:
            self.write(data, run.saver, run.thread, run.ns, run.at, run.values)

    @rule(data=st.data(), thread=THREADS, ns=SPACES)
    def write_anywhere(self, data: Any, thread: str, ns: str) -> None:
        """Write to any checkpoint, also to a future one."""
        at = self.some_id(data, thread, ns) or f"{self.clock + 10:06d}"
        self.write(data, self.saver(data), thread, ns, at, {})

    def write(self, data: Any, saver: Saver, thread: str, ns: str, at: Any, values: Any) -> None:
        channels = st.sampled_from([*CHANNELS, "__interrupt__", "__resume__", "__error__"])
        writes = []
        for channel in data.draw(st.lists(channels, min_size=1, max_size=3)):
            value = self.value(data, values.get(channel))
            writes.append((channel, value))
            self.remember(value)
        task, path = data.draw(TASKS), data.draw(PATHS)
        configurable = {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": at}
        self.touched = (thread, ns)
        if self.model.is_refused(thread, ns, at):
            config = {"configurable": configurable}
            self.refuses(thread, ns, at, lambda: saver.put_writes(config, writes, task, path))
            return
        try:
            self.model.put_writes(thread, ns, at, writes, task, path)
        except Conflict:
            with pytest.raises(errors.ConflictError):
                saver.put_writes({"configurable": configurable}, writes, task, path)
            return
        saver.put_writes({"configurable": configurable}, writes, task, path)

    @precondition(lambda self: self.pool)
    @rule(data=st.data())
    def somebody_changes_a_value(self, data: Any) -> None:
        """Change an argument or a result: nothing stored may change."""
        self.change_in_place(data, self.pool[data.draw(st.integers(0, len(self.pool) - 1))])

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def end_run(self, data: Any) -> None:
        del self.runs[data.draw(st.integers(0, len(self.runs) - 1))]

    # -- housekeeping ------------------------------------------------------------------

    @rule(data=st.data(), thread=THREADS)
    def prune(self, data: Any, thread: str) -> None:
        kept = {thread: self.model.newest(thread)}
        self.thin(kept, lambda: self.saver(data).prune([thread]))
        self.touched = (thread, "")

    @rule(data=st.data(), runs=st.sets(st.sampled_from(["r1", "r2", "r3"]), max_size=2))
    def delete_for_runs(self, data: Any, runs: set[str]) -> None:
        kept = {thread: self.model.of_other_runs(thread, runs) for thread in self.model.threads}
        self.thin(kept, lambda: self.saver(data).delete_for_runs(sorted(runs)))

    @rule(data=st.data(), count=st.integers(1, 4), turns=st.booleans())
    def collect(self, data: Any, count: int, turns: bool) -> None:
        policy = Retention(keep_last=count, keep="turn_ends" if turns else "all")
        saver = self.saver(data)
        # (A thread is known once it has a checkpoint of the root namespace.)
        known = {one.id for one in saver.threads.scan()} & self.model.threads.keys()
        kept = {thread: self.kept(thread, policy) for thread in sorted(known)}
        self.thin(kept, lambda: self.collected(saver, policy))

    def kept(self, thread: str, policy: Retention) -> dict[str, set[str]]:
        """Choose the checkpoints that stay, always including the newest."""
        (rows,) = self.savers[0]._store.backend.fetch([ReadThread(thread)])
        found = choose.choose(rows.checkpoints, policy, (), time.time_ns() // 1000).keys
        spaces = self.model.newest(thread)
        assert {(ns, id) for ns, ids in spaces.items() for id in ids} <= found
        return {ns: {id for space, id in found if space == ns} for ns in spaces}

    @staticmethod
    def collected(saver: Saver, policy: Retention) -> None:
        dry = saver.threads.gc(policy, dry_run=True)
        done = saver.threads.gc(policy)
        assert (dry.threads, done.skipped) == (done.threads, ())
        assert saver.threads.gc(policy).threads == ()

    def thin(self, kept: dict[str, dict[str, set[str]]], remove: Callable[[], None]) -> None:
        """Remove all but these, and those that their DeltaChannels are rebuilt from."""
        counted = [
            (thread, ns, i)
            for thread, spaces in kept.items()
            for ns, ids in spaces.items()
            for i in ids
            if COUNTERS in self.model.metadata(thread, ns, i)
        ]
        before = [self.model.history(*place, "delta") for place in counted]
        remove()
        for thread, spaces in kept.items():
            (rows,) = self.savers[0]._store.backend.fetch([ReadThread(thread)])
            hidden = {(s.row.ns, s.row.id) for s in rows.checkpoints if s.row.flags & HIDDEN}
            for ns, ids in spaces.items():
                self.model.keep(thread, ns, ids, {i for n, i in hidden if n == ns})
        assert [self.model.history(*place, "delta") for place in counted] == before

    @rule(data=st.data(), thread=THREADS)
    def delete(self, data: Any, thread: str) -> None:
        self.saver(data).delete_thread(thread)
        self.model.delete(thread)
        self.touched = (thread, "")

    @rule(data=st.data(), source=THREADS, to=THREADS)
    def copy(self, data: Any, source: str, to: str) -> None:
        saver = self.saver(data)
        if source == to:
            with pytest.raises(errors.InvalidArgumentError):
                saver.copy_thread(source, to)
        elif self.model.holds_checkpoints(to):
            if self.model.holds_checkpoints(source):
                with pytest.raises(errors.ThreadExistsError):
                    saver.copy_thread(source, to)
        else:
            saver.copy_thread(source, to)
            self.model.copy(source, to)
            self.touched = (to, "")

    # -- the cold store ------------------------------------------------------------------

    @rule(data=st.data(), thread=THREADS)
    def offload(self, data: Any, thread: str) -> None:
        """Offload old values, unnoticed by readers."""
        saver = self.saver(data)
        cold = driver.run(saver._store.own_cold())
        with suppress(errors.ThreadNotFoundError, errors.StateError):
            plan = offload.move_out(saver._store, cold, saver._engine, thread, 0, None)
            self.offloaded += driver.run(plan).segments

    @rule(data=st.data(), thread=THREADS)
    def bring_back(self, data: Any, thread: str) -> None:
        with suppress(errors.ThreadNotFoundError, errors.StateError):
            self.saver(data).threads.restore(thread)

    @rule(data=st.data(), thread=THREADS)
    def there_and_back(self, data: Any, thread: str) -> None:
        """Archive the whole thread; another process reads it."""
        with suppress(errors.ThreadNotFoundError, errors.StateError):
            self.saver(data).threads.archive(thread)
            self.saver(data).get_tuple({"configurable": {"thread_id": thread}})
            assert self.saver(data).threads.get(thread).state != "archived"  # type: ignore[union-attr] # it is there

    # -- reading -----------------------------------------------------------------------

    def compare(self, found: Any, thread: str, ns: str, checkpoint_id: str | None) -> None:
        """Compare a saver's answer with the model's."""
        wanted = None if checkpoint_id is None else self.model.shown(thread, ns, checkpoint_id)
        if wanted is None or found is None:
            assert found is None
            assert wanted is None
            return
        assert not difference(shown(found), wanted)
        seen = load_of(found.config["configurable"]["checkpoint_id"])[1]
        # (stores number the writes of a thread, the model those of a checkpoint)
        assert bool(seen) == bool(self.model.newest_seq(thread, ns, wanted["place"][2]))

    @rule(data=st.data(), thread=THREADS, ns=SPACES)
    def history(self, data: Any, thread: str, ns: str) -> None:
        at = self.some_id(data, thread, ns, absent=False)
        channels = ["delta", "messages"]
        place = {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": at}
        config: Any = {"configurable": {k: v for k, v in place.items() if v is not None}}
        found = self.saver(data).get_delta_channel_history(config=config, channels=channels)
        for channel in channels:
            writes, seed = self.model.history(thread, ns, str(at), channel)
            told = found[channel]
            assert [(task, c, exactly(v)) for task, c, v in told["writes"]] == writes
            assert ("seed" in told) == (seed is not EMPTY)
            assert "seed" not in told or exactly(told["seed"]) == seed

    @rule(data=st.data(), thread=THREADS, ns=SPACES)
    def get(self, data: Any, thread: str, ns: str) -> None:
        at = self.some_id(data, thread, ns)
        configurable = {"thread_id": thread, "checkpoint_ns": ns}
        if at is not None:
            configurable["checkpoint_id"] = at
        found = self.saver(data).get_tuple({"configurable": configurable})
        self.compare(found, thread, ns, at or self.model.head(thread, ns))
        if found is not None:
            for value in list(found.checkpoint["channel_values"].values())[:2]:
                self.remember(value)

    @rule(data=st.data(), thread=st.one_of(st.none(), THREADS), limit=LIMITS)
    def list_them(self, data: Any, thread: str | None, limit: int | None) -> None:
        ns = data.draw(st.sampled_from([None, "", "sub:1"])) if thread is not None else None
        ids = ["000050"] + [i for _, _, i in self.model.listed(thread, ns, None, None, {})]
        before = data.draw(st.one_of(st.none(), st.sampled_from(ids)))
        at = data.draw(st.sampled_from(ids)) if thread and data.draw(st.booleans()) else None
        wanted = data.draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "step": st.sampled_from([1, True, 1.0, 2, None, "1"]),
                    "source": st.sampled_from(["loop", "fork", "absent"]),
                    "a'b\"c": st.sampled_from(["quoted", None]),
                },
            )
        )
        config: Any = None
        if thread is not None:
            place = {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": at}
            config = {"configurable": {k: v for k, v in place.items() if v is not None}}
        found = list(
            self.saver(data).list(
                config,
                filter=wanted,
                before=before and {"configurable": {"checkpoint_id": before}},
                limit=limit,
            )
        )
        places = self.model.listed(thread, ns, at, before, wanted)[:limit]
        assert [shown(one)["place"] for one in found] == places
        for one, place in zip(found, places, strict=True):
            self.compare(one, *place)

    @invariant()
    def the_thread_touched_last_is_right(self) -> None:
        if self.savers:
            thread, ns = self.touched
            config = {"configurable": {"thread_id": thread, "checkpoint_ns": ns}}
            found = self.savers[0].get_tuple(config)
            self.compare(found, thread, ns, self.model.head(thread, ns))

    @rule()
    def check(self) -> None:
        report = self.savers[1].check()
        assert report.ok, report.findings

    @rule(data=st.data())
    def statistics(self, data: Any) -> None:
        """A saver returns the statistics that another stored, until they are too old."""
        first, other = self.saver(data), self.saver(data)
        old = first.stats(max_age=HOUR)
        assert other.stats(max_age=HOUR) == old
        counted = other.stats(max_age=timedelta(microseconds=1))
        assert (counted.at > old.at, first.stats(max_age=HOUR)) == (True, counted)

    def check_everything(self) -> None:
        reader = self.open(0)
        try:
            found = list(reader.list(None))
            places = self.model.listed(None, None, None, None, {})
            assert [shown(one)["place"] for one in found] == places
            for one, place in zip(found, places, strict=True):
                self.compare(one, *place)
            report = reader.check()
            assert report.ok, report.findings
            assert reader.stats().checkpoints == len(places)
            counts = [
                self.counts(reader, counts_usage=True),
                self.counts(reader, counts_usage=False),
            ]
            assert counts[0] == counts[1]
        finally:
            self.shut(reader)

    def counts(self, reader: Saver, *, counts_usage: bool) -> Any:
        """Count by the backend, or again from its other reads, which leave out empty threads."""
        read = ReadUsage(0, 0, 99)
        found = reader._store.run(usage(read, counts_usage=counts_usage))
        held = [one._replace(recent=0) for one in found.largest if one.checkpoints or one.writes]
        return sum([one.bytes for one in held]), found.checkpoints, held


class OnMemory(Machine):
    """Two savers on one memory backend."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = MemoryBackend()

    def open(self, number: int) -> Saver:
        del number
        return Saver(self.backend, conflicts=self.conflicts, cold=self.cold)

    def shut(self, saver: Saver) -> None:
        """The rows stay."""


class OnSqlite(Machine):
    """Two savers on one file, like two processes."""

    def open(self, number: int) -> Saver:
        del number
        options: Any = {"conflicts": self.conflicts, "cold": self.cold}
        return SqliteSaver(self.folder / "t.db", synchronous="normal", **options)


class OnPostgres(Machine):
    """Two savers on one schema, like two processes, each on a connection.

    (A pool draws random numbers in its threads, which hypothesis would count as the test's.)
    """

    def __init__(self) -> None:
        super().__init__()
        self.schema = empty_schema()
        self.connections: dict[Saver, psycopg.Connection] = {}

    def open(self, number: int) -> Saver:
        del number
        connection = psycopg.connect(url(), autocommit=True)
        options: Any = {"conflicts": self.conflicts, "cold": self.cold}
        saver = PostgresSaver(connection, schema=self.schema, **options)
        self.connections[saver] = connection
        return saver

    def shut(self, saver: Saver) -> None:
        super().shut(saver)
        self.connections.pop(saver).close()


class OnRedis(Machine):
    """Two savers under one prefix, like two processes."""

    def __init__(self) -> None:
        super().__init__()
        self.prefix = redis_kit.empty_prefix()

    def open(self, number: int) -> Saver:
        del number
        options: Any = {"conflicts": self.conflicts, "cold": self.cold}
        return RedisSaver(redis_kit.url(), prefix=self.prefix, **options)


class OnMemoryFenced(OnMemory):
    conflicts = "raise"


class OnSqliteFenced(OnSqlite):
    conflicts = "raise"


class OnPostgresFenced(OnPostgres):
    conflicts = "raise"


class OnRedisFenced(OnRedis):
    conflicts = "raise"


PROFILE = settings_of(
    quick=2, full=60, stateful_step_count=some(30, 60), report_multiple_bugs=False
)


MACHINES = (
    *(OnMemory, OnMemoryFenced, OnSqlite, OnSqliteFenced, OnPostgres, OnPostgresFenced),
    *(OnRedis, OnRedisFenced),
)


@pytest.mark.parametrize("machine", MACHINES)
def test_machine(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=PROFILE)
