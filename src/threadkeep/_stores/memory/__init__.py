"""Rows in the memory of this process. The store has no options."""

from __future__ import annotations

from typing import TypedDict


class MemoryOptions(TypedDict, total=False):
    """No options."""


OPTIONS = MemoryOptions
