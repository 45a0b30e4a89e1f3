"""Savers of tenants on one store: their shared parts, and calls that stay with their tenant."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kit.backends import BACKENDS, open_backend
from kit.engine import Chain, config, everything
from kit.postgres import granted, url_for, url_of_role
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from threadkeep import (
    KeyRing,
    LayeredCheckpointSaver,
    Layers,
    MemorySaver,
    Retention,
    Tiering,
    open_saver,
)
from threadkeep._core.engine.registration import read
from threadkeep._core.policies import WarmTier
from threadkeep._core.tenants import prefix
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep.errors import (
    DiskFullError,
    InvalidArgumentError,
    TamperedDataError,
    ThreadExistsError,
    ThreadNotFoundError,
    WrongKeyError,
)
from threadkeep.monitor import Monitor, observe
from threadkeep.monitor.observe import backend_of
from threadkeep.savers.saver import Saver
from threadkeep.savers.tenants import _VIEWS
from threadkeep.streaming import StreamingCheckpointSaver

LONG = "x" * 3000
SMALL = Layers(full_window=4, summary_window=10, archive_threshold=20, batch=1)


def say(saver: Any, *words: str, thread: str = "t") -> Chain:
    """Put a checkpoint, with a pending write, for each word."""
    chain = Chain(saver, thread).follow()
    chain.number = len([*saver.list(config(thread))])
    for word in words:
        made = chain.arguments(said=[*chain.values.get("said", []), f"{word} {LONG}"])
        chain.at = saver.put(*made[:2], {**made[2], "run_id": "r"}, made[3])
        saver.put_writes(chain.at, [("said", word)], "task")
    return chain


def said(saver: Any, thread: str = "t") -> list[str]:
    found = saver.get_tuple(config(thread))
    words = [] if found is None else found.checkpoint["channel_values"]["said"]
    return [word.split()[0] for word in words]


@pytest.fixture(params=["plain", "sealed"])
def saver_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"keys": KeyRing([b"k" * 32])} if request.param == "sealed" else {}


@pytest.fixture
def pair(saver: Any) -> tuple[Any, Any]:
    """Two tenants with threads of the same ids, on each store; a third of the operator's own."""
    return _pair(saver)


def _pair(saver: Any) -> tuple[Any, Any]:
    one, other = saver.for_tenant("one"), saver.for_tenant("one more")
    for each, word in ((one, "mine"), (other, "yours"), (saver, "ours")):
        say(each, word, f"{word}-2")
        say(each, f"{word}-3", thread="u")
        each.threads.tag("t", word)
        each.threads.update("t", metadata={"of": word})
    return one, other


def state_of(saver: Any) -> Any:
    """All that a tenant sees."""
    threads = [(one.id, one.state, one.tags, one.metadata) for one in saver.threads.scan()]
    return everything(saver), sorted(threads), saver.stats().checkpoints


# -- every call stays with its tenant ----------------------------------------------------


def _sound(report: Any) -> None:
    assert (report.ok, report.threads) == (True, 2)


def _fork(saver: Any) -> str:
    fork: str = saver.threads.fork("t").id
    return fork


def _merge(saver: Any) -> None:
    fork = _fork(saver)
    say(saver, "forked", thread=fork)
    saver.threads.merge_fork(fork, "t")
    assert said(saver)[-1] == "forked"


def _bundle(saver: Any, folder: Path) -> None:
    done = saver.threads.export_bundle(None, folder / "all.tkb")
    assert done.threads == 2
    saver.threads.import_bundle(folder / "all.tkb", replace=True)


def _stream(saver: Any, _: Path) -> None:
    with saver.streaming("t", interval=60) as stream:
        stream.update("partial")
    assert len(saver.partial("t")) == 1
    saver.discard_partial("t")


CALLS = {
    "put": lambda saver, _: say(saver, "more"),
    "put_many": lambda saver, _: saver.put_many([Chain(saver, "new").arguments(said=["a"])]),
    "delete_thread": lambda saver, _: saver.delete_thread("t"),
    "delete_for_runs": lambda saver, _: saver.delete_for_runs(["r"]),
    "delete_checkpoints": lambda saver, _: saver.delete_checkpoints(
        "t", [one.checkpoint["id"] for one in saver.list(config())]
    ),
    "copy_thread": lambda saver, _: saver.copy_thread("t", "copy"),
    "prune": lambda saver, _: saver.prune(["t", "u"]),
    "prune all": lambda saver, _: saver.prune(["t", "u"], strategy="delete"),
    "clear_cache": lambda saver, _: saver.clear_cache(),
    "check": lambda saver, _: _sound(saver.check()),
    "setup": lambda saver, _: saver.setup(),
    "fork": lambda saver, _: saver.threads.fork("t", new_thread_id="fork"),
    "merge": lambda saver, _: _merge(saver),
    "discard": lambda saver, _: saver.threads.discard_fork(_fork(saver), delete=True),
    "tag": lambda saver, _: saver.threads.tag("t", "seen"),
    "retain": lambda saver, _: saver.threads.retain("t", Retention(keep_last=1)),
    "gc": lambda saver, _: saver.threads.gc(Retention(keep_last=1)),
    "gc all": lambda saver, _: saver.threads.gc(Retention(max_count=0)),
    "repair": lambda saver, folder: saver.threads.repair(file=folder / "damage.tkq"),
    "erase": lambda saver, _: saver.threads.erase("t", forks=True),
    "erase by metadata": lambda saver, _: saver.threads.erase(metadata={"of": "mine"}),
    "bundle": _bundle,
    "stream": _stream,
    "stats": lambda saver, _: saver.stats(max_age=timedelta(days=1)),
    "close": lambda saver, _: saver.close(),
}


@pytest.mark.parametrize("call", CALLS)
def test_no_call_reaches_another_tenant(
    saver: Any, pair: tuple[Any, Any], call: str, tmp_path: Path
) -> None:
    one, other = pair
    before = state_of(other)
    CALLS[call](one, tmp_path)
    assert state_of(other) == before
    assert said(saver) == ["ours", "ours-2"]
    assert saver.check().ok


@pytest.mark.parametrize("call", CALLS)
def test_a_role_makes_every_call(saver_options: dict[str, Any], call: str, tmp_path: Path) -> None:
    """PostgreSQL lets it see the rows of its tenant alone (see `grant_role`)."""
    store = url_for(tmp_path, granted)
    with open_saver(store, **saver_options) as saver:
        saver.setup()
        _, other = _pair(saver)
        before = state_of(other)
        with open_saver(url_of_role(store, "one"), **saver_options) as own:
            CALLS[call](own.for_tenant("one"), tmp_path)
        assert state_of(other) == before
        assert said(saver) == ["ours", "ours-2"]
        assert saver.check().ok


def test_a_tenant_sees_its_own_threads_alone(pair: tuple[Any, Any]) -> None:
    one, other = pair
    assert said(one) == ["mine", "mine-2"]
    assert {id for id, _, _ in everything(one)} == {"t", "u"}
    assert len([*one.list(None, limit=2)]) == 2
    assert [*one.list(None, filter={"step": 99})] == []
    assert sorted(one.threads.scan(), key=str) == sorted(one.threads.search(), key=str)
    assert [t.id for t in one.threads.search(metadata={"of": "yours"})] == []
    assert [t.id for t in one.threads.search(tags=["mine"])] == ["t"]
    assert one.threads.count() == 2
    pages = [one.threads.search(limit=1)]
    pages.append(one.threads.search(limit=1, cursor=pages[0].cursor))
    assert sorted(t.id for page in pages for t in page) == ["t", "u"]
    stats = one.stats(exact=True)
    assert (stats.threads, stats.checkpoints) == (2, 3)
    assert {t.thread for t in (*stats.largest, *stats.busiest, *stats.by_thread)} == {"t", "u"}
    assert one.counters().written_bytes > 0 < other.counters().written_bytes
    assert (one.threads.get("v"), one.threads.get(f"{prefix('one more')}t")) == (None, None)
    with pytest.raises(ThreadNotFoundError, match="'v'") as caught:
        one.threads.fork("v")
    assert caught.value.thread == "v"
    with pytest.raises(ThreadExistsError) as refused:
        one.copy_thread("u", "t")
    assert refused.value.thread == "t"


# -- the operator ------------------------------------------------------------------------


def test_the_saver_without_a_tenant_has_all_threads(saver: Any, pair: tuple[Any, Any]) -> None:
    beginnings = ("", prefix("one"), prefix("one more"))
    names = {f"{beginning}{id}" for beginning in beginnings for id in "tu"}
    assert {one.id for one in saver.threads.scan()} == names
    assert {id for id, _, _ in everything(saver)} == names
    stats = saver.stats()
    assert (stats.threads, stats.checkpoints) == (6, 9)
    assert saver.counters().written_bytes > 2 * pair[0].counters().written_bytes > 0
    assert saver.check().threads == 6
    done = saver.threads.gc(Retention(keep_last=1))
    assert done.examined == 6
    assert [len([*each.list(config())]) for each in (*pair, saver)] == [1, 1, 1]
    saver.threads.erase(f"{prefix('one')}t")
    assert [said(each) for each in (*pair, saver)] == [[], ["yours", "yours-2"], ["ours", "ours-2"]]
    saver.delete_for_runs(["r"])
    assert everything(saver) == {}


def test_a_fork_stays_with_its_tenant(saver: Any, pair: tuple[Any, Any]) -> None:
    """A fork shares values, which a saver of either tenant could then not collect."""
    name = f"{prefix('one')}t"
    for target in ("fork", f"{prefix('one more')}fork"):
        with pytest.raises(InvalidArgumentError, match="tenant"):
            saver.threads.fork(name, new_thread_id=target)
    saver.threads.fork(name, new_thread_id=f"{prefix('one')}fork")
    assert saver.threads.fork(name).id.startswith(prefix("one"))
    assert pair[0].threads.get("fork").forked_from[0] == "t"
    if saver.backend.keys is not None:  # a copy has the keys of its original
        with pytest.raises(InvalidArgumentError, match="another tenant"):
            saver.copy_thread(name, "copy")
        return
    saver.copy_thread(name, "copy")
    assert said(saver, "copy") == ["mine", "mine-2"]


def test_views_are_kept_and_none_is_within_another() -> None:
    with MemorySaver() as saver:
        one = saver.for_tenant("one")
        assert (saver.tenant, one.tenant) == (None, "one")
        assert saver.for_tenant("one") is one
        with pytest.raises(InvalidArgumentError, match="'one'"):
            one.for_tenant("two")
        for wrong in ("", "x" * 201, None, ["one"]):
            with pytest.raises(InvalidArgumentError, match="tenant"):
                saver.for_tenant(wrong)
        for number in range(_VIEWS):
            saver.for_tenant(str(number))
        assert len(saver._views) <= _VIEWS
        say(one, "kept")
        assert said(saver.for_tenant("one")) == ["kept"]


def test_closing_a_view_closes_nothing(tmp_path: Path) -> None:
    saver = open_backend("sqlite", tmp_path)
    with saver.for_tenant("one") as one:
        say(one, "first")
    with open_backend("sqlite", tmp_path) as beside:
        assert said(beside.for_tenant("one")) == ["first"]
    say(one, "second")
    saver.close()
    with open_backend("sqlite", tmp_path) as beside:
        assert said(beside.for_tenant("one")) == ["first", "second"]


def test_options_and_serializers_are_the_savers() -> None:
    with MemorySaver(gc_on_put=2, retention=Retention(keep_last=1)) as saver:
        one, other = saver.for_tenant("one"), saver.for_tenant("other")
        say(one, "a")
        say(other, "a")  # (of another tenant: it does not count)
        assert len([*one.list(None)]) == 1
        saver.serde = serde = JsonPlusSerializer()
        assert one.serde is saver.for_tenant("new").serde is serde
        allowed = one.with_allowlist([("decimal", "Decimal")])
        assert (allowed.tenant, said(allowed)) == ("one", ["a"])


# -- parts that savers share -------------------------------------------------------------


class Store(MemoryBackend):
    """Fails for one thread."""

    bad = ""

    def commit(self, change: Any) -> None:
        if change.thread == self.bad:
            raise DiskFullError(thread=self.bad)
        super().commit(change)

    def commit_many(self, changes: Any) -> Any:
        if any(change.thread == self.bad for change in changes):
            raise DiskFullError(thread=self.bad)
        return super().commit_many(changes)


def test_a_failure_names_the_thread_as_its_tenant_does() -> None:
    store = Store()
    with Saver(store) as saver:
        one, other = saver.for_tenant("one"), saver.for_tenant("other")
        store.bad = f"{prefix('one')}t"
        say(other, "b")
        with pytest.raises(DiskFullError) as caught:
            say(one, "a")
        assert caught.value.thread == "t"
        assert "threadkeep@" not in str(caught.value)


def test_a_tenant_and_the_operator_go_on_from_each_other() -> None:
    """Both use one working set, so the logs of a thread have one owner."""
    with Saver(MemoryBackend()) as saver:
        one, name = saver.for_tenant("one"), f"{prefix('one')}t"
        for number in range(6):
            say((one, saver)[number % 2], f"{number}", thread=("t", name)[number % 2])
        assert said(one) == said(saver, name) == [str(number) for number in range(6)]
        saver.clear_cache()
        assert said(one) == [str(number) for number in range(6)]
        assert saver.check().ok


@pytest.mark.parametrize("kind", BACKENDS)
def test_archives_of_tenants(kind: str, cold: Path, tmp_path: Path) -> None:
    with open_backend(kind, tmp_path, cold=cold.as_uri()) as saver:
        one, other, name = saver.for_tenant("one"), saver.for_tenant("other"), f"{prefix('one')}t"
        for each, word in ((one, "mine"), (other, "yours"), (saver, "ours")):
            say(each, word, f"{word}-2")
        before = state_of(one)
        for archive, restore in (
            (lambda: one.threads.archive("t"), lambda: one.threads.restore("t")),
            (lambda: one.threads.archive("t"), lambda: saver.threads.restore(name)),
            (lambda: saver.threads.archive(name), lambda: one.threads.restore("t")),
            (lambda: one.threads.archive("t"), lambda: say(one)),
        ):
            archive()
            assert one.threads.get("t").state == "archived"
            assert saver.threads.get(name).archived_bytes == one.threads.get("t").archived_bytes
            restore()
            assert state_of(one) == before
        for each in (one, other):
            assert each.threads.tier(Tiering(warm=WarmTier(max_age=1e-6))).archived
        one.threads.erase("t")
        assert said(one) == []
        assert (said(other), said(saver)) == (["yours", "yours-2"], ["ours", "ours-2"])
        assert saver.check().ok


def test_offloaded_values_of_tenants(cold: Path, tmp_path: Path) -> None:
    with open_backend("sqlite", tmp_path, cold=cold.as_uri()) as saver:
        one, other, name = saver.for_tenant("one"), saver.for_tenant("other"), f"{prefix('one')}t"
        for each in (one, other):
            chain = Chain(each)
            for number in range(3):
                chain.put(said=[f"{number} {os.urandom(20_000).hex()}"])
        assert one.threads.offload("t", over=1024).bytes
        assert saver.threads.offload(f"{prefix('other')}t", over=1024).bytes
        assert one.threads.get("t").offloaded_bytes == saver.threads.get(name).offloaded_bytes > 0
        assert [len([*each.list(None)]) for each in (one, other)] == [3, 3]
        one.delete_thread("t")
        assert [one.checkpoint["channel_values"]["said"][0][0] for one in other.list(None)] == [
            *"210"
        ]


def test_a_copied_archive_record_is_not_the_copys(cold: Path, tmp_path: Path) -> None:
    """The record of a thread's cold objects is copied with its labels, and counts for it alone."""
    with open_backend("sqlite", tmp_path, cold=cold.as_uri()) as saver:
        one, other = saver.for_tenant("one"), saver.for_tenant("other")
        say(one, "mine")
        one.threads.archive("t")
        say(one, "again")  # (restored: its entry still names the archive)
        saver.copy_thread(f"{prefix('one')}t", f"{prefix('other')}t")
        assert saver._store.run(_labels(f"{prefix('other')}t")) != ()
        assert other._store.run(_labels("t")) == ()
        assert other.threads.get("t").offloaded_bytes == 0
        other.delete_thread("t")
        assert said(one) == ["mine", "again"]


def _labels(thread: str) -> Any:
    entry = yield from read(thread)
    return entry.labels


def test_a_bundle_holds_plain_ids(saver: Any, pair: tuple[Any, Any], tmp_path: Path) -> None:
    one, other = pair
    file = tmp_path / "one.tkb"
    third = saver.for_tenant("third")
    one.threads.export_bundle(["t"], file)
    if saver.backend.keys is not None:  # encrypted with the tenant's keys
        with pytest.raises(TamperedDataError, match="another tenant's"):
            third.threads.import_bundle(file)
        one.threads.export_bundle(["t"], file, plain=True)
    assert b"threadkeep@" not in file.read_bytes()
    third.threads.import_bundle(file)
    assert said(third) == ["mine", "mine-2"]
    assert [t.id for t in third.threads.scan()] == ["t"]
    other.threads.import_bundle(file, "from one")
    assert said(other, "from one") == ["mine", "mine-2"]
    assert said(other) == ["yours", "yours-2"]


def test_mirrors_between_tenants(saver: Any, pair: tuple[Any, Any]) -> None:
    one, _ = pair
    with MemorySaver() as elsewhere:
        one.threads.mirror(elsewhere.for_tenant("copy"))
        assert {t.id for t in elsewhere.threads.scan()} == {f"{prefix('copy')}{id}" for id in "tu"}
        saver.threads.mirror(elsewhere)
        assert said(elsewhere.for_tenant("one more")) == ["yours", "yours-2"]
    beside = saver.for_tenant("beside")
    one.threads.mirror(beside)
    assert said(beside) == ["mine", "mine-2"]
    with pytest.raises(InvalidArgumentError, match="is this one"):
        one.threads.mirror(one)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_layered_memory_of_tenants(kind: str, tmp_path: Path) -> None:
    with open_backend(kind, tmp_path) as saver:
        found = []
        for word in ("mine", "yours"):
            tenant = saver.for_tenant(word)
            memory = LayeredCheckpointSaver(tenant, SMALL)
            said = [HumanMessage(f"{word} {number}", id=f"{word}-{number}") for number in range(30)]
            memory.save("t", said)
            hits = memory.search_messages("t", query=word)
            found.append([one.message.text for one in hits])
            assert memory.search_messages("t", query="yours" if word == "mine" else "mine") == []
            with pytest.raises(InvalidArgumentError, match="LayeredCheckpointSaver"):
                memory.for_tenant("other")
        assert len(found[0]) > 9
        assert found[0] == [text.replace("yours", "mine") for text in found[1]]


def test_wrappers() -> None:
    with MemorySaver() as saver:
        seen: list[Any] = []

        class Sink:
            def record(self, operation: str, seconds: float, error: Any) -> None:
                seen.append((operation, error))

        observed = observe(saver, sinks=[Sink()])
        one = observed.for_tenant("one")
        say(one, "mine")
        assert (one.backend is saver.for_tenant("one").backend, said(one)) == (True, ["mine"])
        assert ("put", None) in seen
        assert backend_of(one) == "memory"
        assert said(observed) == []
        with pytest.raises(InvalidArgumentError, match="StreamingCheckpointSaver"):
            StreamingCheckpointSaver(saver).for_tenant("one")
        say(saver, "ours")
        storage = Monitor(saver.for_tenant("one")).measure().storage
        assert storage is not None
        assert [each.thread for each in storage.threads] == ["t"]
        assert storage.bytes == storage.threads[0].bytes


def test_keys_of_tenants_and_threads_are_destroyed(tmp_path: Path) -> None:
    options = {"keys": KeyRing([b"k" * 32]), "thread_keys": True}
    keys = f"sqlite:///{tmp_path / 'keys.db'}"
    with open_backend("sqlite", tmp_path, key_store=keys, **options) as saver:
        one, other = saver.for_tenant("one"), saver.for_tenant("other")
        for each in (one, other, saver):
            say(each, "a")
            say(each, "b", thread="u")
        report = one.shred("t")
        assert (report.name, len(report.keys)) == ("t", 1)
        assert [t.thread for t in report.erased.threads] == ["t"]
        assert [said(each) for each in (one, other, saver)] == [[], ["a"], ["a"]]
        with pytest.raises(WrongKeyError) as caught:
            say(one, "again")
        assert "threadkeep@" not in str(caught.value)
        with pytest.raises(InvalidArgumentError, match="'one'"):
            one.shred_tenant("other")
        with pytest.raises(InvalidArgumentError, match="without a tenant"):
            one.rotate_keys()
        say(one, "b", thread="v")
        saver.shred_tenant("one")
        assert [t.id for t in one.threads.scan()] == []
        assert [said(each, "u") for each in (other, saver)] == [["b"], ["b"]]
        assert saver.check().ok
