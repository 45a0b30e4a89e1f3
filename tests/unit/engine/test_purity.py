"""What is pure imports nothing that does I/O, reads a clock or makes threads."""

from __future__ import annotations

import ast
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
BELOW = {"codec": {"codec"}, "engine": {"codec", "engine"}, "diff": {"codec", "engine", "diff"}}
CALLS = {"open", "print", "input", "exec", "eval", "__import__"}
PURE = ("engine", "codec", "diff")
MODULES = [
    path
    for folder in PURE
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name != "checkpoints.py"  # its operations for `saver.threads` check arguments
]


def imported(tree: ast.AST):
    """The modules that the code imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name whole modules here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.fixture(params=MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def module(request):
    return request.param, ast.parse(request.param.read_text())


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


def test_only_what_is_below_is_imported(module):
    path, tree = module
    ours = [name.split(".") for name in imported(tree) if name.startswith("threadkeep.")]
    below = BELOW[path.parent.name] | {"errors", "langgraph_internals"}
    assert not [name for name in ours if name[1] not in below]


def test_no_clock_is_read_and_no_file_opened(module):
    _, tree = module
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not [f.id for f in calls if isinstance(f, ast.Name) and f.id in CALLS]
    clocks = {"now", "utcnow", "today"}
    methods = [f for f in calls if isinstance(f, ast.Attribute) and f.attr in clocks]
    assert not [f for f in methods if not _is(f.value, "engine")], "the time comes from Engine.now"


def test_no_module_is_overlooked():
    assert len(MODULES) > 25


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
