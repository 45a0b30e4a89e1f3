"""The command: python -m bench [--data FILE] [--quick] [--only PARTS] [--out FOLDER]."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from signal import SIGTERM, signal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import many, plots, report, savers, targets
from bench import parts as measured
from bench.errors import BenchError
from bench.parts import PARTS, Setting
from bench.profiling import profile
from bench.results import Results, machine, write
from bench.savers import KINDS, OURS
from bench.servers import Server
from bench.short import suite
from bench.short.parts import PARTS as SHORT_PARTS
from bench.sizes import QUICK, SMOKE, Sizes

BACKENDS = {
    "sqlite": (savers.ON_SQLITE, measured.ON_SQLITE),
    "postgres": (savers.ON_POSTGRES, measured.ON_SERVER),
    "redis": (savers.ON_REDIS, measured.ON_SERVER),
    "mysql": (savers.ON_MYSQL, measured.ON_SERVER),
}
WIDTH = 130  # of the tables in a file or a pipe


def names(known: Sequence[str], what: str, text: str) -> list[str]:
    """The comma-separated names in `text`, each a known one."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in found if name not in known]
    if unknown or not found:
        raise BenchError(f"no such {what}: {', '.join(unknown)}; known: {', '.join(known)}")
    return found


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, help="recorded conversations, .jsonl or .jsonl.gz (else made-up ones)")
    add("--quick", action="store_true", help="a shorter run of everything: minutes, not exact")
    add("--smoke", action="store_true", help="the shortest run that shows that all of it works")
    add("--backend", choices=suite.BACKENDS, default="sqlite", help="on what (default: sqlite)")
    add(
        "--suite", choices=("savers", "threads", "short"), default="savers", help="the measurements"
    )
    add("--threads", type=int, default=100_000, help="how many, with --suite threads")
    add("--rounds", type=int, help="how many, with --suite short (default: 5)")
    add("--before", type=Path, help="another checkout of threadkeep, with --suite short")
    add(
        "--only", help=f"some parts of {','.join(PARTS)}; of --suite short: {','.join(SHORT_PARTS)}"
    )
    add("--savers", help=f"some of {','.join(KINDS)}")
    add("--out", type=Path, default=Path("bench/results"), help="where JSON and plots go")
    add("--profile", action="store_true", help="profile our part of a turn instead")
    return parser.parse_args(arguments)


def run(setting: Setting, parts: Sequence[str], results: Results, console: Console) -> None:
    """Run the parts one after the other under a progress bar."""
    columns = (TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        for name in parts:
            bar = progress.add_task(name, total=None)
            PARTS[name](
                setting,
                results,
                lambda done, total: progress.update(bar, completed=done, total=total),  # noqa: B023
            )


def short(options: argparse.Namespace, console: Console) -> None:
    usual_kinds, usual_parts = suite.BACKENDS[options.backend]
    kinds = names(list(KINDS), "saver", options.savers or ",".join(usual_kinds))
    parts = names(list(SHORT_PARTS), "part", options.only or ",".join(usual_parts))
    suite.run(options, parts, kinds, console)


def bench(options: argparse.Namespace, console: Console) -> None:
    if options.suite == "short":
        short(options, console)
        return
    if options.backend not in BACKENDS:
        raise BenchError(f"--backend {options.backend} works only with --suite short")
    if options.suite == "threads":
        many.run(options.backend, options.threads, options.out, console)
        return
    sizes = SMOKE if options.smoke else QUICK if options.quick else Sizes()
    usual_kinds, usual_parts = BACKENDS[options.backend]
    kinds = names(list(KINDS), "saver", options.savers or ",".join(usual_kinds))
    parts = names(list(PARTS), "part", options.only or ",".join(usual_parts))
    options.out.mkdir(parents=True, exist_ok=True)
    with (
        ExitStack() as stack,
        tempfile.TemporaryDirectory(prefix="bench-", dir=options.out) as folder,
    ):
        servers = servers_of(kinds, stack)
        setting = Setting(sizes, options.data, kinds, Path(folder).resolve())
        if options.profile:
            for kind in [kind for kind in kinds if kind in OURS]:
                profile(kind, sizes, options.data, setting.folder, console)
            return
        results = Results(sizes.name, sizes.last, servers=servers)
        try:
            run(setting, parts, results, console)
        finally:  # where a part fails, the others' figures are shown all the same
            if results.any():
                finish(results, options.out, console)


def servers_of(kinds: Sequence[str], stack: ExitStack) -> list[Server]:
    """The servers that these savers are on, each made ready until the stack ends."""
    stores = dict.fromkeys(KINDS[kind].store for kind in kinds)
    return [stack.enter_context(s.server()) for s in stores if s is not None and s.server]


def finish(results: Results, out: Path, console: Console) -> None:
    lines = targets.lines(results)
    report.show(results, lines, console)
    record = [{**asdict(line), "holds": line.holds} for line in lines]
    write(results, record, out / "results.json")
    written = [out / "results.json"]
    for name, figures in results.turns.items():
        file = out / f"growth-{name}.svg"
        if plots.draw(figures, note(results), file):
            written.append(file)
    console.print("Written:", ", ".join(str(path) for path in written))


def note(results: Results) -> str:
    """Describe in one line how the figures were made."""
    parts = [f"{name} {value}" for name, value in machine().items()]
    return (
        f"Drawn by make bench ({results.sizes}): {', '.join([*parts, *map(str, results.servers)])}"
    )


def main(arguments: Sequence[str]) -> int:
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    try:
        bench(parse(arguments), console)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    signal(SIGTERM, lambda *_: sys.exit(143))  # so that gigabytes of files are removed
    sys.exit(main(sys.argv[1:]))
