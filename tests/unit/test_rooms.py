"""Pure modules import nothing that does I/O, reads a clock or makes threads."""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import threadkeep

ROOT = Path(threadkeep.__file__).parent
FORBIDDEN = {
    "aiosqlite",
    "asyncio",
    "concurrent",
    "io",
    "logging",
    "multiprocessing",
    "os",
    "queue",
    "random",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib",
}
FLOORS = (  # from the ground up: a room imports what lies below it, and nothing beside it
    {"errors"},
    {"_core"},
    {"_stores"},
    {"keys"},
    {"_run"},
    {"threads"},
    {"runs"},
    {"savers"},
    {"backends", "cache", "memory", "monitor", "sessions", "store", "streaming", "testing"},
    {"opening", "roles", "ui"},
    {"cli"},
    {"__init__", "__main__"},
)
FLOOR_OF = {room: number for number, floor in enumerate(FLOORS) for room in floor}
IN_CORE = {"codec": {"codec"}, "engine": {"codec", "engine"}}
CALLS = {"open", "print", "input", "exec", "eval", "__import__"}
PURE = [
    path
    for folder in ("_core/codec", "_core/engine", "threads/diff")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name != "checkpoints.py"  # its operations for `saver.threads` check arguments
]
MODULES = sorted(ROOT.rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(tree: ast.AST):
    """The modules that the code imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name whole modules here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.fixture(params=PURE, ids=lambda path: str(path.relative_to(ROOT)))
def module(request):
    return request.param, tree_of(request.param)


def test_nothing_impure_is_imported(module):
    path, tree = module
    found = {name.split(".")[0] for name in imported(tree)} & FORBIDDEN
    if path.parent.name == "codec" and "threading" in found:
        uses = {
            n.attr
            for n in ast.walk(tree)
            if isinstance(n, ast.Attribute) and _is(n.value, "threading")
        }
        assert uses == {"local"}, "contexts of zstd serve one thread at a time; nothing else"
        found.remove("threading")
    assert not found


def test_the_codec_knows_no_engine(module):
    path, tree = module
    below = IN_CORE.get(path.parent.name)
    ours = [name.split(".") for name in imported(tree) if name.startswith("threadkeep._core.")]
    own = {name[2] for name in ours} & IN_CORE.keys()
    assert below is None or own <= below


def test_no_clock_is_read_and_no_file_opened(module):
    _, tree = module
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not [f.id for f in calls if isinstance(f, ast.Name) and f.id in CALLS]
    clocks = {"now", "utcnow", "today"}
    methods = [f for f in calls if isinstance(f, ast.Attribute) and f.attr in clocks]
    assert not [f for f in methods if not _is(f.value, "engine")], "the time comes from Engine.now"


def test_rooms_import_one_way():
    """Also for types alone, and also where a function imports."""
    wrong = []
    for path in MODULES:
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for name in imported(tree_of(path)):
            if name.partition(".")[0] != "threadkeep":
                continue
            other = ([*name.split("."), "__init__"])[1]
            other = other if other in FLOOR_OF else "__init__"
            if other != room and FLOOR_OF[other] >= FLOOR_OF[room]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def test_no_modules_import_each_other_in_a_circle():
    """Also for types alone, and also where a function imports.

    A package is run by the import of any module in it. This is passed over: its `__init__` only
    hands on names of modules below.
    """
    names = {_name(path) for path in [*MODULES, *ROOT.rglob("*.pyi")]}  # (and compiled modules)
    found = {_name(path): _ours(path, names) for path in MODULES}
    while leaves := {name for name, below in found.items() if not below & found.keys()}:
        found = {name: below for name, below in found.items() if name not in leaves}
    assert not found, "each of these is in a circle, or imports one that is"


def _name(path: Path) -> str:
    return ".".join(("threadkeep", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
        ".__init__"
    )


def _ours(path: Path, names: set[str]) -> set[str]:
    """The modules of ours that a module imports: `from a import b` is of `a.b`, if that is one."""
    found = set()
    for name in imported(tree_of(path)):
        parts = name.split(".")
        wholes = [".".join(parts[:stop]) for stop in range(len(parts), 0, -1)]
        found.update([whole for whole in wholes if whole in names][:1])
    return found - {_name(path)}


BOTH_PUBLIC = {"Change"}  # a class of `threadkeep.threads`, an alias of `threadkeep.backends`


def test_no_two_classes_have_one_name():
    classes = [
        node.name
        for path in MODULES
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, count in Counter(classes).items() if count > 1] == []
    assigned = {name for path in MODULES for name in _assigned(path)}
    assert assigned & {*classes} == BOTH_PUBLIC


def test_no_two_type_aliases_have_one_name():
    names = [name for path in MODULES for name in _type_aliases(path) if name[0] != "_"]
    assert len(names) > 50
    assert [name for name, count in Counter(names).items() if count > 1] == []


def _assigned(path: Path) -> Iterator[str]:
    """Names that a module binds outside classes and functions, by any assignment."""
    for node in tree_of(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from [target.id for target in targets if isinstance(target, ast.Name)]


def _type_aliases(path: Path) -> Iterator[str]:
    for node in tree_of(path).body:
        if isinstance(node, ast.AnnAssign) and _is(node.annotation, "TypeAlias"):
            yield ast.unparse(node.target)


def test_no_module_is_overlooked():
    assert len(PURE) > 25
    assert len(MODULES) > 150


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
