"""Worker processes: each holds one saver, of this checkout or of another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.errors import BenchError
from bench.savers import KINDS

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Subject:
    """A saver that is measured; `before`: the checkout whose threadkeep it is of."""

    kind: str
    before: Path | None = None

    @property
    def name(self) -> str:
        return f"{self.kind} before" if self.before else self.kind

    @property
    def label(self) -> str:
        return KINDS[self.kind].label + (", before" if self.before else "")

    def environment(self) -> dict[str, str]:
        """The environment of its processes."""
        if self.before is None:
            return dict(os.environ)
        return {**os.environ, "PYTHONPATH": str(self.before / "src")}

    def compiling(self) -> dict[str, str]:
        """The environment of a process that keeps its bytecode, even if this one does not."""
        environment = self.environment()
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return environment


class Worker:
    """A process of `bench.short.worker` that answers one order after the other.

    Args:
        subject: the saver.
        under: a command that runs the process, such as valgrind.

    Raises:
        BenchError: from `ask`, if the process failed; its error was printed.
    """

    def __init__(self, subject: Subject, under: Sequence[str] = ()) -> None:
        self.subject = subject
        self.process = subprocess.Popen(
            [*under, sys.executable, "-m", "bench.short.worker"],
            cwd=ROOT,
            env=subject.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, order: str, **given: Any) -> Any:
        """Run an order in the process and return its result."""
        orders, answers = self.process.stdin, self.process.stdout
        if orders is None or answers is None:
            raise AssertionError("both are pipes")
        with suppress(BrokenPipeError):  # there is no answer then
            orders.write(json.dumps([order, given], default=str) + "\n")
            orders.flush()
        line = answers.readline()
        if not line:
            self.process.wait()
            raise self.failed()
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.process.kill()
        self.process.communicate()
        if kind is None and self.process.returncode:
            raise self.failed()

    def failed(self) -> BenchError:
        return BenchError(f"{self.subject.label} failed: its error is above")


def source(checkout: Path) -> Path:
    """The checkout, whose threadkeep can be run as fast as this one's.

    Raises:
        BenchError: threadkeep, or a module that is compiled here, is missing in it.
    """
    if not (checkout / "src" / "threadkeep").is_dir():
        raise BenchError(f"no threadkeep in {checkout}: name the folder of a checkout")
    if compiled(ROOT) and not compiled(checkout):
        raise BenchError(f"{checkout} is not compiled: run scripts/setup bench in it")
    return checkout.resolve()


def compiled(checkout: Path) -> bool:
    return any((checkout / "src" / "threadkeep").rglob("*.so"))
