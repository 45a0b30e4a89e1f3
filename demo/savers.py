"""The two savers of the demo, each telling what it has acknowledged.

Invariant: a checkpoint is reported after `put` has returned, never before: from that
moment on the saver has promised it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphSqliteSaver

import threadkeep

OURS, THEIRS = "threadkeep", "langgraph"


@contextmanager
def opened(kind: str, file: Path) -> Iterator[BaseCheckpointSaver[Any]]:
    """The saver of this kind on this file, with the default settings of both."""
    if kind == OURS:
        with threadkeep.SqliteSaver(file) as saver:
            yield saver
    else:
        with closing(sqlite3.connect(file, check_same_thread=False)) as connection:
            yield LangGraphSqliteSaver(connection)


def acknowledging(
    saver: BaseCheckpointSaver[Any], tell: Callable[[str], None]
) -> BaseCheckpointSaver[Any]:
    """Have `tell` called with the id of each checkpoint once the saver has stored it."""
    put = saver.put

    @wraps(put)
    def put_and_tell(*arguments: Any, **named: Any) -> Any:
        config = put(*arguments, **named)
        tell(config["configurable"]["checkpoint_id"])
        return config

    saver.put = put_and_tell  # type: ignore[method-assign]
    return saver
