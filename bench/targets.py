"""The figures to reach, as ratios between savers measured in the same run; some only to know.

Each target is a function from the results to lines; a part that was not measured gives
none. Invariant: nothing is compared that was not measured side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from bench.measures.turns import LaneFigures, TurnFigures
from bench.results import Results


@dataclass(frozen=True)
class Line:
    """One ratio: `measured` must be at most (or at least) `target`, where there is one."""

    what: str
    measured: float
    target: float | None = None
    at_least: bool = False

    @property
    def holds(self) -> bool | None:
        if self.target is None:
            return None
        if self.at_least:
            return self.measured >= self.target
        return self.measured <= self.target


def lines(results: Results) -> list[Line]:
    """Every target whose figures were measured."""
    return [line for target in TARGETS for line in target(results)]


def turn_time(lanes: Sequence[LaneFigures], last: int) -> float:
    """Milliseconds a turn: the median of each lane's last turns, the median over lanes."""
    return median(median(lane.times[-last:]) for lane in lanes)


def size(figures: TurnFigures, kind: str) -> float:
    return median(lane.disk for lane in figures.of(kind))


def has(figures: TurnFigures | None, *kinds: str) -> bool:
    return figures is not None and all(figures.of(kind) for kind in kinds)


def disk_lines(figures: TurnFigures | None, name: str, parts: float) -> Iterator[Line]:
    if figures is not None and has(figures, "full", "lg-full"):
        share = size(figures, "full") / size(figures, "lg-full")
        yield Line(f"bytes on disk, {name}: share of LangGraph's SqliteSaver", share, 1 / parts)


def disk(results: Results) -> Iterator[Line]:
    endless = results.turns.get("endless")
    yield from disk_lines(endless, "R", 1_000)
    if endless is not None and has(endless, "full"):
        share = size(endless, "full") / endless.plain_json["langchain"]
        yield Line("bytes on disk, R: share of one plain JSON copy of the state", share, 1.0)
    yield from disk_lines(results.turns.get("chat"), "S", 700)


TURNS: dict[str, float | None] = {
    "memory": 1.6,
    "normal": 1.6,
    "full": 1.9,
    "pg": None,
    "redis": None,
    "lg-pg": None,
}


def turn(results: Results) -> Iterator[Line]:
    figures = results.turns.get("endless")
    for kind, most in TURNS.items():
        if figures is not None and has(figures, "floor", kind):
            last = results.last
            ratio = turn_time(figures.of(kind), last) / turn_time(figures.of("floor"), last)
            yield Line(f"ms a turn, last {last} turns, R: {kind} beside the floor", ratio, most)


COLD: tuple[tuple[str, str, float | None, float | None], ...] = (
    ("full", "lg-full", 5, 60),
    ("pg", "lg-pg", None, None),
    ("redis", "lg-pg", None, None),
)


def reads(results: Results) -> Iterator[Line]:
    cold = {figures.kind: figures for figures in results.cold}
    for kind, other, heads, histories in COLD:
        if {kind, other} <= cold.keys():
            ours, theirs = cold[kind], cold[other]
            faster = f"{kind}, times faster than {other}"
            ratio = median(theirs.tuple) / median(ours.tuple)
            yield Line(f"cold get_tuple of the head, R: {faster}", ratio, heads, at_least=True)
            ratio = median(theirs.history) / median(ours.history)
            yield Line(f"get_state_history(20), R, cold: {faster}", ratio, histories, at_least=True)
    figures = results.turns.get("endless")
    if figures is not None and has(figures, "full", "lg-full"):
        ratio = history(figures, "lg-full") / history(figures, "full")
        yield Line("get_state_history(20), R, same process: times faster", ratio, 60, at_least=True)


def history(figures: TurnFigures, kind: str) -> float:
    return median(time for lane in figures.of(kind) for time in lane.history)


def puts(results: Results) -> Iterator[Line]:
    for figures in results.puts:
        most = {"normal": 5.0, "full": 2.0}.get(figures.kind)
        if most is not None:
            ratio = median(figures.put) / median(figures.raw)
            what = f"put of one message, {figures.messages:,} in the thread, {figures.kind}"
            yield Line(f"{what}: beside a raw commit", ratio, most)


def crowd(results: Results) -> Iterator[Line]:
    for figures in results.crowd:
        if figures.kind in {"normal", "full"}:
            what = f"{figures.processes} processes x {figures.threads} threads, {figures.kind}"
            yield Line(f"{what}: failed or lost turns", figures.failed + figures.lost, 0)


def resident(results: Results) -> Iterator[Line]:
    for figures in results.resident:
        if figures.limit:
            ratio = figures.gained / figures.limit
            what = f"{figures.threads:,} open threads, limit {figures.limit / 1e6:.0f} MB"
            yield Line(f"{what}: resident bytes gained beside the limit", ratio, 2.0)


SERVERS: tuple[tuple[str, int | None, float | None], ...] = (
    ("pg", 50, 3.0),
    ("redis", None, None),
)


def servers(results: Results) -> Iterator[Line]:
    """Ours on a server, beside LangGraph's PostgresSaver."""
    figures = results.turns.get("endless")
    speeds = {one.kind: one.speed for one in results.runs}
    for kind, parts, faster in SERVERS:
        if figures is not None and has(figures, kind, "lg-pg"):
            share = size(figures, kind) / size(figures, "lg-pg")
            what = f"bytes, R: {kind}, share of LangGraph's PostgresSaver"
            yield Line(what, share, parts and 1 / parts)
        if {kind, "lg-pg"} <= speeds.keys():
            what = f"supersteps a second, {results.runs[0].runs} async runs: {kind} beside lg-pg"
            yield Line(what, speeds[kind] / speeds["lg-pg"], faster, at_least=True)


def postgres(results: Results) -> Iterator[Line]:
    figures = results.turns.get("endless")
    if figures is not None and has(figures, "pg", "floor"):
        floor = turn_time(figures.of("floor"), results.last)
        trip = next(one.round_trip for one in results.servers if one.name == "PostgreSQL")
        most = 2 * floor + 2 * trip
        what = f"ms a turn, last {results.last} turns, R: beside 2 x the floor and 2 round trips"
        yield Line(what, turn_time(figures.of("pg"), results.last) / most, 1.0)


def copies(results: Results) -> Iterator[Line]:
    for copy in results.copies:
        if copy.kind == "pg":
            what = f"copy_thread, {copy.checkpoints:,} checkpoints: ms"
            yield Line(what, median(copy.times), 200)


TARGETS: tuple[Callable[[Results], Iterator[Line]], ...] = (
    disk,
    turn,
    reads,
    puts,
    crowd,
    resident,
    servers,
    postgres,
    copies,
)
