"""Counts of what times hide: machine instructions, and syncs of files.

A worker runs under callgrind and asks it, by a small library that is compiled here, to
count the instructions of one call after the other, those of all threads together. Another
library stands in front of the system's `fsync` and `fdatasync` and counts them.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

REQUESTS = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; }
void zero(void) { CALLGRIND_ZERO_STATS; }
void dump(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
"""
SYNCS = """
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>
static atomic_long calls;
long syncs_so_far(void) { return calls; }
int fsync(int file) { calls++; return syscall(SYS_fsync, file); }
int fdatasync(int file) { calls++; return syscall(SYS_fdatasync, file); }
"""
EMPTY = "nothing"  # a call that does nothing: what counting itself costs
SUMMARY, TRIGGER = "totals: ", "desc: Trigger: Client Request: "


def library(folder: Path) -> Path | None:
    """Compile the library for callgrind; None where there is no valgrind or no C compiler."""
    return None if shutil.which("valgrind") is None else compiled(folder / "requests.c", REQUESTS)


def compiled(source: Path, text: str) -> Path | None:
    """Compile a library; None where that cannot be done."""
    compiler, made = shutil.which("cc"), source.with_suffix(".so")
    if compiler is None:
        return None
    source.write_text(text)
    command = [compiler, "-shared", "-fPIC", "-o", str(made), str(source)]
    done = subprocess.run(command, check=False, capture_output=True)
    return None if done.returncode else made


def counting_syncs(folder: Path) -> list[str]:
    """The command under which syncs of a worker are counted; empty if they cannot be."""
    made = compiled(folder / "syncs.c", SYNCS) if sys.platform == "linux" else None
    return ["env", f"LD_PRELOAD={made}"] if made else []


def syncs() -> int | None:
    """The syncs of files by this process so far; None if they are not counted."""
    library = ctypes.CDLL(None)
    return library.syncs_so_far() if hasattr(library, "syncs_so_far") else None


def command(folder: Path) -> list[str]:
    """The command that a worker runs under; its counts go into the folder."""
    return [
        "valgrind",
        "--tool=callgrind",
        "--instr-atstart=no",
        f"--callgrind-out-file={folder}/counts",
        f"--log-file={folder}/valgrind.log",
    ]


class Counter:
    """Counts calls, inside a worker that runs under valgrind."""

    def __init__(self, path: str) -> None:
        requests = ctypes.PyDLL(path)  # keeps the interpreter's lock: nothing comes between
        self.start = requests.start
        self.zero = requests.zero
        self.dump = requests.dump

    def count(self, name: str, make: Callable[[], Any]) -> None:
        """Count one call under this name."""
        for label, work in ((EMPTY, lambda: None), (name, make)):
            argument = label.encode()
            self.zero()
            work()
            self.dump(argument)


def read(folder: Path) -> dict[str, float]:
    """The median number of instructions of each call, without what counting costs.

    Not the mean: a garbage collection now and then is worth several calls.
    """
    counts: dict[str, list[int]] = defaultdict(list)
    for path in folder.glob("counts.*"):
        name, total = "", 0
        for line in path.read_text().splitlines():
            if line.startswith(TRIGGER):
                name = line.removeprefix(TRIGGER)
            elif line.startswith(SUMMARY):
                total = int(line.removeprefix(SUMMARY))
        if name:
            counts[name].append(total)
    cost = median(counts.pop(EMPTY, [0]))
    return {name: median(found) - cost for name, found in counts.items()}
