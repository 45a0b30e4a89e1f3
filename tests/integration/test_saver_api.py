"""The saver's methods, called as LangGraph and programs call them, and wrong calls too."""

import asyncio
import itertools
import json
from typing import Any

import pytest
from kit.canon import Canon
from kit.places import THREAD, at
from kit.rows import aput, checkpoint, metadata, place, put, value_at
from langgraph.checkpoint.base import get_checkpoint_metadata
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from threadkeep.errors import (
    ClosedError,
    InvalidArgumentError,
    InvalidConfigError,
    ThreadExistsError,
    ThreadkeepError,
)

# -- versions ------------------------------------------------------------------------


VERSIONS = (1, 2.5, "3", "00000000000000000000000000000004.0.5250943226263843")


def test_versions_of_any_kind_come_back_as_they_were(saver: Any) -> None:
    made = checkpoint(
        {f"c{n}": n for n in range(4)}, **{f"c{n}": v for n, v in enumerate(VERSIONS)}
    )
    made["versions_seen"] = {"node": {f"c{n}": v for n, v in enumerate(VERSIONS)}, "__input__": {}}
    found = saver.get_tuple(saver.put(place(), made, metadata(), made["channel_versions"]))
    assert found.checkpoint["channel_versions"] == made["channel_versions"]
    assert found.checkpoint["versions_seen"] == made["versions_seen"]
    assert [*map(type, found.checkpoint["channel_versions"].values())] == [*map(type, VERSIONS)]


# -- small things of the contract ----------------------------------------------------


async def test_get_gives_the_checkpoint_alone(saver: Any) -> None:
    assert saver.get(at()) is None
    assert await saver.aget(at()) is None
    config = await aput(saver, place(), {"value": 1})
    assert saver.get(at()) == await saver.aget(config) == saver.get_tuple(at()).checkpoint


async def test_setup_may_be_called_or_awaited_and_closing_is_final(saver: Any) -> None:
    saver.setup()
    await saver.setup()
    saver.close()
    await saver.aclose()
    for call in (saver.get_tuple, saver.delete_thread):
        with pytest.raises(ClosedError):
            call(at())
    with pytest.raises(ClosedError):
        await saver.aput_writes(place(checkpoint="c"), [("value", 1)], "task")


def test_one_saver_serves_both_apis_at_once(saver: Any) -> None:
    async def by_turns() -> None:
        config = place()
        for number in range(6):
            values = {"value": list(range(number))}
            if number % 2:
                config = put(saver, config, values, value=number)
            else:
                config = await aput(saver, config, values, value=number)
            assert saver.get_tuple(at()) == await saver.aget_tuple(at())
        assert list(saver.list(at())) == [t async for t in saver.alist(at())]

    asyncio.run(by_turns())
    asyncio.run(by_turns())


def test_a_channel_that_is_named_new_has_the_value_given(saver: Any) -> None:
    def play(tried: Any) -> Any:
        config = place()
        for value in ("old", "new"):
            made = checkpoint({"value": value})
            config = tried.put(config, made, metadata(), made["channel_versions"])
        return value_at(tried, config)

    assert play(InMemorySaver()) == play(saver) == "new"


def test_checkpoints_keep_every_key_of_theirs(saver: Any) -> None:
    made: Any = checkpoint({"value": 1})
    made |= {"v": 4, "updated_channels": ["value"], "pending_sends": [1, "two"], "new key": {3}}
    found = saver.get_tuple(saver.put(place(), made, metadata(), made["channel_versions"]))
    assert found.checkpoint == made
    made |= {"id": checkpoint()["id"], "updated_channels": None, "ts": "not a time"}
    found = saver.get_tuple(saver.put(place(), made, metadata(), made["channel_versions"]))
    assert found.checkpoint == made


# -- metadata ------------------------------------------------------------------------

METADATA = {
    "plain": {"source": "loop", "step": 3, "parents": {"": "an id"}, "run_id": "r"},
    "own fields": {"source": "input", "score": 0.5, "flag": True, "none": None, "big": 2**60},
    "nested": {"writes": {"node": {"x": [1, {"y": None}]}}, "tags": ["a", "b"]},
    "beyond JSON": {"pair": (1, 2), "set": {1}, "bytes": b"b", 1: "an int key", "nan": 1e400},
    "texts": {"nul": "a\u0000b", "quote": 'it\'s "q"', "emoji": "\U0001f600", "\u00e9": "\u4e2d"},
    "delta counters": {"counters_since_delta_snapshot": {"log": (3, 5)}},
}


@pytest.mark.parametrize("kind", METADATA)
def test_metadata_comes_back_as_json_has_it(saver: Any, kind: str) -> None:
    config = place()
    config["configurable"] |= {"user": "ada", "thread_ts": 1, "__private": 1, "listed": [1]}
    config["metadata"] = {"ticket": "T\u00001", "step": 99, "langgraph_node": "no", "deep": {}}
    made = checkpoint({"value": 1})
    stored = saver.put(config, made, METADATA[kind], made["channel_versions"])
    wanted: Any = get_checkpoint_metadata(config, METADATA[kind])
    if kind == "beyond JSON":  # LangGraph's saver in memory takes it, tuples as lists there too
        wanted["pair"] = [1, 2]
    else:
        wanted = json.loads(json.dumps(wanted))
    for found in (saver.get_tuple(stored), next(saver.list(at()))):
        assert found.metadata == wanted
        assert repr(found.metadata) == repr(wanted)
        assert found.metadata["user"] == "ada"
        assert found.metadata["ticket"] == "T1"


# -- list ----------------------------------------------------------------------------


def fill(saver: Any) -> None:
    """Threads "a", "b" with two namespaces each; ids are equal from saver to saver."""
    number = itertools.count()
    for thread, ns in itertools.product("ab", ("", "child")):
        config = place(thread, ns=ns)
        for step in range(5):
            made = checkpoint({"value": step}, value=step + 1)
            made["id"] = f"1efaaaaa-0000-6000-8000-{next(number):012}"
            extra = {"user": "ada" if step % 2 else "it's", "ratio": step / 2, "ok": step > 2}
            more = {"source": "input" if step == 0 else "loop", "none": None, **extra}
            config = saver.put(config, made, metadata(step, **more), made["channel_versions"])
            saver.put_writes(config, [("value", step)], f"task {step}")


def cid(number: int) -> str:
    return f"1efaaaaa-0000-6000-8000-{number:012}"


LISTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "everything": (None, {}),
    "everything, some": (None, {"limit": 7}),
    "everything before": (None, {"before": place(checkpoint=cid(12))}),
    "everything of a user": (None, {"filter": {"user": "ada"}}),
    "a thread": (at("a"), {}),
    "a thread in a namespace": (place("a"), {}),
    "a child namespace": (place("b", ns="child"), {}),
    "one checkpoint": (place("a", cid(3)), {}),
    "one checkpoint of another thread": (place("b", cid(3)), {}),
    "no such thread": (at("z"), {}),
    "no limit": (place("a"), {"limit": None}),
    "limit 0": (place("a"), {"limit": 0}),
    "limit 1": (place("a"), {"limit": 1}),
    "limit too large": (place("a"), {"limit": 1000}),
    "before": (place("a"), {"before": place("a", cid(3))}),
    "before and limit": (place("a"), {"before": place("a", cid(3)), "limit": 2}),
    "before without a checkpoint": (place("a"), {"before": place("a")}),
    "before the first": (place("a"), {"before": place("a", cid(0))}),
    "filter": (place("a"), {"filter": {"source": "input"}}),
    "filter by two": (place("a"), {"filter": {"source": "loop", "user": "ada"}}),
    "filter, before, limit": (
        place("a"),
        {"filter": {"source": "loop"}, "before": place("a", cid(4)), "limit": 2},
    ),
    "filter by a float": (place("a"), {"filter": {"ratio": 1.5}}),
    "filter by a bool": (place("a"), {"filter": {"ok": True}}),
    "filter by an int that equals a bool": (place("a"), {"filter": {"ok": 1}}),
    "filter by None": (place("a"), {"filter": {"none": None}}),
    "filter by None for what is absent": (place("a"), {"filter": {"absent": None}}),
    "filter by a dict": (place("a"), {"filter": {"parents": {}}}),
    "filter by nothing": (place("a"), {"filter": {}}),
    "filter that matches nothing": (place("a"), {"filter": {"step": 77}}),
    "value with a quote": (place("a"), {"filter": {"user": "it's"}}),
    "key with quotes": (place("a"), {"filter": {"us'er\" OR 1=1 --": "ada"}}),
    "key with dots": (place("a"), {"filter": {"parents.x": "ada", "$.user": 1}}),
    "odd keys": (place("a"), {"filter": {"": 1, "[0]": 2, "\u00e9": 3, "a]b": 4}}),
}


@pytest.mark.parametrize("kind", LISTS)
def test_list_finds_what_langgraphs_saver_finds(saver: Any, kind: str) -> None:
    theirs = InMemorySaver()
    config, options = LISTS[kind]
    found = []
    for store in (saver, theirs):
        fill(store)
        found.append([Canon().entry(t) for t in store.list(config, **options)])
    if config is None:
        assert len(found[0]) == len(found[1])
        found = [sorted(f, key=repr) for f in found] if "limit" not in options else [[], []]
    if config == at("a"):  # several namespaces: LangGraph's saver lists one after the other
        found = [sorted(f, key=repr) for f in found]
    assert found[0] == found[1]


ODD = [
    "x\0y",
    "\0",
    "",
    "a b",
    'a"b',
    "a\\b",
    "it's",
    "a\nb",
    "[0]",
    "$.a",
    "$",
    "\u00e9",
    "\u2028",
]


def test_odd_keys_and_texts_in_metadata_are_found(saver: Any) -> None:
    theirs = InMemorySaver()
    more = {key: number for number, key in enumerate(ODD)} | {f"text {key}": key for key in ODD}
    for store in (saver, theirs):
        for number, extra in enumerate((more, {"other": 1})):
            made = checkpoint({"value": number})
            store.put(place("a"), made, metadata(number, **extra), made["channel_versions"])
    for key, value in more.items():
        found = [len([*store.list(None, filter={key: value})]) for store in (saver, theirs)]
        is_kept = "\0" not in str(value)  # LangGraph takes NUL out of texts
        assert found == [is_kept, is_kept], (key, value)
        assert [*saver.list(None, filter={key: "nowhere"})] == []


def test_filters_take_the_paths_of_langgraphs_sqlite_saver(saver: Any) -> None:
    rows: list[dict[str, Any]] = [
        {"user": {"name": "ann", "age": 3, "at": {"city": None}}},
        {"user": {"name": "bob", "ok": True}},
        {"user": "ann"},
        {},
    ]
    filters: list[dict[str, Any]] = [
        *({"user.name": "ann"}, {"user.age": 3}, {"user.ok": True}, {"user.at.city": None}),
        *({"user.name": None}, {"user.name.first": "a"}, {"user.name": "bob", "step": 1}),
        *({"user.at": {"city": None}}, {"nobody.name": "ann"}),
    ]
    with SqliteSaver.from_conn_string(":memory:") as theirs:
        for store in (saver, theirs):
            for step, row in enumerate(rows):
                made = checkpoint({"value": step})
                store.put(place("a"), made, metadata(step, **row), made["channel_versions"])
        for wanted in filters:
            found = [
                [one.metadata["step"] for one in store.list(place("a"), filter=wanted)]
                for store in (saver, theirs)
            ]
            assert found[0] == found[1], wanted
    made = checkpoint({"value": 9})
    literal = {"user.name": "ann", "user": {"name": "bob"}}  # (its own name comes first)
    saver.put(place("b"), made, metadata(9, **literal), made["channel_versions"])
    assert len([*saver.list(at("b"), filter={"user.name": "ann"})]) == 1


def test_lists_over_namespaces_and_threads_come_newest_first(saver: Any) -> None:
    fill(saver)
    for config in (None, at("a")):
        ids = [t.config["configurable"]["checkpoint_id"] for t in saver.list(config)]
        assert ids == sorted(ids, reverse=True)
        first = [t.config["configurable"]["checkpoint_id"] for t in saver.list(config, limit=3)]
        assert first == ids[:3]


async def test_a_list_may_be_left_half_read_and_the_thread_go_on(saver: Any) -> None:
    fill(saver)
    half, ahalf = saver.list(place("a")), saver.alist(place("a"))
    assert next(half).metadata == (await anext(ahalf)).metadata
    saver.put_writes(place("a", cid(4)), [("value", "late")], "late task")
    put(saver, place("a", cid(4)), {"value": "new"}, value=9)
    assert [t.metadata["step"] for t in half] == [3, 2, 1, 0]
    saver.delete_thread("a")
    await ahalf.aclose()
    assert list(saver.list(at("a"))) == []


def test_a_long_thread_is_listed_whole(saver: Any) -> None:
    config = place()
    for number in range(150):
        config = put(saver, config, {"value": list(range(number))}, value=number)
    lengths = [len(t.checkpoint["channel_values"]["value"]) for t in saver.list(at())]
    assert lengths == list(range(149, -1, -1))


# -- wrong calls ---------------------------------------------------------------------

BAD_CONFIGS: dict[str, Any] = {
    "nothing": {},
    "no configurable": {"tags": []},
    "no thread_id": {"configurable": {"checkpoint_ns": ""}},
    "thread_id None": {"configurable": {"thread_id": None, "checkpoint_ns": ""}},
    "no config": None,
}


@pytest.mark.parametrize("kind", BAD_CONFIGS)
async def test_a_config_without_a_thread_is_refused_everywhere(saver: Any, kind: str) -> None:
    config = BAD_CONFIGS[kind]
    made = checkpoint({"value": 1})
    calls = [
        lambda: saver.get_tuple(config),
        lambda: saver.put(config, made, metadata(), {}),
        lambda: saver.put_writes(config, [("value", 1)], "task"),
        lambda: saver.get_delta_channel_history(config=config, channels=["value"]),
    ]
    acalls = [
        lambda: saver.aget_tuple(config),
        lambda: saver.aput(config, made, metadata(), {}),
        lambda: saver.aput_writes(config, [("value", 1)], "task"),
        lambda: saver.aget_delta_channel_history(config=config, channels=["value"]),
    ]
    for call in calls:
        with pytest.raises(InvalidConfigError, match="thread_id") as raised:
            call()
        assert isinstance(raised.value, KeyError)
    for acall in acalls:
        with pytest.raises(InvalidConfigError, match="thread_id"):
            await acall()
    if config is not None:
        with pytest.raises(InvalidConfigError, match="thread_id"):
            list(saver.list(config))
    assert list(saver.list(None)) == []


async def test_writes_without_a_checkpoint_are_refused(saver: Any) -> None:
    for config in (place(), at(), place(checkpoint="")):
        with pytest.raises(InvalidConfigError, match="checkpoint_id"):
            saver.put_writes(config, [("value", 1)], "task")
        with pytest.raises(KeyError, match="checkpoint_id"):
            await saver.aput_writes(config, [("value", 1)], "task")


def test_a_checkpoint_without_an_id_is_refused(saver: Any) -> None:
    made: Any = checkpoint({"value": 1})
    del made["id"]
    for broken in (made, {**made, "id": None}, {**made, "id": 7}):
        with pytest.raises(InvalidConfigError, match="id") as raised:
            saver.put(place(), broken, metadata(), {"value": 1})
        assert isinstance(raised.value, KeyError)
        assert raised.value.thread == THREAD
    assert list(saver.list(None)) == []


@pytest.mark.parametrize("limit", [-1, -100])
async def test_a_negative_limit_is_refused(saver: Any, limit: int) -> None:
    with pytest.raises(InvalidArgumentError, match=str(limit)):
        list(saver.list(at(), limit=limit))
    with pytest.raises(ValueError, match=str(limit)):
        _ = [t async for t in saver.alist(None, limit=limit)]


def test_an_unknown_pruning_strategy_is_refused(saver: Any) -> None:
    put(saver, place(), {"value": 1})
    with pytest.raises(InvalidArgumentError, match="keep_some"):
        saver.prune([THREAD], strategy="keep_some")
    assert len(list(saver.list(at()))) == 1


def test_copying_onto_a_thread_that_exists_is_refused(saver: Any) -> None:
    put(saver, place(), {"value": "mine"})
    put(saver, place("other"), {"value": "theirs"})
    with pytest.raises(ThreadExistsError):
        saver.copy_thread(THREAD, "other")
    with pytest.raises(ThreadkeepError):
        saver.copy_thread(THREAD, THREAD)
    assert saver.get_tuple(at("other")).checkpoint["channel_values"] == {"value": "theirs"}


@pytest.mark.parametrize("thread", [7, 2.5, "", "a/b", "it's", "\u00e9\u4e2d\U0001f600", "x" * 500])
def test_thread_ids_of_any_kind(saver: Any, thread: Any) -> None:
    config = put(saver, place(thread), {"value": repr(thread)})
    put(saver, place("another"), {"value": "another"})
    saver.put_writes(config, [("value", 1)], "task")
    for same in (thread, str(thread)):
        found = saver.get_tuple(at(same))
        assert found.checkpoint["channel_values"] == {"value": repr(thread)}
        assert found.pending_writes == [("task", "value", 1)]
        assert len(list(saver.list(at(same)))) == 1
    saver.delete_thread(thread)
    assert saver.get_tuple(at(thread)) is None
    assert len(list(saver.list(None))) == 1
