"""Charts of a growing thread: bytes stored and time a turn, as SVG for light and dark pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from pathlib import Path
from statistics import median
from typing import TypeAlias
from xml.sax.saxutils import escape

from bench.measures.turns import LaneFigures, TurnFigures
from bench.report import amount

Points: TypeAlias = list[tuple[float, float]]

# The savers that are drawn: a name and the classes of the line. The colour shows the library, the
# dashes the store. results.json has the others.
LINES = {
    "lg-full": ("LangGraph, SQLite", "theirs"),
    "lg-delta-full": ("LangGraph, SQLite, DeltaChannel", "theirs dotted"),
    "lg-pg": ("LangGraph, PostgreSQL", "theirs dashed"),
    "full": ("threadkeep, SQLite", "ours"),
    "pg": ("threadkeep, PostgreSQL", "ours dashed"),
    "redis": ("threadkeep, Redis", "ours dotted"),
    "floor": ("LangGraph, nothing saved", "floor"),
}
STYLE = """
text { font: 14px -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif }
text { fill: #1f2328 }
.title { font-weight: 600 }
.small { font-size: 12px }
.end { text-anchor: end }
.middle { text-anchor: middle }
line { stroke: #8c959f; stroke-opacity: 0.35 }
polyline { fill: none; stroke-width: 2.5; stroke-linejoin: round }
.ours { stroke: #0969da }
.theirs { stroke: #bc4c00 }
.floor { stroke: #6e7781; stroke-width: 1.5 }
.dashed { stroke-dasharray: 8 5 }
.dotted { stroke-dasharray: 2 4 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .ours { stroke: #58a6ff }
  .theirs { stroke: #f0883e }
  .floor { stroke: #9198a1 }
}"""
WIDTH, HEIGHT = 960, 400
TOP, BOTTOM = 110, 350  # of both panels
PANEL = 330  # width of one
LEFTS = (70, 545)
TICKS = 5
COLUMNS, LEGEND = 4, 235  # of the legend, and their width
LABEL = 16  # height of a line of text
POINTS = 20  # of a line of times, each the median of some turns


@dataclass(frozen=True)
class Panel:
    """One chart: its title, its lines by kind of saver, and how a value is written."""

    title: str
    left: int
    turns: int
    lines: Mapping[str, Points]
    label: Callable[[float], str]

    def draw(self) -> list[str]:
        """Return the chart as SVG elements."""
        marks = ticks(max(value for points in self.lines.values() for _, value in points))
        right = self.left + PANEL

        def place(turn: float, value: float) -> tuple[float, float]:
            return (
                self.left + PANEL * turn / self.turns,
                BOTTOM - (BOTTOM - TOP) * value / marks[-1],
            )

        parts = [
            text(self.left, TOP - 18, self.title, "title"),
            text(self.left + PANEL / 2, BOTTOM + 40, "turns of the thread", "small middle"),
        ]
        for mark in marks:
            _, y = place(0, mark)
            parts.append(f'<line x1="{self.left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
            parts.append(text(self.left - 8, y + 4, self.label(mark) if mark else "0", "small end"))
        parts += [
            text(place(turn, 0)[0], BOTTOM + 20, f"{turn:,.0f}", "small middle")
            for turn in ticks(self.turns)
            if turn <= self.turns
        ]
        for kind, points in self.lines.items():
            parts.append(path([place(*point) for point in points], kind))
        lasts = [points[-1][1] for points in self.lines.values()]
        for last, y in zip(lasts, spread([place(0, last)[1] for last in lasts]), strict=True):
            parts.append(text(right + 8, y + 4, self.label(last), "small"))
        return parts


def draw(figures: TurnFigures, note: str, file: Path) -> bool:
    """Draw both charts of a workload into `file`; False if none of its savers is drawn.

    `note` becomes a comment: the machine and versions of the run.
    """
    lanes = {kind: found[0] for kind in LINES if (found := figures.of(kind))}
    stored = {kind: growth(lane) for kind, lane in lanes.items() if lane.disk}
    if not stored:
        return False
    times = {kind: latency(lane) for kind, lane in lanes.items()}
    left, right = LEFTS
    parts = [
        f"<!-- {note.replace('--', '- -')} -->",
        f"<title>{escape(figures.title)}: bytes stored and time a turn</title>",
        f"<style>{STYLE}\n</style>",
        *legend(list(lanes)),
        *Panel("Stored", left, figures.turns, stored, amount).draw(),
        *Panel("Time a turn", right, figures.turns, times, milliseconds).draw(),
    ]
    root = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    file.write_text("\n".join([root, *parts, "</svg>", ""]), encoding="utf-8")
    return True


def growth(lane: LaneFigures) -> Points:
    return [(0, 0), *((sample.turn, sample.disk) for sample in lane.samples)]


def latency(lane: LaneFigures) -> Points:
    """Return medians of neighbouring turns, each at the middle of them."""
    width = ceil(len(lane.times) / POINTS)
    starts = range(0, len(lane.times), width)
    parts = [lane.times[start : start + width] for start in starts]
    return [
        (start + len(part) / 2, median(part)) for start, part in zip(starts, parts, strict=True)
    ]


def milliseconds(value: float) -> str:
    return f"{value:.0f} ms"


def legend(kinds: Sequence[str]) -> list[str]:
    parts = []
    for number, kind in enumerate(kinds):
        x, y = 20 + number % COLUMNS * LEGEND, 24 + number // COLUMNS * 24
        parts.append(path([(x, y - 5), (x + 34, y - 5)], kind))
        parts.append(text(x + 42, y, LINES[kind][0]))
    return parts


def ticks(greatest: float) -> list[float]:
    """Return round numbers from 0 to the first that is not below `greatest`."""
    rough = greatest / TICKS
    power = 10.0 ** floor(log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [step * number for number in range(ceil(greatest / step) + 1)]


def spread(heights: Sequence[float]) -> list[float]:
    """Return the heights moved up so far that labels at them do not overlap."""
    moved = dict.fromkeys(range(len(heights)), 0.0)
    free = float(HEIGHT)
    for number in sorted(moved, key=lambda number: -heights[number]):
        moved[number] = min(heights[number], free)
        free = moved[number] - LABEL
    return list(moved.values())


def path(points: Sequence[tuple[float, float]], kind: str) -> str:
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{LINES[kind][1]}" points="{line}"/>'


def text(x: float, y: float, words: str, style: str = "") -> str:
    chosen = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{chosen}>{escape(words)}</text>'
