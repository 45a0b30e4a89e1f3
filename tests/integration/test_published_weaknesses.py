"""Weaknesses that were published of LangGraph's savers, stores and caches are not ours.

The attacker may choose filters, namespaces and values, or has written rows into a store.
"""

import json
import pickle
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from kit.backends import BACKENDS, url_of
from kit.places import at
from kit.stores import INDEX
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

from threadkeep import MemorySaver
from threadkeep._core.codec import Compression, pack
from threadkeep._core.codec.format import OBJECT, Tag
from threadkeep._stores.caches import SetEntries
from threadkeep.cache import cache as cache_module
from threadkeep.cache import open_cache
from threadkeep.errors import CorruptionError, InvalidArgumentError, UnknownTypeError
from threadkeep.store import open_store

from .foreign import emptied

CALLS: list[Any] = []


def called(*args: Any, **kwargs: Any) -> None:
    CALLS.append((args, kwargs))


@dataclass
class Loud:
    """Tells when code of it runs."""

    x: Any = None

    def __post_init__(self) -> None:
        called(self.x)

    @classmethod
    def run(cls, x: Any = None) -> None:
        called(x)

    def __reduce__(self) -> Any:
        return called, (self.x,)


def save(saver: Any, thread: str, values: dict[str, Any], **metadata: Any) -> Any:
    versions = dict.fromkeys(values, 1)
    made = {**empty_checkpoint(), "channel_values": values, "channel_versions": versions}
    config = at(thread, checkpoint_ns="")
    return saver.put(config, made, {"source": "loop", "step": 0, **metadata}, versions)


@pytest.fixture
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else url_of(request.param, tmp_path)


on_every_store = pytest.mark.parametrize("address", BACKENDS, indirect=True)


# -- filters -----------------------------------------------------------------------------

INJECTED = [
    "a') = 'x' OR 1=1 --",
    "x') OR '1'='1",
    "x') = ? UNION SELECT thread_id, '', '', '', '', x'00', '{}' FROM tk_threads --",
    'a"."b\' = 1) OR true; DROP TABLE tk_items; --',
    "a}' OR true --",
    "%s", "?", "$", "$.user", "user'", '"user"', "us*", "us%", "{", "\\", "'\\",
    "x}) | (@thread_id:{*",
]  # fmt: skip


@pytest.mark.parametrize("text", INJECTED)
def test_a_metadata_filter_cannot_change_the_query(saver: Any, text: str) -> None:
    """CVE-2025-67644 (keys, SQLite), CVE-2026-27022 (keys and values, Redis)."""
    save(saver, "mine", {"a": 1}, user="me")
    save(saver, "other", {"a": 2}, user="you", **{text: "odd"})
    save(saver, "third", {"a": 3}, user=text)

    def found(**filter: Any) -> list[str]:
        return [each.config["configurable"]["thread_id"] for each in saver.list(None, **filter)]

    assert found(filter={text: "dummy"}) == []
    assert found(filter={text: text}) == []
    assert found(filter={text: "odd"}) == ["other"]
    assert found(filter={"user": text}) == ["third"]
    assert found(filter={"user": {text: 1}}) == []
    assert [*saver.list(at(text))] == [*saver.list(at("mine", checkpoint_ns=text))] == []
    assert sorted(found()) == ["mine", "other", "third"]


@pytest.mark.parametrize("text", [text for text in INJECTED if text[0] != "$"])
@on_every_store
def test_an_items_filter_cannot_change_the_query(address: str, text: str) -> None:
    """CVE-2025-8709 (keys of SqliteStore's filters, and operators), CVE-2025-64104."""
    with open_store(address) as store:
        store.setup()
        store.put(("mine",), "a", {"user": "me", "n": 1})
        store.put(("other",), "b", {"user": text, text: "odd", "n": 2})

        def found(**filter: Any) -> list[str]:
            return [item.key for item in store.search((), filter=filter)]

        assert found(**{text: "dummy"}) == []
        assert found(**{text: "odd"}) == ["b"]
        assert found(**{text: {"$eq": "odd"}}) == ["b"]
        assert found(user=text) == ["b"]
        assert found(user={"$gte": text, "$lte": text}) == ["b"]
        assert found(n={text: 1}) == []
        for unknown in ("$" + text, "$eq" + text):
            with pytest.raises(InvalidArgumentError, match="operator"):
                found(n={unknown: 1})
            with pytest.raises(InvalidArgumentError, match="operator"):
                found(**{unknown: 1})
        assert sorted(found()) == ["a", "b"]


# -- namespaces --------------------------------------------------------------------------

PATHS = [
    ("t", "acme"), ("t", "acme", "x"), ("t", "acme-corp"), ("t", "acme/"), ("t", "acme_"),
    ("t", "acmex"), ("t", "a%"), ("t", "ac_e"), ("t", "acme\\"), ("ta",), ("t%",), ("t_",), ("T",),
    ("u", "alice"), ("u", "malice"), ("u", "%lice"), ("u", "*"), ("u", "[a-z]lice"),
]  # fmt: skip


@on_every_store
def test_a_namespace_prefix_is_whole_labels(address: str) -> None:
    """CVE-2026-71433: ("t", "acme") also found ("t", "acme-corp"), and "_" and "%" were patterns.

    "*" is LangGraph's wildcard for one label in `list_namespaces` alone.
    """
    with open_store(address, index=INDEX) as store:
        store.setup()
        for path in PATHS:
            store.put(path, "k", {"text": "hello", "n": 1})
        for prefix in {path[:end] for path in PATHS for end in range(len(path) + 1)}:
            inside = sorted(path for path in PATHS if path[: len(prefix)] == prefix)
            for options in ({}, {"filter": {"n": 1}}, {"query": "hello"}):
                found = store.search(prefix, limit=100, **options)
                assert sorted(item.namespace for item in found) == inside, (prefix, options)
            if "*" not in prefix:
                assert sorted(store.list_namespaces(prefix=prefix, limit=100)) == inside
        for suffix in {path[-1:] for path in PATHS} - {("*",)}:
            ends = sorted(path for path in PATHS if path[-1:] == suffix)
            assert sorted(store.list_namespaces(suffix=suffix, limit=100)) == ends


# -- rows of LangGraph's own savers ------------------------------------------------------

UNSEEN = "threadkeep_test_unseen_module"
HERE = __name__


def _ext(code: int, *parts: Any) -> tuple[str, bytes]:
    return "msgpack", ormsgpack.packb([ormsgpack.Ext(code, ormsgpack.packb(parts))])


def _lc(version: int, *path: str, **more: Any) -> tuple[str, bytes]:
    envelope = {"lc": version, "type": "constructor", "id": [*path], **more}
    return "json", json.dumps({"value": [envelope]}).encode()


class _Reduced:
    def __reduce__(self) -> Any:
        return called, ("pickle",)


PAYLOADS = {
    "CVE-2026-28277 one argument": _ext(0, HERE, "called", "x"),
    "CVE-2026-28277 arguments": _ext(1, HERE, "called", ["x"]),
    "CVE-2026-28277 names": _ext(2, HERE, "called", {"x": 1}),
    "CVE-2026-28277 method": _ext(3, HERE, "Loud", "x", "run"),
    "CVE-2026-28277 model v1": _ext(4, HERE, "called", {"x": 1}, "construct"),
    "CVE-2026-28277 model v2": _ext(5, HERE, "called", {"x": 1}, "run"),
    "CVE-2026-28277 import": _ext(2, UNSEEN, "Loud", {"x": 1}),
    "CVE-2025-64439 call": _lc(2, *HERE.split("."), "called", kwargs={"command": "x"}),
    "CVE-2025-64439 system": _lc(2, "os", "system", kwargs={"command": "exit 1"}),
    "CVE-2025-64439 import": _lc(2, UNSEEN, "Loud", args=["x"]),
    "CVE-2026-48775 method": _lc(2, "pydantic", "BaseModel", method="parse_raw", args=["{}"]),
    "CVE-2026-48775 methods": _lc(2, UNSEEN, "Loud", method=[None, "run"], kwargs={"x": 1}),
    "CVE-2025-68664 template": _lc(
        1, "langchain_core", "prompts", "prompt", "PromptTemplate",
        kwargs={"template": "{{ x }}", "template_format": "jinja2", "input_variables": ["x"]},
    ),
    "CVE-2025-68664 import": _lc(1, "langchain_core", UNSEEN, "Loud", kwargs={}),
    "CVE-2025-68664 secret": ("json", b'{"lc": 1, "type": "secret", "id": ["TK_TEST_SECRET"]}'),
    "CVE-2026-27794 pickle": ("pickle", pickle.dumps(_Reduced())),
}  # fmt: skip
DAMAGED = "CVE-2026-48775 method"  # pydantic.BaseModel is no unknown class, but has no instances


class Forged(JsonPlusSerializer):
    """Writes a payload of `PAYLOADS` in place of its name."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if isinstance(obj, str) and obj in PAYLOADS:
            return PAYLOADS[obj]
        return super().dumps_typed(obj)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def foreign(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """One of LangGraph's own savers."""
    if request.param == "memory":
        yield InMemorySaver()
    elif request.param == "sqlite":
        with SqliteSaver.from_conn_string(str(tmp_path / "foreign.db")) as saver:
            yield saver
    else:
        with PostgresSaver.from_conn_string(emptied()) as saver:
            yield saver


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails if code ran, or if the module that payloads name was imported."""
    (tmp_path / f"{UNSEEN}.py").write_text(f"import {HERE} as at\nat.called('import')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TK_TEST_SECRET", "the secret")
    monkeypatch.setattr("os.system", called)
    CALLS.clear()
    yield
    assert CALLS == []
    assert UNSEEN not in sys.modules


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", PAYLOADS)
def test_adopting_a_forged_row_runs_nothing(foreign: Any, name: str) -> None:
    """The CVE that a payload is named after. Only damaged threads are skipped."""
    plain, foreign.serde = foreign.serde, Forged()
    foreign.put_writes(save(foreign, "t", {"a": 1}), [("a", name)], "task")
    foreign.serde = plain
    with MemorySaver() as saver:
        if name == DAMAGED:
            assert saver.threads.adopt(foreign).skipped.keys() == {"t"}
        else:
            with pytest.raises(UnknownTypeError):
                saver.threads.adopt(foreign)
        with pytest.raises(CorruptionError if name == DAMAGED else UnknownTypeError):
            saver.threads.adopt(foreign, "t")
        assert saver.get_tuple(at("t")) is None


@pytest.mark.usefixtures("quiet")
def test_a_class_of_the_program_is_filled_without_calling_it(foreign: Any) -> None:
    """CVE-2026-28277: constructors of classes that may be loaded are not called either."""
    foreign.put_writes(save(foreign, "t", {"a": 1}), [("a", Loud.__new__(Loud))], "task")
    with MemorySaver() as saver:
        saver.threads.adopt(foreign)
        ((_, _, value),) = saver.get_tuple(at("t")).pending_writes
        assert type(value) is Loud


# -- data that looks like an envelope ----------------------------------------------------

ENVELOPES = [
    {"lc": 1, "type": "secret", "id": ["TK_TEST_SECRET"]},
    {"lc": 1, "type": "constructor", "id": ["langchain_core", "messages", "HumanMessage"],
     "kwargs": {"content": "x"}},
    {"lc": 2, "type": "constructor", "id": [*HERE.split("."), "called"], "args": ["x"]},
    {"lc": 2, "type": "constructor", "id": [UNSEEN, "Loud"], "method": "run", "kwargs": {}},
]  # fmt: skip


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("envelope", ENVELOPES, ids=str)
def test_a_users_dict_with_lc_stays_a_dict(saver: Any, envelope: dict[str, Any]) -> None:
    """CVE-2025-68664: dicts with the key "lc" were revived, and secrets read from the environment.

    In values, pending writes and metadata.
    """
    written = save(saver, "t", {"a": envelope, "b": [{"c": envelope}]}, extra=envelope)
    saver.put_writes(written, [("a", envelope)], "task")
    found = saver.get_tuple(at("t"))
    assert found.checkpoint["channel_values"] == {"a": envelope, "b": [{"c": envelope}]}
    assert found.metadata["extra"] == envelope
    assert found.pending_writes == [("task", "a", envelope)]


@pytest.mark.usefixtures("quiet")
@on_every_store
def test_an_item_or_a_result_with_lc_stays_a_dict(address: str) -> None:
    """CVE-2025-68664, in stores and node caches."""
    with open_store(address) as store, open_cache(address) as cache:
        store.setup()
        cache.setup()
        for number, envelope in enumerate(ENVELOPES):
            key = (("n",), str(number))
            store.put(*key, {"value": envelope, "exact": ({1},)})
            cache.set({key: (envelope, None)})
            assert store.get(*key).value == {"value": envelope, "exact": ({1},)}
            assert cache.get([key]) == {key: envelope}


@pytest.mark.usefixtures("quiet")
def test_adopted_metadata_with_lc_stays_a_dict(foreign: Any) -> None:
    """CVE-2025-68664, in rows of LangGraph's savers."""
    for number, envelope in enumerate(ENVELOPES):
        save(foreign, str(number), {"a": envelope}, extra=envelope)
    with MemorySaver() as saver:
        saver.threads.adopt(foreign)
        for number, envelope in enumerate(ENVELOPES):
            found = saver.get_tuple(at(str(number)))
            assert found.metadata["extra"] == found.checkpoint["channel_values"]["a"] == envelope


# -- caches ------------------------------------------------------------------------------


@pytest.mark.usefixtures("quiet")
@on_every_store
def test_a_cache_never_unpickles(address: str, caplog: pytest.LogCaptureFixture) -> None:
    """CVE-2026-27794: bytes in the cache ran code in its readers. Here they are a miss."""
    key = (("n",), "k")
    pickled = pickle.dumps(_Reduced())
    own = bytes((OBJECT, Tag.PICKLE)) + pickled
    serde = bytes((OBJECT, Tag.SERDE, 6)) + b"pickle" + pickled
    inside = ormsgpack.packb([True, "a", ormsgpack.Ext(Tag.PICKLE, pickled)])
    with open_cache(address) as cache:
        cache.setup()
        for forged in (pickled, own, serde, inside):
            for data in (forged, pack([forged], Compression())):
                entry = cache_module._id(key), data, None
                cache._store.commit(SetEntries((entry,), time.time_ns() // 1000))
                assert cache.get([key]) == {}
        cache.set({key: (1, None)})
        assert cache.get([key]) == {key: 1}
    assert sum("Could not read" in each for each in caplog.messages) == 8
