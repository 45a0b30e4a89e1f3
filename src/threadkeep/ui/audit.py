"""The audit log: one line for each change that the page makes, without values and secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.requests import Request

from threadkeep.errors import OpenError

_log = logging.getLogger("threadkeep.audit")
_log.setLevel(logging.INFO)  # (the root's default, WARNING, would drop every line)


@contextmanager
def audited(
    request: Request, action: str, thread: str, checkpoint: str | None = None, **details: Any
) -> Iterator[None]:
    """Log the change that the block makes, and whether it was done.

    Details are JSON values such as names of tags; never values of channels.
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


@contextmanager
def audit_to(file: Path | None) -> Iterator[None]:
    """Print lines to stderr during the block, and append them to a file, for its owner alone.

    Raises:
        OpenError: the file cannot be written.
    """
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if file is not None:
        try:
            file.touch(0o600)
            handlers.append(logging.FileHandler(file, encoding="utf-8"))
        except OSError as error:
            text = f"{file} cannot be written: {error.strerror}."
            raise OpenError(text, hint="Correct --audit-log.") from error
    _log.handlers, kept, _log.propagate = handlers, _log.handlers, False
    try:
        yield
    finally:
        _log.handlers, _log.propagate = kept, True
        for handler in handlers:
            handler.close()
