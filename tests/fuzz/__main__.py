"""Read mutated inputs of every decoder: python -m fuzz [--runs N] [--seed S] [--only TARGET ...].

An input that breaks a rule is written to build/fuzz, and named. Add it to the corpus once the
decoder is mended.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from time import monotonic

from fuzz.targets import SHARES, TARGETS

ROOT = Path(__file__).parents[2]
FINDINGS = ROOT / "build" / "fuzz"
CHUNK = 20_000  # inputs of one process


@dataclass
class Job:
    """A number of inputs of one target, and the problem that one of them met."""

    name: str
    runs: int
    seed: int
    problem: str = ""


def jobs_of(names: list[str], runs: int, seed: int) -> list[Job]:
    """Share out the inputs."""
    shares = {name: SHARES.get(name, 1) for name in names}
    jobs = []
    for name, share in shares.items():
        left = max(1, runs * share // sum(shares.values()))
        left = max(1, left // 10) if name == "thread" and len(names) > 1 else left
        while left > 0:
            jobs.append(Job(name, min(left, CHUNK), seed + len(jobs)))
            left -= CHUNK
    return jobs


def carry_out(job: Job) -> Job:
    """Run a job in a process of its own."""
    FINDINGS.mkdir(parents=True, exist_ok=True)
    current = FINDINGS / f"{job.name}-{job.seed}"
    words = [sys.executable, "-m", "fuzz.worker", job.name, str(job.runs), str(job.seed), current]
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "tests" / "golden"), *sys.path])
    done = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False
    )
    if done.returncode:
        data = current.read_bytes() if current.exists() else b""
        current.write_bytes(data[4 : 4 + int.from_bytes(data[:4], "big")])
        lines = done.stderr.strip().splitlines() or [""]
        told = next((line for line in lines if "ERROR: AddressSanitizer" in line), lines[-1])
        job.problem = f"{told or f'the process ended with {done.returncode}'}\n  input: {current}"
    else:
        current.unlink()
    return job


def main() -> int:
    """Run all jobs, and report."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--runs", type=int, default=250_000)
    parser.add_argument("--seed", type=int, default=None, help="the same inputs again")
    parser.add_argument("--only", nargs="*", default=[], choices=list(TARGETS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    seed = SystemRandom().randrange(10**6) if given.seed is None else given.seed
    started = monotonic()
    jobs = jobs_of(given.only or list(TARGETS), given.runs, seed)
    with ThreadPoolExecutor(given.jobs) as pool:
        done = list(pool.map(carry_out, jobs))
    failed = [job for job in done if job.problem]
    for job in failed:
        sys.stdout.write(f"{job.name}: {job.problem}\n")
    inputs = sum(job.runs for job in done if not job.problem)
    sys.stdout.write(
        f"{inputs:,} inputs in {monotonic() - started:.0f} s, seed {seed}: "
        f"{len(failed) or 'no'} finding{'s' * (len(failed) != 1)}\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
