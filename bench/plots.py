"""The pictures: bytes over messages, and milliseconds over turns, one panel a workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.measures.turns import LaneFigures, TurnFigures
from bench.savers import KINDS

mpl.use("Agg")  # files only: there may be no screen

COLOURS = dict(zip(KINDS, mpl.color_sequences["tab20"], strict=False))
POINTS = 70  # of a latency line, each the median of some turns


def draw(all_figures: Sequence[TurnFigures], folder: Path) -> list[Path]:
    """Draw growth.png and latency.png; their paths."""
    return [
        panels(all_figures, growth, folder / "growth.png"),
        panels(all_figures, latency, folder / "latency.png"),
    ]


def panels(
    all_figures: Sequence[TurnFigures], plot: Callable[[Axes, LaneFigures], None], path: Path
) -> Path:
    figure = Figure(figsize=(max(10, 6.5 * len(all_figures)), 6), layout="constrained")
    for number, figures in enumerate(all_figures, 1):
        axes = figure.add_subplot(1, len(all_figures), number)
        for kind in dict.fromkeys(lane.kind for lane in figures.lanes):
            plot(axes, figures.of(kind)[0])
        axes.set(title=figures.title, yscale="log")
        axes.grid(visible=True, alpha=0.3)
    lines = {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}
    figure.legend(handles=list(lines.values()), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=110)
    return path


def style(lane: LaneFigures) -> dict[str, object]:
    return {
        "label": KINDS[lane.kind].label,
        "color": COLOURS[lane.kind],
        "linestyle": "--" if KINDS[lane.kind].delta else "-",
    }


def growth(axes: Axes, lane: LaneFigures) -> None:
    """Bytes stored; savers in memory have none."""
    samples = [sample for sample in lane.samples if sample.disk]
    if samples:
        counts = [sample.messages or sample.turn for sample in samples]
        axes.plot(counts, [s.disk / 1e6 for s in samples], **style(lane))  # type: ignore[arg-type]
    axes.set(xlabel="messages (turns where there are none)", ylabel="MB stored")


def latency(axes: Axes, lane: LaneFigures) -> None:
    width = max(1, len(lane.times) // POINTS)
    starts = range(0, len(lane.times), width)
    times = [median(lane.times[start : start + width]) for start in starts]
    axes.plot(list(starts), times, **style(lane))  # type: ignore[arg-type]
    axes.set(xlabel="turn", ylabel="ms a turn")
