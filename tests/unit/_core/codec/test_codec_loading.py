"""Loading finds only allowed classes, imports nothing and calls nothing."""

import os
import subprocess
import sys
import types
from collections import defaultdict
from dataclasses import dataclass, make_dataclass
from datetime import datetime
from typing import Any

import codec_models as m
import numpy as np
import ormsgpack
import pandas as pd
import pytest
from codec_same import same
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde import _msgpack as langgraph_msgpack
from langgraph.types import Send

from threadkeep._core.codec import NativeCodec, Registry, register, register_module
from threadkeep._core.codec import registry as registry_module
from threadkeep._core.codec.format import HOMES, OBJECT, Tag
from threadkeep.errors import (
    CodecError,
    CorruptionError,
    InvalidArgumentError,
    NewerFormatError,
    UnknownTypeError,
    UnserializableError,
)

CODEC = NativeCodec()
CLASS_TAGS = (
    Tag.PYDANTIC,
    Tag.PYDANTIC_V1,
    Tag.DATACLASS,
    Tag.ATTRS,
    Tag.NAMEDTUPLE,
    Tag.ENUM,
    Tag.FLAG,
    Tag.SUBCLASS,
    Tag.PLAIN,
    Tag.FOREIGN,
)


def forged(tag: int, *parts: Any) -> bytes:
    return bytes((OBJECT, tag)) + ormsgpack.packb(list(parts))


def forged_instance(tag: int, name: str) -> bytes:
    """Return well-formed data of this kind that names a class."""
    return forged(tag, name, 0, "x") if tag == Tag.SUBCLASS else forged(tag, name, {})


@pytest.fixture
def own() -> Registry:
    return Registry()


@pytest.fixture
def default_registry(monkeypatch) -> Registry:
    fresh = Registry()
    monkeypatch.setattr(registry_module, "DEFAULT_REGISTRY", fresh)
    return fresh


@pytest.fixture
def strict(monkeypatch) -> None:
    monkeypatch.setattr(langgraph_msgpack, "STRICT_MSGPACK_ENABLED", True)


@pytest.mark.parametrize("tag", CLASS_TAGS, ids=lambda tag: tag.name)
@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "subprocess:Popen",
        "codec_models:function",
        "codec_models:Outer",
        "codec_models:Plain",
        "codec_models:Plain.__init__",
        "builtins:eval",
        "builtins:dict",
        "builtins:ValueError",
        "codec_models:no_such_class",
        "threading:Thread",
        "codec_models",
        "",
        ":",
        "no-module:X",
    ],
)
def test_what_is_no_data_class_never_comes_to_life(monkeypatch, tag, name) -> None:
    monkeypatch.setattr(os, "system", lambda _: pytest.fail("called"))
    for rest in (({"args": ["true"]},), (["true"],), ("true", 1), (0, "true", {}), ()):
        with pytest.raises(CodecError):
            CODEC.decode(forged(tag, name, *rest))


@pytest.mark.parametrize("tag", CLASS_TAGS, ids=lambda tag: tag.name)
def test_a_module_is_never_imported(tag) -> None:
    assert "antigravity" not in sys.modules
    with pytest.raises(CodecError) as caught:
        CODEC.decode(forged_instance(tag, "antigravity:geohash"))
    assert "antigravity" not in sys.modules
    assert "antigravity" in str(caught.value)


def test_a_module_that_would_import_on_attribute_access_is_left_alone(monkeypatch) -> None:
    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    class Stand:
        __slots__ = ()

        @property
        def __class__(self) -> type:
            raise AssertionError

    for module in (Lazy("lazy_module"), Stand()):
        monkeypatch.setitem(sys.modules, "lazy_module", module)
        with pytest.raises(UnknownTypeError):
            CODEC.decode(forged(Tag.DATACLASS, "lazy_module:Thing", {}))


def test_a_module_getattr_is_not_called(monkeypatch) -> None:
    module = types.ModuleType("eager_module")
    module.__getattr__ = pytest.fail
    monkeypatch.setitem(sys.modules, "eager_module", module)
    with pytest.raises(UnknownTypeError):
        CODEC.decode(forged(Tag.DATACLASS, "eager_module:Thing.Inner", {}))


@pytest.mark.parametrize("tag", CLASS_TAGS, ids=lambda tag: tag.name)
def test_the_kind_in_the_data_must_be_the_class_s_kind(tag) -> None:
    kinds = {
        Tag.PYDANTIC: "Address",
        Tag.PYDANTIC_V1: "OldStrict",
        Tag.DATACLASS: "Task",
        Tag.ATTRS: "Wheel",
        Tag.NAMEDTUPLE: "Point",
        Tag.ENUM: "Colour",
        Tag.FLAG: "Access",
        Tag.SUBCLASS: "Tagged",
    }
    for kind, name in kinds.items():
        if kind is not tag:
            with pytest.raises(UnknownTypeError, match=f"codec_models[:.]{name}"):
                CODEC.decode(forged_instance(tag, f"codec_models:{name}"))


def test_data_cannot_run_property_setters_or_methods() -> None:
    back = CODEC.decode(forged(Tag.DATACLASS, "codec_models:Derived", {"expensive": 1, "a": 2}))
    assert back.__dict__["a"] == 2
    frozen = CODEC.decode(forged(Tag.DATACLASS, "codec_models:Frozen", {"a": 1}))
    assert frozen == m.Frozen(1)


def test_the_error_names_the_class_and_the_line_that_allows_it() -> None:
    with pytest.raises(UnknownTypeError, match=r"app\.models\.Thing") as caught:
        CODEC.decode(forged(Tag.DATACLASS, "app.models:Thing", {}))
    assert "from app.models import Thing" in caught.value.hint
    assert "threadkeep.register(Thing)" in caught.value.hint


def test_a_class_that_is_gone_is_named(monkeypatch) -> None:
    data = CODEC.encode(m.Task("t"))
    monkeypatch.delattr(m, "Task")
    with pytest.raises(UnknownTypeError, match=r"codec_models\.Task"):
        CODEC.decode(data)


def test_a_member_that_is_gone_is_named() -> None:
    data = CODEC.encode(m.Colour.RED).replace(b"\xa3RED", b"\xa3OLD")
    with pytest.raises(UnknownTypeError, match="no longer has a member 'OLD'"):
        CODEC.decode(data)


BARE = """
import sys
from threadkeep._core.codec import NativeCodec
unwanted = {"langgraph.types", "langgraph.graph", "langgraph.pregel", "numpy", "attr", "pandas"}
assert not unwanted & {*sys.modules}
print(NativeCodec().decode(bytes.fromhex(sys.argv[1])))
"""


def test_a_class_of_langgraph_is_found_before_the_program_imports_it() -> None:
    """The codec itself imports no library that it can do without."""
    data = CODEC.encode(Send("n", 1)).hex()
    found = subprocess.run(
        [sys.executable, "-c", BARE, data], capture_output=True, text=True, check=True
    )
    assert found.stdout == "Send(node='n', arg=1)\n"


def test_a_class_that_is_not_installed_is_named(monkeypatch) -> None:
    data = CODEC.encode(Send("n", 1))
    monkeypatch.setitem(sys.modules, "langgraph.types", None)
    with pytest.raises(UnknownTypeError, match=r"langgraph\.types\.Send") as caught:
        CODEC.decode(data)
    assert "Install" in caught.value.hint


def test_numbers_of_a_newer_release_say_so() -> None:
    for data in (forged(126), forged(Tag.KNOWN, 99, 0), forged(Tag.DATACLASS, 1000, {})):
        with pytest.raises(NewerFormatError, match="release"):
            CODEC.decode(data)
    assert max(HOMES) < 1000


def test_paths_of_another_system_say_so() -> None:
    tag = Tag.WINDOWS_PATH if os.name == "posix" else Tag.POSIX_PATH
    with pytest.raises(UnknownTypeError, match="operating system"):
        CODEC.decode(bytes((OBJECT, tag)) + b"a")


# -- strict mode and allowlists --------------------------------------------------------


def test_strict_mode_allows_only_what_is_listed(strict) -> None:
    data = CODEC.encode(m.Task("t"))
    with pytest.raises(UnknownTypeError, match="STRICT"):
        CODEC.decode(data)
    listed = CODEC.with_allowlist([("codec_models", "Task")])
    assert listed.decode(data) == m.Task("t")
    assert NativeCodec(allowed=[("codec_models", "Task")]).decode(data) == m.Task("t")
    with pytest.raises(UnknownTypeError):
        listed.decode(CODEC.encode(m.Point(1)))
    with pytest.raises(UnknownTypeError, match="STRICT"):
        CODEC.decode(data)  # a clone has a list of its own


def test_strict_mode_finds_nested_classes_by_langgraph_s_short_name(strict) -> None:
    listed = CODEC.with_allowlist({("codec_models", "Inner")})
    assert listed.decode(CODEC.encode(m.Outer.Inner(1))) == m.Outer.Inner(1)


def test_strict_mode_leaves_built_in_and_registered_classes(strict, own) -> None:
    own.register(m.Task)
    codec = NativeCodec(own)
    assert codec.decode(codec.encode([m.Task("t")])) == [m.Task("t")]
    assert codec.decode(codec.encode(HumanMessage("x"))) == HumanMessage("x")
    assert codec.decode(codec.encode({1, (2,)})) == {1, (2,)}


def test_an_allowlist_imports_nothing_and_adds_no_functions() -> None:
    listed = CODEC.with_allowlist([("antigravity", "geohash"), ("os", "system")])
    for name in ("antigravity:geohash", "os:system"):
        with pytest.raises(UnknownTypeError):
            listed.decode(forged(Tag.DATACLASS, name, {}))
    assert "antigravity" not in sys.modules


# -- registered classes ----------------------------------------------------------------


def test_a_local_class_can_be_registered(own) -> None:
    @dataclass
    class Local:
        a: int

    own.register(Local)
    codec = NativeCodec(own)
    assert codec.decode(codec.encode(Local(1))) == Local(1)
    with pytest.raises(UnknownTypeError, match="Local"):
        CODEC.decode(codec.encode(Local(1)))


def test_a_renamed_class_is_found_by_its_old_name(own) -> None:
    data = CODEC.encode(m.Task("t")).replace(b"codec_models:Task", b"old_models__:Work")
    own.register(m.Task, name="old_models__:Work")
    codec = NativeCodec(own)
    assert codec.decode(data) == m.Task("t")
    assert b"codec_models:Task" in codec.encode(m.Task("t"))


def test_a_registered_class_must_still_be_of_the_stored_kind(own) -> None:
    data = CODEC.encode(m.Task("t"))
    own.register(m.Point, name="codec_models:Task")
    with pytest.raises(UnknownTypeError, match="was stored as dataclass"):
        NativeCodec(own).decode(data)


def test_a_plain_class_is_stored_by_its_attributes_once_registered(own) -> None:
    own.register(m.Plain)
    codec = NativeCodec(own)
    value = m.Plain({1: (2,)})
    assert same(codec.decode(codec.encode([value]))[0].__dict__, value.__dict__)
    with pytest.raises(UnknownTypeError):
        CODEC.decode(codec.encode(value))
    with pytest.raises(UnserializableError):
        CODEC.encode(value)


def test_a_foreign_class_is_stored_by_the_program_s_own_functions(own) -> None:
    own.register(
        pd.DataFrame,
        encode=lambda frame: frame.to_dict("split"),
        decode=lambda parts: pd.DataFrame(**parts),
    )
    codec = NativeCodec(own)
    frame = pd.DataFrame({"a": [1, 2]})
    assert codec.decode(codec.encode([frame]))[0].equals(frame)
    with pytest.raises(UnknownTypeError, match=r"encode=\.\.\., decode=\.\.\."):
        CODEC.decode(codec.encode(frame))


@pytest.mark.parametrize("error", [ZeroDivisionError("own error"), OSError("own error")])
@pytest.mark.parametrize("pickle_fallback", [False, True])
def test_an_encode_that_fails_is_named(own, error, pickle_fallback) -> None:
    def fail(_: object) -> None:
        raise error

    own.register(m.Plain, encode=fail, decode=fail)
    codec = NativeCodec(own, pickle_fallback=pickle_fallback)
    for value in (m.Plain(1), [m.Plain(1)], ({"k": (m.Plain(1),)},)):
        with pytest.raises(UnserializableError, match=r"codec_models\.Plain.*own error") as caught:
            codec.encode(value)
        assert caught.value.__cause__ is error


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("error", [KeyError, OSError, SpeechlessError])
def test_a_decode_that_fails_is_named(own, error) -> None:
    def fail(_: object) -> None:
        raise error

    own.register(m.Plain, encode=lambda plain: plain.a, decode=fail)
    codec = NativeCodec(own)
    told = rf"registered for codec_models\.Plain .*{error.__name__}"
    with pytest.raises(CorruptionError, match=told) as caught:
        codec.decode(codec.encode([m.Plain(1)]))
    assert isinstance(caught.value.__cause__, error)


def test_registering_after_a_refusal_helps(own) -> None:
    codec = NativeCodec(own)
    with pytest.raises(UnserializableError):
        codec.encode(m.Plain(1))
    own.register(m.Plain)
    assert codec.decode(codec.encode(m.Plain(1))).a == 1


def test_register_is_a_decorator_too(default_registry) -> None:
    @register
    @dataclass
    class One:
        a: int

    @register(name="old:Two")
    @dataclass
    class Two:
        a: int

    codec = NativeCodec(default_registry)
    assert codec.decode(codec.encode([One(1), Two(2)])) == [One(1), Two(2)]
    assert default_registry.named.get("old:Two") is Two


def test_register_module_allows_its_data_classes(default_registry, strict) -> None:
    values = [m.Task("t"), m.Colour.RED, m.Address(street="s"), m.Outer.Inner(1)]
    data = [CODEC.encode(value) for value in values]
    codec = NativeCodec(default_registry)
    with pytest.raises(UnknownTypeError):
        codec.decode(data[0])
    register_module("codec_models")
    assert codec.decode_many(data) == values
    assert default_registry.named.get("codec_models:Plain") is None
    assert default_registry.named.get("codec_models:HumanMessage") is None


def test_register_module_may_import(default_registry, tmp_path, monkeypatch) -> None:
    source = "from dataclasses import dataclass\n@dataclass\nclass Fresh:\n    a: int\n"
    (tmp_path / "fresh_models.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    register_module("fresh_models")
    back = NativeCodec(default_registry).decode(
        forged(Tag.DATACLASS, "fresh_models:Fresh", {"a": 1})
    )
    assert back.a == 1


@pytest.mark.parametrize("name", ["no.such.module", "", ".relative", "os.path.nothing"])
def test_register_module_names_an_absent_module(default_registry, name) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be imported"):
        register_module(name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cls": m.function}, "is not a class"),
        ({"cls": m.Task, "encode": str}, "together"),
        ({"cls": m.Task, "name": "no colon"}, "Qualified.Name"),
        ({"cls": int}, "built-in form"),
        ({"cls": HumanMessage}, "built-in form"),
        ({"cls": ValueError}, "built-in form"),
        ({"cls": np.ma.MaskedArray}, "state besides its attributes"),
        ({"cls": pd.DataFrame, "name": "x"}, "Qualified.Name"),
    ],
)
def test_what_cannot_be_registered_says_why(own, arguments, message) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        own.register(**arguments)


def test_a_program_that_makes_classes_as_it_goes_is_not_remembered_for_ever(own) -> None:
    for i in range(1500):
        own.rule(make_dataclass(f"Made{i}", ["a"]))
    for i in range(1500):
        own.rule(type(f"Odd{i}", (), {}))
    assert len(own.rules) < 1100


# -- pickle ----------------------------------------------------------------------------


def test_pickles_are_written_and_read_only_where_asked_for() -> None:
    pickling = NativeCodec(pickle_fallback=True)
    frame = pd.DataFrame({"a": pd.arrays.SparseArray([0, 1]), "b": ["x", "y"]})
    for value in (frame, [frame], {"k": (frame,)}):
        data = pickling.encode(value)
        assert type(pickling.decode(data)) is type(value)
        with pytest.raises(UnknownTypeError, match="pickle_fallback=True"):
            CODEC.decode(data)
    assert pickling.decode(pickling.encode(frame)).equals(frame)
    assert pickling.with_allowlist([("a", "b")]).decode(pickling.encode(frame)).equals(frame)


def test_only_what_has_no_other_form_is_pickled() -> None:
    pickling = NativeCodec(pickle_fallback=True)
    odd = datetime(2026, 1, 1, tzinfo=m.OddZone())
    value = [m.Task("t", [defaultdict(_seven, a=1), odd]), HumanMessage("hi", extra=odd)]
    data = pickling.encode(value)
    assert pickling.decode(data) == value
    assert b"codec_models:Task" in data
    assert pickling.decode(data)[0].tags[0]["b"] == 7
    plain = [m.Task("t"), {1: {2}}]
    assert pickling.encode(plain) == CODEC.encode(plain)


def test_pickling_does_not_help_what_contains_itself() -> None:
    value = m.Slotted(1)
    value.b = [value]
    with pytest.raises(UnserializableError, match="contains itself"):
        NativeCodec(pickle_fallback=True).encode(value)


def _seven() -> int:
    return 7


def test_what_cannot_be_pickled_is_refused_too() -> None:
    with pytest.raises(UnserializableError, match="pickled either"):
        NativeCodec(pickle_fallback=True).encode([lambda: 1])


class Pickled:
    """A class whose own code fails if `fails` is set."""

    fails = ""

    def __reduce__(self) -> Any:
        if self.fails == "encode":
            raise OSError("own error")
        return Pickled, (), {"a": 1}

    def __setstate__(self, state: Any) -> None:
        if self.fails == "decode":
            raise OSError("own error")


def test_a_pickle_whose_own_code_fails_is_a_typed_error(monkeypatch) -> None:
    codec = NativeCodec(pickle_fallback=True)
    data = [codec.encode(Pickled()), codec.encode([Pickled()])]
    monkeypatch.setattr(Pickled, "fails", "encode")
    for value in (Pickled(), [Pickled()]):
        with pytest.raises(UnserializableError, match="own error"):
            codec.encode(value)
    monkeypatch.setattr(Pickled, "fails", "decode")
    for stored in data:
        with pytest.raises(CorruptionError, match="own error"):
            codec.decode(stored)


def test_a_pickled_class_that_is_gone_is_unknown(monkeypatch) -> None:
    codec = NativeCodec(pickle_fallback=True)
    data = [codec.encode(Pickled()), codec.encode([Pickled()])]
    monkeypatch.delitem(globals(), "Pickled")
    for stored in data:
        with pytest.raises(UnknownTypeError, match="Pickled"):
            codec.decode(stored)


# -- damage ----------------------------------------------------------------------------


def test_hostile_nesting_ends_in_a_typed_error() -> None:
    for tag in (Tag.TUPLE, Tag.SET, Tag.PAIRS, Tag.DEQUE, Tag.DATACLASS):
        data = b"\x01"
        for _ in range(200):
            data = b"\x91" * 200 + data
            data = b"\xc9" + len(data).to_bytes(4, "big") + bytes((tag,)) + data
        with pytest.raises(CorruptionError):
            CODEC.decode(data)
    with pytest.raises(CorruptionError):
        CODEC.decode(b"\x91" * 100_000)


def test_names_of_time_zones_that_are_none() -> None:
    for name in (b"Europe", b"No/Where", b"../../etc/passwd", b"/etc/passwd", b"\xff", b""):
        with pytest.raises(CodecError):
            CODEC.decode(bytes((OBJECT, Tag.ZONE_INFO)) + name)


def test_sizes_that_are_not_there_are_not_believed() -> None:
    for data in (b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b""):
        with pytest.raises(CorruptionError):
            CODEC.decode(data)
    with pytest.raises(CorruptionError):
        CODEC.decode(forged(Tag.NDARRAY, "<f8", [10**9, 10**9], 0, b"\0" * 8))
    with pytest.raises(CorruptionError):
        CODEC.decode(forged(Tag.NDARRAY, "|O", [1], 0, b"\0" * 8))
    for dtype in ("(1,2", "not a type", 7, None, [["a", "|O"]], "9" * 50, "V" * 9, "1,,(", {}):
        with pytest.raises(CorruptionError):
            CODEC.decode(forged(Tag.NDARRAY, dtype, [1], 0, b"\0" * 8))


DEEP = """
from threadkeep._core.codec import NativeCodec
from threadkeep._core.codec.format import Tag
from threadkeep.errors import CorruptionError

for begin, end in ((b"\\x93", b""), (b"\\x92\\x82\\xa1a", b"\\xa1a\\x01\\x01")):
    value = b"\\x91\\x01"
    for _ in range(100):
        value = b"\\xc9" + len(value).to_bytes(4, "big") + bytes([Tag.TUPLE]) + value
        value = begin + b"\\x91" * 900 + value + end
    try:
        NativeCodec().decode(value)
    except CorruptionError as error:
        print(error)
"""


def test_nesting_is_counted_in_the_bytes_whatever_they_decode_to():
    """A key twice, and values that are cut off. A decoder that descends overflows the stack."""
    done = subprocess.run([sys.executable, "-c", DEEP], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "The stored value is nested too deeply.\n" * 2)
