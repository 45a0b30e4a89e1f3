"""Releases of a program: one module's classes, replaced by those of the next release."""

import sys
from types import ModuleType
from typing import Any

import pytest

HEAD = """
import enum
from dataclasses import dataclass, field
from typing import Any, NamedTuple
import attrs
import pydantic
import pydantic.v1
"""


def release(monkeypatch: pytest.MonkeyPatch, source: str, name: str = "shop") -> Any:
    """Make a module of this source take the place of the one of this name."""
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(HEAD + source, name, "exec"), vars(module))
    return module


def withdraw(monkeypatch: pytest.MonkeyPatch, name: str = "shop") -> None:
    """Remove the module: the program does not have its classes any more."""
    monkeypatch.delitem(sys.modules, name)
