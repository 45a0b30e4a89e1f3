"""What the commands say, and where: results on stdout, all else on stderr.

Invariants: nothing else in the package prints; what goes to no terminal has neither colours
nor box drawing; nothing that a thread holds can give orders to a terminal.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, TypeAlias

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from threadkeep.errors import InvalidArgumentError, ThreadkeepError

Told: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is in all."""

_READER_GONE = 141  # as shells have it: 128 and the number of SIGPIPE
_WIDE = 10_000  # lines that go to no terminal are as long as they are


def prepare() -> None:
    """Let no character be what keeps something from being said."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class Output:
    """Where one command says what came of it.

    Args:
        as_json: whether that is one JSON document, and nothing beside it.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def tell(self, document: Any, *drawn: RenderableType) -> None:
        """The result: the document, or what is drawn of it."""
        if self._as_json:
            _print(json.dumps(document), sys.stdout)
        else:
            for one in drawn:
                _print(_rendered(one, sys.stdout), sys.stdout, "")

    def note(self, drawn: RenderableType) -> None:
        """What is not the result, for whoever looks."""
        _print(_rendered(drawn, sys.stderr), sys.stderr, "")

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Show that something is being done, to whoever waits at a terminal."""
        with self.progress() as told:
            told(what, 0, 0)
            yield

    @contextmanager
    def progress(self) -> Iterator[Told]:
        """Show how far it is to whoever waits at a terminal, until the block ends."""
        if self._as_json or not sys.stderr.isatty():
            yield _tell_nobody
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        console = _console(sys.stderr)
        with Progress(
            *columns,
            TimeRemainingColumn(),
            console=console,
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,
        ) as shown:
            yield _Bars(shown)


class _Bars:
    """One bar for each thing that is being done."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._known: dict[str, Any] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self._known:
            self._known[what] = self._shown.add_task(what, total=None)
        self._shown.update(self._known[what], completed=done, total=total or None)


def _tell_nobody(what: str, done: int, total: int) -> None:
    del what, done, total


def complain(
    error: ThreadkeepError | typer.TyperException, *, as_json: bool, hidden: Sequence[str] = ()
) -> None:
    """Why it could not be done, on stderr: in one line, or as a JSON document.

    Args:
        error: a failure, or a wrong usage.
        as_json: which of the two.
        hidden: arguments that are not to be repeated where the usage is wrong.
    """
    if as_json:
        _print(json.dumps({"error": _as_document(error, hidden)}), sys.stderr)
        return
    text = str(error) if isinstance(error, ThreadkeepError) else _usage(error, hidden)
    _print(f"threadkeep: {clean(' '.join(text.split()))}", sys.stderr)


def _as_document(
    error: ThreadkeepError | typer.TyperException, hidden: Sequence[str]
) -> dict[str, Any]:
    if not isinstance(error, ThreadkeepError):
        return {"type": "Usage", "message": _usage(error, hidden), "hint": ""}
    place = {n: getattr(error, n) for n in ("thread", "namespace", "checkpoint", "channel")}
    return {"type": type(error).__name__, "message": error.message, "hint": error.hint, **place}


def _usage(error: typer.TyperException, hidden: Sequence[str]) -> str:
    context = getattr(error, "ctx", None)
    where = f" See {context.command_path} --help." if context is not None else ""
    message = error.format_message().strip()
    for one in filter(None, hidden):
        message = message.replace(one, "...")
    end = "" if not where or message.endswith((".", "?")) else "."
    return f"{message}{end}{where}"


def clean(text: str) -> str:
    """The text as it may be shown: of control characters, only line feeds and tabs stay."""
    return text.translate(_ESCAPED)


_CONTROLS = (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F))
_ESCAPED = {code: ascii(chr(code))[1:-1] for code in _CONTROLS}


def compact(value: Any) -> str:
    """What JSON knows, in one line for people."""
    return json.dumps(value, ensure_ascii=False)


def drawing_here() -> bool:
    """Whether stdout is a terminal that shows more than plain characters."""
    return _console(sys.stdout).is_terminal


class _Console(Console):
    """One that draws with plain characters where nobody looks."""

    @property
    def encoding(self) -> str:
        return super().encoding if self.is_terminal else "ascii"


def _console(where: TextIO) -> _Console:
    here = where.isatty()
    colours = here and not os.environ.get("NO_COLOR")
    return _Console(
        file=where,
        force_terminal=here,
        color_system="auto" if colours else None,
        width=None if here else _WIDE,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _rendered(drawn: RenderableType, where: TextIO) -> str:
    console = _console(where)
    with console.capture() as captured:
        console.print(drawn, soft_wrap=isinstance(drawn, str))
    return "".join(f"{line.rstrip()}\n" for line in captured.get().removesuffix("\n").split("\n"))


def _print(text: str, where: TextIO, end: str = "\n") -> None:
    try:
        print(text, file=where, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), where.fileno())
        if where is sys.stdout:  # (who reads no complaints is not to be told more)
            raise typer.Exit(_READER_GONE) from None


def ask(output: Output, verb: str, question: str, *, as_json: bool, shown: Iterable[Any]) -> None:
    """Ask whoever sits there whether something is to go for good.

    Args:
        output: where things are shown.
        verb: what would be done to it: "delete" or "erase".
        question: what is asked.
        as_json: whether nobody reads, but a program.
        shown: what is shown before.

    Raises:
        InvalidArgumentError: nobody is there, or the answer is no.
    """
    if as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidArgumentError(
            f"Nothing was {verb}d: nobody is there to be asked.",
            hint=f"Give --yes to {verb} without a question, or --dry-run to see what would go.",
        )
    for one in shown:
        output.note(one)
    if not typer.confirm(question, err=True):
        raise InvalidArgumentError(f"Nothing was {verb}d.")
