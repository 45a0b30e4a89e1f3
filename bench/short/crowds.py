"""The part `processes`: several processes on one file, beside LangGraph's saver in its setting."""

from __future__ import annotations

from collections.abc import Iterator

from bench.measures.crowd import Load
from bench.short.figures import PEERS, Aim, Figures, Group
from bench.short.processes import Subject
from bench.short.setting import Setting, fresh, rounds

COLUMNS = ("turns/s", "p50 ms", "slowest ms", "lock held", "lock wait s", "failed", "lost")


def processes(setting: Setting) -> Iterator[Group]:
    """Chats of several processes on one file, with `full` and with `normal`."""
    for load in setting.sizes.crowds:
        for synchronous in ("full", "normal"):
            yield crowd(setting, load, synchronous)


def crowd(setting: Setting, load: Load, synchronous: str) -> Group:
    """`lock held`: the share of the time for which a process held the write lock, ours only."""
    threads = "1 thread" if load.threads == 1 else f"{load.threads} threads"
    group = Group(
        f"{load.processes} processes x {threads} on one file, {synchronous}",
        COLUMNS,
        "turns/s",
        (Aim("turns/s", 1.0, at_least=True), Aim("p50 ms"), Aim("slowest ms")),
    )

    def measure(subject: Subject) -> Figures:
        found = fresh(setting, subject, "processes", "crowd", load=load)
        figures = {
            "turns/s": found["turns"] / found["seconds"],
            "p50 ms": found["median"],
            "slowest ms": found["slowest"],
            "lock held": found["held"] / found["seconds"],
            "lock wait s": found["waited"],
            "failed": found["failed"],
            "lost": found["lost"],
        }
        return {name: figure for name, figure in figures.items() if figure}

    ours = [one for one in setting.subjects if one.kind == synchronous]
    peers = [Subject(f"lg-{synchronous}")] if PEERS & {one.kind for one in setting.subjects} else []
    return rounds(setting, [*peers, *ours], group, measure)
