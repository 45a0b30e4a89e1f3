"""Objects of classes that a process lacks can be shown, but never stored."""

import pickle
from typing import Any

import pytest
from codec_local_classes import HERE, instances, make_classes
from langchain_core.messages import AIMessage, HumanMessage

from threadkeep._core.codec import NativeCodec, Registry
from threadkeep._core.codec.codecs import Raw, RawCodec
from threadkeep.errors import CorruptionError, UnknownTypeError, UnserializableError
from threadkeep.threads.diff import plain
from threadkeep.threads.diff.values import differences

SHOWN = {
    "Model": {"a": 1, "key": "**********", "b": 2},
    "OldModel": {"a": 1},
    "Record": {"a": 1},
    "Attrs": {"a": 1},
    "Point": {"a": 1},
    "Colour": {"value": "RED"},
    "Access": {"value": 3},
    "Name": {"value": "ann"},
    "LocalError": {"args": ["no", 2]},
    "Mine": {**plain(AIMessage("yes")), "mood": "calm"},
}


def made() -> dict[str, Any]:
    return instances(make_classes())


def raw(value: Any) -> Any:
    """Decode a value as a process without its classes."""
    return RawCodec(Registry()).decode(NativeCodec(Registry()).encode(value))


@pytest.mark.parametrize("name", made())
def test_an_object_is_shown_by_its_parts(name):
    value = made()[name]
    assert plain(raw(value)) == {"__class__": HERE + name, **SHOWN[name]}
    with pytest.raises(UnknownTypeError):
        NativeCodec(Registry()).decode(NativeCodec(Registry()).encode(value))


def test_objects_within_objects_keys_and_sets():
    colour, record = made()["Colour"], made()["Record"]
    record.a = [{colour: 1}, {colour}, HumanMessage("hi", additional_kwargs={"at": colour})]
    found = raw([record, 1])
    assert found[1] == 1
    keys, members, message = found[0]["a"]
    assert type(message) is HumanMessage
    shown = {"__class__": f"{HERE}Colour", "value": "RED"}
    assert [plain(*keys), plain(*members), plain(message.additional_kwargs["at"])] == [shown] * 3
    assert raw(colour) == raw(colour)


def test_deep_objects_are_read_once():
    cls = type(made()["Record"])
    value = None
    for _ in range(40):  # (decoding the parts twice would take hours)
        value = cls(value)
    assert plain(raw(value))["a"]["a"]["__class__"] == f"{HERE}Record"


def test_what_was_read_raw_cannot_be_stored():
    found = raw(made()["Record"])
    for codec in (NativeCodec(), RawCodec(), RawCodec().with_allowlist([("a", "B")])):
        with pytest.raises(UnserializableError):
            codec.encode([found])


def test_a_pickle_is_not_loaded():
    data = NativeCodec(Registry(), pickle_fallback=True).encode(range)
    found = plain(RawCodec(Registry()).decode(data))
    assert (found["__class__"], found["bytes"]) == ("pickle", len(pickle.dumps(range, protocol=5)))


def test_a_foreign_object_is_shown_as_it_was_encoded():
    registry, odd = Registry(), made()["Record"]
    registry.register(type(odd), encode=lambda one: [one.a], decode=type(odd))
    found = RawCodec(Registry()).decode(NativeCodec(registry).encode(odd))
    assert plain(found) == {"__class__": f"{HERE}Record", "value": [1]}


def test_damage_stays_an_error():
    data = NativeCodec(Registry()).encode(made()["Record"])
    with pytest.raises(CorruptionError):
        RawCodec(Registry()).decode(data[:-1])


def test_raw_objects_are_compared_part_by_part():
    record = made()["Record"]
    before = raw([record, made()["Name"]])
    record.a = 2
    after = raw([record, made()["Name"]])
    (change,) = differences(before, after, RawCodec().encode)
    assert (change.after_at, change.before, change.after) == ((0, "a"), 1, 2)
    assert type(before[0]) is Raw
