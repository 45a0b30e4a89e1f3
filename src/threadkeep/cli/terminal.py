"""Output of the commands: results on stdout, everything else on stderr.

Invariants: nothing else in the package prints, only a terminal gets colours and boxes, and a
thread's contents cannot control the terminal.

Strings and table cells are escaped when printed. `text` escapes and styles.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any, TextIO, TypeAlias

import typer
from rich import progress as bars
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.text import Text

from threadkeep._core.engine.operation import Progress
from threadkeep._core.engine.thread_entry import Lifecycle, ThreadStatus
from threadkeep._core.texts import plural as plural  # noqa: PLC0414 - for commands
from threadkeep.errors import InvalidArgumentError
from threadkeep.threads import FoundThread, FoundThreads, ThreadInfo
from threadkeep.threads.transfer.reading import LangGraphThread

Drawn: TypeAlias = RenderableType | None
"""Something to print. None prints nothing."""

_READER_GONE = 141  # as shells have it: 128 and the number of SIGPIPE
_UNLIMITED = 10_000  # columns: lines that go to no terminal are not wrapped


def escape_unencodable() -> None:
    """Print characters that a stream cannot encode as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class _Amount(bars.MofNCompleteColumn):
    """The amount that is done, and the total if it is known; of bytes as of a file."""

    def render(self, task: bars.Task) -> Text:
        is_size = task.description.startswith("bytes")
        return bars.DownloadColumn().render(task) if is_size else super().render(task)


@dataclass(kw_only=True)
class Output:
    """Output of one command."""

    as_json: bool

    def print(self, document: Any, *drawn: Drawn) -> None:
        """Print the result as a JSON document, or drawn."""
        if self.as_json:
            write(json.dumps(document, default=str), sys.stdout)
        else:
            _draw(drawn, sys.stdout)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Show progress bars on a terminal until the block ends."""
        if self.as_json or not sys.stderr.isatty():
            yield lambda *_: None
            return
        tasks: dict[str, bars.TaskID] = {}
        verb = ""
        with bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            _Amount(),
            bars.TimeRemainingColumn(),
            console=_console(sys.stderr),
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,
        ) as shown:

            def update(stage: str, done: int, total: int) -> None:
                nonlocal verb
                if stage not in tasks:
                    tasks[stage] = shown.add_task(stage, total=None)
                if (own := stage.partition(" ")[2]) != verb:
                    verb = own
                    for name, task in tasks.items():  # (stages before may come again)
                        is_part = name.startswith(("checkpoints", "bytes"))
                        shown.update(task, visible=not is_part or name.endswith(verb))
                shown.update(tasks[stage], completed=done, total=total or None)

            yield update

    def watch(self, draw: Callable[[], Iterable[Drawn]], seconds: float) -> None:
        """Show the result of `draw` on the whole terminal, and refresh it until interrupted."""
        console = _console(sys.stdout)
        if not console.is_terminal or console.is_dumb_terminal:
            raise InvalidArgumentError(
                "--watch needs a terminal.", hint="Use --watch --json, or leave --watch out."
            )
        timer = threading.Event()
        with (
            interrupted_by_sigterm(),
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            while True:
                shown = [text(one) if isinstance(one, str) else one for one in draw()]
                live.update(Group(*[one for one in shown if one is not None]), refresh=True)
                timer.wait(seconds)

    def confirm(self, verb: str, question: str, *shown: Drawn) -> None:
        """Ask for confirmation at the terminal."""
        preview = ", or --dry-run to preview" if shown else ""
        done = f"{verb.removesuffix('e')}ed"
        if self.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise InvalidArgumentError(
                f"Nothing was {done}: cannot ask for confirmation without a terminal.",
                hint=f"Use --yes to {verb} without confirmation{preview}.",
            )
        _draw(shown, sys.stderr)
        if not typer.confirm(clean(question), err=True):
            raise InvalidArgumentError(f"Nothing was {done}.")


def skipped_lines(skipped: Mapping[str, str]) -> Iterator[str]:
    """Return lines for threads that could not be read."""
    for thread, reason in skipped.items():
        yield f"Skipped {thread}: {reason}"
    if skipped:
        yield "threadkeep check lists the damage, threadkeep repair removes it."


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """End on SIGTERM as on Ctrl-C, with all cleanup."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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


def _draw(items: Iterable[Drawn], stream: TextIO) -> None:
    console = _console(stream)
    for item in items:
        if item is not None:
            is_plain = isinstance(item, str)
            with console.capture() as captured:
                shown = clean(item) if isinstance(item, str) else item
                console.print(shown, soft_wrap=is_plain, crop=False)
            lines = captured.get().removesuffix("\n").split("\n")
            write("".join(f"{line.rstrip()}\n" for line in lines).replace(_BOUND, " "), stream, "")


def write(text: str, stream: TextIO, end: str = "\n") -> None:
    """Print a text. If the reader of stdout is gone, end the command."""
    try:
        print(text, file=stream, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if stream is sys.stdout:
            raise typer.Exit(_READER_GONE) from None


_WIDE = 100  # columns
_HEIGHT = 4  # lines
_BOUND = "\ue000"  # a space in a text that is not wrapped, until it is printed
_SHORT = 40  # columns
_BLOCKS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"


def text(value: Any, style: str = "") -> Text:
    """Return a value from a store as printable text."""
    return Text(clean(str(value)), style)


def line(*parts: tuple[str, str] | str) -> Text:
    """Join texts, each with or without a style, to a line, and skip empty ones.

    If a terminal wraps the line, short texts stay whole.
    """
    styled = [(part, "") if isinstance(part, str) else part for part in parts]
    shown = [text(_bound(what), style) for what, style in styled if what]
    return Text("  ").join(shown)


def _bound(part: str) -> str:
    return part.replace(" ", _BOUND) if len(part) <= _SHORT else part


_TEXTS = ("", "metadata", "tags", "value", "status", "state")  # columns that may be wrapped
ID = 36
"""Columns of a UUID."""
_GAP = "  "


class _Fitting:
    """Table that is not wider than the terminal.

    If rows do not fit:

    1. texts are wrapped between words, to half their width at least;
    2. an id that is longer than a UUID has a line of its own;
    3. the last columns stand below each row, with their names.
    """

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
        self._names = [name.removesuffix(">") for name in columns]
        self._numbers = [name.endswith(">") for name in columns]
        self._rows = rows

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        room = options.max_width
        widths = self._widths(room)
        yield from self._lines(console, [Text(name, "bold") for name in self._names], widths)
        if sys.stdout.isatty():
            yield Text("\u2500" * min(sum(widths) + len(_GAP) * (len(widths) - 1), room))
        for row in self._rows:
            yield from self._lines(console, row, widths)
            yield from self._below(console, row[len(widths) :], room - len(_GAP))

    def _widths(self, room: int) -> list[int]:
        """Return the widths of the columns that are not below the rows."""
        widths, whole = list[int](), list[int]()
        for name, *cells in zip(self._names, *self._rows, strict=True):
            width = max(cell_len(name), *[cell.cell_len for cell in cells])
            least = width if widths else min(width, ID)
            if name in _TEXTS:
                words = [cell_len(word) for cell in cells for word in cell.plain.split()]
                least = max(cell_len(name), width // 2, *words)
            if widths and sum(widths) + least + len(_GAP) * len(widths) > room:
                break
            widths.append(least)
            whole.append(width)
        for at, width in reversed([*enumerate(whole)]):  # (the id last: it is wide enough, or not)
            spare = room - sum(widths) - len(_GAP) * (len(widths) - 1)
            more = min(max(spare, 0), width - widths[at])
            widths[at] += more if at or widths[at] + more == width else 0
        return widths

    def _lines(
        self, console: Console, row: Sequence[Text], widths: Sequence[int]
    ) -> Iterator[Text]:
        """Yield the lines of a row, or of the heading."""
        first, *others = row[: len(widths)]
        if first.cell_len > widths[0]:
            yield _whole(first)
            if not any(cell.plain for cell in others):
                return
            first = Text()
        rest = [cell.wrap(console, width) for cell, width in zip(others, widths[1:], strict=True)]
        for cells in zip_longest(first.split(allow_blank=True), *rest, fillvalue=Text()):
            parts = list[Text]()
            for cell, width, is_number in zip(cells, widths, self._numbers, strict=False):
                blank = Text(" " * (width - cell.cell_len))
                parts.append(blank + cell if is_number else cell + blank)
            yield _whole(Text(_GAP).join(parts))

    def _below(self, console: Console, row: Sequence[Text], room: int) -> Iterator[Text]:
        """Yield lines of the columns that have no room."""
        lines = list[Text]()
        for name, cell in zip(self._names[-len(row) :], row, strict=True) if row else ():
            part = Text.assemble((f"{name} " if name else "", "dim"), cell)
            if not cell.plain:
                continue
            if lines and lines[-1].cell_len + len(_GAP) + part.cell_len <= room:
                lines[-1].append_text(Text(_GAP) + part)
            else:
                part.overflow = "fold" if name in _TEXTS else "ignore"
                lines.append(part)
        for line in lines:
            for one in line.wrap(console, room):
                yield _whole(Text(_GAP) + one)


def _whole(shown: Text) -> Text:
    """Return a line that only the terminal wraps, without a line break."""
    shown.no_wrap, shown.overflow = True, "ignore"
    return shown


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Text | str | int]]
) -> RenderableType | None:
    """Return a table, or None if it has no rows. Columns whose names end in `>` hold numbers.

    Ids and times are never broken (see `_Fitting`).
    """
    return _Fitting(columns, [[*map(_cell, row)] for row in rows]) if rows else None


def _cell(value: Text | str | int) -> Text:
    if isinstance(value, Text):
        return value
    return text(f"{value:,}" if isinstance(value, int) else value)


def bar(part: float, whole: float, longest: int) -> Text:
    """Return a bar for a part of a whole."""
    filled = round(longest * part / whole) if whole else 0
    return Text(("\u2588" if sys.stdout.isatty() else "#") * filled, "cyan")


def width() -> int:
    """Return the width of the terminal, or 100 without one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDE


def columns(counts: Sequence[int], unit: str, names: Sequence[str]) -> Text:
    """Return a chart with a column for each count. Its labels are the greatest, and `names`."""
    most, is_terminal = max(counts, default=0), sys.stdout.isatty()
    blocks = _BLOCKS if is_terminal else " #"
    steps = len(blocks) - 1
    filled = [math.ceil(_HEIGHT * steps * count / most) if most else 0 for count in counts]
    label, lines = f"{most:,}".rjust(len(unit)), []
    for row in reversed(range(_HEIGHT)):
        parts = [blocks[min(max(one - row * steps, 0), steps)] * 2 for one in filled]
        side = label if row == _HEIGHT - 1 else "0" if row == 0 else ""
        lines.append(Text(f"{side:>{len(label)}} ") + Text(" ".join(parts), "cyan"))
    lines.append(Text(f"{unit:>{len(label)}} {' '.join(names)}"))
    return Text("\n").join(lines)


def compact(value: Any) -> str:
    """Return a value as JSON in one line."""
    return json.dumps(value, ensure_ascii=False)


def moment(time: str) -> str:
    """Return an ISO time, to the second."""
    return time[:19].replace("T", " ")


def made_by(source: str | None, step: int | None) -> str:
    """Return the source and step of a checkpoint."""
    return " ".join([str(part) for part in (source, step) if part is not None])


# -- threads -----------------------------------------------------------------------------

_STYLES: dict[str, str] = {
    ThreadStatus.WAITING: "bold yellow",
    ThreadStatus.FAILED: "bold red",
    ThreadStatus.UNFINISHED: "magenta",
    ThreadStatus.RUNNING: "green",
    ThreadStatus.HELD: "bold red",
    Lifecycle.ARCHIVED: "blue",
    Lifecycle.DELETED: "dim",
    Lifecycle.CREATED: "cyan",
}
_AGES = (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("min", timedelta(minutes=1)))


def print_thread(output: Output, thread: ThreadInfo) -> None:
    """Print a thread as the result of a command."""
    output.print({"thread": thread.as_json()}, thread_line(thread))


def thread_line(thread: ThreadInfo) -> Text:
    """Return a line about a thread."""
    cold = (thread.archived_bytes or 0) + thread.offloaded_bytes
    return line(
        (f"thread {thread.id}", "bold"),
        _status(thread),
        _lease(thread),
        plural(thread.attempts, "failed attempt") if thread.attempts else "",
        _state(thread),
        "pinned" if thread.pinned else "",
        f"updated {_ago(thread)}",
        f"created {moment(thread.created_at.isoformat())}",
        plural(thread.bytes, "byte"),
        f"{cold:,} in the cold store" if cold else "",
        f"ttl {_duration(thread.ttl)}" if thread.ttl is not None else "",
        f"forked from {thread.forked_from[0]}" if thread.forked_from is not None else "",
        (f"tags: {', '.join(thread.tags)}" if thread.tags else "", "cyan"),
        _metadata(thread),
    )


def thread_table(threads: Iterable[ThreadInfo]) -> RenderableType | None:
    """Return a table of threads, or None if there are none."""
    threads = list(threads)
    if any(isinstance(one, LangGraphThread) for one in threads):
        return _langgraph_table(threads)
    states = [_state_and_pin(one) for one in threads]
    rows: list[tuple[Text | str | int, ...]] = [
        (
            one.id,
            text(*_status(one)),
            *([state] if any(states) else []),  # (a narrow screen has room for few columns)
            _ago(one),
            one.bytes,
            text(", ".join(one.tags), "cyan"),
            _metadata(one),
        )
        for one, state in zip(threads, states, strict=True)
    ]
    title = ["state"] if any(states) else []
    return table(["thread", "status", *title, "updated", "~bytes>", "tags", "metadata"], rows)


def _langgraph_table(threads: Iterable[ThreadInfo]) -> RenderableType | None:
    rows = [
        (
            one.id,
            text(*_status(one)),
            _ago(one),
            one.checkpoints if isinstance(one, LangGraphThread) else "",
            one.bytes,
        )
        for one in threads
    ]
    return table(("thread", "status", "updated", "checkpoints>", "~bytes>"), rows)


def found_lines(found: FoundThreads) -> Iterator[Text]:
    """Yield two lines for each found thread. The second one is its excerpt."""
    room = width() - 2 if sys.stdout.isatty() else _UNLIMITED
    for one in found.hits:
        count = plural(one.count, "message") if one.count > 1 else ""
        where = one.role or one.found_in
        yield line((one.thread.id, "bold"), where, count, (_ago(one.thread), "dim"))
        yield Text("  ") + _excerpt(one, room)


def _excerpt(one: FoundThread, room: int) -> Text:
    """Return the excerpt around a match, in so many columns."""
    shown, at, first = Text(), 0, 0
    for start, stop in one.matches:
        shown.append(text(one.excerpt[at:start]))
        first = first or shown.cell_len + 1
        shown.append(text(one.excerpt[start:stop], "bold yellow"))
        at = stop
    shown.append(text(one.excerpt[at:]))
    if shown.cell_len > room and first > room // 2:
        while shown.cell_len > room and first > room // 3:
            first -= cell_len(shown.plain[0])
            shown = shown[1:]
        shown = Text("\u2026") + shown[1:]
    shown.truncate(room, overflow="ellipsis")
    return shown


def _status(thread: ThreadInfo) -> tuple[str, str]:
    """Return the status of a thread, with its worker or the node that failed, and its style."""
    if thread.status is None:
        return "", ""
    name = thread.worker if thread.status == ThreadStatus.RUNNING else thread.failed_node
    return f"{thread.status} {name or ''}".rstrip(), _STYLES.get(thread.status, "")


def _lease(thread: ThreadInfo) -> str:
    """Return the end of a thread's lease, with its worker if that is dead."""
    if thread.lease_until is None:
        return ""
    worker = "" if thread.status == ThreadStatus.RUNNING else f" of {thread.worker}"
    return f"lease{worker} until {moment(thread.lease_until.isoformat())}"


def _state(thread: ThreadInfo) -> tuple[str, str]:
    """Return the state of a thread and its style, or nothing if it is active."""
    is_usual = thread.state == Lifecycle.ACTIVE
    return "" if is_usual else thread.state, _STYLES.get(thread.state, "")


def _state_and_pin(thread: ThreadInfo) -> Text:
    parts = (_state(thread), ("pinned" if thread.pinned else "", ""))
    return Text(" ").join([text(*part) for part in parts if part[0]])


def _ago(thread: ThreadInfo) -> str:
    return f"{_duration(max(datetime.now(UTC) - thread.updated_at, timedelta()))} ago"


def _duration(length: timedelta) -> str:
    """Return a length of time in the largest unit that fits at least twice, else in seconds."""
    for name, unit in _AGES:
        if length >= 2 * unit:
            return f"{length // unit} {name}"
    return f"{length.total_seconds():.0f} s"


def _metadata(thread: ThreadInfo) -> str:
    pairs = thread.metadata.items()
    return ", ".join(f"{k}={v if isinstance(v, str) else compact(v)}" for k, v in pairs)


def on_enter(call: Callable[[], None]) -> bool:
    """Call a function at each line that is typed in the terminal, while the event loop runs.

    Returns False if there is no terminal.
    """
    if not (sys.stdin and sys.stdin.isatty()):
        return False
    stdin, loop = sys.stdin.fileno(), asyncio.get_running_loop()

    def typed() -> None:
        if os.tcgetpgrp(stdin) != os.getpgrp():
            return  # (the shell's: reading would stop this process)
        if os.read(stdin, 4096):
            call()
        else:
            loop.remove_reader(stdin)

    with suppress(NotImplementedError):  # Windows
        loop.add_reader(stdin, typed)
        return True
    return False
