"""`validate="strict"` names the field that it refuses, and accepts all that LangGraph writes."""

import json
import math
from typing import Any
from uuid import uuid4

import pytest
from kit.places import THREAD
from kit.rows import checkpoint, metadata, place
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.pregel._checkpoint import LATEST_VERSION

from threadkeep import MemorySaver
from threadkeep._core import arguments, fields
from threadkeep._core.engine.model import OWN_NS
from threadkeep._core.langgraph_internals import FORMATS
from threadkeep.errors import InvalidArgumentError

UUID7 = "0190163d-8694-739b-aea5-966c26f8ad91"
LATER7 = "0190163d-8695-739b-aea5-966c26f8ad91"
HASHED = f"{3:032}.0.5"


def call(ns: str = "", meta: Any = None, **parts: Any) -> Any:
    made: Any = {**checkpoint({"value": 1}), **parts}
    return arguments.put(place(ns=ns), made, metadata() if meta is None else meta, {})


VALID: dict[str, dict[str, Any]] = {
    "as LangGraph writes it": {},
    "any UUID": {"id": str(uuid4())},
    "a UUID in capitals": {"id": str(uuid4()).upper()},
    "Z": {"ts": "2026-01-02T03:04:05Z"},
    "without seconds": {"ts": "2026-01-02T03:04+00:00"},
    "floats and ints": {"channel_versions": {"a": 1.5, "b": 2}},
    "LangGraph's versions": {"channel_versions": {"a": HASHED}, "versions_seen": {"n": {"a": "1"}}},
    "UUIDs as versions": {"channel_versions": {"a": UUID7, "b": LATER7}},
    "no versions": {"channel_versions": {}},
    "format 4": {"v": 4},
    "no metadata": {"meta": {}},
    "the first step": {"meta": metadata(-1)},
    **{source: {"meta": metadata(source=source)} for source in ("input", "update", "fork")},
}


@pytest.mark.parametrize("parts", VALID.values(), ids=VALID)
def test_valid(parts):
    assert fields.strict(call(**parts)).above == ()


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "format 99": (r"\['v'\]: 99", {"v": 99}),
    "format -1": (r"\['v'\]: -1", {"v": -1}),
    "a text as format": (r"\['v'\]: 'x'", {"v": "x"}),
    "no format": (r"\['v'\]: None", {"v": None}),
    "True as format": (r"\['v'\]: True", {"v": True}),
    "a name as id": (r"\['id'\]", {"id": "first"}),
    "a UUID without hyphens": (r"\['id'\]", {"id": uuid4().hex}),
    "no time": (r"\['ts'\]", {"ts": ""}),
    "a local time": (r"\['ts'\]", {"ts": "2026-01-02T03:04:05"}),
    "a time elsewhere": (r"\['ts'\]", {"ts": "2026-01-02T03:04:05+01:00"}),
    "a text as time": (r"\['ts'\]", {"ts": "yesterday"}),
    "two kinds": (r"\['channel_versions'\]", {"channel_versions": {"a": 1, "b": "2"}}),
    "a kind seen": (r"\['versions_seen'\]", {"versions_seen": {"n": {"value": "1"}}}),
    "a random UUID": (r"\['channel_versions'\]", {"channel_versions": {"a": str(uuid4())}}),
    "two kinds of UUIDs": (
        r"\['channel_versions'\]",
        {"channel_versions": {"a": UUID7, "b": str(uuid6())}},
    ),
    "a text as version": (r"\['channel_versions'\]", {"channel_versions": {"a": "x"}}),
    "no version": (r"\['channel_versions'\]", {"channel_versions": {"a": None}}),
    "NaN": (r"\['channel_versions'\]", {"channel_versions": {"a": math.nan}}),
    "another source": (r"\['source'\]", {"meta": metadata(source="replay")}),
    "a list as source": (r"\['source'\]", {"meta": metadata(source=["loop"])}),
    "no source": (r"\['source'\]", {"meta": metadata(source=None)}),
    "step -2": (r"\['step'\]", {"meta": metadata(-2)}),
    "a text as step": (r"\['step'\]", {"meta": {"step": "3"}}),
    "True as step": (r"\['step'\]", {"meta": {"step": True}}),
    "half a step": (r"\['step'\]", {"meta": {"step": 1.5}}),
    "a list of parents": (r"\['parents'\]", {"meta": {"parents": ["x"]}}),
    "a number as parent": (r"\['parents'\]\[''\]: 5", {"meta": {"parents": {"": 5}}}),
    "an empty parent": (r"\['parents'\]\[''\]: ''", {"meta": {"parents": {"": ""}}}),
    "a number as namespace": (r"\['parents'\]: 5", {"meta": {"parents": {5: "x"}}}),
}


@pytest.mark.parametrize(("field", "parts"), REFUSED.values(), ids=REFUSED)
def test_the_error_names_the_field_and_says_what_to_use(field, parts):
    with pytest.raises(InvalidArgumentError, match=field) as caught:
        fields.strict(call(**parts))
    assert caught.value.hint
    assert caught.value.thread == THREAD


@pytest.mark.parametrize("parts", [parts for _, parts in REFUSED.values()], ids=REFUSED)
def test_by_default_it_is_stored_and_comes_back(parts):
    made: Any = {**checkpoint({"value": 1}), **{k: v for k, v in parts.items() if k != "meta"}}
    meta = parts.get("meta", metadata())
    with MemorySaver() as saver:
        found: Any = saver.get_tuple(saver.put(place(), made, meta, {}))
        assert saver.check().notes == ()
    assert (found.checkpoint["id"], found.checkpoint["ts"]) == (made["id"], made["ts"])
    assert found.metadata == json.loads(json.dumps(meta))  # (as LangGraph's savers return it)


def test_what_langgraph_writes_today_is_a_known_format():
    assert {LATEST_VERSION, empty_checkpoint()["v"]} <= {*FORMATS}


def test_several_problems_are_all_found():
    found = call(id="x", ts="y", meta={"source": "z", "step": -9, "parents": {"": 1}})
    problems = fields.problems(
        fields.Fields(5, "x", "y", {"a": 1, "b": "1"}, {}, found.metadata),
    )
    assert len([*problems]) == 7


def test_checkpoints_that_threadkeep_writes_itself_are_not_checked():
    assert fields.strict(call(ns=f"{OWN_NS}memory", id="m1", ts=""))


def test_parents_are_looked_for_in_their_namespaces():
    found = fields.strict(call(ns="a|b", meta=metadata(parents={"": "x", "a": "y"})))
    assert [(one.thread, one.ns, one.id) for one in found.above] == [
        (THREAD, "", "x"),
        (THREAD, "a", "y"),
    ]
