"""Docstrings open with a verb or a noun, not with a relative clause."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import threadkeep

ROOT = Path(__file__).parents[2]
FOLDERS = (
    Path(threadkeep.__file__).parent,
    *(ROOT / name for name in ("bench", "demo", "scripts")),
)
RELATIVE = re.compile(r"(What|Whether|Which|Who|Whom|Whose|How|Where|When|Whatever)\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_no_docstring_opens_with_a_relative_clause(folder):
    openings = [
        f"{file.relative_to(folder)}:{node.body[0].lineno}: {text.splitlines()[0]}"
        for file in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node))
        if RELATIVE.match(text)
    ]

    assert openings == []
