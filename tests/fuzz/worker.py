"""A process that reads mutated inputs of one target, under limits.

It ends with an error if an input ends in an error that is not ours, runs code, allocates more than
`MEMORY`, or takes more than `SECONDS` of CPU time. Before each input, it writes it to a file: if
the process dies, or is killed after `PATIENCE`, that is the one.
"""

from __future__ import annotations

import codecs
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from random import Random
from time import process_time

from fuzz.mutations import MOST, mutate
from fuzz.targets import TARGETS
from threadkeep.errors import ThreadkeepError

CORPUS = Path(__file__).parent / "corpus"
IS_SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")  # scripts/test_c
SECONDS = 5.0 if IS_SANITIZED else 1.0
PATIENCE = 20.0
MEMORY = 256 << 20
"""Bytes that an input of at most `MOST` bytes may allocate: zstd makes 128 MB of as many, which
are copied once."""

_CODE = frozenset(
    ("import", "exec", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen",
     "pickle.find_class", "socket.connect", "ctypes.dlopen", "os.remove", "os.rename"),
)  # fmt: skip


class Failure(Exception):  # noqa: N818 - no error: a finding
    """An input that broke a rule."""


class Watch:
    """Tells whether code ran: Python audits imports, calls of `exec`, pickles and processes."""

    def __init__(self) -> None:
        self.is_on = False
        self.seen: list[str] = []
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple[object, ...]) -> None:
        if self.is_on and event in _CODE:
            self.seen.append(f"{event} {args!r:.200}")


def seeds_of(name: str) -> list[bytes]:
    """The corpus of a target, in order."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def limit_memory() -> None:
    """Let this process allocate no more than `MEMORY` from here on."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


def read(name: str, data: bytes, watch: Watch) -> None:
    """Read one input. Raises `Failure`."""
    started = process_time()
    watch.is_on = True
    try:
        TARGETS[name](data)
    except ThreadkeepError:
        pass
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(at.filename).name}:{at.lineno}"
        raise Failure(f"{type(error).__name__} at {where}: {error}"[:300]) from error
    finally:
        watch.is_on = False
    if watch.seen:
        raise Failure(f"code ran: {watch.seen}")
    if (took := process_time() - started) > SECONDS:
        raise Failure(f"it took {took:.1f} s of CPU time")


def run(name: str, runs: int, seed: int, current: Path) -> None:
    """Read the corpus of a target and `runs` mutated inputs."""
    seeds, random, watch = seeds_of(name), Random(f"{name} {seed}"), Watch()
    for codec in ("utf-16-be", "utf-16-le", "utf-32-be", "utf-32-le", "idna"):
        codecs.lookup(codec)  # (imported at first use, as is other code below)
    for data in seeds:
        try:
            TARGETS[name](data)
        except ThreadkeepError:
            continue
    if sys.platform == "linux" and not IS_SANITIZED:  # (whose shadow memory takes terabytes)
        limit_memory()
    with current.open("wb", buffering=0) as file:
        for number in range(-len(seeds), runs):
            data = seeds[number] if number < 0 else mutate(random, random.choice(seeds), seeds)
            assert len(data) <= MOST or number < 0
            os.pwrite(file.fileno(), len(data).to_bytes(4, "big") + data, 0)
            signal.setitimer(signal.ITIMER_REAL, PATIENCE)
            read(name, data, watch)
    signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    """worker.py TARGET RUNS SEED FILE."""
    name, runs, seed, current = sys.argv[1:]
    try:
        run(name, int(runs), int(seed), Path(current))
    except Failure as failure:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.exit(str(failure))


if __name__ == "__main__":
    main()
