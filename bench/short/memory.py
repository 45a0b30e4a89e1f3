"""The part `memory`: resident bytes of a process that has run many threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bench.short.figures import Aim, Figures, Group
from bench.short.processes import Subject
from bench.short.setting import Setting, fresh, rounds


def memory(setting: Setting) -> Iterator[Group]:
    """The resident memory gained by many short async threads; of ours on SQLite, `normal`."""
    threads, at_once = setting.sizes.open
    columns = ("MB", "kB a thread", "seconds", "CPU s")
    aims = (
        Aim("kB a thread", 10, beside="", of=("normal",)),
        *(Aim(name) for name in ("kB a thread", "seconds", "CPU s")),
    )
    title = f"memory after {threads:,} async threads, {at_once} at once"
    group = Group(title, columns, "kB a thread", aims)

    def measure(subject: Subject) -> Figures:
        found = fresh(setting, subject, "memory", "resident", threads=threads, at_once=at_once)
        gained = found.pop("gained")
        return {"MB": gained / 1e6, "kB a thread": gained / 1e3 / threads, **found}

    once = replace(setting, sizes=replace(setting.sizes, rounds=1))  # bytes vary little
    yield rounds(once, setting.some("full"), group, measure)
