"""The tables on the screen: one function a table, each from the plain records of a part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.measures.copies import CopyFigures
from bench.measures.crowd import CrowdFigures
from bench.measures.puts import PutFigures
from bench.measures.reads import ColdFigures
from bench.measures.resident import ResidentFigures
from bench.measures.runs import RunsFigures
from bench.measures.turns import TurnFigures
from bench.results import Results
from bench.savers import KINDS
from bench.targets import Line, history, size, turn_time

KILO = 1_000


def amount(count: float) -> str:
    """Bytes for people: 1,234,567 -> '1.23 MB'; nothing for 0."""
    if not count:
        return "-"
    for unit in ("B", "KB", "MB"):
        if abs(count) < KILO:
            return f"{count:.3g} {unit}"
        count /= KILO
    return f"{count:,.2f} GB" if count < KILO else f"{count:,.0f} GB"


def number(value: float | None) -> str:
    """Three digits, or all of those before the point; "-" for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits


def ms(times: Sequence[float]) -> str:
    return f"{median(times):.3g}" if times else "-"


def table(title: str, columns: Iterable[str], note: str = "") -> Table:
    found = Table(title=title, title_justify="left", caption=note, caption_justify="left")
    for number, column in enumerate(columns):
        found.add_column(column, justify="right" if number else "left", no_wrap=not number)
    return found


def turns(figures: TurnFigures, last: int) -> Table:
    """Growth and time of one workload, a row per saver."""
    found = table(
        f"{figures.title}: {figures.turns:,} turns"
        + (f", {figures.messages:,} messages" if figures.messages else ""),
        ("saver", "stored", "RAM gained", "ms a turn", f"last {last}", "get_state", "history(20)"),
        f"The last state as plain JSON: {amount(figures.plain_json['langchain'])}"
        f" (with set fields only: {amount(figures.plain_json['least'])}). Times in ms, medians.",
    )
    for kind in dict.fromkeys(lane.kind for lane in figures.lanes):
        lanes = figures.of(kind)
        found.add_row(
            KINDS[kind].label,
            amount(size(figures, kind)),
            amount(median(lane.samples[-1].resident for lane in lanes)),
            ms([time for lane in lanes for time in lane.times]),
            f"{turn_time(lanes, last):.3g}",
            ms([time for lane in lanes for time in lane.state]),
            f"{history(figures, kind):.3g}",
        )
    return found


def growth(figures: TurnFigures) -> Table:
    """Bytes stored (or gained in RAM) at some turns on the way, a row per saver."""
    first = figures.lanes[0].samples
    wanted = sorted({round(n * (len(first) - 1) / 6) for n in range(7)})
    points = [first[n] for n in wanted]
    found = table(
        f"{figures.title}: bytes on the way (RAM gained for savers in memory)",
        ("saver", *(f"{p.messages:,} msg" if p.messages else f"{p.turn:,}" for p in points)),
    )
    for kind in dict.fromkeys(lane.kind for lane in figures.lanes):
        samples = [figures.of(kind)[0].samples[n] for n in wanted]
        found.add_row(KINDS[kind].label, *(amount(s.disk or max(s.resident, 0)) for s in samples))
    return found


def cold(all_figures: Sequence[ColdFigures]) -> Table:
    found = table(
        "R, read by a saver that has just been opened (ms)",
        ("saver", "get_tuple", "get_state", "get_state_history(20)"),
    )
    for figures in all_figures:
        found.add_row(
            KINDS[figures.kind].label,
            ms(figures.tuple),
            ms(figures.state),
            ms(figures.history),
        )
    return found


def puts(all_figures: Sequence[PutFigures]) -> Table:
    found = table(
        "One message put, beside a raw commit of two small rows in the same setting (us)",
        ("saver", "messages", "raw commit", "put", "put_writes", "put after writes"),
    )
    for f in all_figures:
        micros = (median(t) * 1_000 for t in (f.raw, f.put, f.put_writes, f.put_after_writes))
        found.add_row(KINDS[f.kind].label, f"{f.messages:,}", *(f"{time:,.0f}" for time in micros))
    return found


def crowd(all_figures: Sequence[CrowdFigures]) -> Table:
    one = all_figures[0]
    found = table(
        f"{one.processes} processes x {one.threads} threads on one file",
        ("saver", "turns", "turns a second", "ms, median", "ms, slowest", "failed", "lost"),
        next((f"{KINDS[f.kind].label}: {f.error}" for f in all_figures if f.error), ""),
    )
    for f in all_figures:
        speed = f"{f.turns / f.seconds:,.1f}"
        counts = (f"{f.median:,.0f}", f"{f.slowest:,.0f}", str(f.failed), str(f.lost))
        found.add_row(KINDS[f.kind].label, f"{f.turns:,}", speed, *counts)
    return found


def resident(all_figures: Sequence[ResidentFigures]) -> Table:
    one = all_figures[0]
    found = table(
        f"{one.threads:,} open threads in one process, {amount(one.text)} of text",
        ("saver", "working set limit", "RAM gained"),
    )
    for f in all_figures:
        found.add_row(f.label, amount(f.limit or 0), amount(f.gained))
    return found


def runs(all_figures: Sequence[RunsFigures]) -> Table:
    one = all_figures[0]
    found = table(
        f"{one.runs} async runs at once in one process, a conversation each",
        ("saver", "supersteps", "seconds", "supersteps a second"),
    )
    for f in all_figures:
        figures = (f"{f.supersteps:,}", f"{f.seconds:,.1f}", f"{f.speed:,.0f}")
        found.add_row(KINDS[f.kind].label, *figures)
    return found


def copies(all_figures: Sequence[CopyFigures]) -> Table:
    found = table("The endless thread copied (ms)", ("saver", "checkpoints", "copy_thread"))
    for f in all_figures:
        found.add_row(KINDS[f.kind].label, f"{f.checkpoints:,}", ms(f.times))
    return found


def targets(lines: Sequence[Line]) -> Table:
    """Every ratio, and whether it meets its target, if any."""
    found = table("Ratios and targets", ("what", "measured", "target", "holds"))
    for line in lines:
        found.add_row(line.what, number(line.measured), *verdict(line))
    return found


def verdict(line: Line) -> tuple[str, str]:
    if line.target is None:
        return "-", "-"
    bound = "at least" if line.at_least else "at most"
    return f"{bound} {number(line.target)}", "[green]yes" if line.holds else "[red]NO"


def tables(results: Results, lines: Sequence[Line]) -> Iterator[Table]:
    """The tables of everything that was measured."""
    for figures in results.turns.values():
        yield turns(figures, results.last)
        yield growth(figures)
    if results.cold:
        yield cold(results.cold)
    if results.puts:
        yield puts(results.puts)
    if results.crowd:
        yield crowd(results.crowd)
    if results.resident:
        yield resident(results.resident)
    if results.runs:
        yield runs(results.runs)
    if results.copies:
        yield copies(results.copies)
    if lines:
        yield targets(lines)


def show(results: Results, lines: Sequence[Line], console: Console) -> None:
    for server in results.servers:
        console.print(str(server), highlight=False)
    for one in tables(results, lines):
        console.print(one)
        console.print()
