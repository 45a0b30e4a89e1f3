"""The part `fresh`: threads that the process or the saver does not know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from bench.savers import KINDS
from bench.short.figures import Aim, Figures, Group
from bench.short.processes import Subject
from bench.short.setting import Setting, fresh, rounds


def fresh_threads(setting: Setting) -> Iterator[Group]:
    """New threads, savers opened for one turn, threads among many."""
    yield first_puts(setting)
    yield new_savers(setting)
    yield among_many(setting)


def first_puts(setting: Setting) -> Group:
    aims = (Aim("CPU us", 3.0),)
    group = Group("the first put of a new thread", ("CPU us",), "CPU us", aims)

    def measure(subject: Subject) -> Figures:
        given = {"data": setting.data, "threads": setting.sizes.new}
        return {"CPU us": fresh(setting, subject, "new", "first_puts", (), **given)}

    return rounds(setting, setting.some("pg-pool"), group, measure)


def new_savers(setting: Setting) -> Group:
    columns = ("CPU ms", "open CPU ms")
    aims = (Aim("CPU ms", 1.0), Aim("open CPU ms"))
    group = Group("a turn by a saver opened for it", columns, "CPU ms", aims)

    def measure(subject: Subject) -> Figures:
        given = {"data": setting.data, "threads": setting.sizes.new}
        found: Figures = fresh(setting, subject, "new", "new_savers", (), **given)
        return found

    return rounds(setting, stored(setting), group, measure)


def among_many(setting: Setting) -> Group:
    many, columns = setting.sizes.many, ("get CPU us", "put CPU us")
    group = Group(f"a thread among {many:,}", columns, columns[0], [Aim(name) for name in columns])
    with ExitStack() as stack:
        for done, subject in enumerate(stored(setting), 1):
            kind, file = KINDS[subject.kind], setting.file(subject, "many")
            stack.callback(kind.remove, file)
            with setting.worker(subject) as worker:
                worker.ask("fill", kind=kind.key, file=file, threads=many)
            setting.step(done, len(stored(setting)))

        def measure(subject: Subject) -> Figures:
            seed = len(group.rounds.get(subject, ()))  # other threads in each round
            given = {"kind": subject.kind, "file": setting.file(subject, "many"), "seed": seed}
            with setting.worker(subject) as worker:
                order, calls = "cold_threads", setting.sizes.new
                found: Figures = worker.ask(order, **given, threads=many, calls=calls)
            return found

        return rounds(setting, stored(setting), group, measure)


def stored(setting: Setting) -> list[Subject]:
    return [subject for subject in setting.lasting() if subject.kind != "pg-pool"]
