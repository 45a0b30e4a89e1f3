"""The command `threadkeep`: what the shell gives to the saver, and what comes back.

How every command begins and ends lives here. Invariants: what cannot be done is said in one
line; no command decides anything that a saver could decide.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import typer

from threadkeep.cli import commands as commands  # (importing them adds them)
from threadkeep.cli.app import built
from threadkeep.cli.terminal import complain, prepare
from threadkeep.errors import NotFoundError, ThreadkeepError

_NOT_FOUND, _NOT_DONE = 1, 2
_INTERRUPTED = 130  # as shells have it: 128 and the number of SIGINT


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: as the shell gives them; None for the process's own.

    Returns:
        The exit code. 0: done, and all is well. 1: there is a finding, or nothing of that name.
        2: it could not be done. 130: interrupted. 141: whoever read the output has gone.
    """
    given = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in given
    prepare()
    try:
        code = built().main(args=given, prog_name="threadkeep", standalone_mode=False) or 0
    except ThreadkeepError as error:
        complain(error, as_json=as_json)
        return _NOT_FOUND if isinstance(error, NotFoundError) else _NOT_DONE
    except typer.TyperException as error:
        complain(error, as_json=as_json, hidden=list(_private(given)))
        return _NOT_DONE
    except (typer.Abort, KeyboardInterrupt):
        code = _INTERRUPTED
    if code == _INTERRUPTED:
        complain(typer.TyperException("interrupted"), as_json=as_json)
    return int(code)


def _private(arguments: Iterable[str]) -> Iterator[str]:
    """What may hold a password, in whatever form: a usage error would repeat it."""
    for argument in arguments:
        for one in (argument, argument.partition("=")[2]):
            if set(one) & set("@=") or "://" in one:
                yield one
