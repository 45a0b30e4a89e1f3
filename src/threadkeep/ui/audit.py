"""The audit log: one line for each change that the page makes, without values and secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request

_log = logging.getLogger("threadkeep.audit")
_log.setLevel(logging.INFO)  # (the root's default, WARNING, would drop every line)


@contextmanager
def audited(
    request: Request, action: str, thread: str, checkpoint: str | None = None, **details: Any
) -> Iterator[None]:
    """Log the change that the block makes, and whether it was done.

    Details are JSON values such as names of tags, never values of channels.
    """
    result = "done"
    try:
        yield
    except BaseException as error:
        result = f"refused: {type(error).__name__}"
        raise
    finally:
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "user": request.scope["threadkeep.user"].name,
            "action": action,
            "thread": thread,
            **({} if checkpoint is None else {"checkpoint": checkpoint}),
            **details,
            "result": result,
        }
        # (ASCII: a name with control characters cannot forge a line)
        _log.info("%s", json.dumps(line))
