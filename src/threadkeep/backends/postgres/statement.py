"""What is sent to the server: statements, and reads made of them.

Only these records live here. Invariant: a text has `{schema}` where the schema's quoted
name belongs, and no other braces; everything else comes as a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

Rows: TypeAlias = list[tuple[Any, ...]]


class Statement(NamedTuple):
    """One statement, and the values of its parameters.

    Where `keep` is false it is planned anew each time, because its values decide how.
    """

    sql: str
    values: tuple[Any, ...] = ()
    keep: bool = True


class Query(NamedTuple):
    """The statements that answer a read, and what makes its reply of their rows."""

    statements: tuple[Statement, ...]
    reply: Callable[[Sequence[Rows]], Any]
