"""A restored store equals the backup, despite concurrent writers."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest
from kit.backends import SHARED, open_backend, url_of
from kit.engine import Chain, config, exactly, shown
from kit.places import at
from kit.postgres import url as postgres_url
from kit.redis_servers import Server, cluster
from kit.runs import Delta, Plain, story, told

from threadkeep import open_saver
from threadkeep._stores.sqlite import maintenance
from threadkeep.errors import ThreadDeletedError, ThreadExistsError
from threadkeep.savers import backup

from .driver import play
from .scenarios import SCENARIOS

PROGRAMS = os.environ.get("TK_TEST_POSTGRES_BIN", "")
WAIT = 30.0  # seconds; only a broken test ever waits that long


def quiet(what: str, done: int, total: int) -> None:
    """No progress is shown."""


def back_up(
    url: str, file: Path, progress: backup.Progress = quiet, form: Any = None
) -> backup.BackupReport:
    return backup.back_up(url, file, progress, form=form, programs=PROGRAMS)


def restore(file: Path, url: str, *, replace: bool = False) -> backup.RestoreReport:
    return backup.restore(file, url, quiet, replace=replace, programs=PROGRAMS)


def fill(saver: Any) -> None:
    """Threads with a bit of everything."""
    for schema, thread in ((Plain, "plain"), (Delta, "delta"), (Delta, "pruned")):
        for who in ("a", "b", "c"):
            story(saver, schema).invoke({"log": [who]}, at(thread))
    saver.prune(["pruned"])
    story(saver, Delta).invoke({"log": ["d"]}, at("pruned"))
    saver.copy_thread("delta", "copy")
    Chain(saver, "deleted").put(n=1)
    saver.delete_thread("deleted")
    chain = Chain(saver, "writes \N{GRINNING FACE}", "child")
    chain.put(m=["x" * 5000, ("tuple", {1: 2.5})], n=None)
    for task in ("b", "a", "c"):
        saver.put_writes(chain.at, [("m", task), ("__error__", task), ("n", 3)], task, f"~{task}")
    for name in ("agent_with_two_tools", "subgraph_with_a_memory_that_asks"):
        play(SCENARIOS[name], saver, durability="sync", api="sync")


def seen(saver: Any) -> dict[str, Any]:
    """All that a saver shows: listed, asked for one by one, rebuilt."""
    listed = list(saver.list(None))
    one_by_one = [shown(saver.get_tuple(found.config)) for found in listed]
    rebuilt = [
        exactly(saver.get_delta_channel_history(config=found.config, channels=["log"]))
        for found in listed
    ]
    threads = sorted({found.config["configurable"]["thread_id"] for found in listed})
    heads = [shown(saver.get_tuple(config(thread))) for thread in threads if "writes" not in thread]
    return {
        "listed": [shown(found) for found in listed],
        "one by one": one_by_one,
        "rebuilt": rebuilt,
        "heads": heads,
        "stats": [(t.thread, t.checkpoints, t.writes) for t in saver.stats().by_thread],
    }


def goes_on(saver: Any) -> None:
    """Threads continue from their heads; deleted threads stay deleted."""
    for schema, thread in ((Plain, "plain"), (Delta, "delta"), (Delta, "copy")):
        end = story(saver, schema).invoke({"log": ["e"]}, at(thread))
        assert end["log"] == told("a", "b", "c", "e")
    assert story(saver, Delta).invoke({"log": ["e"]}, at("pruned"))["log"] == told(*"abcde")
    with pytest.raises(ThreadDeletedError):
        saver.put_writes(
            config("deleted", checkpoint_id="1ef00000-0000-6000-8000-000000000000"), [("n", 1)], "t"
        )
    assert saver.check().ok


@pytest.mark.drawn(1)
@pytest.mark.parametrize("target", SHARED)
@pytest.mark.parametrize("source", SHARED)
def test_a_bundle_of_any_store_fills_any_store(source: str, target: str, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    file = tmp_path / "threads.tkb"
    with open_backend(source, one) as saver:
        fill(saver)
        want = seen(saver)
    taken = back_up(url_of(source, one), file)
    assert taken.kind is backup.BUNDLE
    assert taken.size == file.stat().st_size
    done = restore(file, url_of(target, other))
    assert done == (taken.threads, 0)
    assert taken.threads == len(want["stats"])
    with open_backend(target, other) as saver:
        assert seen(saver) == want
        assert saver.check().ok
        goes_on(saver)


def test_from_one_redis_to_another_and_to_a_cluster(tmp_path: Path) -> None:
    with Server() as one, Server() as other:
        with open_saver(one.url) as saver:
            fill(saver)
            want = seen(saver)
        back_up(one.url, tmp_path / "one.tkb")
        places = [other.url, f"{cluster().url}?prefix=restored"]
        for number, place in enumerate(places):
            restore(tmp_path / "one.tkb", place)
            with open_saver(place) as saver:
                assert seen(saver) == want
            back_up(place, tmp_path / f"{number}.tkb")
            with open_saver(place) as saver:
                goes_on(saver)
    first = (tmp_path / "one.tkb").read_bytes()
    assert [(tmp_path / f"{n}.tkb").read_bytes() == first for n in (0, 1)] == [True, True]


@contextmanager
def _own_store(name: str, folder: Path) -> Iterator[str]:
    """The URL of a store with its own format; a schema comes at the end."""
    if name == "sqlite":
        yield f"sqlite:///{folder / 'own.db'}"
        return
    schema = f'Own "{os.getpid()}" schema'
    drop = 'DROP SCHEMA IF EXISTS "{}" CASCADE'.format(schema.replace('"', '""'))
    with psycopg.connect(postgres_url(), autocommit=True) as db:
        try:
            yield f"{postgres_url()}?schema={schema.replace(' ', '%20')}"
        finally:
            db.execute(drop.encode())


def _gone(name: str, url: str) -> None:
    if name == "sqlite":
        for file in Path(url.removeprefix("sqlite:///")).parent.glob("own.db*"):
            file.unlink()
        return
    with psycopg.connect(postgres_url(), autocommit=True) as db:
        db.execute(f"""DROP SCHEMA "Own ""{os.getpid()}"" schema" CASCADE""".encode())


@pytest.fixture(params=["sqlite", "postgres"])
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The name of a store with a format of its own, and its URL."""
    with _own_store(request.param, tmp_path) as url:
        with open_saver(url) as saver:
            saver.setup()
            fill(saver)
        yield request.param, url


@pytest.mark.drawn(1)
def test_a_store_comes_back_from_its_own_format(own: Any, tmp_path: Path) -> None:
    name, url = own
    file = tmp_path / "backup"
    with open_saver(url) as saver:
        want = seen(saver)
    assert back_up(url, file).kind is not backup.BUNDLE
    _gone(name, url)
    restore(file, url)
    with open_saver(url) as saver:
        assert seen(saver) == want
        assert saver.check().ok
        goes_on(saver)


@pytest.mark.drawn(1)
def test_a_store_is_replaced_under_a_saver_that_has_it_open(own: Any, tmp_path: Path) -> None:
    """The saver remembers threads that are gone, and builds on none of them."""
    _, url = own
    file = tmp_path / "backup"
    back_up(url, file)
    with open_saver(url) as saver, open_saver(url) as fresh:
        want = seen(fresh)
        graph = story(saver, Plain)
        graph.invoke({"log": ["x"]}, at("plain"))
        chain = Chain(saver, "new")
        chain.put(m=["x" * 50])
        with pytest.raises(ThreadExistsError):
            restore(file, url)
        assert seen(fresh) != want
        restore(file, url, replace=True)
        assert seen(fresh) == want
        with pytest.raises(ThreadDeletedError):
            chain.put(m=["x" * 50, "y"])
        chain.at = config("new")
        chain.put(m=["x" * 50, "y"])
        assert graph.invoke({"log": ["y"]}, at("plain"))["log"] == told("a", "b", "c", "y")
        report = fresh.check()
        assert report.ok, report.findings


@pytest.mark.drawn(1)
def test_an_empty_store_is_filled_and_a_later_run_of_a_lost_thread_is_refused(
    own: Any, tmp_path: Path
) -> None:
    _, url = own
    file = tmp_path / "backup"
    with open_saver(url) as saver:
        want = seen(saver)
        threads = [size for size, *_ in want["stats"]]
        back_up(url, file)
        for thread in threads:
            saver.delete_thread(thread)
        Chain(saver, "later").put(n=1)
        saver.delete_thread("later")
        restore(file, url)
        assert seen(saver) == want
        old = config("later", checkpoint_id="1ef00000-0000-6000-8000-000000000000")
        with pytest.raises(ThreadDeletedError):
            saver.put_writes(old, [("n", 1)], "task")


# -- interruptions -----------------------------------------------------------------------


class Interrupting:
    """Progress that is interrupted, as by Ctrl-C, at its nth call, or the nth of a stage."""

    def __init__(self, at: int, stage: str = "") -> None:
        self.left = at
        self.stage = stage

    def __call__(self, what: str, done: int, total: int) -> None:
        self.left -= what.startswith(self.stage)
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["backup.db", "backup.tkb"])
@pytest.mark.parametrize("old", [True, False])
def test_an_interrupted_backup_leaves_what_was_there(
    name: str, old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_STEP_PAGES", 1)
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    file = tmp_path / "backups" / name
    file.parent.mkdir()
    with open_saver(url) as saver:
        fill(saver)
    if old:
        back_up(url, file)
    before = {each.name: each.read_bytes() for each in file.parent.iterdir()}
    assert len(before) == old
    for at_ in (1, 3, 9):
        with pytest.raises(KeyboardInterrupt):
            back_up(url, file, Interrupting(at_))
        assert {each.name: each.read_bytes() for each in file.parent.iterdir()} == before
    back_up(url, file)
    assert [each.name for each in file.parent.iterdir()] == [name]


@pytest.mark.parametrize("target", SHARED)
def test_an_interrupted_restore_is_done_again(target: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    file, url = tmp_path / "backup.tkb", url_of(target, tmp_path / "other")
    with open_backend("sqlite", tmp_path) as saver:
        fill(saver)
        want = seen(saver)
    taken = back_up(url_of("sqlite", tmp_path), file)
    with pytest.raises(KeyboardInterrupt):
        backup.restore(file, url, Interrupting(4, "threads written"))
    done = restore(file, url)
    assert done.unchanged
    assert done.unchanged + (done.threads or 0) == taken.threads
    with open_backend(target, tmp_path / "other") as saver:
        assert seen(saver) == want


# -- while others write ------------------------------------------------------------------


class Writers:
    """Threads that put one checkpoint after another until they are stopped.

    In each of their states `m` counts up to `n`. One prunes its thread now and then, one
    deletes it and begins again.
    """

    def __init__(self, open_one: Callable[[], Any]) -> None:
        self._open = open_one
        self._stop = False
        self._moved = threading.Condition()
        self.puts = {"grows": 0, "prunes": 0, "deletes": 0}
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in self.puts]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        for thread in self._threads:
            thread.join(WAIT)
        assert not self.failures, self.failures

    def let_each_put(self, times: int = 1) -> None:
        """Wait until each has put so many more."""
        with self._moved:
            goal = {name: count + times for name, count in self.puts.items()}
            assert self._moved.wait_for(
                lambda: self.failures or all(self.puts[n] >= c for n, c in goal.items()), WAIT
            )

    def _run(self, name: str) -> None:
        try:
            with self._open() as saver:
                while not self._stop:
                    self._live(saver, name)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.failures.append(error)
            with self._moved:
                self._moved.notify_all()

    def _live(self, saver: Any, name: str) -> None:
        chain = Chain(saver, name, start=self.puts[name])
        for n in range(40 if name == "deletes" else 10**9):
            if self._stop:
                return
            chain.put(m=[*chain.values.get("m", []), f"{n} {'x' * 60}"], n=n + 1)
            saver.put_writes(chain.at, [("n", n), ("m", ["y" * 60])], "task")
            if name == "prunes" and n % 7 == 6:
                saver.prune([name])
            with self._moved:
                self.puts[name] += 1
                self._moved.notify_all()
        saver.delete_thread(name)


def existed(saver: Any) -> None:
    """Each thread is a state that there was: counted in step, its parents all there."""
    report = saver.check()
    assert report.ok, report.findings
    found = list(saver.list(None))
    assert {f.config["configurable"]["thread_id"] for f in found} >= {"grows", "prunes"}
    for thread in ("grows", "prunes", "deletes"):
        states = list(saver.list(config(thread)))
        for number, state in enumerate(states):
            older = states[number + 1] if number + 1 < len(states) else None
            values = state.checkpoint["channel_values"]
            assert [text.split()[0] for text in values["m"]] == [str(i) for i in range(values["n"])]
            if older is not None:
                assert (
                    state.parent_config["configurable"]["checkpoint_id"] == older.checkpoint["id"]
                )
                assert older.checkpoint["channel_values"]["n"] == values["n"] - 1
                assert len(older.pending_writes) == 2
            elif thread != "prunes":
                assert (values["n"], state.parent_config) == (1, None)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("store", "suffix"),
    [
        *(("sqlite", ".db"), ("sqlite", ".tkb")),
        *(("postgres", ".dump"), ("postgres", ".tkb"), ("redis", ".tkb")),
    ],
)
def test_while_writers_run(
    store: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_STEP_PAGES", 8)  # so that they write in the middle of a copy
    folder, other = tmp_path / "store", tmp_path / "restored"
    for each in (folder, other):
        each.mkdir()
    url = url_of(store, folder)
    file = tmp_path / f"backup{suffix}"
    with Writers(lambda: open_backend(store, folder)) as writers:
        writers.let_each_put(30)
        # (pg_dump does not say how far it is; it takes longer than a put)
        back_up(url, file, lambda *_: writers.let_each_put())
        writers.let_each_put()
    if suffix == ".dump":
        restore(file, url, replace=True)
        with open_saver(url) as saver:
            existed(saver)
        return
    target = f"sqlite:///{other / 'threads.db'}"
    restore(file, target)
    with open_saver(target) as saver:
        existed(saver)
