"""Public names and signatures are those of public_api.txt.

After a wanted change: `.venv/bin/python tests/unit/test_public_api.py` writes the file again.
"""

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Unpack, get_type_hints

import threadkeep
from threadkeep.savers.options import SaverOptions

FILE = Path(__file__).with_name("public_api.txt")
MODULES = (
    "threadkeep",
    "threadkeep.threads",
    "threadkeep.memory",
    "threadkeep.streaming",
    "threadkeep.sessions",
    "threadkeep.store",
    "threadkeep.cache",
    "threadkeep.monitor",
    "threadkeep.errors",
)


NEEDS_LANGCHAIN = {"threadkeep.memory": ["LayeredMemoryMiddleware"]}  # (not in `__all__`)


class Plain(str):
    """An annotation that is shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def signature(of: Any) -> str:
    found = inspect.signature(of)
    given = [
        one if one.annotation is one.empty else one.replace(annotation=plain(one.annotation))
        for one in found.parameters.values()
    ]
    returned = found.return_annotation
    shown = returned if returned is found.empty else plain(returned)
    return str(found.replace(parameters=given, return_annotation=shown))


def plain(annotation: Any) -> Plain:
    if isinstance(annotation, str):
        return Plain(annotation)
    return Plain(re.sub(r"\b(?:\w+\.)+", "", inspect.formatannotation(annotation)))


def members(cls: type) -> Iterator[str]:
    """The members that no public class above has, without async variants of the same signature."""
    above = {base for base in cls.__mro__[1:] if base in PUBLIC}
    ours = [each for each in cls.__mro__ if each.__module__.startswith("threadkeep")]
    own = [each for each in ours if not any(issubclass(base, each) for base in above)]
    for name in sorted({name for each in own for name in vars(each)}):
        found = inspect.getattr_static(cls, name)
        sync = getattr(cls, name[1:], None) if name.startswith("a") else None
        if name.startswith("_") or (sync and inspect.signature(found) == inspect.signature(sync)):
            continue
        if isinstance(found, staticmethod | classmethod):
            yield f"    {type(found).__name__} {name}{signature(getattr(cls, name))}"
        elif inspect.isroutine(found) and not isinstance(found, cached_property):
            yield f"    {name}{signature(found)}"
        else:
            yield f"    {name}"


def described(name: str, found: Any) -> Iterator[str]:
    if inspect.isclass(found):
        yield f"class {name}{init(found)}"
        yield from members(found)
    elif inspect.isroutine(found):
        yield f"{name}{signature(found)}"
    else:
        yield name


def init(cls: type) -> str:
    if issubclass(cls, dict):  # (a TypedDict)
        return f"({', '.join(cls.__annotations__)})"
    if issubclass(cls, Enum):  # (each Python shows another signature)
        return ""
    if issubclass(cls, BaseException) or getattr(cls, "_is_protocol", False):
        return f"({', '.join(base.__name__ for base in cls.__bases__)})"
    return signature(cls)


def public(module: str) -> list[str]:
    found = import_module(module)
    own = [name for name, one in vars(found).items() if inspect.isclass(one)]
    names = getattr(found, "__all__", own)
    more = NEEDS_LANGCHAIN.get(module, [])
    return sorted(name for name in [*names, *more] if not name.startswith("_"))


PUBLIC = {getattr(import_module(module), name) for module in MODULES for name in public(module)}


def snapshot() -> str:
    lines: list[str] = []
    for module in MODULES:
        lines.append(f"# {module}")
        for name in public(module):
            lines += described(name, getattr(import_module(module), name))
        lines.append("")
    return "\n".join(lines)


def test_names_and_signatures_are_those_that_were_agreed_on():
    assert snapshot() == FILE.read_text(), __doc__


def undocumented(name: str, found: Any) -> Iterator[str]:
    """The functions, classes and methods without a docstring, their own or an inherited one."""
    if (inspect.isclass(found) or inspect.isroutine(found)) and not inspect.getdoc(found):
        yield name
    for one in dir(found) if inspect.isclass(found) else ():
        member = inspect.getattr_static(found, one)
        member = getattr(member, "__func__", getattr(member, "fget", member))
        is_ours = str(getattr(member, "__module__", "")).startswith("threadkeep")
        if not one.startswith("_") and is_ours and inspect.isroutine(member):
            above = [getattr(each, one, None) for each in found.__mro__]
            if not any(map(inspect.getdoc, above)):
                yield f"{name}.{one}"


def test_every_name_has_a_docstring():
    modules = [
        import_module(each) for each in (*MODULES, "threadkeep.backends", "threadkeep.testing")
    ]
    found = [(name, getattr(each, name)) for each in modules for name in public(each.__name__)]
    assert [none for each in found for none in undocumented(*each)] == []


def test_help_lists_every_name_by_subject():
    names = {name for name in dir(threadkeep) if not name.startswith("_")}
    names -= {name for name in names if inspect.ismodule(getattr(threadkeep, name))}
    listed = set(re.findall(r"\w+", threadkeep.__doc__ or ""))
    assert names - listed == set()


def test_each_method_of_threads_has_an_async_variant():
    cls = import_module("threadkeep.threads").Threads
    names = {name for name in dir(cls) if not name.startswith("_")}
    variants = {name for name in names if inspect.iscoroutinefunction(getattr(cls, name))}
    variants |= {name for name in names if inspect.isasyncgenfunction(getattr(cls, name))}
    assert {f"a{name}" for name in names - variants} == variants


def test_no_result_is_an_operation():
    """Pages and `help` show what a caller gets."""
    found = [getattr(import_module(one), name) for one in MODULES for name in public(one)]
    methods = [(cls, *each) for cls in found if inspect.isclass(cls) for each in vars(cls).items()]
    shown = {
        f"{cls.__name__}.{name}": str(method.__annotations__.get("return"))
        for cls, name, method in methods
        if inspect.isfunction(method) and not name.startswith("_")
    }
    assert shown["Monitor.stop"]
    assert {name for name, result in shown.items() if "Operation" in result} == set()


def test_the_types_of_the_options_of_a_saver_can_be_resolved():
    assert get_type_hints(SaverOptions)["retention"] == threadkeep.Retention | None
    assert get_type_hints(threadkeep.Saver.__init__)["options"] == Unpack[SaverOptions]


if __name__ == "__main__":
    FILE.write_text(snapshot())
