"""The demo's screen: lines, the running conversation, a chart and a table."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from demo.story import LAST, Event, Run, Watch

WIDEST = 100  # columns that are used
LINES = 8  # of the conversation at a time
ROWS = 8  # of the chart
WHO = {"you": "bold", "agent": "green", "tool": "dim"}
MARKS = (("●", "LangGraph's SqliteSaver", "yellow"), ("━", "threadkeep", "cyan"))


def megabytes(count: float) -> str:
    return f"{count / 1_000_000:,.2f} MB"


class Screen:
    """One console; on a terminal the lines scroll, elsewhere the last lines are printed."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.console.width = min(self.console.width, WIDEST)

    def say(self, text: str, *, good: bool = False) -> None:
        mark = Text("✓ ", "green") if good else Text("• ", "blue")
        self.console.print(mark + Text(text), no_wrap=True, overflow="ellipsis")

    def command(self, text: str) -> None:
        """Print a command on a line of its own, in one piece however long it is."""
        self.console.print(Text(text, "bold"), soft_wrap=True)

    def message(self, event: Event) -> None:
        """Print one message of a conversation; other events are passed over."""
        if event["event"] == "said":
            self.console.print(spoken(event), no_wrap=True, overflow="ellipsis")

    @contextmanager
    def conversation(
        self, title: str, turns: int, done: int = 0, lines: int = LINES
    ) -> Iterator[Watch]:
        """Show the newest lines of a conversation and a bar of its turns."""
        newest: deque[Text] = deque(maxlen=lines)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        bar = Progress(*columns, TimeElapsedColumn(), console=self.console)
        task = bar.add_task(title, total=turns, completed=done)

        def watch(event: Event) -> None:
            if event["event"] == "said":
                newest.append(spoken(event))
            elif event["event"] == "turn":
                bar.update(task, completed=event["turn"] + 1)

        try:
            with Live(get_renderable=lambda: Group(*newest, bar), console=self.console):
                yield watch
        finally:
            if not self.console.is_terminal:
                self.console.print()  # the end of the bar's line

    def chart(self, ours: Run, theirs: Run) -> None:
        self.console.print("\nBytes stored as the conversation grows")
        width = self.console.width - 14
        for line in chart(theirs.sizes, ours.sizes, width):
            self.console.print(line)

    def table(self, ours: Run, theirs: Run) -> None:
        """Print the two runs side by side, and how many times less ours takes."""
        table = Table(title="\nThe same conversation on both savers", title_justify="left")
        for name in ("", "threadkeep", "LangGraph's SqliteSaver", "times less"):
            table.add_column(name, justify="right" if name else "left")
        table.add_row("turns", f"{len(ours.ends):,}", f"{len(theirs.ends):,}", "")
        table.add_row("checkpoints", f"{ours.checkpoints:,}", f"{theirs.checkpoints:,}", "")
        a, b = ours.sizes[len(ours.ends) - 1], theirs.sizes[len(theirs.ends) - 1]
        table.add_row("stored", megabytes(a), megabytes(b), f"{b / a:,.0f}")
        for name, x, y in (
            ("ms a turn, median", ours.median, theirs.median),
            (f"ms a turn, last {LAST}", ours.last, theirs.last),
        ):
            table.add_row(name, f"{x:.1f}", f"{y:.1f}", f"{y / x:.1f}")
        table.caption = "Times are LangGraph's and the saver's, without the model and the tools."
        self.console.print(table)


def spoken(event: Event) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    return line.append(f"{event['who']:>6}  ", "blue").append(event["text"], WHO[event["who"]])


def chart(theirs: Mapping[int, int], ours: Mapping[int, int], width: int) -> list[Text]:
    """Draw bytes over turns, one character a column, a line of text for each row."""
    greatest, last = max(*theirs.values(), *ours.values()), max(theirs)
    rows = [[Text(" ")] * width for _ in range(ROWS)]
    for sizes, (mark, _, style) in zip((theirs, ours), MARKS, strict=True):
        for column in range(width):
            size = sizes[round(column * last / (width - 1))]
            rows[round(size / greatest * (ROWS - 1))][column] = Text(mark, style)
    labels = {0: "0 MB", ROWS - 1: megabytes(greatest)}
    lines = [
        Text.assemble(f"{labels.get(row, ''):>11} ┤", *rows[row]) for row in reversed(range(ROWS))
    ]
    axis = f"{'':11} └ turn 1{f'turn {last + 1:,}':>{width - 7}}"
    names = [
        (f"  {mark} {name} {megabytes(sizes[last])}", style)
        for sizes, (mark, name, style) in zip((theirs, ours), MARKS, strict=True)
    ]
    return [*lines, Text(axis), Text.assemble(" " * 11, *names)]
