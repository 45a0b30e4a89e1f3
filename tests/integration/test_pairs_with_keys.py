"""Encryption and tenants beside each other capability: the same results, and no text in files.

Each pair stores a marked text. Nothing that a store leaves in its folder shows it: rows, logs,
archives, bundles, quarantine files, backups.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import pytest
import zstandard
from kit.backends import SHARED, open_backend
from kit.places import at
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph, add_messages
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from threadkeep import (
    KeyRing,
    NodeCache,
    Retention,
    Store,
    open_saver,
)
from threadkeep._core.engine.operation import no_progress
from threadkeep.memory import LayeredCheckpointSaver, Layers
from threadkeep.savers import backup
from threadkeep.sessions import CheckpointManager

MARK = "xylophone"
ZSTD = b"\x28\xb5\x2f\xfd"
TEXT = f"{MARK} and more words " * 20


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


def graph(saver: Any, *, asks: bool = False, **options: Any) -> Any:
    def node(state: Any) -> Any:
        return {"messages": [AIMessage(interrupt(TEXT) if asks else f"answer: {TEXT}")]}

    built = StateGraph(State).add_node(MARK, node).add_edge(START, MARK)
    return built.compile(checkpointer=saver, **options)


def turn(saver: Any, thread: str = "t", text: str = TEXT) -> None:
    graph(saver).invoke({"messages": [HumanMessage(text)]}, at(thread))


def texts(saver: Any, thread: str = "t") -> list[str]:
    found = saver.get_tuple(at(thread))
    return [one.content for one in found.checkpoint["channel_values"]["messages"]]


ANSWERED = [TEXT, f"answer: {TEXT}"]

# -- capabilities ------------------------------------------------------------------------


def runs(saver: Any, folder: Path) -> None:
    for _ in range(3):
        turn(saver)
    assert texts(saver) == ANSWERED * 3
    assert len(list(saver.list(at("t"), filter={"source": "loop"}))) == 6


async def async_runs(saver: Any, folder: Path) -> None:
    async def one(number: int) -> None:
        await graph(saver).ainvoke({"messages": [HumanMessage(TEXT)]}, at(f"t{number}"))

    await asyncio.gather(*[one(number) for number in range(8)])
    assert texts(saver, "t7") == ANSWERED


def interrupts(saver: Any, folder: Path) -> None:
    graph(saver, asks=True).invoke({"messages": [HumanMessage(TEXT)]}, at("t"))
    (waiting,) = saver.threads.search(status="waiting").threads
    assert waiting.id == "t"
    saver.threads.gc(Retention(keep_last=1))
    graph(saver, asks=True).invoke(Command(resume=f"{MARK}!"), at("t"))
    assert texts(saver) == [TEXT, f"{MARK}!"]


def labels(saver: Any, folder: Path) -> None:
    turn(saver)
    saver.threads.update("t", metadata={"user": MARK, "n": 1})
    saver.threads.tag("t", MARK)
    checkpoint = next(saver.list(at("t"))).config["configurable"]["checkpoint_id"]
    saver.threads.tag("t", f"{MARK} of one", checkpoint_id=checkpoint)
    for found in (
        saver.threads.search(metadata={"user": MARK}),
        saver.threads.search(tags=[MARK]),
    ):
        assert [one.id for one in found.threads] == ["t"]
    assert saver.threads.count(metadata={"user": "other"}) == 0
    (mark,) = saver.threads.get("t").marks
    assert mark.tags == (f"{MARK} of one",)


def forks(saver: Any, folder: Path) -> None:
    turn(saver)
    saver.threads.fork("t", new_thread_id="fork")
    turn(saver, "fork")
    saver.copy_thread("fork", "copy")
    turn(saver)
    assert [len(texts(saver, name)) for name in ("t", "fork", "copy")] == [4, 4, 4]
    saver.delete_thread("t")
    assert len(texts(saver, "fork")) == len(texts(saver, "copy")) == 4


def merges(saver: Any, folder: Path) -> None:
    turn(saver)
    saver.threads.fork("t", new_thread_id="fork")
    turn(saver, "fork", f"more {TEXT}")
    assert saver.threads.merge_fork("fork", "t").channels == ("messages",)
    assert len(texts(saver)) == 4


def retention(saver: Any, folder: Path) -> None:
    for _ in range(6):
        turn(saver)
    saver.threads.fork("t", new_thread_id="fork")
    assert saver.threads.gc(Retention(keep_last=2)).checkpoints > 0
    saver.prune(["fork"])
    assert len(texts(saver)) == len(texts(saver, "fork")) == 12


def erasure(saver: Any, folder: Path) -> None:
    turn(saver)
    turn(saver, "other")
    saver.threads.update("t", metadata={"user": MARK})
    report = saver.threads.erase(metadata={"user": MARK})
    assert ([one.thread for one in report.threads], report.ok) == (["t"], True)
    assert (saver.get_tuple(at("t")), texts(saver, "other")) == (None, ANSWERED)


def archives(saver: Any, folder: Path) -> None:
    turn(saver)
    saver.threads.tag("t", MARK)
    saver.threads.archive("t")
    assert saver.threads.get("t").state == "archived"
    assert texts(saver) == ANSWERED  # brings it back
    saver.threads.offload("t", over=1024)
    turn(saver)
    assert texts(saver) == ANSWERED * 2
    assert saver.threads.get("t").tags == (MARK,)


def bundles(saver: Any, folder: Path) -> None:
    turn(saver)
    saver.threads.tag("t", MARK)
    saver.threads.export_bundle(None, folder / "t.tkb")
    saver.delete_thread("t")
    saver.threads.import_bundle(folder / "t.tkb", replace=True)
    assert (texts(saver), saver.threads.get("t").tags) == (ANSWERED, (MARK,))


def mirrors(saver: Any, folder: Path) -> None:
    turn(saver)
    with open_saver(f"sqlite:///{folder / 'mirror.db'}", keys=KeyRing.generate()) as other:
        saver.threads.mirror(other)
        turn(saver)
        saver.threads.mirror(other)
        assert texts(other) == ANSWERED * 2


def adopts(saver: Any, folder: Path) -> None:
    theirs = InMemorySaver()
    turn(theirs)
    saver.threads.adopt(theirs)
    assert texts(saver) == ANSWERED


def checks(saver: Any, folder: Path) -> None:
    turn(saver)
    saver.put_writes(saver.get_tuple(at("t")).config, [("messages", [TEXT])], "task")
    assert saver.check().ok
    saver.threads.repair(dry_run=True)
    assert saver.stats(exact=True).threads == 1
    head = next(saver.list(at("t"))).config["configurable"]["checkpoint_id"]
    assert saver.threads.diff("t", head)


def partial_output(saver: Any, folder: Path) -> None:
    with saver.streaming("t", interval=0.01) as stream:
        stream.update(TEXT)
        stream.update(TEXT)
    turn(saver)
    assert texts(saver) == ANSWERED


def layers(saver: Any, folder: Path) -> None:
    def told(messages: list[Any], before: str) -> str:
        return f"summary of {MARK}"

    limits = Layers(full_window=2, summary_window=4, batch=1)
    layered = LayeredCheckpointSaver(saver, limits, summarizer=told)
    messages: list[Any] = []
    for number in range(8):
        messages = [*layered.load("t"), HumanMessage(f"{number} {TEXT}", id=f"m{number}")]
        layered.save("t", messages)
    assert layered.search_messages("t", query=MARK)
    assert len(layered.layers("t")) > 1
    assert layered.load("t")[-1].id == "m7"
    layered.erase("t")
    assert layered.load("t") == []


def sessions(saver: Any, folder: Path) -> None:
    manager = CheckpointManager(saver)
    made = manager.create_checkpoint("s", "w", {"text": TEXT})
    assert manager.get_latest_checkpoint("s").state_data == {"text": TEXT}
    assert [one.id for one in manager.list_checkpoints("s")] == [made]


def shapes(saver: Any, folder: Path) -> None:
    turn(saver)
    assert saver.raw(at("t")).checkpoint["channel_values"]["messages"]


def parts(saver: Any, folder: Path) -> None:
    turn(saver)
    for found in saver.list(at("t"), values="lazy"):
        found.checkpoint["channel_values"].get("messages")
    assert saver.get_tuple(at("t"), channels=["messages"]).checkpoint["channel_values"]["messages"]


def many(saver: Any, folder: Path) -> None:
    turn(saver)
    head = saver.get_tuple(at("t"))
    later = {**head.checkpoint, "id": "2f"}
    saver.put_many([(head.config, later, head.metadata, {})])
    saver.delete_checkpoints("t", ["2f"])
    assert texts(saver) == ANSWERED


CAPABILITIES: dict[str, Callable[[Any, Path], Any]] = {
    one.__name__: one
    for one in (
        *(runs, async_runs, interrupts, labels, forks, merges, retention, erasure, archives),
        *(bundles, mirrors, adopts, checks, partial_output, layers, sessions, shapes, parts, many),
    )
}
OPTIONS: dict[str, dict[str, Any]] = {
    "searchable": {"searchable": ["user"]},
    "padding": {"padding": 4096},
}
MODES: dict[str, tuple[bool, str]] = {
    "keys": (False, ""),
    "tenant": (False, "acme"),
    "tenant with a random key": (True, "acme"),
    "thread keys": (True, ""),
}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(store: str, mode: str, folder: Path, **options: Any) -> Iterator[tuple[Any, Any]]:
    has_store, tenant = MODES[mode]
    if has_store:
        options["key_store"] = f"sqlite:///{folder / 'keys.db'}"
        options["thread_keys"] = mode == "thread keys"
    options = {"keys": KeyRing.generate(), "cold": (folder / "cold").as_uri(), **options}
    with open_backend(store, folder, **options) as whole:
        yield whole, whole.for_tenant(tenant) if tenant else whole


def is_shown(folder: Path) -> list[str]:
    """The files in which the marked text can be read, also where it is compressed."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return [file.name for file in files if any(MARK.encode() in it for it in _read(file))]


def _read(file: Path) -> Iterator[bytes]:
    data = file.read_bytes()
    yield data
    start = data.find(ZSTD)
    while start >= 0:
        with suppress(zstandard.ZstdError):
            yield zstandard.ZstdDecompressor().stream_reader(data[start:]).read(1 << 20)
        start = data.find(ZSTD, start + 1)


async def _done(result: Any) -> None:
    if result is not None:
        await result


@pytest.mark.parametrize("store", SHARED)
@pytest.mark.parametrize("capability", CAPABILITIES)
async def test_pair(capability: str, mode: str, store: str, tmp_path: Path) -> None:
    for whole, saver in opened(store, mode, tmp_path):
        if whole is not saver:  # a neighbour with the same names
            for other in (whole, whole.for_tenant("other")):
                await asyncio.to_thread(turn, other, "t", f"of another {TEXT}")
        result = CAPABILITIES[capability](saver, tmp_path)
        await _done(result)
        if whole is not saver:
            assert texts(whole)[0] == texts(whole.for_tenant("other"))[0] == f"of another {TEXT}"
        assert whole.check().ok
        assert is_shown(tmp_path) == []
    assert is_shown(tmp_path) == []


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("capability", ["runs", "interrupts", "forks", "archives"])
def test_pair_with_an_option(capability: str, option: str, mode: str, tmp_path: Path) -> None:
    for whole, saver in opened("sqlite", mode, tmp_path, **OPTIONS[option]):
        CAPABILITIES[capability](saver, tmp_path)
        assert whole.check().ok
    assert is_shown(tmp_path) == []


@pytest.mark.parametrize("store", SHARED)
def test_items_and_results(mode: str, store: str, tmp_path: Path) -> None:
    for whole, saver in opened(store, mode, tmp_path):
        items, results = Store(whole.backend, history=2), NodeCache(whole.backend)
        if whole is not saver:
            items, results = items.for_tenant("acme"), results.for_tenant("acme")
        for number in range(3):
            items.put(("users",), "k", {"text": f"{number} {TEXT}"}, ttl=None)
        assert items.search(("users",), filter={"text": f"2 {TEXT}"})[0].key == "k"
        assert len(items.versions(("users",), "k")) == 3
        results.set({((("node",)), "key"): (TEXT, None)})
        assert results.get([(("node",), "key")]) == {(("node",), "key"): TEXT}
        whole.rotate_keys()
        assert items.get(("users",), "k").value["text"] == f"2 {TEXT}"
    assert is_shown(tmp_path) == []


@pytest.mark.drawn(3)
@pytest.mark.parametrize("end", [".db", ".tkb"])
def test_backups(mode: str, end: str, tmp_path: Path) -> None:
    file, copy = tmp_path / f"copy{end}", tmp_path / "restored.db"
    for whole, saver in opened("sqlite", mode, tmp_path):
        turn(saver)
        saver.threads.tag("t", MARK)
        keys = whole.backend.keys
        ring: Any = {"keys": keys.ring}
        if MODES[mode][0]:
            ring |= {"key_store": f"sqlite:///{tmp_path / 'keys.db'}"}
        backup.back_up(f"sqlite:///{tmp_path / 'threads.db'}", file, no_progress, keys=ring)
        backup.restore(file, f"sqlite:///{copy}", no_progress, keys=ring)
        with open_saver(f"sqlite:///{copy}", **ring) as restored:
            tenant = MODES[mode][1]
            view = restored.for_tenant(tenant) if tenant else restored
            assert (texts(view), view.threads.get("t").tags) == (ANSWERED, (MARK,))
    assert is_shown(tmp_path) == []
