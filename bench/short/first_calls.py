"""The part `first`: the first call of each method in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from bench.errors import BenchError
from bench.savers import KINDS
from bench.short.figures import Aim, Group
from bench.short.processes import ROOT, Subject
from bench.short.setting import Setting

TIMEOUT = 120  # seconds, of all calls of a saver
COLUMNS = ("ms", "CPU ms", "next ms", "next CPU ms", "modules")
SAVERS = ("lg-full", "full")


def first_calls(setting: Setting) -> Iterator[Group]:
    """A group for each method; the modules that a first call of ours imports are printed."""
    groups: dict[str, Group] = {}
    chosen = [one for one in setting.subjects if one.kind in SAVERS]
    for subject in chosen:
        called(setting, subject)  # (compiles)
    for number in range(setting.sizes.rounds):
        for place, subject in enumerate(chosen, 1):
            for name, found in called(setting, subject).items():
                if not number and found["imported"]:
                    setting.say(f"{name}, {subject.name}, imports {', '.join(found['imported'])}")
                if name not in groups:
                    aims = (Aim("ms"), Aim("CPU ms"))
                    groups[name] = Group(f"first call of {name}", COLUMNS, "ms", aims)
                figures = {**found, "modules": len(found.pop("imported"))}
                groups[name].add(subject, {key: n for key, n in figures.items() if n})
            setting.step(number * len(chosen) + place, setting.sizes.rounds * len(chosen))
    yield from groups.values()


def called(setting: Setting, subject: Subject) -> dict[str, dict[str, Any]]:
    """The figures of each method, called in processes of their own on one new file."""
    file = setting.file(subject, "first")
    done = subprocess.run(
        [sys.executable, "-m", "bench.short.calling", subject.kind, file, *setting.sizes.first],
        check=False,
        cwd=ROOT,
        env=subject.compiling(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
    )
    KINDS[subject.kind].remove(file)
    if done.returncode:
        raise BenchError(f"{subject.label} failed: its error is above")
    return dict(json.loads(line) for line in done.stdout.splitlines())
