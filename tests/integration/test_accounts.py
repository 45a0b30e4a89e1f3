"""`threads.delete_account`: everything of a user, in one call that may be repeated."""

from pathlib import Path
from typing import Any

import pytest
from kit.engine import Chain

from threadkeep import NodeCache, Saver, SqliteSaver
from threadkeep._core.engine.model import FindThreads
from threadkeep._core.engine.operation import fetch
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep.errors import ConflictError, InvalidArgumentError, UnfinishedErasureError
from threadkeep.sessions import CheckpointManager
from threadkeep.store import Store

U1 = {"user_id": "u1"}
KEY = (("node",), "key")


def save(saver: Any, thread: str, user: str) -> None:
    Chain(saver, thread).put(text="x" * 1000)
    saver.threads.update(thread, metadata={"user_id": user})


def stored(saver: Any) -> list[str]:
    """The names of all threads with rows, hidden ones included."""
    names: list[str] = saver._store.run(fetch(FindThreads(None, 100)))
    return sorted(names)


async def test_a_user_is_erased_everywhere(saver: Any) -> None:
    for thread, user in (("a", "u1"), ("b", "u1"), ("c", "u2")):
        save(saver, thread, user)
    saver.threads.fork("a", new_thread_id="fork")
    saver.threads.update("fork", metadata={"user_id": "u3"})
    with saver.streaming("b", max_bytes=1) as stream:
        stream.update("partial")
    CheckpointManager(saver).create_checkpoint("session", "flow", {"step": 1}, U1)
    items, cache = Store(saver.backend), NodeCache(saver.backend)
    for namespace in (("users", "u1"), ("users", "u1", "deep"), ("users", "u2")):
        items.put(namespace, "key", {"value": 1})
    cache.set({KEY: (1, None)})
    has_database = not saver.backend.instant
    asked: Any = {"thread_ids": ["session", "absent"], "namespaces": [("users", "u1")]}
    before = stored(saver)
    dry = saver.threads.delete_account(U1, **asked, dry_run=True)
    assert stored(saver) == before
    done = await saver.threads.adelete_account(U1, **asked)
    assert [one.thread for one in done.threads] == ["fork", "session", "a", "b"]
    assert done.threads == dry.threads
    assert done.ok
    assert stored(saver) == ["c"]
    assert saver.threads.get("absent") is None
    if has_database:
        assert done.items == dry.items == ((("users", "u1"), 2),)
        assert done.results == dry.results == 1
        assert [one.namespace for one in items.search(())] == [("users", "u2")]
        assert cache.get([KEY]) == {}
    else:
        assert "call erase of each Store" in done.remains[0]
    again = saver.threads.delete_account(U1, **asked)
    assert [(one.thread, one.bytes) for one in again.threads] == [("session", 0)]
    assert saver.check().ok


def test_a_tenant_erases_its_own_alone(ours: Any) -> None:
    items, cache = Store(ours.backend), NodeCache(ours.backend)
    for tenant in ("acme", "other"):
        save(ours.for_tenant(tenant), "a", "u1")
        items.for_tenant(tenant).put(("users", "u1"), "key", {"value": 1})
        cache.for_tenant(tenant).set({KEY: (1, None)})
    done = ours.for_tenant("acme").threads.delete_account(U1, namespaces=[("users", "u1")])
    assert ([one.thread for one in done.threads], done.items[0][1], done.results) == (["a"], 1, 1)
    assert stored(ours) == ["threadkeep@tenant other a"]
    assert items.for_tenant("other").get(("users", "u1"), "key") is not None
    assert cache.for_tenant("other").get([KEY]) == {KEY: 1}


def test_threads_that_runs_make_meanwhile_are_found(ours: Any) -> None:
    save(ours, "a", "u1")

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "threads erased" and ours.threads.get("late") is None:
            save(ours, "late", "u1")

    done = ours.threads.delete_account(U1, progress=progress)
    assert [one.thread for one in done.threads] == ["a", "late"]
    assert stored(ours) == []


@pytest.mark.parametrize("call", ["erase", "delete_account"])
def test_a_repeated_call_clears_the_archives_of_removed_threads(
    tmp_path: Path, cold: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed thread has no metadata: the store records the names until the end."""
    with SqliteSaver(tmp_path / "threads.db", cold=cold.as_uri()) as saver:
        for thread in ("a", "b"):
            save(saver, thread, "u1")
            saver.threads.archive(thread)
        save(saver, "c", "u2")
        erase = getattr(saver.threads, call)

        def killed(self: Any, folder: str) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(type(saver._store.cold), "clear", killed)
            with pytest.raises(KeyboardInterrupt):
                erase(metadata=U1)
        assert saver.threads.get("a").state == "deleted"
        assert [one for one in cold.rglob("*") if one.is_file()]
        erase(metadata=U1)
        assert [one for one in cold.rglob("*") if one.is_file()] == []
        assert stored(saver) == ["c"]


def test_the_error_has_the_report_of_all_that_was_removed() -> None:
    class Broken(MemoryBackend):
        def scrub(self, *, rewrite: bool) -> Any:
            raise ConflictError

    saver = Saver(Broken())
    save(saver, "a", "u1")
    with pytest.raises(UnfinishedErasureError) as caught:
        saver.threads.delete_account(U1)
    assert caught.value.report.results == 0
    assert [one.thread for one in caught.value.report.threads] == ["a"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"metadata": {}},
        {"metadata": U1, "namespaces": ("users", "u1")},
        {"metadata": U1, "namespaces": [()]},
        {"metadata": U1, "thread_ids": "a"},
        {"metadata": U1, "forks": None},
    ],
)
def test_refused_arguments(ours: Any, arguments: dict[str, Any]) -> None:
    save(ours, "a", "u1")
    with pytest.raises(InvalidArgumentError):
        ours.threads.delete_account(**arguments)
    assert stored(ours) == ["a"]
