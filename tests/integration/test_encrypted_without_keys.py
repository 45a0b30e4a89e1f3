"""A program without keys changes nothing in an encrypted store, and copies nothing out of it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.backends import SHARED, open_backend, url_of
from kit.cli import threadkeep
from kit.places import at
from langgraph.checkpoint.base import empty_checkpoint

from threadkeep import (
    KeyRing,
    MemorySaver,
    NodeCache,
    Saver,
    Store,
    open_all,
)
from threadkeep._core import tenants
from threadkeep._core.engine.model import FindThreads
from threadkeep._core.engine.operation import no_progress
from threadkeep.errors import WrongKeyError
from threadkeep.savers import backup

RING = KeyRing([b"k" * 32])
KEY = (("a",), "k")
REFUSED = "are encrypted, and no keys were given"


def arguments(thread: str) -> Any:
    config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    point = empty_checkpoint()
    point["channel_values"], point["channel_versions"] = {"a": [thread]}, {"a": 1}
    return config, point, {"source": "loop", "step": 1, "parents": {}}, {"a": 1}


def fill(store: str, folder: Path) -> Any:
    """Make an encrypted store; return the config of its thread's checkpoint."""
    with open_backend(store, folder, keys=RING) as saver:
        config = saver.put(*arguments("t"))
        saver.threads.tag("t", "before")
        saver.for_tenant("acme").put(*arguments("t"))
    return config


def contents(store: str, folder: Path) -> Any:
    with open_backend(store, folder, keys=RING) as saver:
        entries = {one.id: one.tags for one in saver.threads.scan()}
        return entries, [*saver.list(None)]


def changes(saver: Any, config: Any) -> dict[str, Callable[[], Any]]:
    own, threads = saver.for_tenant("acme"), saver.threads
    items = Store(saver.backend)
    return {
        "put": lambda: saver.put(*arguments("new")),
        "put_many": lambda: saver.put_many([arguments("new")]),
        "put_writes": lambda: saver.put_writes(config, [("a", 1)], "task"),
        "tag": lambda: threads.tag("t", "after"),
        "fork": lambda: threads.fork("t", new_thread_id="fork"),
        "copy": lambda: saver.copy_thread("t", "copy"),
        "delete": lambda: saver.delete_thread("t"),
        "tenant's put": lambda: own.put(*arguments("new")),
        "tenant's tag": lambda: own.threads.tag("t", "after"),
        "item": lambda: items.put(("a",), "k", {"a": 1}),
        "tenant's item": lambda: items.for_tenant("acme").put(("a",), "k", {"a": 1}),
    }


@pytest.mark.parametrize("store", SHARED)
def test_changes_are_refused(store: str, tmp_path: Path) -> None:
    config = fill(store, tmp_path)
    before = contents(store, tmp_path)
    with open_backend(store, tmp_path) as plain:
        for change in changes(plain, config).values():
            with pytest.raises(WrongKeyError, match=REFUSED) as refused:
                change()
        assert "TK_KEYS" in refused.value.hint
        NodeCache(plain.backend).set({KEY: (1, None)})  # (a failure is logged, as all of a cache)
        for file in ("all.tkb", "own.tkb"):
            source = plain if file == "all.tkb" else plain.for_tenant("acme")
            with pytest.raises(WrongKeyError, match=REFUSED):
                source.threads.export_bundle(None, tmp_path / file, plain=file == "own.tkb")
        with MemorySaver() as other, pytest.raises(WrongKeyError, match=REFUSED):
            plain.threads.mirror(other)
    url = url_of(store, tmp_path)
    with pytest.raises(WrongKeyError, match=REFUSED):
        backup.back_up(url, tmp_path / "all.tkb", no_progress, form="bundle")
    assert not [*tmp_path.glob("*.tkb")]
    assert contents(store, tmp_path) == before
    with open_all(url, keys=RING) as (saver, items, cache):
        assert (items.search(()), cache.get([KEY]), saver.check().ok) == ([], {}, True)


@pytest.mark.parametrize("store", SHARED)
async def test_awaited_changes_are_refused(store: str, tmp_path: Path) -> None:
    config = fill(store, tmp_path)
    async with open_backend(store, tmp_path) as plain:
        for saver in (plain, plain.for_tenant("acme")):
            with pytest.raises(WrongKeyError, match=REFUSED):
                await saver.aput(*arguments("new"))
            with pytest.raises(WrongKeyError, match=REFUSED):
                await saver.aput_writes(config, [("a", 1)], "task")
            with pytest.raises(WrongKeyError, match=REFUSED):
                await saver.threads.afork("t")
            with pytest.raises(WrongKeyError, match=REFUSED):
                await saver.threads.aexport_bundle(None, tmp_path / "all.tkb")
        async with Store(plain.backend) as items:
            with pytest.raises(WrongKeyError, match=REFUSED):
                await items.aput(("a",), "k", {"a": 1})
        assert await plain.aget_tuple(at("new")) is None


def test_a_native_backup_needs_no_keys(tmp_path: Path) -> None:
    fill("sqlite", tmp_path)
    before, file = contents("sqlite", tmp_path), tmp_path / "native.db"
    url = url_of("sqlite", tmp_path)
    backup.back_up(url, file, no_progress)
    with open_backend("sqlite", tmp_path, keys=RING) as saver:
        saver.delete_thread("t")
    for keys in (None, {"keys": KeyRing.generate()}):
        with pytest.raises(WrongKeyError):
            backup.restore(file, url, no_progress, replace=True, keys=keys)
    backup.restore(file, url, no_progress, replace=True, keys={"keys": RING})
    assert contents("sqlite", tmp_path) == before


def test_the_command_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill("sqlite", tmp_path)
    url = url_of("sqlite", tmp_path)
    monkeypatch.delenv("TK_KEYS", raising=False)
    for command in (
        ["tag", url, "t", "after"],
        ["tag", url, "t", "after", "--tenant", "acme"],
        ["fork", url, "t"],
        ["delete", url, "t", "--yes"],
        ["export", url, "t", f"{tmp_path / 'all.tkb'}"],
        ["backup", url, f"{tmp_path / 'all.tkb'}"],
    ):
        code, _, errors = threadkeep(*command)
        assert REFUSED in "\n".join(errors), (command, code, errors)
        assert code == 2
    assert not (tmp_path / "all.tkb").exists()


class _Counted:
    """A backend's `fetch` that counts the reads of the record."""

    def __init__(self, backend: Any) -> None:
        self.count = 0
        self._fetch, backend.fetch = backend.fetch, self

    def __call__(self, reads: Any) -> Any:
        self.count += FindThreads(None, 1, empty=True, prefix=tenants.STORE) in reads
        return self._fetch(reads)


def test_an_open_store_is_looked_at_once(tmp_path: Path) -> None:
    with open_backend("sqlite", tmp_path) as saver:
        counted = _Counted(saver.backend)
        saver.get_tuple(at("t"))
        assert counted.count == 0
        for thread in "abc":
            saver.put(*arguments(thread))
            saver.for_tenant("acme").put(*arguments(thread))
            saver.threads.tag(thread, "x")
        assert counted.count == 1
        items = Store(saver.backend)
        for key in "abc":
            items.put(("a",), key, {"a": 1})
            items.for_tenant("acme").put(("a",), key, {"a": 1})
        assert counted.count == 2


async def test_of_many_first_changes_one_looks(tmp_path: Path) -> None:
    async with open_backend("sqlite", tmp_path) as saver:
        counted = _Counted(saver.backend)
        await asyncio.gather(*[saver.aput(*arguments(f"t{number}")) for number in range(50)])
        assert counted.count == 1


def test_a_refused_program_is_refused_again(tmp_path: Path) -> None:
    fill("sqlite", tmp_path)
    with open_backend("sqlite", tmp_path) as plain:
        for _ in range(2):
            with pytest.raises(WrongKeyError, match=REFUSED):
                plain.put(*arguments("new"))
        with Saver(plain.backend, keys=RING) as saver:  # (over the same connections)
            assert saver.put(*arguments("new"))
