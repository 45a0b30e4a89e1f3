"""Archived threads on every store: any call that needs one brings it back unchanged."""

import logging
import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from kit.backends import open_backend, url_of
from kit.engine import Passing
from kit.rows import checkpoint, metadata
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from threadkeep import Retention, open_saver
from threadkeep._core.engine import registration
from threadkeep._core.engine.model import Batch, CopyThread, DropThread
from threadkeep._core.engine.operation import commit, fetch
from threadkeep._core.engine.thread_entry import ReadEntry
from threadkeep._stores.cold_store import ColdStore
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.errors import (
    BackendError,
    ConflictError,
    CorruptionError,
    InvalidArgumentError,
    OpenError,
    StateError,
    ThreadArchivedError,
    ThreadExistsError,
    ThreadNotFoundError,
    UnreachableError,
)
from threadkeep.savers import backup
from threadkeep.savers.saver import Saver
from threadkeep.threads.archives import archive

from .test_thread_status import fails, played, sends

T: Any = {"configurable": {"thread_id": "t"}}


class Chat(TypedDict):
    said: Annotated[list[str], operator.add]


def _answer(state: Any) -> dict[str, Any]:
    said = state["said"][-1]
    return {"said": [f"{said}: {interrupt('well?')}" if said.endswith("?") else f"re {said}"]}


class Inner(TypedDict):
    count: Annotated[int, operator.add]


def chat(saver: Any) -> Any:
    """Each turn is counted in a subgraph with checkpoints of its own."""
    inner = StateGraph(Inner).add_node("inner", lambda _: {"count": 1}).add_edge(START, "inner")
    counting = inner.compile(checkpointer=True)

    def count(_: Any) -> dict[str, Any]:
        return {"said": [str(counting.invoke({"count": 0})["count"])]}

    builder = StateGraph(Chat).add_sequence([("answer", _answer), ("sub", count)])
    return builder.add_edge(START, "answer").compile(checkpointer=saver)


def say(saver: Any, text: str, thread: str = "t") -> None:
    chat(saver).invoke({"said": [text]}, {"configurable": {"thread_id": thread}})


def shown(saver: Any, thread: str = "t") -> list[Any]:
    """Everything that a program can read of a thread."""
    return [
        (one.config, one.checkpoint, one.metadata, one.parent_config, one.pending_writes)
        for one in saver.list({"configurable": {"thread_id": thread}})
    ]


def state_of(saver: Any, thread: str = "t") -> str:
    found = saver.threads.get(thread)
    assert found is not None
    return str(found.state)


@pytest.fixture
def saver_options(cold: Path) -> dict[str, Any]:
    return {"cold": cold.as_uri()}


def archives(cold: Path) -> list[Path]:
    return [*cold.rglob("*.tkb")]


# -- there and back --------------------------------------------------------------------


def test_a_thread_goes_and_comes_back_as_it_was(saver: Any, cold: Path) -> None:
    say(saver, "one")
    say(saver, "two?")
    saver.threads.tag("t", "kept")
    saver.threads.pin("t", checkpoint_id=saver.get_tuple(T).checkpoint["id"])
    before, known = shown(saver), saver.threads.get("t")
    gone = saver.threads.archive("t")
    (file,) = archives(cold)
    assert (gone.state, gone.bytes, gone.archived_bytes) == ("archived", 0, file.stat().st_size)
    assert saver.stats().checkpoints == 0
    assert shown(saver) == before
    assert saver.threads.get("t") == known
    assert saver.check().ok
    saver.delete_thread("t")
    assert archives(cold) == []


def test_what_stays_is_found(saver: Any) -> None:
    say(saver, "really?")
    saver.threads.update("t", metadata={"user": 7})
    say(saver, "other", "u")
    saver.threads.archive("t")
    for filters in ({"state": "archived"}, {"metadata": {"user": 7}}, {"status": "waiting"}):
        (found,) = saver.threads.search(**filters).threads
        assert (found.id, found.state, found.status) == ("t", "archived", "waiting")
    saver.threads.tag("t", "later")
    assert state_of(saver) == "archived"
    back = saver.threads.restore("t")
    assert (back.state, back.status) == ("active", "waiting")
    assert (back.tags, back.metadata) == (("later",), {"user": 7})
    chat(saver).invoke(Command(resume="yes"), T)
    assert "really?: yes" in saver.get_tuple(T).checkpoint["channel_values"]["said"]


def test_a_failure_stays_known(saver: Any) -> None:
    """Also the node, which the rows of a sent task do not name."""
    played(sends(fails)(saver), T)
    head = saver.get_tuple(T).checkpoint["id"]
    expected = ("failed", head, "work")

    def known(found: Any) -> Any:
        return found.status, found.status_checkpoint, found.failed_node

    assert known(saver.threads.get("t")) == expected
    saver.threads.gc(Retention(keep_last=1))
    assert len([*saver.list(T)]) == 1
    assert known(saver.threads.get("t")) == expected
    assert known(saver.threads.archive("t")) == expected
    (found,) = saver.threads.search(status="failed", failed_node="work").threads
    assert (found.id, found.state) == ("t", "archived")
    assert known(saver.threads.restore("t")) == expected
    assert known(saver.threads.fork("t", new_thread_id="fork")) == expected
    assert saver.check().notes == ()


def _put(saver: Any, place: Any) -> None:
    made = checkpoint({"said": ["put"]}, said=99)
    saver.put(place, made, metadata(), made["channel_versions"])


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "get_tuple": lambda saver, at: saver.get_tuple(at),
    "list": lambda saver, at: [*saver.list(T, limit=1)],
    "put": _put,
    "put_writes": lambda saver, at: saver.put_writes(at, [("said", ["late"])], "task"),
    "history": lambda saver, at: saver.get_delta_channel_history(config=at, channels=["said"]),
    "copy": lambda saver, at: saver.copy_thread("t", "copy"),
    "fork": lambda saver, at: saver.threads.fork("t", new_thread_id="fork"),
    "prune": lambda saver, at: saver.prune(["t"]),
    "branches": lambda saver, at: saver.threads.branches("t"),
    "versions": lambda saver, at: saver.threads.versions("t", "said"),
}


@pytest.mark.parametrize("call", CALLS)
def test_each_call_finds_what_it_would_have_found(
    saver: Any, call: str, tmp_path: Path, cold: Path, request: pytest.FixtureRequest
) -> None:
    say(saver, "one")
    place = saver.get_tuple(T).config
    saver.copy_thread("t", "u")  # the same, never archived
    there = {"configurable": {**place["configurable"], "thread_id": "u"}}
    saver.threads.archive("t")
    CALLS[call](saver, place)
    if call == "put":
        _put(saver, there)
    elif call == "put_writes":
        saver.put_writes(there, [("said", ["late"])], "task")
    elif call == "prune":
        saver.prune(["u"])
    assert state_of(saver) == "active"
    assert (saver.threads.get("t").status is None) == (saver.threads.get("u").status is None)
    assert [len(one[4] or ()) for one in shown(saver)] == [
        len(one[4] or ()) for one in shown(saver, "u")
    ]
    assert [one[1]["channel_values"] for one in shown(saver)] == [
        one[1]["channel_values"] for one in shown(saver, "u")
    ]


def test_a_run_under_way_goes_on(saver: Any) -> None:
    """Archive a thread between a run's load and its first save."""
    say(saver, "one")
    graph = chat(saver)
    once, seen, archived = iter("1"), list[str](), threading.Event()

    def archive_once(*arguments: Any) -> Any:
        for _ in once:  # (saves come from several threads)
            seen.append(str(saver.threads.archive("t").state))
            archived.set()
        return put(*arguments)

    def write(*arguments: Any) -> None:  # (would restore the thread before `archive` returns)
        assert archived.wait(60)
        put_writes(*arguments)

    put, saver.put = saver.put, archive_once
    put_writes, saver.put_writes = saver.put_writes, write
    graph.invoke({"said": ["two"]}, T)
    del saver.put, saver.put_writes
    assert seen == ["archived"]
    assert saver.get_tuple(T).checkpoint["channel_values"]["said"] == [
        *("one", "re one", "1", "two", "re two", "2")
    ]
    assert saver.check().ok


def test_what_is_saved_meanwhile_goes_with_it(
    saver: Any, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(saver, "one")
    put, said = ColdStore.put, []

    def slow(store: ColdStore, key: str, data: bytes) -> None:
        put(store, key, data)
        if not said:
            said.append("two")
            say(saver, "two")

    monkeypatch.setattr(ColdStore, "put", slow)
    saver.threads.archive("t")
    assert len(archives(cold)) == 1  # the first attempt has removed its archive
    assert "two" in saver.get_tuple(T).checkpoint["channel_values"]["said"]


# -- forks -----------------------------------------------------------------------------


def test_forks_come_and_go_by_themselves(saver: Any) -> None:
    say(saver, "one")
    saver.threads.fork("t", new_thread_id="fork")
    say(saver, "two", "fork")
    before, others = shown(saver, "fork"), shown(saver)
    saver.threads.archive("fork")
    saver.threads.gc(Retention(keep_last=1))  # removes elements that only the fork needed
    say(saver, "three")
    assert shown(saver, "fork") == before
    saver.threads.archive("t")
    say(saver, "four", "fork")
    assert shown(saver)[-1] != others[-1]
    assert saver.check().ok


def test_a_fork_is_put_aside(saver: Any, cold: Path) -> None:
    say(saver, "one")
    for name in ("a", "b"):
        saver.threads.fork("t", new_thread_id=name)
    assert saver.threads.discard_fork("a").state == "archived"
    assert saver.threads.discard_fork("b", delete=True).state == "deleted"
    assert saver.threads.restore("a").forked_from[0] == "t"
    saver.threads.discard_fork("a", delete=True)
    with pytest.raises(StateError, match="not a fork"):
        saver.threads.discard_fork("t")
    assert saver.get_tuple(T) is not None
    assert archives(cold) == []


# -- data that moves with it, and data that stays ---------------------------------------


def test_collecting_leaves_archives_alone_until_they_are_due(saver: Any, cold: Path) -> None:
    say(saver, "one")
    saver.threads.archive("t")
    saver.threads.gc(Retention(keep_last=1, channels={"said": "latest"}))
    assert len(archives(cold)) == 1
    saver.threads.gc(Retention(ttl=0.000001))
    assert state_of(saver) == "deleted"
    assert archives(cold) == []


def test_looking_after_the_store_brings_nothing_back(saver: Any, tmp_path: Path) -> None:
    say(saver, "one")
    say(saver, "two", "u")
    saver.threads.archive("t")
    saver.check()
    saver.stats()
    assert saver.threads.export_bundle(None, tmp_path / "all.tkb").archived == ("t",)
    with open_saver("memory://") as other:
        done = saver.threads.mirror(other)
        assert (done.archived, done.added) == (["t"], ["u"])
        assert state_of(saver) == "archived"
        assert saver.threads.mirror(other, "t").added == ["t"]
        assert shown(other) == shown(saver)


@pytest.mark.parametrize("state", ["active", "forked"])
def test_an_archived_thread_in_another_state_is_put_right(
    saver: Any, state: str, tmp_path: Path
) -> None:
    say(saver, "one")
    before = shown(saver)
    saver.threads.archive("t")
    archived = saver._store.run(fetch(ReadEntry("t")))
    saver._store.run(commit(Batch("t", 0, entry=archived._replace(state=state))))
    (note,) = saver.check().notes
    assert (note.thread, note.kind) == ("t", "registry")
    done = saver.threads.repair(file=tmp_path / "out.tkq")
    assert (done.ok, done.file) == (True, None)
    found = saver._store.run(fetch(ReadEntry("t")))
    assert found._replace(revision=0) == archived._replace(revision=0)
    assert saver.check().notes == ()
    assert shown(saver) == before
    saver.delete_checkpoints(
        "t", [one.config["configurable"]["checkpoint_id"] for one in saver.list(T)], None
    )
    assert saver.check().notes == ()


def test_a_name_that_is_archived_is_not_free(saver: Any, tmp_path: Path) -> None:
    say(saver, "one")
    say(saver, "two", "u")
    saver.threads.export_bundle("u", tmp_path / "u.tkb")
    before = shown(saver)
    saver.threads.archive("t")
    for attempt in (
        lambda: saver.threads.create("t"),
        lambda: saver.threads.fork("u", new_thread_id="t"),
        lambda: saver.copy_thread("u", "t"),
        lambda: saver.threads.import_bundle(tmp_path / "u.tkb", "t"),
    ):
        with pytest.raises(ThreadExistsError):
            attempt()
    assert state_of(saver) == "archived"
    assert shown(saver) == before


def test_a_backup_keeps_what_says_where_it_is(ours: Any, tmp_path: Path, cold: Path) -> None:
    say(ours, "one")
    before = shown(ours)
    ours.threads.archive("t")
    backup.back_up(url_of("sqlite", tmp_path), tmp_path / "all.tkb", lambda *_: None)
    url = f"sqlite:///{tmp_path / 'again.db'}"
    backup.restore(tmp_path / "all.tkb", url, lambda *_: None)
    with open_saver(url) as other, pytest.raises(ThreadArchivedError):
        other.get_tuple(T)
    with open_saver(url, cold=cold.as_uri()) as other:
        assert shown(other) == before
    assert shown(ours) == before


def test_what_says_where_it_is_goes_nowhere_else(saver: Any, tmp_path: Path, cold: Path) -> None:
    say(saver, "one")
    saver.threads.archive("t")
    saver.threads.restore("t")
    with open_saver("memory://", cold=cold.as_uri()) as other:
        saver.threads.mirror(other)
        other.delete_thread("t")
    saver.copy_thread("t", "copy")
    saver.delete_thread("copy")
    assert len(archives(cold)) == 1


def test_an_archive_is_a_bundle_like_others(ours: Any, tmp_path: Path, cold: Path) -> None:
    say(ours, "one")
    before = shown(ours)
    ours.threads.archive("t")
    (file,) = archives(cold)
    bundle = file.read_bytes()
    with open_saver("memory://") as other:
        (tmp_path / "t.tkb").write_bytes(bundle)
        other.threads.import_bundle(tmp_path / "t.tkb")
        assert shown(other) == before
        assert state_of(other) == "active"


def test_erasing_leaves_nothing_there(saver: Any, cold: Path) -> None:
    for thread, text in (("t", "marker-one"), ("u", "other")):
        say(saver, text, thread)
        saver.threads.update(thread, metadata={"user": text})
        saver.threads.archive(thread)
    folder = next(file.parent for file in archives(cold) if file.stem in str(_entry(saver, "t")))
    (folder / "left.tkb").write_bytes(b"marker-one")  # as by a crash
    (would,) = saver.threads.erase(metadata={"user": "marker-one"}, dry_run=True).threads
    assert would.archived_bytes > 0
    assert len(archives(cold)) == 3
    report = saver.threads.erase(metadata={"user": "marker-one"})
    assert report.threads == (would,)
    assert "archives in the cold store" in report.cleared
    (rest,) = archives(cold)
    assert rest.stem in str(_entry(saver, "u"))
    assert (state_of(saver), state_of(saver, "u")) == ("deleted", "archived")


def _entry(saver: Any, thread: str) -> Any:
    return saver._store.run(registration.read(thread))


def test_what_cannot_be_reached_is_not_erased(tmp_path: Path, cold: Path) -> None:
    with open_backend("sqlite", tmp_path, cold=cold.as_uri()) as saver:
        say(saver, "one")
        saver.threads.archive("t")
    with open_backend("sqlite", tmp_path) as saver:
        with pytest.raises(ThreadArchivedError, match="Nothing was erased"):
            saver.threads.erase("t")
        assert state_of(saver) == "archived"


# -- refusals --------------------------------------------------------------------------


def test_without_the_cold_store_nobody_takes_it_for_empty(
    tmp_path: Path, cold: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_backend("sqlite", tmp_path, cold=cold.as_uri()) as saver:
        say(saver, "one")
        at = saver.get_tuple(T).config
        before = shown(saver)
        saver.threads.archive("t")
    with open_backend("sqlite", tmp_path) as saver:
        for call in ("get_tuple", "list", "put", "put_writes", "copy", "fork", "prune"):
            with pytest.raises(ThreadArchivedError, match="cold="):
                CALLS[call](saver, at)
        with pytest.raises(ThreadArchivedError):
            saver.threads.restore("t")
        with pytest.raises(InvalidArgumentError, match="cold="):
            saver.threads.archive("t")
        assert state_of(saver) == "archived"
    with open_backend("sqlite", tmp_path, cold=cold.as_uri()) as saver:
        assert shown(saver) == before
        saver.threads.archive("t")
    with open_backend("sqlite", tmp_path) as saver, caplog.at_level(logging.WARNING):
        saver.delete_thread("t")
        assert archives(cold)[0].parent.name in caplog.text


def test_a_damaged_archive_is_told_and_keeps_its_name(ours: Any, cold: Path) -> None:
    say(ours, "one")
    before = shown(ours)
    ours.threads.archive("t")
    (file,) = archives(cold)
    sound = file.read_bytes()
    for damaged in (sound[:-1], sound[:100] + b"?" + sound[101:], b""):
        file.write_bytes(damaged)
        with pytest.raises(CorruptionError, match="was changed or damaged"):
            ours.get_tuple(T)
    file.unlink()
    with pytest.raises(CorruptionError, match="has no object"):
        ours.get_tuple(T)
    assert state_of(ours) == "archived"
    file.write_bytes(sound)
    assert shown(ours) == before


def test_a_cold_store_that_loses_what_it_takes_gets_nothing(
    ours: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(ours, "one")
    before = shown(ours)
    monkeypatch.setattr(ColdStore, "get", lambda self, key: b"something else")
    with pytest.raises(CorruptionError, match="returned other bytes"):
        ours.threads.archive("t")
    assert shown(ours) == before
    assert state_of(ours) == "active"


def test_a_deletion_that_does_not_reach_the_archive_says_so(
    ours: Any, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: ColdStore, key: str) -> None:
        raise UnreachableError

    say(ours, "one")
    ours.threads.archive("t")
    with monkeypatch.context() as patched:
        patched.setattr(ColdStore, "delete", fails)
        with pytest.raises(BackendError, match="deleted, but its archive was not"):
            ours.delete_thread("t")
    assert state_of(ours) == "deleted"
    assert len(archives(cold)) == 1
    ours.threads.erase("t")
    assert archives(cold) == []


def test_an_archive_outlives_what_may_not_be_on_the_disk_yet(
    ours: Any, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The previous archive stays; older ones are removed after the grace period."""
    monkeypatch.setattr(archive, "GRACE", -3600)  # (an hour has passed)
    names = []
    for number in range(4):
        say(ours, str(number))
        ours.threads.archive("t")
        names.append(_entry(ours, "t").labels)
        assert len(archives(cold)) == min(number + 1, 2)
        ours.threads.restore("t")
    found = {file.stem for file in archives(cold)}
    assert all(any(one in str(label) for label in names[-2:]) for one in found)


# -- others who are faster -------------------------------------------------------------


class Between(Passing):
    """Store that runs a function before a request."""

    when: Callable[[Any], bool] = staticmethod(lambda _: False)
    what: Callable[[], Any]

    def meet(self, asked: Any, request: Callable[[], Any]) -> Any:
        if any(map(self.when, asked)):
            self.when = lambda _: False
            self.what()
        return request()


@contextmanager
def savers_beside(tmp_path: Path, cold: Path) -> Iterator[tuple[Any, Any, Between]]:
    """A saver on a store that can be interrupted, and another saver on the same store."""
    between = Between(SqliteBackend(tmp_path / "threads.db", synchronous="normal"))
    with (
        Saver(between, cold=cold.as_uri()) as one,
        open_backend("sqlite", tmp_path, cold=cold.as_uri()) as other,
    ):
        yield one, other, between


@pytest.fixture
def rivals(tmp_path: Path, cold: Path) -> Iterator[tuple[Any, Any, Between]]:
    with savers_beside(tmp_path, cold) as found:
        say(found[1], "one")
        yield found


def test_somebody_else_brings_it_back_first(rivals: Any) -> None:
    one, other, between = rivals
    before = shown(other)
    other.threads.archive("t")
    between.when, between.what = lambda asked: isinstance(asked, ReadEntry), lambda: shown(other)
    assert one.get_tuple(T) is not None
    assert shown(one) == before


def test_it_is_back_and_away_again_before_it_is_put_back(rivals: Any) -> None:
    one, other, between = rivals
    other.threads.archive("t")

    def back_and_away() -> None:
        say(other, "two")
        other.threads.archive("t")

    between.when = lambda asked: isinstance(asked, Batch) and bool(asked.segments)
    between.what = back_and_away
    assert "two" in one.get_tuple(T).checkpoint["channel_values"]["said"]
    assert state_of(one) == "active"


def test_two_who_archive_it(rivals: Any, cold: Path) -> None:
    one, other, between = rivals
    before = shown(other)
    between.when = lambda asked: isinstance(asked, DropThread)
    between.what = lambda: other.threads.archive("t")
    with pytest.raises(StateError):
        one.threads.archive("t")
    assert len(archives(cold)) == 1
    assert shown(one) == before


def test_it_goes_whenever_it_is_copied(rivals: Any) -> None:
    one, other, between = rivals
    tries = []

    def away() -> None:
        tries.append(other.threads.archive("t"))
        between.when = lambda asked: isinstance(asked, CopyThread)

    between.when, between.what = lambda asked: isinstance(asked, CopyThread), away
    with pytest.raises(ConflictError, match="Other writers"):
        one.copy_thread("t", "copy")
    assert len(tries) > 1
    assert one.threads.get("copy") is None


def test_it_is_in_use_again_when_its_time_is_over(rivals: Any) -> None:
    one, other, between = rivals
    other.threads.archive("t")
    later = one._engine.now() + 7200 * 1_000_000
    for saver in (one, other):
        saver._engine = saver._engine._replace(now=lambda: later)
    between.when = lambda asked: isinstance(asked, DropThread)
    between.what = lambda: say(other, "two")
    assert one.threads.gc(Retention(ttl=3600)).deleted == ()
    assert "two" in one.get_tuple(T).checkpoint["channel_values"]["said"]


def test_what_cannot_be_archived(ours: Any) -> None:
    with pytest.raises(ThreadNotFoundError):
        ours.threads.archive("nobody")
    ours.threads.create("new")
    with pytest.raises(StateError, match="created"):
        ours.threads.archive("new")
    say(ours, "one")
    with pytest.raises(StateError, match="not archived"):
        ours.threads.restore("t")
    ours.threads.archive("t")
    with pytest.raises(StateError, match="archived"):
        ours.threads.archive("t")
    ours.delete_thread("t")
    with pytest.raises(ThreadNotFoundError):
        ours.threads.archive("t")


@pytest.mark.parametrize("url", ["", "cold", "ftp://host/path", "file:///", "file://host/path"])
def test_what_is_no_cold_store(url: str) -> None:
    with pytest.raises(OpenError, match="cold store"):
        open_saver("memory://", cold=url)
