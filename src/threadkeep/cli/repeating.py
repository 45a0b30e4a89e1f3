"""What a command does again and again, until it is interrupted: `--every`.

Only that lives here. Invariant: a store that fails is told of, and tried again the next time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Annotated

import typer

from threadkeep.cli import policies
from threadkeep.cli.terminal import complain
from threadkeep.errors import BackendError

Every = Annotated[
    str | None,
    typer.Option(
        "--every", metavar="TIME", help="again and again, such as 10m, until it is interrupted"
    ),
]


def repeated(once: Callable[[], int], every: str | None, *, as_json: bool) -> int:
    """Do it once, or as often as `--every` says; gives the exit code.

    Raises:
        InvalidArgumentError: that is no length of time.
    """
    if every is None:
        return once()
    pause = min(policies.length("--every", every).total_seconds(), threading.TIMEOUT_MAX)
    nobody = threading.Event()
    while True:
        try:
            once()
        except BackendError as error:
            complain(error, as_json=as_json)
        nobody.wait(pause)
