"""The command `threadkeep`: reads arguments, calls a saver and prints the result."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import typer

from threadkeep.cli import commands as commands  # (importing them adds them)
from threadkeep.cli.app import build, print_error
from threadkeep.cli.terminal import escape_unencodable
from threadkeep.errors import NotFoundError, ThreadkeepError

_NOT_FOUND, _FAILED = 1, 2
_INTERRUPTED = 130  # as shells have it: 128 and the number of SIGINT


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: as the shell passes them, or None for the process's own.

    Returns:
        The exit code. 0: success. 1: a problem was found, or nothing has that name.
        2: the command failed. 130: interrupted. 141: the reader of the output is gone.
    """
    words = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in words
    escape_unencodable()
    try:
        code = build().main(args=words, prog_name="threadkeep", standalone_mode=False) or 0
    except ThreadkeepError as error:
        print_error(error, as_json=as_json)
        return _NOT_FOUND if isinstance(error, NotFoundError) else _FAILED
    except typer.TyperException as error:
        print_error(error, as_json=as_json, secrets=list(_secrets(words)))
        return _FAILED
    except (typer.Abort, KeyboardInterrupt):
        code = _INTERRUPTED
    if code == _INTERRUPTED:
        print_error(typer.TyperException("interrupted"), as_json=as_json)
    return int(code)


def _secrets(words: Iterable[str]) -> Iterator[str]:
    """Yield arguments that may hold a password, which a usage error would repeat."""
    for word in words:
        for part in (word, word.partition("=")[2]):
            if set(part) & set("@=") or "://" in part:
                yield part
