"""Output of the commands: results on stdout, everything else on stderr.

Invariants: nothing else in the package prints; output that goes to no terminal has neither colours
nor box drawing; nothing that a thread holds can control a terminal.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import typer
from rich import progress as bars
from rich.console import Console, RenderableType

from threadkeep.errors import InvalidArgumentError, ThreadkeepError
from threadkeep.progress import Progress

_READER_GONE = 141  # as shells have it: 128 and the number of SIGPIPE
_UNLIMITED = 10_000  # columns: lines that go to no terminal are not wrapped


def escape_unencodable() -> None:
    """Print characters that a stream cannot encode as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class Output:
    """Output of one command.

    Args:
        as_json: print one JSON document instead of text.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def print(self, document: Any, *drawn: RenderableType) -> None:
        """Print the result: as the JSON document, or drawn."""
        if self.as_json:
            _write(json.dumps(document), sys.stdout)
        else:
            for item in drawn:
                _write(_render(item, sys.stdout), sys.stdout, "")

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Show progress bars on a terminal until the block ends."""
        if self.as_json or not sys.stderr.isatty():
            yield lambda *_: None
            return
        tasks: dict[str, bars.TaskID] = {}
        with bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeRemainingColumn(),
            console=_console(sys.stderr),
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,
        ) as shown:

            def update(stage: str, done: int, total: int) -> None:
                if stage not in tasks:
                    tasks[stage] = shown.add_task(stage, total=None)
                shown.update(tasks[stage], completed=done, total=total or None)

            yield update

    def confirm(self, verb: str, question: str, *shown: RenderableType) -> None:
        """Ask at the terminal before something is removed.

        Args:
            verb: "delete" or "erase".
            question: the question.
            shown: printed before it.

        Raises:
            InvalidArgumentError: there is no terminal, or the answer is no.
        """
        if self.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise InvalidArgumentError(
                f"Nothing was {verb}d: cannot ask for confirmation without a terminal.",
                hint=f"Use --yes to {verb} without confirmation, or --dry-run to preview.",
            )
        for item in shown:
            _write(_render(item, sys.stderr), sys.stderr, "")
        if not typer.confirm(question, err=True):
            raise InvalidArgumentError(f"Nothing was {verb}d.")


def print_error(
    error: ThreadkeepError | typer.TyperException, *, as_json: bool, secrets: Sequence[str] = ()
) -> None:
    """Print an error to stderr, as one line or as a JSON document.

    Args:
        error: a failure, or a usage error.
        as_json: print a JSON document.
        secrets: arguments that a usage error must not repeat.
    """
    if as_json:
        _write(json.dumps({"error": _error_document(error, secrets)}), sys.stderr)
        return
    text = str(error) if isinstance(error, ThreadkeepError) else _usage(error, secrets)
    _write(f"threadkeep: {clean(' '.join(text.split()))}", sys.stderr)


def _error_document(
    error: ThreadkeepError | typer.TyperException, secrets: Sequence[str]
) -> dict[str, Any]:
    if not isinstance(error, ThreadkeepError):
        return {"type": "Usage", "message": _usage(error, secrets), "hint": ""}
    place = {n: getattr(error, n) for n in ("thread", "namespace", "checkpoint", "channel")}
    return {"type": type(error).__name__, "message": error.message, "hint": error.hint, **place}


def _usage(error: typer.TyperException, secrets: Sequence[str]) -> str:
    context = getattr(error, "ctx", None)
    see = f" See {context.command_path} --help." if context is not None else ""
    message = error.format_message().strip()
    for secret in filter(None, secrets):
        message = message.replace(secret, "...")
    end = "" if not see or message.endswith((".", "?")) else "."
    return f"{message}{end}{see}"


def clean(text: str) -> str:
    """Escape control characters, except line feeds and tabs."""
    return text.translate(_ESCAPED)


_CONTROLS = (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F))
_ESCAPED = {code: ascii(chr(code))[1:-1] for code in _CONTROLS}


class _Console(Console):
    """Console that draws with plain characters unless it is a terminal."""

    @property
    def encoding(self) -> str:
        return super().encoding if self.is_terminal else "ascii"


def _console(stream: TextIO) -> _Console:
    is_terminal = stream.isatty()
    colours = is_terminal and not os.environ.get("NO_COLOR")
    return _Console(
        file=stream,
        force_terminal=is_terminal,
        color_system="auto" if colours else None,
        width=None if is_terminal else _UNLIMITED,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _render(item: RenderableType, stream: TextIO) -> str:
    console = _console(stream)
    with console.capture() as captured:
        console.print(item, soft_wrap=isinstance(item, str))
    return "".join(f"{line.rstrip()}\n" for line in captured.get().removesuffix("\n").split("\n"))


def _write(text: str, stream: TextIO, end: str = "\n") -> None:
    try:
        print(text, file=stream, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if stream is sys.stdout:
            raise typer.Exit(_READER_GONE) from None
