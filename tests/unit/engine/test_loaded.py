"""A loaded id is text like any other, and remembers its load."""

from __future__ import annotations

import copy
import json
import pickle
import time
import weakref

import ormsgpack
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from threadkeep.codec import NativeCodec
from threadkeep.engine.loaded import LoadedId, created_at

TEXT = "1ef4f797-8335-6428-8001-8a1503f9b875"
ID = LoadedId(TEXT, 7, 3, 1)


def test_it_is_text():
    assert ID == TEXT
    assert TEXT == ID
    assert hash(ID) == hash(TEXT)
    assert {TEXT: 1}[ID] == 1
    assert {ID: 1}[TEXT] == 1
    assert str(ID) == TEXT
    assert type(str(ID)) is str
    assert f"{ID}" == TEXT
    assert repr(ID) == repr(TEXT)
    assert sorted([ID, "0", "2"]) == ["0", ID, "2"]
    assert json.loads(json.dumps({"id": ID, ID: 1})) == {"id": TEXT, TEXT: 1}


@pytest.mark.parametrize(
    "again",
    [
        copy.copy,
        copy.deepcopy,
        lambda x: pickle.loads(pickle.dumps(x)),
        lambda x: copy.deepcopy([x])[0],
    ],
)
def test_copies_remember(again):
    found = again(ID)
    assert (found, found.run, found.seen, found.flags) == (TEXT, 7, 3, 1)


def test_serializers_take_it_for_text():
    serde = JsonPlusSerializer()
    assert serde.loads_typed(serde.dumps_typed({"id": ID})) == {"id": TEXT}
    assert ormsgpack.unpackb(ormsgpack.packb([ID])) == [TEXT]
    codec = NativeCodec()
    assert codec.decode(codec.encode({"id": ID})) == {"id": TEXT}


def test_creation_time_of_langgraphs_ids():
    before = time.time_ns() // 1000
    made = created_at(empty_checkpoint()["id"])
    after = time.time_ns() // 1000
    assert before - 1000 <= made <= after + 1000


@pytest.mark.parametrize(
    "other",
    [
        None,
        "",
        "1",
        "x" * 36,
        "43bf8a5e-37d6-43a5-8196-5c23ed962d8a",
        TEXT[:-1],
        TEXT.replace("1ef4", "zzzz"),
    ],
)
def test_other_ids_do_not_tell(other):
    assert created_at(other) is None


def test_it_can_be_watched():
    mine = LoadedId(TEXT, 1, 0, 0)
    watch = weakref.ref(mine)
    assert watch() is mine
    del mine
    assert watch() is None
