"""The part `statements`: how often a saver asks SQLite for something, and syncs a file."""

from __future__ import annotations

from collections.abc import Iterator

from bench.short import counting
from bench.short.figures import FLOOR, Aim, Figures, Group
from bench.short.processes import Subject
from bench.short.setting import Setting, fresh, rounds

ON_SQLITE = ("full", "normal")


def statements(setting: Setting) -> Iterator[Group]:
    """Statements, commits and syncs of one short thread, and of many async runs."""
    yield one_thread(setting)
    yield at_once(setting)


def one_thread(setting: Setting) -> Group:
    """Turns of one made-up conversation, whatever data is measured: counts of it are comparable."""
    group = Group(
        "a turn of one short thread",
        ("statements", "commits", "fsyncs", "ms"),
        "ms",
        (
            Aim("statements", 35, beside="", of=ON_SQLITE),
            Aim("fsyncs", 4.7, beside="", of=("full",)),
            *(Aim(name) for name in ("statements", "commits", "fsyncs", "ms")),
        ),
    )
    under = counting.counting_syncs(setting.folder)
    if not under:
        setting.say("No fsyncs counted: that needs Linux and a C compiler.")

    def measure(subject: Subject) -> Figures:
        found = fresh(setting, subject, "statements", "traced_thread", under)
        counts = {"ms": found["ms"], "fsyncs": found["fsyncs"], **of(found["statements"])}
        return {name: n / found["turns"] for name, n in counts.items() if n is not None}

    return rounds(setting, setting.some(FLOOR), group, measure)


def at_once(setting: Setting) -> Group:
    runs = setting.sizes.traced
    group = Group(
        f"{runs} async runs traced",
        ("statements", "commits"),
        "statements",
        (Aim("statements"), Aim("commits")),
    )

    def measure(subject: Subject) -> Figures:
        given = {"data": setting.data, "runs": runs, "turns": None}
        return of(fresh(setting, subject, "statements", "traced_together", (), **given))

    return rounds(setting, setting.some(FLOOR), group, measure)


def of(found: dict[str, int]) -> Figures:
    return {"statements": sum(found.values()), "commits": found.get("COMMIT", 0)}
