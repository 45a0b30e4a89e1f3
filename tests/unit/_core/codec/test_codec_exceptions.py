"""Exceptions come back with type, arguments, attributes, notes and built-in fields."""

import subprocess
from dataclasses import dataclass
from typing import Any

import attrs
import codec_models as m
import ormsgpack
import pydantic
import pytest
from codec_same import same
from langgraph.checkpoint.serde import _msgpack as langgraph_msgpack

from threadkeep._core.codec import NativeCodec, Registry
from threadkeep._core.codec.format import OBJECT, Tag
from threadkeep.errors import CodecError, CorruptionError, UnknownTypeError, UnserializableError

CODEC = NativeCodec()


class HttpError(Exception):
    """Like most libraries' exceptions: `args` are not the arguments of `__init__`."""

    def __init__(self, status: int, *, body: Any = None) -> None:
        """Does not call `super().__init__`."""
        super().__init__(f"status {status}")
        self.status = status
        self.body = body


class SilentError(Exception):
    def __init__(self, **_: Any) -> None:
        """It does not call `super().__init__`."""


class DiskError(OSError):
    def __init__(self, path: str) -> None:
        super().__init__(28, "disk full", path)


class PickyError(Exception):
    def __new__(cls, *_: Any) -> Any:
        raise AssertionError

    def __init__(self, *_: Any) -> None:
        raise AssertionError


class SlottedError(Exception):
    __slots__ = ("code",)


class KeyedGroup(ExceptionGroup[Exception]):
    key = 0


class BadlyShownError(Exception):
    def __repr__(self) -> str:
        raise RuntimeError


@dataclass
class DataError(Exception):
    code: int
    parts: tuple[int, ...] = ()


@attrs.define
class AttrsError(Exception):
    code: int


def raised(function: Any) -> Any:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - whatever it raises
        return error
    raise AssertionError


def with_notes() -> ValueError:
    error = ValueError("with", ("notes",))
    error.add_note("one")
    error.add_note("two")
    return error


def slotted() -> SlottedError:
    error = SlottedError("s")
    error.code = (1,)
    return error


def keyed_group() -> KeyedGroup:
    group = KeyedGroup("keyed", [ValueError(1), HttpError(404)])
    group.key = 5
    return group


EXCEPTIONS = [
    ValueError(),
    ValueError("boom", 1, (2,)),
    with_notes(),
    KeyError("key"),
    StopIteration(3),
    SystemExit(2),
    KeyboardInterrupt(),
    OSError("bare"),
    FileNotFoundError(2, "No such file", "a.txt"),
    OSError(18, "cross-device link", "a", None, "b"),
    raised(lambda: open("/no/such/file")),  # noqa: PTH123, SIM115
    raised(b"\xff".decode),
    raised("\ud800".encode),
    UnicodeTranslateError("text", 1, 2, "why"),
    ImportError("no", name="mod", path="/x"),
    raised(lambda: compile("a b", "file", "exec")),
    NameError("n", name="n"),
    raised(lambda: 1 / 0),
    ExceptionGroup("group", [ValueError("a"), ExceptionGroup("inner", [KeyError(1)])]),
    BaseExceptionGroup("base", (KeyboardInterrupt(), ValueError())),
    keyed_group(),
    HttpError(503, body={"a": (1,)}),
    SilentError(),
    DiskError("/x"),
    slotted(),
    DataError(3, (1,)),
    AttrsError(4),
    subprocess.CalledProcessError(1, ["cmd"], b"out"),
    pydantic.errors.PydanticUserError("text", code=None),
]
FIELDS = (
    *("errno", "strerror", "filename", "filename2", "name", "path", "msg", "value", "code"),
    *("encoding", "object", "start", "end", "reason", "lineno", "offset", "text", "end_lineno"),
)


def told(error: Any) -> Any:
    """Return every part of an exception, for comparison."""
    if not isinstance(error, BaseException):
        return error
    fields = {name: getattr(error, name) for name in FIELDS if hasattr(error, name)}
    args = [[*map(told, part)] if isinstance(part, (list, tuple)) else part for part in error.args]
    members = [told(inner) for inner in getattr(error, "exceptions", ())]
    return [type(error).__qualname__, args, error.__dict__, fields, str(error), members]


@pytest.mark.parametrize("error", EXCEPTIONS, ids=lambda error: type(error).__name__)
def test_an_exception_comes_back(error) -> None:
    for wrap in (lambda e: e, lambda e: [e], lambda e: {1: e}, m.Slotted):
        data = CODEC.encode(wrap(error))
        back = CODEC.decode(data)
        assert CODEC.encode(back) == data
    back = CODEC.decode(CODEC.encode(error))
    assert type(back) is type(error)
    assert same(told(back), told(error))
    assert same([type(part) for part in back.args], [type(part) for part in error.args])


def test_no_method_of_the_class_is_called() -> None:
    error = Exception.__new__(PickyError, "a")
    back = CODEC.decode(CODEC.encode(error))
    assert type(back) is PickyError
    assert back.args == ("a",)


def test_an_attribute_error_forgets_the_object_only() -> None:
    back = CODEC.decode(CODEC.encode(raised(lambda: object().nothing)))
    assert (type(back), back.name, back.obj) == (AttributeError, "nothing", None)


def test_traceback_cause_and_context_are_not_kept() -> None:
    error = ValueError("later")
    error.__cause__ = error.__context__ = KeyError("earlier")
    back = CODEC.decode(CODEC.encode(error))
    assert (back.__cause__, back.__context__, back.__traceback__) == (None, None, None)


def test_an_exception_without_an_exact_form_comes_back_as_its_repr() -> None:
    invalid = raised(lambda: m.Address(street=None))
    unusual = HttpError(500, body=object())
    for error in (invalid, unusual, ValueError(object()), ValueError(lambda: 1)):
        for wrap in (lambda e: e, lambda e: [e], lambda e: {"e": e}, m.Slotted):
            assert CODEC.decode(CODEC.encode(wrap(error))) == wrap(repr(error))
    group = ExceptionGroup("g", [KeyError(1), unusual])
    assert CODEC.decode(CODEC.encode([group])) == [repr(group)]


def test_what_has_no_repr_either_is_refused() -> None:
    with pytest.raises(UnserializableError, match="object"):
        CODEC.encode([BadlyShownError(object())])


def test_with_pickle_such_an_exception_is_pickled() -> None:
    codec = NativeCodec(pickle_fallback=True)
    back = codec.decode(codec.encode(ValueError(print)))
    assert back.args == (print,)


def forged(*parts: Any) -> bytes:
    return bytes((OBJECT, Tag.EXCEPTION)) + ormsgpack.packb(list(parts))


@pytest.mark.parametrize(
    "parts",
    [
        ("builtins:eval", ["1"]),
        ("builtins:int", ["1"]),
        ("os:system", ["true"]),
        ("codec_models:Task", ["x"]),
        ("builtins:OSError", [2, "of another class"]),
        ("builtins:UnicodeDecodeError", ["x"]),
        ("builtins:ExceptionGroup", ["x"]),
        ("builtins:ExceptionGroup", ["x", 5]),
        ("builtins:ExceptionGroup", ["x", [5]]),
        ("builtins:UnicodeTranslateError", ["x", 1, 2, "y"], {}, {"start": "x"}),
        ("builtins:ValueError", 5),
        ("pydantic_core._pydantic_core:ValidationError", ["x"]),
        (),
    ],
)
def test_forged_exceptions_are_typed_errors(parts) -> None:
    with pytest.raises(CodecError):
        CODEC.decode(forged(*parts))


def test_fields_that_a_class_has_lost_are_dropped() -> None:
    back = CODEC.decode(forged("builtins:ValueError", ["a"], {}, {"errno": 1}))
    assert back.args == ("a",)
    with pytest.raises(CorruptionError):
        CODEC.decode(forged("builtins:ValueError", ["a"], 5))


def test_in_strict_mode_only_built_in_and_listed_ones(monkeypatch) -> None:
    monkeypatch.setattr(langgraph_msgpack, "STRICT_MSGPACK_ENABLED", True)
    assert CODEC.decode(CODEC.encode(KeyError("k"))).args == ("k",)
    data = CODEC.encode(HttpError(1))
    with pytest.raises(UnknownTypeError, match="HttpError"):
        CODEC.decode(data)
    registry = Registry()
    registry.register(HttpError)
    assert NativeCodec(registry).decode(data).status == 1
