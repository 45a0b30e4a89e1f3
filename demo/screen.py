"""What the demo shows: lines, a progress bar, and the table at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from demo.savers import OURS
from demo.story import LAST, Run

MEGA = 1_000_000
LABELS = {OURS: "threadkeep", "langgraph": "LangGraph's SqliteSaver"}


def megabytes(count: int) -> str:
    return f"{count / MEGA:,.2f} MB"


class Screen:
    """One console; on a terminal with a moving bar, elsewhere with plain lines."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)

    def say(self, text: str, *, good: bool = False) -> None:
        mark = "[green]✓[/] " if good else "[blue]•[/] "
        self.console.print(mark + escape(text), soft_wrap=True)

    @contextmanager
    def bar(self, text: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
        """A bar for turns; what is yielded takes the number of turns that are done."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=self.console) as progress:
            task = progress.add_task(text, total=total, completed=done)
            yield lambda count: progress.update(task, completed=count)

    def table(self, ours: Run, theirs: Run) -> None:
        """The two runs side by side, and how many times less ours takes."""
        table = Table(title="The same run on both savers", title_justify="left")
        for name in ("", LABELS[ours.saver], LABELS[theirs.saver], "times less"):
            table.add_column(name, justify="right" if name else "left")
        table.add_row("turns", f"{len(ours.ends):,}", f"{len(theirs.ends):,}", "")
        table.add_row("checkpoints", f"{ours.checkpoints:,}", f"{theirs.checkpoints:,}", "")
        rows = (("on disk", ours.bytes, theirs.bytes, megabytes),)
        for name, a, b, show in rows:
            table.add_row(name, show(a), show(b), f"{b / a:,.0f}")
        for name, x, y in (
            ("ms a turn, median", ours.median, theirs.median),
            (f"ms a turn, last {LAST}", ours.last, theirs.last),
        ):
            table.add_row(name, f"{x:.1f}", f"{y:.1f}", f"{y / x:.1f}")
        table.caption = "Times are LangGraph's and the saver's, without the model and the tools."
        self.console.print(table)
